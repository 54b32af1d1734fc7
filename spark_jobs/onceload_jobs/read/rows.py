"""Read the rows of parts with the reader of their format, and decide which columns undeclared fields get."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import pyarrow as pa

from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.csv.header import read_header
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.fixed.rows import read_fixed
from onceload_jobs.formats.json.rows import read_json
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.orc.rows import read_orc
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Indices, Records
from onceload_jobs.formats.typed_files import not_too_deep
from onceload_jobs.pipeline.columns import LINEAGE, PRODUCER_ID, SEQUENCE, Column, arrow_schema
from onceload_jobs.pipeline.declared import Declared, Format, UnknownFields
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.write.writer import ColumnsDiffer


def read_records(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
    """All records of some parts, in the format of the source."""
    # An element of a JSON array may have no byte of its own, and goes to quarantine.
    parts = [each for each in parts if each.part.raw or (each.part.row_group and declared.source.format is Format.JSON)]
    if not parts:
        return Records(rows=pa.schema([*arrow_schema(columns), *LINEAGE]).empty_table())
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


def _read_typed(
    of_format: Format, each: ReadPart, columns: tuple[Column, ...], unknown_fields: UnknownFields
) -> Records:
    read, url = read_parquet, each.chunk.url
    if of_format is Format.ORC:
        read = read_orc
    elif of_format is Format.AVRO:
        # Its library is an extra.
        from onceload_jobs.formats.avro.rows import read_avro

        read = read_avro
    with not_too_deep(url, kind=of_format.proper_name):
        return read(each.part, url=url, columns=columns, unknown_fields=unknown_fields)


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


def read_adding(
    declared: Declared,
    columns: tuple[Column, ...],
    parts: Sequence[ReadPart],
    differing: ColumnsDiffer | None,
    *,
    read: Callable[[Declared, tuple[Column, ...], Sequence[ReadPart]], Records] = read_records,
) -> tuple[Records, tuple[Column, ...]]:
    """All records of some parts, and the columns that the table needs for undeclared fields."""
    records = read(declared, columns, parts)
    if not records.unknown:
        return records, ()
    added = records.unknown if differing is None else differing.settled(records.unknown)
    without_place = {column.name for column in records.unknown} - {column.name for column in added}
    if without_place:
        declared = replace(declared, unknown_fields=UnknownFields.FAIL)
    records = read(declared, columns + added, parts)
    bad = (
        replace(each, reason=f"{each.reason}, and the table has no room for another column")
        if each.column in without_place
        else each
        for each in records.bad
    )
    return replace(records, bad=tuple(bad), unknown=()), added


def header_of(declared: Declared, url: str) -> tuple[str, ...]:
    """The names of the columns of a complete file, if it is CSV."""
    if declared.source.format is not Format.CSV:
        return ()
    if not declared.source.csv.header:
        return declared.column_names
    return read_header(url, declared.source.csv, sealed=True) or ()


def lineage_of(rows: pa.Table) -> tuple[Indices, ...]:
    """The producer and the sequence id of each row."""
    return tuple(rows.column(name).to_numpy() for name in (PRODUCER_ID, SEQUENCE))
