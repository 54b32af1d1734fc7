"""The delivery machine: its rules one by one, then any history against a naive model."""

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.delivery import TRANSITIONS, Event, Mode, State, next_state
from onceload_core.errors import DeliveryTakenAway, NotFound, SessionFenced, SettingRefused
from onceload_core.names import DeliveryId, Epoch, ProducerId, SessionName
from tests.models.board import (
    OPEN,
    Board,
    Delivery,
    Session,
    abandon,
    ack,
    close_session,
    end_of_session,
    expire,
    nack,
    offer,
    open_session,
    publish,
    redrive,
    renew,
    seal,
    stage,
    take,
    withdraw,
)

DEADLINE_S = 10.0
TRIES = 2
WITHOUT_LINES_TAKEN_AWAY = [Mode.SHARED, Mode.KEY_SHARED, Mode.ORDERED]


class Desk:
    """A board, a clock and the latest life of each session, so that a test reads as a story."""

    def __init__(self, mode: Mode, *names: str, open_max: int = 5) -> None:
        self.board = Board(
            pipeline="events", mode=mode, ack_deadline_s=DEADLINE_S, deliveries_max=TRIES, open_max=open_max
        )
        self.now = 0.0
        self.lives: dict[str, Session] = {}
        for name in names:
            self.open(name)

    def open(self, name: str) -> Session:
        self.board, self.lives[name] = open_session(self.board, SessionName(name), self.now)
        return self.lives[name]

    def close(self, name: str) -> None:
        self.board = close_session(self.board, *self._life(name), self.now)

    def offer(self, *work: tuple[int, ...]) -> None:
        bundles = [tuple(ProducerId(producer) for producer in producers) for producers in work]
        self.board, _ = offer(self.board, bundles)

    def take(self, name: str) -> int | None:
        self.board, delivery = take(self.board, *self._life(name), self.now)
        return delivery.id if delivery else None

    def ack(self, name: str, number: int) -> None:
        self.board = ack(self.board, *self._life(name), DeliveryId(number))

    def nack(self, name: str, number: int) -> None:
        self.board = nack(self.board, *self._life(name), DeliveryId(number))

    def renew(self, name: str) -> None:
        self.board = renew(self.board, *self._life(name), self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.board = expire(self.board, self.now)

    def kill(self, name: str, number: int) -> None:
        """Let a delivery fail until it is a dead letter."""
        for _ in range(TRIES):
            assert self.take(name) == number
            self.nack(name, number)

    def finish(self, name: str) -> list[int]:
        """Take and ack whatever comes."""
        done = []
        while (number := self.take(name)) is not None:
            self.ack(name, number)
            done.append(number)
        return done

    def states(self) -> list[str]:
        return [self.board.deliveries[DeliveryId(number)].state for number in range(len(self.board.deliveries))]

    def tries(self, number: int) -> int:
        return self.board.deliveries[DeliveryId(number)].tries

    def _life(self, name: str) -> tuple[SessionName, Epoch]:
        return self.lives[name].name, self.lives[name].epoch


# The table of transitions.


def test_every_state_but_the_first_is_reached_and_only_acked_and_abandoned_are_final() -> None:
    assert set(TRANSITIONS.values()) == set(State)
    assert set(State) - {state for state, _ in TRANSITIONS} == {State.ACKED, State.ABANDONED}
    assert {event for _, event in TRANSITIONS} == set(Event)


def test_an_event_that_the_table_does_not_know_is_refused_with_the_states_that_allow_it() -> None:
    with pytest.raises(
        SettingRefused, match=r"abandon: found a delivery that is.*Expected one that is waiting or dead"
    ):
        next_state(State.ACKED, Event.ABANDON)


# Sessions and their epochs.


@pytest.mark.parametrize("mode", Mode)
def test_a_session_that_comes_back_has_a_higher_epoch_and_finds_waiting_what_its_earlier_life_held(mode: Mode) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,), (1,))
    assert desk.take("a") == 0

    assert desk.open("a").epoch == 2

    assert desk.states() == ["waiting", "waiting"]
    assert desk.take("a") == 0
    assert desk.tries(0) == 2


Call = Callable[[Board, SessionName, Epoch], object]
OLD_LIFE: list[Call] = [
    lambda board, name, epoch: renew(board, name, epoch, 1.0),
    lambda board, name, epoch: take(board, name, epoch, 1.0),
    lambda board, name, epoch: close_session(board, name, epoch, 1.0),
    lambda board, name, epoch: ack(board, name, epoch, DeliveryId(0)),
    lambda board, name, epoch: nack(board, name, epoch, DeliveryId(0)),
]


@pytest.mark.parametrize("call", OLD_LIFE)
@pytest.mark.parametrize("mode", Mode)
def test_an_earlier_life_is_refused_whatever_it_says(mode: Mode, call: Call) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,))
    desk.take("a")
    desk.open("a")
    desk.take("a")

    with pytest.raises(SessionFenced):
        call(desk.board, SessionName("a"), Epoch(1))


def test_only_the_last_of_two_lives_that_come_back_under_one_name_works() -> None:
    desk = Desk(Mode.SHARED, "a")
    desk.offer((1,))
    second, third = desk.open("a"), desk.open("a")

    assert take(desk.board, third.name, third.epoch, 0.0)[1] is not None
    with pytest.raises(SessionFenced, match="session a is no longer in epoch 2"):
        take(desk.board, second.name, second.epoch, 0.0)


@pytest.mark.parametrize("mode", Mode)
def test_a_session_that_leaves_in_good_order_gives_back_what_it_holds_and_that_is_not_a_try(mode: Mode) -> None:
    desk = Desk(mode, "a", "b")
    desk.offer((1,), (1,))
    assert desk.take("a") == 0

    desk.close("a")

    assert (desk.states()[0], desk.tries(0)) == ("waiting", 0)
    if mode is Mode.SESSION:
        desk.open("a")
        assert desk.take("a") == 0
    else:
        assert desk.take("b") == 0


def test_an_unknown_session_or_delivery_is_not_found() -> None:
    desk = Desk(Mode.SHARED, "a")
    with pytest.raises(NotFound, match=r"session not found: 'b'.*Known: a"):
        take(desk.board, SessionName("b"), Epoch(1), 0.0)
    with pytest.raises(NotFound, match="delivery not found: '7'"):
        desk.ack("a", 7)


# Deadlines, negative acks, dead letters.


@pytest.mark.parametrize("mode", WITHOUT_LINES_TAKEN_AWAY)
def test_an_unacked_delivery_is_redelivered_once_its_deadline_has_passed_and_not_before(mode: Mode) -> None:
    desk = Desk(mode, "a", "b")
    desk.offer((1,))
    assert desk.take("a") == 0

    desk.wait(DEADLINE_S - 0.1)
    assert desk.take("b") is None
    desk.wait(0.1)
    assert desk.take("b") == 0


@pytest.mark.parametrize("mode", WITHOUT_LINES_TAKEN_AWAY)
def test_a_heartbeat_moves_the_deadlines_of_all_that_a_session_holds(mode: Mode) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,), (2,))
    desk.take("a")
    desk.take("a")
    held = set(desk.board.sessions[SessionName("a")].held)

    desk.wait(DEADLINE_S - 1)
    desk.renew("a")
    desk.wait(DEADLINE_S - 1)

    assert desk.board.sessions[SessionName("a")].held == held


@pytest.mark.parametrize("mode", WITHOUT_LINES_TAKEN_AWAY)
def test_a_straggler_of_the_same_life_cannot_ack_what_was_taken_away(mode: Mode) -> None:
    desk = Desk(mode, "a", "b")
    desk.offer((1,))
    desk.take("a")
    desk.wait(DEADLINE_S)

    with pytest.raises(DeliveryTakenAway, match="session a held it in epoch 1, but now it is waiting"):
        desk.ack("a", 0)
    desk.take("b")
    with pytest.raises(DeliveryTakenAway):
        desk.nack("a", 0)
    desk.ack("b", 0)
    with pytest.raises(DeliveryTakenAway):
        desk.ack("b", 0)


def test_an_ack_after_the_deadline_counts_as_long_as_nothing_was_taken_away() -> None:
    desk = Desk(Mode.SHARED, "a")
    desk.offer((1,))
    desk.take("a")
    desk.now += DEADLINE_S + 1

    desk.ack("a", 0)

    assert desk.states() == ["acked"]


@pytest.mark.parametrize("mode", Mode)
def test_a_poison_chunk_is_delivered_as_often_as_declared_and_the_others_go_on(mode: Mode) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,), (1,), (1,))

    desk.kill("a", 0)

    assert desk.finish("a") == [1, 2]
    assert desk.states() == ["dead", "acked", "acked"]


@pytest.mark.parametrize("mode", Mode)
def test_a_redriven_dead_letter_has_all_its_tries_again_and_is_loaded_once(mode: Mode) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,))
    desk.kill("a", 0)

    desk.board = redrive(desk.board, DeliveryId(0))

    assert desk.tries(0) == 0
    assert desk.finish("a") == [0]


@pytest.mark.parametrize("mode", [Mode.SESSION, Mode.KEY_SHARED, Mode.ORDERED])
def test_a_redriven_dead_letter_returns_to_its_old_place_behind_the_held_one(mode: Mode) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,), (1,), (1,))
    desk.kill("a", 0)
    assert desk.take("a") == 1

    desk.board = redrive(desk.board, DeliveryId(0))

    assert desk.take("a") is None
    desk.ack("a", 1)
    assert desk.finish("a") == [0, 2]


@pytest.mark.parametrize("mode", Mode)
def test_a_worker_that_dies_each_time_makes_a_dead_letter_too(mode: Mode) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,))
    for _ in range(TRIES):
        assert desk.take("a") == 0
        desk.open("a")

    assert desk.states() == ["dead"]


@pytest.mark.parametrize("mode", Mode)
def test_an_abandoned_delivery_makes_room_for_the_next(mode: Mode) -> None:
    desk = Desk(mode, "a")
    desk.offer((1,), (1,), (1,))
    desk.board = abandon(desk.board, DeliveryId(1))
    desk.kill("a", 0)
    desk.board = abandon(desk.board, DeliveryId(0))

    assert desk.finish("a") == [2]
    assert desk.states() == ["abandoned", "abandoned", "acked"]


def test_a_person_can_neither_abandon_a_held_delivery_nor_redrive_one_that_is_not_dead() -> None:
    desk = Desk(Mode.SHARED, "a")
    desk.offer((1,))
    desk.take("a")
    with pytest.raises(SettingRefused, match=r"abandon: .*found a delivery that is held"):
        abandon(desk.board, DeliveryId(0))
    with pytest.raises(SettingRefused, match=r"redrive: .*Expected one that is dead"):
        redrive(desk.board, DeliveryId(0))


# Mode session.


def test_session_goes_round_robin_and_one_after_another() -> None:
    desk = Desk(Mode.SESSION, "a", "b")
    desk.offer((1,), (1,), (1,), (1,), (1,))

    assert (desk.take("a"), desk.take("a")) == (0, None)
    desk.ack("a", 0)
    assert desk.finish("a") == [2, 4]
    assert desk.finish("b") == [1, 3]


def test_session_goes_on_with_the_round_where_the_last_offer_stopped() -> None:
    desk = Desk(Mode.SESSION, "a", "b")
    desk.offer((1,))
    desk.offer((1,), (1,))

    assert desk.finish("b") == [1]


def test_session_never_takes_anything_away_and_the_next_life_goes_on_an_hour_later() -> None:
    desk = Desk(Mode.SESSION, "a", "b")
    desk.offer((1,), (1,), (1,), (1,), (1,), (1,))
    desk.ack("a", desk.take("a") or 0)
    assert desk.take("a") == 2
    desk.wait(3600)

    assert desk.finish("b") == [1, 3, 5]
    assert desk.states()[2] == "held"
    desk.open("a")
    assert desk.finish("a") == [2, 4]


def test_session_leaves_the_line_of_a_session_alone_that_is_away_and_holds_nothing() -> None:
    desk = Desk(Mode.SESSION, "a", "b")
    desk.offer((1,), (1,), (1,))
    desk.wait(3600)

    assert desk.finish("b") == [1]
    assert desk.finish("a") == [0, 2]


def test_session_ends_for_each_session_by_itself_once_the_board_is_sealed() -> None:
    desk = Desk(Mode.SESSION, "a", "b")
    desk.offer((1,), (1,))
    desk.finish("a")
    a, b = SessionName("a"), SessionName("b")

    assert not end_of_session(desk.board, a)
    desk.board = seal(desk.board)
    assert end_of_session(desk.board, a)
    assert not end_of_session(desk.board, b)


def test_session_needs_sessions_before_an_offer() -> None:
    with pytest.raises(SettingRefused, match=r"offer: .*Expected sessions"):
        Desk(Mode.SESSION).offer((1,))


# Mode shared.


def test_shared_hands_out_the_oldest_up_to_the_bound_of_a_session() -> None:
    desk = Desk(Mode.SHARED, "a", "b", open_max=2)
    desk.offer((1,), (1,), (1,), (1,))

    assert [desk.take("a"), desk.take("b"), desk.take("a"), desk.take("a"), desk.take("b")] == [0, 1, 2, None, 3]


@pytest.mark.parametrize("mode", WITHOUT_LINES_TAKEN_AWAY)
def test_elsewhere_a_session_ends_only_when_nothing_can_fall_back_to_it(mode: Mode) -> None:
    desk = Desk(mode, "a", "b")
    assert not end_of_session(desk.board, SessionName("b"))
    desk.offer((1,))
    desk.board = seal(desk.board)
    desk.take("a")

    assert not end_of_session(desk.board, SessionName("b"))
    desk.ack("a", 0)
    assert end_of_session(desk.board, SessionName("b"))


# Mode key_shared.


def test_key_shared_keeps_a_producer_with_one_session_and_in_order() -> None:
    desk = Desk(Mode.KEY_SHARED, "a", "b")
    desk.offer((1,), (2,), (1,), (2,))

    assert (desk.take("a"), desk.take("b")) == (0, 1)
    assert (desk.take("a"), desk.take("b")) == (None, None)
    desk.ack("a", 0)
    assert desk.take("b") is None
    assert desk.take("a") == 2


def test_key_shared_lets_one_session_hold_several_producers() -> None:
    desk = Desk(Mode.KEY_SHARED, "a")
    desk.offer((1,), (1,), (2,), (3,))

    assert [desk.take("a"), desk.take("a"), desk.take("a"), desk.take("a")] == [0, 2, 3, None]


def test_key_shared_moves_a_whole_producer_when_the_lease_of_its_keeper_ends() -> None:
    desk = Desk(Mode.KEY_SHARED, "a", "b")
    desk.offer((1,), (1,), (1,))
    desk.ack("a", desk.take("a") or 0)
    desk.take("a")
    desk.wait(DEADLINE_S)

    assert desk.take("b") == 1
    assert desk.take("a") is None
    desk.ack("b", 1)
    assert desk.take("a") is None
    assert desk.take("b") == 2


def test_key_shared_reassigns_the_producers_when_a_session_joins() -> None:
    desk = Desk(Mode.KEY_SHARED, "a")
    desk.offer((1,), (2,), (1,), (2,), (1,))
    desk.ack("a", desk.take("a") or 0)
    assert desk.take("a") == 1

    desk.open("b")

    assert desk.take("b") == 2
    desk.ack("b", 2)
    assert desk.take("a") is None
    desk.ack("a", 1)
    assert desk.take("b") == 3


def test_key_shared_keeps_its_producers_when_a_known_session_comes_back() -> None:
    desk = Desk(Mode.KEY_SHARED, "a", "b")
    desk.offer((1,), (1,))
    desk.ack("a", desk.take("a") or 0)

    desk.open("b")

    assert desk.take("b") is None
    assert desk.take("a") == 1


def test_key_shared_holds_a_bundle_back_until_it_is_first_for_each_of_its_producers() -> None:
    desk = Desk(Mode.KEY_SHARED, "a", "b")
    desk.offer((1,), (2,), (1, 2), (2,))
    assert (desk.take("a"), desk.take("b")) == (0, 1)

    desk.ack("a", 0)
    assert desk.take("a") is None
    desk.ack("b", 1)
    assert desk.take("a") is None
    assert desk.take("b") == 2


def test_key_shared_moves_all_producers_of_a_bundle_to_the_session_that_takes_it() -> None:
    desk = Desk(Mode.KEY_SHARED, "a", "b")
    desk.offer((1,), (2,), (1, 2), (1,))
    assert (desk.take("a"), desk.take("b")) == (0, 1)
    desk.ack("a", 0)
    desk.ack("b", 1)
    desk.ack("b", desk.take("b") or 0)

    assert desk.take("a") is None
    assert desk.take("b") == 3


def test_key_shared_releases_a_line_that_has_run_empty() -> None:
    desk = Desk(Mode.KEY_SHARED, "a", "b")
    desk.offer((1,))
    desk.ack("a", desk.take("a") or 0)
    desk.offer((1,))

    assert desk.take("b") == 1


def test_key_shared_reassigns_the_producers_when_a_session_comes_back_that_was_away() -> None:
    desk = Desk(Mode.KEY_SHARED, "a", "b")
    desk.close("b")
    desk.offer((1,), (1,))
    desk.ack("a", desk.take("a") or 0)

    desk.open("b")

    assert desk.take("b") == 1


def test_key_shared_counts_a_producer_named_twice_in_a_bundle_once() -> None:
    desk = Desk(Mode.KEY_SHARED, "a")
    desk.offer((1, 1), (1,))

    assert desk.finish("a") == [0, 1]


# Mode ordered.


def test_ordered_has_one_active_session_at_a_time() -> None:
    desk = Desk(Mode.ORDERED, "a", "b")
    desk.offer((1,), (2,), (3,))

    assert (desk.take("a"), desk.take("a"), desk.take("b")) == (0, None, None)
    desk.ack("a", 0)
    assert desk.take("b") is None
    assert desk.finish("a") == [1, 2]


def test_ordered_fails_over_when_the_lease_ends_and_starts_at_the_first_unacked() -> None:
    desk = Desk(Mode.ORDERED, "a", "b")
    desk.offer((1,), (2,), (3,))
    desk.ack("a", desk.take("a") or 0)
    desk.take("a")
    desk.wait(DEADLINE_S)

    assert desk.finish("b") == [1, 2]


def test_ordered_is_not_shared_out_when_a_session_joins() -> None:
    desk = Desk(Mode.ORDERED, "a")
    desk.offer((1,), (2,))
    desk.ack("a", desk.take("a") or 0)

    desk.open("b")

    assert desk.take("b") is None
    assert desk.take("a") == 1


# Bad input.


def test_a_sealed_board_and_a_delivery_without_producers_are_refused() -> None:
    desk = Desk(Mode.SHARED, "a")
    with pytest.raises(SettingRefused, match="a delivery of no producer"):
        desk.offer(())
    desk.board = seal(desk.board)
    with pytest.raises(SettingRefused, match="not sealed"):
        desk.offer((1,))


@pytest.mark.parametrize("setting", ["ack_deadline", "deliveries_max", "open_max"])
def test_bounds_below_one_are_refused(setting: str) -> None:
    bounds = {"ack_deadline": 1, "deliveries_max": 1, "open_max": 1} | {setting: 0}
    with pytest.raises(SettingRefused, match=setting):
        Board(
            pipeline="events",
            mode=Mode.SHARED,
            ack_deadline_s=bounds["ack_deadline"],
            deliveries_max=bounds["deliveries_max"],
            open_max=bounds["open_max"],
        )


def test_the_error_of_a_straggler_survives_pickling() -> None:
    error = DeliveryTakenAway("events", 7, "a", 2, "waiting")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


# Any history, against a model that knows no index and scans everything.


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

    def stage(self, which: int, number: int) -> None:
        self._end(stage, which, number)

    def publish(self, number: int, _: int) -> None:
        staged = [each for each, work in enumerate(self.model.work) if work.state == "staged"]
        if staged:
            number = staged[number % len(staged)]
            self.desk.board = publish(self.desk.board, DeliveryId(number))
            self.model.work[number].state = "acked"

    def withdraw(self, number: int, _: int) -> None:
        if number < len(self.model.work) and self.model.work[number].state in ("waiting", "held", "staged"):
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
        elif call is stage:
            work.state = "staged"
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
RARE += [Race.stage, Race.publish, Race.withdraw]
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
