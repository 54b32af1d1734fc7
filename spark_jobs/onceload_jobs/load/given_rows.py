"""Load rows that a program gives, exactly once: the program names their producer, and gives each row an id.

The ledger is authoritative. Rows, bad records and consumed ids are one commit, as for files. If a call is killed, fails
or gets no answer to COMMIT, the same call is made again: ids that took effect are duplicates then. Two calls at once
with the same ids race for the commit, and the ledger refuses the later one, which finds duplicates.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Engine

from onceload_core.errors import ClaimedElsewhere, NeedsAPerson
from onceload_core.names import Batch
from onceload_core.ports import unwatched
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.commit import Reached
from onceload_core.postgres.connection import translated
from onceload_core.postgres.rewound import find_owed
from onceload_core.postgres.sessions import check_own_name, session_of
from onceload_core.replay import Run
from onceload_core.spans import SpanSet
from onceload_core.verdicts import judge, passed_over
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, added_by
from onceload_jobs.batch.stage_folder import open_folder
from onceload_jobs.files.notes import Ignored
from onceload_jobs.load.given_pieces import Call, GivenPieces, OfferedRows
from onceload_jobs.load.load import snapshot_if_due
from onceload_jobs.load.recorded import log_ignored, recorded
from onceload_jobs.load.report import Phase, Report, Stopwatch, report_of
from onceload_jobs.load.road import Road, road_of
from onceload_jobs.pipeline.declared import Declared, UnknownFields
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish.batch_road import BatchRoad
from onceload_jobs.publish.commits import check_pieces
from onceload_jobs.read.bad_records import NOTHING_GOOD_MIN
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.rights import check_schema
from onceload_jobs.write.target import check_target, columns_to_read, ensure_target
from onceload_jobs.write.until_certain import until_certain


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
    """Commit the rows whose ids are not loaded yet; the report counts the others as duplicates."""
    stopwatch = Stopwatch()
    check_own_name("batch", batch)
    engine = connect(settings)
    # An error while the rows are produced is the program's own, even if its rows come from a database.
    asking = partial(translated, pipeline=declared.name, doing=f"loading rows of {producer}")
    try:
        with recorded(engine, declared.name, batch, is_whole=True) as record:
            with asking():
                ledger = PostgresLedger(engine, reached=reached)
                call = _begun(
                    declared, ledger, engine, producer=producer, is_without_gaps=is_without_gaps, batch=batch, run=run
                )
                before = call.ledger.position(declared.name)
            stopwatch.switch_to(Phase.STAGE)
            offered, ignored = _load_all(call, offers, asking=asking, stopwatch=stopwatch)
            with asking(), stopwatch.during(Phase.END):
                notes = snapshot_if_due(engine, declared.name)
                report = record.report = report_of(call.ledger, declared, batch, after=before).with_notes(notes)
    finally:
        engine.dispose()
    log_ignored(ignored, pipeline=declared.name, batch=batch)
    return replace(
        report,
        duplicates=offered - report.loaded - report.quarantined,
        version=call.job.session.version.number,
        ignored_fields=dict(ignored.fields),
        ignored_of=ignored.records,
    ).timed(stopwatch)


def _begun(
    declared: Declared,
    ledger: PostgresLedger,
    engine: Engine,
    *,
    producer: str,
    is_without_gaps: bool,
    batch: Batch,
    run: Run | None,
) -> Call:
    check_schema(engine, declared)
    version = ledger.declare(pipeline_with_declaration(declared), may_be_paused=False)
    is_recorded = check_target(engine, ledger, declared)
    session = ledger.open_session(declared.name, session_of(batch, "rows"), version=version)
    owed = find_owed(engine, declared.name, producer)
    evolve_target(engine, declared, session, columns=declared.columns_as_read)
    ensure_target(engine, declared, columns=declared.columns_as_read, is_recorded=is_recorded)
    producer_id = ledger.register(declared.name, [(producer, 1)])[producer, 1]
    columns = columns_to_read(engine, declared)
    job = Job(declared=declared, columns=columns, written=columns, session=session, batch=batch, run=run)
    return Call(
        job=job,
        engine=engine,
        ledger=ledger,
        producer=producer,
        producer_id=producer_id,
        consumed=ledger.know(session, [producer_id])[producer_id].state.consumed,
        owed=owed,
        is_without_gaps=is_without_gaps,
    )


def _load_all(
    call: Call,
    offers: Iterable[OfferedRows],
    *,
    asking: Callable[[], AbstractContextManager[None]],
    stopwatch: Stopwatch,
) -> tuple[int, Ignored]:
    """Load the rows; how many were offered, and the fields of them that were not loaded."""
    offered, ignored = 0, Ignored()
    is_direct = road_of(call.job.declared, is_kept=False) is Road.DIRECT
    # All rows of a batch are committed together, or as many at a time as a task commits.
    commits: Iterable[Iterable[OfferedRows]] = ((each,) for each in offers) if is_direct else (offers,)
    for together in commits:
        with nullcontext() if is_direct else open_folder() as folder:
            call = replace(call, offered=offered)
            pieces = GivenPieces(call, folder)
            for each in together:
                pieces.put(each)
            with asking(), stopwatch.during(Phase.PUBLISH):
                ignored += _commit(call, pieces)
            offered += pieces.count
    return offered, ignored


def _commit(call: Call, pieces: GivenPieces) -> Ignored:
    """Commit the rows that are not loaded yet; the fields of them that were not loaded."""
    declared = call.job.declared

    def find_rest() -> GivenPieces | None:
        pieces.new = _new_of(call, pieces.offered)
        return pieces if pieces.new else None

    judge = partial(_check_bad, call)
    road = BatchRoad(engine=call.engine, ledger=call.ledger, job=call.job, judge=judge, is_logged_as="rows_committed")

    def write(pieces: GivenPieces) -> None:
        if declared.unknown_fields is UnknownFields.ADD and not declared.is_direct:
            road.added = added_by(pieces.each())
        road.write(pieces)

    until_certain(find_rest, write, on_refused=road.check_each_piece)
    return pieces.ignored


def _new_of(call: Call, offered: SpanSet) -> SpanSet:
    """The ids that are not loaded yet."""
    known = call.ledger.know(call.job.session, [call.producer_id])[call.producer_id]
    consumed = known.state.consumed
    _check_ids(call, offered, consumed=consumed)
    judgement = judge(offered, consumed=consumed, claimed=known.claimed)
    if judgement.unknown:
        raise ClaimedElsewhere(call.job.declared.name, call.producer, str(judgement.unknown), "another session")
    return judgement.new


def _check_ids(call: Call, offered: SpanSet, *, consumed: SpanSet) -> None:
    """Refuse ids that leave out others: those that were loaded before a rewind, or any if ids count up by one."""
    owed = SpanSet() if call.owed is None else call.owed.spans
    if call.owed is not None and (left_out := passed_over(offered, consumed=consumed, owed=owed)):
        found = (
            f"the rows have ids {offered.shortened}, but {call.owed.cause} deleted the rows with the ids "
            f"{left_out.shortened}, which are not loaded again yet"
        )
        expected = (
            "the rows with these ids first (if they no longer exist, load later rows under the name of a new producer)"
        )
        raise call.refusal(found, expected)
    loaded = consumed | owed
    if call.is_without_gaps and loaded and len((loaded | offered).spans) > len(loaded.spans):
        found = f"the rows have ids {offered}, which do not continue the loaded ids {loaded}"
        expected = "ids that continue or repeat what is loaded (for ids with gaps, give them in a column: id_column)"
        raise call.refusal(found, expected)


def _check_bad(call: Call, pieces: Sequence[Piece]) -> None:
    """Refuse more bad rows than the pipeline allows, or that all are bad."""
    declared, bad = call.job.declared, [record for piece in pieces for record in piece.quarantined]
    check_pieces(declared, pieces)
    if declared.quarantine_limit.is_declared or len(bad) < NOTHING_GOOD_MIN:
        return
    if not any(piece.rows for piece in pieces):
        first = bad[0]
        reason = f"{first.column}: {first.reason}" if first.column else first.reason
        raise NoGoodRow(declared.name, call.producer, len(bad), reason)
