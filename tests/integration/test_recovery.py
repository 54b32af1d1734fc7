"""Recovery of producer states, with the damage that it is for."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from onceload_core.errors import (
    NotFound,
    PipelineBusy,
    SessionFenced,
    SettingRefused,
    SnapshotDamaged,
    StateDiffers,
)
from onceload_core.names import Batch, Position, SessionName
from onceload_core.pipeline import Pipeline, SnapshotPolicy
from onceload_core.ports import Advance, Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect, recover_state, snapshots
from onceload_core.postgres.connection import ChangeOutcomeUnknown
from onceload_core.replay import replay
from onceload_core.spans import SpanSet
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.every_postgres

FIRST = Position(0)


DAMAGES = {
    "rows gone": "DELETE FROM onceload.producer",
    "a row gone": "DELETE FROM onceload.producer WHERE name = 'b'",
    "consumed set back": "UPDATE onceload.producer SET consumed = '{[0,5)}' WHERE name = 'a'",
    "consumed set ahead": "UPDATE onceload.producer SET consumed = '{[0,500)}'",
    "fingerprint changed": "UPDATE onceload.producer SET fingerprint = 'x' WHERE name = 'c'",
    "never loaded, yet consumed": "UPDATE onceload.producer SET consumed = '{[0,9)}' WHERE name = 'only registered'",
    "turned into a copy": "UPDATE onceload.producer SET consumed = '{}', copy_of = 2 WHERE name = 'a'",
    "registered again": "UPDATE onceload.producer SET producer_id = 1000, consumed = '{}' WHERE name = 'a'",
    "the position set back": "UPDATE onceload.pipeline SET position = 2",
    "the position set ahead": "UPDATE onceload.pipeline SET position = 50",
    "names swapped": "UPDATE onceload.producer SET producer_id = -1, name = CASE name WHEN 'a' THEN 'x' ELSE name END"
    " WHERE name = 'a'; UPDATE onceload.producer SET name = 'a' WHERE name = 'b';"
    " UPDATE onceload.producer SET name = 'b' WHERE name = 'x'",
}


def keep_the_damage(engine):
    """A snapshot as earlier versions took it: of whatever was live."""
    with engine.begin() as connection:
        for statement in ("take_snapshot", "take_snapshot_producers"):
            connection.execute(snapshots.SQL[statement], {"pipeline_id": 1, "position": 6})


@pytest.mark.parametrize("is_older_than_a_snapshot", [False, True], ids=["newer", "older"])
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damaged_state_is_rebuilt_from_the_whole_ledger(engine, ledger, damage, is_older_than_a_snapshot, logged):
    whole = ledger.states("events")
    with engine.begin() as connection:
        connection.execute(text(damage))
    if is_older_than_a_snapshot:
        keep_the_damage(engine)

    looked = recover_state(engine, "events", dry_run=True)
    done = recover_state(engine, "events", dry_run=False)

    assert not looked.applied
    assert (looked.differing, looked.position_was) != ((), 6)
    assert done.applied
    assert (done.snapshot_position, done.entries_replayed, done.position) == (0, 6, 6)
    assert logged.one("state_recovered") == {
        "pipeline": "events", "position": 6, "position_was": done.position_was, "snapshot_position": 0, "entries": 6,
        "producers": 3, "differing": len(done.differing),
    }  # fmt: skip
    after = ledger.states("events")
    assert (after.position, after.states) == (whole.position, whole.states)
    assert recover_state(engine, "events", dry_run=True).differing == ()
    assert PostgresSnapshots(engine).list("events") == ()


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_damage_after_a_snapshot_is_repaired_from_it_as_well(engine, ledger, damage):
    whole = ledger.states("events")
    with engine.begin() as connection:
        connection.execute(text(damage))

    done = recover_state(engine, "events", snapshot_position=Position(3), dry_run=False)

    assert (done.applied, done.snapshot_position, done.entries_replayed, done.position) == (True, 3, 3, 6)
    assert ledger.states("events").states == whole.states
    assert [each.position for each in PostgresSnapshots(engine).list("events")] == [3]


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
    assert ledger.commit(Commit(session=session, batch=Batch("b"), advances=(advance,), write_rows=lambda _: 0)) == 7


@pytest.mark.parametrize("start", [0, 3])
def test_the_statement_that_rebuilds_follows_the_law_of_replay(engine, ledger, start):
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET advanced_at = '2000-01-01' WHERE name <> 'a'"))
    ledger.forget_idle("events")

    found = recover_state(engine, "events", snapshot_position=Position(start), dry_run=True)

    assert (found.snapshot_position, found.entries_replayed) == (start, 7 - start)
    assert found.differing == ()
    assert replay({}, ledger.entries("events", after=FIRST)) == ledger.states("events").states


def test_two_recoveries_at_once_are_one_too_many(engine, ledger, wait_until_blocked):
    """The first is stopped while it waits for a commit to end; the second gets an error at once."""
    with engine.connect() as committer:
        committer.execute(text("UPDATE onceload.pipeline SET position = position"))
        first = threading.Thread(target=recover_state, args=(engine, "events"), kwargs={"dry_run": False})
        first.start()
        wait_until_blocked()

        with pytest.raises(PipelineBusy, match="a recovery that is already running"):
            recover_state(engine, "events", dry_run=False)

        committer.rollback()
        first.join(timeout=PATIENCE_S)
    assert not first.is_alive()


def test_a_snapshot_of_a_later_position_than_the_ledger_has_is_refused(engine, ledger):
    """It would call rows consumed that a restored database lost."""
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.snapshot SET position = 7"))
        connection.execute(text("UPDATE onceload.snapshot_producer SET position = 7"))

    with pytest.raises(SettingRefused, match="Expected at most 6"):
        recover_state(engine, "events", snapshot_position=Position(7), dry_run=False)


def test_a_snapshot_that_lost_a_part_is_not_started_from(engine, ledger):
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM onceload.snapshot_producer WHERE name = 'b'"))

    with pytest.raises(SnapshotDamaged, match="expected 2 producers, found 1 producers"):
        recover_state(engine, "events", snapshot_position=Position(3), dry_run=False)

    assert len(ledger.states("events").states) == 3


def test_a_snapshot_that_is_read_is_not_dropped_meanwhile(dsn, engine, ledger):
    """The newest alone is kept, and the recovery uses the one before."""
    ledger.declare(Pipeline(name="events", snapshot=SnapshotPolicy(kept=1)))
    impatient = connect(LedgerSettings(dsn=dsn, lock_timeout_s=0.2))
    reached = []

    def drop_now(doing):
        if doing.startswith("repairing"):
            with pytest.raises(PipelineBusy):
                PostgresSnapshots(impatient).take("events")
            reached.append(doing)

    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{}'"))
    done = recover_state(engine, "events", snapshot_position=Position(3), dry_run=False, on_progress=drop_now)

    impatient.dispose()
    assert reached
    assert [each.position for each in PostgresSnapshots(engine).list("events")] == [3]
    assert (done.applied, len(ledger.states("events").states)) == (True, 3)


def test_an_id_that_was_forgotten_is_never_given_again(engine, ledger):
    session = ledger.open_session("events", SessionName("loader"))
    newest = ledger.register("events", [("newest", 1)])["newest", 1]
    advance = Advance(producer_id=newest, spans=SpanSet.of((0, 5)))
    ledger.commit(Commit(session=session, batch=Batch("b"), advances=(advance,), write_rows=lambda _: 0))
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET advanced_at = '2000-01-01' WHERE name = 'newest'"))
    assert ledger.forget_idle("events") == ("newest",)
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{}'"))
        connection.execute(text("ALTER SEQUENCE onceload.producer_producer_id_seq RESTART"))

    assert recover_state(engine, "events", dry_run=False).applied

    assert ledger.register("events", [("next", 1)])["next", 1] > newest


def test_ids_that_others_have_taken_but_not_committed_are_left_to_them(engine, ledger):
    with engine.connect() as other:
        taken = other.execute(text("SELECT nextval('onceload.producer_producer_id_seq')")).scalar_one()
        with engine.begin() as connection:
            connection.execute(text("UPDATE onceload.producer SET consumed = '{}'"))

        assert recover_state(engine, "events", dry_run=False).applied

    assert ledger.register("events", [("next", 1)])["next", 1] > taken


def damage(engine):
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{[2,5)}' WHERE name = 'a'"))


@pytest.mark.parametrize("start", [0, 3])
def test_damage_that_went_into_snapshots_does_not_come_back(engine, ledger, start):
    proven = ledger.states("events").states
    damage(engine)
    keep_the_damage(engine)

    assert not recover_state(engine, "events", snapshot_position=Position(6), dry_run=True).differing
    assert recover_state(engine, "events", snapshot_position=Position(start), dry_run=False).applied

    assert [each.position for each in PostgresSnapshots(engine).list("events")] == ([3] if start else [])
    assert not recover_state(engine, "events", dry_run=False).applied
    assert ledger.states("events").states == proven


def test_a_dry_run_makes_no_writer_wait(dsn, engine, ledger):
    impatient = PostgresLedger(connect(LedgerSettings(dsn=dsn, lock_timeout_s=0.2)))
    session = impatient.open_session("events", SessionName("loader"))
    reached = []

    def commit_now(doing):
        impatient.register("events", [("d", 1)])
        impatient.commit(Commit(session=session, batch=Batch("d"), advances=(), write_rows=lambda _: 0))
        reached.append(doing)

    found = recover_state(engine, "events", dry_run=True, on_progress=commit_now)

    assert len(reached) == ledger.position("events") - 6 > 0
    assert (found.is_different, found.position) == (False, 6)


def test_a_recovery_whose_commit_gets_no_answer_reports_that_it_is_unknown(engine, ledger):
    damage(engine)
    end_at_commit(engine, "producer")

    with pytest.raises(ChangeOutcomeUnknown, match="did not answer COMMIT"):
        recover_state(engine, "events", dry_run=False)


def test_producers_forgotten_without_an_answer_are_reported_as_unknown(engine, ledger):
    with engine.begin() as connection:
        connection.execute(
            text("UPDATE onceload.producer SET advanced_at = '2000-01-01', fingerprint = NULL WHERE name = 'a'")
        )
    end_at_commit(engine, "ledger")

    with pytest.raises(ChangeOutcomeUnknown, match="did not answer COMMIT while forgetting idle producers"):
        ledger.forget_idle("events")


def end_at_commit(engine, table):
    """The server ends each session that commits a change of this table."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"
            f" CREATE CONSTRAINT TRIGGER late AFTER INSERT OR UPDATE ON onceload.{table} DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION hang_up()"
        )


def test_a_running_load_is_fenced_by_a_recovery(engine, ledger):
    session = ledger.open_session("events", SessionName("loader"))
    damage(engine)
    recover_state(engine, "events", dry_run=False)

    with pytest.raises(SessionFenced):
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=lambda _: 0))


def test_an_id_that_another_pipeline_has_is_not_taken_from_it(engine, ledger):
    """A sequence that was set back gave an id twice; only a person can say whose it is."""
    ledger.declare(Pipeline(name="others"))
    theirs = ledger.register("others", [("x", 1)])["x", 1]
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM onceload.producer WHERE name = 'b'"))
        given = connection.execute(text("SELECT producer_id FROM onceload.ledger_span WHERE producer = 'b' LIMIT 1"))
        binds = {"theirs": theirs, "given": given.scalar_one()}
        connection.execute(text("UPDATE onceload.producer SET producer_id = :given WHERE producer_id = :theirs"), binds)

    with pytest.raises(StateDiffers, match="b, whose id producer x of pipeline others has"):
        recover_state(engine, "events", dry_run=False)


def test_a_ledger_with_a_hole_is_not_replayed(engine, ledger):
    with engine.begin() as connection:
        connection.execute(text("ALTER TABLE onceload.ledger DISABLE TRIGGER ledger_is_append_only"))
        connection.execute(text("DELETE FROM onceload.ledger WHERE position = 5"))

    with pytest.raises(StateDiffers, match="positions are missing"):
        recover_state(engine, "events", dry_run=False)


def test_an_unknown_snapshot_is_refused_by_position(engine, ledger):
    with pytest.raises(NotFound, match="Known: 3"):
        recover_state(engine, "events", snapshot_position=Position(2), dry_run=True)


def test_the_past_cannot_be_changed_by_accident(engine, ledger):
    for statement in (
        "UPDATE onceload.ledger SET loaded = 0",
        "DELETE FROM onceload.ledger_span",
        "TRUNCATE onceload.ledger",
    ):
        with pytest.raises(Exception, match="append-only"), engine.begin() as connection:
            connection.execute(text(statement))


@pytest.mark.parametrize("position", [2, 50])
def test_a_position_that_was_changed_is_found_by_the_next_commit(engine, ledger, position):
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.pipeline SET position = :position"), {"position": position})
    session = ledger.open_session("events", SessionName("loader"))

    with pytest.raises(StateDiffers, match=f"at position {position + 1} .*onceload recover state"):
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=lambda _: 0))

    assert recover_state(engine, "events", dry_run=False).position == 6
    session = ledger.open_session("events", SessionName("loader"))
    assert ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=lambda _: 0)) == 7


def test_snapshots_that_are_taken_at_once_are_all_taken(engine, ledger):
    with ThreadPoolExecutor(4) as threads:
        taken = list(threads.map(lambda _: PostgresSnapshots(engine).take("events"), range(40)))

    assert set(taken) == {6}


@pytest.mark.parametrize("is_forgotten", [True, False])
def test_the_first_id_of_all_is_not_given_again_after_a_recovery(engine, is_forgotten):
    """A sequence that was never asked says one too."""
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    session = ledger.open_session("events", SessionName("loader"))

    def load(name: str) -> None:
        (producer_id,) = ledger.register("events", [(name, 1)]).values()
        advance = Advance(producer_id=producer_id, spans=SpanSet.of((0, 5)), rows=5)
        ledger.commit(Commit(session=session, batch=Batch(name), advances=(advance,), write_rows=lambda _: 0))

    def change(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement))

    load("a")
    if is_forgotten:
        change("UPDATE onceload.producer SET advanced_at = '2000-01-01'")
        assert ledger.forget_idle("events") == ("a",)
    change("TRUNCATE onceload.producer RESTART IDENTITY")
    change("UPDATE onceload.pipeline SET position = 9")
    assert recover_state(engine, "events", dry_run=False).applied

    session = ledger.open_session("events", SessionName("loader"))
    load("b")

    assert recover_state(engine, "events", dry_run=True).differing == ()
    assert len(set(ledger.register("events", [("a", 1), ("b", 1)]).values())) == 2
