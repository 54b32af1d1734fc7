"""Shared settings of the DAGs that people start by hand."""

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Param

from onceload.contradictions import may_replace
from onceload.pipeline_file import PipelineFileRefused, find_pipelines, read_pipeline
from onceload.placeholders import GIVEN
from onceload_airflow.alerts import tell_failure
from onceload_airflow.ingest import mode_param
from onceload_jobs.pipeline.declared import Declared

#: The folder of the pipeline files.
PIPELINES = os.environ.get("ONCELOAD_PIPELINES", "pipelines")
DEFAULTS: dict[str, Any] = {
    "owner": "onceload",
    "retries": 2,
    "retry_delay": timedelta(seconds=30),
    "execution_timeout": timedelta(hours=6),
    "on_failure_callback": tell_failure,
}


def pipeline_param() -> Param:
    """A choice of the pipelines in the folder; the DAG of a broken file reports its error."""
    names = [declared.name for declared in _pipelines()]
    return Param(names[0] if names else "", type="string", enum=names or [""], description="The pipeline.")


def mode_of_any_param() -> Param:
    """The mode for any pipeline of the folder: a form cannot change with the pipeline that is chosen in it."""
    refusing = [declared.name for declared in _pipelines() if not may_replace(declared)]
    return mode_param(refusing=refusing)


def _pipelines() -> Iterator[Declared]:
    for path in find_pipelines(Path(PIPELINES)) if Path(PIPELINES).is_dir() else ():
        with suppress(PipelineFileRefused):
            yield read_pipeline(path, offered=dict.fromkeys(GIVEN, "0"))
