"""ORC: typed rows, identified by their number in the file; their values mean the same as in Parquet."""

from collections.abc import Collection, Mapping
from datetime import date

import pyarrow as pa

from onceload_jobs.formats.chunks import Part, RowGroup
from onceload_jobs.formats.orc.arrow import read_columns
from onceload_jobs.formats.orc.footers import (
    KIND,
    TIMES,
    TypeKind,
    damaged,
    file_of_stripe,
    has_julian_days,
    schema_of,
    unsupported,
)
from onceload_jobs.formats.orc.times import read_times
from onceload_jobs.formats.parquet.rows import read_plain
from onceload_jobs.formats.plain_values import BYTES_OF_A_ROW, check_size, is_before, plain_batches
from onceload_jobs.formats.records import Records
from onceload_jobs.formats.typed_files import choose_columns, decoding
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields

#: The first day of the Gregorian calendar.
GREGORIAN = date(1582, 10, 15)
#: What each value takes while a stripe is decoded.
_BYTES_OF_A_VALUE = 8


def read_orc(part: Part, *, url: str, columns: tuple[Column, ...], unknown_fields: UnknownFields) -> Records:
    """Read the rows of a stripe, only from the bytes in memory."""
    names = [column.name for column in columns]
    found = read_stripe(part, url=url, names=names, unknown_fields=unknown_fields)
    return read_plain(*found, part=part, columns=columns, unknown_fields=unknown_fields)


def read_stripe(
    part: Part, *, url: str, names: Collection[str], unknown_fields: UnknownFields
) -> tuple[pa.Table, tuple[str, ...]]:
    """The wanted columns, and the names of undeclared ones."""
    group = part.row_group
    if group is None:
        raise ValueError("bytes of an ORC file without their stripe")
    schema, rows = schema_of(group.footer), group.end - group.first
    wanted, undeclared = choose_columns(schema.names, url=url, names=names, unknown_fields=unknown_fields)
    kinds = {name: found for name, found in zip(schema.names, schema.kinds, strict=True) if name in wanted}
    check_size(url, rows * (BYTES_OF_A_ROW + _BYTES_OF_A_VALUE * sum(map(len, kinds.values()))))
    if unions := [name for name, found in kinds.items() if TypeKind.UNION in found]:
        raise unsupported(url, f"a union in the column {unions[0]!r}")
    if not wanted:
        return pa.table({"": pa.nulls(rows)}), undeclared
    with decoding(url, kind=KIND):
        batch = pa.record_batch(_columns(part.raw, group, wanted, kinds, url=url))
        if batch.num_rows != rows:
            raise damaged(url, f"a stripe holds {batch.num_rows} rows, but its footer says {rows}")
        table = pa.Table.from_batches(plain_batches([batch], url))
    if has_julian_days(group.footer) and any(is_before(each, GREGORIAN) for each in table.itercolumns()):
        raise unsupported(url, "days of the Julian calendar, before 1582-10-15")
    return table, undeclared


def _columns(
    raw: bytes, group: RowGroup, wanted: list[str], kinds: Mapping[str, tuple[int, ...]], *, url: str
) -> dict[str, pa.Array]:
    of_time = [name for name in wanted if not TIMES.isdisjoint(kinds[name])]
    columns = dict[str, pa.Array]()
    if others := [name for name in wanted if name not in of_time]:
        batch = read_columns(file_of_stripe(group, raw), others)
        columns |= zip(others, batch.columns, strict=True)
    if of_time:
        columns |= zip(of_time, read_times(raw, group, of_time, url=url), strict=True)
    return {name: columns[name] for name in wanted}
