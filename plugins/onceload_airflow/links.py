"""Buttons on a task's page that lead to the console; Airflow creates them when a task ends, however it ends."""

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from airflow.sdk import BaseOperatorLink

from onceload.pipeline_file import read_pipeline
from onceload.placeholders import GIVEN
from onceload_airflow.versions import conf

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.types import TaskInstanceKey


class LedgerLink(BaseOperatorLink):
    """The page with the commits of the run."""

    name = "Ledger position"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        return _address(operator, ti_key)


class DataDocsLink(BaseOperatorLink):
    """The page with the audit results of the run."""

    name = "Data Docs"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        return f"{_address(operator, ti_key)}#audits"


class SparkLink(BaseOperatorLink):
    """The pages of Spark that show the jobs of the load; Airflow shows no button without an address."""

    name = "Spark"

    def get_link(self, operator: "BaseOperator", *, ti_key: "TaskInstanceKey") -> str:
        del ti_key
        return str(getattr(operator, "spark_ui", ""))


def _address(operator: Any, ti_key: "TaskInstanceKey") -> str:  # noqa: ANN401 - one of ours.
    pipeline = read_pipeline(Path(operator.pipeline_file), offered=dict.fromkeys(GIVEN, "0")).name
    return console_page("run", pipeline=pipeline, batch=ti_key.run_id)


def console_page(page: str, **query: str) -> str:
    """The address of a page of the console."""
    base = str(conf.get("api", "base_url", fallback="")).rstrip("/")
    return f"{base}/onceload/{page}?{urlencode(query)}"
