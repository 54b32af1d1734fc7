"""The DAG `maintain`: hourly upkeep (airflow DAG)."""

from datetime import UTC, datetime

from airflow.sdk import DAG

from onceload_airflow.by_hand import DEFAULTS
from onceload_airflow.upkeep import Maintain

with DAG(
    "maintain",
    description="Delete what no load needs any more",
    doc_md="Deletes sessions of old batches, old audits and their pages, business ids and idle producers beyond their "
    "window, and unused staging tables. It only frees space: loads do not depend on it.",
    schedule="17 * * * *",
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["onceload", "upkeep"],
):
    Maintain(task_id="maintain", doc_md="Safe at any time, also several times at once.")
