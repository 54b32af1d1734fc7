"""Sessions that vanish, come back, or are called like others."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.delivery import Mode
from onceload_core.errors import SessionFenced, SettingRefused
from onceload_core.names import Batch
from onceload_core.postgres.deliveries import Handed, PostgresDeliveries
from onceload_core.postgres.sessions import session_of
from onceload_jobs.files.notes import Note
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.work import load_delivery as loading
from onceload_jobs.work import session as work
from onceload_jobs.work.load_delivery import load_delivery
from tests.loads.conftest import InThisProcess, Loads
from tests.loads.sharing import (
    DIRECT,
    WITH_TAKERS,
    Board,
    at_once,
    check_order,
    consume_once,
    declare,
    monkeypatched,
    offered,
    pass_time,
    settings,
    write,
)
from tests.waiting import PATIENCE_S


@WITH_TAKERS
def test_deliveries_of_a_vanished_consumer_are_loaded_by_another_once_its_lease_has_ended(loads, mode):
    declare(loads, mode)
    if not loads.declared.is_direct:
        pytest.skip("what is staged goes with who publishes it")
    numbers = write(loads)
    offered(loads).take("gone")

    waiting = consume_once(loads, "b", wait_s=0)
    assert waiting.notes
    assert all(note.is_busy for note in waiting.notes)
    assert len(loads.rows()) < len(numbers)
    pass_time(loads, 61)
    consume_once(loads, "b")

    assert loads.rows() == numbers
    check_order(loads, mode)


@DIRECT
def test_session_leaves_the_line_of_one_that_is_away_alone_for_an_hour_and_goes_on_when_it_is_back(loads):
    declare(loads, Mode.SESSION)
    numbers = write(loads)
    handed = offered(loads).take("1")

    pass_time(loads, 3600)
    other = consume_once(loads, "2")
    assert (other.loaded, other.notes) == (len(numbers) // 2, ())
    assert len(loads.rows()) == len(numbers) // 2
    consume_once(loads, "1")

    assert loads.rows() == numbers
    check_order(loads, Mode.SESSION)
    with pytest.raises(SessionFenced):
        Board(loads).board.__class__.take(_same_life(loads, handed), handed.claim.session)


def _same_life(loads: Loads, handed: Handed) -> PostgresDeliveries:
    """A board on which a life that is over goes on."""
    board = Board(loads).board
    ((session_id,),) = loads.ask(f"SELECT session_id FROM onceload.session WHERE name = '{handed.claim.session.name}'")
    board._session_ids[handed.claim.session.name] = session_id
    return board


@WITH_TAKERS
@DIRECT
def test_the_later_of_two_under_one_name_goes_on_and_the_earlier_gets_an_error(loads, mode, monkeypatch):
    declare(loads, mode)
    numbers = write(loads)
    offered(loads)
    has_one, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> list[Note]:
        if not has_one.is_set():
            has_one.set()
            assert goes_on.wait(PATIENCE_S)
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", slow)

    def later() -> Report:
        assert has_one.wait(PATIENCE_S)
        report = consume_once(loads, "a")
        goes_on.set()
        return report

    earlier, last = at_once([lambda: consume_once(loads, "a"), later])

    assert isinstance(earlier, SessionFenced)
    assert last.loaded == len(numbers)
    assert loads.rows() == numbers
    check_order(loads, mode)


@DIRECT
@WITH_TAKERS
def test_a_straggler_that_wakes_up_after_its_lease_commits_nothing(loads, mode, monkeypatch):
    declare(loads, mode)
    numbers = write(loads, files=1)
    offered(loads)
    has_one, goes_on = threading.Event(), threading.Event()
    commit_piece = loading._commit_piece

    def slow(*arguments: Any, **named: Any) -> None:
        if not has_one.is_set():
            has_one.set()
            assert goes_on.wait(PATIENCE_S)
        commit_piece(*arguments, **named)

    monkeypatch.setattr(loading, "_commit_piece", slow)

    def other() -> Report:
        assert has_one.wait(PATIENCE_S)
        pass_time(loads, 61)
        # A later beat of the straggler would only hide that it is late.
        report = consume_once(loads, "other")
        goes_on.set()
        return report

    straggler, report = at_once([lambda: consume_once(loads, "straggler"), other])

    assert (report.loaded, straggler.loaded) == (len(numbers), 0)
    assert loads.rows() == numbers
    check_order(loads, mode)


@DIRECT
def test_a_later_run_of_a_batch_takes_over_at_once_what_its_earlier_life_held(loads):
    declare(loads, Mode.KEY_SHARED, ack_deadline_s=3600)
    numbers = write(loads)

    class Killed(InThisProcess):
        def begins(self) -> None:
            Board(loads).take("run/1")
            raise KeyboardInterrupt

    with monkeypatched(PostgresDeliveries, "end_batch"), pytest.raises(KeyboardInterrupt):
        load(loads.declared, settings(loads), batch=Batch("run"), executor=Killed())
    loads.load(batch="run")

    assert loads.rows() == numbers


def test_a_consumer_refuses_a_transform(loads):
    loads.declared = replace(loads.declared, transform="SELECT * FROM records")

    with pytest.raises(SettingRefused, match="onceload load"):
        consume_once(loads, "a")


def test_a_batch_cannot_be_called_like_a_session(loads):
    with pytest.raises(SettingRefused, match="batch"):
        loads.load(batch="a/b")


def test_sessions_of_a_batch_are_told_apart_from_those_of_others():
    assert session_of(Batch("a"), "1") == "a/1"
