"""The commands that make the schema and look whether all is there: init, doctor."""

from typing import TYPE_CHECKING

from dedup_core.errors import ExitCode
from onceload import doctor, schema
from onceload.commands.arguments import Arguments, Commands, command
from onceload.settings import Settings
from onceload.terminal import (
    show_json,
    show_table,
    words,
)

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    pass
from onceload.databases import open_database


def add(commands: Commands) -> None:
    command(commands, "init", init, "make the schema, or bring it up to date", "onceload init")
    command(commands, "doctor", diagnose, "check Python, Java, database, schema, disk and clock", "onceload doctor")


def init(arguments: Arguments, settings: Settings) -> ExitCode:
    """Make the schema, or bring it up to date."""
    with open_database(settings, schema_checked=False) as engine:
        before, after = schema.upgrade(engine)
        has_roles = schema.has_roles(engine)
    if arguments.json:
        show_json({"revision_before": before, "revision": after, "has_roles": has_roles})
    words(f"the schema is at revision {after}" + ("" if before != after else " already") + "; nothing else to do")
    if not has_roles:
        words("there are no roles: this user may not make them, and does everything alone (docs/how-to/roles.md)")
    return ExitCode.DONE


def diagnose(arguments: Arguments, settings: Settings) -> ExitCode:
    """Check what Onceload needs, and say how to mend what is missing."""
    checks = doctor.examine(settings, open_database=open_database)
    if arguments.json:
        show_json({"healthy": all(check.healthy for check in checks), "checks": checks})
    else:
        show_table([{"check": each.name, "ok": each.healthy, "found": each.found} for each in checks], nothing="")
    for check in checks:
        if not check.healthy:
            words(f"{check.name}: expected {check.expected}, found {check.found}; {check.fix}")
    return ExitCode.DONE if all(check.healthy for check in checks) else ExitCode.WRONG_USE
