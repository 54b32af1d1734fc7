"""Airflow and all that it runs, struck while pipelines are loaded: each row is in once, and no run stays stuck."""

import pytest

from tests.fault.control_plane import Fault, Kind, open_stand, strike_all, trials
from tests.fault.sizes import STRIKES_IN_CI


@pytest.mark.long(minutes=6)
def test_runs_that_are_struck_anywhere_come_to_their_end_and_land_each_row_once(seed):
    asked = trials(STRIKES_IN_CI, seed=seed)

    with open_stand() as stand:
        outcomes = strike_all(stand, asked)

    assert [outcome for outcome in outcomes if not outcome.is_good] == []
    assert sorted(trial.seed for outcome in outcomes for trial in outcome.struck) == sorted(each.seed for each in asked)


def test_ci_strikes_all_kinds_evenly():
    asked = trials(STRIKES_IN_CI, seed=1)
    times = [sum(each.fault is fault for each in asked) for fault in Fault]

    assert len(asked) >= 30
    assert max(times) - min(times) <= 1
    assert {each.kind for each in asked} == set(Kind)
