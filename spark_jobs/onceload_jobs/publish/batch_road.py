"""The road of a batch that needs no SQL on its rows: one transaction copies pieces as they are read, and commits."""

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Engine

from onceload_core.errors import AlreadyConsumed
from onceload_core.ports import Claim
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, Pieces
from onceload_jobs.batch.used_ids import IdTables
from onceload_jobs.publish.commits import commit_of, publish_commit
from onceload_jobs.publish.copy_pieces import Copying
from onceload_jobs.publish.made_rows import MadeRows
from onceload_jobs.publish.refusals import refusing_rows
from onceload_jobs.publish.replaced_rows import replace_rows
from onceload_jobs.publish.totals import BatchTotals, took_effect
from onceload_jobs.read.limits import check_quarantine
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
) -> bool:
    """Copy all pieces and commit them, until it is certain that they took effect; whether this process saw it.

    `judge` is called before the commit. What it raises rolls everything back.
    """
    road = BatchRoad(engine, ledger, job, pieces, claim=claim, judge=judge)
    until_certain(road.find_rest, road.write, on_unsure=road.note_unsure)
    return road.has_committed


class BatchRoad:
    """The tries to copy a batch and commit it."""

    def __init__(
        self,
        engine: Engine,
        ledger: PostgresLedger,
        job: Job,
        pieces: Pieces,
        *,
        claim: Claim | None = None,
        judge: Callable[[Sequence[Piece]], None] | None = None,
        checks_each_piece: bool = False,
        is_logged_as: str = "batch_published",
    ) -> None:
        self._engine, self._ledger, self._job, self._pieces = engine, ledger, job, pieces
        self._claim, self._judge = claim, judge
        self._checks_each_piece, self._is_logged_as = checks_each_piece, is_logged_as
        self._ids = IdTables.temporary(job.declared)
        #: What may have taken effect.
        self._unsure: BatchTotals | None = None
        self._totals: BatchTotals | None = None
        #: Another process was first: of files only an unknown one, or another load that had some of the same records.
        self._overtaken: AlreadyConsumed | None = None
        self.copied: Sequence[Piece] = ()
        self.has_committed = False

    def find_rest(self) -> Pieces | None:
        """The batch, unless it took effect."""
        if self._overtaken is not None:
            raise self._overtaken
        done = self._unsure is not None and took_effect(self._ledger, self._job, self._unsure)
        return None if done else self._pieces

    def note_unsure(self) -> None:
        self._unsure = self._totals

    def write(self, pieces: Pieces) -> None:
        job = self._job
        with translated(pipeline=job.declared.name, doing="writing rows"), self._engine.connect() as connection:
            with refusing_rows(job):
                written = self._copy(connection, pieces)
            totals = self._totals = self._total()
            if totals.is_empty:
                connection.rollback()
                return
            check_quarantine(job.declared, totals.quarantined, records=totals.records + len(totals.quarantined))
            self._ids.offer(connection)
            commit = commit_of(job, totals, self._ids, claim=self._claim, write_rows=lambda _: written)
            try:
                with refusing_rows(job):
                    publish_commit(self._ledger, commit, begun=connection, is_logged_as=self._is_logged_as)
                self.has_committed = True
            except AlreadyConsumed as error:
                self._overtaken = error
                raise

    def _copy(self, connection: Connection, pieces: Pieces) -> int:
        """Copy all pieces, in place of old rows that they replace; how many rows the server wrote."""
        job = self._job
        writer = Writer.into_target(job.declared.target, job.written)
        self._ids.create(connection)
        copying = Copying(
            job=job, pieces=pieces, writer=writer, ids=self._ids, checks_each_piece=self._checks_each_piece
        )

        def copy() -> int:
            counting = writer.counting(connection)
            copying.copy_all(connection)
            self.copied = copying.copied
            if self._judge is not None:
                self._judge(self.copied)
            return counting.remaining(connection, copying.rows)

        if not job.replaced:
            return copy()
        return replace_rows(connection, job, [each.old for each in job.replaced.values()], copy)

    def _total(self) -> BatchTotals:
        totals = BatchTotals.of(self._job, self.copied)
        if self._job.declared.transform is None:
            return totals
        return totals.with_made(MadeRows.of_pieces(self._job, self.copied))
