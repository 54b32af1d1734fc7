"""The parts of a load that workers read, and the pieces of a batch that they make.

A part that fails is tried again, at last chunk by chunk. A piece is read again if its rows are lost, or if they are
needed in another form.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import TypeVar

import pyarrow as pa

from onceload_jobs.batch.piece import Block, Piece, PieceGone, Refused
from onceload_jobs.batch.stage_folder import RowsLost, content_of
from onceload_jobs.executor.executor import Executor, Failed, Failure, map_all
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.plan.bundles import Bundle
from onceload_jobs.work.failures import ends_all, why_failed
from onceload_jobs.work.read_chunk import Part, Reading, read_chunk, rows_of
from onceload_jobs.write.writer import ColumnsDiffer

Result = TypeVar("Result")
#: How often a bundle is read as a whole before each of its chunks is read alone.
_WHOLE_TRIES = 2
#: How often the rows of a batch may be lost.
_LOST_MAX = 5


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A chunk that failed in all of its tries, the last ones alone, and why."""

    chunk: Chunk
    #: Why each try failed.
    reasons: tuple[str, ...]


class Parts:
    """The parts of a load, by their numbers."""

    def __init__(self, bundles: Iterable[Bundle], *, tries_max: int) -> None:
        self._parts = {number: Part(number=number, chunks=chunks) for number, chunks in enumerate(bundles)}
        self._numbers = count(len(self._parts))
        #: How often a chunk is read before it is set aside.
        self._tries_max = tries_max
        self._culprits: list[Culprit] = []

    @property
    def all(self) -> Sequence[Part]:
        return list(self._parts.values())

    def take_culprits(self) -> Sequence[Culprit]:
        """Those that were found since the last call."""
        found, self._culprits = self._culprits, []
        return found

    def results(
        self,
        executor: Executor,
        function: Callable[[Part], Result],
        parts: Iterable[Part],
        *,
        ends_all: Callable[[Exception], bool] = ends_all,
    ) -> Iterator[tuple[Part, Result]]:
        """What a function makes of some of these parts; one that fails in all of its tries is taken out."""
        first = (self._as_try(part, number=1) for part in parts)
        for part, result in map_all(executor, function, first, next_try=self._next_try, ends_all=ends_all):
            if isinstance(result, Failed):
                del self._parts[part.number]
                (chunk,) = part.chunks
                reasons = tuple(why_failed(each, doing=f"read {chunk.name!r}") for each in result.failures)
                self._culprits.append(Culprit(chunk=chunk, reasons=reasons))
            else:
                yield part, result

    def _next_try(self, part: Part, failures: Sequence[Failure]) -> Sequence[Part]:
        """The same part, or at last each of its chunks alone."""
        tries = len(failures)
        if len(part.chunks) > 1 and tries >= min(_WHOLE_TRIES, self._tries_max - 1):
            del self._parts[part.number]
            alone = [replace(part, number=next(self._numbers), chunks=(chunk,)) for chunk in part.chunks]
            self._parts |= {each.number: each for each in alone}
            return [self._as_try(each, number=tries + 1) for each in alone]
        return [self._as_try(part, number=tries + 1)] if tries < self._tries_max else ()

    def _as_try(self, part: Part, *, number: int) -> Part:
        is_last = number >= self._tries_max and len(part.chunks) == 1
        return replace(part, is_last_try=is_last, is_redelivered=number > 1)


class BatchPieces(Parts):
    """The parts of a batch, and what was read of them."""

    def __init__(
        self,
        executor: Executor,
        reading: Reading,
        bundles: Iterable[Bundle],
        *,
        tries_max: int,
        on_piece: Callable[[Piece], None],
    ) -> None:
        super().__init__(bundles, tries_max=tries_max)
        self._executor, self._reading, self._on_piece = executor, reading, on_piece
        self._read: dict[int, Piece] = {}
        self._losses = 0

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Those that are not left out."""
        return [chunk for part in self._parts.values() for chunk in part.chunks]

    def each(self) -> Iterator[Piece]:
        yield from list(self._read.values())
        for piece in self._pieces_of([part for part in self.all if part.number not in self._read]):
            self._on_piece(piece)
            yield piece

    def leave_out(self, is_left_out: Callable[[Chunk], bool]) -> None:
        """Leave chunks out. The others of their bundles are read again."""
        for part in self.all:
            rest = tuple(chunk for chunk in part.chunks if not is_left_out(chunk))
            if rest != part.chunks:
                self._read.pop(part.number, None)
                del self._parts[part.number]
                if rest:
                    self._parts[part.number] = replace(part, chunks=rest)

    def read_again(self, differing: ColumnsDiffer | None = None) -> None:
        """Read everything again, with the columns of the table for undeclared fields, if these differ."""
        self._losses += 1
        if self._losses == _LOST_MAX:
            raise RowsLost(self._reading.folder.path)
        self._read.clear()
        if differing:
            parts = self._parts.items()
            self._parts = {number: replace(part, differing=differing.after(part.differing)) for number, part in parts}

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        return content_of(self._reading.folder, piece, block)

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        left = piece.rows
        for rows, added in rows_of(self._reading, self._parts[piece.number]):
            left -= rows.num_rows
            yield rows, added
        if left:
            # A file of it is gone since it was read, or is another one.
            self._read.pop(piece.number, None)
            raise PieceGone

    def again(self, piece: Piece) -> Piece:
        return self._again(self._parts[piece.number])

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> Piece:
        part = self._parts[piece.number]
        return self._again(replace(part, differing=differing.after(part.differing)))

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
        self._parts[part.number] = part
        self._read.pop(part.number, None)
        for piece in self._pieces_of([part]):
            if piece.number == part.number:
                return piece
        # Its chunks may have been read alone: then each is another piece.
        raise PieceGone

    def _pieces_of(self, parts: Sequence[Part]) -> Iterator[Piece]:
        for part, piece in self.results(self._executor, partial(read_chunk, self._reading), parts):
            # Other workers get these, which are given all rows at once, and in each try.
            self._read[part.number] = piece if self._reading.form.as_arrow else piece.without_content
            yield piece
