"""Copy pieces into the target and commit them, in one transaction: all of a batch, or those of one task.

What comes here needs no SQL on its rows: those of files and of a program, and quarantined records that are retried.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import AlreadyConsumed, RowsRefused
from onceload_core.guards import RowsDiffer
from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import BlockLost, Piece, Pieces, advances_of, places_of
from onceload_jobs.batch.stage_folder import RowsLost
from onceload_jobs.batch.used_ids import IdTables
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.publish.commits import (
    BatchTotals,
    made_in_pieces,
    publish_commit,
    refuse_repeats,
    refusing_rows,
    until_it_took_effect,
)
from onceload_jobs.publish.replaced_rows import replace_rows
from onceload_jobs.read.bad_records import bad_allowed
from onceload_jobs.write.find_refused import CHECK_NOW, is_of_rows, offer_rows, reason_of
from onceload_jobs.write.kept_alive import KeptAlive
from onceload_jobs.write.sql import run
from onceload_jobs.write.target import refuse_altered
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: How often the rows of one piece may be lost.
_LOST_MAX = 5


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
    return until_it_took_effect(ledger, job, partial(road.write, pieces), last_totals=lambda: road.totals)


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
    _checks_each_piece: bool = False

    def write(self, pieces: Pieces) -> bool:
        """Copy all pieces and commit them; whether there was anything to commit."""
        job, ids = self.job, IdTables.temporary(self.job.declared)
        with translated(pipeline=job.declared.name, doing="writing rows"), self.engine.connect() as connection:
            with refusing_rows(job):
                copied, written = self._copy(connection, pieces, ids)
            totals = BatchTotals.of(job, copied)
            if job.declared.transform is not None:
                totals = totals.with_made(job, copied, made_in_pieces(copied))
            self.totals = totals
            if totals.is_empty:
                connection.rollback()
                return False
            ids.offer(connection)
            publish_commit(
                self.ledger,
                job,
                totals,
                ids,
                write_rows=lambda _: written,
                claim=self.claim,
                is_last=self.is_last,
                begun=connection,
                is_logged_as=self.is_logged_as,
            )
            return True

    def check_each_piece(self, refused: RowsRefused) -> None:
        """A constraint that the commit checks last may have refused rows: the next try checks it with each piece."""
        if self._checks_each_piece:
            raise refused
        self._checks_each_piece = True

    def _copy(self, connection: Connection, pieces: Pieces, ids: IdTables) -> tuple[Sequence[Piece], int]:
        """Copy all pieces, in place of old rows that they replace; also returns how many rows the server wrote."""
        job, copied = self.job, list[Piece]()
        writer = Writer.into_target(job.declared.target, job.written)
        ids.create(connection)
        if self.added:
            refuse_altered(connection, writer.table, columns=writer.columns, lineage=writer.lineage)
            writer.add_all(connection, self.added)
        copying = Copying(
            job=job,
            pieces=pieces,
            writer=writer,
            ids=ids,
            checks_each_piece=self._checks_each_piece,
            check_new=partial(self._check_new, pieces),
        )

        def copy() -> int:
            counting = writer.counting(connection)
            copied.extend(copying.copy_all(connection))
            if self.judge is not None:
                self.judge(copied)
            return counting.remaining(connection, sum(piece.rows for piece in copied))

        written = replace_rows(connection, job, [each.old for each in job.replaced.values()], copy)
        return copied, written

    def _check_new(self, pieces: Pieces, piece: Piece) -> None:
        """Refused rows may be those of another process that was first, or of an earlier try: they are not bad."""
        if self.job.records_have_own_ids and self.job.declared.transform is None:
            # The new records of the piece are looked for again; rows of a transform are not looked at one by one.
            repeats = piece.rows - sum(rows.num_rows for rows, _ in pieces.rows(piece))
            if repeats > 0:
                raise AlreadyConsumed(self.job.declared.name, (f"{repeats} records",))
        refuse_repeats(self.ledger, self.job, advances_of([piece]))


@dataclass(frozen=True, kw_only=True)
class Copying:
    """Copies pieces into a table, the target or a stage, while other pieces are still being read.

    Each piece has a savepoint. If the server refuses rows of it, or if it is lost, it is read again. No other piece is.
    """

    job: Job
    pieces: Pieces
    writer: Writer
    ids: IdTables
    #: Whether constraints that the commit would check last are checked with each piece.
    checks_each_piece: bool = False
    #: Called when the server has refused rows of a piece. It raises if any are loaded already.
    check_new: Callable[[Piece], None] | None = None

    def copy_all(self, connection: Connection) -> list[Piece]:
        """Copy all pieces, and return them as they were copied."""
        alive, copied = KeptAlive(connection), []
        if self.checks_each_piece:
            run(connection, CHECK_NOW)
        with alive.while_it_waits():
            for piece in self.pieces.each():
                with alive.used():
                    # Rows that workers hand over in memory are not kept there.
                    copied.append(self._copied(connection, piece).without_content)
        return copied

    def _copied(self, connection: Connection, piece: Piece) -> Piece:
        lost = 0
        while True:
            savepoint = connection.begin_nested()
            try:
                self._copy(connection, piece)
            except BlockLost as block:
                savepoint.rollback()
                lost += 1
                if lost == _LOST_MAX:
                    raise RowsLost(block.folder) from None
                piece = self.pieces.again(piece)
            except ColumnsDiffer as differing:
                savepoint.rollback()
                piece = self.pieces.of_types(piece, differing)
            except DBAPIError as error:
                if not is_of_rows(error):
                    raise
                savepoint.rollback()
                piece = self.pieces.without(piece, self._refused(connection, piece, cause=error))
            else:
                savepoint.commit()
                return piece

    def _copy(self, connection: Connection, piece: Piece) -> None:
        for block in piece.blocks:
            writer = self.writer.adding(block.added)
            writer.add_columns(connection)
            copied = writer.copy_encoded(connection, self.pieces.content(piece, block))
            if copied != block.rows:
                raise RowsDiffer(self.job.declared.name, self.job.batch, written=copied, expected=block.rows)
        self.ids.copy(connection, piece, self.pieces.content)

    def _refused(self, connection: Connection, piece: Piece, *, cause: DBAPIError) -> dict[tuple[ProducerId, int], str]:
        """The rows of a piece that the server refuses; if there are none, it refuses the batch."""
        refused: dict[tuple[ProducerId, int], str] = {}
        bad, at_most = len(piece.quarantined), None
        # Those of a retry are in quarantine already.
        if not piece.settled:
            at_most = bad_allowed(self.job.declared, bad=bad, records=piece.records + bad)
        savepoint = connection.begin_nested()
        run(connection, CHECK_NOW)
        for rows, added in self.pieces.rows(piece):
            found = offer_rows(connection, self.writer.adding(added), rows, at_most=at_most)
            files, places = places_of(rows)
            refused |= {(files[at].as_py(), places[at].as_py()): why for at, why in found.items()}
            if at_most is not None and len(refused) > at_most:
                break
        savepoint.rollback()
        if self.check_new is not None:
            # Only now are all rows committed that it may have refused these for.
            self.check_new(piece)
        if not refused:
            raise RowsRefused(self.job.declared.name, self.writer.target, reason_of(self.writer, cause)) from cause
        return refused
