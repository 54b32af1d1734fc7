"""Draft a pipeline file from data files; needs no database."""

from dataclasses import asdict

from onceload.commands.arguments import Arguments, Commands, command
from onceload.settings import Settings
from onceload.terminal import on_terminal, show_json, show_text, words
from onceload_core.errors import ExitCode, SettingRefused


def add(commands: Commands) -> None:
    teaches = "write a pipeline file for data files, from a sample of their records"
    each = command(commands, "draft", draft, teaches, "onceload draft 'landing/orders/*.jsonl' > orders.yaml")
    each.add_argument("pattern", nargs="+", metavar="PATTERN", help="the files, as a pattern in quotes")


def draft(arguments: Arguments, settings: Settings) -> ExitCode:
    """Write a pipeline file for data files to stdout."""
    from onceload.draft.draft import draft as draft_now

    del settings
    if len(arguments.pattern) > 1:
        first, second, *_ = arguments.pattern
        found = f"{len(arguments.pattern)} names, such as {first!r} and {second!r}"
        raise SettingRefused(
            "onceload draft", found, "one pattern; put it in quotes, so that the shell does not expand it"
        )
    on_terminal("reading a sample")
    drafted = draft_now(arguments.pattern[0])
    if arguments.json:
        show_json(asdict(drafted))
    else:
        show_text(drafted.text)
    for note in drafted.notes:
        words(note)
    file = f"{drafted.pipeline}.yaml"
    words(f"drafted from {drafted.source}. Review the file, and save it, for example as {file}. Then run")
    words(f"  onceload plan {file}")
    words(f"  onceload load {file}")
    return ExitCode.DONE
