"""The state of a pipeline in a word: the worst of what is known of it."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceload.console.states import Found, State, late_since, next_run, state_of
from onceload.lag import Lag, Unknown
from onceload.pipeline_file import parse_pipeline

NOW = datetime(2026, 3, 1, 12, 2, tzinfo=UTC)
QUIET = {"paused_at": None, "dead": 0, "audit_passed": None, "oldest_work_age_s": None, "sessions_alive": 0,
         "last_commit_age_s": None}  # fmt: skip


def row(**changes: Any) -> Any:
    return SimpleNamespace(**QUIET | changes)


PAUSED = row(paused_at=NOW, paused_by="ann", pause_reason="the file is wrong")


def lag(*, files: int = 0, refused: int = 0, waiting_s: float | None = None) -> Lag:
    since = None if waiting_s is None else NOW.timestamp() - waiting_s
    return Lag(files=files, bytes=0, waiting_since=since, refused=refused)


def declared(schedule: str | None) -> Any:
    described = {
        "pipeline": "events",
        "source": {"path": str(Path("/landing/*.jsonl")), "format": "jsonl"},
        "columns": {"n": "bigint"},
        "target": {"table": "public.events"},
    }
    return parse_pipeline(described | ({"schedule": schedule} if schedule else {}))


@pytest.mark.parametrize(
    ("found", "state"),
    [
        (Found(row=None), State.NEW),
        (Found(row=row()), State.FINE),
        (Found(row=row(), lag=lag()), State.FINE),
        (Found(row=row(sessions_alive=2)), State.LOADING),
        (Found(row=row(audit_passed=True)), State.FINE),
        (Found(row=row(audit_passed=False)), State.NEEDS_A_PERSON),
        (Found(row=row(dead=1, sessions_alive=1)), State.NEEDS_A_PERSON),
        (Found(row=row(), lag=lag(refused=1)), State.NEEDS_A_PERSON),
        (Found(row=None, failed=Unknown(reason="line 3: no such key", is_of_file=True)), State.NEEDS_A_PERSON),
        (Found(row=row(), failed=Unknown(reason="the store is away", is_of_file=False)), State.FINE),
        (Found(row=PAUSED), State.PAUSED),
        (Found(row=PAUSED, lag=lag(refused=1)), State.NEEDS_A_PERSON),
        (Found(row=row(paused_at=NOW, paused_by="ann", pause_reason="x", oldest_work_age_s=301.0)), State.PAUSED),
        (Found(row=row(oldest_work_age_s=299.0)), State.FINE),
        (Found(row=row(oldest_work_age_s=301.0)), State.STUCK),
        (Found(row=row(oldest_work_age_s=301.0, sessions_alive=1)), State.LOADING),
    ],
)
def test_the_worst_of_what_is_known_is_the_state(found, state):
    assert state_of(found, now=NOW)[0] is state


@pytest.mark.parametrize(
    ("schedule", "age_s", "state"),
    [
        ("*/5 * * * *", 890, State.FINE),
        ("*/5 * * * *", 910, State.LATE),
        # Runs began at noon and at eleven.
        ("@hourly", 3700, State.FINE),
        ("@hourly", 3800, State.LATE),
        ("on_arrival", 910, State.LATE),
        (None, 10**6, State.FINE),
    ],
)
def test_a_file_is_late_if_two_runs_have_begun_since(schedule, age_s, state):
    found = Found(row=row(), lag=lag(files=1, waiting_s=age_s), declared=declared(schedule))

    assert state_of(found, now=NOW)[0] is state


@pytest.mark.parametrize("of_session", [{"oldest_work_age_s": 2000.0}, {"last_commit_age_s": 10.0}])
def test_a_file_that_is_being_loaded_is_not_late(of_session):
    alive = row(sessions_alive=1, **of_session)
    found = Found(row=alive, lag=lag(files=1, waiting_s=10**6), declared=declared("@hourly"))

    assert state_of(found, now=NOW)[0] is State.LOADING


@pytest.mark.parametrize("of_session", [{}, {"last_commit_age_s": 3600.0}])
def test_a_session_that_is_alive_and_takes_nothing_hides_no_late_file(of_session):
    alive = row(sessions_alive=1, **of_session)
    found = Found(row=alive, lag=lag(files=1, waiting_s=10**6), declared=declared("on_arrival"))

    assert state_of(found, now=NOW)[0] is State.LATE


def test_all_reasons_of_the_worst_state_are_shown_and_no_others():
    found = Found(row=row(dead=2, oldest_work_age_s=400.0), lag=lag(refused=1))

    assert state_of(found, now=NOW) == (State.NEEDS_A_PERSON, "1 file cannot be loaded; 2 dead letters")


def test_the_next_run_is_that_of_the_schedule():
    assert next_run(declared("*/5 * * * *"), now=NOW) == datetime(2026, 3, 1, 12, 5, tzinfo=UTC)
    assert next_run(declared("@daily"), now=NOW) == datetime(2026, 3, 2, tzinfo=UTC)
    assert next_run(declared("on_arrival"), now=NOW) is None
    assert next_run(declared(None), now=NOW) is None


def test_a_file_of_friday_is_not_late_before_the_runs_of_monday_and_tuesday():
    # The first of March 2026 is a Sunday.
    of_friday = datetime(2026, 2, 27, 9, tzinfo=UTC).timestamp()
    workdays = declared("0 8 * * 1-5")

    limits = [late_since(workdays, now=datetime(2026, 3, day, 8, 30, tzinfo=UTC)) for day in (1, 2, 3)]

    assert [limit is not None and of_friday < limit for limit in limits] == [False, False, True]


def test_a_pause_is_shown_beside_what_needs_a_person():
    assert state_of(Found(row=PAUSED, lag=lag(refused=1)), now=NOW)[1] == (
        "1 file cannot be loaded; paused by ann since 2026-03-01 12:02Z: the file is wrong"
    )
