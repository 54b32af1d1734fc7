"""Runs of a pipeline under Airflow, each task as Airflow runs it, with a real Spark and a real Postgres."""

import json
import shutil
import socket
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest

from onceload import schema
from onceload.pipeline_file import read_pipeline
from onceload_core.names import Batch
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.batches import planner_of
from onceload_core.postgres.pausing import pause, resume
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from tests.dags.stand import SPARK, Airflow
from tests.loads.conftest import InThisProcess
from tests.object_store import KEY, object_store
from tests.object_store import SECRET as SECRET_OF_THE_STORE
from tests.servers import execute

SECRET = "very-secret-9317"
PIPELINE = """\
pipeline: readings
source: {{path: "{folder}/{{{{ ds }}}}/*.jsonl", format: jsonl, sealed: always}}
columns: {{n: bigint not null, amount: "numeric(12,2)"}}
target: {{table: public.readings}}
quality: {{suite: suite.yaml}}
"""
SUITE = """\
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: amount, min_value: 0}
"""


@pytest.fixture
def airflow(tmp_path, dsn, airflow_database):
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "readings.yaml").write_text(PIPELINE.format(folder=tmp_path / "landing"))
    (pipelines / "suite.yaml").write_text(SUITE)
    (tmp_path / "landing").mkdir()
    # The server of these tests asks for no password, so that any is right.
    with_password = dsn.replace("postgresql://postgres@", f"postgresql://postgres:{SECRET}@")
    assert SECRET in with_password
    airflow = Airflow(home=tmp_path / "airflow", pipelines=pipelines, dsn=with_password)
    airflow.home.mkdir()
    shutil.copy(airflow_database, airflow.home)
    return airflow


def write(tmp_path, day, *lines):
    folder = tmp_path / "landing" / day
    folder.mkdir(exist_ok=True)
    (folder / f"{len(list(folder.iterdir()))}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def run(airflow, day, **environment):
    # All events of OpenLineage, in a file.
    file = {"type": "file", "log_file_path": str(airflow.home / "lineage"), "append": True}
    told = {
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(file),
        "AIRFLOW__OPENLINEAGE__INCLUDE_FULL_TASK_INFO": "True",
    }
    return airflow.call("dags", "test", "ingest__readings", day, **told, **environment)


def states(airflow):
    """The states of the tasks of each run, oldest first."""
    with closing(sqlite3.connect(airflow.home / "airflow.db")) as connection:
        rows = connection.execute(
            "SELECT run_id, task_id, task_instance.state FROM task_instance JOIN dag_run USING (dag_id, run_id)"
            " ORDER BY dag_run.id"
        ).fetchall()
    found: dict[str, dict[str, str]] = {}
    for run_id, task_id, state in rows:
        found.setdefault(run_id, {})[task_id] = state
    return list(found.values())


STEPS = ("plan", "load", "audit", "publish", "report")
#: The first three are logged by the task load, the others by audit and publish.
EVENTS = ("load_started", "batch_staged", "load_ended", "batch_audited", "batch_published")


@pytest.mark.smoke
def test_a_run_loads_what_is_new_once_and_the_next_skips(airflow, dsn, tmp_path):
    write(tmp_path, "2026-03-01", '{"n": 1, "amount": "1.5", "more": 1}', '{"n": 2, "amount": "2.5"}', "no json")
    write(tmp_path, "2026-03-02", '{"n": 3, "amount": "3.5"}')

    # A second run of the same day finds nothing new.
    said = [run(airflow, at) for at in ("2026-03-01", "2026-03-01T12:00:00")]

    assert states(airflow) == [
        dict.fromkeys(STEPS, "success"),
        {"plan": "success", **dict.fromkeys(STEPS[1:], "skipped")},
    ]
    assert execute(dsn, "SELECT n FROM readings ORDER BY n") == [(1,), (2,)]
    assert execute(dsn, "SELECT loaded, quarantined, dag_id, try_number FROM onceload.ledger ORDER BY position") == [
        (2, 1, "ingest__readings", 1)
    ]
    assert_lineage(airflow, tmp_path, [(1, 2, 1)])
    shown = [each.stdout + each.stderr for each in said]
    assert all(shown[0].count(f"{each} pipeline=readings ") == 1 for each in EVENTS), shown[0]
    assert "'ignored_fields': {'more': 1}" in shown[0]
    assert not any(SECRET in each for each in shown)
    everywhere = (path for path in tmp_path.rglob("*") if path.is_file())
    assert [path for path in everywhere if SECRET.encode() in path.read_bytes()] == []


@pytest.mark.long(minutes=3)
def test_each_day_is_loaded_by_its_own_run_whose_lineage_is_its_own(airflow, dsn, tmp_path):
    write(tmp_path, "2026-03-01", '{"n": 1, "amount": "1.5"}', '{"n": 2, "amount": "2.5"}', "no json")
    write(tmp_path, "2026-03-02", '{"n": 3, "amount": "3.5"}')

    for day in ("2026-03-01", "2026-03-02"):
        run(airflow, day)

    assert states(airflow) == [dict.fromkeys(STEPS, "success")] * 2
    assert execute(dsn, "SELECT n FROM readings ORDER BY n") == [(1,), (2,), (3,)]
    assert_lineage(airflow, tmp_path, [(1, 2, 1), (2, 1, 0)])


@pytest.mark.long
def test_a_run_of_a_paused_pipeline_is_skipped_and_reports_the_pause(airflow, dsn, tmp_path):
    write(tmp_path, "2026-03-01", '{"n": 1, "amount": "1.5"}')
    engine = connect(LedgerSettings(dsn=dsn))
    PostgresLedger(engine).declare(Pipeline(name="readings"))
    pause(engine, "readings", by="ann", why="a repair")

    during = run(airflow, "2026-03-01")
    resume(engine, "readings", by="ann")
    run(airflow, "2026-03-01T12:00:00")
    engine.dispose()

    assert states(airflow) == [
        {"plan": "success", **dict.fromkeys(STEPS[1:], "skipped")},
        dict.fromkeys(STEPS, "success"),
    ]
    assert "pipeline readings is paused by ann at " in during.stdout + during.stderr
    assert execute(dsn, "SELECT n FROM readings") == [(1,)]


@pytest.mark.long
def test_a_run_is_submitted_to_the_spark_of_the_connection_and_without_one_runs_in_its_worker(airflow, dsn, tmp_path):
    write(tmp_path, "2026-03-01", '{"n": 1, "amount": "1.5"}', '{"n": 2, "amount": "2.5"}')
    write(tmp_path, "2026-03-02", '{"n": 3, "amount": "3.5"}')
    without = run(airflow, "2026-03-01")
    with (airflow.pipelines / "readings.yaml").open("a") as file:
        file.write("transform: SELECT * FROM records WHERE n > 0\n")

    submitted = run(airflow, "2026-03-02", **SPARK)

    assert execute(dsn, "SELECT n, CAST(amount AS text) FROM readings ORDER BY n") == [
        (1, "1.50"),
        (2, "2.50"),
        (3, "3.50"),
    ]
    assert ["spark-submit" in each.stdout + each.stderr for each in (without, submitted)] == [False, True]


@pytest.mark.long
def test_files_in_a_store_are_loaded_with_what_its_connection_says_and_no_secret_is_shown(airflow, dsn, tmp_path):
    file = airflow.pipelines / "readings.yaml"
    file.write_text(file.read_text().replace(str(tmp_path / "landing"), "s3://landing"))
    with object_store(tmp_path / "store.log") as store:
        files = store.files()
        files.mkdir("landing")
        files.pipe("landing/2026-03-01/a.jsonl", b'{"n": 1, "amount": "1.5"}\n')
        connection = {
            "conn_type": "aws",
            "login": KEY,
            "password": SECRET_OF_THE_STORE,
            "extra": {"endpoint_url": store.address, "region_name": "us-east-1"},
        }

        said = airflow.call(
            "dags", "test", "ingest__readings", "2026-03-01", AIRFLOW_CONN_ONCELOAD_STORE=json.dumps(connection)
        )

    assert states(airflow) == [dict.fromkeys(STEPS, "success")], said.stdout + said.stderr
    assert execute(dsn, "SELECT n FROM readings") == [(1,)]
    assert SECRET_OF_THE_STORE not in said.stdout + said.stderr
    everywhere = (path for path in tmp_path.rglob("*") if path.is_file())
    assert [path for path in everywhere if SECRET_OF_THE_STORE.encode() in path.read_bytes()] == []


def assert_lineage(airflow, tmp_path, commits):
    """Runs that loaded something name what they read, and where the rows are."""
    told = [json.loads(line) for line in (airflow.home / "lineage").read_text().splitlines()]
    is_told = ("ingest__readings.report", "COMPLETE")
    reports = [each for each in told if (each["job"]["name"], each["eventType"]) == is_told]
    ((files,), (rows,)) = (reports[0]["inputs"], reports[0]["outputs"])
    read, written = files["inputFacets"]["inputStatistics"], rows["outputFacets"]["outputStatistics"]
    assert [each["inputs"][0]["name"] for each in reports] == [str(tmp_path / "landing")] * len(commits)
    assert (files["namespace"], read["rowCount"], written["rowCount"]) == ("file", 3, 2)
    assert rows["namespace"] == f"postgres://{socket.gethostname()}:5432"
    assert rows["name"].endswith(".public.readings")
    fields = [(each["name"], each["type"]) for each in rows["facets"]["schema"]["fields"]]
    assert fields == [("n", "bigint"), ("amount", "numeric(12,2)")]
    facets = [each["run"]["facets"]["onceload_ledger"] for each in reports]
    assert [(each["position"], each["loaded"], each["quarantined"]) for each in facets] == commits


@pytest.mark.long
def test_a_run_that_fails_its_audit_publishes_nothing_and_shows_the_rows(airflow, dsn, tmp_path):
    write(tmp_path, "2026-03-01", '{"n": 1, "amount": "1.5"}', '{"n": 2, "amount": "-2.5"}')

    done = run(airflow, "2026-03-01")

    assert states(airflow) == [
        {
            "plan": "success",
            "load": "success",
            "audit": "failed",
            "publish": "upstream_failed",
            "report": "upstream_failed",
        }
    ]
    assert "1 of 2 are unexpected; such as 2026-03-01/0.jsonl 26: -2.5" in done.stdout + done.stderr
    assert execute(dsn, "SELECT count(*) FROM readings") == [(0,)]
    assert execute(dsn, "SELECT passed FROM onceload.audit") == [(False,)]


@pytest.mark.long
def test_a_load_that_fails_says_why_in_its_own_words(airflow, dsn, tmp_path):
    file = airflow.pipelines / "readings.yaml"
    file.write_text(file.read_text().replace("suite: suite.yaml", "quarantined_max: 0"))
    write(tmp_path, "2026-03-01", '{"n": 1, "amount": "1.5"}', "no json")

    done = run(airflow, "2026-03-01")

    assert states(airflow)[0]["load"] == "failed"
    failed = [line for line in (done.stdout + done.stderr).splitlines() if "AirflowFailException" in line]
    assert any("pipeline readings" in line and "1 of 2" in line for line in failed), failed
    assert execute(dsn, "SELECT count(*) FROM readings") == [(0,)]


@pytest.mark.long
def test_a_run_that_comes_during_an_upgrade_waits_for_its_end_and_needs_no_second_try(airflow, dsn):
    execute(dsn, "UPDATE onceload.schema_version SET version_num = '9999', compatible_from = '9999'")
    with ThreadPoolExecutor() as beside:
        running = beside.submit(run, airflow, "2026-03-01")
        while plan_and_its_try(airflow) != [("up_for_reschedule", 1)]:
            assert not running.done(), running.result().stderr
            time.sleep(0.1)
        execute(dsn, f"UPDATE onceload.schema_version SET version_num = '{schema.head()}', compatible_from = '0001'")

    assert plan_and_its_try(airflow) == [("success", 1)]
    assert states(airflow)[0]["report"] == "skipped"


def plan_and_its_try(airflow):
    with closing(sqlite3.connect(airflow.home / "airflow.db")) as connection:
        return connection.execute("SELECT state, try_number FROM task_instance WHERE task_id = 'plan'").fetchall()


_KILL = """
import os
from onceload_airflow.operators import Load
Load(task_id="load", pipeline_file=os.environ["FILE"], publishes=False).on_kill()
"""


@pytest.mark.long
def test_a_try_that_is_killed_late_leaves_a_later_one_alone(airflow, dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="readings"))
    later = ledger.open_session("readings", planner_of(Batch("run")))

    file = str(airflow.pipelines / "readings.yaml")
    killed = airflow.python(_KILL, FILE=file, AIRFLOW_CTX_DAG_RUN_ID="run", ONCELOAD_HOME=str(airflow.home))

    assert killed.returncode == 0, killed.stderr
    # It would be refused, had another session taken over.
    ledger.renew(later, lease_s=60)
    engine.dispose()


_PUBLISH = """
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException
from onceload_airflow.operators import Publish

publish = Publish(task_id="publish", pipeline_file=os.environ["FILE"])
at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)
context = {"run_id": "run", "dag_run": run}
try:
    publish.execute(context)
except AirflowFailException as error:
    print(error)
"""


@pytest.mark.long
def test_a_batch_that_is_no_longer_staged_is_not_tried_again(airflow, tmp_path):
    write(tmp_path, "2026-03-01", '{"n": 1, "amount": "1.5"}')

    said = airflow.python(_PUBLISH, FILE=str(airflow.pipelines / "readings.yaml"), ONCELOAD_HOME=str(airflow.home))

    assert "batch run cannot be published" in said.stdout, said.stderr


_APPLY = """
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.sdk.exceptions import AirflowFailException
from onceload_airflow import recovery

at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)
said = {"position": 0, "seen": 3}
ti = SimpleNamespace(
    xcom_push=lambda key, value: said.update({key: value}),
    xcom_pull=lambda task_ids, key: said.get(key),
    get_dag=lambda dag_id: SimpleNamespace(is_paused=False),
)
params = {"pipeline": "readings", "what": "rewind", "expected_position": None, "accept_differences": False}
context = {"params": params, "dag_run": run, "ti": ti, "run_id": "once", "dag": SimpleNamespace(dag_id="recover")}
recovery._DAYS_MAX = 1
params |= {"position": 0, "expected_position": 1}
try:
    recovery.Look(task_id="look", pipelines=os.environ["FOLDER"]).execute(context)
except AirflowFailException as error:
    print(error)
params |= {"position": None, "expected_position": None}
print(recovery.Apply(task_id="apply", pipelines=os.environ["FOLDER"]).execute(context))
try:
    recovery.Conclude(task_id="conclude", pipelines=os.environ["FOLDER"]).execute(context)
except AirflowFailException as error:
    print(error)
"""


@pytest.mark.long
def test_days_for_which_there_are_no_runs_are_reported(airflow, dsn, tmp_path):
    for day in ("2026-03-01", "2026-03-02", "undated"):
        write(tmp_path, day, '{"n": 1, "amount": "1.5"}')
        declared = replace(read_pipeline(airflow.pipelines / "readings.yaml", offered={"ds": day}), suite=None)
        load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=Batch(day), executor=InThisProcess())

    said = airflow.python(_APPLY, FOLDER=str(airflow.pipelines), ONCELOAD_HOME=str(airflow.home))

    runs = "[{'trigger_run_id': 'once__recover__2026-03-01', 'conf': {'date': '2026-03-01'}}]"
    assert "found position 3: something has committed since position 1. Nothing was changed" in said.stdout, said.stderr
    assert runs in said.stdout.splitlines(), said.stderr
    assert "these are not loaded again yet: 1 days from 2026-03-02 to 2026-03-02" in said.stdout
    assert (
        "; and files whose names belong to no day of source.path: undated/0.jsonl (run `onceload load`" in said.stdout
    )
    assert execute(dsn, "SELECT count(*) FROM readings") == [(0,)]


_ASK_NOBODY = """
import os
from datetime import timedelta
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from onceload_airflow.connections import ConnectionNotFound
from onceload_airflow.hook import OnceloadHook
from onceload_airflow.recovery import Approve
from onceload_airflow.spark_submit import where_of

for asked, refused in (
    (lambda: Approve(task_id="a", subject="s", response_timeout=timedelta(days=1)).execute_complete(
        {}, {"error": "too late.", "error_type": "timeout"}), AirflowFailException),
    (lambda: where_of("spark", "none"), AirflowException),
    (lambda: OnceloadHook().opened().__enter__(), ConnectionNotFound),
):
    try:
        asked()
    except Exception as error:
        print(type(error) is refused, error)
"""


@pytest.mark.long
def test_a_server_that_does_not_answer_is_not_asked_again_and_a_missing_connection_is(airflow):
    said = airflow.python(_ASK_NOBODY, ONCELOAD_DSN="")

    answers = [line for line in said.stdout.splitlines() if line.startswith(("True", "False"))]
    assert [answer.partition(" ")[0] for answer in answers] == ["True"] * 3, said.stdout + said.stderr
    assert "Create it (airflow connections add onceload --conn-type onceload ...), or set ONCELOAD_DSN" in answers[2]
    assert not (airflow.home / "onceload").exists()


_TRIED_AGAIN = """
import sys
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ErrorType, TaskDeferralError
from airflow.sdk.execution_time.comms import ErrorResponse
sys.path.insert(0, "dags")
from recover import reload

for error in (
    AirflowException("ingest__rows failed with failed states"),
    AirflowRuntimeError(ErrorResponse(error=ErrorType.API_SERVER_ERROR)),
    TaskDeferralError("the triggerer went"),
):
    print(reload.retry_policy.evaluate(error, try_number=1, max_tries=reload.retries).action.value)
"""


@pytest.mark.long
def test_a_run_that_cannot_be_started_just_now_is_tried_again_and_one_that_failed_is_not(airflow):
    said = airflow.python(_TRIED_AGAIN, ONCELOAD_PIPELINES=str(airflow.pipelines))

    assert said.stdout.splitlines()[-3:] == ["fail", "default", "default"], said.stderr


_ENGINES = """
import json, os
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.providers.standard.hooks.subprocess import SubprocessHook
from onceload import Pipeline, Report
from onceload_airflow.operators import Load

at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)

def run_command(self, command, *, env, cwd):
    program = os.path.basename(command[0]).partition(".")[0].rstrip("0123456789")
    (engine,) = (each.removeprefix("--engine=") for each in command if each.startswith("--engine="))
    print("by", program, engine, env.get("ONCELOAD_SPARK"))
    return SimpleNamespace(exit_code=0)

def load(self, *, engine, remote, **others):
    print("by this process", engine, remote, self.settings.spark)
    return Report(pipeline=self.name, batch="r", position=0)

SubprocessHook.run_command = run_command
Pipeline.load = load
connections = {
    "spark": {"conn_type": "spark", "host": "spark://elsewhere:7077"},
    "connect": {"conn_type": "spark_connect", "host": "sc://elsewhere", "login": "ann", "password": "a;b"},
}
for engine, connection, spark in (
    ("auto", None, None),
    ("auto", "spark", None),
    ("local", "spark", None),
    ("auto", "connect", None),
    ("auto", "connect", "sc://here:15002"),
    ("local", None, "sc://here:15002"),
):
    wanted = {
        "AIRFLOW_CONN_ONCELOAD_SPARK": json.dumps(connections[connection]) if connection else None,
        "ONCELOAD_SPARK": spark,
    }
    for name, value in wanted.items():
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value
    load = Load(task_id="l", pipeline_file=os.environ["FILE"], publishes=True, engine=engine)
    load.execute({"dag_run": run, "params": {}, "run_id": "r"})
"""


@pytest.mark.long
def test_a_load_runs_on_the_spark_that_the_environment_or_the_connection_names(airflow):
    said = airflow.python(_ENGINES, FILE=str(airflow.pipelines / "readings.yaml"))

    assert [line for line in said.stdout.splitlines() if line.startswith("by")] == [
        "by this process auto None None",
        "by spark-submit spark None",
        "by this process local None None",
        "by this process auto sc://elsewhere:15002/;user_id=ann;token=a%3Bb None",
        "by this process auto None sc://here:15002",
        "by this process local None sc://here:15002",
    ], said.stderr


_ONE_PROCESS = """
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from onceload import Pipeline, Report
from onceload_airflow.hook import OnceloadHook
from onceload_airflow.operators import Load

at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)

def load(self, **how):
    print(self.settings.dsn)
    return Report(pipeline=self.name, batch="r", position=0)

Pipeline.load = load
load = Load(task_id="l", pipeline_file=os.environ["FILE"], publishes=True, engine="spark", onceload_conn_id="other")
load.execute({"dag_run": run, "params": {}, "run_id": "r"})
print(OnceloadHook().settings.dsn)
"""


@pytest.mark.long
def test_a_task_of_another_database_leads_no_later_one_of_its_process_there(airflow):
    connections = {"AIRFLOW_CONN_ONCELOAD": "postgres://two:5432/b", "AIRFLOW_CONN_OTHER": "postgres://three:5432/c"}
    file = str(airflow.pipelines / "readings.yaml")

    said = airflow.python(_ONE_PROCESS, ONCELOAD_DSN="", FILE=file, **connections)

    used = [line for line in said.stdout.splitlines() if line.startswith("postgresql:")]
    assert used == ["postgresql://three:5432/c", "postgresql://two:5432/b"], said.stderr


_WHICH_LEVEL = """
import logging, os
from pathlib import Path
from onceload.pipeline_file import read_pipeline
from onceload_airflow.hook import OnceloadHook

declared = read_pipeline(Path(os.environ["FILE"]), offered={"ds": "2026-03-01"})
for level in ("", "warning", "debug"):
    os.environ["ONCELOAD_LOG"] = level
    OnceloadHook().pipeline(declared)
    shown = logging.getLevelName(logging.getLogger("onceload").level).lower()
    print(OnceloadHook().environment()["ONCELOAD_LOG"], shown)
"""


@pytest.mark.long
def test_a_load_under_airflow_logs_at_info_unless_another_level_is_set(airflow):
    said = airflow.python(_WHICH_LEVEL, FILE=str(airflow.pipelines / "readings.yaml"))

    assert said.stdout.splitlines()[-3:] == ["info info", "warning warning", "debug debug"], said.stderr


_WHICH_DATABASE = """
from onceload_airflow.hook import OnceloadHook

for conn_id in ("onceload", "other", "none"):
    try:
        print(OnceloadHook(conn_id).settings.dsn)
    except Exception as error:
        print(error)
"""


@pytest.mark.parametrize(
    ("set_to", "usual"), [("postgresql://one/a", "postgresql://one/a"), ("", "postgresql://two:5432/b")]
)
@pytest.mark.long
def test_no_database_is_taken_in_place_of_another(airflow, set_to, usual):
    connections = {"AIRFLOW_CONN_ONCELOAD": "postgres://two:5432/b", "AIRFLOW_CONN_OTHER": "postgres://three:5432/c"}

    said = airflow.python(_WHICH_DATABASE, ONCELOAD_DSN=set_to, **connections)

    *_, first, named, missing = said.stdout.splitlines()
    assert (first, named) == (usual, "postgresql://three:5432/c"), said.stderr
    assert missing.startswith("connection none (the database) was not found in Airflow.")
    assert missing.endswith("(airflow connections add none --conn-type onceload ...)")
