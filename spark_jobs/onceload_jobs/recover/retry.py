"""Retry quarantined records: read them again with the current pipeline file, and commit them together.

The ledger is authoritative. A record was consumed when it was quarantined. It takes effect once because one commit
settles it, with its row and its entry. So two concurrent retries, a killed retry, and one without an answer to COMMIT
have the same result: the next look finds the settled records, and continues with the rest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection, Engine

from onceload_core.errors import SettingRefused
from onceload_core.events import event
from onceload_core.names import Batch, Position, ProducerId
from onceload_core.ports import Session, Settlement
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import statements, translated
from onceload_core.postgres.quarantine import KeptRecord, QuarantineId, Refusal, Selection, find_records, note_reasons
from onceload_core.postgres.sessions import session_of
from onceload_core.replay import EntryKind
from onceload_core.verdicts import Order
from onceload_jobs.batch.stage import Stage, open_stage
from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.chunks import KEPT_BYTES, Chunk, Part
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.records import Records
from onceload_jobs.formats.values import from_kept
from onceload_jobs.load.load_events import log_ignored
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column
from onceload_jobs.pipeline.declared import Declared, Target, Write
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish.merge import merge_in
from onceload_jobs.read.added_columns import read_adding
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.rows import read_records
from onceload_jobs.recover.stored_fields import find_lacking, headers_of
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.find_refused import refused_or_raise
from onceload_jobs.write.sql import filled, quoted, table_name
from onceload_jobs.write.target import check_target, columns_to_read, ensure_target
from onceload_jobs.write.until_certain import until_certain
from onceload_jobs.write.writer import ColumnsDiffer, Writer

SQL = statements("retry.sql", package=__package__)


@dataclass(frozen=True, kw_only=True)
class RetryReport:
    """The result of a retry, from the ledger."""

    pipeline: str
    batch: Batch
    #: The position of its commit, or the last one if it made none.
    position: Position
    retried: int = 0
    still_bad: Mapping[QuarantineId, Refusal] = field(default_factory=dict)
    #: Settled by another retry meanwhile.
    settled_elsewhere: int = 0
    #: Fields without a column, which were not loaded, with the number of records that have them …
    ignored_fields: Mapping[str, int] = field(default_factory=dict)
    #: … among those that were looked at.
    ignored_of: int = 0

    @property
    def ignored(self) -> Ignored:
        return Ignored.of(self.ignored_fields, records=self.ignored_of)


def retry(
    engine: Engine,
    ledger: PostgresLedger,
    declared: Declared,
    asked: Sequence[KeptRecord],
    *,
    batch: Batch,
    fixed: Mapping[QuarantineId, bytes] | None = None,
    by: str | None = None,
) -> RetryReport:
    """Load the records that are good now in one commit; the others stay held, with the current reason."""
    _refuse_unfit(declared)
    before = ledger.position(declared.name)
    if not asked:
        return RetryReport(pipeline=declared.name, batch=batch, position=before)
    check_target(engine, ledger, declared)
    # It writes rows like a load, with the current pipeline file.
    version = ledger.declare(pipeline_with_declaration(declared))
    name = session_of(batch, f"retry by {by}" if by else "retry")
    session = ledger.open_session(declared.name, name, version=version)
    evolve_target(engine, declared, session, columns=declared.columns_as_read)
    ensure_target(engine, declared, columns=declared.columns_as_read)
    job = _Job(
        engine=engine,
        ledger=ledger,
        declared=declared,
        columns=columns_to_read(engine, declared),
        session=session,
        batch=batch,
        fixed=fixed or {},
        headers=headers_of(declared, ledger, asked),
    )
    with _open_target(job) as target:
        settled = _settle(job, target, tuple(record.quarantine_id for record in asked))
    note_reasons(engine, declared.name, settled.still_bad)
    report = _report(job, settled, asked=len(asked), after=before)
    _log_retried(report, asked=len(asked))
    return report


def _log_retried(report: RetryReport, *, asked: int) -> None:
    event(
        "records_retried",
        pipeline=report.pipeline,
        batch=report.batch,
        position=report.position,
        records=asked,
        loaded=report.retried,
        still_bad=len(report.still_bad),
        settled_elsewhere=report.settled_elsewhere,
    )
    log_ignored(report.ignored, pipeline=report.pipeline, batch=report.batch)


@dataclass(frozen=True, kw_only=True)
class _Job:
    engine: Engine
    ledger: PostgresLedger
    declared: Declared
    columns: tuple[Column, ...]
    session: Session
    batch: Batch
    fixed: Mapping[QuarantineId, bytes]
    #: The fields of each CSV file, in order, or why its records cannot be retried.
    headers: Mapping[ProducerId, tuple[str, ...] | Refusal]


def _refuse_unfit(declared: Declared) -> None:
    """Refuse pipelines whose rows depend on more than their own bytes, or whose order is lost in the target."""
    target = declared.target
    is_merge = target.write is Write.MERGE
    for setting, is_declared in (
        ("producer", declared.producer is not None),
        ("message_id", declared.message_id is not None),
        ("transform", declared.transform is not None),
        # After a delete or a write without lineage, the target has nothing to compare a late record with.
        ("target.deleted", target.deleted is not None),
        ("merge without target.lineage", is_merge and not target.lineage),
    ):
        if is_declared:
            expected = f"a pipeline without it (load such records {_loaded_instead(declared)}, and discard these)"
            raise SettingRefused(f"retrying pipeline {declared.name}", f"a declared {setting}", expected)


def _loaded_instead(declared: Declared) -> str:
    if declared.producer is not None and declared.producer.order is Order.ORDERED:
        return "by a pipeline file of its own with order: any, because this one counts their ids as duplicates"
    return "again from a new file"


def _report(job: _Job, tries: "_Tries", *, asked: int, after: Position) -> RetryReport:
    """Report what took effect, from the ledger, regardless of lost answers."""
    entries = [entry for entry in job.ledger.entries(job.declared.name, after=after) if entry.batch == job.batch]
    retried = sum(entry.counts.loaded for entry in entries if entry.kind is EntryKind.RETRY)
    return RetryReport(
        pipeline=job.declared.name,
        batch=job.batch,
        position=entries[-1].position if entries else job.ledger.position(job.declared.name),
        retried=retried,
        still_bad=tries.still_bad,
        settled_elsewhere=asked - retried - len(tries.still_bad),
        ignored_fields=dict(tries.ignored.fields) if retried else {},
        ignored_of=tries.ignored.records if retried else 0,
    )


@dataclass(kw_only=True)
class _Tries:
    """What the tries to commit have found so far."""

    #: The records that the server refused.
    refused: dict[QuarantineId, Refusal] = field(default_factory=dict)
    differing: ColumnsDiffer | None = None
    #: All records that are still bad, for any reason.
    still_bad: Mapping[QuarantineId, Refusal] = field(default_factory=dict)
    #: The fields without a column in the records of the last try.
    ignored: Ignored = field(default_factory=Ignored)


def _settle(job: _Job, target: "_TargetOfRetry", asked: tuple[QuarantineId, ...]) -> _Tries:
    """Commit the records that are good now."""
    held = Selection(pipeline=job.declared.name, ids=asked)
    tries = _Tries()

    def find_good() -> "_Reading | None":
        # Records that any retry has settled are no longer held.
        reading = _read(job, tuple(find_records(job.engine, held)), tries)
        tries.still_bad = reading.refusals
        return reading if reading.good else None

    def settle(reading: "_Reading") -> None:
        tries.ignored = reading.ignored
        job.ledger.settle(_settlement(job, target, reading))

    def note_columns(differing: ColumnsDiffer) -> None:
        tries.differing = differing

    def note_refused(reading: "_Reading", cause: Exception) -> None:
        tries.refused |= _refused_by_server(job, target, reading, cause=cause)

    until_certain(find_good, settle, on_columns=note_columns, on_refused=note_refused)
    return tries


def _settlement(job: _Job, target: "_TargetOfRetry", reading: "_Reading") -> Settlement[Connection]:
    writer = target.writer.adding(reading.added)
    return Settlement(
        kind=EntryKind.RETRY,
        session=job.session,
        batch=job.batch,
        records=tuple((record.producer_id, record.sequence_id) for record in reading.good),
        write_rows=lambda connection: target.write(connection, writer, reading.rows),
        bytes=sum(len(_text_of(job, record)) for record in reading.good),
    )


def _refused_by_server(
    job: _Job, target: "_TargetOfRetry", reading: "_Reading", *, cause: Exception
) -> dict[QuarantineId, Refusal]:
    """The records whose rows the server refuses; another refusal is raised again."""
    name, writer = job.declared.name, target.writer.adding(reading.added)
    with translated(pipeline=name, doing="looking for the rows that the server refuses"):
        refused = refused_or_raise(job.engine, writer, reading.rows, pipeline=name, cause=cause)
    return {reading.good[number].quarantine_id: Refusal(reason=reason) for number, reason in refused.items()}


@dataclass(frozen=True, kw_only=True)
class _TargetOfRetry:
    """How retried rows get into the target: directly, or merged from a stage."""

    #: Finds the rows that the server refuses.
    writer: Writer
    write: Callable[[Connection, Writer, pa.Table], int]


@contextmanager
def _open_target(job: _Job) -> Iterator[_TargetOfRetry]:
    target = job.declared.target
    match target.write:
        case Write.APPEND:
            writer = Writer.into_target(target, job.columns)
            yield _TargetOfRetry(writer=writer, write=lambda connection, writer, rows: writer.write(connection, rows))
        case Write.MERGE:
            with open_stage(job.engine, job.columns, target, lineage=True) as stage:
                yield _TargetOfRetry(writer=stage.writer, write=partial(_merge, target, stage))


def _merge(target: Target, stage: Stage, connection: Connection, writer: Writer, rows: pa.Table) -> int:
    """Merge as a staged batch, but inside the transaction of the commit."""
    writer.write(connection, rows)
    late = 0
    if target.lineage:
        # A retried record is late: order it against the existing row as in one batch.
        same_key = " AND ".join(f"there.{quoted(name)} = late.{quoted(name)}" for name in target.key)
        delete = filled(SQL["delete_late"], rows=stage.rows, table=table_name(target), has_same_key=same_key)
        late = connection.execute(delete).rowcount
    Writer.into_target(target, stage.columns).adding(writer.added).add_columns(connection)
    return late + merge_in(connection, target, stage.rows, writer.columns, late=True)


@dataclass(frozen=True, kw_only=True)
class _Reading:
    """The records that are good now, with their rows in the same order, and the reasons of the others."""

    good: tuple[KeptRecord, ...]
    rows: pa.Table
    refusals: Mapping[QuarantineId, Refusal]
    #: Undeclared fields for which the target gets columns …
    added: tuple[Column, ...]
    #: … and those that are not loaded.
    ignored: Ignored


def _read(job: _Job, records: Sequence[KeptRecord], tries: _Tries) -> _Reading:
    """Read each record as a producer of its own, to detect a text with no record, or with two."""
    refusals = {
        number: refusal
        for number, record in enumerate(records)
        if (refusal := tries.refused.get(record.quarantine_id) or _unreadable(job, record))
    }
    parts = [_part(job, number, record) for number, record in enumerate(records) if number not in refusals]
    read, added = read_adding(job.declared, job.columns, parts, tries.differing, read=_read_kept)
    refusals |= _refusals_of(read, {each.part.producer_id for each in parts})
    numbers = read.rows.column(PRODUCER_ID).to_numpy()
    is_good = ~np.isin(numbers, list(refusals))
    good = tuple(records[number] for number in numbers[is_good].tolist())
    rows = _under_own_ids(read.rows.filter(pa.array(is_good)), good)
    by_id = {records[number].quarantine_id: refusal for number, refusal in refusals.items()}
    return _Reading(good=good, rows=rows, refusals=by_id, added=added, ignored=read.ignored)


def _under_own_ids(rows: pa.Table, records: Sequence[KeptRecord]) -> pa.Table:
    for name, ids in (
        (PRODUCER_ID, [record.producer_id for record in records]),
        (SEQUENCE, [record.sequence_id for record in records]),
    ):
        rows = rows.set_column(rows.schema.get_field_index(name), name, pa.array(ids, pa.int64()))
    return rows


def _unreadable(job: _Job, record: KeptRecord) -> Refusal | None:
    """Why a record cannot be tried at all."""
    if record.is_replaced:
        return Refusal(reason="its file was replaced by a later generation, so its rows must not be loaded again")
    if record.raw_bytes == KEPT_BYTES and record.quarantine_id not in job.fixed:
        # The kept beginning of an oversized record might look like a whole one.
        return Refusal(reason=record.reason, column=record.column)
    if isinstance(header := job.headers.get(record.producer_id), Refusal):
        return header
    if job.declared.source.format.is_typed:
        return find_lacking(job.declared, _text_of(job, record))
    return None


def _text_of(job: _Job, record: KeptRecord) -> bytes:
    return job.fixed.get(record.quarantine_id, record.raw)


def _part(job: _Job, number: int, record: KeptRecord) -> ReadPart:
    raw = _text_of(job, record)
    first, end, reader_id = record.sequence_id, record.sequence_id + len(raw), ProducerId(number)
    chunk = Chunk(producer_id=reader_id, name=record.file, url="", first=first, end=end)
    if isinstance(header := job.headers.get(record.producer_id), tuple):
        chunk = replace(chunk, header=header)
    return ReadPart(chunk=chunk, part=Part(producer_id=reader_id, first=first, end=end, raw=raw), fingerprint=b"")


def _read_kept(declared: Declared, columns: tuple[Column, ...], parts: Sequence[ReadPart]) -> Records:
    """A row of values with types is kept as a line of JSON; other records are kept unchanged."""
    if not declared.source.format.is_typed:
        return read_records(declared, columns, parts)
    return read_jsonl(
        [each.part for each in parts],
        columns,
        declared=declared.field_names,
        unknown_fields=declared.unknown_fields,
        record_bytes_max=declared.source.record_bytes_max,
        read_value=from_kept,
    )


def _refusals_of(read: Records, tried: set[ProducerId]) -> dict[int, Refusal]:
    """The reasons of records that are still bad, by their number."""
    counts = dict.fromkeys(map(int, tried), 0)
    for number in read.rows.column(PRODUCER_ID).to_pylist():
        counts[number] += 1
    refusals: dict[int, Refusal] = {}
    for bad in read.bad:
        counts[bad.producer_id] += 1
        refusals[bad.producer_id] = Refusal(reason=bad.reason, column=bad.column)
    several = {number: count for number, count in counts.items() if count != 1}
    return refusals | {
        number: Refusal(reason=f"its text contains {count} records instead of one") for number, count in several.items()
    }
