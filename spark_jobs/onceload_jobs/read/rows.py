"""Read the rows of parts with the reader of their format."""

from collections.abc import Sequence

import pyarrow as pa

from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.fixed.rows import read_fixed
from onceload_jobs.formats.json.rows import read_json
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import LINEAGE, Column, arrow_schema
from onceload_jobs.pipeline.declared import Declared, Format
from onceload_jobs.read.checked_parts import ReadPart


def read_records(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
    """All records of some parts."""
    # An element of a JSON array may have no byte of its own, and goes to quarantine.
    there = [each for each in parts if each.part.raw or (each.part.row_group and declared.source.format is Format.JSON)]
    if not there:
        return Records(rows=_schema(columns).empty_table())
    match declared.source.format:
        case Format.JSONL:
            return read_jsonl(
                [each.part for each in there],
                columns,
                declared=declared.field_names,
                unknown_fields=declared.unknown_fields,
                record_bytes_max=declared.source.record_bytes_max,
            )
        case Format.CSV:
            # Files with the same column names are parsed together.
            headers = sorted({each.chunk.header for each in there})
            some = [_read_csv(declared, columns, there, header) for header in headers]
        case Format.FIXED:
            return read_fixed(
                [each.part for each in there],
                columns,
                options=declared.source.fixed,
                unknown_fields=declared.unknown_fields,
                record_bytes_max=declared.source.record_bytes_max,
            )
        case Format.JSON:
            return read_json(
                [(each.chunk.url, each.part) for each in there],
                columns,
                declared=declared.field_names,
                unknown_fields=declared.unknown_fields,
                record_bytes_max=declared.source.record_bytes_max,
            )
        case Format.PARQUET:
            some = [
                read_parquet(each.part, url=each.chunk.url, columns=columns, unknown_fields=declared.unknown_fields)
                for each in there
            ]
    return some[0] if len(some) == 1 else _joined(some)


def _read_csv(
    declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart], header: tuple[str, ...]
) -> Records:
    return read_csv(
        [each.part for each in parts if each.chunk.header == header],
        columns,
        header=header,
        options=declared.source.csv,
        unknown_fields=declared.unknown_fields,
        record_bytes_max=declared.source.record_bytes_max,
    )


def _joined(some: Sequence[Records]) -> Records:
    unknown = {column.name: column for each in some for column in each.unknown}
    return Records(
        rows=pa.concat_tables([each.rows for each in some]),
        bad=tuple(bad for each in some for bad in each.bad),
        unknown=tuple(unknown.values()),
        ignored=sum((each.ignored for each in some), Ignored()),
    )


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([*arrow_schema(columns), *LINEAGE])
