"""Reads of the quarantine for people: its records, their reasons, and what became of them.

The ledger is authoritative: a record is held until a commit settles it for good. A record that is read here may be
settled a moment later, so `PostgresLedger.settle` checks it again.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import sha256
from shlex import quote
from typing import NewType

from sqlalchemy import Engine

from onceload_core.declaration import Declaration
from onceload_core.errors import NotFound
from onceload_core.names import Position, ProducerId
from onceload_core.ports import QuarantineState
from onceload_core.postgres.connection import Record, array, change, in_batches, statements, transaction, translated
from onceload_core.postgres.pipeline_row import get_pipeline

SQL = statements("quarantine.sql")
QuarantineId = NewType("QuarantineId", int)
_RECORDS_PER_READ = 1_000
_RAW_BYTES_MAX = 2**31 - 1
#: The parts in which two reasons of one kind differ: a value as Python or the server quotes it, or a separate number.
#: The server uses this pattern too, with the longest match where Python takes the first one.
VALUES = (
    r"""'(?:[^'\\]|\\.)*'|^"(?:[^"\\]|\\.)*"|(?<=: )"[^"]*"$"""
    r"""|(?<![\w("'-])[-+]?\d[\d.eE+-]*(?![\w)])"""
)


@dataclass(frozen=True, kw_only=True)
class Selection:
    """A filter on quarantined records. None restricts nothing."""

    pipeline: str | None
    ids: tuple[QuarantineId, ...] | None = None
    #: A part of the reason, in any case, with its values or with `…` instead.
    reason: str | None = None
    #: The producer's name.
    file: str | None = None
    state: QuarantineState | None = QuarantineState.HELD

    @property
    def is_narrow(self) -> bool:
        """Whether it filters by more than the pipeline."""
        return any(each is not None for each in (self.ids, self.reason, self.file))


@dataclass(frozen=True, kw_only=True)
class KeptRecord:
    """A quarantined record, with as many of its bytes as requested."""

    quarantine_id: QuarantineId
    pipeline: str
    #: The position of the commit that consumed it.
    position: Position
    #: The number of the version of the pipeline file that read it.
    version: int | None
    producer_id: ProducerId
    file: str
    generation: int | None
    #: A later generation replaced its producer, so it must not be loaded.
    is_replaced: bool
    sequence_id: int
    raw: bytes
    #: The full number of bytes.
    raw_bytes: int
    column: str | None
    reason: str
    quarantined_at: datetime
    state: QuarantineState
    settled_position: Position | None

    @property
    def digest(self) -> str:
        """The digest of its bytes, which must be here in full."""
        return digest_of(self.raw)


@dataclass(frozen=True, kw_only=True)
class Fix:
    """What a person made of a record."""

    raw: bytes
    #: The digest of the stored bytes that were fixed.
    digest: str


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Why a record cannot be loaded."""

    reason: str
    column: str | None = None


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """The held records of a selection, without their bytes, and those of its ids that are already settled."""

    held: tuple[KeptRecord, ...]
    settled: tuple[KeptRecord, ...] = ()


def choose(engine: Engine, selection: Selection, *, at_most: int | None = None) -> Chosen:
    """Find the records that can be settled, oldest first. Unknown ids are refused."""
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
    """The selected records, oldest first, each with a limited number of its bytes."""
    for page in _pages(engine, selection, at_most):
        if not raw_bytes_max:
            yield from page
            continue
        # A page of ids is small. The bytes may be large, and are read in parts that fit into memory.
        for some in in_batches(page, weigh=lambda record: min(record.raw_bytes, raw_bytes_max)):
            wanted = Selection(pipeline=None, ids=tuple(each.quarantine_id for each in some), state=selection.state)
            yield from _read(engine, wanted, after=0, at_most=len(some), raw_bytes_max=raw_bytes_max)


def get_record(engine: Engine, quarantine_id: QuarantineId, *, raw_bytes_max: int | None = None) -> KeptRecord:
    """One record in any state."""
    selection = Selection(pipeline=None, ids=(quarantine_id,), state=None)
    wanted = _RAW_BYTES_MAX if raw_bytes_max is None else raw_bytes_max
    for record in find_records(engine, selection, raw_bytes_max=wanted):
        return record
    raise NotFound("quarantined record", str(quarantine_id))


def count_by_reason(engine: Engine, selection: Selection, *, at_most: int) -> list[dict[str, object]]:
    """The number of records for each kind of reason, the most common first."""
    with translated(pipeline=selection.pipeline or "(any)", doing="counting reasons"), engine.begin() as connection:
        rows = connection.execute(SQL["reasons"], _binds(selection) | {"at_most": at_most})
        return [dict(row) for row in rows.mappings()]


def find_root(engine: Engine, pipeline: str) -> str | None:
    """The folder that file names are relative to, if sequence ids are byte positions in the files."""
    with transaction(engine, pipeline, doing="looking for the source") as connection:
        root: str | None = connection.execute(SQL["root"], {"pipeline": pipeline}).scalar_one_or_none()
    return root


def get_declaration(engine: Engine, pipeline: str) -> Declaration:
    """What the pipeline file declares, by the version in force."""
    with transaction(engine, pipeline, doing="looking at the pipeline file") as connection:
        version = get_pipeline(connection, pipeline).version
    # Rows of a version that is not kept come from no pipeline file.
    return find_declarations(engine, pipeline, [version]).get(version, Declaration())


def find_declarations(engine: Engine, pipeline: str, versions: Collection[int]) -> Mapping[int, Declaration]:
    """What the pipeline file declared, by the number of its version."""
    binds = {"pipeline": pipeline, "versions": array(sorted(versions))}
    with transaction(engine, pipeline, doing="reading earlier versions of the pipeline file") as connection:
        return {
            row.version: Declaration(terms=row.terms, rest=row.rest, layout=row.layout)
            for row in connection.execute(SQL["declarations"], binds)
        }


def digest_of(raw: bytes) -> str:
    """The server makes it in the same way."""
    return sha256(raw).hexdigest()


def kind_of(reason: str) -> str:
    """The reason without its values. The server groups reasons in the same way."""
    return re.sub(VALUES, "…", reason)


def note_reasons(engine: Engine, pipeline: str, refusals: Mapping[QuarantineId, Refusal]) -> None:
    """Update the reasons of records that are still bad."""
    see = f"onceload quarantine list --pipeline {quote(pipeline)}"
    with change(engine, pipeline, doing="updating reasons", see=see) as connection:
        for some in in_batches(sorted(refusals)):
            binds = {
                "ids": array(some),
                "reasons": array(refusals[each].reason for each in some),
                "columns": array(refusals[each].column for each in some),
            }
            connection.execute(SQL["note_reasons"], binds)


def _pages(engine: Engine, selection: Selection, at_most: int | None) -> Iterator[Sequence[KeptRecord]]:
    """Pages of records without their bytes. No transaction stays open while the caller handles one."""
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
        version=row.version,
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
