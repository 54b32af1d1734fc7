"""The DAG `snapshot`: take a snapshot now (airflow DAG)."""

from datetime import UTC, datetime

from airflow.sdk import DAG

from onceload_airflow.by_hand import DEFAULTS, PIPELINES, pipeline_param
from onceload_airflow.upkeep import TakeSnapshot

with DAG(
    "snapshot",
    description="Take a snapshot of the states of all producers now",
    doc_md="Loads take snapshots by themselves, as the pipeline file schedules them (`snapshot`). This DAG takes an "
    "extra one, for example before an experiment.",
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args=DEFAULTS,
    params={"pipeline": pipeline_param()},
    tags=["onceload", "recovery"],
):
    TakeSnapshot(
        task_id="snapshot", pipelines=PIPELINES, doc_md="Takes the snapshot. There is at most one per position."
    )
