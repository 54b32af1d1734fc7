"""The commands on snapshots: take, list, export."""

from functools import partial
from pathlib import Path

from onceload.commands.arguments import (
    Arguments,
    Commands,
    command,
    limit_option,
    pipeline_option,
    position_option,
    sentence,
)
from onceload.commands.views import show
from onceload.databases import only_pipeline, open_database
from onceload.settings import Settings
from onceload.snapshot_file import write_snapshot
from onceload.terminal import (
    on_terminal,
    progress,
    show_json,
    words,
)
from onceload_core.errors import ExitCode
from onceload_core.postgres import PostgresSnapshots


def add(commands: Commands) -> None:
    teaches = "take, list and export snapshots: the states of all producers at one position"
    group = commands.add_parser("snapshot", help=teaches, description=sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    take = command(actions, "take", snapshot_take, "take a snapshot now", "onceload snapshot take")
    kept = command(actions, "list", show("snapshots"), "list the stored snapshots", "onceload snapshot list")
    limit_option(kept)
    out = command(
        actions, "export", snapshot_export, "write a snapshot to a file", "onceload snapshot export events.snapshot"
    )
    for each in (take, kept, out):
        pipeline_option(each)
    position_option(out)
    out.add_argument("file", type=Path, metavar="FILE", help="the snapshot file")


def snapshot_take(arguments: Arguments, settings: Settings) -> ExitCode:
    """Store the states of all producers as they are now."""
    with open_database(settings) as engine:
        pipeline = arguments.pipeline or only_pipeline(engine)
        position = PostgresSnapshots(engine).take(pipeline)
    if arguments.json:
        show_json({"pipeline": pipeline, "position": position})
    words(f"pipeline {pipeline}: took a snapshot at position {position}")
    return ExitCode.DONE


def snapshot_export(arguments: Arguments, settings: Settings) -> ExitCode:
    """Write a snapshot to a file that outlives the database."""
    with open_database(settings) as engine:
        pipeline = arguments.pipeline or only_pipeline(engine)
        on_terminal("reading the snapshot")
        snapshot = PostgresSnapshots(engine).get(pipeline, arguments.position)
    # A header line, and a line per producer.
    watched = partial(progress, total=len(snapshot.states) + 1, doing="lines written")
    write_snapshot(snapshot, arguments.file, watched=watched)
    written = {"pipeline": pipeline, "position": snapshot.position, "producers": len(snapshot.states)}
    if arguments.json:
        show_json({**written, "file": str(arguments.file), "bytes": arguments.file.stat().st_size})
    words(f"pipeline {pipeline}: position {snapshot.position}, {len(snapshot.states)} producers → {arguments.file}")
    return ExitCode.DONE
