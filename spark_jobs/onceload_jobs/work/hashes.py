"""Numbers for values: equal values have equal ones, in each process."""

import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from onceload_jobs.formats.casts import one_array
from onceload_jobs.pipeline.columns import Column, Kind

Hashes = NDArray[np.uint64]
#: Odd, so that it has an inverse among the numbers of 64 bits.
_BASE = 0x9E3779B97F4A7C15
_INVERSE = pow(_BASE, -1, 2**64)


def hashes_of(rows: pa.Table, columns: Sequence[Column]) -> Hashes:
    """A number for the values of these columns, by row."""
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
        # The server reads 1e1 as 10.
        return json.dumps(json.loads(value, parse_int=float), sort_keys=True)
    return repr(value)


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
