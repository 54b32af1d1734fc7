"""Since when the files of a pipeline have been waiting, whatever their times say."""

import time

import pytest

from onceload.lag import Behind
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


def test_the_longest_wait_of_each_hour_is_remembered(day, behind):
    assert waiting(behind, "late") is not None
    day.load("late")
    assert waiting(behind, "late") is None

    assert max(behind.waits["late"].values()) == pytest.approx(7200, abs=60)
    assert max(behind.waits["well"].values()) == 0
