"""The pieces of a batch whose records name themselves: what is new of those that were read, bucket by bucket."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NoReturn, Protocol

import pyarrow as pa

from onceload_jobs.batch.piece import Block, BlockLost, Piece, PieceGone, Refused
from onceload_jobs.batch.stage_folder import content_of
from onceload_jobs.executor.executor import Died, Executor, Failed, Failure, Raised, map_all
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.work.bucket import Bucket, Deduplicating, parts_of
from onceload_jobs.work.failures import TasksFailed, ends_all, reason_of
from onceload_jobs.write.writer import ColumnsDiffer

_TRIES_MAX = 3


class ReadPieces(Protocol):
    """What new records are looked for in."""

    def each(self) -> Iterator[Piece]:
        """All pieces."""

    def read_again(self, differing: ColumnsDiffer | None = None) -> None:
        """Read everything again, with the columns of the table for undeclared fields, if these differ."""

    def set_aside(self, refused: Refused) -> None:
        """Quarantine these records, and read the others again."""


@dataclass(frozen=True, kw_only=True)
class NewPieces:
    """Each time that they are asked for, the new records are found again."""

    executor: Executor
    look: Callable[[Deduplicating, Bucket], Piece]
    task: Deduplicating
    read: "ReadPieces"
    _buckets: dict[int, Bucket] = field(default_factory=dict)

    def each(self) -> Iterator[Piece]:
        read = list(self.read.each())
        yield from (piece.proof for piece in read)
        self._buckets.clear()
        self._buckets.update({bucket.number: bucket for bucket in _buckets_of(read)})
        dedup, buckets = partial(self.look, self.task), self._buckets.values()
        try:
            for _, result in map_all(self.executor, dedup, buckets, next_try=_next_try, ends_all=_ends_all):
                if isinstance(result, Failed):
                    raise TasksFailed(self.task.job.declared.name, _why(result.failures[-1]))
                yield result
        except BlockLost:
            self.read_again()
            raise PieceGone from None

    def read_again(self, differing: ColumnsDiffer | None = None) -> None:
        self.read.read_again(differing)

    def set_aside(self, refused: Refused) -> None:
        self.read.set_aside(refused)

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        return content_of(self.task.folder, piece, block)

    def again(self, piece: Piece) -> NoReturn:
        del piece
        self.read_again()
        raise PieceGone

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> NoReturn:
        del piece
        self.read_again(differing)
        raise PieceGone

    def without(self, piece: Piece, refused: Refused) -> NoReturn:
        """The bytes of its records are in the pieces that were read, so these are read again without them."""
        del piece
        self.set_aside(refused)
        raise PieceGone

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        bucket = self._buckets[-1 - piece.number]
        return parts_of(self.task.folder, self.look(self.task.of_rows, bucket))


def _buckets_of(pieces: Sequence[Piece]) -> list[Bucket]:
    in_order = sorted(pieces, key=lambda piece: piece.number)
    numbers = sorted({block.bucket for piece in pieces for block in piece.blocks})
    return [Bucket(number=number, pieces=tuple(_in_bucket(piece, number) for piece in in_order)) for number in numbers]


def _in_bucket(piece: Piece, number: int) -> Piece:
    blocks = tuple(block for block in piece.blocks if block.bucket == number)
    return Piece(number=piece.number, file=piece.file, blocks=blocks)


def _next_try(bucket: Bucket, failures: Sequence[Failure]) -> Sequence[Bucket]:
    return (bucket,) if len(failures) < _TRIES_MAX else ()


def _ends_all(error: Exception) -> bool:
    # Lost rows stay lost.
    return isinstance(error, BlockLost) or ends_all(error)


def _why(failure: Failure) -> str:
    match failure:
        case Died(reason):
            return f"while it looked for new records, {reason}"
        case Raised(error):
            return reason_of(error)
