"""Rotated logs: in a merge, a new file wins over the tail of the one that was rotated away."""

import os
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from onceload_core.names import Position
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.views import look
from onceload_jobs.files.listing import list_files
from onceload_jobs.load import offering
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Identity, NewerFile, OnRewrite, Publish, Write
from onceload_jobs.plan.choice import Choice
from onceload_jobs.recover.rewind import rewind
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.same_content import counts, is_verified, settled
from tests.servers import execute

pytestmark = pytest.mark.usually_staged


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
    report = load(by_name.declared, settings, batch=new_batch(), executor=InThisProcess())

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
            assert load(by_name.declared, settings, batch=new_batch(), executor=InThisProcess()).loaded == 1
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
        def begins(self) -> None:
            raise _Killed

    settings = LoadSettings(ledger=LedgerSettings(dsn=logs.dsn), wait_s=0)
    with pytest.raises(_Killed):
        load(logs.declared, settings, batch=new_batch(), executor=_Dying())


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
    alone = load(replace(logs.declared, **changes), settings, batch=new_batch(), executor=InThisProcess())
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
