"""The board in Postgres: any history is that of the pure machine, and what only the board can do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from onceload_core.delivery import Mode, Rules, State
from onceload_core.errors import DeliveryTakenAway, SessionFenced
from onceload_core.names import Batch, DeliveryId, Epoch, ProducerId, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit, Session
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.by_hand import abandon, redrive
from onceload_core.postgres.deliveries import Handed, PostgresDeliveries
from onceload_core.postgres.offers import Offer
from onceload_core.postgres.sessions import session_of
from onceload_core.spans import SpanSet
from tests.laws import examples
from tests.models import board as machine
from tests.models.board import Board

pytestmark = pytest.mark.every_postgres

DEADLINE_S = 1_000.0
TRIES = 2
BATCH = Batch("batch")


@pytest.fixture
def engine(dsn: str) -> Iterator[Engine]:
    engine = connect(LedgerSettings(dsn=dsn))
    yield engine
    engine.dispose()


class Twins:
    """One history on the pure machine and on the board, compared after each step."""

    def __init__(self, engine: Engine, mode: Mode, number: int) -> None:
        self.name = f"events {number}"
        self.engine = engine
        self.ledger = PostgresLedger(engine)
        self.ledger.declare(Pipeline(name=self.name))
        self.producers = list(self.ledger.register(self.name, [(f"p{each}", 1) for each in range(3)]).values())
        rules = Rules(mode=mode, sessions=2, ack_deadline_s=DEADLINE_S, deliveries_max=TRIES)
        self.board = PostgresDeliveries(engine, self.name, rules)
        self.model = Board(pipeline=self.name, mode=mode, ack_deadline_s=DEADLINE_S, deliveries_max=TRIES, open_max=100)
        self.now = 0.0
        self.lives: list[Session] = []
        self.ids: list[DeliveryId] = []
        self.handed: dict[tuple[DeliveryId, SessionName, Epoch], Handed] = {}
        self.ends = count()
        self.open(0, 0)
        self.open(1, 0)
        self.offer(0, 0)
        self.offer(1, 1)

    # Steps.

    def open(self, which: int, _: int) -> None:
        name = SessionName("12"[which % 2]) if self.model.mode is Mode.SESSION else SessionName("abc"[which % 3])
        session = self.board.open_session(name)
        self.model, life = machine.open_session(self.model, name, self.now)
        assert session
        assert all(session.epoch > each.epoch for each in self.lives if each.name == name)
        # The machine counts epochs, and on the board they are times.
        self.model = machine._with_session(self.model, replace(life, epoch=session.epoch))
        self.lives.append(session)

    def offer(self, first: int, second: int) -> None:
        producers = tuple(dict.fromkeys((first % 3, second % 3)))
        planner = self.ledger.open_session(self.name, session_of(BATCH, "plan"))
        start = 10 * next(self.ends)
        spans = {self.producers[each]: SpanSet.of((start, start + 10)) for each in producers}
        claim = self.ledger.claim(planner, spans, batch=BATCH, lease_s=60)
        self.board.offer(claim, [Offer(spans=spans, work=str(start))], batch=BATCH)
        self._offer_in_model([producers])

    def _offer_in_model(self, some: Sequence[tuple[int, ...]]) -> None:
        work = [tuple(ProducerId(each) for each in producers) for producers in some]
        self.model, _ = machine.offer(self.model, work)
        if some:
            self.ids += [row[0] for row in self._rows()[-len(some) :]]

    def wait(self, seconds: int, _: int) -> None:
        passed = DEADLINE_S * seconds / 5
        self.now += passed
        with self.engine.begin() as connection:
            for statement in (
                "UPDATE onceload.session SET lease_until = lease_until - make_interval(secs => :passed)",
                "UPDATE onceload.delivery SET deadline_at = deadline_at - make_interval(secs => :passed)"
                " WHERE work IS NOT NULL",
            ):
                connection.execute(text(statement), {"passed": passed})

    def expire(self, _: int, __: int) -> None:
        self.board.expire()
        self.model = machine.expire(self.model, self.now)

    def take(self, which: int, _: int) -> None:
        life = self._life(which)
        if self._is_fenced(life, lambda: self._taken(life)):
            return
        handed = self._taken(life)
        self.model, delivery = machine.take(self.model, life.name, life.epoch, self.now)
        assert (handed and self.ids.index(handed.id)) == (delivery and delivery.id)
        if handed:
            self.handed[handed.id, life.name, life.epoch] = handed

    def _taken(self, life: Session) -> Handed | None:
        return self.board.take(life)

    def renew(self, which: int, _: int) -> None:
        life = self._life(which)
        if not self._is_fenced(life, lambda: self.board.renew(life)):
            self.board.renew(life)
            self.model = machine.renew(self.model, life.name, life.epoch, self.now)

    def close(self, which: int, _: int) -> None:
        life = self._life(which)
        self.board.close_session(life)
        if self.model.sessions[life.name].epoch == life.epoch:
            self.model = machine.close_session(self.model, life.name, life.epoch, self.now)

    def ack(self, number: int, _: int) -> None:
        def commit(handed: Handed) -> None:
            session, claim = handed.claim.session, handed.claim
            advance = Advance(producer_id=self.producers[0], spans=SpanSet())
            self.ledger.commit(
                Commit(session=session, batch=BATCH, advances=(advance,), write_rows=lambda _: 0, claim=claim)
            )

        self._end(number, commit, machine.ack)

    def nack(self, number: int, _: int) -> None:
        self._end(number, lambda handed: self.board.nack(handed, "it failed"), machine.nack)

    def _end(self, number: int, end: Callable[[Handed], None], in_model: Callable[..., Board]) -> None:
        """Mostly a delivery that is held, and now and then one that was."""
        all_handed = list(self.handed.values())
        if not all_handed:
            return
        handed = all_handed[-1 - number % min(len(all_handed), 3)]
        session, arguments = handed.claim.session, (DeliveryId(self.ids.index(handed.id)),)
        try:
            self.model = in_model(self.model, session.name, session.epoch, *arguments)
        except (SessionFenced, DeliveryTakenAway):
            with pytest.raises((SessionFenced, DeliveryTakenAway)):
                end(handed)
        else:
            end(handed)

    def redrive(self, number: int, _: int) -> None:
        self._by_hand(number, State.DEAD, redrive, machine.redrive)

    def abandon(self, number: int, _: int) -> None:
        self._by_hand(number, State.WAITING, abandon, machine.abandon)

    def _by_hand(
        self,
        number: int,
        state: State,
        change: Callable[..., None],
        in_model: Callable[[Board, DeliveryId], Board],
    ) -> None:
        there = [each.id for each in self.model.deliveries.values() if each.state is state]
        if there:
            chosen = there[number % len(there)]
            change(self.engine, self.name, self.ids[chosen], by="ann")
            self.model = in_model(self.model, chosen)

    # Comparisons.

    def check(self) -> None:
        expected = [
            (
                self.ids[each.id],
                each.state,
                each.tries,
                each.session if self._is_told(each) else None,
                each.epoch if each.state is State.HELD else None,
            )
            for each in sorted(self.model.deliveries.values(), key=lambda each: each.id)
            if each.state not in (State.ACKED, State.ABANDONED)
        ]
        found = [
            (row[0], row[1], row[2], row[3] if row[1] == "held" or self.model.mode is not Mode.SHARED else None, row[4])
            for row in self._rows()
        ]
        assert [each if each[1] != "dead" else (*each[:3], None, None) for each in found] == expected

    def _is_told(self, each: machine.Delivery) -> bool:
        return each.state is State.HELD or (each.state is State.WAITING and self.model.mode is not Mode.SHARED)

    def _rows(self) -> list[tuple[DeliveryId, str, int, str | None, int | None]]:
        statement = (
            "SELECT delivery_id, state, tries, session.name, delivery.epoch FROM onceload.delivery"
            " JOIN onceload.pipeline USING (pipeline_id) LEFT JOIN onceload.session USING (session_id)"
            " WHERE pipeline.name = :name AND work IS NOT NULL ORDER BY delivery_id"
        )
        with self.engine.begin() as connection:
            rows = connection.execute(text(statement), {"name": self.name})
            return [(DeliveryId(row[0]), row[1], row[2], row[3], row[4]) for row in rows]

    def _life(self, which: int) -> Session:
        """Mostly a latest life, and now and then any."""
        latest = self._latest()
        return latest[which % len(latest)] if which < 7 else self.lives[0]

    def _latest(self) -> list[Session]:
        return list({life.name: life for life in self.lives}.values())

    def _is_fenced(self, life: Session, call: Callable[[], object]) -> bool:
        if self.model.sessions[life.name].epoch == life.epoch:
            return False
        with pytest.raises(SessionFenced):
            call()
        return True


Move = Callable[[Twins, int, int], None]
RARE: list[Move] = [Twins.open, Twins.wait, Twins.expire, Twins.renew, Twins.close, Twins.redrive, Twins.abandon]
MOVES: list[Move] = [*RARE, *2 * [Twins.offer, Twins.ack, Twins.nack], *5 * [Twins.take]]
steps = st.tuples(st.sampled_from(MOVES), st.integers(0, 7), st.integers(0, 7))
numbers = count()


def test_a_bundle_waits_until_it_is_first_for_all_of_its_files(engine: Engine) -> None:
    twins = Twins(engine, Mode.KEY_SHARED, next(numbers))
    one, other = 0, 1
    twins.take(one, 0)
    twins.take(other, 0)
    # Each has a file, and more of that in its line; the bundle of both is in the line of the other.
    for producers in ((0, 0), (1, 1), (0, 1)):
        twins.offer(*producers)
    twins.ack(1, 0)
    twins.ack(0, 0)
    twins.take(other, 0)
    twins.ack(0, 0)

    twins.take(other, 0)

    twins.check()
    assert [(state, keeper) for _, state, _, keeper, _ in twins._rows()] == [("waiting", "a"), ("waiting", "b")]


@pytest.mark.parametrize("mode", Mode)
def test_an_earlier_epoch_of_a_session_gets_no_delivery(engine: Engine, mode: Mode) -> None:
    twins = Twins(engine, mode, next(numbers))
    earlier = twins.lives[0]
    twins.open(0, 0)

    with pytest.raises(SessionFenced):
        twins.board.take(earlier)

    assert twins.board.take(twins.lives[-1]) is not None
    assert sorted(state for _, state, *_ in twins._rows()) == ["held", "waiting"]


@pytest.mark.parametrize("mode", Mode)
@settings(
    examples(30),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=st.lists(steps, min_size=10, max_size=30))
def test_any_history_is_that_of_the_machine(engine: Engine, mode: Mode, history: list[tuple[Move, int, int]]) -> None:
    twins = Twins(engine, mode, next(numbers))
    twins.check()
    for step, first, second in history:
        step(twins, first, second)
        twins.check()
