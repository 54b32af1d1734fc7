"""Two committers and a snapshotter, their steps in every order that there is."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text

from onceload_core.errors import AlreadyConsumed, SessionFenced
from onceload_core.names import Batch, Position, ProducerId, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit, CommitStep, Session
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect
from onceload_core.replay import Counts, Entry, Snapshot, replay
from onceload_core.spans import SpanSet
from tests.interleavings.stage import Actor, Stage

#: The steps begin at the start and after each of these: rows, position, proof, COMMIT.
GATES_OF_A = (CommitStep.ROWS_WRITTEN, CommitStep.POSITION_TAKEN, CommitStep.DELIVERY_ACKED)
#: Rows; position and proof; COMMIT.
GATES_OF_B = (CommitStep.ROWS_WRITTEN, CommitStep.DELIVERY_ACKED)
#: The snapshotter's second step begins here, after it has read the position.
FIRST_COPY = "INSERT INTO onceload.snapshot "

Row = tuple[int, int, str]


@dataclass(frozen=True, kw_only=True)
class Race:
    """What A and B commit, whether they are two lives of one session, what must come of it, and which of them wait."""

    name: str
    spans: dict[str, SpanSet]
    commits: int
    refusal: type[Exception] | None = None
    #: If set, the session that both are lives of; A is the earlier one.
    session: str | None = None
    winners: frozenset[str] = frozenset({"A", "B"})
    waits: frozenset[str] = frozenset({"A", "B"})


APART = Race(name="apart", spans={"A": SpanSet.of((0, 4)), "B": SpanSet.of((4, 7))}, commits=2)
OVERLAPPING = Race(
    name="overlapping", spans={"A": SpanSet.of((0, 4)), "B": SpanSet.of((3, 7))}, commits=1, refusal=AlreadyConsumed
)
ZOMBIE = Race(
    name="zombie",
    spans=OVERLAPPING.spans,
    commits=1,
    refusal=SessionFenced,
    session="loader",
    winners=frozenset({"B"}),
    # A is refused by the statement that takes the lock, so it never stops with it.
    waits=frozenset({"A"}),
)


@dataclass
class Theatre:
    """A database, with connections of their own for A, B and the snapshotter S."""

    stage: Stage
    engine: Engine
    engines: dict[str, Engine]
    backends: dict[str, int]
    #: The snapshotter that is playing.
    snapshotter: Actor | None = None


@dataclass(frozen=True)
class Outcome:
    """All that one order left behind."""

    results: dict[str, object]
    rows: list[Row]
    entries: list[Entry]
    live: Snapshot
    snapshot: Snapshot


@pytest.fixture
def theatre(dsn: str) -> Iterator[Theatre]:
    engine, *others = (connect(LedgerSettings(dsn=dsn)) for _ in range(4))
    with engine.begin() as connection:
        # No unique index: what keeps rows single is the ledger alone.
        connection.execute(text("CREATE TABLE target (_producer_id bigint, _sequence bigint, writer text)"))
    engines = dict(zip("ABS", others, strict=True))
    backends = {name: backend_of(each) for name, each in engines.items()}
    theatre = Theatre(stage=Stage(engine), engine=engine, engines=engines, backends=backends)
    event.listen(engines["S"], "before_cursor_execute", partial(stop_before_copy, theatre))
    yield theatre
    theatre.stage.close()
    for each in (engine, *others):
        each.dispose()


def backend_of(engine: Engine) -> int:
    """The server process of the one connection that this engine keeps in use."""
    with engine.connect() as connection:
        return int(connection.execute(text("SELECT pg_backend_pid()")).scalar_one())


def stop_before_copy(theatre: Theatre, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
    if theatre.snapshotter and FIRST_COPY in statement:
        theatre.snapshotter.gate()


def orders() -> Iterator[str]:
    """Every way to merge four steps of A, three of B and two of S."""
    places = range(9)
    for of_a in combinations(places, 4):
        rest = [place for place in places if place not in of_a]
        for of_b in combinations(rest, 3):
            yield "".join("A" if place in of_a else "B" if place in of_b else "S" for place in places)


@pytest.mark.parametrize("race", [OVERLAPPING, APART, ZOMBIE], ids=lambda race: race.name)
@pytest.mark.parametrize(
    "every", [pytest.param(1, marks=pytest.mark.long(minutes=2), id="all"), pytest.param(12, id="some")]
)
def test_no_order_of_two_committers_and_a_snapshotter_breaks_the_promise(theatre, race, every):
    all_orders = list(orders())
    assert len(set(all_orders)) == len(all_orders) == 1260
    all_orders = all_orders[::every]
    violations: dict[str, list[str]] = {}
    seen: Counter[str] = Counter()

    for order in all_orders:
        outcome = play(theatre, race, order)
        found = list(broken(race, outcome))
        if found:
            violations[order] = found
        seen.update([f"snapshot at {outcome.snapshot.position}", *winners(outcome)])

    assert not violations, f"{len(violations)} of {len(all_orders)} orders, such as {next(iter(violations.items()))}"
    # Otherwise the steps did not meet, and the orders proved nothing.
    assert race.winners == {"A", "B"} & seen.keys()
    assert {f"snapshot at {position}" for position in range(race.commits + 1)} <= seen.keys()
    assert {name for name in "AB" if theatre.stage.waits[name]} == race.waits


def play(theatre: Theatre, race: Race, order: str) -> Outcome:
    """One order, in a pipeline of its own."""
    pipeline = f"{race.name} {order}"
    ledger = PostgresLedger(theatre.engine)
    ledger.declare(Pipeline(name=pipeline))
    producer_id = ledger.register(pipeline, [("file", 1)])["file", 1]
    sessions = {name: ledger.open_session(pipeline, SessionName(race.session or name)) for name in "AB"}
    cast = {
        "A": committer(theatre, "A", GATES_OF_A, commit_of("A", sessions["A"], producer_id, race.spans["A"])),
        "B": committer(theatre, "B", GATES_OF_B, commit_of("B", sessions["B"], producer_id, race.spans["B"])),
        "S": snapshotter(theatre, pipeline),
    }
    results = theatre.stage.play(order, cast)
    return Outcome(
        results=results,
        rows=rows_of(theatre.engine, producer_id),
        entries=list(ledger.entries(pipeline, after=Position(0))),
        live=ledger.states(pipeline),
        snapshot=PostgresSnapshots(theatre.engine).get(pipeline),
    )


def committer(
    theatre: Theatre, name: str, gates: tuple[CommitStep, ...], commit: Commit[Connection]
) -> tuple[Actor, Callable[[], object]]:
    actor = Actor(theatre.stage.changed, backend=theatre.backends[name])

    def reached(step: CommitStep) -> None:
        if step in gates:
            actor.gate()

    ledger = PostgresLedger(theatre.engines[name], reached=reached)
    return actor, lambda: ledger.commit(commit)


def snapshotter(theatre: Theatre, pipeline: str) -> tuple[Actor, Callable[[], object]]:
    actor = Actor(theatre.stage.changed, backend=theatre.backends["S"])
    theatre.snapshotter = actor
    return actor, lambda: PostgresSnapshots(theatre.engines["S"]).take(pipeline)


def commit_of(writer: str, session: Session, producer_id: ProducerId, spans: SpanSet) -> Commit[Connection]:
    rows = [
        {"producer": producer_id, "sequence": each, "writer": writer}
        for span in spans
        for each in range(span.first, span.end)
    ]

    def write_rows(connection: Connection) -> int:
        return connection.execute(text("INSERT INTO target VALUES (:producer, :sequence, :writer)"), rows).rowcount

    advance = Advance(producer_id=producer_id, spans=spans, rows=len(rows), fingerprint=writer.encode())
    counts = Counts(loaded=len(rows))
    return Commit(session=session, batch=Batch(writer), advances=(advance,), write_rows=write_rows, counts=counts)


def rows_of(engine: Engine, producer_id: ProducerId) -> list[Row]:
    with engine.connect() as connection:
        found = connection.execute(
            text("SELECT _sequence, writer FROM target WHERE _producer_id = :producer"), {"producer": producer_id}
        )
        return sorted((producer_id, row[0], row[1]) for row in found)


def winners(outcome: Outcome) -> list[str]:
    return [name for name in "AB" if not isinstance(outcome.results[name], Exception)]


def broken(race: Race, outcome: Outcome) -> Iterator[str]:
    """Every promise that this outcome breaks, in words."""
    won = winners(outcome)
    refused = [result for name, result in outcome.results.items() if name in "AB" and name not in won]
    if len(won) != race.commits:
        yield f"{won} committed, expected {race.commits}: {outcome.results}"
    if any(type(result) is not race.refusal for result in refused):
        yield f"refused with {refused}, expected {race.refusal}"
    if isinstance(outcome.results["S"], Exception):
        yield f"the snapshot failed: {outcome.results['S']}"
    yield from broken_proof(outcome)
    yield from broken_states(outcome)


def broken_proof(outcome: Outcome) -> Iterator[str]:
    """Rows and receipts, each against the other and against the committers that got an answer."""
    positions = [entry.position for entry in outcome.entries]
    told = sorted(str(outcome.results[name]) for name in winners(outcome))
    if told != [str(position) for position in range(1, len(positions) + 1)]:
        yield f"the committers got positions {told}, the ledger has {positions}"
    if sorted(entry.batch for entry in outcome.entries) != winners(outcome):
        yield f"{winners(outcome)} committed, the ledger has {[entry.batch for entry in outcome.entries]}"
    proven = sorted(
        (receipt.producer_id, sequence_id, str(entry.batch))
        for entry in outcome.entries
        for receipt in entry.receipts
        for span in receipt.spans
        for sequence_id in range(span.first, span.end)
    )
    if outcome.rows != proven:
        yield f"rows {outcome.rows}, receipts {proven}"
    if len({row[:2] for row in outcome.rows}) != len(outcome.rows):
        yield f"a record took effect twice: {outcome.rows}"


def broken_states(outcome: Outcome) -> Iterator[str]:
    """Live state and snapshot, each against the ledger up to its position."""
    for what, found in (("live", outcome.live), ("snapshot", outcome.snapshot)):
        replayed = replay({}, [entry for entry in outcome.entries if entry.position <= found.position])
        if dict(found.states) != replayed:
            yield f"{what} at {found.position}: {found.states}, replayed: {replayed}"
    if outcome.live.position != len(outcome.entries):
        yield f"the pipeline is at {outcome.live.position} after {len(outcome.entries)} entries"
