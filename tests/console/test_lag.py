"""Since when the files of a pipeline have been waiting, whatever their times say."""

import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from onceload import lag
from onceload.console.overview import lines_of
from onceload.lag import Behind
from onceload.states import State
from onceload_core.errors import DatabaseLost
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.plan import Plan, make_plan
from tests.console.conftest import day_of


@pytest.fixture
def day(server_dsn, template, tmp_path):
    with day_of(server_dsn, template, tmp_path) as day:
        yield day


@pytest.fixture
def behind(day):
    return Behind(day.engine, day.folder / "pipelines")


def waiting(behind: Behind, name: str) -> float | None:
    behind.look()
    return behind.seen[name][1].waiting_since


def test_at_the_first_look_the_oldest_file_counts(behind):
    assert waiting(behind, "late") == pytest.approx(time.time() - 7200, abs=60)
    assert waiting(behind, "well") is None


def test_a_file_that_grows_waits_since_it_was_first_seen(day, behind):
    first = waiting(behind, "late")
    day.write("late/b.jsonl", '{"n": 2}\n{"n": 3}\n')

    assert waiting(behind, "late") == first

    day.load("late")
    assert waiting(behind, "late") is None


def test_a_file_with_an_old_time_waits_since_the_last_look_without_it(day, behind):
    assert waiting(behind, "well") is None
    before = time.time()
    day.write("well/c.jsonl", '{"n": 9}\n', age_s=10**6)

    assert waiting(behind, "well") == pytest.approx(before, abs=30)


def test_a_pipeline_that_cannot_be_listed_keeps_its_last_lag_and_says_why(day, behind):
    behind.look()
    (day.folder / "late").rename(day.folder / "away")

    behind.look()

    assert behind.seen["late"][1].files == 1
    assert not behind.failed["late"].is_of_file
    (day.folder / "pipelines" / "well.yaml").write_text("nonsense: 1")
    behind.look()
    assert behind.failed[str(day.folder / "pipelines" / "well.yaml")].is_of_file


def test_a_file_that_cannot_be_read_is_counted_apart_and_is_a_state(day, behind, monkeypatch):
    away = Note(name="away.jsonl", reason="permission denied", is_unreadable=True)

    def with_away(*given: Any, **more: Any) -> Plan:
        plan = make_plan(*given, **more)
        return replace(plan, notes=(*plan.notes, away))

    monkeypatch.setattr(lag, "make_plan", with_away)
    behind.look()

    found = behind.seen["well"][1]
    assert (found.refused, found.unreadable) == (1, 1)
    (line,) = lines_of(day.engine, behind, now=datetime.now(UTC), only="well")
    assert (line.state, line.reason) == (State.UNREADABLE, "1 file cannot be read")


def test_an_error_of_a_library_of_a_store_is_of_its_pipeline_alone(behind, monkeypatch):
    def refused(declared: Declared, *given: Any, **more: Any) -> Plan:
        if declared.name == "late":
            raise RuntimeError("the store refuses the key")
        return make_plan(declared, *given, **more)

    monkeypatch.setattr(lag, "make_plan", refused)
    behind.look()

    assert behind.failed["late"].reason == "the store refuses the key"
    assert "well" in behind.seen


def test_a_database_that_is_lost_makes_no_source_unreadable(behind, monkeypatch):
    def lost(*_: Any, **__: Any) -> Plan:
        raise DatabaseLost("planning", "the server closed the connection")

    behind.look()
    monkeypatch.setattr(lag, "make_plan", lost)
    with pytest.raises(DatabaseLost):
        behind.look()

    assert behind.failed == {}


def test_the_longest_wait_of_each_hour_is_remembered(day, behind):
    assert waiting(behind, "late") is not None
    day.load("late")
    assert waiting(behind, "late") is None

    assert max(behind.waits["late"].values()) == pytest.approx(7200, abs=60)
    assert max(behind.waits["well"].values()) == 0
