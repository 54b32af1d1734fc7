"""Loads over a resident Spark, and the faults that hit its parts, the network before it, the load and its stage."""

import os
from collections.abc import Iterator

import pytest

from onceload_jobs.load.settings import Engine
from tests.fault.sizes import chosen_seed
from tests.loads.plugs import Way
from tests.loads.resident_plugs import Fault, Trial, run_trial
from tests.loads.resident_stand import ResidentStand, open_resident_stand, open_speculating_stand

pytestmark = pytest.mark.long(minutes=8)

_LINES = 200_000
#: Each fault once, and each way; `make faults` tries all.
_TRIED = [
    (Fault.WORKERS_KILLED, Way.STAGED, Engine.SPARK),
    (Fault.DAEMON_KILLED, Way.DIRECT, Engine.SPARK),
    (Fault.JVM_KILLED, Way.BY_PRODUCER, Engine.SPARK),
    (Fault.RESTARTED, Way.STAGED, Engine.SPARK),
    (Fault.DRIVER_KILLED, Way.DIRECT, Engine.SPARK),
    (Fault.TAKEN_OVER, Way.DIRECT, Engine.SPARK),
    (Fault.TAKEN_OVER, Way.STAGED, Engine.LOCAL),
    (Fault.JOINED, Way.BY_MESSAGE, Engine.SPARK),
    (Fault.NETWORK_INTERRUPTED, Way.STAGED, Engine.SPARK),
    (Fault.NETWORK_CUT, Way.TRANSFORMED_BY_SPARK, Engine.SPARK),
    (Fault.NETWORK_SILENT, Way.STAGED, Engine.SPARK),
    (Fault.NETWORK_SLOW, Way.TRANSFORMED, Engine.SPARK),
    (Fault.STAGE_FULL, Way.STAGED, Engine.SPARK),
    (Fault.STAGE_GONE, Way.BY_PRODUCER, Engine.SPARK),
    (Fault.STAGE_CHANGED, Way.STAGED, Engine.SPARK),
    (Fault.STAGE_CHANGED, Way.TRANSFORMED, Engine.LOCAL),
    (Fault.STAGE_CUT, Way.BY_MESSAGE, Engine.SPARK),
]


@pytest.fixture(scope="module")
def stand() -> Iterator[ResidentStand]:
    with open_resident_stand(lines=_LINES) as stand:
        yield stand


@pytest.mark.parametrize(("fault", "way", "engine"), _TRIED)
def test_a_load_that_is_struck_and_called_again_lands_each_record_once(stand, fault, way, engine):
    if fault is Fault.STAGE_FULL and os.geteuid():
        pytest.skip("only root may make a disk of its own")
    _check(stand, Trial(fault=fault, way=way, engine=engine, seed=_seed()))


@pytest.mark.parametrize("way", [Way.STAGED, Way.DIRECT])
def test_tasks_that_run_twice_land_each_record_once(way):
    with open_speculating_stand(lines=_LINES) as stand:
        _check(stand, Trial(fault=Fault.SPECULATED, way=way, engine=Engine.SPARK, seed=_seed()))


def _seed() -> str:
    seed = chosen_seed()
    print(f"ONCELOAD_FAULT_SEED={seed}")
    return str(seed)


def _check(stand: ResidentStand, trial: Trial) -> None:
    outcome = run_trial(stand, trial)

    assert outcome.is_good, outcome
