"""Recovery of producer states: the states that the ledger proves replace the live ones that differ.

One recovery at a time, under the pipeline's commit lock: nothing is committed between the comparison and the swap.
It is one transaction, so a recovery that is killed has changed nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from shlex import quote

from sqlalchemy import Connection, Engine

from onceload_core.errors import PipelineBusy, StateDiffers
from onceload_core.events import event
from onceload_core.names import Position
from onceload_core.postgres import loaded_files
from onceload_core.postgres.connection import Record, change, statements, translated
from onceload_core.postgres.ledger import one_view
from onceload_core.postgres.pipeline_row import get_pipeline, lock_pipeline_against_snapshots
from onceload_core.postgres.proven import (
    BEGINNING,
    add_copies,
    differing_from_rebuilt,
    get_reach,
    rebuild_states,
    use_memory,
)
from onceload_core.postgres.snapshots import get_summary

SQL = statements("recovery.sql")


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """The result of a recovery, and whether it changed anything."""

    pipeline: str
    snapshot_position: Position
    position: Position
    entries_replayed: int
    producers: int
    differing: tuple[str, ...]
    position_was: Position
    applied: bool

    @property
    def is_different(self) -> bool:
        return bool(self.differing) or self.position != self.position_was


def ignore_progress(doing: str) -> None:
    """Ignore progress reports."""


def recover_state(
    engine: Engine,
    pipeline: str,
    *,
    snapshot_position: Position = BEGINNING,
    dry_run: bool,
    on_progress: Callable[[str], None] = ignore_progress,
) -> Recovery:
    """Set the live states to those that the ledger proves. A dry run only reports the differences.

    From a snapshot it is faster, but it trusts the snapshot.
    """
    doing, see = "recovering state", f"onceload recover state --pipeline {quote(pipeline)} --dry-run"
    with recovering(engine, pipeline, doing=doing, see=see, dry_run=dry_run, on_progress=on_progress) as begun:
        connection, found = begun
        on_progress("replaying the ledger and comparing the states")
        recovery = _compare(connection, pipeline, found, snapshot_position)
        if dry_run or not recovery.is_different:
            return recovery
        on_progress(f"repairing {len(recovery.differing):,} producers and comparing again")
        _swap_in(connection, found.pipeline_id, recovery)
        left = differing_from_rebuilt(connection, found.pipeline_id)
        if left:
            raise StateDiffers(pipeline, recovery.position, left)
    _log_recovered(recovery)
    return replace(recovery, applied=True)


def _log_recovered(recovery: Recovery) -> None:
    event(
        "state_recovered",
        pipeline=recovery.pipeline,
        position=recovery.position,
        position_was=recovery.position_was,
        snapshot_position=recovery.snapshot_position,
        entries=recovery.entries_replayed,
        producers=recovery.producers,
        differing=len(recovery.differing),
    )


@contextmanager
def recovering(
    engine: Engine, pipeline: str, *, doing: str, see: str, dry_run: bool, on_progress: Callable[[str], None]
) -> Iterator[tuple[Connection, Record]]:
    """One transaction in which the pipeline does not change.

    A dry run reads one snapshot of the database and blocks no other session. Otherwise it runs alone, and if the
    outcome of its COMMIT is unknown, it raises ChangeOutcomeUnknown.
    """
    one = one_view(engine) if dry_run else change(engine, pipeline, doing=doing, see=see)
    with translated(pipeline=pipeline, doing=doing), one as connection:
        use_memory(connection)
        if dry_run:
            yield connection, get_pipeline(connection, pipeline)
        else:
            on_progress("waiting for running commits to end")
            yield connection, _own_recovery(connection, pipeline)


def _own_recovery(connection: Connection, pipeline: str) -> Record:
    """Lock the pipeline against other recoveries and against commits."""
    pipeline_id = get_pipeline(connection, pipeline).pipeline_id
    if not connection.execute(SQL["own_recovery"], {"pipeline_id": pipeline_id}).scalar_one():
        raise PipelineBusy(pipeline, "a recovery that is already running")
    return lock_pipeline_against_snapshots(connection, pipeline)


def _compare(connection: Connection, pipeline: str, found: Record, snapshot_position: Position) -> Recovery:
    if snapshot_position != BEGINNING:
        get_summary(connection, found.pipeline_id, snapshot_position)
    reach = get_reach(connection, pipeline, pipeline_id=found.pipeline_id, after=snapshot_position)
    producers = rebuild_states(
        connection, pipeline, pipeline_id=found.pipeline_id, after=snapshot_position, up_to=Position(reach.position)
    )
    add_copies(connection, found.pipeline_id)
    return Recovery(
        pipeline=pipeline,
        snapshot_position=snapshot_position,
        position=reach.position,
        entries_replayed=reach.entries,
        producers=producers,
        differing=differing_from_rebuilt(connection, found.pipeline_id),
        position_was=found.position,
        applied=False,
    )


def _swap_in(connection: Connection, pipeline_id: int, recovery: Recovery) -> None:
    binds = {"pipeline_id": pipeline_id, "position": recovery.position, "after": recovery.snapshot_position}
    taken = tuple(connection.execute(SQL["ids_of_others"], binds).scalars())
    if taken:
        raise StateDiffers(recovery.pipeline, recovery.position, taken)
    # Running workers hold ids and claims of the damaged state.
    connection.execute(SQL["fence_sessions"], binds)
    connection.execute(SQL["drop_unproven"], binds)
    connection.execute(SQL["forget_copies"], binds)
    connection.execute(SQL["swap_in"], binds)
    loaded_files.repair(connection, pipeline_id)
    connection.execute(SQL["go_on_after"])
    connection.execute(SQL["set_pipeline"], binds)
    # They may be snapshots of the damaged state, and the next recovery could start from them.
    connection.execute(SQL["drop_snapshots_after"], binds)
