"""Records that name themselves are cut into buckets: all records with one id are in the same one."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from onceload_jobs.formats.records import Indices
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.board_work import Bundle
from onceload_jobs.work.hashes import hashes_of

#: How much one task holds at a time: its rows take about as much memory as their text.
_BUCKET_BYTES = 64 * 2**20
#: How much larger the content of a packed file may be.
_PACKED = 8
#: How many ids of one producer stay together: few enough that one producer does not fill one bucket.
_IDS_BITS = 18
#: Spreads the parts of a producer.
_SPREAD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """How many there are, and what names a record."""

    count: int
    #: Equal values of these columns are one id, or one producer,
    named_by: tuple[Column, ...]
    #: whose ids are in this column.
    sequence: str | None = None

    @classmethod
    def by_producer(cls, declared: Declared, count: int) -> "Buckets | None":
        if (producer := declared.producer) is None:
            return None
        return cls(count=count, named_by=_columns(declared, (producer.name,)), sequence=producer.sequence)

    @classmethod
    def by_message(cls, declared: Declared, count: int) -> "Buckets | None":
        if declared.message_id is None:
            return None
        return cls(count=count, named_by=_columns(declared, declared.message_id.columns))

    def split(self, rows: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of each bucket, in their order."""
        if self.count == 1:
            yield 0, rows
            return
        numbers = self._numbers(rows)
        in_order = rows.take(pa.array(np.argsort(numbers, kind="stable")))
        first = 0
        for number, count in enumerate(np.bincount(numbers, minlength=self.count)):
            if count:
                yield number, in_order.slice(first, count)
            first += count

    def _numbers(self, rows: pa.Table) -> Indices:
        """The bucket of each row."""
        hashes = hashes_of(rows, self.named_by)
        if self.sequence is not None:
            hashes = (
                hashes + (rows.column(self.sequence).to_numpy().astype(np.uint64) >> np.uint64(_IDS_BITS)) * _SPREAD
            )
        numbers: Indices = ((hashes >> np.uint64(32)) % np.uint64(self.count)).astype(np.int64)
        return numbers


def bucket_count(bundles: Sequence[Bundle], *, slots: int) -> int:
    """Enough that each fits into memory, and all processes have work if there is much of it."""
    size = sum(chunk.bytes * (1 if chunk.end is not None else _PACKED) for chunks in bundles for chunk in chunks)
    return max(1, -(-size // _BUCKET_BYTES), min(slots, -(-size // 2**20)))


def _columns(declared: Declared, names: tuple[str, ...]) -> tuple[Column, ...]:
    columns = {column.name: column for column in declared.columns}
    return tuple(columns[name] for name in names)
