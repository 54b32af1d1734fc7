"""Read records whose undeclared fields get columns of their own."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared, UnknownFields
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.rows import read_records
from onceload_jobs.write.writer import ColumnsDiffer


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
