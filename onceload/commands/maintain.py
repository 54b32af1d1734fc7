"""The command that frees space: maintain."""

from onceload.commands.arguments import Arguments, Commands, command
from onceload.databases import open_database
from onceload.settings import Settings
from onceload.terminal import show_json, words
from onceload.upkeep import delete_unused
from onceload_core.errors import ExitCode


def add(commands: Commands) -> None:
    teaches = "delete old sessions and audits, idle producers and unused staging tables"
    command(commands, "maintain", maintain, teaches, "onceload maintain")


def maintain(arguments: Arguments, settings: Settings) -> ExitCode:
    """Delete what no load needs, for every pipeline."""
    with open_database(settings) as engine:
        gone = delete_unused(engine, home=settings.home)
    if arguments.json:
        show_json(gone)
    for what, count in gone.items():
        words(f"{what.replace('_', ' ')}: {count:,}")
    return ExitCode.DONE
