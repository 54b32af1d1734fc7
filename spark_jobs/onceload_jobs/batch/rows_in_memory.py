"""Pieces that one process reads and copies: the rows of one at a time are in memory, encoded while they are copied."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import pyarrow as pa

from onceload_jobs.batch.piece import Block, Piece, Refused
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.write.writer import ColumnsDiffer, Writer


class RowsInMemory(ABC):
    """The rows of the piece that was read last, and what the server said of those that were read before."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._rows: tuple[pa.Table, tuple[Column, ...]]
        self._refused: Refused = {}
        self._differing: ColumnsDiffer | None = None

    @abstractmethod
    def _read(self, number: int) -> Piece:
        """Read a piece, without the refused rows."""

    def _holding(self, rows: pa.Table, added: tuple[Column, ...]) -> tuple[Block, ...]:
        """The blocks of a piece with these rows, and their columns for undeclared fields."""
        self._rows = rows, added
        count: int = rows.num_rows
        return (Block(rows=count, first_byte=0, size=0, checksum=0, added=added),) if count else ()

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        del piece
        return self._writer.adding(block.added).encoded(self._rows[0])

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        del piece
        yield self._rows

    def again(self, piece: Piece) -> Piece:
        return self._read(piece.number)

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> Piece:
        self._differing = differing
        return self._read(piece.number)

    def without(self, piece: Piece, refused: Refused) -> Piece:
        self._refused = {**self._refused, **refused}
        return self._read(piece.number)
