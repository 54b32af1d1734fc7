"""Read the rows of parts with the reader of their format."""

from collections.abc import Iterable, Sequence
from typing import Protocol

import pyarrow as pa

from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.fixed.rows import read_fixed
from onceload_jobs.formats.json.rows import read_json
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.orc.rows import read_orc
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Records
from onceload_jobs.formats.typed_files import not_too_deep
from onceload_jobs.pipeline.columns import LINEAGE, Column, arrow_schema
from onceload_jobs.pipeline.declared import Declared, Format, UnknownFields
from onceload_jobs.read.checked_parts import ReadPart


def read_records(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
    """All records of some parts."""
    # An element of a JSON array may have no byte of its own, and goes to quarantine.
    there = [each for each in parts if each.part.raw or (each.part.row_group and declared.source.format is Format.JSON)]
    return _read(declared, columns, there) if there else Records(rows=_schema(columns).empty_table())


def _read(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
    """The records of parts in the format of the source."""
    match declared.source.format:
        case Format.JSONL:
            return read_jsonl(
                [each.part for each in parts],
                columns,
                declared=declared.field_names,
                unknown_fields=declared.unknown_fields,
                record_bytes_max=declared.source.record_bytes_max,
            )
        case Format.CSV:
            return _read_csv(declared, columns, parts)
        case Format.FIXED:
            return read_fixed(
                [each.part for each in parts],
                columns,
                options=declared.source.fixed,
                unknown_fields=declared.unknown_fields,
                record_bytes_max=declared.source.record_bytes_max,
            )
        case Format.JSON:
            return read_json(
                [(each.chunk.url, each.part) for each in parts],
                columns,
                declared=declared.field_names,
                unknown_fields=declared.unknown_fields,
                record_bytes_max=declared.source.record_bytes_max,
            )
        case Format.PARQUET | Format.ORC | Format.AVRO as of_format:
            return joined(_read_typed(of_format, each, columns, declared.unknown_fields) for each in parts)


class _TypedReader(Protocol):
    def __call__(
        self, part: Part, *, url: str, columns: tuple[Column, ...], unknown_fields: UnknownFields
    ) -> Records: ...


def _read_typed(
    of_format: Format, each: ReadPart, columns: tuple[Column, ...], unknown_fields: UnknownFields
) -> Records:
    url, read = each.chunk.url, _typed_reader(of_format)
    with not_too_deep(url, kind=of_format.proper_name):
        return read(each.part, url=url, columns=columns, unknown_fields=unknown_fields)


def _typed_reader(of_format: Format) -> _TypedReader:
    match of_format:
        case Format.ORC:
            return read_orc
        case Format.AVRO:
            # Its library is an extra.
            from onceload_jobs.formats.avro.rows import read_avro

            return read_avro
        case _:
            return read_parquet


def _read_csv(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
    """Files with the same column names are parsed together."""
    return joined(
        read_csv(
            [each.part for each in parts if each.chunk.header == header],
            columns,
            header=header,
            options=declared.source.csv,
            unknown_fields=declared.unknown_fields,
            record_bytes_max=declared.source.record_bytes_max,
        )
        for header in sorted({each.chunk.header for each in parts})
    )


def joined(groups: Iterable[Records]) -> Records:
    """The records of some groups, of which there is at least one."""
    some = tuple(groups)
    if len(some) == 1:
        return some[0]
    unknown = {column.name: column for each in some for column in each.unknown}
    return Records(
        rows=pa.concat_tables([each.rows for each in some]),
        bad=tuple(bad for each in some for bad in each.bad),
        unknown=tuple(unknown.values()),
        ignored=sum((each.ignored for each in some), Ignored()),
    )


def _schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([*arrow_schema(columns), *LINEAGE])
