"""One load: plan, offer what is new, let sessions work on it, and report what the ledger recorded.

Nothing here decides whether rows are new: the board assigns the work, and the ledger refuses every commit that contains
anything already loaded. A killed load can be called again, and two loads at once share the work. With direct
publishing, work is handed out and belongs to all sessions. A batch that is published as a whole is claimed by its
planner while that lives, staged by any session, and dropped with its claim.
"""

import random
import time
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import (
    AlreadyConsumed,
    ClaimedElsewhere,
    NotAlone,
    OnceloadError,
    SettingRefused,
    SnapshotRefused,
)
from onceload_core.events import event
from onceload_core.names import Batch, Version
from onceload_core.ports import Outlook
from onceload_core.postgres import PostgresLedger, PostgresSnapshots, connect
from onceload_core.postgres.connection import translated
from onceload_core.postgres.sessions import check_own_name
from onceload_core.replay import Run
from onceload_jobs.batch.stage import sweep
from onceload_jobs.executor.executor import Executor, ExecutorFailed
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.direct import commit_chunks
from onceload_jobs.load.offering import ClaimedWork, Offering
from onceload_jobs.load.others import OtherLoads
from onceload_jobs.load.recorded import LoadEvents, Recorded, recorded
from onceload_jobs.load.report import Phase, Report, report_of
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.staged_batch import stage_and_publish
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.plan.plan import Plan
from onceload_jobs.plan.waiting_files import dead_letter_notes, held_note
from onceload_jobs.work.failures import TasksFailed
from onceload_jobs.write.rights import check_schema


def load(
    declared: Declared,
    settings: LoadSettings,
    *,
    batch: Batch,
    run: Run | None = None,
    executor: Executor | None = None,
) -> Report:
    """Load what is new; Spark is only started if there is something."""
    check_own_name("batch", batch)
    if not settings.publishes:
        refuse_direct(declared, doing="staging")
    engine = connect(settings.ledger)
    try:
        is_whole = not settings.choice.files and declared.source.is_whole
        with recorded(engine, declared.name, batch, is_whole=is_whole) as record:
            with translated(pipeline=declared.name, doing=f"loading {declared.name}"), ExitStack() as running:
                context = LoadContext(
                    declared, settings, engine, batch=batch, run=run, executor=executor, running=running
                )
                record.report = _Load(context, record).report()
            return record.report
    finally:
        engine.dispose()


def refuse_direct(declared: Declared, *, doing: str) -> None:
    """Refuse a pipeline without batches that wait to be published."""
    if declared.is_direct:
        found = f"{declared.name}, which commits each chunk as it is loaded"
        expected = f"a pipeline with publish: staged (for this one, run `onceload load {PIPELINE_FILE}`)"
        raise SettingRefused(doing, found, expected)


def take_version(declared: Declared, settings: LoadSettings) -> Version:
    """The version that all loads of a long-lived process use."""
    engine = connect(settings.ledger)
    try:
        check_schema(engine, declared)
        return PostgresLedger(engine).declare(pipeline_with_declaration(declared), may_be_paused=False)
    finally:
        engine.dispose()


def snapshot_if_due(engine: Engine, pipeline: str) -> tuple[Note, ...]:
    """Take a snapshot if one is due. A mismatch of the state does not undo the load, but needs a person."""
    try:
        position = PostgresSnapshots(engine).take_if_due(pipeline, now=datetime.now(UTC))
    except SnapshotRefused as error:
        return (Note.of("snapshot", error),)
    if position is not None:
        event("snapshot_taken", pipeline=pipeline, position=position)
    return ()


#: A plan that another load overtakes is made again, up to this many times.
_PLANS_MAX = 5
#: Loads that wait for the same file would all start at the same moment.
_APART_S_MAX = 0.5


class _Waited(Enum):
    """How a wait for other sessions ended."""

    NOTHING_HELD = "they hold nothing that this load needs"
    RELEASED = "they loaded or released what they held"
    STUCK = "they hold something, and none of them makes progress"


class _Load:
    """One load, from its first plan to its report."""

    def __init__(self, context: LoadContext, record: Recorded) -> None:
        self._context, self._record = context, record
        self._events = LoadEvents(context.declared.name, context.batch)
        self._offering, self._others = Offering(context), OtherLoads(context)

    def report(self) -> Report:
        try:
            report = self._report()
        except BaseException as error:
            self._events.failed(error)
            self._note_committed(error)
            raise
        self._events.ended(report, is_stopped=self._context.is_stopped)
        return report

    def _note_committed(self, error: BaseException) -> None:
        """Say what is committed already: the message of an error is about the step that failed."""
        context = self._context
        # If the database is gone, the next call reports it.
        with suppress(OnceloadError, SQLAlchemyError):
            done = report_of(context.ledger, context.declared, context.batch, after=context.before)
            if done.loaded:
                error.add_note(f"Before this error, the load had committed {done.loaded:,} rows. They stay loaded.")

    def _report(self) -> Report:
        context, name = self._context, self._context.declared.name
        try:
            notes = self._load()
        except ExecutorFailed as error:
            raise TasksFailed(name, str(error)) from error
        finally:
            context.stopwatch.switch_to(Phase.END)
            # A kept batch is complete.
            if context.kept is None:
                # Release what workers held that were killed with their process, so that no load waits for it.
                with suppress(OnceloadError):
                    if context.board.end_batch(context.batch, life=context.session):
                        sweep(context.engine)
        notes += context.notes
        report = report_of(context.ledger, context.declared, context.batch, after=context.before)
        if context.is_snapshot_due or report.position != context.before:
            notes += snapshot_if_due(context.engine, name)
        notes += report.notes
        report = replace(report, version=context.session.version.number, staged=context.kept)
        if (ran := context.has_run) is not None:
            report = replace(report, engine=ran.engine, engine_why=ran.why, spark_ui=ran.ui)
        return report.timed(context.stopwatch).with_notes(notes)

    def _load(self) -> tuple[Note, ...]:
        """Offer what is new, work, and wait for other sessions, until nothing new is left."""
        notes: list[Note] = []
        while True:
            self._others.tidy_up()
            plan, work = self._offer_or_publish(notes)
            if self._context.kept is not None:
                # Files that arrived meanwhile are for the next run.
                return self._notes(plan, notes, held={note.name for note in plan.notes if note.is_busy})
            # The deliveries of other loads too.
            notes += self._others.work()
            held = self._held_at_the_end(plan, work, notes)
            if held is not None:
                return self._notes(plan, notes, held=held)

    def _offer_or_publish(self, notes: list[Note]) -> tuple[Plan, ClaimedWork | None]:
        """Plan and claim what is new; hand it out to all sessions, or stage and publish it."""
        context = self._context
        for left in reversed(range(_PLANS_MAX)):
            plan = self._offering.plan(notes)
            self._events.planned(plan)
            self._record.planned(plan)
            if not plan.to_read:
                return plan, None
            try:
                with self._offering.claimed(plan) as work:
                    if context.uses_board:
                        self._offering.hand_out(work)
                    elif work.bundles and context.declared.is_direct:
                        notes += commit_chunks(context, work)
                    elif work.bundles:
                        notes += stage_and_publish(context, work)
            except (ClaimedElsewhere, AlreadyConsumed, NotAlone):
                # Another load was faster since this was planned.
                if not left:
                    raise
                time.sleep(random.uniform(0, _APART_S_MAX))  # noqa: S311 - it is not a secret.
            else:
                return plan, work
        raise AssertionError

    def _held_at_the_end(self, plan: Plan, work: ClaimedWork | None, notes: list[Note]) -> Set[str] | None:
        """Wait for other sessions, and for room; the files that they still hold, or None if there is more to load."""
        context, is_more = self._context, work is not None and work.exceeds_open_max
        if work is not None and is_more and work.bundles and not context.is_stopped:
            return None
        # No load waits for what a staged batch holds, because a person may have to publish that.
        kept = {note.name for note in plan.notes if note.is_kept}
        busy = {note.name for note in plan.notes if note.is_busy} - kept
        if context.uses_board and context.left().of_batch:
            # Another session holds it, or it is in the line of another session.
            busy |= {file.listed.name for file in plan.to_read} & context.outlook().claimed
        waited = self._wait_for(busy, plan, notes)
        if work is not None and is_more and not work.bundles and not self._others.leave_room(notes):
            notes.append(self._no_room())
            return kept if context.has_own_line else busy | kept
        if waited is _Waited.STUCK:
            return busy | kept
        return None if (is_more or waited is _Waited.RELEASED) and not context.is_stopped else kept

    def _wait_for(self, busy: Set[str], plan: Plan, notes: list[Note]) -> _Waited:
        if not busy:
            return _Waited.NOTHING_HELD
        context = self._context
        if not context.has_own_line:
            return _Waited.RELEASED if self._others.are_done_with(busy, notes) else _Waited.STUCK
        # Do not wait for the lines of other sessions, but for planners that may still add deliveries to ours.
        more = {note.name for note in plan.notes if note.has_more}
        if not self._others.have_handed_out(more, notes):
            return _Waited.STUCK
        # Files that are no longer claimed, and added nothing to our line, are planned again.
        is_others = not more and busy <= context.outlook().claimed
        return _Waited.NOTHING_HELD if is_others and not context.left().of_session else _Waited.RELEASED

    def _notes(self, plan: Plan, reported: Sequence[Note], *, held: Set[str]) -> tuple[Note, ...]:
        """All notes, without duplicates from repeated reads and without dead letters that the plan already names."""
        # A plan that nothing came of is as good as a new look.
        is_old = bool(plan.to_read or held or self._context.uses_board)
        outlook = self._context.outlook() if is_old else plan.outlook
        notes = [note for note in plan.notes if not note.is_busy]
        notes += self._held_notes(plan, held, outlook)
        notes += [*reported, *dead_letter_notes(outlook)]
        notes += self._offering.not_loaded(outlook, known={note.name for note in notes} | held)
        self._record.worked(plan, notes, claimed=outlook.claimed)
        return tuple(dict.fromkeys(notes))

    def _held_notes(self, plan: Plan, held: Set[str], outlook: Outlook) -> Iterator[Note]:
        # Files that depend on what other runs load are claimed by no run.
        waiting = {note.name: note for note in plan.notes if note.is_busy and note.name not in outlook.claimed}
        holders = self._others.held_in_words() if held else ""
        for name in sorted(held):
            note = waiting.get(name) or held_note(name, outlook)
            reason = note.reason if note.is_kept else f"{note.reason}{holders}"
            yield replace(note, reason=reason, has_more=False)

    def _no_room(self) -> Note:
        declared = self._context.declared
        open_max = declared.delivery.open_max
        why = f"{open_max} deliveries (delivery.open_max) are open, and none makes progress"
        reason = f"{why}{self._others.held_in_words()}. The rest of the new records is not loaded. Load again"
        return Note(name=declared.name, reason=reason, is_busy=True)
