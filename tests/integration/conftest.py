"""A pipeline with a history, for recovery and for snapshots; a home for an embedded server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from onceload_core.names import Batch, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect
from onceload_core.spans import SpanSet
from tests.integration.homes import kill_everything
from tests.servers import temporary_home
from tests.waiting import until

LONG = "landing/events/2026/11/21/a-very-long-name-of-a-file-from-a-device-that-nobody-wanted-to-shorten.jsonl.gz"


@pytest.fixture
def engine(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    yield engine
    engine.dispose()


@pytest.fixture
def ledger(engine):
    """Three producers, six commits, a snapshot after the third."""
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    session = ledger.open_session("events", SessionName("loader"))
    ids = ledger.register("events", [("a", 1), ("b", 1), ("c", 1), ("only registered", 1)])
    for number, name in enumerate(["a", "b", "a", "b", "c", "a"]):
        advance = Advance(
            producer_id=ids[name, 1],
            spans=SpanSet.of((number * 10, number * 10 + 5)),
            rows=5,
            fingerprint=bytes([number]),
        )
        ledger.commit(Commit(session=session, batch=Batch(f"b{number}"), advances=(advance,), write_rows=lambda _: 0))
        if number == 2:
            PostgresSnapshots(engine).take("events")
    return ledger


@pytest.fixture
def loaded(engine):
    """One pipeline with two commits of a file with a long name."""
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    producer_id = ledger.register("events", [(LONG, 1), ("\x1b[31mred\n", 1)])[LONG, 1]
    session = ledger.open_session("events", SessionName("loader"))
    for first in (0, 1000):
        advance = Advance(producer_id=producer_id, spans=SpanSet.of((first, first + 500)), rows=5)
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=(advance,), write_rows=lambda _: 0))
    return engine


@pytest.fixture
def wait_until_blocked(engine):
    def count_blocked():
        with engine.begin() as connection:
            waiting = text("SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            return connection.execute(waiting).scalar_one()

    def wait(backends=1):
        until(lambda: count_blocked() >= backends, f"{backends} sessions wait for a lock")

    return wait


@pytest.fixture
def home() -> Iterator[Path]:
    with temporary_home() as home:
        try:
            yield home
        finally:
            kill_everything(home)
