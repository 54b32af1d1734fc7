"""The command that shows the state of each pipeline."""

from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import Engine

from onceload.commands.arguments import Arguments, Commands, command, limit_option, pipeline_option
from onceload.databases import open_database
from onceload.settings import Settings
from onceload.terminal import show_json, show_table, words
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import ExitCode, NotFound
from onceload_core.postgres.views import look

#: A pipeline without a load.
_UNKNOWN: dict[str, object] = {
    "position": 0,
    "producers": 0,
    "guarantee": None,
    "last_commit": None,
    "last_loaded": None,
    "snapshot": None,
    "quarantined": 0,
    "paused_at": None,
    "paused_by": None,
    "pause_reason": None,
    "not_loaded_again": 0,
}
#: The columns that fit a screen; --json has them all.
_SHOWN = ("pipeline", "state", "position", "producers", "last_commit", "last_loaded", "quarantined", "reason")


def add(commands: Commands) -> None:
    teaches = "show each pipeline with its state, what to do, its position and its last commit"
    each = command(commands, "status", status, teaches, "onceload status --pipelines pipelines")
    each.add_argument(
        "--pipelines",
        type=Path,
        default=Path("pipelines"),
        metavar="FOLDER",
        help="the folder of pipeline files, whose source files are listed for the state; if it does not exist, the "
        "state is what the database knows (default: pipelines)",
    )
    pipeline_option(each)
    limit_option(each)


def status(arguments: Arguments, settings: Settings) -> ExitCode:
    """Show the state of each pipeline."""
    with open_database(settings) as engine:
        rows = _rows(engine, arguments)
    if len(rows) > arguments.limit:
        rows.pop()
        words(f"only the first {arguments.limit} are shown; use --limit to see more")
    if arguments.json:
        show_json({"status": rows})
        return ExitCode.DONE
    show_table([{name: row[name] for name in _SHOWN} for row in rows], nothing="nothing to show: no pipeline yet")
    for row in rows:
        if row["next"]:
            reason = str(row["reason"]).removesuffix(".")
            words(f"{row['pipeline']}: {row['state']}: {reason}. Next: {row['next']}")
        if row["not_loaded_again"]:
            words(
                f"pipeline {row['pipeline']}: producers whose records a rewind rolled back, and which are not loaded "
                f"again yet: {row['not_loaded_again']}. `onceload verify {row['file'] or PIPELINE_FILE}` lists the "
                "records that the next load cannot load again"
            )
    return ExitCode.DONE


def _rows(engine: Engine, arguments: Arguments) -> list[dict[str, object]]:
    """Each pipeline that the database or the folder knows; one more than may be shown."""
    # They import Arrow.
    from onceload.lag import Behind
    from onceload.states import all_found, state_of

    only: str | None = arguments.pipeline
    behind = Behind(engine, arguments.pipelines) if arguments.pipelines.is_dir() else None
    if behind is not None:
        behind.look(only=only)
    every = all_found(engine, behind, only=only)
    found = {each.name: each for each in every}
    known: dict[object, dict[str, object]] = {}
    try:
        known = {row["pipeline"]: row for row in look(engine, "status", pipeline=only, at_most=len(found) + 1)}
    except NotFound:
        if only not in found:
            raise
    rows = []
    for name in sorted(found)[: arguments.limit + 1]:
        verdict, last = state_of(found[name], now=datetime.now(UTC)), found[name].attempt
        last_load = {
            "last_load": last.ended_at if last else None,
            "last_load_exit_code": last.exit_code if last else None,
            "last_load_reason": last.reason if last else None,
        }
        facts = {"state": verdict.state, "reason": verdict.reason, "next": verdict.next, **last_load}
        described = found[name].described
        file = described.path if described else None
        rows.append({"pipeline": name, "file": file, **_UNKNOWN, **known.get(name, {}), **facts})
    return rows
