"""Tables of Arrow as the content of files whose values have types."""

import io
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro.write import Writer
from pyarrow import orc

from onceload_core.names import ProducerId
from onceload_jobs.files.footers import ORC, fields_of, written
from onceload_jobs.files.reading import read_at
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.orc.footers import ends_of
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.declared import Format

OTHER_FORMATS = (Format.ORC, Format.AVRO)


def content_of(table: pa.Table, of_format: Format, *, rows: int | None = None, **options: Any) -> bytes:
    """With `rows`, so many rows in each row group, stripe or block."""
    match of_format:
        case Format.ORC:
            # Arrow writes nulls of a slice at wrong places.
            firsts = range(0, table.num_rows, rows or max(1, table.num_rows))
            slices = [table.take(pa.array(range(first, min(table.num_rows, first + firsts.step)))) for first in firsts]
            return _orc_of(slices or [table], **options)
        case Format.AVRO:
            return avro_of(avro_schema(table.schema), avro_records(table), rows=rows, **options)
        case _:
            file = io.BytesIO()
            pq.write_table(table, file, row_group_size=rows or max(1, table.num_rows), **options)
            return file.getvalue()


def _orc_of(tables: list[pa.Table], **options: Any) -> bytes:
    """A stripe for each table. Arrow begins another one after many rows only, so files of one are put together."""
    contents = [_orc_of_one_stripe(table, **options) for table in tables]
    tails = [orc.ORCFile(pa.BufferReader(content)).reader.serialized_file_tail() for content in contents]
    body, stripes = ORC, b""
    for content, tail in zip(contents, tails, strict=True):
        for stripe in fields_of(_inside(tail, 2)).get(3, []):
            assert isinstance(stripe, bytes)
            facts = fields_of(stripe)
            first, *sizes = (int(facts.get(field, [0])[-1]) for field in (1, 2, 3, 4))
            stripes += written(3, stripe + written(1, len(body)))
            body += content[first : first + sum(sizes)]
    rows = written(6, sum(table.num_rows for table in tables))
    types = [written(4, each) for each in fields_of(_inside(tails[0], 2))[4]]
    footer = b"".join([written(1, 3), written(2, len(body)), stripes, *types, rows, written(8, 10_000), written(9, 1)])
    return body + ends_of(tails[0], footer)


def _inside(message: bytes, field: int) -> bytes:
    value = fields_of(message)[field][-1]
    assert isinstance(value, bytes)
    return value


def _orc_of_one_stripe(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    orc.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def avro_of(schema: Any, records: list[Any], *, rows: int | None = None, codec: str = "deflate") -> bytes:
    file = io.BytesIO()
    writer = Writer(file, fastavro.parse_schema(schema), codec=codec, sync_interval=2**30)
    for number, record in enumerate(records, start=1):
        writer.write(record)
        if rows and number % rows == 0:
            writer.dump()
    writer.flush()
    return file.getvalue()


def parts_of(path: Path, of_format: Format) -> list[Part]:
    """The parts of a file, as a load reads them."""
    url = str(path)
    return [
        Part(
            producer_id=ProducerId(1),
            first=group.first,
            end=group.end,
            raw=read_at(url, offset=group.first_byte, size=group.bytes),
            row_group=group,
        )
        for group in read_whole_file(of_format, url, size=path.stat().st_size).row_groups
    ]


def avro_schema(schema: pa.Schema) -> dict[str, Any]:
    numbers = count()
    fields = [{"name": field.name, "type": _avro_type(field.type, numbers)} for field in schema]
    return {"type": "record", "name": "row", "fields": fields}


def _avro_type(arrow: pa.DataType, numbers: Iterator[int]) -> Any:
    """All types may be null."""
    return ["null", _avro_type_of_values(arrow, numbers)]


def _avro_type_of_values(arrow: pa.DataType, numbers: Iterator[int]) -> Any:
    return next((of_type(arrow, numbers) for holds, of_type in _AVRO if holds(arrow)), _AVRO_TYPES.get(arrow))


def _avro_record(arrow: pa.DataType, numbers: Iterator[int]) -> Any:
    fields = [{"name": field.name, "type": _avro_type(field.type, numbers)} for field in arrow]
    return {"type": "record", "name": f"of_{next(numbers)}", "fields": fields}


def _avro_time(arrow: pa.DataType) -> Any:
    unit = {"ms": "millis", "us": "micros", "ns": "nanos"}[arrow.unit]
    return {"type": "long", "logicalType": f"{'' if arrow.tz else 'local-'}timestamp-{unit}"}


_AVRO: tuple[tuple[Callable[[pa.DataType], bool], Callable[[pa.DataType, Iterator[int]], Any]], ...] = (
    (pa.types.is_list, lambda arrow, numbers: {"type": "array", "items": _avro_type(arrow.value_type, numbers)}),
    (pa.types.is_map, lambda arrow, numbers: {"type": "map", "values": _avro_type(arrow.item_type, numbers)}),
    (pa.types.is_struct, _avro_record),
    (
        pa.types.is_decimal,
        lambda arrow, _: {
            "type": "bytes",
            "logicalType": "decimal",
            "precision": arrow.precision,
            "scale": arrow.scale,
        },
    ),
    (
        pa.types.is_fixed_size_binary,
        lambda arrow, numbers: {"type": "fixed", "name": f"of_{next(numbers)}", "size": arrow.byte_width},
    ),
    (pa.types.is_timestamp, lambda arrow, _: _avro_time(arrow)),
)
_AVRO_TYPES: dict[pa.DataType, Any] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "bytes",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.time32("ms"): {"type": "int", "logicalType": "time-millis"},
    pa.time64("us"): {"type": "long", "logicalType": "time-micros"},
}


def avro_records(table: pa.Table) -> list[dict[str, Any]]:
    columns = {name: _raw(table.column(name).combine_chunks()) for name in table.column_names}
    return [{name: values[at] for name, values in columns.items()} for at in range(table.num_rows)]


def _raw(array: Any) -> list[Any]:
    """Times as the numbers that are stored, which may be beyond what Python has."""
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    if pa.types.is_temporal(array.type):
        of_size = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return array.cast(of_size).to_pylist()  # type: ignore[no-any-return]
    if pa.types.is_struct(array.type):
        fields = [_raw(each) for each in array.flatten()]
        rows = [dict(zip(array.type.names, values, strict=True)) for values in zip(*fields, strict=True)]
        return [row if there else None for row, there in zip(rows, array.is_valid().to_pylist(), strict=True)]
    if pa.types.is_list(array.type):
        return [None if each is None else _raw(each) for each in (scalar.values for scalar in array)]
    if pa.types.is_map(array.type):
        return [None if each is None else dict(each) for each in array.to_pylist()]
    return array.to_pylist()  # type: ignore[no-any-return]
