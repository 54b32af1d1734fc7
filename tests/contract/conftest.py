"""One world per kind of ledger: a target, a ledger, snapshots, and a clock that the test may move."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text

from onceload_core.names import Batch, ProducerId, SessionName
from onceload_core.pipeline import Guarantee, Pipeline
from onceload_core.ports import Advance, Commit, CommitStep, Ledger, Session, SnapshotStore
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect
from onceload_core.replay import Counts
from onceload_core.spans import SpanSet
from tests.models.memory import Book, MemoryLedger, MemorySnapshots

Row = tuple[int, int]


@dataclass
class World:
    """What a test acts on, whichever ledger is behind it."""

    make_ledger: Callable[..., Ledger[Any]]
    snapshots: SnapshotStore
    write: Callable[[Sequence[Row]], Callable[[Any], int]]
    rows: Callable[[], list[Row]]
    end_claims: Callable[[], None]
    age_producers: Callable[[], None]
    #: The consumed sets of all producers are gone from the live state, and not from the ledger.
    damage_states: Callable[[], None]
    make_table: Callable[[str], None]
    ledger: Ledger[Any] = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = self.make_ledger()
        self.ledger.declare(Pipeline(name="events", message_keep_days=2))

    def producer(self, name: str = "a.jsonl", generation: int = 1) -> ProducerId:
        return self.ledger.register("events", [(name, generation)])[name, generation]

    def session(self, name: str = "loader") -> Session:
        return self.ledger.open_session("events", SessionName(name))

    def commit_of(
        self,
        session: Session,
        producer_id: ProducerId,
        spans: SpanSet,
        *,
        fingerprint: bytes | None = b"\x00\xff",
        **more: Any,
    ) -> Commit[Any]:
        rows = [(producer_id, each) for span in spans for each in range(span.first, span.end)]
        return Commit(
            session=session,
            batch=Batch("batch"),
            advances=(Advance(producer_id=producer_id, spans=spans, rows=len(rows), fingerprint=fingerprint, size=9),),
            write_rows=self.write(rows),
            **{"counts": Counts(loaded=len(rows)), **more},
        )


@pytest.fixture
def world(kind: str, postgres_version: object, request: pytest.FixtureRequest) -> Iterator[World]:
    if kind == "memory":
        yield world_in_memory()
    else:
        engine = connect(LedgerSettings(dsn=request.getfixturevalue("dsn")))
        yield world_in_postgres(engine)
        engine.dispose()


def world_in_memory() -> World:
    books = MemoryLedger()

    def make_ledger(**options: Any) -> MemoryLedger:
        # Another ledger on the same books, as another process on the same database.
        ledger = MemoryLedger(**options)
        ledger._books, ledger._ids = books._books, books._ids
        return ledger

    def write(rows: Sequence[Row]) -> Callable[[Book], int]:
        def extend(book: Book) -> int:
            book.rows.extend(rows)
            return len(rows)

        return extend

    def end_claims() -> None:
        for held in books.book("events").held.values():
            held.deadline_at = datetime.min.replace(tzinfo=UTC)

    def age_producers() -> None:
        advanced_at = books.book("events").advanced_at
        advanced_at.update(dict.fromkeys(advanced_at, datetime(2000, 1, 1, tzinfo=UTC)))

    def damage_states() -> None:
        book = books.book("events")
        book.states = {key: replace(state, consumed=SpanSet()) for key, state in book.states.items()}

    return World(
        make_ledger=make_ledger,
        snapshots=MemorySnapshots(books),
        write=write,
        rows=lambda: sorted(books.book("events").rows),  # type: ignore[arg-type]
        end_claims=end_claims,
        age_producers=age_producers,
        damage_states=damage_states,
        make_table=lambda _: None,
    )


def world_in_postgres(engine: Engine) -> World:
    with engine.begin() as connection:
        # No unique index: what keeps rows single is the ledger alone.
        connection.execute(text("CREATE TABLE target (_producer_id bigint, _sequence bigint)"))

    def make_ledger(**options: Any) -> PostgresLedger:
        return PostgresLedger(engine, **options)

    def write(rows: Sequence[Row]) -> Callable[[Connection], int]:
        def insert(connection: Connection) -> int:
            if not rows:
                return 0
            values = [{"producer": producer, "sequence": sequence} for producer, sequence in rows]
            return connection.execute(text("INSERT INTO target VALUES (:producer, :sequence)"), values).rowcount

        return insert

    def rows() -> list[Row]:
        with engine.begin() as connection:
            return sorted((row[0], row[1]) for row in connection.execute(text("SELECT * FROM target")))

    def run(statement: str) -> None:
        with engine.begin() as connection:
            connection.execute(text(statement))

    return World(
        make_ledger=make_ledger,
        snapshots=PostgresSnapshots(engine),
        write=write,
        rows=rows,
        end_claims=lambda: run("UPDATE onceload.delivery SET deadline_at = '-infinity'"),
        age_producers=lambda: run("UPDATE onceload.producer SET advanced_at = '2000-01-01'"),
        damage_states=lambda: run("UPDATE onceload.producer SET consumed = '{}'"),
        make_table=lambda table: run(f"CREATE TABLE {table} ()"),
    )


class Crash(Exception):
    """The plug, pulled."""


def crashing_at(step: CommitStep) -> Callable[[CommitStep], None]:
    def reached(found: CommitStep) -> None:
        if found is step:
            raise Crash

    return reached


__all__ = ["Crash", "Guarantee", "World", "crashing_at"]
