"""Commits per second, beside the bare transactions of the same server.

Each committer is a process with a connection and a producer of its own; a commit is one span and one row.
The limit is the transaction that proves nothing: one INSERT and COMMIT, through the same driver.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from time import perf_counter

from sqlalchemy import Connection, Engine, text

from bench.measured import Measured, check_equal, table
from onceload_core.names import Batch, ProducerId, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit, Session
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.replay import Counts
from onceload_core.spans import SpanSet

COMMITTERS = (1, 2, 4, 8)
BARE, ONE_PIPELINE, OWN_PIPELINES = "bare", "one pipeline", "own pipelines"
WAYS = (BARE, ONE_PIPELINE, OWN_PIPELINES)
_INSERT = text("INSERT INTO target VALUES (:producer_id, :sequence)")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A number of processes that do the same for some time; its number keeps its data apart."""

    number: int
    way: str
    committers: int
    seconds: float

    def pipeline_of(self, committer: int) -> str:
        return f"trial {self.number}" if self.way == ONE_PIPELINE else f"trial {self.number}, committer {committer}"


def measure(dsn: str, *, repetitions: int, seconds: float) -> dict[tuple[str, int], Measured]:
    """Transactions per second for each way and number of committers, the ways taking turns."""
    engine = connect(LedgerSettings(dsn=dsn))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (_producer_id bigint, _sequence bigint)"))
    rates: dict[tuple[str, int], list[float]] = {}
    numbers = count(1)
    for _ in range(repetitions):
        for committers in COMMITTERS:
            for way in WAYS:
                trial = Trial(number=next(numbers), way=way, committers=committers, seconds=seconds)
                rate = run(trial, dsn, engine)
                print(f"{committers} committers, {way}: {rate:.0f}/s", flush=True)
                rates.setdefault((way, committers), []).append(rate)
    engine.dispose()
    return {key: Measured(tuple(values)) for key, values in rates.items()}


def report(rates: dict[tuple[str, int], Measured]) -> str:
    def row(committers: int) -> Iterator[str]:
        yield str(committers)
        bare = rates[BARE, committers]
        yield str(bare)
        for way in (ONE_PIPELINE, OWN_PIPELINES):
            yield str(rates[way, committers])
            yield f"{rates[way, committers].median / bare.median:.0%}"

    header = ["committers", "bare transactions/s", "commits/s, one pipeline", "of bare", "commits/s, own pipelines"]
    return table([*header, "of bare"], [list(row(committers)) for committers in COMMITTERS])


def run(trial: Trial, dsn: str, engine: Engine) -> float:
    """Transactions per second over all processes, after the rows were checked."""
    with engine.begin() as connection:
        connection.execute(text("TRUNCATE target"))
    context = get_context("spawn")
    together = context.Barrier(trial.committers)
    with context.Pool(trial.committers, initializer=_meet_at, initargs=(together,)) as pool:
        done = pool.starmap(_work, [(trial, dsn, number) for number in range(trial.committers)], chunksize=1)
    _check(trial, engine, sum(transactions for transactions, _ in done))
    return sum(rate for _, rate in done)


def _check(trial: Trial, engine: Engine, transactions: int) -> None:
    """Every row once, and a ledger entry and a consumed id for each."""
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT count(*), count(DISTINCT (_producer_id, _sequence)) FROM target")).one()
        check_equal("rows in the target", found=tuple(rows), expected=(transactions, transactions))
        if trial.way == BARE:
            return
        pipelines = {trial.pipeline_of(number) for number in range(trial.committers)}
        entries = sum(_entries(connection, pipeline) for pipeline in pipelines)
        check_equal("entries in the ledger", found=entries, expected=transactions)
    ledger = PostgresLedger(engine)
    states = [state for pipeline in pipelines for state in ledger.states(pipeline).states.values()]
    check_equal("consumed ids", found=sum(state.consumed.count for state in states), expected=transactions)


def _entries(connection: Connection, pipeline: str) -> int:
    found = text("SELECT count(*) FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id) WHERE name = :name")
    return int(connection.execute(found, {"name": pipeline}).scalar_one())


_together: Barrier


def _meet_at(together: Barrier) -> None:
    global _together  # noqa: PLW0603 - A barrier reaches a process of a pool only at its start.
    _together = together


def _work(trial: Trial, dsn: str, number: int) -> tuple[int, float]:
    """How many transactions this process made, and how many per second."""
    engine = connect(LedgerSettings(dsn=dsn))
    step = _bare(engine, number) if trial.way == BARE else _committing(engine, trial, number)
    step(0)
    _together.wait()
    started = perf_counter()
    for done in count(1):
        step(done)
        if perf_counter() - started >= trial.seconds:
            break
    took = perf_counter() - started
    engine.dispose()
    # The one before the start warmed the connection up, and is in the tables.
    return done + 1, done / took


def _bare(engine: Engine, number: int) -> Callable[[int], None]:
    connection = engine.raw_connection()

    cursor = connection.cursor()

    def step(sequence: int) -> None:
        cursor.execute("INSERT INTO target VALUES (%s, %s)", (number, sequence))
        connection.commit()

    return step


def _committing(engine: Engine, trial: Trial, number: int) -> Callable[[int], None]:
    pipeline = trial.pipeline_of(number)
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name=pipeline))
    producer_id = ledger.register(pipeline, [(f"producer {number}", 1)])[f"producer {number}", 1]
    session = ledger.open_session(pipeline, SessionName(f"committer {number}"))
    return lambda sequence: _commit(ledger, session, producer_id, sequence)


def _commit(ledger: PostgresLedger, session: Session, producer_id: ProducerId, sequence: int) -> None:
    def write_rows(connection: Connection) -> int:
        return connection.execute(_INSERT, {"producer_id": producer_id, "sequence": sequence}).rowcount

    advance = Advance(producer_id=producer_id, spans=SpanSet.of((sequence, sequence + 1)), rows=1)
    counts = Counts(loaded=1)
    ledger.commit(
        Commit(session=session, batch=Batch("bench"), advances=(advance,), write_rows=write_rows, counts=counts)
    )
