"""Copies that grow: each record is loaded once, under one of the names."""

import gzip
from dataclasses import replace

import pytest

from onceload_jobs.pipeline.declared import Identity
from tests.loads.conftest import Loads
from tests.loads.same_content import counts, is_verified, lines, settled

pytestmark = pytest.mark.usually_staged


@pytest.fixture
def each_loaded(logs: Loads) -> Loads:
    """Two files of one content, loaded each by its name."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    logs.load(source=replace(logs.declared.source, identity=Identity.PATH))
    return logs


TWICE = sorted([*range(10), *range(10)])


@pytest.mark.parametrize(("end_of_x", "is_x_there"), [(20, True), (20, False), (30, True)])
def test_files_that_were_loaded_each_by_its_name_do_not_bring_the_same_any_more(each_loaded, end_of_x, is_x_there):
    x = each_loaded.write("x.log", lines(0, end_of_x))
    if not is_x_there:
        each_loaded.load()
        x.unlink()
    y = each_loaded.write("y.log", lines(0, 20))

    report = each_loaded.load()
    notes = [(note.name, note.needs_a_person) for note in report.notes]
    y.unlink()
    settled(each_loaded)

    assert notes == [("y.log", True)]
    assert each_loaded.rows() == [*TWICE, *range(10, end_of_x)]


def test_a_copy_that_was_loaded_by_its_name_waits_for_the_longer_one_that_is_gone(logs):
    """Nothing shows any more whether the new records are also those of the file that is gone."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 1_000))
    logs.load(source=replace(logs.declared.source, identity=Identity.PATH))
    x = logs.write("x.log", lines(0, 3_000))
    logs.load()
    x.unlink()
    logs.write("y.log", lines(0, 2_000))

    report = logs.load()

    assert [(note.name, note.needs_a_person) for note in report.notes] == [("y.log", True)]
    assert len(logs.rows()) == 4_000


def test_files_that_were_loaded_each_by_its_name_may_go_on_in_different_ways(each_loaded):
    each_loaded.write("x.log", lines(0, 15))
    each_loaded.write("y.log", lines(0, 10) + lines(20, 25))

    assert counts(each_loaded.load()) == (10, 0)
    assert each_loaded.rows() == [*TWICE, *range(10, 15), *range(20, 25)]


def test_a_copy_that_is_further_on_than_its_grown_original_is_loaded_behind_it(logs):
    logs.write("x.log", lines(0, 10))
    logs.load()
    logs.write("x.log", lines(0, 20))
    logs.write("y.log", lines(0, 30))

    settled(logs)

    assert logs.rows() == list(range(30))
    assert is_verified(logs)


def test_known_copies_that_grow_alike_are_loaded_once(logs):
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 20))

    first, second = logs.load(), logs.load()

    assert (counts(first), counts(second)) == ((10, 0), (0, 10))
    assert logs.rows() == list(range(20))
    assert settled(logs).notes == ()


def test_a_file_that_catches_up_with_its_longer_copy_brings_nothing(logs):
    logs.write("x.log", lines(0, 10))
    logs.load()
    logs.write("y.log", lines(0, 20))
    assert counts(logs.load()) == (10, 10)
    logs.write("x.log", lines(0, 20))

    assert counts(logs.load()) == (0, 10)
    assert logs.rows() == list(range(20))
    assert is_verified(logs)


def test_a_file_waits_while_it_is_behind_its_longer_copy(logs):
    logs.write("x.log", lines(0, 10))
    logs.load()
    logs.write("y.log", lines(0, 30))
    logs.load()
    logs.write("x.log", lines(0, 20))

    report = logs.load()

    assert counts(report) == (0, 0)
    assert [note.name for note in report.notes if "beginning of y.log" in note.reason] == ["x.log"]
    assert logs.rows() == list(range(30))


@pytest.mark.parametrize("loaded", [9_000, 5_000])
def test_a_whole_day_that_is_packed_beside_a_file_that_grows_is_loaded_once(logs, loaded):
    logs.write("x.log", lines(0, 500))
    logs.load()
    logs.write("x.log", lines(0, loaded // 10))
    logs.write("x.log.gz", gzip.compress(lines(0, 1_000).encode()))

    settled(logs)

    assert logs.rows() == list(range(1_000))
    assert is_verified(logs)


def test_a_copy_that_goes_on_in_another_way_is_loaded_from_where_they_part(logs):
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    logs.write("x.log", lines(0, 20) + lines(100, 110))
    logs.write("y.log", lines(0, 20) + lines(200, 205))

    first, second = logs.load(), logs.load()

    assert (counts(first), counts(second)) == ((20, 0), (5, 10))
    assert logs.rows() == [*range(20), *range(100, 110), *range(200, 205)]
    assert settled(logs).notes == ()
    assert is_verified(logs)


def test_where_copies_part_is_not_guessed_once_the_other_is_gone(logs):
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    first = logs.write("x.log", lines(0, 20) + lines(100, 110))
    logs.load()
    first.unlink()
    logs.write("y.log", lines(0, 20) + lines(200, 220))

    report = logs.load()

    assert counts(report) == (0, 0)
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("y.log", True)]
    first.write_text(lines(0, 20) + lines(100, 110))
    settled(logs)
    assert logs.rows() == [*range(20), *range(100, 110), *range(200, 220)]
