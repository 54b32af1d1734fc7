"""The state of a pipeline in a word, with its reason."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from onceload.lag import Lag, Unknown
from onceload.terminal import counted, time_in_words
from onceload_core.postgres.connection import Record
from onceload_jobs.pipeline.declared import ON_ARRIVAL, Declared

#: Work that no living session takes is stuck after this time.
_STUCK_AFTER_S = 300.0
#: New files are late after this time, if two runs of the schedule have begun since.
_LATE_AFTER_S = 900.0


class State(StrEnum):
    """The worst first."""

    NEEDS_A_PERSON = "needs a person"
    STUCK = "stuck"
    LATE = "late"
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

    #: Its state in the database; None before its first load.
    row: Record | None
    lag: Lag | None = None
    #: Why its pipeline file or its files cannot be read.
    failed: Unknown | None = None
    declared: Declared | None = None


def state_of(found: Found, *, now: datetime) -> tuple[State, str]:
    """The state, and all reasons for it."""
    bad = sorted(_wrong(found, now=now), key=lambda each: each[0].badness)
    if any(state is State.PAUSED for state, _ in bad):
        # New files and open work wait for the resume.
        bad = [each for each in bad if each[0] not in (State.STUCK, State.LATE)]
    if bad:
        worst = bad[0][0]
        reasons = [reason for state, reason in bad if state is worst]
        # A pause is shown in any case, because nothing else gets better before the resume.
        reasons += [f"paused {reason}" for state, reason in bad if State.PAUSED is state is not worst]
        return worst, "; ".join(reasons)
    if found.row is None:
        return State.NEW, "nothing has been loaded yet"
    if found.row.sessions_alive:
        return State.LOADING, _of_sessions(found.row)
    if found.lag is not None and found.lag.files:
        due = "not due yet" if found.declared and found.declared.schedule else "to be loaded by hand"
        return State.FINE, f"{counted(found.lag.files, 'new file')}, {due}"
    if found.failed:
        return State.FINE, f"no known problem; new files are not counted: {found.failed.reason}"
    return State.FINE, "all files are loaded" if found.lag is not None else "no known problem; new files not counted"


def _wrong(found: Found, *, now: datetime) -> Iterator[tuple[State, str]]:
    if found.failed and found.failed.is_of_file:
        yield State.NEEDS_A_PERSON, found.failed.reason
    if found.lag and found.lag.refused:
        yield State.NEEDS_A_PERSON, f"{counted(found.lag.refused, 'file')} cannot be loaded"
    if found.row is not None:
        yield from _wrong_in_database(found.row)
    if found.lag and found.lag.waiting_since is not None and found.declared and not _is_loading(found.row):
        limit = late_since(found.declared, now=now)
        if limit is not None and found.lag.waiting_since < limit:
            age = time_in_words(now.timestamp() - found.lag.waiting_since)
            yield State.LATE, f"new files have been waiting for {age}"


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


def _wrong_in_database(row: Record) -> Iterator[tuple[State, str]]:
    if row.paused_at is not None:
        yield State.PAUSED, f"by {row.paused_by} since {row.paused_at:%Y-%m-%d %H:%M}Z: {row.pause_reason}"
    if row.dead:
        yield State.NEEDS_A_PERSON, f"{counted(row.dead, 'dead letter')}"
    if row.audit_passed is False:
        yield State.NEEDS_A_PERSON, "the last audit failed"
    age_s = row.oldest_work_age_s
    if age_s is not None and age_s > _STUCK_AFTER_S and not row.sessions_alive:
        yield State.STUCK, f"{time_in_words(float(age_s))} without progress: no session is working on it"


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
