"""A snapshot now, besides those that loads take by themselves: an airflow DAG."""

from datetime import UTC, datetime

from airflow.sdk import DAG
from onceload_airflow.by_hand import DEFAULTS, PIPELINES, pipeline_param
from onceload_airflow.upkeep import TakeSnapshot

with DAG(
    "snapshot",
    description="Keep the states of all producers as they are now",
    doc_md="Loads take snapshots by themselves, by count and by time, as the pipeline file says. This takes one more, "
    "for instance before something is tried out.",
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args=DEFAULTS,
    params={"pipeline": pipeline_param()},
    tags=["onceload", "recovery"],
):
    TakeSnapshot(task_id="snapshot", pipelines=PIPELINES, doc_md="One snapshot of a position is enough.")
