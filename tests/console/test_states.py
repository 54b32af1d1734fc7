"""The state of a pipeline in a word: the worst of what is known of it."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from onceload.lag import Described, Lag, Unknown
from onceload.pipeline_file import parse_pipeline
from onceload.states import QUARANTINED_MAX, Found, State, late_since, next_run, state_of

NOW = datetime(2026, 3, 1, 12, 2, tzinfo=UTC)
QUIET = {"paused_at": None, "dead": 0, "audit_passed": None, "oldest_work_age_s": None, "sessions_alive": 0,
         "last_commit_age_s": None, "quarantined": 0, "records_beside": 0, "name": "events"}  # fmt: skip
ENDED = {"batch": "b", "exit_code": 0, "reason": "", "ended_age_s": 60.0, "running": None, "running_age_s": None,
         "listed_age_s": None}  # fmt: skip


def row(**changes: Any) -> Any:
    return SimpleNamespace(**QUIET | changes)


def attempt(**changes: Any) -> Any:
    return SimpleNamespace(**ENDED | changes)


def found(**facts: Any) -> Found:
    return Found(**{"name": "events", "row": row()} | facts)


PAUSED = row(paused_at=NOW, paused_by="ann", pause_reason="the file is wrong")


def lag(*, files: int = 0, refused: int = 0, unreadable: int = 0, waiting_s: float | None = None) -> Lag:
    since = None if waiting_s is None else NOW.timestamp() - waiting_s
    return Lag(has_files=True, files=files, bytes=0, waiting_since=since, refused=refused, unreadable=unreadable)


def described(schedule: str | None = None, **keys: Any) -> Described:
    return Described(path=Path("events.yaml"), declared=declared(schedule, **keys))


def declared(schedule: str | None, **keys: Any) -> Any:
    described = {
        "pipeline": "events",
        "source": {"path": str(Path("/landing/*.jsonl")), "format": "jsonl"},
        "columns": {"n": "bigint"},
        "target": {"table": "public.events"},
    }
    return parse_pipeline(described | ({"schedule": schedule} if schedule else {}) | keys)


AWAY = Unknown(reason="the store is away", is_of_file=False)


@pytest.mark.parametrize(
    ("facts", "state"),
    [
        ({"row": None}, State.NEW),
        ({}, State.FINE),
        ({"lag": lag()}, State.FINE),
        ({"row": row(sessions_alive=2)}, State.LOADING),
        ({"row": row(audit_passed=True)}, State.FINE),
        ({"row": row(audit_passed=False)}, State.NEEDS_A_PERSON),
        ({"row": row(dead=1, sessions_alive=1)}, State.NEEDS_A_PERSON),
        ({"lag": lag(refused=1)}, State.NEEDS_A_PERSON),
        ({"row": None, "failed": Unknown(reason="line 3: no such key", is_of_file=True)}, State.NEEDS_A_PERSON),
        ({"failed": AWAY}, State.UNREADABLE),
        ({"row": None, "failed": AWAY}, State.UNREADABLE),
        ({"row": row(sessions_alive=1), "failed": AWAY}, State.UNREADABLE),
        ({"failed": AWAY, "lag": lag(files=1, waiting_s=10**6), "described": described("@hourly")}, State.UNREADABLE),
        ({"lag": lag(refused=1, unreadable=1)}, State.UNREADABLE),
        ({"lag": lag(refused=2, unreadable=1)}, State.NEEDS_A_PERSON),
        ({"attempt": attempt()}, State.FINE),
        ({"attempt": attempt(exit_code=2, reason="SettingRefused")}, State.FAILED),
        ({"row": None, "attempt": attempt(exit_code=2, reason="SettingRefused")}, State.FAILED),
        ({"attempt": attempt(running="c", running_age_s=899.0)}, State.FINE),
        ({"attempt": attempt(running="c", running_age_s=901.0)}, State.STUCK),
        ({"row": row(sessions_alive=1), "attempt": attempt(running="c", running_age_s=901.0)}, State.LOADING),
        ({"row": PAUSED}, State.PAUSED),
        ({"row": PAUSED, "lag": lag(refused=1)}, State.NEEDS_A_PERSON),
        ({"row": PAUSED, "failed": AWAY}, State.UNREADABLE),
        (
            {"row": row(paused_at=NOW, paused_by="ann", pause_reason="x", oldest_work_age_s=301.0)},
            State.PAUSED,
        ),
        ({"row": row(oldest_work_age_s=299.0)}, State.FINE),
        ({"row": row(oldest_work_age_s=301.0)}, State.STUCK),
        ({"row": row(oldest_work_age_s=301.0, sessions_alive=1)}, State.LOADING),
    ],
)
def test_the_worst_of_what_is_known_is_the_state(facts, state):
    assert state_of(found(**facts), now=NOW).state is state


@pytest.mark.parametrize(
    ("held", "declared_max", "state"),
    [
        (10, None, State.FINE),
        (11, None, State.QUARANTINE),
        (109, None, State.QUARANTINE),
        (109, "20%", State.FINE),
        (11, "1.05%", State.QUARANTINE),
        (6, 5, State.QUARANTINE),
        (5, 5, State.FINE),
    ],
)
def test_quarantined_records_beyond_the_bound_are_a_state(held, declared_max, state):
    keys: dict[str, Any] = {} if declared_max is None else {"quality": {"quarantined_max": declared_max}}
    facts = found(row=row(quarantined=held, records_beside=1000), described=described(**keys))

    assert state_of(facts, now=NOW).state is state


def test_the_page_has_the_bound_of_the_code():
    page = Path(__file__).parents[2] / "docs" / "how-to" / "console.md"

    assert f"without it more than {QUARANTINED_MAX.share:.0%}," in page.read_text(encoding="utf-8")


def test_the_reason_of_a_quarantine_is_its_share_and_its_bound():
    verdict = state_of(found(row=row(quarantined=109, records_beside=1000)), now=NOW)

    assert verdict.reason == "109 records in quarantine, 10.9% of the records in the same commits (limit: 1%)"
    assert verdict.next == "run `onceload quarantine list --pipeline events`"


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
    facts = found(lag=lag(files=1, waiting_s=age_s), described=described(schedule))

    assert state_of(facts, now=NOW).state is state


@pytest.mark.parametrize(
    ("schedule", "state"), [("@hourly", State.LATE), ("on_arrival", State.FINE), (None, State.FINE)]
)
def test_a_file_that_always_grows_is_late_if_two_runs_have_loaded_nothing(schedule, state):
    facts = found(
        lag=lag(files=1, waiting_s=1), described=described(schedule), attempt=attempt(listed_age_s=3 * 3600.0)
    )

    assert state_of(facts, now=NOW).state is state


@pytest.mark.parametrize("of_session", [{"oldest_work_age_s": 2000.0}, {"last_commit_age_s": 10.0}])
def test_a_file_that_is_being_loaded_is_not_late(of_session):
    alive = row(sessions_alive=1, **of_session)
    facts = found(row=alive, lag=lag(files=1, waiting_s=10**6), described=described("@hourly"))

    assert state_of(facts, now=NOW).state is State.LOADING


@pytest.mark.parametrize("of_session", [{}, {"last_commit_age_s": 3600.0}])
def test_a_session_that_is_alive_and_takes_nothing_hides_no_late_file(of_session):
    alive = row(sessions_alive=1, **of_session)
    facts = found(row=alive, lag=lag(files=1, waiting_s=10**6), described=described("on_arrival"))

    assert state_of(facts, now=NOW).state is State.LATE


def test_all_reasons_of_the_worst_state_are_shown_and_no_others():
    verdict = state_of(found(row=row(dead=2, oldest_work_age_s=400.0), lag=lag(refused=1)), now=NOW)

    assert (verdict.state, verdict.reason) == (State.NEEDS_A_PERSON, "1 file cannot be loaded; 2 dead letters")
    assert verdict.states == {State.NEEDS_A_PERSON, State.STUCK}


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
    assert state_of(found(row=PAUSED, lag=lag(refused=1)), now=NOW).reason == (
        "1 file cannot be loaded; paused by ann since 2026-03-01 12:02Z: the file is wrong"
    )
