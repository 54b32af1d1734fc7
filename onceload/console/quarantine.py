"""Quarantined records of a pipeline: their kinds, and the records with the value that is wrong."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from onceload.console.reading import reading
from onceload.quarantined import readable
from onceload_core.errors import SettingRefused
from onceload_core.postgres.connection import Record, statements
from onceload_core.postgres.quarantine import VALUES, KeptRecord, QuarantineId

SQL = statements("quarantine.sql", package=__package__)
PAGE = 50
#: How many of the newest records are counted by their reasons.
_COUNTED_MAX = 20_000
_KINDS_MAX = 20
#: How much of them is taken into memory.
_BYTES_MAX = 64 * 2**20
#: How much of a record is shown.
_RAW_BYTES_MAX = 1_000


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A record, with its text in three parts: the second is the value that is wrong."""

    row: Record
    before: str
    value: str
    after: str
    is_cut: bool


@dataclass(frozen=True, kw_only=True)
class Quarantine:
    kinds: Sequence[Record]
    records: tuple[Shown, ...]
    #: Whether only the newest records were counted.
    is_counted_in_part: bool
    #: Whether there are more kinds.
    are_kinds_cut: bool
    #: The id to continue before, if there are more.
    before: int | None


def quarantine_of(
    engine: Engine, pipeline: str, *, kind: str | None, column: str | None, file: str | None, before: int | None
) -> Quarantine:
    with reading(engine, "the quarantine", pipeline=pipeline) as (connection, pipeline_id):
        binds = {"pipeline_id": pipeline_id, "values": VALUES}
        counted = {"read_at_most": _COUNTED_MAX, "at_most": _KINDS_MAX + 1}
        kinds = connection.execute(SQL["kinds"], binds | counted).all()
        chosen = {
            "kind": kind,
            "column": column,
            "file": file,
            "before": before or 2**63 - 1,
            "raw_bytes_max": _RAW_BYTES_MAX,
        }
        rows = connection.execute(SQL["records"], binds | chosen | {"at_most": PAGE + 1}).all()
    return Quarantine(
        kinds=kinds[:_KINDS_MAX],
        records=tuple(_shown(row) for row in rows[:PAGE]),
        are_kinds_cut=len(kinds) > _KINDS_MAX,
        is_counted_in_part=bool(kinds and kinds[0].read == _COUNTED_MAX),
        before=rows[PAGE - 1].quarantine_id if len(rows) > PAGE else None,
    )


def newest_id(engine: Engine, pipeline: str) -> int:
    """The id of the newest held record; 0 if there is none."""
    with reading(engine, "the quarantine", pipeline=pipeline) as (connection, pipeline_id):
        return int(connection.execute(SQL["newest"], {"pipeline_id": pipeline_id}).scalar_one())


def ids_of_kind(
    engine: Engine, pipeline: str, kind: str, *, column: str | None, file: str | None, seen: int, at_most: int
) -> tuple[QuarantineId, ...]:
    """The held records of this kind, up to the one with the id `seen`, the oldest first."""
    with reading(engine, "the quarantine", pipeline=pipeline) as (connection, pipeline_id):
        binds = {
            "pipeline_id": pipeline_id,
            "values": VALUES,
            "kind": kind,
            "column": column,
            "file": file,
            "seen": seen,
        }
        return tuple(map(QuarantineId, connection.execute(SQL["ids_of_kind"], binds | {"at_most": at_most}).scalars()))


def check_size(records: Sequence[KeptRecord]) -> None:
    """Refuse records that would take too much memory of this process."""
    size = sum(record.raw_bytes for record in records)
    if size > _BYTES_MAX:
        found = f"{size // 2**20:,} MiB"
        expected = f"at most {_BYTES_MAX // 2**20} MiB here (for more, use `onceload quarantine export` and `retry`)"
        raise SettingRefused("these records", found, expected)


def _shown(row: Record) -> Shown:
    is_cut = len(row.raw) < row.raw_bytes
    text = "\n".join(readable(bytes(row.raw), is_cut=is_cut))
    first, end = _place_of(_value_in(row.reason), text)
    return Shown(row=row, before=text[:first], value=text[first:end], after=text[end:], is_cut=is_cut)


def _value_in(reason: str) -> str:
    """The value that a reason quotes last."""
    quoted = [each.group() for each in re.finditer(VALUES, reason)]
    return quoted[-1].strip("'\"") if quoted else ""


def _place_of(value: str, text: str) -> tuple[int, int]:
    """Where the value is in the text; if it is there twice, nowhere, because the other may be meant."""
    first = text.find(value) if value else -1
    return (first, first + len(value)) if first >= 0 and text.count(value) == 1 else (len(text), len(text))
