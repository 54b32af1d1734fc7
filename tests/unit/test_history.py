"""The checker of histories finds what it is there to find, and nothing in a good one."""

from dataclasses import replace

import pytest

from onceload_core.delivery import Mode
from tests.loads.history import Entry, Offered, Opened, Operation, Told, out_of_order, violations

A, B = ((1, "{[0,10)}"),), ((1, "{[10,20)}"),)
FIRST = Operation(session="a", epoch=1, spans=A, asked_at=10, told=Told.OK, answered_at=20, position=1)
SECOND = Operation(session="a", epoch=1, spans=B, asked_at=30, told=Told.OK, answered_at=40, position=2)
ENTRIES = [Entry(position=1, session="a", epoch=1, spans=A), Entry(position=2, session="a", epoch=1, spans=B)]
OPENED = [Opened(session="a", epoch=1, at=5)]


def test_a_good_history_violates_nothing():
    failed = Operation(session="b", epoch=1, spans=B, asked_at=25, told=Told.FAILED, answered_at=35)
    unknown = Operation(session="b", epoch=1, spans=A, asked_at=1)

    assert violations([FIRST, SECOND, failed, unknown], OPENED, ENTRIES) == []


def test_a_commit_with_an_unknown_outcome_may_be_there_or_not():
    unknown = replace(SECOND, told=Told.UNKNOWN, answered_at=None, position=None)

    assert violations([FIRST, unknown], OPENED, ENTRIES) == []
    assert violations([FIRST, unknown], OPENED, ENTRIES[:1]) == []


@pytest.mark.parametrize(
    ("operations", "opened", "entries", "said"),
    [
        pytest.param([FIRST, SECOND], OPENED, ENTRIES[:1], "answered ok, but the ledger has None", id="lost"),
        pytest.param(
            [FIRST, replace(SECOND, told=Told.FAILED, position=None)],
            OPENED,
            ENTRIES,
            "was answered",
            id="failed is there",
        ),
        pytest.param([FIRST], OPENED, ENTRIES, "as none asked for it", id="from nowhere"),
        pytest.param(
            [FIRST, replace(SECOND, spans=A)],
            OPENED,
            ENTRIES,
            "answered ok, but the ledger has Entry",
            id="other spans",
        ),
        pytest.param(
            [replace(FIRST, position=2), replace(SECOND, position=1)],
            OPENED,
            [replace(ENTRIES[0], position=2), replace(ENTRIES[1], position=1)],
            "was asked for when position 2 had been answered",
            id="out of time",
        ),
        pytest.param(
            [FIRST, SECOND],
            [*OPENED, Opened(session="a", epoch=2, at=25)],
            ENTRIES,
            "was answered ok, after",
            id="zombie",
        ),
        pytest.param(
            [replace(FIRST, epoch=2), SECOND],
            [],
            [replace(ENTRIES[0], epoch=2), ENTRIES[1]],
            "was committed after one of epoch 2",
            id="an earlier life later",
        ),
    ],
)
def test_each_violation_is_found(operations, opened, entries, said):
    found = violations(operations, opened, entries)

    assert any(said in each for each in found), found


OFFERED = [
    Offered(delivery=1, producer=1, first=0, end=10, session="1"),
    Offered(delivery=2, producer=2, first=0, end=10, session="2"),
    Offered(delivery=3, producer=1, first=10, end=20, session="1"),
]


@pytest.mark.parametrize(
    ("mode", "committed", "is_good"),
    [
        (Mode.SHARED, [(1, 1, 10, "x"), (2, 1, 0, "x"), (3, 2, 0, "x")], True),
        (Mode.KEY_SHARED, [(1, 1, 0, "x"), (2, 1, 10, "x"), (3, 2, 0, "y")], True),
        (Mode.KEY_SHARED, [(1, 1, 10, "x"), (2, 1, 0, "x"), (3, 2, 0, "y")], False),
        (Mode.ORDERED, [(1, 1, 0, "x"), (2, 2, 0, "x"), (3, 1, 10, "y")], True),
        (Mode.ORDERED, [(1, 1, 0, "x"), (2, 1, 10, "x"), (3, 2, 0, "y")], False),
        (Mode.SESSION, [(1, 1, 0, "1"), (2, 1, 10, "1"), (3, 2, 0, "2")], True),
        (Mode.SESSION, [(1, 1, 0, "1"), (2, 1, 10, "2"), (3, 2, 0, "2")], False),
        (Mode.SESSION, [(1, 1, 10, "1"), (2, 1, 0, "1"), (3, 2, 0, "2")], False),
        (Mode.SHARED, [(1, 1, 20, "x")], False),
    ],
)
def test_the_order_of_each_mode_is_checked(mode, committed, is_good):
    assert (out_of_order(mode, OFFERED, committed) == []) is is_good
