"""Read files of each format whose values have types, group by group."""

from pathlib import Path
from typing import Any

from onceload_jobs.formats.avro.rows import read_avro
from onceload_jobs.formats.orc.rows import read_orc
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import SEQUENCE, parse_column
from onceload_jobs.pipeline.declared import Format, UnknownFields
from tests.typed_files import parts_of

READERS = {Format.PARQUET: read_parquet, Format.ORC: read_orc, Format.AVRO: read_avro}


def read_groups(
    path: Path, of_format: Format, *, unknown_fields: UnknownFields = UnknownFields.IGNORE, **declared: Any
) -> list[Records]:
    columns = tuple(parse_column(name, of_type) for name, of_type in declared.items())
    return [
        READERS[of_format](part, url=str(path), columns=columns, unknown_fields=unknown_fields)
        for part in parts_of(path, of_format)
    ]


def read_file(path: Path, of_format: Format, **declared: Any) -> dict[int, object]:
    """All rows and bad records by their ids."""
    found: dict[int, object] = {}
    for records in read_groups(path, of_format, **declared):
        records.rows.validate(full=True)
        found |= {row[SEQUENCE]: repr(row) for row in records.rows.to_pylist()}
        found |= {bad.sequence_id: bad for bad in records.bad}
    return found


def values_of(path: Path, of_format: Format, declared: str, **options: UnknownFields) -> list[object]:
    """The values of the column `a`, all of which are good."""
    groups = read_groups(path, of_format, a=declared, **options)
    assert not any(records.bad for records in groups)
    return [value for records in groups for value in records.rows.column("a").to_pylist()]
