"""Shared settings of the DAGs that people start by hand."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Param

from onceload.pipeline_file import PipelineFileRefused, find_pipelines, read_pipeline
from onceload.placeholders import GIVEN
from onceload_airflow.alerts import tell_failure

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
    names = []
    for path in find_pipelines(Path(PIPELINES)) if Path(PIPELINES).is_dir() else ():
        try:
            names.append(read_pipeline(path, offered=dict.fromkeys(GIVEN, "0")).name)
        except PipelineFileRefused:
            continue
    return Param(names[0] if names else "", type="string", enum=names or [""], description="The pipeline.")
