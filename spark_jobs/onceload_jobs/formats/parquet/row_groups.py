"""Decode a row group of a Parquet file from its bytes and its footer in memory."""

import io
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.fingerprints import MAGIC
from onceload_jobs.formats.casts import mask_of, one_array
from onceload_jobs.formats.chunks import FileRefused, Part, RowGroup
from onceload_jobs.formats.parquet.footers import damaged, unsupported
from onceload_jobs.formats.records import Indices
from onceload_jobs.pipeline.columns import LINEAGE
from onceload_jobs.pipeline.declared import UnknownFields

#: The limit for a row group, which is read as a whole.
UNFOLDED_BYTES_MAX = 2 * 2**30
_BATCH_ROWS = 4096


def read_row_group(
    part: Part, *, url: str, names: Collection[str], unknown_fields: UnknownFields
) -> tuple[pa.Table, tuple[str, ...]]:
    """The wanted columns, and the names of undeclared ones."""
    if part.row_group is None:
        raise ValueError("bytes of a Parquet file without their row group")
    with _decoding(url):
        return _read(part, part.row_group, url, names=names, unknown_fields=unknown_fields)


@contextmanager
def _decoding(url: str) -> Iterator[None]:
    """Distinguish a file that is damaged, or uses an unsupported feature, from a store that fails."""
    with errors_naming(url):
        try:
            yield
        except pa.ArrowNotImplementedError as error:
            raise unsupported(url, f"a feature of Parquet ({_line(error)})") from error
        except (pa.ArrowException, OSError, UnicodeError) as error:
            # Errors about content have no errno, unlike those of the system or a store.
            if isinstance(error, MemoryError) or getattr(error, "errno", None) is not None:
                raise
            raise damaged(url, _line(error)) from error


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _read(
    part: Part, group: RowGroup, url: str, *, names: Collection[str], unknown_fields: UnknownFields
) -> tuple[pa.Table, tuple[str, ...]]:
    file = _opened(part, group, unit="us")
    found = file.schema_arrow.names
    undeclared = tuple(name for name in found if name not in names)
    # A record that is bad because of its fields is kept with all of them.
    wanted = found if unknown_fields is not UnknownFields.IGNORE else [name for name in found if name in names]
    if twice := [name for name, count in Counter(found).items() if count > 1 and name in wanted]:
        which = f"it has several columns called {', '.join(map(repr, twice))}"
        raise FileRefused(url, "a different name for each column", which, "Write it again with other names")
    rows = group.end - group.first
    _check_size(url, _BYTES_OF_A_ROW * rows)
    if not wanted:
        return pa.table({"": pa.nulls(rows)}), undeclared
    batches = list(_plain_batches(file, group, url, wanted))
    if (decoded := sum(batch.num_rows for batch in batches)) != rows:
        raise damaged(url, f"a row group holds {decoded} rows, but its footer says {rows}")
    table = _table(batches)
    return (_with_int96(table, part, group, wanted) if _has_int96(file) else table), undeclared


#: Added to each row to record its origin.
_BYTES_OF_A_ROW = 8 * len(LINEAGE)


def _opened(part: Part, group: RowGroup, *, unit: str) -> pq.ParquetFile:
    """Open the row group as a file; INT96 has no unit of its own."""
    return pq.ParquetFile(
        _Held(part.raw, first=group.first_byte, size=group.file_size),
        metadata=_metadata(group.footer),
        coerce_int96_timestamp_unit=unit,
        page_checksum_verification=True,
        # Read-ahead is not needed.
        pre_buffer=False,
    )


@lru_cache(maxsize=4)
def _metadata(footer: bytes) -> pq.FileMetaData:
    # Arrow expects a footer at the end of the file; a footer without pages is enough.
    return pq.read_metadata(pa.BufferReader(MAGIC + footer))


class _Held(io.RawIOBase):
    """A file of which only one range of bytes is in memory."""

    def __init__(self, raw: bytes, *, first: int, size: int) -> None:
        self._raw, self._first, self._size = raw, first, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int = -1) -> bytes:
        start = self._at - self._first
        block = self._raw[start : None if size < 0 else start + size] if start >= 0 else b""
        self._at += len(block)
        return block


def _batches(file: pq.ParquetFile, group: RowGroup, names: list[str]) -> Iterator[pa.RecordBatch]:
    batches: Iterator[pa.RecordBatch] = file.iter_batches(_BATCH_ROWS, [group.number], names, use_threads=False)
    return batches


def _table(batches: list[pa.RecordBatch]) -> pa.Table:
    table = pa.Table.from_batches(batches)
    return pa.table([one_array(column) for column in table.columns], names=table.column_names)


def _plain_batches(file: pq.ParquetFile, group: RowGroup, url: str, names: list[str]) -> Iterator[pa.RecordBatch]:
    """Values with dictionaries expanded, where few bytes may stand for many values."""
    size = 0
    for batch in _batches(file, group, names):
        size += sum(map(_plain_bytes, batch.columns))
        _check_size(url, size)
        yield pa.record_batch([_plain(column) for column in batch.columns], names=batch.schema.names)


def _check_size(url: str, size: int) -> None:
    if size > UNFOLDED_BYTES_MAX:
        found = f"a row group expands to more than {UNFOLDED_BYTES_MAX / 2**30:g} GiB"
        raise FileRefused(url, "row groups that fit into memory", found, "Write it again with fewer rows in each")


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
    return array.flatten() if pa.types.is_struct(array.type) else [array.flatten()]


_OFFSET_BYTES = 4


def _is_of_bytes(arrow: pa.DataType) -> bool:
    holds = (pa.types.is_string, pa.types.is_binary, pa.types.is_large_string, pa.types.is_large_binary)
    return any(each(arrow) for each in holds)


def _plain(array: pa.Array) -> pa.Array:
    """Convert to plain values: no dictionaries, and time in microseconds."""
    if isinstance(array, pa.ExtensionArray):
        return _plain(array.storage)
    return next((plain(array) for holds, plain in _PLAIN if holds(array.type)), array)


def _is_list(arrow: pa.DataType) -> bool:
    return any(holds(arrow) for holds in (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list))


def _plain_list(array: pa.Array) -> pa.Array:
    return lists(array, _plain(array.flatten()))


def lists(array: pa.Array, elements: pa.Array) -> pa.Array:
    # Flattening removed values under nulls and outside of a slice.
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy()
    offsets = pa.array(np.cumsum([0, *lengths]), pa.int32())
    return pa.ListArray.from_arrays(offsets, elements, mask=array.is_null())


def _microseconds(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Round half to even, as Postgres does; times beyond the range of microseconds are not changed."""
    if array.type.unit != "ns":
        try:
            return array.cast(target)
        except pa.ArrowInvalid:
            return array
    rounded = _half_even(array.cast(pa.int64()).fill_null(0).to_numpy())
    return pa.array(rounded, mask=mask_of(array.is_null())).cast(target)


def _half_even(nanoseconds: Indices) -> Indices:
    whole, rest = np.divmod(nanoseconds, 1000)
    rounded: Indices = whole + ((rest > 500) | ((rest == 500) & (whole % 2 == 1)))
    return rounded


_PLAIN: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]], ...] = (
    (pa.types.is_dictionary, lambda array: _plain(array.dictionary_decode())),
    (pa.types.is_large_string, lambda array: array.cast(pa.string())),
    (pa.types.is_string_view, lambda array: array.cast(pa.string())),
    (pa.types.is_large_binary, lambda array: array.cast(pa.binary())),
    (pa.types.is_binary_view, lambda array: array.cast(pa.binary())),
    (pa.types.is_float16, lambda array: array.cast(pa.float32())),
    (pa.types.is_timestamp, lambda array: _microseconds(array, pa.timestamp("us", array.type.tz))),
    (pa.types.is_time, lambda array: _microseconds(array, pa.time64("us"))),
    (_is_list, _plain_list),
)


def _has_int96(file: pq.ParquetFile) -> bool:
    return any(file.schema.column(at).physical_type == "INT96" for at in range(len(file.schema)))


def _with_int96(table: pa.Table, part: Part, group: RowGroup, names: list[str]) -> pa.Table:
    """Round INT96 like other times: read it in seconds, which reach any day, and add the nanoseconds."""
    coarse, fine = (_opened(part, group, unit=unit) for unit in ("s", "ns"))
    fields = zip(coarse.schema_arrow, fine.schema_arrow, strict=True)
    # Only the type of INT96 depends on the unit.
    of_unit = [field.name for field, other in fields if field.type != other.type and field.name in names]
    if not of_unit:
        return table
    seconds, nanoseconds = (_table(list(_batches(file, group, of_unit))) for file in (coarse, fine))
    for name in of_unit:
        columns = (one_array(each.column(name)) for each in (table, seconds, nanoseconds))
        table = table.set_column(table.column_names.index(name), name, _int96(*columns))
    return table


def _int96(microseconds: pa.Array, seconds: pa.Array, nanoseconds: pa.Array) -> pa.Array:
    if _is_list(seconds.type):
        return lists(seconds, _int96(microseconds.flatten(), seconds.flatten(), nanoseconds.flatten()))
    if not pa.types.is_timestamp(seconds.type):
        return microseconds
    whole, wrapped = (each.cast(pa.int64()).fill_null(0).to_numpy() for each in (seconds, nanoseconds))
    # Nanoseconds overflow, and the difference to whole seconds overflows in the same way.
    rounded = whole * 10**6 + _half_even(wrapped - whole * 10**9)
    # The last microsecond values are beyond every calendar.
    rounded[np.abs(whole) > _SECONDS_MAX] = np.iinfo(np.int64).max
    return pa.array(rounded, mask=mask_of(seconds.is_null())).cast(pa.timestamp("us", seconds.type.tz))


#: More seconds than this do not fit into microseconds.
_SECONDS_MAX = 2**63 // 10**6 - 1
