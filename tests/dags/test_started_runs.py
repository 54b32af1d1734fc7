"""A task that waits for the run that it has started, in a process of its own as in the triggerer."""

import pytest

from tests.dags.stand import Airflow

#: The states of the run at each look; None: it is not there any more. What Airflow's server counts is made of them.
_WAIT = """
import asyncio, json, os, sys
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from onceload_airflow.started_runs import RunEnded, StartRun
from onceload_airflow.versions import AirflowException

states = json.loads(os.environ["STATES"])

def get_dr_count(*, dag_id, run_ids, states):
    assert (dag_id, run_ids) == ("ingest__orders", ["one"])
    now = left[0]
    if states is None and len(left) > 1:
        left.pop(0)
    return int(now is not None and (states is None or now in states))

RuntimeTaskInstance.get_dr_count = staticmethod(get_dr_count)
left = states[:]

async def wait():
    path, kwargs = RunEnded(dag_id="ingest__orders", run_id="one", every_s=0.0).serialize()
    assert path == "onceload_airflow.started_runs.RunEnded", path
    return [event.payload async for event in RunEnded(**kwargs).run()]

(ended,) = asyncio.run(wait())
task = StartRun(task_id="load", trigger_dag_id="ingest__orders", trigger_run_id="one")
try:
    task.ended({}, ended)
    print("went on")
except AirflowException as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("states", "comes_to"),
    [
        (
            '["queued", "running", null]',
            "AirflowFailException run one of ingest__orders, which this task had started, was",
        ),
        pytest.param('["queued", "running", "success"]', "went on", marks=pytest.mark.long),
        pytest.param(
            '["running", "failed"]', "AirflowException run one of ingest__orders failed", marks=pytest.mark.long
        ),
    ],
)
def test_a_task_ends_with_the_run_that_it_has_started_and_fails_if_that_is_deleted(tmp_path, states, comes_to):
    airflow = Airflow(home=tmp_path, pipelines=tmp_path)

    done = airflow.python(_WAIT, STATES=states)

    assert done.stdout.splitlines()[-1:][0].startswith(comes_to), done.stderr
