"""The seconds of the phases of a load."""

import time

import pytest

from onceload_jobs.load.report import Phase, Stopwatch


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def wait(seconds):
        now[0] += seconds

    return wait


def test_an_interrupted_phase_does_not_count_the_phase_that_interrupts_it(clock):
    stopwatch = Stopwatch()
    clock(1)
    with stopwatch.during(Phase.STAGE):
        clock(2)
        with stopwatch.during(Phase.PUBLISH):
            clock(4)
        clock(8)
    clock(16)
    stopwatch.switch_to(Phase.END)
    clock(32)

    assert stopwatch.seconds() == {Phase.PLAN: 17, Phase.STAGE: 10, Phase.PUBLISH: 4, Phase.END: 32}


def test_after_a_phase_that_fails_the_interrupted_one_resumes(clock):
    stopwatch = Stopwatch()

    def fail():
        with stopwatch.during(Phase.WAIT):
            clock(2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    clock(1)

    assert stopwatch.seconds() == {Phase.WAIT: 2, Phase.PLAN: 1}


def test_the_seconds_until_now_can_be_asked_for_again(clock):
    stopwatch = Stopwatch()
    clock(1)
    assert stopwatch.seconds() == {Phase.PLAN: 1}
    clock(1)
    assert stopwatch.seconds() == {Phase.PLAN: 2}
