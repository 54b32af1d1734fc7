"""The state of a pipeline in a word: the worst of what is known of it."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceload.console.states import Found, State, late_after_s, next_run, state_of
from onceload.lag import Lag
from onceload.pipeline_file import parse_pipeline

NOW = datetime(2026, 3, 1, 12, 2, tzinfo=UTC)
QUIET = {"paused_at": None, "dead": 0, "audit_passed": None, "oldest_claim_age_s": None, "sessions_alive": 0}


def row(**changes: Any) -> Any:
    return SimpleNamespace(**QUIET | changes)


PAUSED = row(paused_at=NOW, paused_by="ann", pause_reason="the file is wrong")


def lag(*, files: int = 0, refused: int = 0, oldest_s: float | None = None) -> Lag:
    oldest = None if oldest_s is None else NOW.timestamp() - oldest_s
    return Lag(files=files, bytes=0, oldest_at=oldest, refused=refused)


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
        (Found(row=None, failed="line 3: no such key"), State.NEEDS_A_PERSON),
        (Found(row=PAUSED), State.PAUSED),
        (Found(row=PAUSED, lag=lag(refused=1)), State.NEEDS_A_PERSON),
        (Found(row=row(paused_at=NOW, paused_by="ann", pause_reason="x", oldest_claim_age_s=301.0)), State.PAUSED),
        (Found(row=row(oldest_claim_age_s=299.0)), State.FINE),
        (Found(row=row(oldest_claim_age_s=301.0)), State.STUCK),
        (Found(row=row(oldest_claim_age_s=301.0, sessions_alive=1)), State.LOADING),
    ],
)
def test_the_worst_of_what_is_known_is_the_state(found, state):
    assert state_of(found, now=NOW)[0] is state


@pytest.mark.parametrize(
    ("schedule", "age_s", "state"),
    [
        ("*/5 * * * *", 890, State.FINE),
        ("*/5 * * * *", 910, State.LATE),
        ("@hourly", 7190, State.FINE),
        ("@hourly", 7210, State.LATE),
        ("on_arrival", 910, State.LATE),
        (None, 10**6, State.FINE),
    ],
)
def test_a_file_is_late_after_two_intervals_of_the_schedule(schedule, age_s, state):
    found = Found(row=row(), lag=lag(files=1, oldest_s=age_s), declared=declared(schedule))

    assert state_of(found, now=NOW)[0] is state


def test_a_file_that_is_being_loaded_is_not_late():
    found = Found(row=row(sessions_alive=1), lag=lag(files=1, oldest_s=10**6), declared=declared("@hourly"))

    assert state_of(found, now=NOW)[0] is State.LOADING


def test_all_reasons_of_the_worst_state_are_shown_and_no_others():
    found = Found(row=row(dead=2, oldest_claim_age_s=400.0), lag=lag(refused=1))

    assert state_of(found, now=NOW) == (State.NEEDS_A_PERSON, "1 file cannot be loaded; 2 dead letters")


def test_the_next_run_is_that_of_the_schedule():
    assert next_run(declared("*/5 * * * *"), now=NOW) == datetime(2026, 3, 1, 12, 5, tzinfo=UTC)
    assert next_run(declared("@daily"), now=NOW) == datetime(2026, 3, 2, tzinfo=UTC)
    assert next_run(declared("on_arrival"), now=NOW) is None
    assert next_run(declared(None), now=NOW) is None


def test_the_limit_follows_the_next_interval_of_a_schedule_with_gaps():
    # Two runs a day, at noon and at one.
    assert late_after_s(declared("0 12,13 * * *"), now=NOW) == timedelta(hours=46).total_seconds()
