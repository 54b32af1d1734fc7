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
from dataclasses import dataclass, replace
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
from onceload_jobs.executor.executor import Executor, ExecutorFailed
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.direct import commit_chunks
from onceload_jobs.load.load_events import LoadEvents
from onceload_jobs.load.offering import Offering
from onceload_jobs.load.phases import Phase
from onceload_jobs.load.recorded import Recorded, recorded
from onceload_jobs.load.report import Report, report_of
from onceload_jobs.load.sessions import Sessions
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.staged_batch import StagedBatch
from onceload_jobs.load.waiting import OtherLoads
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.plan.ledger_lookup import dead_letter_notes, held_note
from onceload_jobs.plan.plan import Plan
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
    if declared.is_direct and not settings.publishes:
        found = f"{declared.name}, which commits each chunk as it is loaded"
        expected = f"a pipeline with publish: staged (for this one, run `onceload load {PIPELINE_FILE}`)"
        raise SettingRefused("staging", found, expected)
    engine = connect(settings.ledger)
    try:
        is_whole = not settings.choice.files and declared.source.is_whole
        with recorded(engine, declared.name, batch, is_whole=is_whole) as record:
            with translated(pipeline=declared.name, doing=f"loading {declared.name}"), ExitStack() as running:
                context = LoadContext.begun(declared, settings, engine, batch=batch, run=run)
                record.report = _Load(context, record, executor=executor, running=running).report()
            return record.report
    finally:
        engine.dispose()


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


@dataclass(frozen=True, kw_only=True)
class _Offered:
    """The result of one round of planning."""

    plan: Plan
    deliveries: int = 0
    #: More is new than may be open at a time.
    exceeds_open_max: bool = False

    @property
    def busy(self) -> set[str]:
        """The files that other sessions load, or that depend on what they load."""
        return {note.name for note in self.plan.notes if note.is_busy}

    @property
    def kept(self) -> set[str]:
        """Those of them that a staged batch holds: no load waits for these, because a person may have to publish it."""
        return {note.name for note in self.plan.notes if note.is_kept}

    @property
    def has_no_room(self) -> bool:
        """Whether nothing could be offered, because as many deliveries are open as may be."""
        return self.exceeds_open_max and not self.deliveries


class _Waited(Enum):
    """How a wait for other sessions ended."""

    NOTHING_HELD = "they hold nothing that this load needs"
    RELEASED = "they loaded or released what they held"
    STUCK = "they hold something, and none of them makes progress"


@dataclass(frozen=True)
class _PlanAgain:
    """There may be more to load."""


@dataclass(frozen=True)
class _End:
    """Nothing is left that this load can get."""

    #: The files that other sessions still hold.
    held: Set[str]


class _Load:
    """One load, from its first plan to its report."""

    def __init__(
        self, context: LoadContext, record: Recorded, *, executor: Executor | None, running: ExitStack
    ) -> None:
        self._context, self._record, self._events = context, record, LoadEvents(context)
        self._sessions = Sessions(context, executor=executor, running=running)
        self._staged_batch = StagedBatch(context, self._sessions)
        self._offering = Offering(context, self._sessions)
        self._others = OtherLoads(context, self._sessions)

    def report(self) -> Report:
        try:
            report = self._report()
        except BaseException as error:
            self._events.failed(error)
            self._note_committed(error)
            raise
        self._events.ended(report)
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
            with suppress(OnceloadError):
                if self._staged_batch.kept is None:
                    context.end()
        notes += self._sessions.notes
        report = report_of(context.ledger, context.declared, context.batch, after=context.before)
        if context.is_snapshot_due or report.position != context.before:
            notes += snapshot_if_due(context.engine, name)
        notes += report.notes
        report = replace(report, version=context.version.number, staged=self._staged_batch.kept)
        if (ran := self._sessions.has_run) is not None:
            report = report.ran_by(ran)
        return report.timed(context.stopwatch).with_notes(notes)

    def _load(self) -> tuple[Note, ...]:
        """Offer what is new, work, and wait for other sessions, until nothing new is left."""
        notes: list[Note] = []
        while True:
            self._context.tidy_up()
            offered = self._offer_or_publish(notes)
            if self._staged_batch.kept is not None:
                # Files that arrived meanwhile are for the next run.
                return self._notes(offered.plan, notes, busy=offered.busy)
            # The deliveries of other loads too.
            notes += self._sessions.work()
            match self._what_next(offered, notes):
                case _End(held):
                    return self._notes(offered.plan, notes, busy=held | offered.kept)
                case _PlanAgain():
                    pass

    def _offer_or_publish(self, notes: list[Note]) -> _Offered:
        """Plan and claim what is new; hand it out to all sessions, or stage and publish it."""
        for left in reversed(range(_PLANS_MAX)):
            plan = self._offering.plan(notes)
            self._events.planned(plan)
            self._record.planned(plan)
            if not plan.to_read:
                return _Offered(plan=plan)
            try:
                with self._offering.claimed(plan) as work:
                    if self._context.uses_board:
                        self._offering.hand_out(work)
                    elif work.bundles and self._context.is_staged:
                        notes += self._staged_batch.stage_and_publish(work)
                    elif work.bundles:
                        notes += commit_chunks(self._context, self._sessions, work)
                return _Offered(plan=plan, deliveries=len(work.bundles), exceeds_open_max=work.exceeds_open_max)
            except (ClaimedElsewhere, AlreadyConsumed, NotAlone):
                # Another load was faster since this was planned.
                if not left:
                    raise
                time.sleep(random.uniform(0, _APART_S_MAX))  # noqa: S311 - it is not a secret.
        raise AssertionError

    def _what_next(self, offered: _Offered, notes: list[Note]) -> _PlanAgain | _End:
        """Wait until other sessions are done with the files that they hold, and leave room for what is new."""
        if offered.exceeds_open_max and offered.deliveries and not self._context.is_stopped:
            return _PlanAgain()
        busy, is_in_line = self._held_by_others(offered), self._context.has_own_line
        waited = self._wait_in_line(offered.plan, busy, notes) if is_in_line else self._wait_for(busy, notes)
        if offered.has_no_room and not self._others.leave_room(notes):
            notes.append(self._no_room())
            return _End(set() if is_in_line else busy)
        if waited is _Waited.STUCK:
            return _End(busy)
        is_more = offered.exceeds_open_max or waited is _Waited.RELEASED
        return _PlanAgain() if is_more and not self._context.is_stopped else _End(set())

    def _held_by_others(self, offered: _Offered) -> set[str]:
        busy = offered.busy - offered.kept
        if self._context.uses_board and self._context.left().of_batch:
            # Another session holds it, or it is in the line of another session.
            busy |= {file.listed.name for file in offered.plan.to_read} & self._context.outlook().claimed
        return busy

    def _wait_for(self, busy: Set[str], notes: list[Note]) -> _Waited:
        if not busy:
            return _Waited.NOTHING_HELD
        return _Waited.RELEASED if self._others.are_done_with(busy, notes) else _Waited.STUCK

    def _wait_in_line(self, plan: Plan, busy: Set[str], notes: list[Note]) -> _Waited:
        """Do not wait for the lines of other sessions, but for planners that may still add deliveries to ours."""
        if not busy:
            return _Waited.NOTHING_HELD
        more = {note.name for note in plan.notes if note.has_more}
        if not self._others.have_handed_out(more, notes):
            return _Waited.STUCK
        # Files that are no longer claimed, and added nothing to our line, are planned again.
        is_others = not more and busy <= self._context.outlook().claimed
        is_nothing_ours = is_others and not self._context.left().of_session
        return _Waited.NOTHING_HELD if is_nothing_ours else _Waited.RELEASED

    def _notes(self, plan: Plan, reported: Sequence[Note], *, busy: Set[str]) -> tuple[Note, ...]:
        """All notes, without duplicates from repeated reads and without dead letters that the plan already names."""
        # A plan that nothing came of is as good as a new look.
        is_old = bool(plan.to_read or busy or self._context.uses_board)
        outlook = self._context.outlook() if is_old else plan.outlook
        notes = [note for note in plan.notes if not note.is_busy]
        notes += self._busy_notes(plan, busy, outlook)
        notes += [*reported, *dead_letter_notes(outlook)]
        notes += self._offering.not_loaded(outlook, known={note.name for note in notes} | busy)
        self._record.worked(plan, notes, claimed=outlook.claimed)
        return tuple(dict.fromkeys(notes))

    def _busy_notes(self, plan: Plan, busy: Set[str], outlook: Outlook) -> Iterator[Note]:
        # Files that depend on what other runs load are claimed by no run.
        waiting = {note.name: note for note in plan.notes if note.is_busy and note.name not in outlook.claimed}
        holders = self._context.held_by_others() if busy else ""
        for name in sorted(busy):
            note = waiting.get(name) or held_note(name, outlook)
            reason = note.reason if note.is_kept else f"{note.reason}{holders}"
            yield replace(note, reason=reason, has_more=False)

    def _no_room(self) -> Note:
        declared = self._context.declared
        open_max = declared.delivery.open_max
        why = f"{open_max} deliveries (delivery.open_max) are open, and none makes progress"
        reason = f"{why}{self._context.held_by_others()}. The rest of the new records is not loaded. Load again"
        return Note(name=declared.name, reason=reason, is_busy=True)
