from onceload_core.delivery import TRANSITIONS, State
from tests.pictures import PAGE, states_of_a_delivery, with_pictures


def test_the_picture_of_a_delivery_is_that_of_the_code():
    page = PAGE.read_text(encoding="utf-8")

    assert with_pictures(page) == page
    assert states_of_a_delivery() in page


def test_every_state_and_every_step_is_in_the_picture():
    picture = states_of_a_delivery()

    assert all(state in picture for state in State)
    assert all(f"{before} --> {after}: " in picture for (before, _), after in TRANSITIONS.items())
    assert all(event in picture for _, event in TRANSITIONS)
