"""Arrow tables in memory, read as the Parquet file that holds them: the values mean the same."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import Part, RowGroup
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields

#: The length of the footer and the mark at the end of a file.
_TAIL_BYTES = 8
#: Of the widest decimal.
_DIGITS_MAX = 76


def read_table(
    table: pa.Table, *, producer_id: ProducerId, columns: tuple[Column, ...], unknown_fields: UnknownFields
) -> Records:
    """Read the rows of a table; they are numbered from 0. Raises an ArrowException for types that Parquet lacks."""
    file = io.BytesIO()
    table = pa.table([_as_parquet_has_it(column) for column in table.columns], names=table.column_names)
    try:
        pq.write_table(table, file, row_group_size=max(1, table.num_rows), compression="none", use_dictionary=False)
    except OSError as error:
        # The file is in memory. It refuses a type that Parquet lacks inside a list or an object.
        raise pa.ArrowInvalid(str(error)) from error
    raw = file.getvalue()
    group = RowGroup(
        number=0,
        first=0,
        end=table.num_rows,
        first_byte=0,
        end_byte=len(raw),
        footer=_footer(raw),
        file_size=len(raw),
    )
    part = Part(producer_id=producer_id, first=0, end=table.num_rows, raw=raw, row_group=group)
    return read_parquet(part, url="the given rows", columns=columns, unknown_fields=unknown_fields)


def _as_parquet_has_it(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The same values in a type that Parquet has."""
    if not pa.types.is_decimal(column.type) or column.type.scale >= 0:
        return _without_dictionary(column)
    digits = column.type.precision - column.type.scale
    return column.cast(pa.decimal256(digits, 0)) if digits <= _DIGITS_MAX else column


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The plain values of categories: Arrow cannot write a dictionary of some types of text."""
    if not pa.types.is_dictionary(column.type):
        return column
    of_values = pa.string() if pa.types.is_string_view(column.type.value_type) else column.type.value_type
    plain = [chunk.dictionary.cast(of_values).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(plain, type=of_values)


def _footer(raw: bytes) -> bytes:
    size = int.from_bytes(raw[-_TAIL_BYTES:-4], "little")
    return raw[-_TAIL_BYTES - size :]
