"""Snapshots beside everything else that a database does at the same time."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import text

from onceload_core.errors import ExitCode, SnapshotRefused
from onceload_core.names import Batch, SessionName
from onceload_core.ports import Advance, Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect, recover_state
from onceload_core.spans import SpanSet
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.every_postgres


def run(engine, statement):
    with engine.begin() as connection:
        connection.execute(text(statement))


def commit_more(ledger, *, session="another"):
    advance = Advance(producer_id=ledger.register("events", [("d", 1)])["d", 1], spans=SpanSet.of((0, 5)), rows=5)
    session = ledger.open_session("events", SessionName(session))
    return ledger.commit(Commit(session=session, batch=Batch("d"), advances=(advance,), write_rows=lambda _: 0))


@contextmanager
def stopped_snapshot(engine, wait_until_blocked):
    """A snapshot that has its view and its place, and cannot copy the states yet."""
    with ThreadPoolExecutor(1) as thread, engine.connect() as other:
        other.execute(text("LOCK TABLE onceload.snapshot_producer IN SHARE MODE"))
        taken = thread.submit(PostgresSnapshots(engine).take, "events")
        wait_until_blocked()
        try:
            yield taken
        finally:
            other.rollback()


def test_a_snapshot_that_is_taken_makes_no_writer_wait(dsn, engine, ledger, wait_until_blocked):
    impatient = connect(LedgerSettings(dsn=dsn, lock_timeout_s=0.2))
    beside = PostgresLedger(impatient)
    with stopped_snapshot(engine, wait_until_blocked) as taken:
        ids = beside.register("events", [("e", 1)])
        session = beside.open_session("events", SessionName("planner"))
        beside.claim(session, {ids["e", 1]: SpanSet.of((0, 5))}, batch=Batch("e"), lease_s=60)
        beside.drop_ended_claims("events")
        assert commit_more(beside) == 7
        assert not taken.done()
    impatient.dispose()

    assert taken.result(timeout=PATIENCE_S) == 6
    assert {state.name for state in PostgresSnapshots(engine).get("events").states.values()} == {"a", "b", "c"}


def test_a_snapshot_that_was_begun_before_a_recovery_ended_is_taken_again(engine, ledger, wait_until_blocked):
    """Its view shows the damage, and the snapshots that show it are dropped by then: its own lock keeps it out."""
    proven = ledger.states("events").states
    # A snapshot of the damage agrees with the damage, so that comparing the two finds nothing.
    run(engine, "UPDATE onceload.snapshot_producer SET consumed = '{[2,5)}' WHERE name = 'a'")
    run(engine, "UPDATE onceload.producer SET consumed = consumed - '{[0,2),[20,25)}' WHERE name = 'a'")
    run(engine, "ALTER TABLE onceload.snapshot DROP CONSTRAINT snapshot_pipeline_id_fkey")
    taken = []
    with ThreadPoolExecutor(1) as thread:

        def take_now(doing):
            if doing.startswith("repairing"):
                taken.append(thread.submit(PostgresSnapshots(engine).take, "events"))
                wait_until_blocked()

        assert recover_state(engine, "events", dry_run=False, on_progress=take_now).applied
        assert taken[0].result(timeout=PATIENCE_S) == 6

    assert PostgresSnapshots(engine).get("events").states == proven


def test_a_recovery_waits_for_a_snapshot_that_is_being_taken(engine, ledger, wait_until_blocked):
    """Else it would not see that one when it drops what was taken of the damage."""
    run(engine, "ALTER TABLE onceload.snapshot DROP CONSTRAINT snapshot_pipeline_id_fkey")
    with ThreadPoolExecutor(1) as thread, stopped_snapshot(engine, wait_until_blocked) as taken:
        run(engine, "UPDATE onceload.producer SET consumed = '{[2,5)}' WHERE name = 'a'")
        recovering = thread.submit(recover_state, engine, "events", dry_run=False)
        wait_until_blocked(backends=2)
    assert taken.result(timeout=PATIENCE_S) == 6
    assert recovering.result(timeout=PATIENCE_S).applied

    assert PostgresSnapshots(engine).list("events") == ()


DAMAGES = {
    "a row gone": "DELETE FROM onceload.producer WHERE name = 'b'",
    "consumed set back": "UPDATE onceload.producer SET consumed = '{[0,5)}' WHERE name = 'a'",
    "consumed set ahead": "UPDATE onceload.producer SET consumed = '{[0,500)}'",
    "fingerprint changed": "UPDATE onceload.producer SET fingerprint = 'x' WHERE name = 'c'",
    "never loaded, yet consumed": "UPDATE onceload.producer SET consumed = '{[0,9)}' WHERE name = 'only registered'",
    "the position set back": "UPDATE onceload.pipeline SET position = 2",
    "the position set ahead": "UPDATE onceload.pipeline SET position = 50",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
@pytest.mark.parametrize("is_kept", [False, True], ids=["new", "kept"])
def test_no_snapshot_is_taken_of_damaged_states(engine, ledger, damage, is_kept):
    snapshots = PostgresSnapshots(engine)
    if is_kept:
        snapshots.take("events")
    kept = snapshots.list("events")
    run(engine, damage)

    with pytest.raises(SnapshotRefused, match="onceload recover state") as refused:
        snapshots.take("events")

    assert refused.value.exit_code is ExitCode.NEEDS_A_PERSON
    assert snapshots.list("events") == kept
    assert recover_state(engine, "events", dry_run=False).applied
    assert snapshots.take("events") == 6


def test_a_damaged_snapshot_does_not_keep_the_next_from_being_taken(engine, ledger):
    """The states are compared with the whole ledger before they are called different."""
    run(engine, "UPDATE onceload.snapshot_producer SET consumed = '{[0,9)}'")

    assert PostgresSnapshots(engine).take("events") == 6
    assert PostgresSnapshots(engine).get("events").states == ledger.states("events").states


def test_a_snapshot_follows_from_the_one_before_also_where_producers_were_forgotten(engine, ledger):
    run(engine, "UPDATE onceload.producer SET advanced_at = '2000-01-01', fingerprint = NULL WHERE name = 'b'")
    assert ledger.forget_idle("events") == ("b",)

    assert PostgresSnapshots(engine).take("events") == 7
    assert {state.name for state in PostgresSnapshots(engine).get("events").states.values()} == {"a", "c"}
