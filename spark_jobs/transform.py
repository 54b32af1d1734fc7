"""Records as Spark SQL sees them, and what it makes of them as columns of the target."""

from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pyarrow as pa

from dedup_core.errors import SettingRefused
from spark_jobs.columns import Column, ColumnType, Kind, arrow_schema
from spark_jobs.loading import Job
from spark_jobs.sources.records import LINEAGE, PRODUCER_ID, SEQUENCE

_TEXTS = {Kind.UUID, Kind.TIME}


def spark_schema(columns: Sequence[Column]) -> pa.Schema:
    """The view `records`: the declared columns, and the two of the lineage; a uuid and a time are texts."""
    fields = [
        pa.field(field.name, _spark_type(field.type, column.type))
        for field, column in zip(arrow_schema(tuple(columns)), columns, strict=True)
    ]
    return pa.schema([*fields, *LINEAGE])


def for_spark(rows: pa.Table, columns: Sequence[Column]) -> pa.Table:
    for number, column in enumerate(columns):
        if column.type.kind in _TEXTS:
            values = pa.array(
                [_text(value) for value in rows.column(number).to_pylist()], _spark_type(None, column.type)
            )
            rows = rows.set_column(number, column.name, values)
    return rows


def _spark_type(arrow: pa.DataType | None, column_type: ColumnType) -> pa.DataType:
    if column_type.kind not in _TEXTS:
        return arrow
    return pa.list_(pa.string()) if column_type.is_array else pa.string()


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
    """The job that writes what its transform makes; rows have a lineage if the transform hands it on."""
    names = [field.name for field in made if field.name not in (PRODUCER_ID, SEQUENCE)]
    lineage = job.declared.target.lineage and {PRODUCER_ID, SEQUENCE} <= set(made.names)
    declared = {column.name: column for column in job.columns}
    written = tuple(_column(made.field(name), declared.get(name)) for name in names)
    target = replace(job.declared.target, lineage=lineage)
    return replace(job, written=written, declared=replace(job.declared, target=target))


def _column(field: pa.Field, declared: Column | None) -> Column:
    """A text that stands in for a declared type is cast by the server; any other type is Spark's own."""
    made = _type_of(field)
    if declared and declared.type != made and made.kind is Kind.TEXT:
        return Column(name=field.name, type=declared.type, not_null=declared.not_null, as_text=not made.is_array)
    return Column(name=field.name, type=made, not_null=bool(declared and declared.not_null))


def _type_of(field: pa.Field) -> ColumnType:
    arrow, is_array = field.type, pa.types.is_list(field.type)
    element = arrow.value_type if is_array else arrow
    if pa.types.is_decimal128(element):
        return ColumnType(kind=Kind.NUMERIC, precision=element.precision, scale=element.scale, is_array=is_array)
    kind = next((kind for is_of, kind in _KINDS if is_of(element)), None)
    if kind is None:
        raise SettingRefused(
            f"transform: column {field.name}", str(arrow), "a type that Postgres has: CAST it in the SQL"
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
