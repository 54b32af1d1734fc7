"""What becomes of a load task is decided by what the load itself wrote, whatever Spark says."""

import os
import sys

import pytest

from onceload.pipeline_file import read_pipeline
from onceload_core.names import Batch
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.pausing import pause, resume
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
import json, os
from datetime import UTC, datetime
from types import SimpleNamespace
from onceload_airflow import failures
from onceload_airflow.operators import Audit, Load, Publish, Report

failures.get_current_context = lambda: {"task_reschedule_count": int(os.environ.get("LOOKS", 0))}
at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)
ti = SimpleNamespace(xcom_push=lambda **pushed: print("pushed", pushed), xcom_pull=lambda **asked: [])
made = {"load": {"publishes": True, "engine": os.environ.get("ENGINE", "spark")}, "stage": {"publishes": False}}
task = os.environ.get("TASK", "load")
context = {"dag_run": run, "params": json.loads(os.environ.get("PARAMS", "{}")), "run_id": "r", "ti": ti}
try:
    (Load if task in made else {"audit": Audit, "publish": Publish, "report": Report}[task])(
        task_id="l", pipeline_file=os.environ["FILE"], **made.get(task, {})
    ).execute(context)
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


@pytest.mark.long
def test_wrong_use_fails_for_good_in_the_words_of_the_load(task, dsn):
    execute(dsn, "DROP SCHEMA onceload CASCADE")

    (said,) = task()[-1:]

    assert said.startswith("AirflowFailException False the schema onceload is missing")
    assert "Run `onceload init`" in said


@pytest.mark.parametrize(
    ("looks", "error"),
    [
        ("0", "AirflowRescheduleException True"),
        pytest.param("60", "AirflowException False an upgrade is not", marks=pytest.mark.long),
    ],
)
def test_a_task_waits_for_an_upgrade_without_a_try_and_fails_after_an_hour_with_one(task, dsn, looks, error):
    execute(dsn, "UPDATE onceload.schema_version SET version_num = '9999', compatible_from = '9999'")

    assert task(LOOKS=looks)[-1].startswith(error)


@pytest.fixture
def engine(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    yield engine
    engine.dispose()


def test_a_load_that_meets_a_pause_is_not_tried_again(task, engine):
    PostgresLedger(engine).declare(Pipeline(name="readings"))
    pause(engine, "readings", by="ann", why="a repair")

    (said,) = task()[-1:]

    assert said.startswith("AirflowFailException False pipeline readings was paused by ann at ")
    assert "Run `onceload resume readings`" in said


@pytest.mark.long
def test_a_publish_that_meets_a_pause_is_not_tried_again_and_succeeds_after_the_resume(task, engine, dsn, tmp_path):
    staged = (tmp_path / "readings.yaml").read_text().replace("publish: direct", "publish: staged")
    (tmp_path / "readings.yaml").write_text(staged)
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    task(TASK="stage")
    pause(engine, "readings", by="ann", why="a repair")

    assert task(TASK="publish")[-1].startswith("AirflowFailException False pipeline readings was paused by ann")
    resume(engine, "readings", by="ann")
    assert task(TASK="publish")[-1] == "went on"
    assert execute(dsn, "SELECT n FROM readings") == [(1,)]


@pytest.mark.long
def test_a_load_that_was_killed_is_tried_again(task):
    (said,) = task(KILLED="yes")[-1:]

    assert said.startswith("AirflowException False The load ended before it reported a result")
    assert said.endswith("The last line of its log: no more memory")


@pytest.mark.long
def test_a_file_that_needs_a_person_leaves_the_rest_of_a_direct_run_to_go_on(task, dsn, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    declared = read_pipeline(tmp_path / "readings.yaml", offered={})
    load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=Batch("b"), tasks=InThisProcess())
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 2}\n')

    pushed, went_on = task()[-2:]

    assert pushed.startswith("pushed {'key': 'needs_a_person', 'value': 'a.jsonl: ")
    assert went_on == "went on"


@pytest.mark.long
def test_a_file_that_was_emptied_keeps_its_rows_though_a_run_accepts_differences(task, dsn, tmp_path):
    staged = (tmp_path / "readings.yaml").read_text().replace("publish: direct", "publish: staged")
    (tmp_path / "readings.yaml").write_text(staged)
    emptied, other = (tmp_path / "landing" / name for name in ("a.jsonl", "b.jsonl"))
    emptied.write_text('{"n": 1}\n')
    other.write_text('{"n": 2}\n')
    assert task(ENGINE="local")[-1] == "went on"
    emptied.write_text("")
    other.write_text('{"n": 3}\n')

    said = task(ENGINE="local", PARAMS='{"mode": "replace", "accept_differences": true}')

    assert said[-1] == "went on"
    assert execute(dsn, "SELECT n FROM readings ORDER BY n") == [(1,), (3,)]


@pytest.mark.long
def test_a_report_fails_while_the_batch_of_its_run_is_not_published(task, dsn, tmp_path):
    """As after an upgrade from a release whose tasks staged it."""
    staged = (tmp_path / "readings.yaml").read_text().replace("publish: direct", "publish: staged")
    (tmp_path / "readings.yaml").write_text(staged)
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    task(TASK="stage")

    refused = "AirflowFailException False the batch of this run is staged but not published."
    assert task(TASK="report")[-1].startswith(refused)
    assert task(ENGINE="local")[-1] == "went on"
    assert task(TASK="report")[-1] == "went on"
    assert task(TASK="audit")[-1].startswith("AirflowSkipException False this batch is already published")
    assert execute(dsn, "SELECT n FROM readings") == [(1,)]


@pytest.mark.long
def test_a_report_of_a_run_that_loaded_no_record_is_skipped(task, dsn, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    declared = read_pipeline(tmp_path / "readings.yaml", offered={})
    load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=Batch("b"), tasks=InThisProcess())

    assert task(TASK="report")[-1].startswith("AirflowSkipException False this run loaded no record")
