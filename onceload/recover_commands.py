"""The commands that bring back what was damaged or lost: recover state, rewind and rebuild."""

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Engine

from dedup_core.errors import ExitCode, StateDiffers
from dedup_core.names import Batch, Position
from dedup_core.postgres import LedgerSettings, recover_state
from dedup_core.postgres.recovery import Recovery
from dedup_core.postgres.rewind import Rewind
from onceload.load_commands import code_of, file_arguments, load_arguments, pairs, read_declared, watching
from onceload.snapshot_file import read_snapshot
from onceload.terminal import on_terminal, show_json, words

if TYPE_CHECKING:
    # Arrow takes a while to import, and recovering state does without it.
    from spark_jobs.recover.rebuild import Comparison

Arguments = argparse.Namespace
Action = Literal["rewind", "rebuild"]
_NAMES_SHOWN = 20

#: What each teaches, and an example.
TEACHES: Mapping[Action, tuple[str, str]] = {
    "rewind": (
        "take back rows and state after a position, to load them again",
        "onceload recover rewind events.yaml --dry-run",
    ),
    "rebuild": (
        "load everything into a new database, and compare with a snapshot",
        "onceload recover rebuild events.yaml\n         --snapshot events.snapshot",
    ),
}


def add_arguments(action: Action, command: argparse.ArgumentParser) -> None:
    file_arguments(command)
    match action:
        case "rewind":
            command.add_argument("--dry-run", action="store_true", help="say what would go, and change nothing")
            command.add_argument(
                "--accept-differences",
                action="store_true",
                help="rewind also where rows are lost or doubled, which is refused otherwise",
            )
        case "rebuild":
            load_arguments(command)
            command.add_argument(
                "--snapshot",
                type=Path,
                metavar="EXPORTED",
                help="an exported snapshot, to compare with what was loaded",
            )


def state(arguments: Arguments, engine: Engine) -> ExitCode:
    """Rebuild the producer states from the whole ledger, or from a snapshot and the ledger after it."""
    pipeline: str = arguments.pipeline
    found = recover_state(
        engine,
        pipeline,
        snapshot_position=Position(arguments.position),
        dry_run=arguments.dry_run,
        tell=on_terminal,
    )
    if arguments.json:
        show_json(asdict(found))
    words(state_in_words(found))
    if found.is_different and not found.applied:
        words("nothing was changed: call again without --dry-run")
        return ExitCode.NEEDS_A_PERSON
    return ExitCode.DONE


def state_in_words(found: Recovery) -> str:
    start = f"snapshot at {found.snapshot_position} + " if found.snapshot_position else "whole ledger, "
    said = (
        f"pipeline {found.pipeline}: {start}{found.entries_replayed} entries = position {found.position} with "
        f"{found.producers} producers"
    )
    if found.snapshot_position:
        said += "\ndamage older than the snapshot was not checked. Run without --position to check it"
    if found.applied:
        how = f"{len(found.differing)} producers differed and were repaired. The ledger and the rows were not changed"
    elif found.is_different:
        how = f"{len(found.differing)} producers differ, such as {', '.join(found.differing[:5]) or 'the position'}"
    else:
        how = "the live state is the same; there was nothing to do"
    return f"{said}\n{how}"


def rewind(arguments: Arguments, engine: Engine) -> ExitCode:
    """Take back rows and state after a position, so that the next load brings them again."""
    from spark_jobs.recover.rewind import rewind as rewind_now

    try:
        found = rewind_now(
            read_declared(arguments),
            engine,
            to=None if arguments.position is None else Position(arguments.position),
            dry_run=arguments.dry_run,
            differences_accepted=arguments.accept_differences,
            tell=on_terminal,
        )
    except StateDiffers:
        words("`onceload verify` names what differs; rows that are lost or doubled may go with --accept-differences")
        raise
    if arguments.json:
        show_json(asdict(found))
    words(rewind_in_words(found))
    if not found.entries:
        return ExitCode.DONE
    if found.applied:
        words(f"the ledger says so at position {found.position}; `onceload load` brings the rest again")
    elif found.differing and not arguments.accept_differences:
        words("nothing was changed: what is lost or doubled goes with --accept-differences; see also `onceload verify`")
        return ExitCode.NEEDS_A_PERSON
    else:
        words("nothing was changed: call again without --dry-run")
    return ExitCode.DONE


def rewind_in_words(found: Rewind) -> str:
    if not found.entries:
        return f"pipeline {found.pipeline}: it is as it was at position {found.rewound_to}; there was nothing to do"
    goes = "went" if found.applied else "would go"
    what = (
        f"pipeline {found.pipeline}, back to position {found.rewound_to}: {found.entries:,} entries of "
        f"{found.producers:,} producers {goes}, with {found.rows:,} rows, {found.quarantined:,} quarantined records "
        f"and {found.message_ids:,} business ids; {found.held_again:,} settled records are held again"
    )
    return "\n".join((what, *(f"not as its receipts say: {each}" for each in found.differing[:_NAMES_SHOWN])))


def rebuild(arguments: Arguments, dsn: str) -> ExitCode:
    """Load all sources into a new database, and compare them with what was known of the old one."""
    from spark_jobs.load.report import LoadSettings, new_batch
    from spark_jobs.recover.rebuild import rebuild as rebuild_now

    declared = read_declared(arguments)
    snapshot = read_snapshot(arguments.snapshot) if arguments.snapshot else None
    on_terminal(f"pipeline {declared.name}: loading all of it")
    with watching(declared.name, arguments) as tell:
        done = rebuild_now(
            declared,
            LoadSettings(
                ledger=LedgerSettings(dsn=dsn),
                master=arguments.master,
                spark_options=pairs("--conf", arguments.conf),
                tell=tell,
            ),
            batch=Batch(arguments.batch) if arguments.batch else new_batch(),
            snapshot=snapshot,
        )
    for note in done.report.notes:
        words(f"{note.name}: {note.reason}")
    if arguments.json:
        show_json(asdict(done))
    words(
        f"pipeline {declared.name}: {done.report.loaded:,} loaded, {done.report.duplicates:,} duplicates, "
        f"{done.report.quarantined:,} quarantined, {done.report.filtered:,} filtered; position {done.report.position}"
    )
    if declared.message_id and done.report.duplicates:
        words(
            "business ids were compared with all that was loaded now: of an id that came again after its window, one "
            "row is there, and there were more"
        )
    if done.comparison is None:
        words("nothing was compared: --snapshot names an exported snapshot to compare with")
    elif _say_compared(done.comparison):
        return ExitCode.NEEDS_A_PERSON
    return code_of(done.report.notes, is_idle=not done.report.records)


def _say_compared(found: "Comparison") -> bool:
    """Say how the new database compares, and whether something is not there again."""
    words(
        f"compared with the snapshot at position {found.snapshot_position}: {found.same:,} producers are the same, "
        f"{len(found.ahead):,} are ahead or new, {len(found.different):,} lack something"
    )
    for each in found.different[:_NAMES_SHOWN]:
        words(f"{each.producer} (generation {each.generation}): expected {each.expected}, found {each.found}")
    if len(found.different) > _NAMES_SHOWN:
        words(f"only the first {_NAMES_SHOWN} are named; --json names all")
    if found.different:
        words("bring the missing files back, and `onceload load`; what was loaded stays")
    return bool(found.different)
