"""What each mode of delivery promises to several sessions that load one pipeline."""

from functools import partial

import pytest

from onceload_core.delivery import Mode
from onceload_core.errors import SettingRefused
from onceload_jobs.load.report import Report
from tests.loads.conftest import line
from tests.loads.sharing import (
    DIRECT,
    EVERY_MODE,
    FILES,
    ROWS,
    Board,
    at_once,
    check_order,
    consume_once,
    declare,
    offered,
    write,
)


@EVERY_MODE
def test_consumers_load_each_record_once_and_in_the_order_of_their_mode(loads, mode):
    declare(loads, mode)
    numbers = write(loads)

    reports = at_once([partial(consume_once, loads, name) for name in ("1", "2")])

    assert [type(each) for each in reports] == [Report, Report]
    assert loads.rows() == numbers
    assert sum(report.loaded for report in reports) == len(numbers)
    if loads.declared.is_direct:
        check_order(loads, mode)
    assert Board(loads).states() == []


@DIRECT
def test_session_goes_round_robin_to_its_fixed_sessions(loads):
    declare(loads, Mode.SESSION)
    write(loads)

    consume_once(loads, "1")
    assert len(loads.rows()) == FILES * ROWS // 2
    assert set(Board(loads).states()) == {"waiting"}
    consume_once(loads, "2")

    assert len(loads.rows()) == FILES * ROWS
    sessions = loads.ask("SELECT session, count(*) FROM onceload.ledger GROUP BY session ORDER BY session")
    assert sessions == [("1", FILES * ROWS // 20), ("2", FILES * ROWS // 20)]


@DIRECT
def test_a_load_works_as_all_fixed_sessions(loads):
    declare(loads, Mode.SESSION, sessions=3)
    numbers = write(loads)

    loads.load()

    assert loads.rows() == numbers
    assert {session for (session,) in loads.ask("SELECT session FROM onceload.ledger")} == {"1", "2", "3"}


@DIRECT
def test_deliveries_of_a_session_that_no_longer_exists_go_to_the_first(loads):
    declare(loads, Mode.SESSION, sessions=4)
    numbers = write(loads)
    offered(loads)
    declare(loads, Mode.SESSION, sessions=1)

    loads.load()

    assert loads.rows() == numbers


@pytest.mark.parametrize("name", ["3", "loader"])
@DIRECT
def test_session_refuses_a_consumer_that_is_none_of_its_own(loads, name):
    declare(loads, Mode.SESSION)

    with pytest.raises(SettingRefused, match="Expected a number from 1 to 2"):
        consume_once(loads, name)


@pytest.mark.parametrize("name", ["a/b", "", "a\nb"])
def test_a_consumer_cannot_be_called_like_a_session_of_a_batch(loads, name):
    with pytest.raises(SettingRefused, match="--session"):
        consume_once(loads, name)


@DIRECT
def test_files_take_turns_so_that_a_large_one_keeps_no_small_one_waiting(loads):
    declare(loads, Mode.SHARED)
    loads.write("a.jsonl", "".join(line(number) for number in range(100, 200)))
    loads.write("b.jsonl", line(300) * 12)

    loads.load()

    order = [producer for (producer,) in loads.ask("SELECT producer FROM onceload.ledger_span ORDER BY position")]
    assert order.index("b.jsonl") == 1
