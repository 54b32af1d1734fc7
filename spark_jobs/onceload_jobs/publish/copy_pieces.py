"""Copy pieces into a table, in a transaction of the load, while other pieces are still being read.

Each piece has a savepoint. If the server refuses rows of it, or if it is lost, it is read again. No other piece is.
"""

from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import RowsRefused
from onceload_core.guards import RowsDiffer
from onceload_core.names import ProducerId
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import BlockLost, Piece, Pieces, places_of
from onceload_jobs.batch.stage_folder import RowsLost
from onceload_jobs.batch.used_ids import IdTables
from onceload_jobs.read.limits import bad_allowed
from onceload_jobs.write.find_refused import CHECK_NOW, is_of_rows, offer_rows, reason_of
from onceload_jobs.write.kept_alive import KeptAlive
from onceload_jobs.write.sql import run
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: How often the rows of one piece may be lost.
_LOST_MAX = 5


@dataclass(frozen=True, kw_only=True)
class Copying:
    """Copies the pieces of a batch into the target, or into its stage."""

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
