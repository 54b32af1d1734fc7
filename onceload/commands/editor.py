"""The command for editors: schema."""

from dataclasses import asdict
from pathlib import Path

from onceload.commands.arguments import Arguments, Commands, command
from onceload.editor import offer, schema_text
from onceload.settings import Settings
from onceload.terminal import show_json, show_text, words
from onceload_core.errors import ExitCode


def add(commands: Commands) -> None:
    teaches = "print the JSON Schema of pipeline files, or write it where editors find it"
    parser = command(commands, "schema", schema, teaches, "onceload schema --editor 'pipelines/*.yaml'")
    parser.add_argument(
        "--editor",
        nargs="?",
        const="pipelines/*.yaml",
        metavar="PATTERN",
        help="write it to .vscode/ in this folder, for the files that match (default: pipelines/*.yaml). Your settings "
        "are kept",
    )


def schema(arguments: Arguments, settings: Settings) -> ExitCode:
    """Print the JSON Schema, or write it for editors."""
    del settings
    if arguments.editor is None:
        show_text(schema_text())
        return ExitCode.DONE
    offered = offer(Path.cwd(), pattern=arguments.editor)
    if arguments.json:
        show_json(asdict(offered))
    words(f"the schema is in {offered.schema}")
    if offered.to_add is not None:
        words(f"{offered.settings} has comments or a layout of its own, and was not changed. Add this to it:")
        words(offered.to_add)
        return ExitCode.NEEDS_A_PERSON
    words(f"{offered.settings} assigns it to {arguments.editor}, for the YAML extension of VS Code")
    words(f"for other editors, make this the first line of a file: # yaml-language-server: $schema={offered.schema}")
    return ExitCode.DONE
