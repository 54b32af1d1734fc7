"""What becomes of a load task is decided by what the load itself wrote, whatever Spark says."""

import os
import sys

import pytest

from onceload.pipeline_file import read_pipeline
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from tests.dags.stand import Airflow
from tests.loads.conftest import InThisProcess
from tests.servers import execute

PIPELINE = """\
pipeline: readings
source: {{path: "{folder}/*.jsonl", format: jsonl, sealed: always}}
columns: {{n: bigint not null}}
target: {{table: public.readings}}
publish: direct
"""
#: Says something of its own, and starts the load in a process as real as Spark's driver.
_SPARK_SUBMIT = """#!{python}
import os, subprocess, sys
program = next(at for at, each in enumerate(sys.argv) if each.endswith("__main__.py"))
killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
ended = subprocess.run(killed if os.environ.get("KILLED") else [sys.executable, *sys.argv[program:]])
if ended.returncode:
    print("The driver is unwell.", "no more memory", sep="\\n")
    sys.exit(1)
"""
_TASK = """
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from onceload_airflow import failures
from onceload_airflow.operators import Load

failures.get_current_context = lambda: {"task_reschedule_count": int(os.environ.get("LOOKS", 0))}
at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)
ti = SimpleNamespace(xcom_push=lambda **pushed: print("pushed", pushed))
try:
    Load(task_id="l", pipeline_file=os.environ["FILE"], publishes=True, engine="spark").execute(
        {"dag_run": run, "params": {}, "run_id": "r", "ti": ti}
    )
    print("went on")
except Exception as error:
    print(type(error).__name__, getattr(error, "reschedule_date", at) > datetime.now(UTC), error)
"""


@pytest.fixture
def task(tmp_path, dsn):
    """What a task of the only pipeline comes to."""
    (tmp_path / "landing").mkdir()
    file = tmp_path / "readings.yaml"
    file.write_text(PIPELINE.format(folder=tmp_path / "landing"))
    airflow = Airflow(home=tmp_path / "airflow", pipelines=tmp_path, dsn=dsn)
    submit = tmp_path / "bin" / "spark-submit"
    submit.parent.mkdir()
    submit.write_text(_SPARK_SUBMIT.format(python=sys.executable))
    submit.chmod(0o755)
    path = f"{submit.parent}{os.pathsep}{os.environ['PATH']}"

    def run(**environment):
        done = airflow.python(_TASK, FILE=str(file), PATH=path, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_wrong_use_fails_for_good_in_the_words_of_the_load(task, dsn):
    execute(dsn, "DROP SCHEMA onceload CASCADE")

    (said,) = task()[-1:]

    assert said.startswith("AirflowFailException False the schema onceload is missing")
    assert "Run `onceload init`" in said


@pytest.mark.parametrize(
    ("looks", "error"), [("0", "AirflowRescheduleException True"), ("60", "AirflowException False an upgrade is not")]
)
def test_a_task_waits_for_an_upgrade_without_a_try_and_fails_after_an_hour_with_one(task, dsn, looks, error):
    execute(dsn, "UPDATE onceload.schema_version SET version_num = '9999', compatible_from = '9999'")

    assert task(LOOKS=looks)[-1].startswith(error)


def test_a_load_that_was_killed_is_tried_again(task):
    (said,) = task(KILLED="yes")[-1:]

    assert said.startswith("AirflowException False The load ended before it reported a result")
    assert said.endswith("The last line of its log: no more memory")


def test_a_file_that_needs_a_person_leaves_the_rest_of_a_direct_run_to_go_on(task, dsn, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    declared = read_pipeline(tmp_path / "readings.yaml", offered={})
    load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=Batch("b"), tasks=InThisProcess())
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 2}\n')

    assert task()[-2:] == ["pushed {'key': 'needs_a_person', 'value': 'see the log of the task load'}", "went on"]
