"""A commit that waits for a lock: its session's state after the wait decides, not the state before it."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, event, text
from sqlalchemy.exc import OperationalError

from onceload_core.declaration import DeclarationChanged
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import SessionFenced
from onceload_core.names import Batch, Position
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit, CommitStep, Session
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.commit import SQL
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_core.postgres.pipeline_row import get_pipeline
from onceload_core.postgres.sessions import open_session, session_of
from onceload_core.replay import Counts
from onceload_core.spans import SpanSet
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.every_postgres

BATCH = Batch("batch")
RULES = Rules(mode=Mode.SHARED, ack_deadline_s=60, deliveries_max=5)
#: How many transactions wait for one that is still open.
WAITING = text(
    "SELECT pg_sleep(0.01), count(*) AS waiting FROM pg_stat_activity WHERE :holder = ANY(pg_blocking_pids(pid))"
)
#: Any change: the commit that waits for it finds a later version of the row than it began with.
CHANGE_PIPELINE = text("UPDATE onceload.pipeline SET producers_max = producers_max + 1")
LOCK_PIPELINE_AT_ONCE = text("SELECT FROM onceload.pipeline FOR NO KEY UPDATE NOWAIT")


@pytest.fixture
def ledger(engine: Engine) -> PostgresLedger:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (value int)"))
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    return ledger


@pytest.fixture
def board(engine: Engine, ledger: PostgresLedger) -> PostgresDeliveries:
    return PostgresDeliveries(engine, "events", RULES)


@pytest.fixture
def session(board: PostgresDeliveries) -> Session:
    session = board.open_session(session_of(BATCH, "loader"))
    assert session
    return session


@pytest.fixture
def commit(ledger: PostgresLedger, session: Session) -> Commit[Connection]:
    """One row, and its proof."""
    producer_id = ledger.register("events", [("a", 1)])["a", 1]

    def write(connection: Connection) -> int:
        return connection.execute(text("INSERT INTO target VALUES (1)")).rowcount

    advance = Advance(producer_id=producer_id, spans=SpanSet.of((0, 1)), rows=1)
    counts = Counts(loaded=1)
    return Commit(session=session, batch=BATCH, advances=(advance,), write_rows=write, counts=counts)


@contextmanager
def waiting(commit: Commit[Connection], holder: Connection) -> Iterator[Future[Position]]:
    """A commit that waits for a lock of another transaction until the block ends."""
    backend = holder.execute(text("SELECT pg_backend_pid()")).scalar_one()
    with ThreadPoolExecutor(1) as thread:
        began = thread.submit(PostgresLedger(holder.engine).commit, commit)
        try:
            wait_until_blocked_by(holder.engine, backend, began)
            yield began
        finally:
            holder.rollback()


def wait_until_blocked_by(engine: Engine, backend: int, began: Future[Position]) -> None:
    with engine.connect() as connection:
        while not connection.execute(WAITING, {"holder": backend}).one().waiting:
            connection.rollback()
            if began.done():
                pytest.fail(f"the commit ended without waiting: {began.exception() or began.result()}")


def take_over(board: PostgresDeliveries, session: Session) -> None:
    board.open_session(session.name)


def end_batch(board: PostgresDeliveries, session: Session) -> None:
    board.end_batch(BATCH, life=session)


@pytest.mark.parametrize("end", [take_over, end_batch])
def test_a_session_that_ends_while_its_commit_waits_for_the_pipeline_commits_nothing(
    engine, board, session, commit, end
):
    with engine.connect() as holder:
        holder.execute(CHANGE_PIPELINE)
        with waiting(commit, holder) as began:
            # This does not wait: the commit locks its session only after the pipeline.
            end(board, session)
            holder.commit()

    assert isinstance(began.exception(), SessionFenced)
    assert_nothing_committed(engine)


def test_a_session_that_is_dropped_while_its_commit_waits_for_the_pipeline_commits_nothing(engine, commit):
    with engine.connect() as holder:
        holder.execute(CHANGE_PIPELINE)
        with waiting(commit, holder) as began:
            with engine.begin() as connection:
                connection.execute(text("DELETE FROM onceload.session"))
            holder.commit()

    assert isinstance(began.exception(), SessionFenced)
    assert_nothing_committed(engine)


def test_a_heartbeat_while_a_commit_waits_for_the_pipeline_does_not_end_its_session(engine, board, session, commit):
    with engine.connect() as holder:
        holder.execute(CHANGE_PIPELINE)
        with waiting(commit, holder) as began:
            board.renew(session)
            holder.commit()

    assert began.result() == 1
    assert (rows_in(engine), PostgresLedger(engine).position("events")) == (1, 1)


@pytest.mark.parametrize("is_committed", [True, False], ids=["committed", "rolled_back"])
def test_a_commit_waits_for_a_takeover_in_progress_under_the_lock_of_the_pipeline(
    engine, session, commit, is_committed
):
    with engine.connect() as holder:
        open_session(holder, pipeline_id_of(holder), session.name, rules=RULES, waits=False)
        with waiting(commit, holder) as began:
            with pytest.raises(OperationalError, match="could not obtain lock"), engine.begin() as other:
                other.execute(LOCK_PIPELINE_AT_ONCE)
            (holder.commit if is_committed else holder.rollback)()

    if is_committed:
        assert isinstance(began.exception(), SessionFenced)
        assert_nothing_committed(engine)
    else:
        assert began.result() == 1


def test_a_commit_of_an_earlier_version_is_refused_without_waiting_for_a_takeover(engine, session, commit):
    with engine.connect() as taking_over, engine.connect() as holder:
        open_session(taking_over, pipeline_id_of(taking_over), session.name, rules=RULES, waits=False)
        holder.execute(SQL["take_version"], {"pipeline_id": pipeline_id_of(holder)})
        with waiting(commit, holder) as began:
            holder.commit()
            found = began.exception(timeout=PATIENCE_S)

    assert isinstance(found, DeclarationChanged)
    assert_nothing_committed(engine)


def test_a_commit_takes_its_position_and_checks_its_session_in_one_round_trip(engine, commit):
    sent: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
    at: dict[CommitStep, int] = {}
    ledger = PostgresLedger(engine, reached=lambda step: at.update({step: executed(sent)}))

    ledger.commit(commit)

    assert at[CommitStep.POSITION_TAKEN] - at[CommitStep.ROWS_WRITTEN] == 1
    assert at[CommitStep.PRODUCERS_ADVANCED] - at[CommitStep.POSITION_TAKEN] == 1


def executed(sent: list[str]) -> int:
    """The round trips of a connection that has prepared all statements."""
    return sum(not statement.startswith("PREPARE ") for statement in sent)


def assert_nothing_committed(engine: Engine) -> None:
    assert (rows_in(engine), PostgresLedger(engine).position("events")) == (0, 0)


def rows_in(engine: Engine) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT count(*) FROM target")).scalar_one())


def pipeline_id_of(connection: Connection) -> int:
    return int(get_pipeline(connection, "events").pipeline_id)


def test_a_worker_needs_one_connection(dsn: str, ledger: PostgresLedger) -> None:
    """One that looked up its pipeline inside another transaction would need two."""
    opened: list[object] = []
    engine = connect(LedgerSettings(dsn=dsn))
    event.listen(engine, "connect", lambda *connected: opened.append(connected))
    board = PostgresDeliveries(engine, "events", RULES)

    session = board.open_session(session_of(BATCH, "loader"))
    assert session is not None
    assert board.take(session) is None
    board.renew(session)
    board.close_session(session)
    board.end_batch(BATCH, life=session)

    engine.dispose()
    assert len(opened) == 1


def test_what_a_worker_takes_while_its_batch_ends_waits_again(engine, board, session):
    """The end of the batch waits for the worker, and sees what that has committed meanwhile."""
    with engine.begin() as connection:
        offered = {"pipeline_id": pipeline_id_of(connection), "batch": BATCH}
        connection.execute(
            text(
                "INSERT INTO onceload.delivery (pipeline_id, batch, state, work)"
                " VALUES (:pipeline_id, :batch, 'waiting', '{}')"
            ),
            offered,
        )
    with engine.connect() as taking, ThreadPoolExecutor(1) as thread:
        taking.execute(
            text(
                "UPDATE onceload.session SET lease_until = clock_timestamp() + interval '1 hour' WHERE epoch = :epoch"
            ),
            {"epoch": session.epoch},
        )
        taking.execute(
            text(
                "UPDATE onceload.delivery SET state = 'held', session_id = session.session_id, epoch = session.epoch,"
                " deadline_at = session.lease_until, tries = 1 FROM onceload.session WHERE session.epoch = :epoch"
            ),
            {"epoch": session.epoch},
        )
        backend = taking.execute(text("SELECT pg_backend_pid()")).scalar_one()
        ended = thread.submit(board.end_batch, BATCH, life=session)
        wait_until_blocked_by(engine, backend, ended)
        taking.commit()
        ended.result()

    with engine.connect() as connection:
        found = connection.execute(text("SELECT state, epoch, tries FROM onceload.delivery")).one()
    assert tuple(found) == ("waiting", None, 0)
