"""Deliveries: epochs of sessions, deadlines, negative acks, dead letters, and bad input."""

import pickle
from collections.abc import Callable

import pytest

from onceload_core.delivery import TRANSITIONS, Event, Mode, State, next_state
from onceload_core.errors import DeliveryTakenAway, NotFound, SessionFenced, SettingRefused
from onceload_core.names import DeliveryId, Epoch, SessionName
from tests.models.board import (
    Board,
    abandon,
    ack,
    close_session,
    nack,
    redrive,
    renew,
    seal,
    take,
)
from tests.unit.delivery_desk import DEADLINE_S, TRIES, WITHOUT_LINES_TAKEN_AWAY, Desk


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
