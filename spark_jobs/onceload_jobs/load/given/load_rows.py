"""Load rows that a program gives, exactly once: the program names their producer, and gives each row an id.

The ledger is authoritative. Rows, bad records and consumed ids are one commit, as for files. If a call is killed, fails
or gets no answer to COMMIT, the same call is made again: ids that took effect are duplicates then. Two calls at once
with the same ids race for the commit, and the ledger refuses the later one, which finds duplicates.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial

import pyarrow as pa
from sqlalchemy import Connection, Engine

from onceload_core.errors import (
    ClaimedElsewhere,
    NeedsAPerson,
    WrongUse,
)
from onceload_core.events import event
from onceload_core.names import Batch, ProducerId
from onceload_core.ports import Advance, Commit, QuarantinedRecord, Session, unwatched
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.commit import Reached
from onceload_core.postgres.connection import first_line, translated
from onceload_core.postgres.rewound import Owed, find_owed
from onceload_core.postgres.sessions import check_own_name, session_of
from onceload_core.replay import Counts, Run
from onceload_core.spans import SpanSet
from onceload_core.verdicts import judge, passed_over
from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.records import BadRecord, Records
from onceload_jobs.load.given.offered_rows import OfferedRows
from onceload_jobs.load.load import snapshot_if_due
from onceload_jobs.load.load_events import log_ignored
from onceload_jobs.load.phases import Phase, Stopwatch
from onceload_jobs.load.recorded import recorded
from onceload_jobs.load.report import Report, report_of
from onceload_jobs.pipeline.columns import SEQUENCE, Column
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.read.added_columns import read_adding
from onceload_jobs.read.bad_rows import without_rows
from onceload_jobs.read.limits import NOTHING_GOOD_MIN, bad_allowed, check_quarantine
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.find_refused import refused_or_raise
from onceload_jobs.write.rights import check_schema
from onceload_jobs.write.target import check_target, columns_to_read, ensure_target
from onceload_jobs.write.until_certain import until_certain
from onceload_jobs.write.writer import ColumnsDiffer, Writer


@dataclass(eq=False)
class OfferRefused(WrongUse):
    """Rows that are refused as a whole, because of their ids or their form."""

    pipeline: str
    producer: str
    found: str
    expected: str
    #: How many rows before them were read; with publish: direct, they are loaded.
    before: int = 0

    def __str__(self) -> str:
        kept = f"The {self.before:,} rows before them stay loaded." if self.before else "Nothing was loaded."
        return (
            f"pipeline {self.pipeline}, producer {self.producer!r}: {self.found}. {kept} Expected {self.expected}. "
            "Correct the rows, and call again: ids that are loaded are skipped."
        )


@dataclass(eq=False)
class NoGoodRow(NeedsAPerson):
    """Every row of a commit is bad: the columns or the rows as a whole are wrong."""

    pipeline: str
    producer: str
    records: int
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}, producer {self.producer!r}: all {self.records:,} rows are bad, the first one "
            f"because of this: {self.reason}. None of them was loaded or quarantined. Correct the rows or the declared "
            "columns, and call again. To quarantine such rows instead, set quality.quarantined_max"
        )


def load_rows(
    declared: Declared,
    settings: LedgerSettings,
    offers: Iterable[OfferedRows],
    *,
    producer: str,
    is_without_gaps: bool,
    batch: Batch,
    run: Run | None = None,
    reached: Reached = unwatched,
) -> Report:
    """Commit each offer, without the rows whose ids are loaded; the report counts those as duplicates."""
    stopwatch, offered, ignored = Stopwatch(), 0, Ignored()
    check_own_name("batch", batch)
    engine = connect(settings)
    # An error while the rows are produced is the program's own, even if its rows come from a database.
    asking = partial(translated, pipeline=declared.name, doing=f"loading rows of {producer}")
    try:
        with recorded(engine, declared.name, batch, is_whole=True) as record:
            with asking():
                begun = _Job.begun(declared, engine, producer=producer, batch=batch, run=run, reached=reached)
                job, before = replace(begun, is_without_gaps=is_without_gaps), begun.ledger.position(declared.name)
            stopwatch.switch_to(Phase.STAGE)
            for each in offers:
                with asking(), stopwatch.during(Phase.PUBLISH):
                    ignored += _commit(replace(job, offered=offered), each)
                offered += len(each.ids)
            with asking(), stopwatch.during(Phase.END):
                notes = snapshot_if_due(engine, declared.name)
                report = record.report = report_of(job.ledger, declared, batch, after=before).with_notes(notes)
    finally:
        engine.dispose()
    log_ignored(ignored, pipeline=declared.name, batch=batch)
    return replace(
        report,
        duplicates=offered - report.loaded - report.quarantined,
        version=job.session.version.number,
        ignored_fields=dict(ignored.fields),
        ignored_of=ignored.records,
    ).timed(stopwatch)


@dataclass(frozen=True, kw_only=True)
class _Job:
    """One call: its session, its producer, and how its rows are written."""

    declared: Declared
    engine: Engine
    ledger: PostgresLedger
    session: Session
    producer: str
    producer_id: ProducerId
    columns: tuple[Column, ...]
    batch: Batch
    run: Run | None
    #: What rewinds rolled back of it. A later rewind fences the session.
    owed: Owed | None
    #: Whether ids count up by one, so that a gap means lost rows.
    is_without_gaps: bool = False
    #: How many rows of this call were read before.
    offered: int = 0

    @classmethod
    def begun(
        cls, declared: Declared, engine: Engine, *, producer: str, batch: Batch, run: Run | None, reached: Reached
    ) -> "_Job":
        ledger = PostgresLedger(engine, reached=reached)
        check_schema(engine, declared)
        version = ledger.declare(pipeline_with_declaration(declared), may_be_paused=False)
        is_recorded = check_target(engine, ledger, declared)
        session = ledger.open_session(declared.name, session_of(batch, "rows"), version=version)
        owed = find_owed(engine, declared.name, producer)
        evolve_target(engine, declared, session, columns=declared.columns_as_read)
        ensure_target(engine, declared, columns=declared.columns_as_read, is_recorded=is_recorded)
        return cls(
            declared=declared,
            engine=engine,
            ledger=ledger,
            session=session,
            producer=producer,
            producer_id=ledger.register(declared.name, [(producer, 1)])[producer, 1],
            columns=columns_to_read(engine, declared),
            batch=batch,
            run=run,
            owed=owed,
        )

    @property
    def writer(self) -> Writer:
        return Writer.into_target(self.declared.target, self.columns)


@dataclass(kw_only=True)
class _Tries:
    """What the tries to commit have found so far."""

    #: Why the server refused rows, by the id of each.
    refused: dict[int, str] = field(default_factory=dict)
    differing: ColumnsDiffer | None = None
    #: The fields without a column in the rows of the last try.
    ignored: Ignored = field(default_factory=Ignored)


@dataclass(frozen=True, kw_only=True)
class _Rest:
    """What of an offer is not loaded yet."""

    ids: SpanSet
    records: Records
    writer: Writer


def _commit(job: _Job, offer: OfferedRows) -> Ignored:
    """Load what is not loaded yet; the fields of it that were not loaded."""
    tries = _Tries()

    def find_rest() -> _Rest | None:
        new = _new_of(job, offer)
        if not new:
            return None
        left = offer.among(new)
        records, writer = _read(job, left, tries)
        return _Rest(ids=new, records=records, writer=writer)

    def commit(rest: _Rest) -> None:
        tries.ignored = rest.records.ignored
        position = job.ledger.commit(_commit_of(job, offer, rest))
        rows, bad = rest.records.rows.num_rows, len(rest.records.bad)
        event("rows_committed", pipeline=job.declared.name, position=position, rows=rows, quarantined=bad)

    def note_columns(differing: ColumnsDiffer) -> None:
        tries.differing = differing

    def note_refused(rest: _Rest, cause: Exception) -> None:
        tries.refused |= _refused_by_server(job, rest, cause=cause)

    until_certain(find_rest, commit, on_columns=note_columns, on_refused=note_refused)
    return tries.ignored


def _new_of(job: _Job, offer: OfferedRows) -> SpanSet:
    """The ids that are not loaded yet."""
    known = job.ledger.know(job.session, [job.producer_id])[job.producer_id]
    consumed, offered = known.state.consumed, offer.spans
    _check_ids(job, offered, consumed=consumed)
    judgement = judge(offered, consumed=consumed, claimed=known.claimed)
    if judgement.unknown:
        raise ClaimedElsewhere(job.declared.name, job.producer, str(judgement.unknown), "another session")
    return judgement.new


def _check_ids(job: _Job, offered: SpanSet, *, consumed: SpanSet) -> None:
    """Refuse ids that leave out others: those that were loaded before a rewind, or any if ids count up by one."""
    owed = SpanSet() if job.owed is None else job.owed.spans
    if job.owed is not None and (left_out := passed_over(offered, consumed=consumed, owed=owed)):
        found = (
            f"the rows have ids {offered.shortened}, but {job.owed.cause} deleted the rows with the ids "
            f"{left_out.shortened}, which are not loaded again yet"
        )
        expected = (
            "the rows with these ids first (if they no longer exist, load later rows under the name of a new producer)"
        )
        raise OfferRefused(job.declared.name, job.producer, found, expected, job.offered)
    loaded = consumed | owed
    if job.is_without_gaps and loaded and len((loaded | offered).spans) > len(loaded.spans):
        found = f"the rows have ids {offered}, which do not continue the loaded ids {loaded}"
        expected = "ids that continue or repeat what is loaded (for ids with gaps, give them in a column: id_column)"
        raise OfferRefused(job.declared.name, job.producer, found, expected, job.offered)


def _read(job: _Job, offer: OfferedRows, tries: _Tries) -> tuple[Records, Writer]:
    """The rows and bad records, and how to write the rows: with columns for undeclared fields, if any are added."""
    try:
        records, added = read_adding(
            job.declared,
            job.columns,
            (),
            tries.differing,
            read=lambda declared, columns, _: offer.records(job.producer_id, columns, declared.unknown_fields),
        )
    except pa.ArrowException as error:
        found = f"their columns cannot be read ({first_line(error)})"
        expected = "columns of types that Parquet has"
        raise OfferRefused(job.declared.name, job.producer, found, expected, job.offered) from error
    ids = records.rows.column(SEQUENCE).to_pylist() if tries.refused else ()
    refused = {number: tries.refused[each] for number, each in enumerate(ids) if each in tries.refused}
    records = without_rows(records, refused, ())
    _check_bad(job, records)
    return records, job.writer.adding(added)


def _check_bad(job: _Job, records: Records) -> None:
    if job.declared.quarantine_limit.is_declared:
        check_quarantine(job.declared, records.bad, records=records.count)
    elif len(records.bad) >= NOTHING_GOOD_MIN and not records.rows.num_rows:
        raise NoGoodRow(job.declared.name, job.producer, records.count, _reason(records.bad[0]))


def _reason(bad: BadRecord) -> str:
    return f"{bad.column}: {bad.reason}" if bad.column else bad.reason


def _refused_by_server(job: _Job, rest: _Rest, *, cause: Exception) -> dict[int, str]:
    """The reasons of the rows that the server refuses, by their ids; another refusal is raised again."""
    rows, name, records = rest.records.rows, job.declared.name, rest.records
    at_most = bad_allowed(job.declared, bad=len(records.bad), records=records.count)
    refused = refused_or_raise(job.engine, rest.writer, rows, pipeline=name, cause=cause, at_most=at_most)
    ids = rows.column(SEQUENCE)
    return {ids[number].as_py(): reason for number, reason in refused.items()}


def _commit_of(job: _Job, offer: OfferedRows, rest: _Rest) -> Commit[Connection]:
    records, rows = rest.records, rest.records.rows.num_rows
    return Commit(
        session=job.session,
        batch=job.batch,
        advances=(Advance(producer_id=job.producer_id, spans=rest.ids, rows=rows, records=records.count),),
        write_rows=lambda connection: rest.writer.write(connection, records.rows),
        counts=Counts(loaded=rows, duplicate=len(offer.ids) - records.count, quarantined=len(records.bad)),
        quarantined=tuple(_quarantined(each) for each in records.bad),
        run=job.run,
    )


def _quarantined(bad: BadRecord) -> QuarantinedRecord:
    return QuarantinedRecord(
        producer_id=bad.producer_id,
        sequence_id=bad.sequence_id,
        raw=bad.raw,
        reason=bad.reason,
        column=bad.column,
    )
