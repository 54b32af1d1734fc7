"""The state of a pipeline in a word, with its reason and what to do next.

`onceload status`, the console and the metrics show what this function decides, so that they agree.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from shlex import quote
from typing import Any

from sqlalchemy import Engine

from onceload.lag import Behind, Described, Lag, Unknown
from onceload.named_files import named
from onceload.terminal import counted, time_in_words
from onceload_core.commands import PIPELINE_FILE
from onceload_core.postgres.attempts import look_attempts
from onceload_core.postgres.connection import Record
from onceload_core.postgres.metrics import look_now
from onceload_core.postgres.rewound import Owed, find_all_owed
from onceload_jobs.pipeline.declared import ON_ARRIVAL, Declared, QuarantineLimit

#: Work that no living session takes is stuck after this time.
_STUCK_AFTER_S = 300.0
#: A load that has not ended is stuck after this time without a session. Until it has listed its files, it has none.
_LOST_AFTER_S = 900.0
#: New files are late after this time, if two runs of the schedule have begun since.
_LATE_AFTER_S = 900.0
#: The bound of quarantined records for pipelines that declare none: a share of the records of the same commits.
QUARANTINED_MAX = QuarantineLimit(share=0.01)


class State(StrEnum):
    """The worst first."""

    NEEDS_A_PERSON = "needs a person"
    UNREADABLE = "cannot be read"
    FAILED = "failed"
    STUCK = "stuck"
    LATE = "late"
    QUARANTINE = "quarantine"
    PAUSED = "paused"
    LOADING = "loading"
    FINE = "fine"
    NEW = "new"

    @property
    def badness(self) -> int:
        """0 for the worst."""
        return list(State).index(self)

    @property
    def css(self) -> str:
        return self.replace(" ", "-")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The facts about a pipeline that decide its state."""

    #: Its name, or the path of its file if that has an error.
    name: str
    #: Its row in the database; None before its first load.
    row: Record | None = None
    #: Its last loads; None if no load has recorded any.
    attempt: Record | None = None
    #: What its producers owe since a rewind.
    owed: tuple[Owed, ...] = ()
    lag: Lag | None = None
    #: Why its pipeline file or its files cannot be read.
    failed: Unknown | None = None
    described: Described | None = None

    @property
    def declared(self) -> Declared | None:
        return self.described.declared if self.described else None

    @property
    def file(self) -> str:
        """The pipeline file, for commands."""
        return named(self.described.path) if self.described else PIPELINE_FILE


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One thing that is wrong."""

    state: State
    reason: str
    #: The command that helps, or that shows more.
    next: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    state: State
    #: All reasons for it.
    reason: str
    #: What to do; empty if there is nothing to do.
    next: str = ""
    #: All that is wrong, the worst first.
    causes: tuple[Cause, ...] = ()

    @property
    def states(self) -> frozenset[State]:
        """Every state that applies. The worst one does not hide another from alerts."""
        return frozenset({self.state, *(each.state for each in self.causes)})


def all_found(
    engine: Engine, behind: Behind | None, *, only: str | None = None, rows: Sequence[Record] | None = None
) -> list[Found]:
    """The facts about every pipeline or one; known by the database, or by its pipeline file alone."""
    known = {row.name: row for row in (look_now(engine, only=only) if rows is None else rows)}
    last = {attempt.pipeline: attempt for attempt in look_attempts(engine, only=only)}
    owed = find_all_owed(engine, only=only)
    seen: Mapping[str, tuple[float, Lag]] = behind.seen if behind else {}
    failed = {name: behind.unknown(name) for name in (*behind.described, *behind.failed)} if behind else {}
    described: Mapping[str, Described] = behind.described if behind else {}
    names = dict.fromkeys([*known, *last, *seen, *failed, *described])
    return [
        Found(
            name=name,
            row=known.get(name),
            attempt=last.get(name),
            owed=owed.get(name, ()),
            lag=seen[name][1] if name in seen else None,
            failed=failed.get(name),
            described=described.get(name),
        )
        for name in names
        if only in (None, name)
    ]


def state_of(found: Found, *, now: datetime) -> Verdict:
    """The state, with all reasons for it."""
    causes = sorted(_wrong(found, now=now), key=lambda each: each.state.badness)
    if any(each.state is State.PAUSED for each in causes):
        # New files and open work wait for the resume.
        causes = [each for each in causes if each.state not in (State.STUCK, State.LATE)]
    if causes:
        worst = causes[0].state
        reasons = [each.reason for each in causes if each.state is worst]
        # A pause is shown in any case, because nothing else gets better before the resume.
        reasons += [f"paused {each.reason}" for each in causes if State.PAUSED is each.state is not worst]
        return Verdict(state=worst, reason="; ".join(reasons), next=causes[0].next, causes=tuple(causes))
    state, reason = _well(found)
    return Verdict(state=state, reason=reason)


def _well(found: Found) -> tuple[State, str]:
    if found.row is None:
        return State.NEW, "nothing has been loaded yet"
    if found.row.sessions_alive:
        return State.LOADING, _of_sessions(found.row)
    if found.lag is not None and found.lag.files:
        is_scheduled = found.declared is not None and found.declared.schedule is not None
        then = "the next scheduled run loads what is complete" if is_scheduled else "no schedule, so start a load"
        return State.FINE, f"{counted(found.lag.files, 'file')} with records that are not loaded yet; {then}"
    if found.lag is None:
        return State.FINE, "no known problem; new files were not counted"
    # Loads that move files away leave an empty source.
    return State.FINE, "all files are loaded" if found.lag.has_files else "no file matches the path of the source"


def _wrong(found: Found, *, now: datetime) -> Iterator[Cause]:
    yield from _wrong_in_files(found)
    yield from _wrong_in_loads(found)
    if found.row is not None:
        yield from _wrong_in_database(found, found.row)
    yield from _late(found, now=now)


def _wrong_in_files(found: Found) -> Iterator[Cause]:
    if found.failed and found.failed.is_of_file:
        fix = f"correct the file, then run `onceload validate {found.name}`"
        yield Cause(state=State.NEEDS_A_PERSON, reason=found.failed.reason, next=fix)
    elif found.failed and found.failed.is_of_another:
        yield Cause(state=State.NEEDS_A_PERSON, reason=found.failed.reason, next=f"run `onceload plan {found.file}`")
    elif found.failed:
        what_now = f"make the source readable, then run `onceload plan {found.file}`"
        yield Cause(state=State.UNREADABLE, reason=found.failed.reason, next=what_now)
    if found.lag and found.lag.refused > found.lag.unreadable:
        reason = f"{counted(found.lag.refused - found.lag.unreadable, 'file')} cannot be loaded"
        yield Cause(state=State.NEEDS_A_PERSON, reason=reason, next=f"run `onceload plan {found.file}`")
    if found.lag and found.lag.lost and not found.failed:
        reason = f"a rewind deleted rows of {counted(found.lag.lost, 'file')} that no load can load again"
        yield Cause(state=State.NEEDS_A_PERSON, reason=reason, next=f"run `onceload verify {found.file}`")
    if found.lag and found.lag.unreadable and not found.failed:
        reason = f"{counted(found.lag.unreadable, 'file')} cannot be read"
        yield Cause(state=State.UNREADABLE, reason=reason, next=f"run `onceload plan {found.file}`")


def _wrong_in_loads(found: Found) -> Iterator[Cause]:
    attempt = found.attempt
    if attempt is None:
        return
    if attempt.exit_code:
        age, outcome = time_in_words(float(attempt.ended_age_s)), f"exit code {attempt.exit_code}, {attempt.reason}"
        reason = f"the last load, batch {attempt.batch}, failed {age} ago: {outcome}"
        what_now = f"see its log, or run `onceload load {found.file}` for the whole message"
        yield Cause(state=State.FAILED, reason=reason, next=what_now)
    is_away = found.row is None or not found.row.sessions_alive
    if is_away and attempt.running_age_s is not None and attempt.running_age_s > _LOST_AFTER_S:
        age = time_in_words(float(attempt.running_age_s))
        reason = f"the load of batch {attempt.running} began {age} ago and has not ended, and no session works on it"
        yield Cause(state=State.STUCK, reason=reason, next=f"run `onceload load {found.file}`")


def _late(found: Found, *, now: datetime) -> Iterator[Cause]:
    if found.lag is None or found.declared is None or _is_loading(found.row):
        return
    limit, since = late_since(found.declared, now=now), found.lag.waiting_since
    if limit is None or since is None:
        return
    what_now = f"run `onceload plan {found.file}`, which shows what each file waits for"
    listed_at = _listed_at(found.attempt, now=now)
    if since < limit:
        reason = f"new records have been waiting for {time_in_words(now.timestamp() - since)}"
        yield Cause(state=State.LATE, reason=reason, next=what_now)
    elif listed_at is not None and listed_at < limit and found.declared.schedule != ON_ARRIVAL:
        # A file that grows has always just been modified.
        age = time_in_words(now.timestamp() - listed_at)
        reason = f"new records wait, and no load has listed the source for {age}"
        yield Cause(state=State.LATE, reason=reason, next=what_now)


def _listed_at(attempt: Record | None, *, now: datetime) -> float | None:
    """When a load last looked for new files, in seconds since 1970."""
    return None if attempt is None or attempt.listed_age_s is None else now.timestamp() - float(attempt.listed_age_s)


def _of_sessions(row: Record) -> str:
    sessions, age_s = counted(row.sessions_alive, "session"), row.oldest_work_age_s
    if not _is_loading(row):
        return f"{sessions} alive, without work"
    return f"{sessions} loading" + (f" for {time_in_words(float(age_s))}" if age_s is not None else "")


def _is_loading(row: Record | None) -> bool:
    """Whether a live session has work, or has had some just now: one that only waits for new files has none."""
    if row is None or not row.sessions_alive:
        return False
    is_recent = row.last_commit_age_s is not None and row.last_commit_age_s < _LATE_AFTER_S
    return row.oldest_work_age_s is not None or is_recent


def _wrong_in_database(found: Found, row: Record) -> Iterator[Cause]:
    name = quote(row.name)
    if of_programs := sum(each.is_of_program for each in found.owed):
        rows = f"rows of {counted(of_programs, 'producer')}"
        reason = f"a rewind deleted {rows}, which its program has not loaded again"
        yield Cause(state=State.NEEDS_A_PERSON, reason=reason, next=f"run `onceload verify {found.file}`")
    if row.paused_at is not None:
        reason = f"by {row.paused_by} since {row.paused_at:%Y-%m-%d %H:%M}Z: {row.pause_reason}"
        yield Cause(state=State.PAUSED, reason=reason, next=f"run `onceload resume {name}` when it may load again")
    if row.dead:
        what_now = f"run `onceload deliveries list --pipeline {name} --state dead`"
        yield Cause(state=State.NEEDS_A_PERSON, reason=f"{counted(row.dead, 'dead letter')}", next=what_now)
    if row.audit_passed is False:
        what_now = f"run `onceload audits --pipeline {name}`"
        yield Cause(state=State.NEEDS_A_PERSON, reason="the last audit failed", next=what_now)
    age_s = row.oldest_work_age_s
    if age_s is not None and age_s > _STUCK_AFTER_S and not row.sessions_alive:
        reason = f"open deliveries made no progress for {time_in_words(float(age_s))}, and no session works on them"
        yield Cause(state=State.STUCK, reason=reason, next=f"run `onceload load {found.file}`")
    yield from _too_many_quarantined(found, row)


def _too_many_quarantined(found: Found, row: Record) -> Iterator[Cause]:
    declared = found.declared.quarantine_limit if found.declared else QUARANTINED_MAX
    limit = declared if declared.is_declared else QUARANTINED_MAX
    held, records = int(row.quarantined), int(row.records_beside)
    if limit.is_passed(quarantined=held, records=records):
        share = f"{held / max(held, records):.1%} of the records in the same commits"
        bound = f"{limit.records:,}" if limit.share is None else f"{limit.share * 100:.4g}%"
        reason = f"{counted(held, 'record')} in quarantine, {share} (limit: {bound})"
        what_now = f"run `onceload quarantine list --pipeline {quote(row.name)}`"
        yield Cause(state=State.QUARANTINE, reason=reason, next=what_now)


def late_since(declared: Declared, *, now: datetime) -> float | None:
    """Files that have been waiting since before then are late; None if people start the loads."""
    if declared.schedule is None:
        return None
    limit = now.timestamp() - _LATE_AFTER_S
    if declared.schedule == ON_ARRIVAL:
        return limit
    times = _times(declared.schedule, now=now)
    times.get_prev(datetime)
    # Two runs have begun since.
    begun: datetime = times.get_prev(datetime)
    return min(limit, begun.timestamp())


def next_run(declared: Declared, *, now: datetime) -> datetime | None:
    """When the schedule starts the next run."""
    if declared.schedule is None or declared.schedule == ON_ARRIVAL:
        return None
    found: datetime = _times(declared.schedule, now=now).get_next(datetime)
    return found


def _times(schedule: str, *, now: datetime) -> Any:  # noqa: ANN401 - it has no types.
    from croniter import croniter

    return croniter(schedule, now.astimezone(UTC))
