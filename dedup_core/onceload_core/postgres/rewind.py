"""Rewind: restore the rows and state of an earlier position, so that the next load brings the rest again.

The ledger is authoritative: its receipts determine the rows to delete, and a new entry records the rewind. It is one
transaction under the pipeline's commit lock, so a rewind that is killed has changed nothing, and the session of a
running commit is fenced. What deleting rows cannot undo is refused before anything is changed.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from shlex import quote
from typing import Protocol

from sqlalchemy import Connection, Engine

from onceload_core.commands import PIPELINE_FILE, reload_command
from onceload_core.errors import NotFound, SettingRefused, StateDiffers
from onceload_core.events import event
from onceload_core.names import Position
from onceload_core.postgres import loaded_files, recovery
from onceload_core.postgres.connection import Record, statements
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.proven import BEGINNING, differing_from_rebuilt, get_reach, rebuild_states
from onceload_core.postgres.recovery import ignore_progress, recovering

SQL = statements("rewind.sql")


class TargetRows(Protocol):
    """The rows of a target. The temporary table `going` (producer_id, row_spans) selects those to delete."""

    def count(self, connection: Connection) -> None:
        """Put the number of selected rows of each producer into `rows_there`."""

    def delete(self, connection: Connection) -> int:
        """Delete the selected rows, and return their number."""


@dataclass(frozen=True, kw_only=True)
class Rewind:
    """What a rewind rolls back, and whether it was applied."""

    pipeline: str
    rewound_to: Position
    #: The position of the rewind's own entry or, if nothing was changed, the ledger's last.
    position: Position
    entries: int
    producers: int
    rows: int
    #: Quarantined records that are deleted, and others that are held again.
    quarantined: int
    held_again: int
    message_ids: int
    #: Where the numbers of rows and records differ from their receipts.
    differing: tuple[str, ...]
    applied: bool = False
    #: Files that no longer have what is rolled back of them, so that no load brings it again.
    lost: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Preview:
    """What a rewind would roll back, by the ledger alone: no row is counted, and no state is compared."""

    found: Rewind
    #: The producers with most rows, and their rows.
    most: tuple[tuple[str, int], ...]


@dataclass(frozen=True, kw_only=True)
class _Way:
    """The start and the end of a rewind."""

    pipeline: str
    pipeline_id: int
    position: Position
    to: Position

    @property
    def binds(self) -> dict[str, int]:
        return {"pipeline_id": self.pipeline_id, "position": self.position, "to": self.to}


def rewind(
    engine: Engine,
    pipeline: str,
    target: TargetRows,
    *,
    to: Position | None = None,
    expected: Position | None = None,
    dry_run: bool,
    differences_accepted: bool = False,
    on_progress: Callable[[str], None] = ignore_progress,
) -> Rewind:
    """Restore the rows and state of a position, by default that of the latest snapshot.

    If the pipeline is not at the expected position, because something has committed since, nothing is changed.
    """
    doing, see = "rewinding", f"onceload ledger --pipeline {quote(pipeline)}"
    with recovering(engine, pipeline, doing=doing, see=see, dry_run=dry_run, on_progress=on_progress) as begun:
        connection, row = begun
        way = _way(connection, pipeline, row, to)
        if expected is not None and expected != way.position:
            raise _moved(way, expected)
        _refuse_dead_ends(connection, way)
        on_progress(f"collecting what was loaded after position {way.to}")
        found = _look(connection, way, target)
        if dry_run or not found.entries:
            return found
        if found.differing and not differences_accepted:
            raise StateDiffers(pipeline, way.position, found.differing)
        on_progress(f"deleting {found.rows:,} rows of {found.producers:,} producers and rewinding these producers")
        _delete_rows(connection, way, target, expected=found.rows)
        position = _set_back(connection, way)
        on_progress("comparing the result with the ledger")
        _prove(connection, way, target, position)
    done = replace(found, position=position, applied=True)
    _log_rewound(done)
    return done


def preview(connection: Connection, pipeline: str, *, to: Position, names_max: int) -> Preview:
    """Look up what a rewind would roll back. It takes no lock, and a fraction of the time of a dry run.

    All queries must see the same commits, so the transaction must be repeatable read.
    """
    way = _way(connection, pipeline, get_pipeline(connection, pipeline), to)
    _refuse_dead_ends(connection, way)
    sums = connection.execute(SQL["preview"], way.binds).one()
    rows = connection.execute(SQL["preview_producers"], way.binds | {"at_most": names_max}).all()
    found = Rewind(
        pipeline=pipeline,
        rewound_to=to,
        position=way.position,
        entries=sums.entries,
        producers=rows[0].producers if rows else 0,
        rows=sums.rows,
        quarantined=sums.quarantined,
        held_again=sums.held_again,
        message_ids=sums.message_ids,
        differing=(),
    )
    return Preview(found=found, most=tuple((row.name, row.rows) for row in rows))


def _log_rewound(done: Rewind) -> None:
    event(
        "commits_rewound",
        pipeline=done.pipeline,
        position=done.position,
        rewound_to=done.rewound_to,
        entries=done.entries,
        producers=done.producers,
        rows=done.rows,
        quarantined=done.quarantined,
        held_again=done.held_again,
        message_ids=done.message_ids,
        differing=len(done.differing),
    )


def _way(connection: Connection, pipeline: str, found: Record, to: Position | None) -> _Way:
    position = Position(found.position)
    if to is None:
        binds = {"pipeline_id": found.pipeline_id, "position": position}
        to = connection.execute(SQL["latest_snapshot"], binds).scalar_one()
    if to is None:
        raise NotFound("snapshot", "the latest", ("none; name a position, such as 0: before everything",))
    if not 0 <= to <= position:
        raise SettingRefused("the position", str(to), f"0 to {position}, the last of pipeline {pipeline}")
    return _Way(pipeline=pipeline, pipeline_id=found.pipeline_id, position=position, to=to)


def _refuse_dead_ends(connection: Connection, way: _Way) -> None:
    """Refuse a position that cannot be reached by deleting rows."""
    over = connection.execute(SQL["rewind_over"], way.binds).one_or_none()
    if over:
        found = f"position {way.to}, whose rows the rewind at position {over.position} deleted"
        expected = f"a position up to {over.rewound_to}, or from {over.position} on"
        raise _refused(way, found, f"{expected}. A load brings the deleted rows again")
    entry = connection.execute(SQL["no_way_back"], way.binds).one_or_none()
    if entry:
        did = "forgot" if entry.kind == "forget" else "replaced the rows of"
        found = f"position {way.to}, but the entry at position {entry.position} {did} {entry.producer}"
        raise _refused(way, found, f"a position from {entry.position} on; otherwise {REBUILD}")


def _look(connection: Connection, way: _Way, target: TargetRows) -> Rewind:
    """Collect what to delete and what to keep, and compare both with the live state."""
    reach = get_reach(connection, way.pipeline, pipeline_id=way.pipeline_id, after=BEGINNING)
    if reach.position != way.position:
        raise StateDiffers(way.pipeline, reach.position, ("the pipeline's position",))
    rebuild_states(connection, way.pipeline, pipeline_id=way.pipeline_id, after=BEGINNING, up_to=way.to)
    _refuse_shared_records(connection, way)
    for step in ("collect_going", "index_going", "analyze_going", "make_rows_there"):
        connection.execute(SQL[step], way.binds if step == "collect_going" else {})
    elsewhere = tuple(connection.execute(SQL["differing_elsewhere"], way.binds).scalars())
    if elsewhere:
        raise StateDiffers(way.pipeline, way.position, elsewhere)
    target.count(connection)
    sums = connection.execute(SQL["sums"], way.binds).one()
    _refuse_unattributed(connection, way, sums)
    return Rewind(
        pipeline=way.pipeline,
        rewound_to=way.to,
        position=way.position,
        entries=sums.entries,
        producers=sums.producers,
        rows=int(sums.rows),
        quarantined=sums.kept,
        held_again=sums.held_again,
        message_ids=sums.message_ids,
        differing=(*_differing(connection, sums), *_forgotten_messages(connection, way)),
    )


def _refuse_shared_records(connection: Connection, way: _Way) -> None:
    """Refuse to reset a file whose first records stay loaded under another name."""
    parted = connection.execute(SQL["shared_and_kept"], way.binds).one_or_none()
    if parted:
        found = (
            f"position {way.to}, before {parted.producer} differed from {parted.other}: the records that both share "
            "stay loaded, and the next load would load them a second time"
        )
        raise _refused(way, found, f"a position from {parted.position} on, or 0: before everything")


def _refuse_unattributed(connection: Connection, way: _Way, sums: Record) -> None:
    """Refuse rows that do not show which entry loaded them."""
    repeated = tuple(connection.execute(SQL["repeated_producers"]).scalars())
    if repeated:
        found = f"{', '.join(repeated)}, loaded more than once, so the rows do not show which entry loaded them"
        again = f"With publish: staged, {reload_command(repeated[0])} loads such a file once"
        expected = f"rows of one entry each. {again}"
        raise _refused(way, found, f"{expected}; otherwise {REBUILD}")
    if sums.loaded != sums.rows_of_receipts:
        found = f"{sums.loaded} loaded rows, of which {sums.rows_of_receipts} name their producer"
        raise _refused(way, found, f"_producer_id and _sequence in all rows; otherwise {REBUILD}")


def _differing(connection: Connection, sums: Record) -> tuple[str, ...]:
    differing = tuple(map(_in_words, connection.execute(SQL["differing_rows"])))
    if sums.quarantined == sums.kept:
        return differing
    return (*differing, f"the quarantine ({sums.kept} records instead of {sums.quarantined})")


def _forgotten_messages(connection: Connection, way: _Way) -> tuple[str, ...]:
    """Business ids that the next load needs to find the duplicates of rewound commits, and that are forgotten."""
    row = connection.execute(SQL["forgotten_messages"], way.binds).one_or_none()
    if row is None:
        return ()
    return (
        f"the business ids (those of {row.commits} commits up to position {row.last} are no longer remembered, so up "
        f"to {row.duplicates} records that were skipped as duplicates would be loaded)",
    )


def _in_words(row: Record) -> str:
    return f"{row.name} ({row.found} rows instead of {row.expected})"


def _delete_rows(connection: Connection, way: _Way, target: TargetRows, *, expected: int) -> None:
    """Delete exactly the rows that were counted."""
    # Running workers hold ids and claims of what is deleted.
    connection.execute(recovery.SQL["fence_sessions"], way.binds)
    deleted = target.delete(connection)
    if deleted != expected:
        raise StateDiffers(way.pipeline, way.position, (f"the target ({deleted} rows deleted of {expected})",))


def _set_back(connection: Connection, way: _Way) -> Position:
    """Restore the state, and write the entry of the rewind."""
    position = Position(way.position + 1)
    entry = {**way.binds, "position": position, "batch": f"rewind-{position}-to-{way.to}"}
    connection.execute(recovery.SQL["forget_copies"], way.binds)
    for step in ("drop_quarantined", "hold_again", "drop_messages", "drop_later_generations", "set_back", "keep_names"):
        connection.execute(SQL[step], way.binds)
    loaded_files.repair(connection, way.pipeline_id)
    connection.execute(SQL["record_rewind"], entry)
    connection.execute(SQL["record_receipts"], entry)
    connection.execute(recovery.SQL["set_pipeline"], entry)
    return position


def _prove(connection: Connection, way: _Way, target: TargetRows, position: Position) -> None:
    """Compare the live state with the one that the ledger proves, and look for remaining rows."""
    differing = differing_from_rebuilt(connection, way.pipeline_id)
    connection.execute(SQL["empty_rows_there"])
    target.count(connection)
    left = tuple(map(_in_words, connection.execute(SQL["rows_left"])))
    if differing or left:
        raise StateDiffers(way.pipeline, position, (*differing, *left))


def _moved(way: _Way, expected: Position) -> SettingRefused:
    found = f"position {way.position:,}: something has committed since position {expected:,}. Nothing was changed"
    return _refused(way, found, "the position of the dry run (start with a new one, and compare its numbers)")


REBUILD = f"load everything again: `onceload recover rebuild {PIPELINE_FILE}` on a new database"


def _refused(way: _Way, found: str, expected: str) -> SettingRefused:
    return SettingRefused(f"rewinding pipeline {way.pipeline}", found, expected)
