"""Snapshots in Postgres.

They are exact while commits, claims and registrations continue: position and states change in one transaction, and
a snapshot reads both in one view (REPEATABLE READ on the primary), so it sees both or neither. Only recoveries and
rewinds wait for snapshots, and snapshots for them.
The ledger is authoritative: no snapshot is taken of states that differ from its replay.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from shlex import quote

from sqlalchemy import Connection, Engine

from onceload_core.errors import NotFound, PipelineBusy, SettingRefused, SnapshotRefused, StateDiffers
from onceload_core.names import Position
from onceload_core.pipeline import SnapshotPolicy
from onceload_core.postgres.connection import CONCURRENT_CHANGE, Record, change, statements, transaction, translated
from onceload_core.postgres.ledger import one_view
from onceload_core.postgres.pipeline_row import get_pipeline, hold_pipeline
from onceload_core.postgres.proven import BEGINNING, differing_from_ledger, get_reach, use_memory
from onceload_core.postgres.rows import state_in
from onceload_core.replay import Snapshot

SQL = statements("snapshots.sql")
_TRIES = 10


@dataclass(frozen=True, kw_only=True)
class SnapshotSummary:
    """A row in the list of snapshots."""

    position: Position
    producers: int
    taken_at: datetime


class PostgresSnapshots:
    """The store of snapshots."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def take(self, pipeline: str) -> Position:
        """Store the current states, unless there is a snapshot of this position."""
        for _ in range(_TRIES):
            try:
                return self._take(pipeline)
            except PipelineBusy as busy:
                # Another session took a snapshot of this position. The next view shows it.
                if busy.waited_for != CONCURRENT_CHANGE:
                    raise
        return self._take(pipeline)

    def _take(self, pipeline: str) -> Position:
        see = f"onceload snapshot list --pipeline {quote(pipeline)}"
        doing = "taking a snapshot"
        taking = partial(change, self._engine, pipeline, doing=doing, see=see)
        with (
            translated(pipeline=pipeline, doing=doing),
            one_view(self._engine) as view,
            taking(begun=view) as connection,
        ):
            found = hold_pipeline(connection, pipeline)
            _refuse_unproven(connection, pipeline, found)
            binds = {"pipeline_id": found.pipeline_id, "position": found.position}
            if connection.execute(SQL["take_snapshot"], binds).one_or_none():
                connection.execute(SQL["take_snapshot_producers"], binds)
        with taking() as connection:
            connection.execute(SQL["drop_old_snapshots"], {"pipeline_id": found.pipeline_id})
        return Position(found.position)

    def take_if_due(self, pipeline: str, *, now: datetime) -> Position | None:
        """Take a snapshot if one is due. Loaders call it after their commits."""
        with transaction(self._engine, pipeline, doing="reading the last snapshot") as connection:
            need = connection.execute(SQL["snapshot_need"], {"pipeline": pipeline}).one()
        policy = SnapshotPolicy(
            every_commits=need.snapshot_every_commits, every_s=need.snapshot_every_s, kept=need.snapshots_kept
        )
        seconds_since = (now - need.since).total_seconds() if need.since else 0.0
        return (
            self.take(pipeline)
            if policy.is_due(commits_since=need.commits_since, seconds_since=seconds_since)
            else None
        )

    def list(self, pipeline: str) -> tuple[SnapshotSummary, ...]:
        """The kept snapshots, newest first."""
        with transaction(self._engine, pipeline, doing="listing snapshots") as connection:
            return _list(connection, get_pipeline(connection, pipeline).pipeline_id)

    def get(self, pipeline: str, position: Position | None = None) -> Snapshot:
        """The snapshot at a position, or the latest."""
        with translated(pipeline=pipeline, doing="reading a snapshot"), one_view(self._engine) as connection:
            pipeline_id = get_pipeline(connection, pipeline).pipeline_id
            summary = get_summary(connection, pipeline_id, position)
            rows = connection.execute(
                SQL["snapshot_producers"], {"pipeline_id": pipeline_id, "position": summary.position}
            )
            states = {row.producer_id: state_in(row) for row in rows}
        return Snapshot(pipeline=pipeline, position=summary.position, taken_at=summary.taken_at, states=states)


def _refuse_unproven(connection: Connection, pipeline: str, found: Record) -> None:
    """Refuse states that differ from the replay of the ledger: a snapshot would pass on the damage."""
    use_memory(connection)
    before = connection.execute(SQL["snapshot_before"], {"pipeline_id": found.pipeline_id, "position": found.position})
    differing: tuple[str, ...] = ()
    # If the states do not follow from the last snapshot, it may be damaged: the whole ledger decides.
    for after in dict.fromkeys((Position(before.scalar_one()), BEGINNING)):
        try:
            reach = get_reach(connection, pipeline, pipeline_id=found.pipeline_id, after=after)
        except (SettingRefused, StateDiffers) as error:
            raise SnapshotRefused(pipeline, found.position, ("the ledger itself: entries are missing",)) from error
        if reach.position != found.position:
            raise SnapshotRefused(pipeline, found.position, ("the pipeline's position",))
        differing = differing_from_ledger(
            connection, pipeline_id=found.pipeline_id, after=after, up_to=Position(found.position)
        )
        if not differing:
            return
    raise SnapshotRefused(pipeline, found.position, differing)


def get_summary(connection: Connection, pipeline_id: int, position: Position | None) -> SnapshotSummary:
    """The summary of the snapshot at a position, or of the latest."""
    kept = _list(connection, pipeline_id)
    for summary in kept:
        if position in (None, summary.position):
            return summary
    wanted = "the latest" if position is None else str(position)
    raise NotFound("snapshot", wanted, tuple(str(summary.position) for summary in kept))


def _list(connection: Connection, pipeline_id: int) -> tuple[SnapshotSummary, ...]:
    rows = connection.execute(SQL["list_snapshots"], {"pipeline_id": pipeline_id})
    return tuple(SnapshotSummary(position=row.position, producers=row.producers, taken_at=row.taken_at) for row in rows)
