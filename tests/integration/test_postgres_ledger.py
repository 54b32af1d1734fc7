"""What only Postgres can show: days of business ids, refusals at COMMIT, lost connections, and what errors become."""

import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, IntegrityError

from onceload_core.errors import (
    AlreadyConsumed,
    CommitOutcomeUnknown,
    DatabaseLost,
    LimitReached,
    PipelineBusy,
    SessionFenced,
    SettingRefused,
)
from onceload_core.names import Batch, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit, CommitStep, QuarantinedRecord
from onceload_core.postgres import BulkCommit, LedgerSettings, PostgresLedger, connect, producers
from onceload_core.postgres.connection import ChangeOutcomeUnknown, in_batches
from onceload_core.postgres.own_transaction import TransactionEnded
from onceload_core.postgres.recovery import recover_state
from onceload_core.postgres.upkeep import forget_messages
from onceload_core.replay import Counts
from onceload_core.spans import SpanSet
from tests.servers import execute
from tests.waiting import until

pytestmark = pytest.mark.every_postgres

KEEP_DAYS = 2


@pytest.fixture
def engine(dsn):
    engine = connect(LedgerSettings(dsn=dsn, lock_timeout_s=0.2))
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE target (value int, CONSTRAINT theirs UNIQUE (value) DEFERRABLE INITIALLY DEFERRED)")
        )
    yield engine
    engine.dispose()


@pytest.fixture
def ledger(engine):
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events", message_keep_days=KEEP_DAYS))
    return ledger


def load(ledger, first=0, *, message_ids=(), statement="SELECT"):
    session = ledger.open_session("events", SessionName("loader"))
    producer_id = ledger.register("events", [("a", 1)])["a", 1]
    advance = Advance(producer_id=producer_id, spans=SpanSet.of((first, first + 10)), rows=10)

    def write(connection):
        connection.execute(text(statement))
        return 0

    return ledger.commit(
        Commit(
            session=session,
            batch=Batch("b"),
            advances=(advance,),
            write_rows=write,
            message_ids=message_ids,
        )
    )


def days_later(engine, days):
    """Move what was recorded to an earlier day, as if time had passed."""
    with engine.begin() as connection:
        day = today(connection)
        earlier = f"PARTITION OF onceload.message FOR VALUES FROM ('2000-01-01') TO ('{day}')"
        connection.execute(text(f"CREATE TABLE onceload.message_earlier {earlier}"))
        connection.execute(text("UPDATE onceload.message SET day = day - :days"), {"days": days})


def today(connection):
    return connection.execute(text("SELECT CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date)")).scalar_one()


def count(engine, table):
    with engine.begin() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()


@pytest.mark.parametrize("days", [1, KEEP_DAYS])
def test_a_business_id_is_remembered_for_as_long_as_the_pipeline_declares(engine, ledger, days):
    load(ledger, message_ids=("order-1",))
    days_later(engine, days)

    with pytest.raises(AlreadyConsumed):
        load(ledger, first=10, message_ids=("order-1",))


def test_a_business_id_takes_effect_again_after_its_window(engine, ledger):
    load(ledger, message_ids=("order-1",))
    days_later(engine, KEEP_DAYS + 1)

    assert load(ledger, first=10, message_ids=("order-1",)) == 2


def test_days_that_no_pipeline_remembers_are_dropped_whole(engine, ledger):
    load(ledger, message_ids=("order-1",))
    with engine.begin() as connection:
        # The owner of the table also created its days.
        connection.execute(text("SET LOCAL ROLE onceload_owner"))
        for first, end in (("2000-01-01", "2000-01-02"), ("2000-02-02", "2000-02-03")):
            day = f"PARTITION OF onceload.message FOR VALUES FROM ('{first}') TO ('{end}')"
            connection.execute(text(f"CREATE TABLE onceload.message_{first.replace('-', '')} {day}"))

    assert sorted(forget_messages(engine)) == ["onceload.message_20000101", "onceload.message_20000202"]
    assert forget_messages(engine) == ()
    assert count(engine, "onceload.message") == 1


def test_a_refusal_at_commit_is_certain_and_leaves_nothing(engine, ledger):
    """The target has a rule of its own that the database checks at COMMIT."""
    with pytest.raises(IntegrityError, match="theirs"):
        load(ledger, statement="INSERT INTO target VALUES (1), (1)")

    assert count(engine, "target") == 0
    assert count(engine, "onceload.ledger") == 0
    assert load(ledger) == 1


def _autocommit(connection):
    connection.rollback()
    connection.connection.dbapi_connection.autocommit = True


ENDINGS = {
    "ROLLBACK": lambda connection: connection.execute(text("ROLLBACK")),
    "COMMIT": lambda connection: connection.execute(text("COMMIT")),
    "COMMIT AND CHAIN": lambda connection: connection.execute(text("COMMIT AND CHAIN")),
    "the driver's rollback": lambda connection: connection.connection.rollback(),
    "the driver's commit": lambda connection: connection.connection.commit(),
    "our rollback": lambda connection: connection.rollback(),
    "autocommit": _autocommit,
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_writer_of_the_rows_must_leave_the_transaction_open(engine, ledger, ending):
    def write(connection):
        connection.execute(text("INSERT INTO target VALUES (1)"))
        ENDINGS[ending](connection)

    session = ledger.open_session("events", SessionName("loader"))
    with pytest.raises(TransactionEnded, match="leave COMMIT and ROLLBACK to the ledger"):
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=write))

    assert count(engine, "onceload.ledger") == 0
    assert load(ledger) == 1


def test_rows_that_the_writer_committed_forbid_a_retry_if_the_next_statement_fails(engine, ledger):
    def write(connection):
        connection.execute(text("INSERT INTO target VALUES (1)"))
        connection.execute(text("COMMIT AND CHAIN"))

    session = ledger.open_session("events", SessionName("loader"))
    with engine.begin() as other:
        other.execute(text("UPDATE onceload.pipeline SET position = position WHERE name = 'events'"))
        with pytest.raises(TransactionEnded):
            ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=write))
        with pytest.raises(PipelineBusy):
            ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=lambda _: 0))

    assert load(ledger) == 1


def test_rows_and_names_stay_out_of_errors(engine, ledger):
    def write(connection):
        connection.execute(text("INSERT INTO target VALUES (:value)"), {"value": "a secret row"})

    session = ledger.open_session("events", SessionName("loader"))
    with pytest.raises(SettingRefused) as refused:
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=(), write_rows=write))

    assert "secret" not in "".join(traceback.format_exception(refused.value))


def test_a_connection_that_ends_before_commit_means_that_nothing_happened(engine, ledger):
    with pytest.raises(DatabaseLost, match="Nothing more was committed"):
        load(ledger, statement="INSERT INTO target VALUES (1); SELECT pg_terminate_backend(pg_backend_pid())")

    assert count(engine, "target") == 0
    assert load(ledger) == 1


def test_a_commit_waits_for_a_lock_that_stays_held_with_a_bound(engine, ledger):
    with engine.connect() as other:
        other.execute(text("UPDATE onceload.pipeline SET position = position"))
        with pytest.raises(PipelineBusy, match="Retry"):
            load(ledger)


def test_a_worker_that_stops_in_mid_transaction_is_ended_by_the_server(engine, ledger):
    """A session that holds the commit lock and sleeps must not stop all others."""
    held: list[Connection] = []

    def hold(connection):
        held.append(connection)
        return 0

    def stop(step):
        if step is CommitStep.POSITION_TAKEN:
            # Not before: a busy machine may stop any process for as long as that.
            held[0].execute(text("SET LOCAL idle_in_transaction_session_timeout = '100ms'"))
            wait_until_ended(engine)

    session = ledger.open_session("events", SessionName("loader"))
    with pytest.raises(DatabaseLost, match="Nothing more was committed"):
        PostgresLedger(engine, reached=stop).commit(
            Commit(session=session, batch=Batch("b"), advances=(), write_rows=hold)
        )

    assert load(ledger) == 1


def test_how_long_a_worker_may_stop_in_mid_transaction_is_a_setting(dsn):
    impatient = connect(LedgerSettings(dsn=dsn, idle_timeout_s=0.1))
    with impatient.connect() as connection:
        found = connection.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
    impatient.dispose()

    assert found == "100ms"


def wait_until_ended(engine):
    busy = text("SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'")

    def is_ended():
        with engine.begin() as connection:
            return not connection.execute(busy).scalar_one()

    until(is_ended, "the server ends the idle transaction")


def test_two_loaders_of_one_name_fence_each_other_by_epoch(ledger):
    first = ledger.open_session("events", SessionName("loader"))
    ledger.open_session("events", SessionName("loader"))

    with pytest.raises(SessionFenced):
        ledger.commit(Commit(session=first, batch=Batch("b"), advances=(), write_rows=lambda _: 0))


def test_limits_hold_in_the_database_too(engine, ledger):
    ledger.declare(Pipeline(name="events", producers_max=1))
    ledger.register("events", [("a", 1)])

    with pytest.raises(LimitReached):
        ledger.register("events", [("b", 1)])
    with pytest.raises(IntegrityError, match="pipeline_keeps_to_producers_max"), engine.begin() as connection:
        connection.execute(text("UPDATE onceload.pipeline SET producers = 2"))
    with pytest.raises(IntegrityError, match="producer_consumes_only_sequence_ids"), engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{[-1,5)}'"))


def test_one_statement_is_bounded_in_items_and_in_bytes():
    heavy = [40 * 2**20, 30 * 2**20, 1, 2, 100 * 2**20, 3]

    assert list(in_batches(heavy, weigh=lambda each: each)) == [heavy[:1], heavy[1:4], heavy[4:5], heavy[5:]]
    assert [len(some) for some in in_batches(range(250_000))] == [100_000, 100_000, 50_000]
    assert list(in_batches([])) == []


@pytest.mark.parametrize(("code", "expected"), [("40003", CommitOutcomeUnknown), ("P0001", DBAPIError)])
def test_the_server_s_own_word_decides_whether_a_commit_is_refused(engine, ledger, code, expected):
    """A deferred trigger speaks at COMMIT: an error is a refusal, unless it says of itself that it does not know."""
    with engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION speak() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$;"
            " CREATE CONSTRAINT TRIGGER late AFTER INSERT ON target DEFERRABLE INITIALLY DEFERRED"
            " FOR EACH ROW EXECUTE FUNCTION speak()"
        )

    with pytest.raises(expected):
        load(ledger, statement="INSERT INTO target VALUES (1)")


@pytest.mark.parametrize(
    ("call", "damage"),
    [
        (lambda engine: PostgresLedger(engine).forget_idle("events"), ""),
        (lambda engine: recover_state(engine, "events", dry_run=False), ", consumed = '{}'"),
    ],
    ids=["forget_idle", "recover_state"],
)
def test_an_upkeep_whose_commit_is_not_answered_has_an_unknown_outcome(engine, ledger, call, damage):
    load(ledger)
    ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE onceload.producer SET advanced_at = advanced_at - interval '1 day'{damage}")
        connection.exec_driver_sql(
            "CREATE FUNCTION speak() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '40003'; END $$;"
            " CREATE CONSTRAINT TRIGGER late AFTER DELETE OR UPDATE ON onceload.producer"
            " DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION speak()"
        )

    with pytest.raises(ChangeOutcomeUnknown):
        call(engine)


def test_a_declaration_below_what_is_there_is_refused(ledger):
    ledger.register("events", [("a", 1), ("b", 1), ("c", 1)])

    with pytest.raises(SettingRefused, match=r"producers_max: .*Expected at least the number of known producers"):
        ledger.declare(Pipeline(name="events", producers_max=1))


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_quarantined_bytes_are_kept_as_they_are_and_reasons_whatever_they_hold(engine, ledger, kind):
    producer_id = ledger.register("events", [("a", 1)])["a", 1]
    bad = QuarantinedRecord(producer_id=producer_id, sequence_id=3, raw=kind(b"\x00{bad"), reason="no \udcff\x00")
    advance = Advance(producer_id=producer_id, spans=SpanSet.of((0, 10)))
    session = ledger.open_session("events", SessionName("loader"))
    ledger.commit(
        Commit(
            session=session,
            batch=Batch("b"),
            advances=(advance,),
            write_rows=lambda _: 0,
            counts=Counts(quarantined=1),
            quarantined=(bad,),
        )
    )

    with engine.begin() as connection:
        row = connection.execute(text("SELECT raw, reason FROM onceload.quarantine")).one()
    assert bytes(row.raw) == b"\x00{bad"
    assert row.reason == "no \\udcff\u2400"


# More producers than should be fetched at once.


@pytest.fixture
def bulk(engine, ledger):
    """A commit of what a table offers, as often as it is asked for."""
    session = ledger.open_session("events", SessionName("loader"))
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE named AS SELECT 'device-' || number AS name FROM generate_series(1, 50) AS number")
        )
        connection.execute(
            text('CREATE TABLE "what: is %offered" (producer_id bigint, spans int8multirange, rows bigint)')
        )
    register_all(engine)

    def insert_one(connection):
        connection.execute(text("INSERT INTO target VALUES (1)"))
        return 0

    def commit(first, end, *, only="true"):
        with engine.begin() as connection:
            connection.exec_driver_sql('TRUNCATE "what: is %%offered"')
            connection.exec_driver_sql(
                'INSERT INTO "what: is %%offered" SELECT producer_id, int8multirange(int8range('
                f"{first}, {end})), {end - first} FROM onceload.producer WHERE {only}"
            )
        return ledger.commit(
            BulkCommit(
                session=session,
                batch=Batch("bulk"),
                advances=(),
                write_rows=insert_one,
                offered='"what: is %offered"',
            )
        )

    return commit


def register_all(engine):
    with engine.begin() as connection:
        producers.register_all(connection, "events", "named", generation=1)


def rows_in(engine, table):
    with engine.begin() as connection:
        return connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one()


def test_a_table_of_producers_is_registered_once_and_counted(engine, ledger, bulk):
    register_all(engine)

    with engine.begin() as connection:
        counted = connection.execute(text("SELECT producers FROM onceload.pipeline")).scalar_one()
    assert (rows_in(engine, "onceload.producer"), counted) == (50, 50)


def test_a_table_with_more_producers_than_allowed_registers_none(engine, ledger):
    ledger.declare(Pipeline(name="events", producers_max=3))
    with engine.begin() as connection:
        connection.execute(
            text("CREATE TABLE named AS SELECT CAST(number AS text) AS name FROM generate_series(1, 4) AS number")
        )

    with pytest.raises(LimitReached, match="producers_max"):
        register_all(engine)

    assert rows_in(engine, "onceload.producer") == 0


def test_a_table_of_producers_advances_them_all_and_leaves_receipts(engine, ledger, bulk):
    position = bulk(0, 10)

    (entry,) = ledger.entries("events", after=0)
    assert (entry.position, len(entry.receipts)) == (position, 50)
    assert {(str(receipt.spans), receipt.rows) for receipt in entry.receipts} == {("{[0,10)}", 10)}
    assert {str(state.consumed) for state in ledger.states("events").states.values()} == {"{[0,10)}"}
    assert rows_in(engine, "target") == 1


def test_a_table_with_one_producer_that_has_consumed_a_part_advances_none(engine, ledger, bulk):
    bulk(9, 12, only="name = 'device-7'")

    with pytest.raises(AlreadyConsumed, match=r"at least a part of .*device-7"):
        bulk(0, 10)

    assert rows_in(engine, "target") == 1
    assert len(ledger.states("events").states) == 1


def test_a_table_that_offers_a_producer_twice_is_refused(engine, ledger, bulk):
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE twice (producer_id bigint, spans int8multirange, rows bigint)"))
        for spans in ("{[0,5)}", "{[5,9)}"):
            connection.execute(text(f"INSERT INTO twice SELECT min(producer_id), '{spans}', 5 FROM onceload.producer"))
    session = ledger.open_session("events", SessionName("loader"))
    commit = BulkCommit(session=session, batch=Batch("b"), advances=(), write_rows=lambda _: 0, offered="twice")

    with pytest.raises(AlreadyConsumed, match="at least a part of device-1"):
        ledger.commit(commit)

    assert ledger.states("events").states == {}


@pytest.mark.parametrize(("setting", "found"), [("off", "on"), ("local", "on"), ("remote_apply", "remote_apply")])
def test_a_commit_is_answered_no_earlier_than_the_server_allows_by_default(dsn, engine, setting, found):
    name = execute(dsn, "SELECT current_database()")[0][0]
    execute(dsn, f'ALTER DATABASE "{name}" SET synchronous_commit = {setting}')
    engine.dispose()

    with engine.connect() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == found


@pytest.mark.parametrize("setting", ["client_encoding = 'LATIN1'", "array_nulls = off"])
def test_settings_of_a_database_change_nothing_that_is_written(dsn, engine, ledger, setting):
    name = execute(dsn, "SELECT current_database()")[0][0]
    execute(dsn, f'ALTER DATABASE "{name}" SET {setting}')
    engine.dispose()
    ids = ledger.register("events", [("日本.jsonl", 1), ("b", 1)])
    session = ledger.open_session("events", SessionName("loader"))
    known, unknown = (
        Advance(producer_id=ids[name, 1], spans=SpanSet.of((0, 5)), fingerprint=fingerprint)
        for name, fingerprint in (("日本.jsonl", b"x"), ("b", None))
    )
    ledger.commit(Commit(session=session, batch=Batch("b"), advances=(known, unknown), write_rows=lambda _: 0))

    states = ledger.states("events").states.values()
    assert {(state.name, state.fingerprint) for state in states} == {("日本.jsonl", b"x"), ("b", None)}


def test_the_program_of_the_readme_may_be_run_again_and_again(engine, ledger, dsn):
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    program = readme.split("```python\n")[1].split("```")[0]

    for _ in range(3):
        subprocess.run([sys.executable, "-c", program], env=os.environ | {"ONCELOAD_DSN": dsn}, check=True)

    assert count(engine, "numbers") == 10
    assert ledger.position("numbers") == 1


@pytest.mark.parametrize(
    "change",
    [
        "DEALLOCATE ALL",
        "ALTER TABLE onceload.pipeline ALTER message_keep_days TYPE bigint",
    ],
)
def test_a_statement_whose_plan_is_gone_is_planned_again_by_the_next_try(dsn, change):
    engine = connect(LedgerSettings(dsn=dsn))
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    for _ in range(3):
        assert ledger.position("events") == 0
    with engine.begin() as connection:
        connection.execute(text(change))

    with pytest.raises(DatabaseLost, match=r"prepared statement|cached plan"):
        ledger.position("events")

    assert ledger.position("events") == 0
    engine.dispose()


@pytest.mark.parametrize(("count", "is_kept"), [(100, True), (101, False)])
def test_only_the_plan_of_commits_of_few_producers_is_kept(engine, ledger, count, is_kept):
    """From the sixth time on, Postgres takes one plan for any number, which is a hundred times slower for many."""
    session = ledger.open_session("events", SessionName("loader"))
    ids = ledger.register("events", [(str(number), 1) for number in range(count)]).values()
    kept = "SELECT count(*) > 0 FROM pg_prepared_statements WHERE statement LIKE '%UPDATE onceload.producer%'"

    def write(connection):
        connections.append(connection.connection.dbapi_connection)
        return 0

    connections: list[object] = []
    for first in (0, 10, 20):
        advances = tuple(Advance(producer_id=each, spans=SpanSet.of((first, first + 10)), rows=10) for each in ids)
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=advances, write_rows=write))

    with engine.connect() as connection:
        assert connection.connection.dbapi_connection is connections[0]
        assert connection.execute(text(kept)).scalar_one() is is_kept
