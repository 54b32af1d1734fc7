"""What becomes of a load task is decided by what the load itself wrote, whatever Spark says."""

import json
import os
import sys

import pytest

from onceload.pipeline_file import read_pipeline
from onceload_core.names import Batch
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.batches import planner_of
from onceload_core.postgres.pausing import pause, resume
from onceload_core.spans import SpanSet
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from tests.dags.stand import SPARK, Airflow
from tests.loads.conftest import InThisProcess
from tests.servers import execute

PIPELINE = """\
pipeline: readings
source: {{path: "{folder}/*.jsonl", format: jsonl, sealed: always}}
columns: {{n: bigint not null}}
target: {{table: public.readings}}
publish: direct
"""
#: A value of a row.
_VALUE = "987654321"
#: Says something of its own, and starts the load in a process as real as Spark's driver.
_SPARK_SUBMIT = """#!{python}
import os, subprocess, sys
program = next(at for at, each in enumerate(sys.argv) if each.endswith("__main__.py"))
killed = [sys.executable, "-c", "import os; os.kill(os.getpid(), 9)"]
refused = [sys.executable, sys.argv[program], "load", "--no-such-option"]
command = killed if os.environ.get("KILLED") else refused if os.environ.get("REFUSED") else None
ended = subprocess.run(command or [sys.executable, *sys.argv[program:]])
if command == refused:
    sys.exit(ended.returncode)
if ended.returncode:
    print("The driver is unwell.", "no more memory", sep="\\n")
    sys.exit(1)
"""
_TASK = """
import json, os, sys, traceback
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.sdk import DAG
from onceload_airflow import failures
from onceload_airflow.operators import Audit, Load, Plan, Publish, Report

failures.get_current_context = lambda: {"task_reschedule_count": int(os.environ.get("LOOKS", 0))}
at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(
    logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at,
    run_type=os.environ.get("RUN_TYPE", "manual"),
)
pushed = json.loads(os.environ.get("PUSHED", "{}"))
ti = SimpleNamespace(
    xcom_push=lambda **pushed: print("pushed", pushed), xcom_pull=lambda *, key, **asked: pushed.get(key, [])
)
made = {"load": {"publishes": True, "engine": os.environ.get("ENGINE", "spark")}, "stage": {"publishes": False}}
task = os.environ.get("TASK", "load")
run_id = os.environ.get("RUN_ID", "r")
context = {"dag_run": run, "params": json.loads(os.environ.get("PARAMS", "{}")), "run_id": run_id, "ti": ti}
others = {"plan": Plan, "audit": Audit, "publish": Publish, "report": Report}
try:
    with DAG("d"):
        its = (Load if task in made else others[task])(
            task_id="l", pipeline_file=os.environ["FILE"], **made.get(task, {})
        )
        Publish(task_id="before", pipeline_file=os.environ["FILE"]) >> its
    if task == "plan":
        # What it returns decides whether Airflow skips the rest.
        print("went on" if its._is_anything_new(context) else "skipped")
    else:
        its.execute(context)
        print("went on")
except Exception as error:
    traceback.print_exc()
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
        spark = SPARK if environment.get("TASK", "load") == "load" else {}
        done = airflow.python(_TASK, FILE=str(file), PATH=path, **spark, **environment)
        assert done.returncode == 0, done.stderr
        # What a task logs has no values of rows.
        assert _VALUE not in done.stdout + done.stderr
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
    load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=Batch("b"), executor=InThisProcess())
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
    load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=Batch("b"), executor=InThisProcess())

    assert task(TASK="report")[-1].startswith("AirflowSkipException False this run loaded no record")


def keep(dsn, tmp_path, batch, *, publishes=False):
    """Stage what is new, and publish it or keep it."""
    file = tmp_path / "readings.yaml"
    file.write_text(file.read_text().replace("publish: direct", "publish: staged"))
    settings = LoadSettings(ledger=LedgerSettings(dsn=dsn), publishes=publishes, wait_s=0)
    return load(read_pipeline(file, offered={}), settings, batch=Batch(batch), executor=InThisProcess())


def test_a_run_that_could_only_load_what_a_kept_batch_holds_is_tried_again_and_names_the_batch(task, dsn, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    keep(dsn, tmp_path, "other")

    (said,) = task(TASK="plan", RUN_TYPE="scheduled")[-1:]

    assert said.startswith(
        "AirflowException False nothing can be loaded, because other runs hold all new files: a.jsonl: "
    )
    assert "batch other is staged but not published, and holds it until " in said
    assert f"run `onceload publish {tmp_path}/readings.yaml --batch=other`" in said
    assert "If the batch is a run of a DAG, clear the failed task of that run instead" in said


@pytest.mark.parametrize(
    ("path", "by", "comes_to"),
    [
        ("*.jsonl", {"RUN_TYPE": "scheduled"}, "skipped"),
        pytest.param("*.jsonl", {"RUN_TYPE": "asset_triggered"}, "skipped", marks=pytest.mark.long),
        pytest.param("*.jsonl", {"RUN_TYPE": "manual"}, "went on", marks=pytest.mark.long),
        ("{{ ds }}.jsonl", {"RUN_TYPE": "scheduled"}, "went on"),
        pytest.param("{{ ds }}.jsonl", {"RUN_TYPE": "backfill"}, "went on", marks=pytest.mark.long),
    ],
)
def test_a_run_beside_a_live_load_of_its_file_is_skipped_only_if_a_later_run_loads_what_is_left(
    task, live, path, by, comes_to
):
    live(path)

    assert task(TASK="plan", **by)[-1] == comes_to


@pytest.fixture
def live(engine, tmp_path):
    """Another load that has claimed the only file."""

    def claim(path):
        file = tmp_path / "readings.yaml"
        file.write_text(file.read_text().replace("*.jsonl", path))
        (tmp_path / "landing" / "2026-03-01.jsonl").write_text('{"n": 1}\n')
        ledger = PostgresLedger(engine)
        ledger.declare(pipeline_with_declaration(read_pipeline(file, offered={"ds": "2026-03-01"})))
        producer_id = ledger.register("readings", [("2026-03-01.jsonl", 1)])["2026-03-01.jsonl", 1]
        session = ledger.open_session("readings", planner_of(Batch("live")))
        ledger.claim(session, {producer_id: SpanSet.of((0, 9))}, batch=Batch("live"), lease_s=600)

    return claim


def test_a_run_that_loaded_all_but_what_a_kept_batch_holds_is_not_a_success(task, dsn, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    keep(dsn, tmp_path, "other")
    (tmp_path / "landing" / "b.jsonl").write_text('{"n": 2}\n')
    keep(dsn, tmp_path, "r", publishes=True)

    (said,) = task(TASK="report", RUN_TYPE="scheduled")[-1:]

    assert execute(dsn, "SELECT n FROM readings") == [(2,)]
    assert said.startswith(
        "AirflowFailException False other runs or batches hold these files: a.jsonl: batch other is "
    )


@pytest.mark.parametrize("run_type", ["manual", pytest.param("scheduled", marks=pytest.mark.long)])
def test_a_file_that_is_free_again_is_left_to_the_next_run_only_if_there_is_one(task, dsn, tmp_path, run_type):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    keep(dsn, tmp_path, "other")
    (tmp_path / "landing" / "b.jsonl").write_text('{"n": 2}\n')
    held = keep(dsn, tmp_path, "r", publishes=True).held
    execute(dsn, "UPDATE onceload.delivery SET deadline_at = clock_timestamp() WHERE stage IS NOT NULL")

    (said,) = task(TASK="report", RUN_TYPE=run_type, PUSHED=json.dumps({"held": [held]}))[-1:]

    refused = "AirflowFailException False other runs or batches hold these files: a.jsonl: batch other is staged but "
    assert said.startswith(refused if run_type == "manual" else "went on")


@pytest.mark.long
def test_a_stage_names_what_holds_the_files_that_it_leaves_out(task, dsn, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    keep(dsn, tmp_path, "other")
    (tmp_path / "landing" / "b.jsonl").write_text('{"n": 2}\n')

    pushed, went_on = task(TASK="stage")[-2:]

    assert pushed.startswith("pushed {'key': 'held', 'value': 'a.jsonl: batch other is staged but ")
    assert went_on == "went on"


@pytest.mark.parametrize("run_id", ["-x", "--help"])
@pytest.mark.long
def test_a_run_whose_id_begins_with_a_hyphen_loads(task, dsn, tmp_path, run_id):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')

    assert task(RUN_ID=run_id)[-1] == "went on"
    assert execute(dsn, "SELECT n FROM readings") == [(1,)]


@pytest.mark.long
def test_rows_that_the_target_refuses_fail_a_task_for_good_without_their_values_in_its_log(task, dsn, tmp_path):
    staged = (tmp_path / "readings.yaml").read_text().replace("publish: direct", "publish: staged")
    (tmp_path / "readings.yaml").write_text(staged)
    (tmp_path / "landing" / "a.jsonl").write_text(f'{{"n": {_VALUE}}}\n')
    task(TASK="stage")
    execute(dsn, "ALTER TABLE readings ADD CONSTRAINT small CHECK (n < 10)")

    (said,) = task(TASK="publish")[-1:]

    assert said.startswith("AirflowFailException False pipeline readings: ")
    assert 'violates check constraint "small"' in said
    assert execute(dsn, "SELECT n FROM readings") == []


def test_a_load_whose_command_line_is_refused_is_not_tried_again(task):
    (said,) = task(REFUSED="yes")[-1:]

    assert said.startswith("AirflowFailException False The load was refused before it began, and nothing was loaded: ")
