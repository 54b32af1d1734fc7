"""Consumers that go on until they are stopped."""

import threading
from collections.abc import Iterator
from typing import Any

from onceload_core.delivery import Mode
from onceload_core.errors import DatabaseLost
from onceload_core.names import Batch, SessionName
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.notes import Note
from onceload_jobs.load.consume import consume
from onceload_jobs.load.report import Report
from onceload_jobs.read import new_content as loading
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.work import session as work
from onceload_jobs.work.load_delivery import load_delivery
from onceload_jobs.work.session import Worker
from tests.loads.conftest import line
from tests.loads.sharing import DIRECT, ROWS, Board, at_once, consume_once, declare, settings, write
from tests.waiting import until


@DIRECT
def test_a_follower_loads_what_comes_until_it_is_asked_to_stop(loads):
    declare(loads, Mode.SHARED)
    first, stopped = write(loads, files=1), threading.Event()

    def follow() -> list[Any]:
        return list(
            consume(
                loads.declared,
                settings(loads, is_stopped=stopped.is_set, wait_s=0),
                name=SessionName("follower"),
                batch=Batch("f"),
                pause=lambda: not stopped.wait(0.05),
            )
        )

    def more() -> None:
        until(lambda: len(loads.rows_or_none()) == len(first))
        loads.write("more.jsonl", line(900))
        until(lambda: 900 in loads.rows_or_none())
        stopped.set()

    reports, _ = at_once([follow, more])

    assert sum(report.loaded for report in reports) == len(first) + 1
    ((alive,),) = loads.ask("SELECT count(*) FROM onceload.session WHERE lease_until > clock_timestamp()")
    assert alive == 0


@DIRECT
def test_a_follower_that_could_not_open_its_session_opens_it_when_the_database_is_back(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    open_session, lost = Worker.open, [True]

    def losing(worker: Worker, *, waits: bool) -> bool:
        if lost:
            lost.clear()
            raise DatabaseLost("opening a session", "the server is away")
        return open_session(worker, waits=waits)

    monkeypatch.setattr(Worker, "open", losing)
    rounds = iter([True, False])
    found = list(
        consume(
            loads.declared,
            settings(loads),
            name=SessionName("follower"),
            batch=Batch("f"),
            pause=lambda: next(rounds),
        )
    )

    assert [type(each) for each in found] == [DatabaseLost, Report]
    assert loads.rows() == numbers


@DIRECT
def test_a_stopped_consumer_finishes_what_it_holds_and_leaves_the_rest(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    stopped = threading.Event()

    def stopping(*arguments: Any) -> list[Note]:
        stopped.set()
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", stopping)
    report = consume_once(loads, "a", is_stopped=stopped.is_set)

    assert report.loaded == 10
    assert set(Board(loads).states()) == {"waiting"}
    consume_once(loads, "b")
    assert loads.rows() == numbers


@DIRECT
def test_unreadable_chunks_are_not_planned_again_while_there_is_more(loads, monkeypatch):
    declare(loads, Mode.SHARED, open_max=1, deliveries_max=2)
    numbers = write(loads)
    tries: list[str] = []

    def not_the_first(chunk: Any, source: Any) -> Iterator[Any]:
        tries.append(chunk.name)
        if chunk.name == "0.jsonl":
            raise Unreadable(chunk.url, "it is not mounted here")
        return read_parts(chunk, source)

    monkeypatch.setattr(loading, "read_parts", not_the_first)

    report = consume_once(loads, "one")

    assert tries.count("0.jsonl") == 2
    assert [note.name for note in report.notes if note.is_unreadable] == ["0.jsonl"]
    assert loads.rows() == numbers[ROWS:]
