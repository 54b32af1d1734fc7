"""A worker that slept while another took over must not change anything when it wakes."""

import pytest

from tests.fault.sizes import IN_CI
from tests.fault.sweep import in_lanes
from tests.fault.zombies import Successor, hauntings, run_haunting


@pytest.mark.parametrize(
    "successor",
    [
        pytest.param(each, id=each.name.lower(), marks=[] if each is Successor.SAME_NAME else pytest.mark.long)
        for each in Successor
    ],
)
def test_a_worker_that_wakes_after_another_took_over_is_refused_with_no_row(lanes, seed, successor):
    asked = [each for each in hauntings(IN_CI.zombies, seed=seed) if each.successor is successor]

    outcomes = in_lanes(lanes, asked, run_haunting)

    assert [outcome for outcome in outcomes if not outcome.is_good] == []
    assert len(outcomes) == len(asked)
