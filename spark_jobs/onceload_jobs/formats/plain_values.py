"""Arrow tables of plain values: no dictionaries, no nanoseconds, and a bound of what they take in memory."""

from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import date

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_jobs.formats.casts import mask_of
from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.records import Indices
from onceload_jobs.pipeline.columns import LINEAGE

#: The limit for a row group, which is read as a whole.
UNFOLDED_BYTES_MAX = 2 * 2**30
#: Added to each row to record its origin.
BYTES_OF_A_ROW = 8 * len(LINEAGE)


def plain_batches(batches: Iterable[pa.RecordBatch], url: str) -> Iterator[pa.RecordBatch]:
    """Values with dictionaries expanded, where few bytes may stand for many values."""
    size = 0
    for batch in batches:
        size += sum(map(_plain_bytes, batch.columns))
        check_size(url, size)
        yield pa.record_batch([plain(column) for column in batch.columns], names=batch.schema.names)


def check_size(url: str, size: int) -> None:
    if size > UNFOLDED_BYTES_MAX:
        found = f"a row group, stripe or block expands to more than {UNFOLDED_BYTES_MAX / 2**30:g} GiB"
        expected = "row groups, stripes or blocks that fit into memory"
        raise FileRefused(url, expected, found, "Rewrite the file with smaller ones")


def _plain_bytes(array: pa.Array) -> int:
    """The size of an array with dictionaries expanded, in which few long values may repeat many times."""
    if isinstance(array, pa.ExtensionArray):
        return _plain_bytes(array.storage)
    if pa.types.is_nested(array.type):
        return _OFFSET_BYTES * len(array) + sum(map(_plain_bytes, _elements(array)))
    if not pa.types.is_dictionary(array.type):
        return int(array.nbytes)
    values = array.dictionary
    if not _is_of_bytes(values.type):
        return len(array) * int(values.type.bit_width) // 8
    return _OFFSET_BYTES * len(array) + int(pc.sum(pc.binary_length(values).take(array.indices)).as_py() or 0)


def _elements(array: pa.Array) -> Collection[pa.Array]:
    if pa.types.is_map(array.type):
        return [array.keys, array.items]
    if pa.types.is_union(array.type) or pa.types.is_struct(array.type):
        # To flatten a struct that may be null and has a union ends the process.
        return [array.field(at) for at in range(array.type.num_fields)]
    return [array.flatten()]


_OFFSET_BYTES = 4


def _is_of_bytes(arrow: pa.DataType) -> bool:
    holds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(each(arrow) for each in holds)


def plain(array: pa.Array) -> pa.Array:
    """Convert to plain values: no dictionaries, and points in time without nanoseconds."""
    if isinstance(array, pa.ExtensionArray):
        return plain(array.storage)
    return next((convert(array) for holds, convert in _PLAIN if holds(array.type)), array)


def _is_list(arrow: pa.DataType) -> bool:
    return any(holds(arrow) for holds in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _plain_list(array: pa.Array) -> pa.Array:
    return lists(array, plain(array.flatten()))


def lists(array: pa.Array, elements: pa.Array) -> pa.Array:
    # Flattening removed values under nulls and outside of a slice.
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(offsets, elements, mask=array.is_null())


def is_before(array: pa.Array, day: date) -> bool:
    """Whether any of the days and times of an array is before this day."""
    if isinstance(array, pa.ChunkedArray):
        return any(is_before(each, day) for each in array.chunks)
    if pa.types.is_nested(array.type):
        return any(is_before(each, day) for each in _elements(array))
    if not (pa.types.is_date(array.type) or pa.types.is_timestamp(array.type)):
        return False
    days = day.toordinal() - date(1970, 1, 1).toordinal()
    least = pc.min(array.cast(pa.int32() if pa.types.is_date(array.type) else pa.int64())).as_py()
    return least is not None and least < (days if pa.types.is_date(array.type) else days * _DAY_US)


_DAY_US = 86_400 * 10**6


def in_microseconds(times: pa.Array) -> pa.Array:
    """Times of the day, rounded half to even, as Postgres does; those outside of a day are still outside."""
    if times.type.unit != "ns":
        return times.cast(pa.time64("us"))
    before_midnight = pc.less(times.cast(pa.int64()), 0)
    return pc.if_else(before_midnight, -1, _rounded(times)).cast(pa.time64("us"))


def _rounded(times: pa.Array) -> pa.Array:
    rounded = half_even(times.cast(pa.int64()).fill_null(0).to_numpy())
    return pa.array(rounded, mask=mask_of(times.is_null()))


def _without_nanoseconds(moments: pa.Array) -> pa.Array:
    """Other units stay: seconds and milliseconds reach beyond the range of microseconds."""
    return _rounded(moments).cast(pa.timestamp("us", moments.type.tz)) if moments.type.unit == "ns" else moments


def half_even(nanoseconds: Indices) -> Indices:
    whole, rest = np.divmod(nanoseconds, 1000)
    rounded: Indices = whole + ((rest > 500) | ((rest == 500) & (whole % 2 == 1)))
    return rounded


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_dictionary, lambda array: plain(array.dictionary_decode())),
    (pa.types.is_large_string, lambda array: array.cast(pa.string())),
    (pa.types.is_string_view, lambda array: array.cast(pa.string())),
    (pa.types.is_large_binary, lambda array: array.cast(pa.binary())),
    (pa.types.is_binary_view, lambda array: array.cast(pa.binary())),
    (pa.types.is_float16, lambda array: array.cast(pa.float32())),
    (pa.types.is_timestamp, _without_nanoseconds),
    (_is_list, _plain_list),
)


def exact_times(values: pa.Array, seconds: pa.Array, nanoseconds: pa.Array) -> pa.Array:
    """Round times like other times; seconds reach any day, and nanoseconds overflow."""
    if _is_list(seconds.type):
        return lists(seconds, exact_times(values.flatten(), seconds.flatten(), nanoseconds.flatten()))
    if not pa.types.is_timestamp(seconds.type):
        return values
    whole, wrapped = (each.cast(pa.int64()).fill_null(0).to_numpy() for each in (seconds, nanoseconds))
    # Nanoseconds overflow, and the difference to whole seconds overflows in the same way.
    rounded = whole * 10**6 + half_even(wrapped - whole * 10**9)
    # The last microsecond values are beyond every calendar.
    rounded[np.abs(whole) > _SECONDS_MAX] = np.iinfo(np.int64).max
    return pa.array(rounded, mask=mask_of(seconds.is_null())).cast(pa.timestamp("us", seconds.type.tz))


#: More seconds than this do not fit into microseconds.
_SECONDS_MAX = 2**63 // 10**6 - 1
