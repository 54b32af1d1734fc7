"""Upkeep, every hour: an airflow DAG."""

from datetime import UTC, datetime

from airflow.sdk import DAG
from onceload_airflow.by_hand import DEFAULTS
from onceload_airflow.upkeep import Maintain

with DAG(
    "maintain",
    description="Let go of what has ended",
    doc_md="Sessions of old batches, old audits and their pages, days of business ids and producers beyond their "
    "window, stages that nobody keeps. "
    "Nothing depends on it but the room that it frees.",
    schedule="17 * * * *",
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    default_args=DEFAULTS,
    tags=["onceload", "upkeep"],
):
    Maintain(task_id="maintain", doc_md="May be called at any time, by several at once, and never.")
