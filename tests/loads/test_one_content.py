"""Names of one content share one producer: what is in under one of them is loaded under no other, however they grow."""

import gzip
import os
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onceload_core.errors import DeliveryTakenAway, SettingRefused
from onceload_core.names import Position, SessionName
from onceload_core.postgres import LedgerSettings, recover_state
from onceload_core.postgres.views import look
from onceload_jobs.batch.job import Job
from onceload_jobs.files.listing import list_files
from onceload_jobs.files.notes import Note
from onceload_jobs.load import offering
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import CsvOptions, Format, Identity, NewerFile, OnRewrite, Publish, Write
from onceload_jobs.plan.choice import Choice
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.test_twins import AllButTheFirst
from tests.servers import execute

pytestmark = pytest.mark.usually_staged


@pytest.fixture
def logs(loads: Loads) -> Loads:
    source = replace(loads.declared.source, path=str(loads.folder / "*.log*"), identity=Identity.CONTENT)
    loads.declared = replace(loads.declared, source=source)
    return loads


def lines(first: int, end: int) -> str:
    return "".join(map(line, range(first, end)))


def counts(report: Report) -> tuple[int, int]:
    return report.loaded, report.duplicates


def is_verified(logs: Loads) -> bool:
    verification = verify(logs.declared, logs.engine, deep=True)
    return verification.differences == ()


def settled(logs: Loads, **changes: Any) -> Report:
    """Load until nothing is new any more."""
    reports = [logs.load(**changes) for _ in range(4)]
    assert counts(reports[-1]) == (0, 0)
    return reports[-1]


# Copies that grow.


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


# Holes.


@pytest.mark.parametrize("tail", [line(300)[:12], "no json\n", line(300)])
def test_a_copy_is_not_taken_for_a_shorter_file_that_parted_earlier(logs, tail):
    for name in ("x.log", "y.log", "z.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    for name in ("x.log", "z.log"):
        logs.write(name, lines(0, 20))
    settled(logs)
    logs.write("y.log", lines(0, 10) + tail)
    settled(logs)
    logs.write("x.log", lines(0, 20) + lines(100, 105))
    logs.load()
    logs.write("z.log", lines(0, 20) + lines(200, 205))

    settled(logs)

    assert logs.rows() == [*range(20), *range(100, 105), *range(200, 205), *([300] if tail == line(300) else [])]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("more", ["", lines(10, 15)])
@pytest.mark.parametrize("name", ["x.log", "x.log.1", "x.log.gz"])
def test_a_last_line_that_gets_its_newline_after_it_was_loaded_is_loaded_once(logs, name, more, newline):
    source = replace(logs.declared.source, sealed_after_s=0)
    x = logs.write("x.log", lines(0, 10).rstrip("\n"))
    logs.load(source=source)
    x.unlink()
    content = (lines(0, 10).rstrip("\n") + newline + more).encode()
    logs.write(name, gzip.compress(content) if name.endswith(".gz") else content)

    settled(logs, source=source)

    assert logs.rows() == list(range(15 if more else 10))


def test_a_newline_inside_an_open_quote_does_not_end_a_record_that_was_loaded(logs):
    source = replace(logs.declared.source, format=Format.CSV, csv=CsvOptions(multiline=True), sealed_after_s=0)
    x = logs.write("x.log", 'id,amount,note\n1,1.50,x\n2,1.50,"open')
    logs.load(source=source)
    x.write_text(x.read_text() + '\n3,1.50,x"\n')

    report = logs.load(source=source)

    assert [(note.name, note.needs_a_person) for note in report.notes] == [("x.log", True)]
    assert logs.rows() == [1]


def test_a_last_line_that_goes_on_under_another_name_needs_a_person(logs):
    source = replace(logs.declared.source, sealed_after_s=0)
    x = logs.write("x.log", lines(0, 10).rstrip("\n"))
    logs.load(source=source)
    x.unlink()
    logs.write("x.log.1", lines(0, 10).rstrip("\n") + ', "no json": ' + lines(10, 15))

    report = logs.load(source=source)

    assert [(note.name, note.needs_a_person) for note in report.notes] == [("x.log.1", True)]
    assert logs.rows() == list(range(10))


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_hole_is_filled_once_though_a_copy_holds_it_as_well(logs):
    path = logs.write("x.log", lines(0, 3))
    declared = replace(logs.declared, source=replace(logs.declared.source, chunk_bytes=1))
    load(
        declared,
        LoadSettings(ledger=LedgerSettings(dsn=logs.dsn), wait_s=0),
        batch=new_batch(),
        tasks=AllButTheFirst(),
    )
    logs.load()
    at = logs.ledger.position("events")
    # The first of them came last.
    rewind(logs.declared, logs.engine, to=Position(at - 1), dry_run=False)
    assert logs.rows() == [1, 2]
    logs.write("y.log", path.read_bytes())

    settled(logs)

    assert logs.rows() == [0, 1, 2]
    assert is_verified(logs)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_file_that_differs_where_another_has_a_hole_is_not_a_copy(logs):
    """Both have the same edges, so that they differ only in what fills the hole."""
    records = [line(each, note=4_000 * "n") for each in range(10)]
    logs.write("x.log", "".join(records[:3]))
    logs.load()
    logs.write("x.log", "".join(records))
    in_chunks = replace(logs.declared, source=replace(logs.declared.source, chunk_bytes=1))
    how = LoadSettings(ledger=LedgerSettings(dsn=logs.dsn), wait_s=0)
    load(in_chunks, how, batch=new_batch(), tasks=AllButTheFirst())
    logs.load()
    rewind(logs.declared, logs.engine, to=Position(logs.ledger.position("events") - 1), dry_run=False)
    assert logs.rows() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    logs.write("y.log", "".join([*records[:3], line(5, note=4_000 * "n"), *records[4:]]))

    settled(logs)

    assert logs.rows() == sorted([*range(10), 0, 1, 2, 4, 5, 5, 6, 7, 8, 9])


@pytest.mark.parametrize("is_there", [True, False])
def test_records_of_a_rewind_are_loaded_once_of_either_name(logs, is_there):
    path = logs.write("x.log", lines(0, 5))
    logs.load()
    logs.write("y.log", lines(0, 10))
    logs.load()
    logs.write("x.log", lines(0, 10))
    settled(logs)
    rewind(logs.declared, logs.engine, to=Position(1), dry_run=False)
    if not is_there:
        path.unlink()

    settled(logs)

    assert logs.rows() == list(range(10))
    assert is_verified(logs)


def test_a_copy_of_what_a_rewind_does_not_touch_stays_one(logs):
    """It could not be found again: the other file is gone, and holds more than the copy."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    x = logs.write("x.log", lines(0, 20))
    settled(logs)
    x.unlink()
    at = logs.ledger.position("events")
    logs.write("z.log", lines(50, 55))
    logs.load()
    rewind(logs.declared, logs.engine, to=at, dry_run=False)

    settled(logs)

    assert logs.rows() == [*range(20), *range(50, 55)]


def test_a_copy_stays_one_when_a_rewind_goes_back_to_before_it_was_noted(logs):
    """Only the note is after the position: what it is a copy of stays loaded."""
    b = logs.write("b.log", lines(0, 10))
    logs.load()
    before = logs.ledger.position("events")
    logs.write("z.log", lines(0, 10))
    settled(logs)
    assert logs.ledger.position("events") > before
    rewind(logs.declared, logs.engine, to=before, dry_run=False)

    settled(logs)
    verified = is_verified(logs)
    b.unlink()
    settled(logs)

    assert verified
    assert logs.rows() == list(range(10))


def test_a_copy_is_not_believed_once_the_other_was_rewound_and_loaded_in_another_way(logs):
    path = logs.write("x.log", lines(0, 5))
    logs.load()
    path.write_text(lines(0, 10))
    logs.load()
    logs.write("y.log", lines(0, 10))
    settled(logs)
    rewind(logs.declared, logs.engine, to=Position(1), dry_run=False)
    (logs.folder / "y.log").rename(logs.folder / "later")
    path.write_text(lines(0, 5) + lines(50, 55))
    logs.load()
    (logs.folder / "later").rename(logs.folder / "y.log")

    settled(logs)

    assert set(logs.rows()) == {*range(10), *range(50, 55)}


@pytest.mark.parametrize("to", [1, 2, 3])
def test_a_rewind_to_before_two_copies_parted_is_refused_while_one_of_them_stays(logs, to):
    copies_that_part(logs, at=to)
    expected = r"before y.log differed from x.log.*would load them a second time"

    with pytest.raises(SettingRefused, match=expected):
        rewind(logs.declared, logs.engine, to=Position(to), dry_run=False)

    settled(logs)
    assert logs.rows() == [*range(20), *range(100, 110), *range(200, 205)]
    assert is_verified(logs)


@pytest.mark.parametrize("to", ["nothing", "parted"])
def test_a_rewind_that_takes_both_copies_back_or_leaves_them_apart_loads_each_record_once(logs, to):
    parted = copies_that_part(logs, at=3)

    rewind(logs.declared, logs.engine, to=Position(0) if to == "nothing" else parted, dry_run=False)
    settled(logs)

    # Loaded again, the two are files that share only a part.
    twice = range(20) if to == "nothing" else ()
    assert logs.rows() == sorted([*range(20), *range(100, 110), *range(200, 205), *twice])
    assert is_verified(logs)


def copies_that_part(logs, *, at):
    """Two of them, of which the second is found to go on in another way; where that was noted."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    logs.write("x.log", lines(0, 20) + lines(100, 110))
    logs.write("y.log", lines(0, 20) + lines(200, 205))
    logs.load()
    assert logs.ledger.position("events") >= at
    while logs.load().notes:
        pass
    (parted,) = logs.ask(
        "SELECT position FROM onceload.ledger_span WHERE shares_with IS NOT NULL AND rows = 0 AND NOT isempty(spans)"
    )[0]
    return Position(parted)


# Recovery of state.


DAMAGES = {
    "original gone": "DELETE FROM onceload.producer WHERE name = 'x.log'",
    "original set back": "UPDATE onceload.producer SET consumed = '{[0,41)}' WHERE name = 'x.log'",
    "original turned into a copy": "UPDATE onceload.producer SET consumed = '{}', copy_of = 2 WHERE name = 'x.log'",
    "copy gone": "DELETE FROM onceload.producer WHERE name = 'y.log'",
    "copy replaced": "UPDATE onceload.producer SET condition = 'replaced' WHERE name = 'y.log'",
    "copy of another": "UPDATE onceload.producer SET copy_of = 3 WHERE name = 'y.log'",
    "all gone": "DELETE FROM onceload.producer",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_stays_one_when_the_state_is_recovered(logs, damage):
    """It could not be found again: by now the other file holds more, and the two differ."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    logs.write("z.log", lines(50, 55))
    settled(logs)
    logs.write("x.log", lines(0, 20))
    settled(logs)
    before = copies(logs)
    execute(logs.admin_dsn, DAMAGES[damage])

    looked = recover_state(logs.engine, "events", dry_run=True)
    done = recover_state(logs.engine, "events", dry_run=False)

    assert (looked.differing, looked.applied, done.applied) == (done.differing, False, True)
    assert copies(logs) == before
    assert recover_state(logs.engine, "events", dry_run=True).differing == ()
    logs.write("y.log", lines(0, 10) + lines(100, 105))
    settled(logs)
    assert logs.rows() == [*range(20), *range(50, 55), *range(100, 105)]
    assert is_verified(logs)


def test_state_from_before_a_copy_parted_is_recovered(logs):
    """As when the producer table alone is restored from a backup."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    logs.write("x.log", lines(0, 20))
    settled(logs)
    execute(logs.admin_dsn, "CREATE TABLE kept AS SELECT * FROM onceload.producer")
    logs.write("y.log", lines(0, 10) + lines(100, 105))
    settled(logs)
    before = copies(logs)
    execute(logs.admin_dsn, "DELETE FROM onceload.producer; INSERT INTO onceload.producer SELECT * FROM kept")

    done = recover_state(logs.engine, "events", dry_run=False)
    settled(logs)

    assert (done.differing, copies(logs)) == (("y.log",), before)
    assert logs.rows() == [*range(20), *range(100, 105)]
    assert is_verified(logs)


def test_the_name_that_a_producer_had_before_is_recovered_as_its_copy(logs):
    x = logs.write("x.log", lines(0, 10))
    settled(logs)
    x.rename(logs.folder / "x.log.1")
    settled(logs)
    before = copies(logs)
    assert len(before) == 2
    execute(logs.admin_dsn, "DELETE FROM onceload.producer")

    recover_state(logs.engine, "events", dry_run=False)

    assert copies(logs) == before


def copies(logs):
    """All that is known of each name, with the producer that it is a copy of."""
    return logs.ask(
        "SELECT producer_id, name, generation, consumed, fingerprint, size, condition, copy_of"
        " FROM onceload.producer ORDER BY producer_id"
    )


# Rotation.


def test_the_new_file_wins_over_the_tail_of_the_one_that_was_rotated_away(logs):
    target = replace(logs.declared.target, write=Write.MERGE, key=("id",))
    merging = {"target": target, "publish": Publish.STAGED, "on_rewrite": OnRewrite.NEW_GENERATION}
    path = logs.write("app.log", line(1, note="first"))
    logs.load(**merging)
    path.write_text(line(1, note="first") + line(7, note="old"))
    path.rename(logs.folder / "app.log.1")
    logs.write("app.log", line(7, note="new"))

    logs.load(**merging)

    assert logs.rows("id, note") == [(1, "first"), (7, "new")]


@pytest.mark.parametrize(
    ("newer_file", "winner"), [(NewerFile.BY_TIME, "new"), (NewerFile.BY_NAME, "old"), (None, "old")]
)
def test_a_log_that_is_rotated_before_its_first_load_is_older_by_its_time(logs, newer_file, winner):
    merging = merged(logs, newer_file)
    logs.write("app.log", line(7, note="old"))
    rotate(logs, line(7, note="new"))

    merging.load()

    assert merging.rows("id, note") == [(7, winner)]
    assert is_verified(merging)


def test_after_a_killed_load_a_new_file_is_still_newer_than_the_rotated_one(logs):
    merging = merged(logs)
    logs.write("app.log", line(7, note="old"))
    kill_a_load(merging)
    rotate(logs, line(7, note="new"))

    merging.load()

    assert merging.rows("id, note") == [(7, "new")]
    assert is_verified(merging)
    shown = look(logs.engine, "producers", pipeline="events", at_most=9)
    assert [(each["name"], each["generation"]) for each in shown] == [("app.log", 2), ("app.log.1", 1)]


def test_after_a_killed_load_a_new_file_is_still_newer_than_the_tail_of_a_loaded_one(logs):
    merging = merged(logs)
    path = logs.write("app.log", line(1, note="first"))
    kill_a_load(merging)
    path.rename(logs.folder / "app.log.1")
    merging.load()
    logs.write("app.log.1", line(1, note="first") + line(7, note="old"))
    logs.write("app.log", line(7, note="new"))

    merging.load()

    assert merging.rows("id, note") == [(1, "first"), (7, "new")]
    assert is_verified(merging)


def test_after_a_rewind_a_new_file_is_still_newer_than_the_rotated_one(logs):
    merging = merged(logs)
    logs.write("app.log", line(7, note="old"))
    logs.load(publish=Publish.STAGED)
    rewind(logs.declared, logs.engine, to=Position(0), dry_run=False)
    rotate(logs, line(7, note="new"))
    execute(logs.admin_dsn, "DROP TABLE target")

    merging.load()

    assert merging.rows("id, note") == [(7, "new")]
    assert is_verified(merging)


def test_a_later_generation_does_not_begin_while_another_load_reads_the_file(logs, monkeypatch):
    by_name = merged(logs, newer_file=None)
    source = replace(by_name.declared.source, identity=Identity.PATH)
    by_name = replace(by_name, declared=replace(by_name.declared, source=source))
    logs.write("b.log", line(2))
    kill_a_load(by_name)
    logs.write("a.log", line(1))
    registered, calls = offering.Offering._registered, count()

    def is_overtaken(self: Any, files: Any) -> Any:
        """The other load begins the file as a later generation, because a.log has a later id than it."""
        found = registered(self, files)
        if not next(calls):
            assert by_name.load().loaded == 2
        return found

    monkeypatch.setattr(offering.Offering, "_registered", is_overtaken)
    settings = LoadSettings(ledger=LedgerSettings(dsn=logs.dsn), wait_s=0, choice=Choice(files=("b.log",)))
    report = load(by_name.declared, settings, batch=new_batch(), tasks=InThisProcess())

    assert report.loaded == 0
    loaded = "SELECT name, generation FROM onceload.producer WHERE NOT isempty(consumed) ORDER BY name"
    assert logs.ask(loaded) == [("a.log", 1), ("b.log", 2)]
    assert is_verified(by_name)


def test_loads_of_other_files_do_not_outdate_a_plan(logs, monkeypatch):
    by_name = merged(logs, newer_file=None)
    source = replace(by_name.declared.source, identity=Identity.PATH)
    by_name = replace(by_name, declared=replace(by_name.declared, source=source))
    logs.write("a.log", line(1))
    registered, calls = offering.Offering._registered, count()

    def beside_others(self: Any, files: Any) -> Any:
        number = next(calls)
        if not number:
            logs.write("b.log", line(2))
            settings = LoadSettings(ledger=LedgerSettings(dsn=logs.dsn), wait_s=0, choice=Choice(files=("b.log",)))
            assert load(by_name.declared, settings, batch=new_batch(), tasks=InThisProcess()).loaded == 1
        return registered(self, files)

    monkeypatch.setattr(offering.Offering, "_registered", beside_others)

    assert by_name.load().loaded == 1
    assert next(calls) == 2


def test_files_of_which_no_time_is_known_are_not_merged_by_time(logs, monkeypatch):
    logs.write("app.log", line(7))

    def undated(*arguments: Any, **options: Any) -> Any:
        found = list_files(*arguments, **options)
        return replace(found, files=tuple(replace(each, modified_at=None) for each in found.files))

    monkeypatch.setattr("onceload_jobs.plan.plan.list_files", undated)

    report = merged(logs).load()

    assert (counts(report), [each.needs_a_person for each in report.notes]) == ((0, 0), [True])
    assert "newer_file: by_time needs that" in report.notes[0].reason
    assert merged(logs, NewerFile.BY_NAME).load().loaded == 1


def test_a_later_copy_of_a_rotated_log_is_not_newer_than_the_new_log(logs):
    merging = merged(logs)
    logs.write("app.log", line(7, note="old"))
    rotate(logs, line(7, note="new"))
    copy = logs.write("a-backup.log", line(7, note="old"))
    later = copy.stat().st_mtime + 60
    os.utime(copy, (later, later))

    merging.load()

    assert merging.rows("id, note") == [(7, "new")]
    assert is_verified(merging)


def merged(logs: Loads, newer_file: NewerFile | None = NewerFile.BY_TIME) -> Loads:
    target = replace(logs.declared.target, write=Write.MERGE, key=("id",), newer_file=newer_file)
    declared = replace(logs.declared, target=target, publish=Publish.STAGED, on_rewrite=OnRewrite.NEW_GENERATION)
    return replace(logs, declared=declared)


def rotate(logs: Loads, content: str) -> None:
    """The new file is written a minute later."""
    rotated = (logs.folder / "app.log").rename(logs.folder / "app.log.1")
    new = logs.write("app.log", content)
    os.utime(rotated, (new.stat().st_mtime - 60, new.stat().st_mtime - 60))


def kill_a_load(logs: Loads) -> None:
    class _Killed(Exception):
        pass

    class _Dying(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            raise _Killed

    settings = LoadSettings(ledger=LedgerSettings(dsn=logs.dsn), wait_s=0)
    with pytest.raises(_Killed):
        load(logs.declared, settings, batch=new_batch(), tasks=_Dying())


@pytest.mark.parametrize("write", [Write.MERGE, Write.APPEND])
def test_a_new_log_alone_does_not_overtake_the_rotated_one_in_a_merge(logs, write):
    key = ("id",) if write is Write.MERGE else ()
    target = replace(logs.declared.target, write=write, key=key)
    changes = {"target": target, "publish": Publish.STAGED, "on_rewrite": OnRewrite.NEW_GENERATION}
    path = logs.write("app.log", line(1, note="first"))
    logs.load(**changes)
    path.write_text(line(1, note="first") + line(7, note="old"))
    path.rename(logs.folder / "app.log.1")
    logs.write("app.log", line(7, note="new"))

    settings = LoadSettings(ledger=LedgerSettings(dsn=logs.dsn), wait_s=0, choice=Choice(files=("app.log",)))
    alone = load(replace(logs.declared, **changes), settings, batch=new_batch(), tasks=InThisProcess())
    logs.load(**changes)

    if write is Write.MERGE:
        assert alone.loaded == 0
        assert "Load app.log.1 first, or both together" in " ".join(note.reason for note in alone.notes)
        assert logs.rows("id, note") == [(1, "first"), (7, "new")]
    else:
        assert alone.loaded == 1
        assert logs.rows("id, note") == [(1, "first"), (7, "new"), (7, "old")]


def test_each_rotation_keeps_the_producer_of_what_was_rotated(logs):
    changes = {"on_rewrite": OnRewrite.NEW_GENERATION}
    for number in range(1, 6):
        for kept in range(4, 0, -1):
            name = "app.log" if kept == 1 else f"app.log.{kept - 1}"
            if (logs.folder / name).exists():
                (logs.folder / name).rename(logs.folder / f"app.log.{kept}")
        if number > 1:
            path = logs.folder / "app.log.1"
            path.write_text(path.read_text() + line(10 * number))
        logs.write("app.log", line(10 * number + 1))
        logs.load(**changes)
        settled(logs, **changes)

    assert logs.rows() == [11, 20, 21, 30, 31, 40, 41, 50, 51]
    by_producer = "SELECT array_agg(id ORDER BY _sequence) FROM target GROUP BY _producer_id ORDER BY _producer_id"
    assert logs.ask(by_producer) == [([11, 20],), ([21, 30],), ([31, 40],), ([41, 50],), ([51],)]
    assert is_verified(logs)


# Sequences of events.


class _Folder:
    """Files whose lines are numbered through, so that each line stands for one record wherever it is."""

    def __init__(self, logs: Loads, rng: Random) -> None:
        self.logs, self.rng, self.numbers, self.offered = logs, rng, count(), set[int]()
        #: Files that are loaded as they are: only such may go on in a way of their own.
        self.settled: set[Path] = set()

    @property
    def files(self) -> list[Path]:
        return sorted(self.logs.folder.iterdir())

    def step(self) -> None:
        self.rng.choice([self.grow, self.grow, self.grow_alike, self.copy, self.move, self.pack, self.delete])()

    def lines(self) -> bytes:
        some = [next(self.numbers) for _ in range(self.rng.randint(1, 4))]
        self.offered.update(some)
        return "".join(map(line, some)).encode()

    def content(self, path: Path) -> bytes:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    def put(self, path: Path, content: bytes) -> None:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    def grow(self) -> None:
        path = self.rng.choice([*self.settled, self.logs.folder / f"new{next(self.numbers)}.log"])
        self.put(path, (self.content(path) if path.exists() else b"") + self.lines())
        self.settled.discard(path)

    def grow_alike(self) -> None:
        """All that hold the same, or are behind."""
        if self.files:
            longest = max(self.files, key=lambda each: len(self.content(each)))
            whole = self.content(longest)
            alike = [each for each in self.files if whole.startswith(self.content(each))]
            grown = whole + self.lines()
            for each in self.rng.sample(alike, self.rng.randint(1, len(alike))):
                lines_of = grown.splitlines(keepends=True)
                at_least = self.content(each).count(b"\n")
                self.put(each, b"".join(lines_of[: self.rng.randint(at_least, len(lines_of))]))
                self.settled.discard(each)
            self.put(longest, grown)
            self.settled.discard(longest)

    def copy(self) -> None:
        if self.files:
            path = self.rng.choice(self.files)
            self.put(self.logs.folder / f"copy{next(self.numbers)}.log", self.content(path))

    def pack(self) -> None:
        if self.files:
            path = self.rng.choice(self.files)
            self.put(self.logs.folder / f"packed{next(self.numbers)}.log.gz", self.content(path))

    def move(self) -> None:
        if self.files:
            path = self.rng.choice(self.files)
            path.rename(path.with_name(f"moved{next(self.numbers)}{''.join(path.suffixes[-2:])}"))
            self.settled.discard(path)

    def delete(self) -> None:
        if self.settled:
            path = self.rng.choice(sorted(self.settled))
            path.unlink()
            self.settled.discard(path)

    def settle(self) -> None:
        for _ in range(8):
            report = self.logs.load()
            if counts(report) == (0, 0):
                break
        busy = {note.name for note in report.notes}
        self.settled = {path for path in self.files if path.name not in busy}


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("seed", range(3))
def test_however_names_and_copies_change_each_record_is_loaded_once(logs, seed):
    rng = Random(seed)
    folder = _Folder(logs, rng)
    for _ in range(12):
        for _ in range(rng.randint(1, 3)):
            folder.step()
        logs.load()
        rows = logs.rows_or_none()
        assert len(rows) == len(set(rows)), "a record was loaded twice"
        if rng.random() < 0.7:
            folder.settle()
            assert logs.rows_or_none() == sorted(folder.offered)


@pytest.mark.parametrize("rewrite", [OnRewrite.STOP, OnRewrite.NEW_GENERATION])
def test_a_planner_that_was_away_does_not_swap_names_back(logs, monkeypatch, rewrite):
    """Its claim fell back to another load, which has noted the same."""
    x = logs.write("x.log", lines(0, 10))
    logs.load(on_rewrite=rewrite)
    logs.write("y.log", lines(0, 20))
    note, calls = offering.Offering._store_copy_records, count()

    def is_away(self: Any, *arguments: Any) -> None:
        if not next(calls):
            logs.ask("UPDATE onceload.delivery SET deadline_at = clock_timestamp() WHERE state = 'held' RETURNING 1")
            logs.load(on_rewrite=rewrite)
        note(self, *arguments)

    monkeypatch.setattr(offering.Offering, "_store_copy_records", is_away)
    with pytest.raises(DeliveryTakenAway):
        logs.load(on_rewrite=rewrite)
    x.write_text(lines(0, 10) + lines(100, 102))

    settled(logs, on_rewrite=rewrite)

    assert logs.rows() == [*range(20), 100, 101]


def test_a_file_that_holds_no_record_is_the_beginning_of_no_other(logs):
    """Every file of a source may begin with the same header."""
    csv = replace(logs.declared.source, format=Format.CSV)
    logs.write("day1.log", "id,amount,note\n")
    logs.load(source=csv)
    for number in (2, 3):
        logs.write(f"day{number}.log", f"id,amount,note\n{number},1.00,x\n")
    logs.load(source=csv)
    (logs.folder / "day1.log").unlink()
    (logs.folder / "day2.log").unlink()

    logs.load(source=csv)

    assert logs.rows() == [2, 3]


def test_a_file_that_waits_for_one_that_is_gone_is_noted_as_not_read(logs):
    """It shares its first record with what was loaded, and nothing is there to tell more."""
    logs.write("day1.log", lines(0, 1))
    logs.load()
    logs.write("day2.log", lines(0, 4))
    logs.write("day3.log", lines(0, 1) + lines(9, 10))
    logs.load()
    (logs.folder / "day1.log").unlink()
    (logs.folder / "day2.log").unlink()

    logs.load()
    report = logs.load()

    assert [(note.name, note.needs_a_person or note.is_unreadable) for note in report.notes] == [("day3.log", True)]
