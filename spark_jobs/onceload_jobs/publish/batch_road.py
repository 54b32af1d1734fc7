"""Copy pieces into the target and commit them, in one transaction: all of a batch, or those of one task.

What comes here needs no SQL on its rows: those of files and of a program, and quarantined records that are retried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sqlalchemy import Connection, Engine

from onceload_core.errors import AlreadyConsumed, RowsRefused
from onceload_core.ports import Claim
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, Pieces, advances_of
from onceload_jobs.batch.used_ids import IdTables
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.publish.commits import commit_of, publish_commit
from onceload_jobs.publish.copy_pieces import Copying
from onceload_jobs.publish.made_rows import MadeRows
from onceload_jobs.publish.refusals import refusing_rows
from onceload_jobs.publish.replaced_rows import replace_rows
from onceload_jobs.publish.totals import BatchTotals, took_effect
from onceload_jobs.write.target import refuse_altered
from onceload_jobs.write.until_certain import until_certain
from onceload_jobs.write.writer import Writer


def copy_and_commit(
    engine: Engine,
    ledger: PostgresLedger,
    job: Job,
    pieces: Pieces,
    *,
    claim: Claim,
    judge: Callable[[Sequence[Piece]], None],
    added: Sequence[tuple[Column, ...]] = (),
) -> bool:
    """Copy all pieces and commit them, until it is certain that they took effect; whether this process saw it."""
    road = BatchRoad(engine=engine, ledger=ledger, job=job, claim=claim, judge=judge, added=added)
    batch = _Batch(road, pieces)
    until_certain(batch.find_rest, batch.write, on_unsure=batch.note_unsure)
    return road.has_committed


@dataclass(kw_only=True)
class BatchRoad:
    """Copies pieces and commits them. It may be tried again."""

    engine: Engine
    ledger: PostgresLedger
    job: Job
    claim: Claim | None = None
    #: Whether the commit ends the claim.
    is_last: bool = True
    #: Called before the commit. What it raises rolls everything back.
    judge: Callable[[Sequence[Piece]], None] | None = None
    #: The columns for undeclared fields of all pieces. Behind rows that wait for a check of theirs, none can be added.
    added: Sequence[tuple[Column, ...]] = ()
    is_logged_as: str = "batch_published"
    #: What the last try would have committed.
    totals: BatchTotals | None = None
    has_committed: bool = False
    _copied: Sequence[Piece] = ()
    _checks_each_piece: bool = False
    _ids: IdTables = field(init=False)

    def __post_init__(self) -> None:
        self._ids = IdTables.temporary(self.job.declared)

    def write(self, pieces: Pieces) -> None:
        job = self.job
        with translated(pipeline=job.declared.name, doing="writing rows"), self.engine.connect() as connection:
            with refusing_rows(job):
                written = self._copy(connection, pieces)
            totals = self.totals = self._total()
            if totals.is_empty:
                connection.rollback()
                return
            self._ids.offer(connection)
            commit = commit_of(
                job, totals, self._ids, claim=self.claim, is_last=self.is_last, write_rows=lambda _: written
            )
            with refusing_rows(job):
                publish_commit(self.ledger, commit, begun=connection, is_logged_as=self.is_logged_as)
            self.has_committed = True

    def check_each_piece(self, refused: RowsRefused) -> None:
        """A constraint that the commit checks last may have refused rows: the next try checks it with each piece."""
        if self._checks_each_piece:
            raise refused
        self._checks_each_piece = True

    def _copy(self, connection: Connection, pieces: Pieces) -> int:
        """Copy all pieces, in place of old rows that they replace; how many rows the server wrote."""
        job = self.job
        writer = Writer.into_target(job.declared.target, job.written)
        self._ids.create(connection)
        if self.added:
            refuse_altered(connection, writer.table, columns=writer.columns, lineage=writer.lineage)
            writer.add_all(connection, self.added)
        copying = Copying(
            job=job,
            pieces=pieces,
            writer=writer,
            ids=self._ids,
            checks_each_piece=self._checks_each_piece,
            check_new=partial(self._check_new, pieces),
        )

        def copy() -> int:
            counting = writer.counting(connection)
            copying.copy_all(connection)
            self._copied = copying.copied
            if self.judge is not None:
                self.judge(self._copied)
            return counting.remaining(connection, copying.rows)

        if not job.replaced:
            return copy()
        return replace_rows(connection, job, [each.old for each in job.replaced.values()], copy)

    def _check_new(self, pieces: Pieces, piece: Piece) -> None:
        """Refused rows may be those of another process that was first, or of an earlier try: they are not bad."""
        if self.job.records_have_own_ids:
            # What is new of the piece is looked for again.
            repeats = piece.rows - sum(rows.num_rows for rows, _ in pieces.rows(piece))
            if repeats > 0:
                raise AlreadyConsumed(self.job.declared.name, (f"{repeats} records",))
        read = {advance.producer_id: advance.spans for advance in advances_of([piece])}
        if not read:
            return
        known = self.ledger.know(self.job.session, list(read))
        repeated = tuple(
            f"producer {producer_id}"
            for producer_id, knowledge in known.items()
            if knowledge.state.consumed.overlaps(read[producer_id])
        )
        if repeated:
            raise AlreadyConsumed(self.job.declared.name, repeated)

    def _total(self) -> BatchTotals:
        totals = BatchTotals.of(self.job, self._copied)
        if self.job.declared.transform is None:
            return totals
        return totals.with_made(MadeRows.of_pieces(self.job, self._copied))


class _Batch:
    """The tries to commit a batch. It takes effect completely or not at all."""

    def __init__(self, road: BatchRoad, pieces: Pieces) -> None:
        self._road, self._pieces = road, pieces
        #: What may have taken effect.
        self._unsure: BatchTotals | None = None
        #: Another process was first: of files only an unknown one, or another load that had some of the same records.
        self._overtaken: AlreadyConsumed | None = None

    def find_rest(self) -> Pieces | None:
        """The batch, unless it took effect."""
        if self._overtaken is not None:
            raise self._overtaken
        done = self._unsure is not None and took_effect(self._road.ledger, self._road.job, self._unsure)
        return None if done else self._pieces

    def write(self, pieces: Pieces) -> None:
        try:
            self._road.write(pieces)
        except AlreadyConsumed as error:
            self._overtaken = error
            raise

    def note_unsure(self) -> None:
        self._unsure = self._road.totals
