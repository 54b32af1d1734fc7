"""Parquet: typed rows, identified by their number in the file.

A cast that Arrow calls safe is used as it is. Everything else goes through the text of the value, so that the rules of
the other formats apply: a double becomes a numeric by its shortest digits, never by rounding.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.casts import (
    DIGITS_MAX,
    CastColumns,
    breaks_contract,
    cast_texts,
    mask_of,
    numerics,
    one_array,
    rows_of,
)
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.parquet.row_groups import read_row_group
from onceload_jobs.formats.parquet.scalars import UnreadableValue, as_python, reader_of
from onceload_jobs.formats.parquet.values import FLOATS, converted, kept_form
from onceload_jobs.formats.plain_values import in_microseconds, lists
from onceload_jobs.formats.records import Indices, Mask, Origins, RecordRefused, Records, ValueRefused
from onceload_jobs.formats.tiers import declared_value, may_be_added, read_in_tiers
from onceload_jobs.pipeline.columns import INTEGERS, PRECISION_MAX, Column, ColumnType, Kind, arrow_schema, arrow_type
from onceload_jobs.pipeline.declared import UnknownFields


def read_parquet(part: Part, *, url: str, columns: tuple[Column, ...], unknown_fields: UnknownFields) -> Records:
    """Read the rows of a row group, only from the bytes in memory."""
    names = [column.name for column in columns]
    found = read_row_group(part, url=url, names=names, unknown_fields=unknown_fields)
    return read_plain(*found, part=part, columns=columns, unknown_fields=unknown_fields)


def read_plain(
    table: pa.Table,
    undeclared: tuple[str, ...],
    *,
    part: Part,
    columns: tuple[Column, ...],
    unknown_fields: UnknownFields,
) -> Records:
    """The rows of a part in a table of plain values; of undeclared columns, it may hold nothing but the names."""
    refusal = _refusal(undeclared, unknown_fields)
    reader = _Reader(table, columns, refusal=refusal)
    origins = Origins(
        producer_ids=np.full(table.num_rows, part.producer_id, np.int64),
        sequence_ids=np.arange(part.first, part.end),
        raw=reader.raw,
    )
    suspects = np.full(table.num_rows, refusal is not None)
    records = read_in_tiers(origins, columns, suspects=suspects, read_many=reader.read_many, read_one=reader.read_one)
    if unknown_fields is UnknownFields.IGNORE:
        ignored = Ignored.of(dict.fromkeys(undeclared, table.num_rows), records=table.num_rows)
        return replace(records, ignored=ignored)
    if unknown_fields is not UnknownFields.ADD or not records.rows.num_rows:
        return records
    return replace(records, unknown=_unknown(table, undeclared))


def _refusal(undeclared: tuple[str, ...], unknown_fields: UnknownFields) -> RecordRefused | None:
    for name in undeclared:
        if unknown_fields is UnknownFields.FAIL:
            return RecordRefused(f"the field {name!r} is not declared", column=name)
        if unknown_fields is UnknownFields.ADD and not may_be_added(name):
            return RecordRefused(f"the field {name!r} cannot be the name of a column")
    return None


def _unknown(table: pa.Table, undeclared: tuple[str, ...]) -> tuple[Column, ...]:
    filled = (name for name in undeclared if table.column(name).null_count < table.num_rows)
    return tuple(Column(name=name, type=_type_for(table.schema.field(name).type)) for name in filled)


def _type_for(arrow: pa.DataType) -> ColumnType:
    if pa.types.is_decimal(arrow) and arrow.precision <= PRECISION_MAX and 0 <= arrow.scale <= arrow.precision:
        return ColumnType(kind=Kind.NUMERIC, precision=arrow.precision, scale=arrow.scale)
    if pa.types.is_uint64(arrow):
        return ColumnType(kind=Kind.NUMERIC, precision=20, scale=0)
    if pa.types.is_timestamp(arrow):
        return ColumnType(kind=Kind.TIMESTAMPTZ if arrow.tz else Kind.TIMESTAMP)
    for holds, kind in _KINDS:
        if holds(arrow):
            return ColumnType(kind=kind)
    return ColumnType(kind=Kind.JSONB)


_KINDS: tuple[tuple[Callable[[pa.DataType], bool], Kind], ...] = (
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_integer, Kind.BIGINT),
    (pa.types.is_floating, Kind.DOUBLE),
    (pa.types.is_string, Kind.TEXT),
    (pa.types.is_decimal, Kind.TEXT),
    (pa.types.is_date, Kind.DATE),
    (pa.types.is_time, Kind.TIME),
    (pa.types.is_binary, Kind.BYTEA),
    (pa.types.is_fixed_size_binary, Kind.BYTEA),
)


class _Reader:
    def __init__(self, table: pa.Table, columns: tuple[Column, ...], *, refusal: RecordRefused | None) -> None:
        self._table = table
        self._columns = columns
        self._refusal = refusal

    def raw(self, index: int) -> bytes:
        types = {column.name: column.type for column in self._columns}
        fields = self._row(index).items()
        written = (
            f"{json.dumps(name, ensure_ascii=False)}:{kept_form(value, types.get(name))}" for name, value in fields
        )
        return f"{{{','.join(written)}}}".encode(errors="backslashreplace")

    def read_many(self, group: Indices) -> CastColumns | None:
        rows = self._table if len(group) == self._table.num_rows else self._table.take(pa.array(group))
        doubted, arrays = np.zeros(len(group), np.bool_), []
        for column in self._columns:
            array, unread = self._cast(rows, column)
            doubted |= unread | breaks_contract(array, column)
            arrays.append(array)
        return CastColumns(rows=pa.Table.from_arrays(arrays, schema=arrow_schema(self._columns)), doubted=doubted)

    def read_one(self, index: int) -> list[object]:
        if self._refusal is not None:
            raise self._refusal
        row = self._row(index)
        return [
            declared_value(column, partial(converted, row.get(column.name), column.type)) for column in self._columns
        ]

    def _cast(self, rows: pa.Table, column: Column) -> tuple[pa.Array, Mask]:
        if column.name not in rows.column_names:
            return pa.nulls(len(rows), arrow_type(column.type)), np.zeros(len(rows), np.bool_)
        return _cast(one_array(rows.column(column.name)), column.type)

    def _row(self, index: int) -> dict[str, object]:
        return {name: as_python(self._table.column(name)[index]) for name in self._table.column_names if name}


def _cast(array: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    """Cast a whole column; where Arrow's rules differ, cast value by value."""
    if column_type.is_array and pa.types.is_list(array.type):
        elements, refused = _cast(array.flatten(), column_type.element)
        return lists(array, elements).cast(arrow_type(column_type)), rows_of(refused, array)
    if pa.types.is_string(array.type):
        broken = _not_utf8(array)
        if broken.any():
            array = pc.if_else(pa.array(broken), pa.scalar(None, pa.string()), array)
        is_text = column_type.kind in (Kind.TEXT, Kind.VARCHAR) and not column_type.is_array
        values, refused = (array, broken) if is_text else cast_texts(array, column_type)
        return values, refused | broken
    if pa.types.is_time(array.type):
        array = in_microseconds(array)
    try:
        values = None if column_type.is_array else _cast_at_once(array, column_type)
    except pa.ArrowException:
        values = None
    return _cast_one_by_one(array, column_type) if values is None else (values, _lost(array, values))


def _cast_at_once(array: pa.Array, column_type: ColumnType) -> pa.Array | None:
    target = arrow_type(column_type)
    if any(holds(array.type) and column_type.kind in kinds for holds, kinds in _CAST_ALIKE):
        return None if _has_more_digits(array, column_type) else array.cast(target)
    if pa.types.is_decimal(array.type) and column_type.kind is Kind.NUMERIC:
        return _rescaled(array, target)
    if pa.types.is_timestamp(array.type):
        if column_type.kind is Kind.TIMESTAMPTZ:
            return array.cast(target)
        clock = pc.local_timestamp(array) if array.type.tz else array
        return clock.cast(target) if column_type.kind in (Kind.TIMESTAMP, Kind.DATE) else None
    if pa.types.is_integer(array.type) or pa.types.is_floating(array.type):
        # The shortest digits of a number are its intended value.
        return numerics(array.cast(pa.string()), target) if column_type.kind is Kind.NUMERIC else None
    return None


def _has_more_digits(array: pa.Array, column_type: ColumnType) -> bool:
    """Whether the shortest digits of a number, which are its intended value, may be those of another integer."""
    if column_type.kind not in INTEGERS or not pa.types.is_floating(array.type):
        return False
    largest = pc.max(pc.abs(array)).as_py() or 0
    return not largest <= _EXACT_MAX.get(array.type, 0)


#: Up to these, integers are exact.
_EXACT_MAX = {pa.float64(): 2**53, pa.float32(): 2**24}


def _rescaled(decimals: pa.Array, target: pa.DataType) -> pa.Array | None:
    """Change the scale, through a type with room for all digits."""
    found = decimals.type
    if found.precision + max(0, target.scale - found.scale) > DIGITS_MAX:
        return None
    return decimals.cast(pa.decimal256(DIGITS_MAX, target.scale)).cast(target)


#: Where Arrow's safe cast equals the slow tier.
_CAST_ALIKE: tuple[tuple[Callable[[pa.DataType], bool], tuple[Kind, ...]], ...] = (
    (pa.types.is_boolean, (Kind.BOOLEAN, Kind.TEXT)),
    (pa.types.is_integer, (*INTEGERS, Kind.TEXT)),
    (pa.types.is_floating, (*INTEGERS, *FLOATS)),
    (pa.types.is_decimal, INTEGERS),
    (pa.types.is_date, (Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)),
    (pa.types.is_time, (Kind.TIME,)),
    (pa.types.is_binary, (Kind.BYTEA,)),
    (pa.types.is_fixed_size_binary, (Kind.BYTEA,)),
    (lambda arrow: arrow == pa.binary(16), (Kind.UUID,)),
)


def _lost(array: pa.Array, values: pa.Array) -> Mask:
    """Which values a "safe" cast changed: times cut from dates, and numbers that became infinite or zero."""
    if pa.types.is_floating(values.type) and pa.types.is_floating(array.type):
        made_infinite = pc.and_(pc.is_inf(values), pc.invert(pc.is_inf(array)))
        made_zero = pc.and_(pc.equal(values, 0), pc.not_equal(array, 0))
        return mask_of(pc.or_(made_infinite, made_zero))
    if pa.types.is_date(values.type) and pa.types.is_timestamp(array.type):
        clock = pc.local_timestamp(array) if array.type.tz else array
        return mask_of(pc.not_equal(values.cast(clock.type), clock))
    return np.zeros(len(values), np.bool_)


def _cast_one_by_one(array: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    refused = np.zeros(len(array), np.bool_)
    values, read = list[object](), reader_of(array.type)
    for at, scalar in enumerate(array):
        try:
            values.append(converted(read(scalar), column_type))
        except ValueRefused:
            values.append(None)
            refused[at] = True
    return pa.array(values, arrow_type(column_type)), refused


def _not_utf8(texts: pa.Array) -> Mask:
    broken = np.zeros(len(texts), np.bool_)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        for at, scalar in enumerate(texts):
            broken[at] = isinstance(as_python(scalar), UnreadableValue)
    return broken
