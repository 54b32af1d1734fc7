"""One DAG may load several pipelines: the report of each is about its own files."""

import pytest

from onceload.pipeline_file import read_pipeline
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from tests.dags.stand import Airflow
from tests.loads.conftest import InThisProcess

PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/{name}/*.jsonl", format: jsonl}}
columns: {{n: bigint}}
target: {{table: public.{name}}}
"""
#: Each task as Airflow starts it: a copy, with its templates filled in, which reads what others have pushed.
_RUN = """
import os
from datetime import UTC, datetime
from types import SimpleNamespace
from airflow.sdk import DAG
from onceload_airflow.operators import Load, Report

with DAG("shop") as dag:
    files = {name: "{{ params.pipelines }}/" + name + ".yaml" for name in ("customers", "orders")}
    loads = [Load(task_id="load_" + name, pipeline_file=file, publishes=True) for name, file in files.items()]
    reports = [Report(task_id="report_" + name, pipeline_file=file) for name, file in files.items()]
    for each in reports:
        loads >> each

at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(run_type="manual", logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)
pushed = {}
for task in (*loads, *reports):
    ti = SimpleNamespace(
        xcom_push=lambda key, value: pushed.update({(task.task_id, key): value}),
        xcom_pull=lambda task_ids, key: [pushed.get((each, key)) for each in task_ids],
    )
    params = {"pipelines": os.environ["ONCELOAD_PIPELINES"]}
    context = {"dag_run": run, "params": params, "run_id": "r", "ti": ti, "dag": dag}
    started = task.prepare_for_execution()
    started.render_template_fields(context)
    try:
        print(task.task_id, started.execute(context))
    except Exception as error:
        print(task.task_id, type(error).__name__, error)
"""


@pytest.fixture
def reported(tmp_path, dsn):
    """What the report of each pipeline says after a run, where a file of customers needs a person."""
    for name in ("customers", "orders"):
        (tmp_path / f"{name}.yaml").write_text(PIPELINE.format(name=name, folder=tmp_path))
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text('{"n": 1}\n')
    declared = read_pipeline(tmp_path / "customers.yaml", offered={})
    load(declared, LoadSettings(ledger=LedgerSettings(dsn=dsn)), batch=Batch("b"), executor=InThisProcess())
    (tmp_path / "customers" / "a.jsonl").write_text('{"n": 2}\n')
    (tmp_path / "customers" / "b.jsonl").write_text('{"n": 3, "city": "Ulm"}\n')
    (tmp_path / "orders" / "b.jsonl").write_text('{"n": 4, "total": 5}\n')

    done = Airflow(home=tmp_path / "airflow", pipelines=tmp_path, dsn=dsn).python(_RUN)

    assert done.returncode == 0, done.stderr
    told = (line.partition(" ") for line in done.stdout.splitlines() if line.startswith("report_"))
    return {task: said for task, _, said in told}


@pytest.mark.long
def test_a_report_is_about_the_files_and_the_fields_of_its_own_pipeline(reported):
    of_customers, of_orders = reported["report_customers"], reported["report_orders"]

    assert of_customers.startswith("AirflowFailException these files need a person: a.jsonl: ")
    assert of_orders.startswith("{'pipeline': 'orders', ")
    assert of_orders.endswith("'ignored_fields': {'total': 1}}")
