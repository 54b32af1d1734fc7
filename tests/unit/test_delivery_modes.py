"""The order that each mode of delivery guarantees."""

import pytest

from onceload_core.delivery import Mode
from onceload_core.errors import SettingRefused
from onceload_core.names import SessionName
from tests.models.board import (
    end_of_session,
    seal,
)
from tests.unit.delivery_desk import DEADLINE_S, WITHOUT_LINES_TAKEN_AWAY, Desk


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
