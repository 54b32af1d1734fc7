"""The commands that repair damage or loss: recover state, rewind and rebuild."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from onceload.commands.arguments import (
    Arguments,
    Commands,
    command,
    engine_named,
    file_arguments,
    load_arguments,
    number,
    pipeline_option,
    read_declared,
    seconds,
    sentence,
)
from onceload.commands.reports import watching
from onceload.databases import only_pipeline, open_database
from onceload.loads_in_words import show_rebuild
from onceload.pipeline import Pipeline
from onceload.recoveries import after_rewind_in_words, rewind_in_words, state_in_words
from onceload.settings import Settings
from onceload.sources import has_source
from onceload.terminal import lines_of_words, on_terminal, show_json, words
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import ExitCode, StateDiffers
from onceload_core.names import Position
from onceload_core.postgres import recover_state

Action = Literal["rewind", "rebuild"]


def add(commands: Commands) -> None:
    teaches = "repair producer states, reload damaged rows, or rebuild a lost database"
    group = commands.add_parser("recover", help=teaches, description=sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    states = command(
        actions, "state", state,
        "rebuild producer states from the whole ledger",
        "onceload recover state --pipeline events --dry-run",
    )  # fmt: skip
    pipeline_option(states)
    states.add_argument(
        "--position",
        type=number,
        default=0,
        metavar="N",
        help="start from the snapshot at this position (default: 0, the beginning of the ledger); faster, but damage "
        "older than the snapshot is not found",
    )
    states.add_argument("--dry-run", action="store_true", help="show what differs, and change nothing")
    back = command(actions, "rewind", rewind, *_TEACHES["rewind"])
    back.add_argument(
        "--position",
        type=number,
        metavar="N",
        help="the position to go back to (default: that of the latest snapshot); 0: before the first load",
    )
    add_arguments("rewind", back)
    rebuild_parser = command(actions, "rebuild", rebuild, *_TEACHES["rebuild"])
    add_arguments("rebuild", rebuild_parser)


def state(arguments: Arguments, settings: Settings) -> ExitCode:
    """Rebuild the producer states from the whole ledger, or from a snapshot and the ledger entries after it."""
    with open_database(settings) as engine:
        found = recover_state(
            engine,
            arguments.pipeline or only_pipeline(engine),
            snapshot_position=Position(arguments.position),
            dry_run=arguments.dry_run,
            on_progress=on_terminal,
        )
    if arguments.json:
        show_json(asdict(found))
    lines_of_words(state_in_words(found))
    if found.is_different and not found.applied:
        words("nothing was changed. Run again without --dry-run to repair")
        return ExitCode.NEEDS_A_PERSON
    return ExitCode.DONE


def rewind(arguments: Arguments, settings: Settings) -> ExitCode:
    """Delete rows and state after a position, so that the next load loads them again."""
    pipeline = Pipeline(read_declared(arguments, needs_source=False), settings)
    try:
        found = pipeline.recover_rewind(
            position=arguments.position,
            dry_run=arguments.dry_run,
            accepts_differences=arguments.accept_differences,
            on_progress=on_terminal,
        )
    except StateDiffers:
        words(
            f"`onceload verify {PIPELINE_FILE}` lists rows that differ; --accept-differences rewinds despite lost or "
            "duplicated rows, or forgotten business ids"
        )
        raise
    if arguments.json:
        show_json(asdict(found))
    lines_of_words(rewind_in_words(found))
    if not found.entries:
        return ExitCode.DONE
    if found.applied:
        lines_of_words(after_rewind_in_words(found, has_source=has_source(pipeline.declared)))
    elif found.differing and not arguments.accept_differences:
        words(
            f"nothing was changed. Check with `onceload verify {PIPELINE_FILE}`; --accept-differences rewinds despite "
            "the differences"
        )
        return ExitCode.NEEDS_A_PERSON
    else:
        words("nothing was changed. Run again without --dry-run to rewind")
    return ExitCode.DONE


def rebuild(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load all sources into a new database, and compare it with a snapshot of the old one."""
    declared = read_declared(arguments)
    on_terminal(f"pipeline {declared.name}: loading all files")
    with watching(declared.name, arguments) as on_progress:
        done = Pipeline(declared, settings).recover_rebuild(
            snapshot=arguments.snapshot,
            batch=arguments.batch or None,
            **engine_named(arguments),
            wait_s=seconds("--wait", arguments.wait),
            on_progress=on_progress,
        )
    if arguments.json:
        show_json(asdict(done))
    show_rebuild(done, words, remembers_ids=declared.message_id is not None)
    return done.exit_code


def add_arguments(action: Action, command: argparse.ArgumentParser) -> None:
    file_arguments(command)
    match action:
        case "rewind":
            command.add_argument(
                "--dry-run", action="store_true", help="show what would be deleted, and change nothing"
            )
            command.add_argument(
                "--accept-differences",
                action="store_true",
                help="rewind even if rows are lost or duplicated, or if business ids are no longer remembered with "
                "which rewound commits found duplicates (default: refuse)",
            )
        case "rebuild":
            load_arguments(command)
            command.add_argument(
                "--snapshot",
                type=Path,
                metavar="EXPORTED",
                help="compare the new database with this exported snapshot",
            )


#: The help and an example of each.
_TEACHES: Mapping[Action, tuple[str, str]] = {
    "rewind": (
        "delete rows and state after a position, to load them again",
        "onceload recover rewind events.yaml --dry-run",
    ),
    "rebuild": (
        "load everything into a new database, and compare it with a snapshot",
        "onceload recover rebuild events.yaml\n         --snapshot events.snapshot",
    ),
}
