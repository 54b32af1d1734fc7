"""One crowd of sessions that is struck while it loads; `make faults` has many, and larger ones."""

from random import Random

import pytest

from onceload_core.delivery import Mode
from tests.fault.sizes import CROWD_IN_CI, chosen_seed
from tests.loads.crowd import Strike, Way, run_crowd


@pytest.mark.long
def test_a_crowd_that_is_struck_loads_each_message_once_and_in_the_order_of_its_mode():
    seed = chosen_seed()
    mode = Random(seed).choice(list(Mode))

    outcome = run_crowd(Way.CONSUME, mode, CROWD_IN_CI, seed=seed)

    assert outcome.is_good, outcome
    assert outcome.strikes.total() >= CROWD_IN_CI.strikes, outcome
    assert set(outcome.strikes) <= set(Strike)
    # The checker has seen what it judges.
    assert outcome.operations["ok"] > 0, outcome
