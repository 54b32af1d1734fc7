"""Retry quarantined records: read them again with the current pipeline file, and commit them together.

The ledger is authoritative. A record was consumed when it was quarantined. It takes effect once because one commit
settles it, with its row and its entry. So two concurrent retries, a killed retry, and one without an answer to COMMIT
have the same result: the next look finds the settled records, and continues with the rest.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from shlex import quote

import pyarrow as pa
from sqlalchemy import Connection, Engine

from onceload_core.advice import Ways
from onceload_core.errors import SettingRefused
from onceload_core.events import event
from onceload_core.names import Batch, Position
from onceload_core.ports import Session, Settlement
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import statements, translated
from onceload_core.postgres.quarantine import (
    Fix,
    KeptRecord,
    QuarantineId,
    Refusal,
    Selection,
    find_records,
    note_reasons,
)
from onceload_core.postgres.sessions import session_of
from onceload_core.replay import EntryKind
from onceload_jobs.batch.stage import Stage, open_stage
from onceload_jobs.files.notes import Ignored
from onceload_jobs.load.load_events import log_ignored
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared, Target, Write
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish.merge import merge_in
from onceload_jobs.recover.stored_fields import StoredFields
from onceload_jobs.recover.stored_records import Reading, StoredRecords
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
    #: The files of records that are still bad, and whose fields are not where the pipeline file says now.
    laid_out_otherwise: tuple[str, ...] = ()
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
    fixed: Mapping[QuarantineId, Fix] | None = None,
    by: str | None = None,
) -> RetryReport:
    """Load the records that are good now in one commit; the others stay held, with the current reason.

    Fixed bytes have the layout of the record that they are for. If they are bad too, the record keeps its reason.
    """
    _refuse_unfit(declared)
    if not asked:
        return RetryReport(pipeline=declared.name, batch=batch, position=ledger.position(declared.name))
    job = _begun(engine, ledger, declared, asked, batch=batch, fixed=fixed or {}, by=by)
    before = ledger.position(declared.name)
    with _open_target(job) as target:
        settled = _settle(job, target, tuple(record.quarantine_id for record in asked))
    # The reason of a fix that is bad too is not that of the stored record.
    of_stored = {each: refusal for each, refusal in settled.still_bad.items() if each not in job.records.fixed}
    note_reasons(engine, declared.name, of_stored)
    report = _report(job, settled, asked=len(asked), after=before)
    _log_retried(report, asked=len(asked))
    return report


def _begun(
    engine: Engine,
    ledger: PostgresLedger,
    declared: Declared,
    asked: Sequence[KeptRecord],
    *,
    batch: Batch,
    fixed: Mapping[QuarantineId, Fix],
    by: str | None,
) -> "_Job":
    """It writes rows like a load, with the current pipeline file."""
    check_target(engine, ledger, declared)
    version = ledger.declare(pipeline_with_declaration(declared))
    name = session_of(batch, f"retry by {by}" if by else "retry")
    session = ledger.open_session(declared.name, name, version=version)
    evolve_target(engine, declared, session, columns=declared.columns_as_read)
    ensure_target(engine, declared, columns=declared.columns_as_read)
    columns, fields = columns_to_read(engine, declared), StoredFields(declared, engine, ledger, asked)
    records = StoredRecords(declared=declared, columns=columns, fields=fields, fixed=fixed)
    return _Job(
        engine=engine,
        ledger=ledger,
        declared=declared,
        columns=columns,
        session=session,
        batch=batch,
        records=records,
    )


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
    records: StoredRecords


def _refuse_unfit(declared: Declared) -> None:
    """Refuse pipelines whose rows depend on more than their own bytes, or whose order is lost in the target."""
    ways = Ways.of(pipeline_with_declaration(declared).declaration)
    if ways.against_retry is not None:
        expected = f"a pipeline without it. Instead, {ways.instead_of_retry()}. Then discard the quarantined records"
        raise SettingRefused(f"retrying records of {declared.name}", f"the setting {ways.against_retry}", expected)


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
        laid_out_otherwise=tries.laid_out_otherwise,
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
    laid_out_otherwise: tuple[str, ...] = ()
    #: The fields without a column in the records of the last try.
    ignored: Ignored = field(default_factory=Ignored)


def _settle(job: _Job, target: "_TargetOfRetry", asked: tuple[QuarantineId, ...]) -> _Tries:
    """Commit the records that are good now."""
    held = Selection(pipeline=job.declared.name, ids=asked)
    tries = _Tries()

    def find_good() -> "Reading | None":
        # Records that any retry has settled are no longer held.
        records = tuple(find_records(job.engine, held))
        _refuse_fixes_of_others(records, job.records.fixed)
        reading = job.records.read(records, refused=tries.refused, differing=tries.differing)
        tries.still_bad, tries.laid_out_otherwise = reading.refusals, reading.laid_out_otherwise
        return reading if reading.good else None

    def settle(reading: "Reading") -> None:
        tries.ignored = reading.ignored
        job.ledger.settle(_settlement(job, target, reading))

    def note_columns(differing: ColumnsDiffer) -> None:
        tries.differing = differing

    def note_refused(reading: "Reading", cause: Exception) -> None:
        tries.refused |= _refused_by_server(job, target, reading, cause=cause)

    until_certain(find_good, settle, on_columns=note_columns, on_refused=note_refused)
    return tries


def _refuse_fixes_of_others(records: Sequence[KeptRecord], fixed: Mapping[QuarantineId, Fix]) -> None:
    """In another database, or after a restore, the same id, file and sequence id may belong to another record."""
    for record in records:
        fix = fixed.get(record.quarantine_id)
        if fix is not None and fix.digest != record.digest:
            place = f"sequence id {record.sequence_id} of {record.file}"
            again = f"`onceload quarantine export again.jsonl --pipeline {quote(record.pipeline)}`"
            raise SettingRefused(
                f"record {record.quarantine_id}",
                f"a fix of other bytes than this database holds of {place}",
                f"a fix of these bytes (run {again} and fix that file, or open the record again in the console)",
            )


def _settlement(job: _Job, target: "_TargetOfRetry", reading: "Reading") -> Settlement[Connection]:
    writer = target.writer.adding(reading.added)
    return Settlement(
        kind=EntryKind.RETRY,
        session=job.session,
        batch=job.batch,
        records={(record.producer_id, record.sequence_id): record.digest for record in reading.good},
        write_rows=lambda connection: target.write(connection, writer, reading.rows),
        bytes=sum(len(job.records.text_of(record)) for record in reading.good),
    )


def _refused_by_server(
    job: _Job, target: "_TargetOfRetry", reading: "Reading", *, cause: Exception
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
