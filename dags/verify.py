"""The DAG `verify`: check that loaded data is still there and unchanged (airflow DAG)."""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from onceload_airflow.by_hand import DEFAULTS, PIPELINES, pipeline_param
from onceload_airflow.upkeep import Verify

with DAG(
    "verify",
    description="Compare files and rows with the ledger",
    doc_md="Reads the files of a pipeline again, and compares bytes and rows with the receipts. If anything differs, "
    "the task fails and its log lists the differences. It changes nothing.",
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args=DEFAULTS,
    params={
        "pipeline": pipeline_param(),
        "deep": Param(default=False, type="boolean", description="Also parse the files, and compare every value."),
    },
    tags=["onceload", "proof"],
):
    Verify(
        task_id="verify", pipelines=PIPELINES, doc_md="Fails if anything differs, and lists the differences in its log."
    )
