"""Processes of this machine: each item has one outcome, in whatever order they die, and each call ends."""

import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onceload_jobs.executor.executor import Died, Done, Outcome
from onceload_jobs.executor.local import LocalExecutor
from tests.waiting import PATIENCE_S, until


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _die_in_turn(item: tuple[int, Path]) -> int:
    """The second process dies at once, and the first one when that is known."""
    number, is_known = item
    if number == 0:
        until(is_known.exists, "the death of the other process is known")
    if number < 2:
        _die()
    return number


def _die_of(item: tuple[int, bool]) -> int:
    number, dies = item
    if dies:
        _die()
    return number


@contextmanager
def _processes(slots: int) -> Iterator[LocalExecutor]:
    executor = LocalExecutor(slots)
    try:
        yield executor
    finally:
        executor.close()


def _outcomes(executor, function, items, *, each=lambda outcome: None) -> dict[int, Outcome]:
    """The outcome of each item, if the call ends in time."""
    found: dict[int, Outcome] = {}

    def call() -> None:
        for number, outcome in executor.each(function, items):
            assert number not in found
            found[number] = outcome
            each(outcome)

    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    calling.join(PATIENCE_S)
    assert not calling.is_alive(), f"the call did not end after {sorted(found)}"
    return found


def test_a_process_that_has_nothing_to_do_does_not_keep_a_call_from_ending(tmp_path):
    is_known = tmp_path / "known"
    with _processes(2) as executor:
        items = [(number, is_known) for number in range(3)]
        found = _outcomes(executor, _die_in_turn, items, each=lambda _: is_known.touch())

    # The first process had the last item already, which goes to a new one.
    assert [type(found[number]) for number in range(3)] == [Died, Died, Done]
    assert {outcome.reason for outcome in found.values() if isinstance(outcome, Died)} == {
        "its process ended with SIGKILL"
    }


@pytest.mark.parametrize("seed", range(4))
def test_each_item_has_one_outcome_whichever_processes_die(seed):
    random = Random(seed)
    with _processes(random.randint(1, 4)) as executor:
        for share in (0.0, 0.3, 1.0):
            items = [(number, random.random() < share) for number in range(random.randint(1, 12))]
            found = _outcomes(executor, _die_of, items)
            assert [type(found[number]) is Died for number, _ in items] == [dies for _, dies in items]


def _same(item: bytes) -> bytes:
    return item


def test_large_items_and_large_outcomes_do_not_wait_for_each_other():
    """Neither fits into a pipe. A process gets its next item while it sends an outcome."""
    with _processes(1) as executor:
        found = _outcomes(executor, _same, [bytes(2**20)] * 3)

    assert [type(found[number]) for number in range(3)] == [Done] * 3


def _without_more_memory(item: bytes) -> int:
    """From the first item on, the process has little memory."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**24, used + 2**24))
    return len(item)


def test_a_process_that_has_no_memory_for_its_next_item_ends():
    with _processes(1) as executor:
        found = _outcomes(executor, _without_more_memory, [b"a", b"b", bytes(2**27)])

    assert [type(found[number]) for number in range(3)] == [Done, Done, Died]


class _LookedAtSlowly(list[Any]):
    """Idle processes that another call may take while one looks whether there are any."""

    def __len__(self) -> int:
        found = super().__len__()
        time.sleep(0.1)
        return found


def test_two_calls_at_once_do_not_take_the_same_idle_process():
    """A piece is read again while others are read, and a process is tried before an item is blamed."""
    with _processes(1) as executor:
        _outcomes(executor, _same, [b""])
        executor._idle = _LookedAtSlowly(executor._idle)
        with ThreadPoolExecutor(2) as pool:
            found = list(pool.map(lambda item: _outcomes(executor, _same, [item]), [b"a", b"b"]))

    assert found == [{0: Done(b"a")}, {0: Done(b"b")}]
