"""Rows of a program that the target refuses: another call may have loaded them, and a limit may be passed."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from onceload_core.errors import TooManyQuarantined
from onceload_core.ports import CommitStep
from tests.python.conftest import Place
from tests.python.test_rows_in_pieces import Pieces, counts, in_batches, mapping
from tests.waiting import PATIENCE_S, until

BLOCKED = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def pieces(place: Place) -> Pieces:
    """Into a table that has each `id` once."""
    made = Pieces(place)
    made.ask(
        "CREATE TABLE target (id bigint UNIQUE, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)"
    )
    return made


@pytest.mark.parametrize("publish", ["staged", "direct"])
@pytest.mark.parametrize("more", [{}, {"quality": {"quarantined_max": 3}}], ids=["no limit", "a limit"])
def test_rows_that_another_call_commits_meanwhile_are_duplicates_where_each_may_be_there_once(
    pieces: Pieces, publish: str, more: dict[str, Any]
) -> None:
    has_written = Event()

    def reached(step: CommitStep) -> None:
        if step is CommitStep.ROWS_WRITTEN:
            has_written.set()
            until(lambda: pieces.ask(BLOCKED), "the other call waits for these rows")

    with ThreadPoolExecutor(1) as thread:
        first = thread.submit(pieces.load, in_batches(20), reached=reached, batch="one", publish=publish, **more)
        assert has_written.wait(PATIENCE_S)
        second = pieces.load(in_batches(20), reached=lambda _: None, batch="two", publish=publish, **more)

    assert counts(first.result()) == (20, 0, 0)
    assert counts(second) == (0, 20, 0)
    assert pieces.ids() == list(range(20))


@pytest.mark.parametrize("bad", [0, 4])
def test_rows_that_pass_the_limit_together_with_those_that_the_server_refuses_are_refused_for_it(
    pieces: Pieces, bad: int
) -> None:
    rows = [mapping(number % 6, **({"amount": "x"} if number < bad else {})) for number in range(30)]

    with pytest.raises(TooManyQuarantined):
        pieces.pipeline(quality={"quarantined_max": 3}).load_rows(rows, producer="crm", first_id=0)

    assert pieces.ids() == []
