"""A delivery that uses up its tries is logged once as a dead letter, however its last try ended."""

import pytest
from sqlalchemy import text

from onceload_core.delivery import Rules
from onceload_core.names import Batch
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.by_hand import abandon, redrive
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_core.postgres.offers import Offer
from onceload_core.postgres.sessions import session_of
from onceload_core.spans import SpanSet

pytestmark = pytest.mark.every_postgres

BATCH = Batch("batch")
LOADER = session_of(BATCH, "loader")


@pytest.fixture
def board(engine):
    """One delivery of two producers waits."""
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    a, b = ledger.register("events", [("a", 1), ("b", 1)]).values()
    spans = {a: SpanSet.of((0, 10)), b: SpanSet.of((0, 10))}
    board = PostgresDeliveries(engine, "events", Rules(deliveries_max=2))
    claim = ledger.claim(ledger.open_session("events", session_of(BATCH, "plan")), spans, batch=BATCH, lease_s=60)
    board.offer(claim, [Offer(spans=spans, work="both")], batch=BATCH)
    return board


def take(board):
    session = board.open_session(LOADER)
    handed = board.take(session)
    assert handed is not None
    return handed


def fail(board, _engine, handed):
    board.nack(handed, "poison")


def lose_heartbeat(board, engine, _handed):
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.delivery SET deadline_at = clock_timestamp()"))
    assert board.expire() == 1


def take_over(board, _engine, _handed):
    board.open_session(LOADER)


def end_batch(board, _engine, _handed):
    board.end_earlier(BATCH, reason="the load failed")


@pytest.mark.parametrize("end", [fail, lose_heartbeat, take_over, end_batch])
def test_only_the_last_try_logs_a_dead_letter(board, engine, logged, end):
    first = take(board)
    end(board, engine, first)
    assert "delivery_set_aside" not in logged.names()

    end(board, engine, take(board))

    assert logged.one("delivery_set_aside") == {"pipeline": "events", "delivery": first.id, "tries": 2}


def test_a_part_of_a_delivery_that_becomes_a_dead_letter_is_logged_with_its_own_number(board, engine, logged):
    handed = take(board)
    with engine.begin() as connection:
        spans = dict(connection.execute(text("SELECT producer_id, spans::text FROM onceload.delivery_span")).all())
    producer_id = min(spans)

    board.part_with(handed, Offer(spans={producer_id: SpanSet()}, work="a"), rest="b", tries=1, reason="poison")

    fields = logged.one("delivery_set_aside")
    assert fields == {"pipeline": "events", "delivery": fields["delivery"], "tries": 2}
    assert fields["delivery"] != handed.id


def test_what_a_person_does_with_a_dead_letter_is_logged(board, logged):
    for _ in range(2):
        handed = take(board)
        board.nack(handed, "poison")

    redrive(board._engine, "events", handed.id, by="ann")
    abandon(board._engine, "events", handed.id, by="ann")

    found = {"pipeline": "events", "batch": BATCH, "delivery": handed.id}
    assert logged.one("delivery_redelivered") == {**found, "tries": 2, "by": "ann"}
    assert logged.one("delivery_abandoned") == {**found, "tries": 0, "by": "ann"}
