"""Records in the form of Spark SQL, and its output as columns of the target."""

from collections.abc import Sequence
from functools import partial
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from onceload_core.errors import SettingRefused
from onceload_jobs.batch.job import HALF_A_NAME, Job, TransformRefused, lineage_refused, writing_columns
from onceload_jobs.formats.casts import cast_columns, one_array
from onceload_jobs.formats.records import RecordRefused
from onceload_jobs.formats.tiers import declared_value
from onceload_jobs.formats.values import from_text
from onceload_jobs.pipeline.columns import (
    LINEAGE,
    PRODUCER_ID,
    SEQUENCE,
    Column,
    ColumnType,
    Kind,
    arrow_schema,
    arrow_type,
)

#: How many rows Spark gets at a time.
BATCH_ROWS = 65_536
_TEXTS = {Kind.UUID, Kind.TIME}


def spark_schema(columns: Sequence[Column]) -> pa.Schema:
    """The schema of the view `records`: the declared and the lineage columns; uuids and times are texts."""
    fields = [
        pa.field(field.name, _spark_type(field.type, column.type))
        for field, column in zip(arrow_schema(tuple(columns)), columns, strict=True)
    ]
    return pa.schema([*fields, *LINEAGE])


def for_spark(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    for number, column in enumerate(columns):
        if column.type.kind in _TEXTS:
            values = [_text(value) for value in rows.column(number).to_pylist()]
            arrow = _spark_type(rows.schema.field(number).type, column.type)
            rows = rows.set_column(number, column.name, pa.array(values, arrow))
    return rows


def _spark_type(arrow: pa.DataType, column_type: ColumnType) -> pa.DataType:
    is_text = column_type.kind in _TEXTS
    if not column_type.is_array:
        return pa.string() if is_text else arrow
    # Spark names the values of lists, and may compare the schemas.
    return pa.list_(pa.field("element", pa.string() if is_text else arrow.value_type))


def _text(value: object) -> object:
    match value:
        case list():
            return [_text(each) for each in value]
        case bytes():
            return str(UUID(bytes=value))
        case None:
            return None
        case _:
            return str(value)


def with_output(job: Job, made: pa.Schema) -> Job:
    """The job that writes the output of its transform; rows have a lineage if the transform keeps it."""
    if twice := sorted({name for name in made.names if made.names.count(name) > 1}):
        raise SettingRefused("transform", f"more than one column {', '.join(twice)}", "one name for each column")
    names = [name for name in made.names if name not in (PRODUCER_ID, SEQUENCE)]
    has_lineage = {PRODUCER_ID, SEQUENCE} <= set(made.names)
    for name in (PRODUCER_ID, SEQUENCE):
        if name in made.names and not pa.types.is_int64(made.field(name).type):
            raise SettingRefused("transform", f"{name} of another type", f"{name} as it is in records, a bigint")
    declared = {column.name: column for column in job.columns}
    columns = [_column(made.field(name), declared.get(name)) for name in names]
    return writing_columns(job, columns, has_lineage=has_lineage)


def _column(field: pa.Field, declared: Column | None) -> Column:
    """Text is accepted for any declared type and parsed; any other type is Spark's own."""
    made = _type_of(field)
    if declared and made.kind is Kind.TEXT and (declared.type.is_array or not made.is_array):
        return declared
    return Column(name=field.name, type=made, not_null=bool(declared and declared.not_null))


def as_declared(rows: pa.Table, job: Job) -> pa.Table:
    """Parse the texts of a transform like those of files: nothing is cut or rounded."""
    pipeline = job.declared.name
    if job.has_lineage and _has_half_a_lineage(rows):
        raise lineage_refused(job, HALF_A_NAME)
    for column in job.written:
        at = rows.schema.get_field_index(column.name)
        if column.not_null and rows.column(at).null_count:
            reason = "null, but declared not null or used by target.key"
            raise TransformRefused(pipeline, f"column {column.name}: {reason}")
        if _is_text(rows.schema.field(at).type):
            try:
                values = _read_texts(one_array(rows.column(at)), column)
            except RecordRefused as refused:
                raise TransformRefused(pipeline, f"column {column.name}: {refused}") from None
            rows = rows.set_column(at, column.name, values)
    return rows


def _has_half_a_lineage(rows: pa.Table) -> bool:
    of_no_file, of_no_place = (pc.is_null(rows.column(name)) for name in (PRODUCER_ID, SEQUENCE))
    return bool(pc.any(pc.xor(of_no_file, of_no_place)).as_py())


def _is_text(arrow: pa.DataType) -> bool:
    return bool(pa.types.is_string(arrow.value_type if pa.types.is_list(arrow) else arrow))


def _read_texts(texts: pa.Array, column: Column) -> pa.Array:
    cast = cast_columns([texts], (column,), count=len(texts))
    if not cast.doubted.any():
        return cast.rows.column(0)
    read = [declared_value(column, partial(_value, text, column.type)) for text in texts.to_pylist()]
    return pa.array(read, arrow_type(column.type))


def _value(text: object, column_type: ColumnType) -> object:
    match text:
        case str():
            return from_text(text, column_type)
        case list():
            return [_value(each, column_type.element) for each in text]
        case _:
            return None


def _type_of(field: pa.Field) -> ColumnType:
    arrow, is_array = field.type, pa.types.is_list(field.type)
    element = arrow.value_type if is_array else arrow
    if pa.types.is_decimal128(element):
        return ColumnType(kind=Kind.NUMERIC, precision=element.precision, scale=element.scale, is_array=is_array)
    kind = next((kind for is_of, kind in _KINDS if is_of(element)), None)
    if kind is None:
        raise SettingRefused(
            f"transform: column {field.name}", str(arrow), "a type that Postgres has (use CAST in the SQL)"
        )
    return ColumnType(kind=kind, is_array=is_array)


_KINDS = (
    (pa.types.is_string, Kind.TEXT),
    (pa.types.is_large_string, Kind.TEXT),
    (pa.types.is_boolean, Kind.BOOLEAN),
    (pa.types.is_int8, Kind.SMALLINT),
    (pa.types.is_int16, Kind.SMALLINT),
    (pa.types.is_int32, Kind.INTEGER),
    (pa.types.is_int64, Kind.BIGINT),
    (pa.types.is_float32, Kind.REAL),
    (pa.types.is_float64, Kind.DOUBLE),
    (pa.types.is_date, Kind.DATE),
    (lambda arrow: pa.types.is_timestamp(arrow) and arrow.tz is None, Kind.TIMESTAMP),
    (pa.types.is_timestamp, Kind.TIMESTAMPTZ),
    (pa.types.is_binary, Kind.BYTEA),
)
