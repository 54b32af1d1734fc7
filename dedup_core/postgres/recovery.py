"""Recovery of producer states: the latest snapshot plus the ledger after it, compared with what is live, swapped in.

One owner at a time, under the pipeline's commit lock: nothing is committed between the comparison and the swap.
It is one transaction, so a recovery that is killed has changed nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Connection, Engine

from dedup_core.errors import NotFound, PipelineBusy, SettingRefused, SnapshotDamaged, StateDiffers
from dedup_core.names import Position
from dedup_core.postgres.commit import get_pipeline, lock_pipeline_against_snapshots
from dedup_core.postgres.connection import Record, statements, translated
from dedup_core.postgres.snapshots import get_summary

SQL = statements("recovery.sql")


@dataclass(frozen=True, kw_only=True)
class Recovery:
    """What a recovery found, and whether it changed anything."""

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


def nobody(doing: str) -> None:
    """Nobody waits for it."""


def recover_state(
    engine: Engine,
    pipeline: str,
    *,
    snapshot_position: Position | None = None,
    dry_run: bool,
    tell: Callable[[str], None] = nobody,
) -> Recovery:
    """Make the live states what snapshot and ledger prove; a dry run only says what differs."""
    with translated(pipeline=pipeline, doing="recovering state"), engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL work_mem = '256MB'")
        tell("waiting for commits to end")
        found = own_recovery(connection, pipeline)
        tell("replaying the ledger on the snapshot, and comparing")
        recovery = _compare(connection, pipeline, found, snapshot_position)
        if dry_run or not recovery.is_different:
            return recovery
        tell(f"setting {len(recovery.differing):,} producers right, and comparing again")
        _swap_in(connection, found.pipeline_id, recovery)
        left = differing_producers(connection, found.pipeline_id)
        if left:
            raise StateDiffers(pipeline, recovery.position, left)
        return replace(recovery, applied=True)


def own_recovery(connection: Connection, pipeline: str) -> Record:
    """Be the only one who recovers this pipeline, and let nobody commit to it meanwhile."""
    pipeline_id = get_pipeline(connection, pipeline).pipeline_id
    if not connection.execute(SQL["own_recovery"], {"pipeline_id": pipeline_id}).scalar_one():
        raise PipelineBusy(pipeline, "the recovery that is already running")
    return lock_pipeline_against_snapshots(connection, pipeline)


def _compare(connection: Connection, pipeline: str, found: Record, snapshot_position: Position | None) -> Recovery:
    after = _snapshot_to_start_from(connection, found.pipeline_id, snapshot_position)
    reach = get_reach(connection, pipeline, pipeline_id=found.pipeline_id, after=after)
    producers = rebuild_states(
        connection, pipeline, pipeline_id=found.pipeline_id, after=after, up_to=Position(reach.position)
    )
    return Recovery(
        pipeline=pipeline,
        snapshot_position=after,
        position=reach.position,
        entries_replayed=reach.entries,
        producers=producers,
        differing=differing_producers(connection, found.pipeline_id),
        position_was=found.position,
        applied=False,
    )


def get_reach(connection: Connection, pipeline: str, *, pipeline_id: int, after: Position) -> Record:
    """How far the ledger goes, which must be without a gap from the snapshot on."""
    reach = connection.execute(SQL["ledger_reach"], {"pipeline_id": pipeline_id, "after": after}).one()
    if after > reach.position:
        # Such a state would call rows consumed that this database never got, or lost to a restore.
        raise SettingRefused("the snapshot", f"position {after}", f"one up to {reach.position}, the ledger's last")
    if reach.entries != reach.position - after:
        raise StateDiffers(pipeline, reach.position, ("the ledger itself: positions are missing",))
    return reach


def rebuild_states(connection: Connection, pipeline: str, *, pipeline_id: int, after: Position, up_to: Position) -> int:
    """Put the states that the ledger proves at a position into `rebuilt`, and say how many there are."""
    binds = {"pipeline_id": pipeline_id, "after": after}
    if after:
        _hold_snapshot(connection, pipeline, binds)
    producers = connection.execute(SQL["rebuild_states"], {**binds, "up_to": up_to}).rowcount
    connection.execute(SQL["index_rebuilt"])
    return producers


def _hold_snapshot(connection: Connection, pipeline: str, binds: dict[str, int]) -> None:
    """Keep the snapshot from being dropped meanwhile, and refuse it if a part of it is gone."""
    expected = connection.execute(SQL["hold_snapshot"], binds).scalar_one_or_none()
    found = connection.execute(SQL["snapshot_size"], binds).scalar_one()
    if expected != found:
        whole = f"{expected} producers" if expected is not None else "one that is still kept"
        raise SnapshotDamaged(f"of {pipeline} at position {binds['after']}", whole, f"{found} producers")


def _snapshot_to_start_from(connection: Connection, pipeline_id: int, position: Position | None) -> Position:
    if position == 0:
        # Asked for: no snapshot is trusted, and the whole ledger is replayed.
        return Position(0)
    try:
        return get_summary(connection, pipeline_id, position).position
    except NotFound:
        if position is not None:
            raise
        # Without any snapshot the whole ledger is replayed.
        return Position(0)


def differing_producers(connection: Connection, pipeline_id: int) -> tuple[str, ...]:
    """The producers whose live state is not the one in `rebuilt`."""
    return tuple(connection.execute(SQL["differing_producers"], {"pipeline_id": pipeline_id}).scalars())


def _swap_in(connection: Connection, pipeline_id: int, recovery: Recovery) -> None:
    binds = {"pipeline_id": pipeline_id, "position": recovery.position, "after": recovery.snapshot_position}
    taken = tuple(connection.execute(SQL["ids_of_others"], binds).scalars())
    if taken:
        raise StateDiffers(recovery.pipeline, recovery.position, taken)
    # Whoever is at work holds ids and claims of the damaged state.
    connection.execute(SQL["fence_sessions"], binds)
    connection.execute(SQL["drop_unproven"], binds)
    connection.execute(SQL["forget_copies"], binds)
    connection.execute(SQL["swap_in"], binds)
    connection.execute(SQL["go_on_after"])
    connection.execute(SQL["set_pipeline"], binds)
    # They were taken of what was damaged, or may have been, and the next recovery would start from them.
    connection.execute(SQL["drop_snapshots_after"], binds)
