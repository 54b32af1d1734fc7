"""Real loads, and the plugs that are pulled on them: each record is in once, whatever is killed."""

from collections.abc import Iterator

import pytest

from onceload_jobs.load.settings import Engine
from tests.fault.sizes import chosen_seed
from tests.loads.plugs import Fault, Stand, Trial, Way, open_stand, run_trial

_LINES = 200_000
#: Spark starts for each call, so that few are tried here; `make faults` tries all.
_TRIED = [
    (Fault.DRIVER_KILLED, Way.DIRECT, Engine.SPARK),
    (Fault.DRIVER_KILLED, Way.STAGED, Engine.LOCAL),
    (Fault.WORKER_KILLED, Way.DIRECT, Engine.SPARK),
    (Fault.DRIVER_KILLED, Way.TRANSFORMED, Engine.LOCAL),
    (Fault.DRIVER_KILLED, Way.BY_PRODUCER, Engine.LOCAL),
    (Fault.WORKER_KILLED, Way.BY_MESSAGE, Engine.SPARK),
    (Fault.WORKER_KILLED, Way.BY_PRODUCER, Engine.LOCAL),
    (Fault.WORKER_KILLED, Way.ROW_GROUPS, Engine.LOCAL),
    (Fault.WORKER_KILLED, Way.STAGED, Engine.LOCAL),
    (Fault.WORKER_KILLED, Way.TRANSFORMED, Engine.LOCAL),
    (Fault.SERVER_CRASHED, Way.STAGED, Engine.LOCAL),
    (Fault.SERVER_CRASHED, Way.TRANSFORMED, Engine.LOCAL),
    (Fault.SERVER_CRASHED, Way.ROW_GROUPS, Engine.LOCAL),
    (Fault.SERVER_CRASHED, Way.BY_MESSAGE, Engine.LOCAL),
    (Fault.SERVER_CRASHED_AT_PUBLISH, Way.BY_PRODUCER, Engine.LOCAL),
    (Fault.SERVER_CRASHED_AT_PUBLISH, Way.BY_MESSAGE, Engine.LOCAL),
    (Fault.SERVER_CRASHED_AT_PUBLISH, Way.STAGED, Engine.SPARK),
    (Fault.SERVER_CRASHED_AT_PUBLISH, Way.TRANSFORMED, Engine.LOCAL),
]


@pytest.fixture(scope="module")
def stand() -> Iterator[Stand]:
    with open_stand(lines=_LINES) as stand:
        yield stand


@pytest.mark.long(minutes=2)
@pytest.mark.parametrize(("fault", "way", "engine"), _TRIED)
def test_a_load_that_is_struck_and_called_again_lands_each_record_once(stand, fault, way, engine):
    seed = chosen_seed()
    print(f"ONCELOAD_FAULT_SEED={seed}")

    outcome = run_trial(stand, Trial(fault=fault, way=way, engine=engine, seed=str(seed)))

    assert outcome.is_good, outcome


@pytest.mark.long
def test_a_load_that_is_asked_to_end_gives_back_what_it_holds(stand):
    with stand.new_plugged(Way.STAGED) as plugged:
        name = plugged.place.pipeline
        held = f"SELECT FROM onceload.claim JOIN onceload.pipeline USING (pipeline_id) WHERE name = '{name}'"
        with plugged.load() as load:
            load.wait_until(lambda: plugged.staged() > 0)
            assert plugged.ask(held) != []
            load.terminate_driver()
            ended = load.end()

        assert (ended.exit_code, plugged.ask(held)) == (1, [])
        assert "interrupted" in ended.words
