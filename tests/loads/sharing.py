"""Several sessions of one pipeline: a pipeline of small chunks, and what a test does by hand to its deliveries."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any, NoReturn

import pytest
from sqlalchemy import text

from onceload_core.delivery import Mode, Rules
from onceload_core.errors import DatabaseLost
from onceload_core.names import SessionName
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.deliveries import Handed, PostgresDeliveries
from onceload_jobs.load.consume import consume
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Publish
from tests.loads.conftest import InThisProcess, Loads, line
from tests.waiting import PATIENCE_S

ROWS, FILES = 40, 4
DIRECT = pytest.mark.parametrize("publish", [Publish.DIRECT])
STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])
EVERY_MODE = pytest.mark.parametrize("mode", Mode)
#: Where what is left lying is taken by others.
WITH_TAKERS = pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED, Mode.ORDERED])


def declare(loads: Loads, mode: Mode, **rules: Any) -> None:
    """A pipeline of small chunks: ten lines each."""
    loads.declared = replace(
        loads.declared,
        source=replace(loads.declared.source, chunk_bytes=10 * len(line(100))),
        delivery=Rules(mode=mode, **{"sessions": 2, "ack_deadline_s": 60, **rules}),
    )


def write(loads: Loads, *, files: int = FILES, rows: int = ROWS) -> list[int]:
    numbers = iter(range(100, 100 + files * rows))
    for file in range(files):
        loads.write(f"{file}.jsonl", "".join(line(next(numbers)) for _ in range(rows)))
    return list(range(100, 100 + files * rows))


def settings(loads: Loads, **changes: Any) -> LoadSettings:
    return replace(LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=30), **changes)


def consume_once(loads: Loads, name: str, **changes: Any) -> Report:
    (report,) = consume(
        loads.declared,
        settings(loads, **changes),
        name=SessionName(name),
        batch=new_batch(),
        pause=lambda: False,
    )
    assert isinstance(report, Report), report
    return report


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001 - returned to the test.
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
        assert not thread.is_alive()
    return results


def pass_time(loads: Loads, seconds: float) -> None:
    """As if so much time went by: all leases and deadlines are that much nearer."""
    with loads.engine.begin() as connection:
        for statement in (
            "UPDATE onceload.session SET lease_until = lease_until - make_interval(secs => :seconds)",
            "UPDATE onceload.delivery SET deadline_at = deadline_at - make_interval(secs => :seconds)",
        ):
            connection.execute(text(statement), {"seconds": seconds})


class Board:
    """What a test does by hand to the deliveries of the pipeline."""

    def __init__(self, loads: Loads) -> None:
        self.board = PostgresDeliveries(loads.engine, "events", loads.declared.delivery)
        self.loads = loads

    def take(self, name: str) -> Handed:
        session = self.board.open_session(SessionName(name))
        assert session
        handed = self.board.take(session)
        assert handed
        return handed

    def states(self) -> list[str]:
        statement = "SELECT state FROM onceload.delivery WHERE work IS NOT NULL ORDER BY delivery_id"
        return [state for (state,) in self.loads.ask(statement)]


def offered(loads: Loads) -> Board:
    """Everything is offered, and no session has taken anything yet."""

    def fail(*_: Any, **__: Any) -> NoReturn:
        raise DatabaseLost("working", "there is no server")

    with pytest.MonkeyPatch.context() as patched:
        for how in ("work", "run_sessions"):
            patched.setattr(f"onceload_jobs.load.others.{how}", fail)
        with pytest.raises(DatabaseLost):
            load(loads.declared, as_consumer(loads), batch=new_batch(), executor=InThisProcess())
    return Board(loads)


def as_consumer(loads: Loads, **changes: Any) -> LoadSettings:
    """A consumer hands out what it finds also where there is no order."""
    session = None if loads.declared.delivery.mode is Mode.SESSION else SessionName("consumer")
    return replace(settings(loads), session=session, **changes)


def check_order(loads: Loads, mode: Mode) -> None:
    """Receipts in the order of their positions, by session, by file or all together."""
    receipts = loads.ask(
        "SELECT session, producer, lower(spans) FROM onceload.ledger_span"
        " JOIN onceload.ledger USING (pipeline_id, position) ORDER BY position"
    )
    lines: dict[object, list[Any]] = defaultdict(list)
    for session, producer, first in receipts:
        match mode:
            case Mode.SESSION:
                # Chunks of all files, one after the other.
                lines[session].append((first, producer))
            case Mode.KEY_SHARED:
                lines[producer].append(first)
            case Mode.ORDERED:
                lines[mode].append((producer, first))
            case Mode.SHARED:
                return
    assert lines
    assert all(earlier < later for line in lines.values() for earlier, later in pairwise(line))


@contextmanager
def monkeypatched(owner: type, name: str) -> Iterator[None]:
    """Nothing is sent in the end, as by a process that was killed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, lambda *_, **__: None)
        yield


@contextmanager
def killed_while_planning(loads: Loads) -> Iterator[None]:
    """The planner ends here, and gives nothing back."""
    with (
        monkeypatched(PostgresDeliveries, "end_batch"),
        monkeypatched(type(loads.ledger), "release"),
        pytest.raises(KeyboardInterrupt),
    ):
        yield
