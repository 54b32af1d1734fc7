"""The commands that create the schema and check the installation: init, doctor."""

from onceload import doctor, schema
from onceload.commands.arguments import Arguments, Commands, command
from onceload.databases import open_database
from onceload.settings import Settings
from onceload.terminal import (
    lines_of_words,
    show_json,
    show_table,
    words,
)
from onceload_core.errors import ExitCode


def add(commands: Commands) -> None:
    command(commands, "init", init, "create or upgrade the schema", "onceload init")
    checked = "check Python, Java, database, schema, rights, disk and clock"
    command(commands, "doctor", diagnose, checked, "onceload doctor").add_argument(
        "--airflow",
        action="store_true",
        help="check what the Airflow of this environment finds: versions, provider, plugin, connection type, bundles, "
        "DAGs, and the database over the connection that tasks use",
    )


def init(arguments: Arguments, settings: Settings) -> ExitCode:
    """Create or upgrade the schema."""
    with open_database(settings, schema_checked=False) as engine:
        before, after = schema.upgrade(engine)
        has_roles = schema.has_roles(engine)
    if arguments.json:
        show_json({"revision_before": before, "revision": after, "has_roles": has_roles})
    words(f"the schema is {'already ' if before == after else ''}at revision {after}; there is nothing else to do")
    if not has_roles:
        words(
            "no roles were created: this user cannot create them, and owns everything itself. See docs/how-to/roles.md"
        )
    return ExitCode.DONE


def diagnose(arguments: Arguments, settings: Settings) -> ExitCode:
    """Check what Onceload needs, and print how to fix what is missing."""
    checks = doctor.examine_airflow() if arguments.airflow else doctor.examine(settings, open_database=open_database)
    if arguments.json:
        show_json({"healthy": all(check.healthy for check in checks), "checks": checks})
    else:
        show_table([{"check": each.name, "ok": each.healthy, "found": each.found} for each in checks], nothing="")
    for check in checks:
        if not check.healthy:
            lines_of_words(f"{check.name}: expected {check.expected}, found {check.found}; {check.fix}")
    return ExitCode.DONE if all(check.healthy for check in checks) else ExitCode.WRONG_USE
