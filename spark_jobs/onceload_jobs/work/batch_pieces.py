"""The pieces of a batch: read by workers, kept in the folder of this try, and read again where that is needed."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from onceload_jobs.batch.piece import Block, Piece, PieceGone, Refused
from onceload_jobs.batch.stage_folder import RowsLost, content_of
from onceload_jobs.executor.executor import Executor, Failed, map_all
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.read.board_work import Bundle
from onceload_jobs.work.failures import ends_all
from onceload_jobs.work.parts import Culprit, Parts
from onceload_jobs.work.read_chunk import Part, Reading, read_chunk, rows_of
from onceload_jobs.write.writer import ColumnsDiffer

#: How often the rows of a batch may be lost.
_LOST_MAX = 5


class BatchPieces:
    """Reads a batch, and remembers what was read."""

    def __init__(
        self, executor: Executor, reading: Reading, parts: Parts, *, on_piece: Callable[[Piece], None]
    ) -> None:
        self._executor, self._reading, self._parts = executor, reading, parts
        self._on_piece = on_piece
        self._read: dict[int, Piece] = {}
        self._losses = 0

    @property
    def bundles(self) -> Sequence[Bundle]:
        """The chunks that are not left out."""
        return [part.chunks for part in self._parts]

    def each(self) -> Iterator[Piece]:
        yield from list(self._read.values())
        for piece in self._pieces_of([part for part in self._parts if part.number not in self._read]):
            self._on_piece(piece)
            yield piece

    def take_culprits(self) -> Sequence[Culprit]:
        return self._parts.take_culprits()

    def leave_out(self, is_left_out: Callable[[Chunk], bool]) -> None:
        """Leave chunks out. The others of their bundles are read again."""
        for part in self._parts:
            rest = tuple(chunk for chunk in part.chunks if not is_left_out(chunk))
            if rest != part.chunks:
                self._read.pop(part.number, None)
                self._parts.remove(part)
                if rest:
                    self._parts.put(replace(part, chunks=rest))

    def read_again(self, differing: ColumnsDiffer | None = None) -> None:
        """Read everything again, with the columns of the table for undeclared fields, if these differ."""
        self._losses += 1
        if self._losses == _LOST_MAX:
            raise RowsLost(self._reading.folder.path)
        self._read.clear()
        for part in self._parts if differing else ():
            self._parts.put(replace(part, differing=differing))

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        return content_of(self._reading.folder, piece, block)

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        return rows_of(self._reading, self._parts[piece.number])

    def again(self, piece: Piece) -> Piece:
        return self._again(self._parts[piece.number])

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> Piece:
        return self._again(replace(self._parts[piece.number], differing=differing))

    def without(self, piece: Piece, refused: Refused) -> Piece:
        part = self._parts[piece.number]
        return self._again(replace(part, refused={**part.refused, **refused}))

    def set_aside(self, refused: Refused) -> None:
        """Quarantine records of any piece."""
        for piece in list(self._read.values()):
            spans = {advance.producer_id: advance.spans for advance in piece.advances}
            mine = {each: why for each, why in refused.items() if each[0] in spans and each[1] in spans[each[0]]}
            if mine:
                self.without(piece, mine)

    def _again(self, part: Part) -> Piece:
        self._parts.put(part)
        self._read.pop(part.number, None)
        for piece in self._pieces_of([part]):
            return piece
        raise PieceGone

    def _pieces_of(self, parts: Sequence[Part]) -> Iterator[Piece]:
        first = map(self._parts.first_try, parts)
        read = partial(read_chunk, self._reading)
        for part, result in map_all(self._executor, read, first, next_try=self._parts.next_try, ends_all=ends_all):
            if isinstance(result, Failed):
                self._parts.give_up(part, result)
            else:
                self._read[part.number] = result.without_content
                yield result
