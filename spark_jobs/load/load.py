"""One load: plan, offer what is new, let sessions work on it, and say what the ledger says.

Nothing here decides whether rows are new: the board says who works on what, and every commit is refused by the ledger
if any part of it took effect before. A load that is killed anywhere may just be called again; two at once share the
work. What commits by itself is handed out, and is everybody's from then on. What is published at once is claimed by
whoever plans it for as long as that lives, staged by whoever takes it, and goes with its claim.
"""

import random
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cached_property, partial
from itertools import islice

from sqlalchemy import Connection, Engine

from dedup_core.errors import (
    AlreadyConsumed,
    ClaimedElsewhere,
    DatabaseLost,
    NotAlone,
    OnceloadError,
    SettingRefused,
    SnapshotRefused,
)
from dedup_core.names import Batch, ProducerId, SessionName, Version
from dedup_core.ports import Advance, Claim, Commit, Outlook
from dedup_core.postgres import PostgresLedger, PostgresSnapshots, connect
from dedup_core.postgres.batches import planner_of
from dedup_core.postgres.connection import translated
from dedup_core.postgres.deliveries import OpenWork, PostgresDeliveries, check_own_name, session_of
from dedup_core.replay import Counts, Run
from dedup_core.spans import SEQUENCE_END, Span, SpanSet
from spark_jobs.batch.hand_over import keep
from spark_jobs.batch.job import Job, Replacement
from spark_jobs.batch.parts import StagedPart, is_whole, staged_parts
from spark_jobs.batch.stage import Stage, StageLost, open_stage
from spark_jobs.content.known import Twin
from spark_jobs.files.addresses import is_of_s3, known_access
from spark_jobs.files.notes import Note
from spark_jobs.formats.records import Chunk
from spark_jobs.load.report import LoadSettings, Report, what_came_of, what_is_left_of
from spark_jobs.load.turns import overtaking
from spark_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column
from spark_jobs.pipeline.declared import Declared, UnknownFields
from spark_jobs.plan.bundles import bundles
from spark_jobs.plan.choice import Choice
from spark_jobs.plan.known import set_aside_notes
from spark_jobs.plan.life import was_left_open
from spark_jobs.plan.plan import Plan, depends_on_others, make_plan
from spark_jobs.plan.rest import FileToRead
from spark_jobs.plan.versions import as_declared
from spark_jobs.publish.publish import BatchIncomplete, half_read, publish
from spark_jobs.quality.audit import audit_stage, check
from spark_jobs.read.delivery import Bundle, Delivery, offers_of, read_work, spans_of
from spark_jobs.read.limits import note_nothing_good
from spark_jobs.work.progress import Waiting, WatchedTasks, planned_bytes
from spark_jobs.work.session import BEATS_PER_LEASE, Tasks, renewed
from spark_jobs.write.patience import answered
from spark_jobs.write.sql import table_name
from spark_jobs.write.target import check_target, ensure_target, undeclared_columns

#: A plan that somebody else was faster with is made anew, but not for ever.
_PLANS_MAX = 5
#: A crash of the server empties what is unlogged; the next staging then starts from nothing.
_STAGINGS_MAX = 5
_PAUSE_S = (0.02, 0.5)


def load(
    declared: Declared, settings: LoadSettings, *, batch: Batch, run: Run | None = None, tasks: Tasks | None = None
) -> Report:
    """Load what is new; nothing new takes no Spark."""
    check_own_name("batch", batch)
    if declared.is_direct and not settings.publishes:
        found = f"{declared.name}, which commits each chunk as it is loaded"
        raise SettingRefused("staging", found, "a pipeline with publish: staged; call `onceload load` for this one")
    engine = connect(settings.ledger)
    try:
        with translated(pipeline=declared.name, doing=f"loading {declared.name}"), ExitStack() as running:
            return _Load(declared, settings, engine, batch=batch, run=run, tasks=tasks, running=running).report()
    finally:
        engine.dispose()


def take_version(declared: Declared, settings: LoadSettings) -> Version:
    """The version that loads of a process go by which stays."""
    engine = connect(settings.ledger)
    try:
        return PostgresLedger(engine).declare(as_declared(declared))
    finally:
        engine.dispose()


def snapshot_if_due(engine: Engine, pipeline: str) -> tuple[Note, ...]:
    """Take a snapshot if one is due. What is wrong with the state does not undo the load, and needs a person."""
    try:
        PostgresSnapshots(engine).take_if_due(pipeline, now=datetime.now(UTC))
    except SnapshotRefused as error:
        return (Note.of("snapshot", error),)
    return ()


class _Load:
    """One load, from its first plan to its report."""

    def __init__(
        self,
        declared: Declared,
        settings: LoadSettings,
        engine: Engine,
        *,
        batch: Batch,
        run: Run | None,
        tasks: Tasks | None,
        running: ExitStack,
    ) -> None:
        self._started = time.monotonic()
        self._declared, self._settings, self._engine, self._batch, self._run = declared, settings, engine, batch, run
        self._given = tasks
        self._running = running
        self._starting_s = 0.0
        self._planned: int | None = 0
        self._handed_out: dict[ProducerId, SpanSet] = {}
        self._sizes: dict[ProducerId, int] = {}
        self._kept: int | None = None
        self._ledger = PostgresLedger(engine)
        self._board = PostgresDeliveries(engine, declared.name, declared.delivery)
        self._version = self._ledger.declare(as_declared(declared), version=settings.version)
        check_target(engine, self._ledger, declared)
        # First of all, whatever an earlier life under this name still holds falls back.
        self._board.end_batch(batch, reason=f"a later run of batch {batch} took over")
        self._session = self._ledger.open_session(declared.name, planner_of(batch), version=self._version)
        self._before = self._ledger.position(declared.name)

    def report(self) -> Report:
        try:
            notes = self._load()
        finally:
            # What a worker held that was killed with its process is not waited for; and a batch that is kept is whole.
            with suppress(OnceloadError):
                if self._kept is None:
                    self._board.end_batch(self._batch, reason=None, life=self._session)
        notes += snapshot_if_due(self._engine, self._declared.name)
        report = what_came_of(self._ledger, self._declared.name, self._batch, after=self._before)
        if report.quarantined:
            bad = self._ledger.all_bad(self._declared.name, self._batch, after=self._before)
            notes += note_nothing_good(self._declared, bad)
        seconds = time.monotonic() - self._started - self._starting_s
        return replace(
            report,
            version=self._version,
            seconds=seconds,
            session_start_seconds=self._starting_s,
            staged=self._kept,
            notes=notes,
        )

    def _load(self) -> tuple[Note, ...]:
        """Plan and work until nothing is left that is new; what others hold is waited for."""
        told: list[Note] = []
        while True:
            self._tidy_up()
            plan, offered, is_cut = self._plan_and_offer(told)
            if self._kept is not None:
                # What came meanwhile is for the next run.
                return self._notes(plan, told, busy={note.name for note in plan.notes if note.is_busy})
            told += self._help()
            if is_cut and offered and not self._settings.is_stopped():
                continue
            busy = {note.name for note in plan.notes if note.is_busy}
            if self._left().of_batch:
                # Somebody else has it in hand, or in his line.
                claimed = self._outlook().claimed
                busy |= {file.listed.name for file in plan.to_read} & claimed
            if self._has_own_line and busy:
                # The other lines are not ours to wait for; but somebody may be about to hand out to ours.
                more = {note.name for note in plan.notes if note.has_more}
                are_done = self._wait_until(partial(self._is_handed_out, more), told)
                # What is claimed no more, and came to nothing in our line, is planned again.
                is_others = not more and busy <= self._outlook().claimed
                busy = set() if are_done and is_others and not self._left().of_session else busy
            else:
                are_done = self._wait_until(partial(self._is_free, busy), told) if busy else True
            if is_cut and not offered and not self._wait_until(self._has_room, told):
                told.append(self._no_room())
                are_done, busy = False, set() if self._has_own_line else busy
            if self._settings.is_stopped() or not are_done or not (is_cut or busy):
                break
        return self._notes(plan, told, busy=set() if are_done else busy)

    def _tidy_up(self) -> None:
        """Let fall back what is late, and what was in the hands of a session that there is no more go to the first."""
        self._expire()
        if self._declared.has_fixed_sessions:
            answered(self._board.adopt_strays)
        if self._is_staged:
            # Deliveries go with the claim of their planner; where nothing is left to claim, nobody else drops it.
            answered(partial(self._ledger.drop_ended_claims, self._declared.name))

    def _expire(self) -> None:
        answered(partial(self._board.expire, is_staged=self._is_staged))

    def _no_room(self) -> Note:
        open_max = self._declared.delivery.open_max
        reason = f"{open_max} deliveries (delivery.open_max) are open, and nobody gets on with them: call again"
        return Note(name=self._declared.name, reason=f"{reason}{self._whose()}", is_busy=True)

    def _notes(self, plan: Plan, told: Sequence[Note], *, busy: set[str]) -> tuple[Note, ...]:
        """All that is to be said: what was read twice was told twice, and a dead letter may be known to the plan."""
        outlook = self._outlook()
        notes = [note for note in plan.notes if not note.is_busy]
        reasons = {note.name: note.reason for note in plan.notes if note.is_busy}
        whose = self._whose() if busy else ""
        notes += [
            Note(name=name, reason=f"{reasons.get(name, 'another run is loading it')}{whose}", is_busy=True)
            for name in sorted(busy)
        ]
        notes += [*told, *set_aside_notes(outlook)]
        notes += self._not_in(outlook, known={note.name for note in notes} | busy)
        return tuple(dict.fromkeys(notes))

    def _whose(self) -> str:
        """Who holds something, in words."""
        held = (f"session {name} until {at:%H:%M:%S}Z" for name, at in answered(self._board.holders).items())
        return "".join(f" ({each}, or longer)" for each in [", ".join(held)] if each)

    def _not_in(self, outlook: Outlook, *, known: Container[str]) -> Iterator[Note]:
        """What was handed out, is no more, and is not in: somebody could not read it, and told others why."""
        states = answered(partial(self._ledger.know, self._session, list(self._handed_out)))
        for producer_id, spans in self._handed_out.items():
            state = states[producer_id].state if producer_id in states else None
            if state is None or state.name in known or state.name in outlook.claimed:
                continue
            is_open_ended = bool(spans) and spans.end == SEQUENCE_END
            # Of those, a size is noted with the last part that was read, unless its last line is open.
            is_read = (state.size or 0) >= self._sizes[producer_id] or was_left_open(state)
            if not (is_read if is_open_ended else state.consumed.covers(spans)):
                reason = "not all that was handed out of it is in: whoever took it says why; load again"
                yield Note(name=state.name, reason=reason, is_unreadable=True)

    # Plans.

    def _plan_and_offer(self, told: list[Note]) -> tuple[Plan, int, bool]:
        """Plan, and see to it that what is new is loaded, by whoever takes it: how much of it, and if there is more."""
        for attempt in range(_PLANS_MAX):
            plan = answered(lambda: make_plan(self._declared, self._ledger, now_s=time.time(), choice=self._choice()))
            # What came to nothing would do so again, and might leave no room for others: the next call may try it.
            failed = {note.name for note in (*told, *self._not_in(plan.outlook, known=()))}
            plan = replace(plan, to_read=tuple(file for file in plan.to_read if file.listed.name not in failed))
            if not plan.to_read:
                return plan, 0, False
            try:
                return plan, *self._offer(plan, told)
            except (ClaimedElsewhere, AlreadyConsumed, NotAlone):
                # Somebody was faster since it was planned.
                if attempt == _PLANS_MAX - 1:
                    raise
                # All who wait for the same file begin at the same moment.
                time.sleep(random.uniform(0, _PAUSE_S[1]))  # noqa: S311 - it is no secret.
        raise AssertionError

    def _choice(self) -> Choice:
        return what_is_left_of(self._settings.choice, self._ledger, self._declared.name, self._batch)

    def _offer(self, plan: Plan, told: list[Note]) -> tuple[int, bool]:
        """Hand out what is planned, or stage and publish it: how many deliveries, and whether that is not all."""
        ledger, declared = self._ledger, self._declared
        names = [(file.listed.name, file.generation) for file in plan.to_read]
        ids = answered(partial(ledger.register, declared.name, names))
        named = {producer_id: name for (name, _), producer_id in ids.items()}
        twins = {ids[file.listed.name, file.generation]: file.twin for file in plan.to_read if file.twin}
        # What goes on under a name that is new to its producer is read as that producer's.
        ids |= {
            (file.listed.name, file.generation): file.twin.copy_of
            for file in plan.to_read
            if file.twin and file.twin.takes_over and file.twin.copy_of is not None
        }
        some, is_cut = bundles(declared, plan.to_read, ids), False
        if declared.is_direct:
            room = max(0, declared.delivery.open_max - self._left().count)
            # One more tells that there is more.
            gathered = list(islice(some, room + 1))
            gathered, is_cut = gathered[:room], len(gathered) > room
        else:
            gathered = list(some)
        spans = spans_of(chunk for chunks in gathered for chunk in chunks)
        claim = ledger.claim(
            self._session,
            dict.fromkeys(twins, SpanSet()) | spans,
            batch=self._batch,
            lease_s=declared.delivery.ack_deadline_s,
            names=named,
            # What is in, or about to be, under another name or of an earlier turn decides what is new.
            unchanged=plan.outlook if depends_on_others(declared) else None,
        )
        self._planned = planned_bytes(gathered)
        every_s = declared.delivery.ack_deadline_s / BEATS_PER_LEASE
        renew = partial(ledger.renew, self._session, lease_s=declared.delivery.ack_deadline_s)
        with renewed(renew, every_s=every_s):
            try:
                self._note(twins, claim)
                if declared.is_direct:
                    self._board.offer(claim, offers_of(gathered), batch=self._batch)
                    for producer_id, some_spans in spans.items():
                        self._handed_out[producer_id] = self._handed_out.get(producer_id, SpanSet()) | some_spans
                    self._sizes |= {chunk.producer_id: chunk.size for chunks in gathered for chunk in chunks}
                elif gathered:
                    told += self._stage_and_publish(plan.to_read, ids, gathered, claim)
            finally:
                # Acked or handed out, it is gone; else it falls back now instead of when its lease ends.
                with suppress(OnceloadError):
                    ledger.release(claim)
        return len(gathered), is_cut

    def _note(self, twins: Mapping[ProducerId, Twin], claim: Claim) -> None:
        """Write down what the plan found out without reading any record, as long as its claim is held."""
        advances = [_noted(producer_id, twin) for producer_id, twin in twins.items()]
        if advances:
            commit: Commit[Connection] = Commit(
                session=self._session,
                batch=self._batch,
                advances=tuple(advances),
                write_rows=lambda _: 0,
                # A planner that was away for longer than its lease has planned by what is not so any more.
                claim=claim,
                is_last=False,
                counts=Counts(duplicate=sum(twin.duplicates for twin in twins.values())),
                run=self._run,
            )
            self._ledger.commit(commit)

    # Work.

    @cached_property
    def _tasks(self) -> Tasks:
        """Started when there is something to do."""
        if self._given is not None:
            return self._given
        from spark_jobs.work.spark import SparkTasks

        self._tell_waiting("Spark to start")
        starting = time.monotonic()
        settings = self._settings
        spark = SparkTasks.started(
            self._declared.name, settings.master, settings.spark_options, tries=self._declared.delivery.deliveries_max
        )
        tasks = self._running.enter_context(spark)
        self._starting_s = time.monotonic() - starting
        return tasks

    @cached_property
    def _job(self) -> Job:
        """What all sessions have to know; the target is there from then on."""
        declared = self._declared
        columns = _columns(declared)
        if declared.unknown_fields is UnknownFields.ADD:
            with self._engine.begin() as connection:
                known = [column.name for column in columns]
                columns += undeclared_columns(connection, table_name(declared.target), known=known)
        job = Job(
            declared=declared,
            columns=columns,
            written=columns,
            ledger=self._settings.ledger,
            session=self._session,
            batch=self._batch,
            run=self._run,
            wait_s=self._settings.wait_s,
            differences_accepted=self._settings.differences_accepted,
            access=known_access() if is_of_s3(declared.source.path) else {},
        )
        job = self._tasks.writing(job)
        if self._settings.choice.replaces and not job.has_lineage:
            found = "a transform whose rows do not tell their file, so that the old ones would stay beside the new"
            expected = f"{PRODUCER_ID} and {SEQUENCE} among its columns"
            raise SettingRefused(f"replacing rows of pipeline {declared.name}", found, expected)
        ensure_target(self._engine, declared, columns=job.written)
        return job

    @property
    def _watched(self) -> Tasks:
        tell = self._settings.tell
        if tell is None:
            return self._tasks
        return WatchedTasks(self._tasks, tell, after=self._before, planned=self._planned)

    def _sessions(self, deliveries: int) -> list[SessionName]:
        """Who takes part: the fixed sessions, or as many of our own as there is work for."""
        rules = self._declared.delivery
        if self._declared.has_fixed_sessions:
            return list(rules.names)
        count = min(rules.sessions or self._tasks.slots, max(1, deliveries))
        return [session_of(self._batch, str(number)) for number in range(1, count + 1)]

    def _help(self, job: Job | None = None) -> list[Note]:
        """Let sessions work on what is open, whoever offered it, as long as something may be ready for them."""
        notes: list[Note] = []
        before, left = None, self._left()
        while left != before and self._is_for_us(left) and not self._settings.is_stopped():
            notes += self._watched.run(job or self._job, self._sessions(left.count))
            # Whoever runs under our name by now goes on instead.
            lease_s = self._declared.delivery.ack_deadline_s
            answered(partial(self._ledger.renew, self._session, lease_s=lease_s))
            before, left = left, self._left()
        return notes

    @property
    def _is_staged(self) -> bool:
        return not self._declared.is_direct

    def _left(self) -> OpenWork:
        look = partial(self._board.open_work, self._batch, is_staged=self._is_staged, session=self._settings.session)
        return answered(look)

    def _outlook(self) -> Outlook:
        return answered(partial(self._ledger.outlook, self._declared.name))

    def _is_for_us(self, left: OpenWork) -> bool:
        """Whether sessions of ours may find something to do."""
        if self._declared.transform is not None:
            return False
        return left.of_session if self._has_own_line else bool(left.waiting or left.of_batch)

    @property
    def _has_own_line(self) -> bool:
        """Whether this is one of the fixed sessions, which ends with its line."""
        return self._declared.has_fixed_sessions and self._settings.session is not None

    def _is_free(self, busy: set[str], outlook: Outlook, left: OpenWork) -> bool:
        """Whether nobody loads these files any more, nor anything that decides what is new."""
        del left
        return not self._before_us(busy, outlook)

    def _is_handed_out(self, more: set[str], outlook: Outlook, left: OpenWork) -> bool:
        """Whether there is something in our line, or nobody has to come first who may put something there."""
        if left.of_session:
            return True
        return not (more and self._before_us(more, outlook)) and not answered(self._board.is_being_planned)

    def _before_us(self, names: set[str], outlook: Outlook) -> Set[str]:
        """What others have in hand of these files, or of all that decides what is new of them."""
        others = outlook.claimed - outlook.set_aside.keys()
        return others if depends_on_others(self._declared) else others & names

    def _has_room(self, outlook: Outlook, left: OpenWork) -> bool:
        del outlook
        return left.count < self._declared.delivery.open_max or (self._has_own_line and left.of_session)

    def _wait_until(self, is_so: Callable[[Outlook, OpenWork], bool], told: list[Note]) -> bool:
        """Wait, and help, until it is so, or nobody gets on for too long; whether it came to be so."""
        pause_s, seen, helps_at = _PAUSE_S[0], None, 0.0
        until = time.monotonic() + self._settings.wait_s
        while not self._settings.is_stopped():
            outlook, left = self._outlook(), self._left()
            if is_so(outlook, left):
                return True
            if (outlook, left) != seen:
                seen, until, helps_at = (outlook, left), time.monotonic() + self._settings.wait_s, 0.0
            if time.monotonic() >= until:
                return False
            if self._settings.tell is not None:
                self._tell_waiting(f"another load{self._whose()}")
            self._expire()
            if left.waiting and time.monotonic() >= helps_at:
                told += self._help()
                # What nobody could take may belong to one whose lease ends, which changes nothing that is seen here.
                helps_at = time.monotonic() + self._declared.delivery.ack_deadline_s / BEATS_PER_LEASE
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])
        return False

    def _tell_waiting(self, waits_for: str) -> None:
        if self._settings.tell is not None:
            with suppress(OSError):
                self._settings.tell(Waiting(waits_for=waits_for))

    # What is published at once.

    def _stage_and_publish(
        self,
        files: Sequence[FileToRead],
        ids: Mapping[tuple[str, int], ProducerId],
        some: Sequence[Bundle],
        claim: Claim,
    ) -> list[Note]:
        """Stage all of it, as often as the server loses what was staged, and publish it in one commit.

        A file that should replace what was loaded of it, and cannot be read whole, is left out, and all is staged
        again; so is what was set aside after too many tries, and what would overtake something that cannot be read.
        """
        job = replace(self._job, replaced=_replaced(files, ids))
        left_out: list[Note] = []
        losses = 0
        while losses < _STAGINGS_MAX:
            losses += 1
            with ExitStack() as staging:
                # A crash has left connections behind that find out only now, and nobody holds what was staged there.
                stage = answered(partial(self._open_stage, staging, job))
                with suppress(StageLost):
                    notes = self._staged(replace(job, stage=stage), some, claim)
                    parts = answered(partial(self._parts, stage))
                    notes += [note for part in parts for note in part.notes]
                    broken = half_read(job, parts, notes)
                    dead = self._set_aside(claim)
                    is_there = not dead and is_whole(parts, deliveries=len(some)) and not _has_holes(parts, some)
                    noted = {note.name for note in notes} | {each.name for each in broken.values()}
                    behind = overtaking(self._declared, some, parts, noted=noted) if is_there else None
                    if is_there and not broken and behind is None:
                        notes = left_out + notes
                        self._publish_or_keep(job, stage, parts, claim, deliveries=len(some), notes=notes)
                        return notes
                    if self._settings.is_stopped():
                        return left_out
                    if dead or broken or behind:
                        # That is no loss, and there is less each time.
                        losses = 0
                        left_out += _why_old_rows_stay(broken.values(), notes)
                        left_out += behind.notes(self._declared) if behind else ()
                        late = behind.chunks if behind else frozenset()
                        some = _without(some, dead=dead, producers=broken, late=late)
        raise DatabaseLost(f"staging batch {job.batch}", f"the server lost staged rows {_STAGINGS_MAX} times")

    def _publish_or_keep(
        self,
        job: Job,
        stage: Stage,
        parts: Sequence[StagedPart],
        claim: Claim,
        *,
        deliveries: int,
        notes: Sequence[Note],
    ) -> None:
        if self._settings.publishes:
            if self._declared.suite is not None:
                audit = audit_stage(self._engine, self._ledger, job, stage, parts, docs=self._settings.docs)
                check(audit, job, stage)
            publish(self._engine, self._ledger, job, stage, parts, claim=claim)
        elif any(part.advances for part in parts):
            keep(self._engine, job, stage, claim, deliveries=deliveries, notes=notes)
            self._kept = sum(part.rows for part in parts)

    def _staged(self, job: Job, some: Sequence[Bundle], claim: Claim) -> list[Note]:
        """Let everybody stage the batch, as often as a delivery of it comes back."""
        if self._declared.transform is not None:
            # What Spark SQL reads, it may read again, so that all of it stays in the hands of this one session.
            deliveries = [Delivery(number=number, chunks=chunks, claim=claim) for number, chunks in enumerate(some)]
            return self._watched.transform(job, deliveries)
        stage = "" if job.stage is None else job.stage.name
        self._board.offer_batch(claim, offers_of(some, stage=stage), batch=self._batch)
        return self._help(job)

    def _open_stage(self, staging: ExitStack, job: Job) -> Stage:
        with translated(pipeline=job.declared.name, doing="opening a stage"):
            target = job.declared.target
            return staging.enter_context(open_stage(self._engine, job.written, target, lineage=job.has_lineage))

    def _parts(self, stage: Stage) -> tuple[StagedPart, ...]:
        with translated(pipeline=self._declared.name, doing="looking at staged pieces"):
            return staged_parts(self._engine, stage)

    def _set_aside(self, claim: Claim) -> set[tuple[ProducerId, int]]:
        """Take dead letters out of the batch, unless it makes no sense without them: where each chunk begins."""
        dead = answered(partial(self._board.dead_of, claim))
        if dead and self._declared.is_published_whole:
            raise BatchIncomplete(self._declared.name, self._batch, dead[0].tries, dead[0].reason)
        answered(partial(self._board.set_aside, claim))
        letters = (read_work(self._declared, each.work, claim)[0] for each in dead)
        return {_place(chunk) for letter in letters for chunk in letter.chunks}


def _has_holes(parts: Sequence[StagedPart], some: Sequence[Bundle]) -> bool:
    """Whether anything is staged of a chunk without all that stands before it in the chunk."""
    staged: dict[tuple[int, ProducerId], SpanSet] = {}
    for part in parts:
        for advance in part.advances:
            key = part.delivery, advance.producer_id
            staged[key] = staged.get(key, SpanSet()) | advance.spans
    for number, chunks in enumerate(some):
        for chunk in chunks:
            whole = SpanSet([Span(chunk.first, SEQUENCE_END if chunk.end is None else chunk.end)])
            read = staged.get((number, chunk.producer_id), SpanSet()) & whole
            if read and read != SpanSet([Span(chunk.first, read.end)]):
                return True
    return False


def _noted(producer_id: ProducerId, twin: Twin) -> Advance:
    """Content that is loaded under another name keeps its producer, whichever name that producer continues under."""
    if twin.takes_over and twin.copy_of is not None:
        its: dict[str, ProducerId] = {"producer_id": twin.copy_of, "takes_name_of": producer_id}
    else:
        its = {"producer_id": producer_id} | ({} if twin.copy_of is None else {"copy_of": twin.copy_of})
    return Advance(
        **its,
        spans=twin.consumed,
        shares_with=twin.shares_with,
        records=twin.records,
        digest=twin.digest,
        fingerprint=twin.fingerprint,
        size=twin.size,
        condition=twin.condition,
    )


def _columns(declared: Declared) -> tuple[Column, ...]:
    """What rows are found by may not be null: such a record is quarantined, instead of failing all of them."""
    found_by = declared.found_by
    return tuple(replace(column, not_null=True) if column.name in found_by else column for column in declared.columns)


def _replaced(files: Sequence[FileToRead], ids: Mapping[tuple[str, int], ProducerId]) -> dict[ProducerId, Replacement]:
    return {
        ids[file.listed.name, file.generation]: Replacement(
            old=file.replaces,
            name=file.listed.name,
            planned=SpanSet(Span(first, end) for first, end in file.spans if end is not None),
        )
        for file in files
        if file.replaces is not None
    }


def _why_old_rows_stay(broken: Iterable[Replacement], notes: Sequence[Note]) -> Iterator[Note]:
    for name in (replacement.name for replacement in broken):
        told = [note for note in notes if note.name == name] or [Note(name=name, reason="it was not read to its end")]
        yield from (note.of_no_replacement() for note in told)


def _without(
    some: Sequence[Bundle],
    *,
    dead: Container[tuple[ProducerId, int]],
    producers: Container[ProducerId],
    late: Container[Chunk],
) -> list[Bundle]:
    return [
        tuple(
            chunk
            for chunk in chunks
            if _place(chunk) not in dead and chunk.producer_id not in producers and chunk not in late
        )
        for chunks in some
    ]


def _place(chunk: Chunk) -> tuple[ProducerId, int]:
    return chunk.producer_id, chunk.first
