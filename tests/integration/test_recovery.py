"""Recovery of producer states, with the damage that it is for."""

import threading

import pytest
from sqlalchemy import text

from dedup_core.errors import NotFound, PipelineBusy, SettingRefused, StateDiffers
from dedup_core.names import Batch, Position, SessionName
from dedup_core.pipeline import Pipeline
from dedup_core.ports import Advance, Commit
from dedup_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect, recover_state
from dedup_core.replay import Snapshot, replay
from dedup_core.spans import SpanSet
from onceload import schema

pytestmark = pytest.mark.every_postgres

FIRST = Position(0)


@pytest.fixture
def engine(dsn):
    engine = connect(LedgerSettings(dsn=dsn, lock_timeout_s=5))
    schema.upgrade(engine)
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
        ledger.commit(
            Commit(session=session, batch=Batch(f"b{number}"), advances=(advance,), write_rows=lambda _: None)
        )
        if number == 2:
            PostgresSnapshots(engine).take("events")
    return ledger


DAMAGES = {
    "rows gone": "DELETE FROM onceload.producer",
    "a row gone": "DELETE FROM onceload.producer WHERE name = 'b'",
    "consumed set back": "UPDATE onceload.producer SET consumed = '{[0,5)}' WHERE name = 'a'",
    "consumed set ahead": "UPDATE onceload.producer SET consumed = '{[0,500)}'",
    "fingerprint changed": "UPDATE onceload.producer SET fingerprint = 'x' WHERE name = 'c'",
    "never loaded, yet consumed": "UPDATE onceload.producer SET consumed = '{[0,9)}' WHERE name = 'only registered'",
    "registered anew": "UPDATE onceload.producer SET producer_id = 1000, consumed = '{}' WHERE name = 'a'",
    "the position set back": "UPDATE onceload.pipeline SET position = 2",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_state_is_rebuilt_from_snapshot_and_ledger(engine, ledger, damage):
    whole = ledger.states("events")
    with engine.begin() as connection:
        connection.execute(text(damage))

    looked = recover_state(engine, "events", dry_run=True)
    done = recover_state(engine, "events", dry_run=False)

    assert not looked.applied
    assert (looked.differing, looked.position_was) != ((), 6)
    assert done.applied
    assert (done.snapshot_position, done.entries_replayed, done.position) == (3, 3, 6)
    after = ledger.states("events")
    assert (after.position, after.states) == (whole.position, whole.states)
    assert recover_state(engine, "events", dry_run=True).differing == ()


def test_a_dry_run_changes_nothing(engine, ledger):
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM onceload.producer"))

    found = recover_state(engine, "events", dry_run=True)

    assert found.differing == ("a", "b", "c")
    assert ledger.states("events").states == {}


def test_a_load_goes_on_after_a_recovery_with_ids_of_its_own(engine, ledger):
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM onceload.producer"))
        connection.execute(text("ALTER SEQUENCE onceload.producer_producer_id_seq RESTART"))
    recover_state(engine, "events", dry_run=False)

    before = set(ledger.states("events").states)
    added = ledger.register("events", [("d", 1)])["d", 1]
    advance = Advance(producer_id=added, spans=SpanSet.of((0, 1)))
    session = ledger.open_session("events", SessionName("loader"))

    assert added not in before
    assert ledger.commit(Commit(session=session, batch=Batch("b"), advances=(advance,), write_rows=lambda _: None)) == 7


@pytest.mark.parametrize("with_snapshot", [True, False])
def test_the_statement_that_rebuilds_follows_the_law_of_replay(engine, ledger, with_snapshot):
    ledger.forget_idle("events", now=schema_clock(engine))
    if not with_snapshot:
        with engine.begin() as connection:
            connection.execute(text("DELETE FROM onceload.snapshot"))

    found = recover_state(engine, "events", dry_run=True)

    assert found.snapshot_position == (3 if with_snapshot else 0)
    assert found.differing == ()
    assert replay({}, ledger.entries("events", after=FIRST)) == ledger.states("events").states


def schema_clock(engine):
    with engine.begin() as connection:
        return connection.execute(text("SELECT clock_timestamp() + interval '1 year'")).scalar_one()


def test_two_recoveries_at_once_are_one_too_many(engine, ledger):
    """The first is stopped while it waits for a commit to end; the second is told so at once."""
    with engine.connect() as committer:
        committer.execute(text("UPDATE onceload.pipeline SET position = position"))
        first = threading.Thread(target=recover_state, args=(engine, "events"), kwargs={"dry_run": True})
        first.start()
        wait_until_blocked(engine)

        with pytest.raises(PipelineBusy, match="the recovery that is already running"):
            recover_state(engine, "events", dry_run=True)

        committer.rollback()
        first.join(timeout=30)
    assert not first.is_alive()


def wait_until_blocked(engine):
    with engine.connect() as connection:
        for _ in range(3000):
            waiting = text("SELECT pg_sleep(0.01), count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'")
            if connection.execute(waiting).one().count:
                return
            connection.rollback()
    pytest.fail("nobody waited for the lock")


def test_a_snapshot_of_a_later_position_than_the_ledger_has_is_refused(engine, ledger):
    """It would call rows consumed that a restored database lost."""
    states = ledger.states("events")
    ahead = Snapshot(pipeline="events", position=Position(7), taken_at=states.taken_at, states=states.states)
    PostgresSnapshots(engine).put(ahead)

    with pytest.raises(SettingRefused, match="expected one up to 6"):
        recover_state(engine, "events", snapshot_position=Position(7), dry_run=False)


def test_a_ledger_with_a_hole_is_not_replayed(engine, ledger):
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE onceload.ledger DISABLE TRIGGER ledger_is_append_only"))
        connection.execute(text("DELETE FROM onceload.ledger WHERE position = 5"))

    with pytest.raises(StateDiffers, match="positions are missing"):
        recover_state(engine, "events", dry_run=False)


def test_an_unknown_snapshot_is_refused_by_position(engine, ledger):
    with pytest.raises(NotFound, match="known: 3"):
        recover_state(engine, "events", snapshot_position=Position(2), dry_run=True)


def test_the_past_cannot_be_changed_by_accident(engine, ledger):
    for statement in (
        "UPDATE onceload.ledger SET loaded = 0",
        "DELETE FROM onceload.ledger_span",
        "TRUNCATE onceload.ledger",
    ):
        with pytest.raises(Exception, match="append-only"), engine.begin() as connection:
            connection.execute(text(statement))


def test_a_position_that_was_set_back_is_found_by_the_next_commit(engine, ledger):
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.pipeline SET position = 2"))
    session = ledger.open_session("events", SessionName("loader"))

    with pytest.raises(StateDiffers, match="onceload recover state"):
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=lambda _: None))
