"""What failed once where several sessions load one pipeline: waiting in vain, or holding what others need."""

import gzip
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pytest

from onceload_core.delivery import Mode
from onceload_core.errors import DatabaseLost, SessionFenced
from onceload_core.names import Batch, SessionName
from onceload_core.postgres.deliveries import Handed, PostgresDeliveries
from onceload_core.spans import SpanSet
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.notes import Note
from onceload_jobs.load.consume import consume
from onceload_jobs.load.load import load
from onceload_jobs.load.others import OtherLoads
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import new_batch
from onceload_jobs.pipeline.declared import Identity, Publish
from onceload_jobs.read import new_content as loading
from onceload_jobs.work import session as work
from onceload_jobs.work.load_delivery import load_delivery
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.sharing import (
    DIRECT,
    FILES,
    STAGED,
    WITH_TAKERS,
    Board,
    at_once,
    consume_once,
    declare,
    killed_while_planning,
    offered,
    pass_time,
    settings,
    write,
)
from tests.servers import execute


@DIRECT
def test_a_delivery_handed_out_without_an_answer_is_not_kept_by_a_heartbeat(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    take = PostgresDeliveries.take
    lost: list[Handed | None] = []

    def losing(*arguments: Any, **named: Any) -> Handed | None:
        handed = take(*arguments, **named)
        if len(lost) < 2:
            lost.append(handed)
            raise DatabaseLost("taking a delivery", "the connection was cut")
        return handed

    monkeypatch.setattr(PostgresDeliveries, "take", losing)
    consume_once(loads, "a")

    assert len(lost) == 2
    assert loads.rows() == numbers
    assert loads.ask("SELECT count(*) FROM onceload.delivery") == [(0,)]


@WITH_TAKERS
@DIRECT
def test_a_follower_that_has_nothing_of_its_own_holds_nothing_of_others(loads, mode, monkeypatch):
    declare(loads, mode)
    numbers = write(loads)
    board = offered(loads)
    take = PostgresDeliveries.take
    lost: list[Handed] = []

    def losing_the_first(*arguments: Any, **named: Any) -> Handed | None:
        handed = take(*arguments, **named)
        if not lost and handed:
            # There is no second look in this round.
            lost.append(handed)
            raise DatabaseLost("taking a delivery", "the connection was cut")
        return None if len(lost) == 1 else handed

    monkeypatch.setattr(PostgresDeliveries, "take", losing_the_first)

    def looks_again() -> bool:
        lost.append(lost[0])
        return len(lost) < 4

    reports = list(
        consume(loads.declared, settings(loads, wait_s=0), name=SessionName("a"), batch=new_batch(), pause=looks_again)
    )

    assert all(isinstance(report, Report) for report in reports)
    assert board.states() == []
    assert loads.rows() == numbers


@STAGED
@pytest.mark.parametrize("is_changed", [False, True], ids=["its stage is gone", "its pipeline file was changed"])
def test_a_load_without_new_files_does_not_wait_for_an_earlier_life_of_its_batch(loads, is_changed):
    declare(loads, Mode.SHARED)
    write(loads)

    class Killed(InThisProcess):
        def begins(self) -> None:
            raise KeyboardInterrupt

    with killed_while_planning(loads):
        load(loads.declared, settings(loads), batch=Batch("run"), executor=Killed())
    for file in range(FILES):
        (loads.folder / f"{file}.jsonl").unlink()
    if is_changed:
        loads.declared = replace(loads.declared, columns=loads.declared.columns[:2])

    (report,) = at_once([partial(loads.load, batch="run")])

    assert (report.loaded, report.notes[0].is_busy) == (0, False)
    assert loads.ask("SELECT count(*) FROM onceload.delivery") == [(0,)]


@DIRECT
@pytest.mark.long
def test_a_load_waits_once_for_what_others_hold(loads, monkeypatch):
    declare(loads, Mode.SHARED, sessions=1, ack_deadline_s=1)
    write(loads)

    board = offered(loads)
    board.take("other")
    # It sends heartbeats, and makes no progress.
    pass_time(loads, -3000)
    waits_s, started, waits = 6.0, time.monotonic(), []
    wait = OtherLoads._wait_until

    def counted(others: OtherLoads, is_so: Callable[..., bool], notes: list[Note]) -> bool:
        waits.append(wait(others, is_so, notes))
        return waits[-1]

    monkeypatch.setattr(OtherLoads, "_wait_until", counted)
    report = load(loads.declared, settings(loads, wait_s=waits_s), batch=new_batch(), executor=InThisProcess())

    # The session itself waits for as long as a lease, and the load for as long as it was asked to.
    assert time.monotonic() - started >= waits_s
    assert waits == [False]
    assert any("session other holds delivery" in note.reason for note in report.notes)


@DIRECT
def test_no_session_is_named_whose_claim_has_ended(loads):
    declare(loads, Mode.SHARED)
    write(loads)
    board = offered(loads)
    board.take("other")
    ids = loads.ledger.register("events", [("gone.jsonl", 1)])
    gone = loads.ledger.open_session("events", SessionName("gone"))
    loads.ledger.claim(gone, dict.fromkeys(ids.values(), SpanSet()), batch=Batch("gone"), lease_s=60)
    loads.ledger.open_session("events", SessionName("gone"))

    report = consume_once(loads, "next", wait_s=0)

    named = {
        name for note in report.notes for name in ("other", "gone") if f"session {name} holds delivery" in note.reason
    }
    assert named == {"other"}


@DIRECT
def test_a_follower_that_goes_on_after_an_error_holds_nothing_meanwhile(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    failing = [DatabaseLost("committing", "it was away for too long")]

    def failing_once(*arguments: Any) -> list[Note]:
        if failing:
            raise failing.pop()
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", failing_once)
    told = consume(
        loads.declared, settings(loads), name=SessionName("a"), batch=new_batch(), pause=lambda: loads.rows() != numbers
    )

    assert isinstance(next(told), DatabaseLost)
    assert "held" not in Board(loads).states()
    assert isinstance(next(told), Report)
    assert not list(told)
    assert loads.rows() == numbers


@STAGED
def test_a_planner_that_vanished_keeps_no_other_from_its_own_work(loads):
    declare(loads, Mode.SHARED)
    write(loads)

    class Killed(InThisProcess):
        def begins(self) -> None:
            raise KeyboardInterrupt

    with killed_while_planning(loads):
        load(loads.declared, settings(loads), batch=new_batch(), executor=Killed())
    loads.write("new.jsonl", line(7))

    (report,) = at_once([partial(consume_once, loads, "next", wait_s=0)])

    assert report.loaded == 1
    assert sorted(note.name for note in report.notes if note.is_busy) == [f"{file}.jsonl" for file in range(FILES)]


@DIRECT
def test_a_load_does_not_wait_for_a_packed_file_in_the_line_of_another(loads):
    declare(loads, Mode.SESSION)
    for file in range(2):
        text = "".join(line(number) for number in range(100 + 300 * file, 400 + 300 * file))
        loads.write(f"{file}.jsonl.gz", gzip.compress(text.encode()))

    report = consume_once(loads, "1", wait_s=0)

    assert (report.loaded, report.notes) == (300, ())
    assert consume_once(loads, "2", wait_s=0).loaded == 300


@DIRECT
def test_a_delivery_that_depends_on_another_line_waits_with_a_bound(loads):
    declare(loads, Mode.SESSION)
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    write(loads)
    assert consume_once(loads, "1", wait_s=0).notes == ()
    loads.write("new.jsonl", line(7))

    (report,) = at_once([partial(consume_once, loads, "1", wait_s=0.2)])

    assert {note.name for note in report.notes if note.is_busy} >= {"new.jsonl"}
    assert 7 not in loads.rows()


#: As a heartbeat does.
HELD_FOR_AN_HOUR = """
UPDATE onceload.delivery SET deadline_at = now() + interval '1 h' WHERE state = 'held' RETURNING delivery_id"""


@DIRECT
def test_a_load_waits_with_a_bound_for_a_session_that_makes_no_progress(loads):
    declare(loads, Mode.SHARED, ack_deadline_s=1)
    numbers = write(loads)

    board = offered(loads)
    board.take("other")
    # Its heartbeat goes on, and nothing else.
    loads.ask(HELD_FOR_AN_HOUR)
    (report,) = at_once([partial(consume_once, loads, "one", wait_s=0.2)])

    assert ("0.jsonl", True) in [(note.name, "session other" in note.reason) for note in report.notes if note.is_busy]
    assert loads.rows() == numbers[10:]


READ_ONLY = """
CREATE FUNCTION read_only() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE 'cannot execute UPDATE in a read-only transaction' USING ERRCODE = '25006'; END $$;
CREATE TRIGGER read_only BEFORE UPDATE ON onceload.delivery EXECUTE FUNCTION read_only()"""


class WhileReadOnly(InThisProcess):
    """The database refuses changes for a while before workers read, as one whose disk is full."""

    def __init__(self, loads: Loads) -> None:
        self._loads = loads

    def begins(self) -> None:
        execute(self._loads.admin_dsn, READ_ONLY)
        time.sleep(0.5)
        execute(self._loads.admin_dsn, "DROP FUNCTION read_only() CASCADE")
        time.sleep(1.5)
        assert self._loads.ledger.outlook("events").claimed


@STAGED
def test_a_heartbeat_goes_on_after_the_database_has_refused_it(loads):
    declare(loads, Mode.SHARED, ack_deadline_s=1)
    numbers = write(loads)

    report = load(loads.declared, settings(loads), batch=new_batch(), executor=WhileReadOnly(loads))

    assert report.loaded == len(numbers)


@DIRECT
def test_a_file_that_breaks_off_is_not_planned_again_while_there_is_more(loads):
    declare(loads, Mode.SHARED, open_max=1)
    loads.write("0.jsonl.gz", gzip.compress("".join(map(line, range(100, 400))).encode())[:-20])
    loads.write("1.jsonl", line(7))

    (report,) = at_once([loads.load])

    assert [note.name for note in report.notes] == ["0.jsonl.gz"]
    assert 7 in loads.rows()


@STAGED
def test_deliveries_of_a_killed_worker_are_withdrawn_once_the_pipeline_publishes_at_once(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    loads.declared = replace(loads.declared, publish=Publish.DIRECT)
    offered(loads).take("gone")
    loads.declared = replace(loads.declared, publish=Publish.STAGED)
    pass_time(loads, 61)

    assert consume_once(loads, "next", wait_s=0).loaded == len(numbers)
    assert loads.rows() == numbers


@DIRECT
def test_a_load_goes_on_when_the_database_was_away_between_two_rounds(loads, monkeypatch):
    declare(loads, Mode.SHARED, open_max=2)
    numbers = write(loads)
    away = [(type(loads.ledger), name) for name in ("renew", "outlook", "know", "register")]
    away += [(PostgresDeliveries, name) for name in ("open_work", "expire")]
    for owner, name in away:
        monkeypatch.setattr(owner, name, lost_once(getattr(owner, name)))

    assert loads.load().loaded == len(numbers)
    assert loads.rows() == numbers


def lost_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """The second call gets no answer."""
    calls = count(1)

    def call(*arguments: Any, **named: Any) -> Any:
        if next(calls) == 2:
            raise DatabaseLost("looking", "the connection was cut")
        return method(*arguments, **named)

    return call


@WITH_TAKERS
@DIRECT
def test_a_successor_takes_over_what_a_vanished_session_held(loads, mode):
    declare(loads, mode)
    numbers = write(loads)
    offered(loads).take("gone")
    pass_time(loads, 61)

    # A follower does not wait within a load.
    consume_once(loads, "follower", wait_s=0)

    assert loads.rows() == numbers


def test_a_run_that_was_replaced_leaves_the_one_alone_that_replaced_it(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    epochs: list[Any] = []

    class Replaced(InThisProcess):
        def begins(self) -> None:
            loads.load(batch="run")
            epochs.append(loads.ask("SELECT epoch FROM onceload.session WHERE name = 'run/plan'"))

    with pytest.raises(SessionFenced):
        load(loads.declared, settings(loads), batch=Batch("run"), executor=Replaced())

    assert loads.ask("SELECT epoch FROM onceload.session WHERE name = 'run/plan'") == epochs[0]
    assert loads.rows() == numbers


@STAGED
def test_a_publish_reports_what_could_not_be_read(loads):
    declare(loads, Mode.SHARED, deliveries_max=1)
    numbers = write(loads)

    class Hiding(InThisProcess):
        def begins(self) -> None:
            with suppress(FileNotFoundError):
                (loads.folder / "1.jsonl").rename(loads.folder / "1.gone")

    report = load(loads.declared, settings(loads), batch=new_batch(), executor=Hiding())

    assert {note.name for note in report.notes if note.is_unreadable} == {"1.jsonl"}
    assert loads.rows() == [number for number in numbers if not 140 <= number < 180]


@DIRECT
def test_a_load_reports_what_its_workers_could_not_read(loads, monkeypatch):
    declare(loads, Mode.SHARED, deliveries_max=2)
    numbers = write(loads)

    def unreadable(chunk: Any, source: Any) -> Iterator[Any]:
        raise Unreadable(chunk.url, "it is not mounted here")

    class Blind(InThisProcess):
        def begins(self) -> None:
            monkeypatch.setattr(loading, "read_parts", unreadable)

        def ends(self) -> None:
            monkeypatch.undo()

    report = load(loads.declared, settings(loads), batch=new_batch(), executor=Blind())

    assert report.loaded == 0
    assert sorted(note.name for note in report.notes if note.is_unreadable) == [
        f"{file}.jsonl" for file in range(FILES)
    ]
    loads.load()
    assert loads.rows() == numbers


@DIRECT
def test_deliveries_of_a_session_that_no_longer_exists_are_loaded_once_its_lease_has_ended(loads):
    declare(loads, Mode.SESSION, sessions=4)
    numbers = write(loads)
    offered(loads).take("3")
    declare(loads, Mode.SESSION, sessions=1)
    pass_time(loads, 61)

    loads.load()

    assert loads.rows() == numbers
