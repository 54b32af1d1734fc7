"""Decode a row group of a Parquet file from its bytes and its footer in memory."""

import io
from collections.abc import Collection, Iterator
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from onceload_jobs.files.footers import PARQUET
from onceload_jobs.formats.casts import one_array
from onceload_jobs.formats.chunks import Part, RowGroup
from onceload_jobs.formats.parquet.footers import KIND, damaged
from onceload_jobs.formats.plain_values import BYTES_OF_A_ROW, check_size, exact_times, plain_batches
from onceload_jobs.formats.typed_files import choose_columns, decoding, refuse_extensions
from onceload_jobs.pipeline.declared import UnknownFields

_BATCH_ROWS = 4096


def read_row_group(
    part: Part, *, url: str, names: Collection[str], unknown_fields: UnknownFields
) -> tuple[pa.Table, tuple[str, ...]]:
    """The wanted columns, and the names of undeclared ones."""
    if part.row_group is None:
        raise ValueError("bytes of a Parquet file without their row group")
    with decoding(url, kind=KIND):
        return _read(part, part.row_group, url, names=names, unknown_fields=unknown_fields)


def _read(
    part: Part, group: RowGroup, url: str, *, names: Collection[str], unknown_fields: UnknownFields
) -> tuple[pa.Table, tuple[str, ...]]:
    file = _opened(part, group, unit="us")
    found = file.schema_arrow.names
    wanted, undeclared = choose_columns(found, url=url, names=names, unknown_fields=unknown_fields)
    refuse_extensions(url, file.schema_arrow, wanted)
    rows = group.end - group.first
    check_size(url, BYTES_OF_A_ROW * rows)
    if not wanted:
        return pa.table({"": pa.nulls(rows)}), undeclared
    batches = list(plain_batches(_batches(file, group, wanted), url))
    if (decoded := sum(batch.num_rows for batch in batches)) != rows:
        raise damaged(url, f"a row group holds {decoded} rows, but its footer says {rows}")
    table = _table(batches)
    return (_with_int96(table, part, group, wanted) if _has_int96(file) else table), undeclared


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
    return pq.read_metadata(pa.BufferReader(PARQUET + footer))


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
        table = table.set_column(table.column_names.index(name), name, exact_times(*columns))
    return table
