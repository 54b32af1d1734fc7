"""Records that name themselves are cut into buckets: all records with one id are in the same one."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onceload_jobs.formats.casts import one_array
from onceload_jobs.formats.records import Indices
from onceload_jobs.pipeline.columns import Column, Kind
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.bundles import Bundle

Hashes = NDArray[np.uint64]
#: How much one task holds at a time: its rows take about as much memory as their text.
_BUCKET_BYTES = 64 * 2**20
#: How much larger the content of a packed file may be.
_PACKED = 8
#: How many ids of one producer stay together: few enough that one producer does not fill one bucket.
_IDS_BITS = 18
#: Odd, so that it has an inverse among the numbers of 64 bits.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)
#: Spreads the parts of a producer.
_SPREAD = np.uint64(_BASE)


@dataclass(frozen=True, kw_only=True)
class Buckets:
    """How many there are, and what names a record."""

    count: int
    #: Equal values of these columns are one id, or one producer,
    named_by: tuple[Column, ...]
    #: whose ids are in this column.
    sequence: str | None = None

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


def buckets_of(declared: Declared, count: int) -> list[Buckets]:
    """Those of each task that leaves out repeats: by producer, then by business id."""
    columns = {column.name: column for column in declared.columns}
    found: list[Buckets] = []
    if (producer := declared.producer) is not None:
        found.append(Buckets(count=count, named_by=(columns[producer.name],), sequence=producer.sequence))
    if declared.message_id is not None:
        found.append(Buckets(count=count, named_by=tuple(columns[name] for name in declared.message_id.columns)))
    return found


def bucket_count(bundles: Sequence[Bundle], *, slots: int) -> int:
    """Enough that each fits into memory, and all processes have work if there is much of it."""
    size = sum(chunk.bytes * (1 if chunk.end is not None else _PACKED) for chunks in bundles for chunk in chunks)
    return max(1, -(-size // _BUCKET_BYTES), min(slots, -(-size // 2**20)))


def hashes_of(rows: pa.Table, columns: Sequence[Column]) -> Hashes:
    """A number for the values of these columns, by row: equal values have equal ones, in each process."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for column in columns:
        hashes = _mixed(hashes * np.uint64(31) + _of_values(one_array(rows.column(column.name)), column))
    return hashes


def _of_values(values: pa.Array, column: Column) -> Hashes:
    if column.type.is_array:
        return _of_texts(_as_texts(values, column))
    # Most values occur often, such as the name of a producer.
    different = values.dictionary_encode(null_encoding="encode")
    of_rows: Hashes = _of_texts(_as_texts(different.dictionary, column))[different.indices.to_numpy()]
    return of_rows


def _as_texts(values: pa.Array, column: Column) -> pa.Array:
    """The same text for values that the server calls the same."""
    is_json = column.type.kind is Kind.JSONB
    if is_json or column.type.is_array:
        return pa.array([_canonical(value, is_json=is_json) for value in values.to_pylist()], pa.large_string())
    if pa.types.is_fixed_size_binary(values.type) or pa.types.is_binary(values.type):
        return values.cast(pa.large_binary())
    return pc.cast(values, pa.large_string())


def _canonical(value: object, *, is_json: bool) -> str:
    if isinstance(value, list):
        return repr([_canonical(each, is_json=is_json) for each in value])
    if is_json and isinstance(value, str):
        return json.dumps(json.loads(value, parse_int=_number, parse_float=_number), sort_keys=True)
    return repr(value)


def _number(written: str) -> float:
    # The server reads 1e1 as 10, and -0 as 0.
    return float(written) or 0.0


def _of_texts(texts: pa.Array) -> Hashes:
    """The value of each text as a polynomial, by the sums of all texts up to its beginning and its end."""
    _, offsets, content = texts.buffers()
    places = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    first = places[0] if len(places) else 0
    octets = np.frombuffer(content, np.uint8)[first : places[-1]] if content else np.zeros(0, np.uint8)
    places = places - first
    powers = _powers(_BASE, len(octets))
    sums = np.zeros(len(octets) + 1, np.uint64)
    np.cumsum((octets.astype(np.uint64) + np.uint64(1)) * powers[:-1], out=sums[1:])
    begins, ends = places[:-1], places[1:]
    return (sums[ends] - sums[begins]) * _powers(_INVERSE, len(octets))[begins]


def _powers(base: int, count: int) -> Hashes:
    """The powers from 0 to `count`."""
    factors = np.full(count + 1, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)


def _mixed(hashes: Hashes) -> Hashes:
    hashes = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return hashes ^ (hashes >> np.uint64(29))
