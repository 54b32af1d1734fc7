"""The quarantine as people look at it: which records it holds, why, and what became of them.

The ledger is authoritative: a record is held until one commit settles it, and then for good. What is read here may be
settled a moment later, so that whoever acts on it is checked again by `PostgresLedger.settle`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import NewType

from sqlalchemy import Engine

from dedup_core.errors import NotFound
from dedup_core.names import Position, ProducerId
from dedup_core.ports import QuarantineState
from dedup_core.postgres.commit import get_pipeline
from dedup_core.postgres.connection import Record, array, in_batches, statements, translated

SQL = statements("quarantine.sql")
QuarantineId = NewType("QuarantineId", int)
_RECORDS_PER_READ = 1_000
_RAW_BYTES_MAX = 2**31 - 1
#: What makes two reasons of one kind differ: a value as Python or the server quotes it, or a number that stands alone.
#: The server reads this pattern too, and takes the longest match where Python takes the first one that it finds.
VALUES = (
    r"""'(?:[^'\\]|\\.)*'|^"(?:[^"\\]|\\.)*"|(?<=: )"[^"]*"$"""
    r"""|(?<![\w("'-])[-+]?\d[\d.eE+-]*(?![\w)])"""
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Which quarantined records are meant; what is left out restricts nothing."""

    pipeline: str | None
    ids: tuple[QuarantineId, ...] | None = None
    #: A part of the reason, in whatever case, with its values or with `…` in their place.
    reason: str | None = None
    #: The producer's name.
    file: str | None = None
    state: QuarantineState | None = QuarantineState.HELD

    @property
    def is_narrow(self) -> bool:
        """Whether it names anything more than a pipeline."""
        return any(each is not None for each in (self.ids, self.reason, self.file))


@dataclass(frozen=True, kw_only=True)
class KeptRecord:
    """A quarantined record, with as much of its bytes as was asked for."""

    quarantine_id: QuarantineId
    pipeline: str
    #: Of the commit that consumed it.
    position: Position
    producer_id: ProducerId
    file: str
    generation: int | None
    #: A later generation took its producer's place, so that its rows may not come back.
    is_replaced: bool
    sequence_id: int
    raw: bytes
    #: How many there are.
    raw_bytes: int
    column: str | None
    reason: str
    quarantined_at: datetime
    state: QuarantineState
    settled_position: Position | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a record cannot be loaded."""

    reason: str
    column: str | None = None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The held records that a selection means, without their bytes; and what it named that is settled already."""

    held: tuple[KeptRecord, ...]
    settled: tuple[KeptRecord, ...] = ()


def choose(engine: Engine, selection: Selection, *, at_most: int | None = None) -> Chosen:
    """Find what may be settled, oldest first; an id that nobody has is refused."""
    selection = replace(selection, state=QuarantineState.HELD)
    held = tuple(find_records(engine, selection, raw_bytes_max=0, at_most=at_most))
    if selection.ids is None:
        return Chosen(held=held)
    named = Selection(pipeline=selection.pipeline, ids=selection.ids, state=None)
    known = {record.quarantine_id: record for record in find_records(engine, named, raw_bytes_max=0)}
    unknown = [str(each) for each in selection.ids if each not in known]
    if unknown:
        raise NotFound(f"quarantined record of pipeline {selection.pipeline}", ", ".join(unknown))
    settled = (record for record in known.values() if record.state is not QuarantineState.HELD)
    return Chosen(held=held, settled=tuple(settled))


def find_records(
    engine: Engine, selection: Selection, *, raw_bytes_max: int = _RAW_BYTES_MAX, at_most: int | None = None
) -> Iterator[KeptRecord]:
    """The selected records, oldest first, of each at most so many of its bytes."""
    for page in _pages(engine, selection, at_most):
        if not raw_bytes_max:
            yield from page
            continue
        # A page of ids is small; what they hold may be anything, and is read as it fits into memory.
        for some in in_batches(page, weigh=lambda record: min(record.raw_bytes, raw_bytes_max)):
            wanted = Selection(pipeline=None, ids=tuple(each.quarantine_id for each in some), state=selection.state)
            yield from _read(engine, wanted, after=0, at_most=len(some), raw_bytes_max=raw_bytes_max)


def get_record(engine: Engine, quarantine_id: QuarantineId, *, raw_bytes_max: int | None = None) -> KeptRecord:
    """One record, whatever became of it."""
    selection = Selection(pipeline=None, ids=(quarantine_id,), state=None)
    wanted = _RAW_BYTES_MAX if raw_bytes_max is None else raw_bytes_max
    for record in find_records(engine, selection, raw_bytes_max=wanted):
        return record
    raise NotFound("quarantined record", str(quarantine_id))


def count_by_reason(engine: Engine, selection: Selection, *, at_most: int) -> list[dict[str, object]]:
    """How many records there are of each kind of reason, the most common first."""
    with translated(pipeline=selection.pipeline or "(any)", doing="counting reasons"), engine.begin() as connection:
        rows = connection.execute(SQL["reasons"], _binds(selection) | {"at_most": at_most})
        return [dict(row) for row in rows.mappings()]


def find_root(engine: Engine, pipeline: str) -> str | None:
    """The folder that names of files start below, if sequence ids are places in those files and names say where."""
    with translated(pipeline=pipeline, doing="looking for the source"), engine.begin() as connection:
        root: str | None = connection.execute(SQL["root"], {"pipeline": pipeline}).scalar_one_or_none()
    return root


def kind_of(reason: str) -> str:
    """A reason without the values in it, as the server groups reasons too."""
    return re.sub(VALUES, "…", reason)


def note_reasons(engine: Engine, pipeline: str, refusals: Mapping[QuarantineId, Refusal]) -> None:
    """Say of records that are still bad why they are so now."""
    with translated(pipeline=pipeline, doing="noting reasons"), engine.begin() as connection:
        for some in in_batches(sorted(refusals)):
            binds = {
                "ids": array(some),
                "reasons": array(refusals[each].reason for each in some),
                "columns": array(refusals[each].column for each in some),
            }
            connection.execute(SQL["note_reasons"], binds)


def _pages(engine: Engine, selection: Selection, at_most: int | None) -> Iterator[Sequence[KeptRecord]]:
    """Pages of records without their bytes; no transaction stays open while the reader thinks about one."""
    after, left = 0, at_most
    while left is None or left > 0:
        size = _RECORDS_PER_READ if left is None else min(left, _RECORDS_PER_READ)
        page = _read(engine, selection, after=after, at_most=size, raw_bytes_max=0)
        if page:
            yield page
        if len(page) < size:
            return
        after, left = page[-1].quarantine_id, None if left is None else left - len(page)


def _read(
    engine: Engine, selection: Selection, *, after: int, at_most: int, raw_bytes_max: int
) -> Sequence[KeptRecord]:
    binds = _binds(selection) | {"after": after, "at_most": at_most, "raw_bytes_max": raw_bytes_max}
    doing = "reading the quarantine"
    with translated(pipeline=selection.pipeline or "(any)", doing=doing), engine.begin() as connection:
        if selection.pipeline is not None:
            get_pipeline(connection, selection.pipeline)
        return [_record_in(row) for row in connection.execute(SQL["records"], binds)]


def _binds(selection: Selection) -> dict[str, object]:
    return {
        "pipeline": selection.pipeline,
        "ids": None if selection.ids is None else array(selection.ids),
        "reason": selection.reason,
        "file": selection.file,
        "state": selection.state,
        "values": VALUES,
    }


def _record_in(row: Record) -> KeptRecord:
    return KeptRecord(
        quarantine_id=row.quarantine_id,
        pipeline=row.pipeline,
        position=row.position,
        producer_id=row.producer_id,
        file=row.file,
        generation=row.generation,
        is_replaced=row.is_replaced,
        sequence_id=row.sequence_id,
        raw=bytes(row.raw),
        raw_bytes=row.raw_bytes,
        column=row.column_name,
        reason=row.reason,
        quarantined_at=row.quarantined_at,
        state=QuarantineState(row.state),
        settled_position=row.settled_position,
    )
