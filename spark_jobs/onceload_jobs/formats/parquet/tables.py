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


def as_parquet(table: pa.Table) -> bytes:
    """A Parquet file with the rows of a table. Raises an ArrowException for types that Parquet lacks."""
    file = io.BytesIO()
    table = pa.table([_as_stored(_without_dictionary(column)) for column in table.columns], names=table.column_names)
    try:
        pq.write_table(table, file, row_group_size=max(1, table.num_rows), compression="none", use_dictionary=False)
    except OSError as error:
        # The file is in memory. It refuses a type that Parquet lacks.
        raise pa.ArrowInvalid(str(error)) from error
    return file.getvalue()


def read_given(
    raw: bytes, *, rows: int, producer_id: ProducerId, columns: tuple[Column, ...], unknown_fields: UnknownFields
) -> Records:
    """Read the rows of such a file; they are numbered from 0."""
    group = RowGroup(
        number=0,
        first=0,
        end=rows,
        first_byte=0,
        end_byte=len(raw),
        footer=_footer(raw),
        file_size=len(raw),
    )
    part = Part(producer_id=producer_id, first=0, end=rows, raw=raw, row_group=group)
    return read_parquet(part, url="the given rows", columns=columns, unknown_fields=unknown_fields)


def _without_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The plain values of categories: Arrow cannot write a dictionary of some types of text."""
    if not pa.types.is_dictionary(column.type):
        return column
    of_values = pa.string() if pa.types.is_string_view(column.type.value_type) else column.type.value_type
    plain = [chunk.dictionary.cast(of_values).take(chunk.indices) for chunk in column.chunks]
    return pa.chunked_array(plain, type=of_values)


def _as_stored(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column in a type that Parquet has: its writer would cut and wrap values of others without a word."""
    stored = _stored_type(column.type)
    return column if stored == column.type else column.cast(stored)


def _stored_type(arrow: pa.DataType) -> pa.DataType:
    match arrow:
        case pa.ListType() | pa.LargeListType():
            of_kind = pa.list_ if isinstance(arrow, pa.ListType) else pa.large_list
            return of_kind(_stored_field(arrow.value_field))
        case pa.StructType():
            return pa.struct([_stored_field(arrow.field(at)) for at in range(arrow.num_fields)])
        case pa.MapType():
            return pa.map_(_stored_field(arrow.key_field), _stored_field(arrow.item_field))
        case pa.Decimal128Type() | pa.Decimal256Type() if arrow.scale < 0:
            digits = arrow.precision - arrow.scale
            return pa.decimal256(digits, 0) if digits <= _DIGITS_MAX else arrow
        case _:
            return _STORED.get(arrow, arrow)


def _stored_field(field: pa.Field) -> pa.Field:
    return field.with_type(_stored_type(field.type))


_STORED = {pa.date64(): pa.date32(), pa.time32("s"): pa.time64("us")}


def _footer(raw: bytes) -> bytes:
    size = int.from_bytes(raw[-_TAIL_BYTES:-4], "little")
    return raw[-_TAIL_BYTES - size :]
