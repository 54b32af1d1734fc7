"""Every step of the commit, struck by every fault, in real processes on a real Postgres."""

import pytest

from onceload_core.ports import CommitStep
from tests.fault.sizes import IN_CI
from tests.fault.sweep import UNANSWERED, Fault, in_lanes, run_trial, trials

#: Each crash of the server takes about as long as all other faults of a trial together.
FAULTS = [pytest.param(each, marks=pytest.mark.long if each is Fault.SERVER_CRASHED else ()) for each in Fault]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name.lower())
def test_a_load_struck_at_any_step_and_retried_lands_each_record_once(lanes, seed, fault):
    asked = trials([fault], repeats=IN_CI.repeats, seed=seed)
    polls = sum(lane.observer.polls for lane in lanes)

    outcomes = in_lanes(lanes, asked, run_trial)

    assert [outcome for outcome in outcomes if not outcome.is_good] == []
    assert len(outcomes) == len(asked)
    assert sum(lane.observer.polls for lane in lanes) >= polls + len(asked)


@pytest.mark.parametrize("fault", sorted(UNANSWERED), ids=lambda fault: fault.name.lower())
def test_a_commit_without_an_answer_is_called_unknown(lanes, seed, fault):
    asked = [trial for trial in trials([fault], repeats=1, seed=seed) if trial.step is CommitStep.DELIVERY_ACKED]

    outcomes = in_lanes(lanes, asked, run_trial)

    assert [(outcome.unknown, outcome.is_good) for outcome in outcomes] == [(1, True)]


def test_ci_pulls_the_plug_often_enough():
    assert IN_CI.sweep_runs >= 150
    assert IN_CI.zombies >= 20
