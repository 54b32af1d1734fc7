"""Any history of deliveries, against a model that knows no index and scans everything."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.delivery import Mode
from onceload_core.errors import DeliveryTakenAway, SessionFenced
from onceload_core.names import DeliveryId, Epoch, SessionName
from tests.models.board import (
    OPEN,
    Board,
    Delivery,
    abandon,
    ack,
    close_session,
    end_of_session,
    nack,
    redrive,
    renew,
    seal,
    take,
    withdraw,
)
from tests.unit.delivery_desk import DEADLINE_S, TRIES, Desk


@dataclass
class Work:
    producers: tuple[int, ...]
    state: str = "waiting"
    holder: tuple[str, int] | None = None
    line: str | None = None
    keeper: str | None = None
    deadline: float = 0.0
    tries: int = 0

    def seen(self) -> tuple[str, int, object]:
        return self.state, self.tries, self.holder if self.state == "held" else None


@dataclass
class Model:
    mode: Mode
    open_max: int
    work: list[Work] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    leases: dict[str, float] = field(default_factory=dict)

    def lines(self, work: Work) -> list[object]:
        lines: dict[str, list[object]] = {
            "session": [work.line],
            "shared": [],
            "key_shared": [*work.producers],
            "ordered": ["all"],
        }
        return lines[self.mode]

    def open(self, name: str, now: float) -> None:
        for work in self.held_by(name):
            self.fall_back(work)
        if self.mode == "key_shared" and self.leases.get(name, now) <= now:
            for work in self.work:
                work.keeper = work.keeper if work.state != "waiting" else None
        self.epochs[name], self.leases[name] = self.epochs.get(name, 0) + 1, now + DEADLINE_S

    def held_by(self, name: str) -> list[Work]:
        return [work for work in self.work if work.state == "held" and work.holder and work.holder[0] == name]

    def fall_back(self, work: Work) -> None:
        work.state = "waiting" if work.tries < TRIES else "dead"

    def stands_behind(self, work: Work) -> list[Work]:
        open_ones = [each for each in self.work if each is not work and each.state in ("waiting", "held")]
        return [each for each in open_ones if set(self.lines(each)) & set(self.lines(work))]

    def offer(self, work: Work) -> None:
        work.keeper = next((each.keeper for each in reversed(self.stands_behind(work))), None)
        self.work.append(work)

    def may_take(self, name: str, number: int, now: float) -> bool:
        work, lines = self.work[number], self.lines(self.work[number])
        for other_number, other in enumerate(self.work):
            is_rival = other is not work and set(self.lines(other)) & set(lines)
            if is_rival and (other.state == "held" or (other.state == "waiting" and other_number < number)):
                return False
        keeper = work.line or (work.keeper if lines else None)
        lease_ended = self.mode != "session" and self.leases.get(keeper or "", 0) <= now
        return work.state == "waiting" and (keeper in (None, name) or lease_ended)

    def take(self, name: str, now: float) -> int | None:
        self.leases[name] = now + DEADLINE_S
        numbers = [number for number in range(len(self.work)) if self.may_take(name, number, now)]
        if not numbers or len(self.held_by(name)) >= self.open_max:
            return None
        work = self.work[numbers[0]]
        work.state, work.holder, work.deadline = "held", (name, self.epochs[name]), now + DEADLINE_S
        work.tries += 1
        for each in (work, *self.stands_behind(work)):
            each.keeper = name
        return numbers[0]

    def expire(self, now: float) -> None:
        for work in self.work:
            if self.mode != "session" and work.state == "held" and work.deadline <= now:
                self.fall_back(work)


class Race:
    """One history on the machine and on the model, compared after each step."""

    def __init__(self, mode: Mode, open_max: int) -> None:
        self.desk = Desk(mode, open_max=open_max)
        self.model = Model(mode, open_max)
        self.lives: list[tuple[SessionName, Epoch]] = []
        self.acks: list[tuple[int, str]] = []
        self.redriven: set[int] = set()
        self.open(0, 0)
        self.open(1, 0)
        self.offer(0, 0)
        self.offer(1, 1)

    def open(self, which: int, _: int) -> None:
        name = "abc"[which % 3]
        session = self.desk.open(name)
        self.lives.append((session.name, session.epoch))
        self.model.open(name, self.desk.now)
        assert session.epoch == self.model.epochs[name]

    def offer(self, first: int, second: int) -> None:
        producers = tuple(dict.fromkeys((first % 3, second % 3)))
        names = list(self.model.epochs)
        line = names[len(self.model.work) % len(names)] if self.model.mode == "session" else None
        self.desk.offer(producers)
        self.model.offer(Work(producers, line=line))

    def wait(self, seconds: int, _: int) -> None:
        self.desk.now += 2 * seconds

    def expire(self, _: int, __: int) -> None:
        self.desk.wait(0)
        self.model.expire(self.desk.now)

    def take(self, which: int, _: int) -> None:
        name, epoch = self._life(which)
        if self._is_fenced(name, epoch, lambda: take(self.desk.board, name, epoch, self.desk.now)):
            return
        self.desk.board, delivery = take(self.desk.board, name, epoch, self.desk.now)
        assert (delivery.id if delivery else None) == self.model.take(name, self.desk.now)

    def renew(self, which: int, _: int) -> None:
        name, epoch = self._life(which)
        if self._is_fenced(name, epoch, lambda: renew(self.desk.board, name, epoch, self.desk.now)):
            return
        self.desk.board = renew(self.desk.board, name, epoch, self.desk.now)
        self.model.leases[name] = self.desk.now + DEADLINE_S
        for work in self.model.held_by(name):
            work.deadline = self.desk.now + DEADLINE_S

    def close(self, which: int, _: int) -> None:
        name, epoch = self._life(which)
        if self._is_fenced(name, epoch, lambda: close_session(self.desk.board, name, epoch, self.desk.now)):
            return
        self.desk.board = close_session(self.desk.board, name, epoch, self.desk.now)
        self.model.leases[name] = self.desk.now
        for work in self.model.held_by(name):
            work.state, work.tries = "waiting", work.tries - 1

    def ack(self, which: int, number: int) -> None:
        self._end(ack, which, number)

    def nack(self, which: int, number: int) -> None:
        self._end(nack, which, number)

    def withdraw(self, number: int, _: int) -> None:
        if number < len(self.model.work) and self.model.work[number].state == "held":
            self.desk.board = withdraw(self.desk.board, DeliveryId(number))
            self.model.work[number].state = "abandoned"

    def _end(self, call: Callable[..., Board], which: int, number: int) -> None:
        name, epoch = self._life(which)
        number = self._number_for(name, epoch, number)
        arguments = (self.desk.board, name, epoch, DeliveryId(number))
        if number >= len(self.model.work) or self._is_fenced(name, epoch, lambda: call(*arguments)):
            return
        work = self.model.work[number]
        if (work.state, work.holder) != ("held", (name, epoch)):
            with pytest.raises(DeliveryTakenAway):
                call(*arguments)
            return
        self.desk.board = call(*arguments)
        if call is ack:
            work.state = "acked"
            self.acks.append((number, name))
        else:
            self.model.fall_back(work)

    def redrive(self, number: int, _: int) -> None:
        dead = [each for each, work in enumerate(self.model.work) if work.state == "dead"]
        if dead:
            number = dead[number % len(dead)]
            self.desk.board = redrive(self.desk.board, DeliveryId(number))
            self.model.work[number].state, self.model.work[number].tries = "waiting", 0
            self.redriven.add(number)

    def abandon(self, number: int, _: int) -> None:
        if number < len(self.model.work) and self.model.work[number].state in ("waiting", "dead"):
            self.desk.board = abandon(self.desk.board, DeliveryId(number))
            self.model.work[number].state = "abandoned"

    def _life(self, which: int) -> tuple[SessionName, Epoch]:
        """Mostly a latest life, and now and then any."""
        latest = list({name: (name, epoch) for name, epoch in self.lives}.values())
        return latest[which % len(latest)] if which < 7 else self.lives[0]

    def _number_for(self, name: str, epoch: int, number: int) -> int:
        """Mostly what the life holds, and now and then anything."""
        held = [each for each, work in enumerate(self.model.work) if work.seen()[2] == (name, epoch)]
        return held[number % len(held)] if held and number < 7 else number

    def _is_fenced(self, name: str, epoch: int, call: Callable[[], object]) -> bool:
        if self.model.epochs[name] == epoch:
            return False
        with pytest.raises(SessionFenced):
            call()
        return True

    def check(self) -> None:
        board, work = self.desk.board, self.model.work
        deliveries = [board.deliveries[DeliveryId(number)] for number in range(len(board.deliveries))]
        assert [_seen(each) for each in deliveries] == [each.seen() for each in work]
        held = [(session, number) for session in board.sessions.values() for number in session.held]
        assert sorted(number for _, number in held) == [each.id for each in deliveries if each.state == "held"]
        assert all(board.deliveries[number].epoch == session.epoch for session, number in held)
        assert all(each.tries <= TRIES for each in deliveries)
        assert board.open_count == sum(each.state in OPEN for each in deliveries)

    def check_order(self) -> None:
        """Each delivery is acked once, and in the order that its mode promises; only redriven ones may be late."""
        numbers = [number for number, _ in self.acks]
        assert len(set(numbers)) == len(numbers)
        lines: dict[object, list[int]] = {}
        for number, name in self.acks:
            for line in self.model.lines(self.model.work[number]):
                assert self.model.mode != "session" or line == name
                if number not in self.redriven:
                    lines.setdefault(line, []).append(number)
        assert all(line == sorted(line) for line in lines.values())


def _seen(delivery: Delivery) -> tuple[str, int, object]:
    return delivery.state, delivery.tries, (delivery.session, delivery.epoch) if delivery.state == "held" else None


Move = Callable[[Race, int, int], None]

Step = tuple[Move, int, int]

RARE: list[Move] = [Race.open, Race.wait, Race.expire, Race.renew, Race.close, Race.redrive, Race.abandon]

RARE += [Race.withdraw]

# What makes progress comes more often, so that histories get somewhere.
MOVES: list[Move] = [*RARE, *2 * [Race.offer, Race.ack, Race.nack], *5 * [Race.take]]

steps = st.tuples(st.sampled_from(MOVES), st.integers(0, 7), st.integers(0, 7))

histories: st.SearchStrategy[list[Step]] = st.lists(steps, min_size=15, max_size=40)


@pytest.mark.parametrize("mode", Mode)
@given(history=histories, open_max=st.integers(1, 2))
def test_any_history_is_that_of_the_model_keeps_its_order_and_comes_to_an_end(
    mode: Mode, history: list[Step], open_max: int
) -> None:
    race = Race(mode, open_max)
    for step, first, second in history:
        step(race, first, second)
        race.check()
    check_that_all_ends(race)
    race.check_order()


def check_that_all_ends(race: Race) -> None:
    """Stop all faults: in mode session everyone comes back, elsewhere one session survives and is enough."""
    race.desk.board = seal(race.desk.board)
    race.wait(int(DEADLINE_S), 0)
    race.expire(0, 0)
    everyone = list(race.model.epochs)
    for name in everyone if race.model.mode == "session" else everyone[:1]:
        race.open("abc".index(name), 0)
        race.acks += [(number, name) for number in race.desk.finish(name)]
    assert race.desk.board.open_count == 0
    assert all(end_of_session(race.desk.board, SessionName(name)) for name in everyone)
    assert not set(race.desk.states()) & OPEN
