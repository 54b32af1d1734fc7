"""What the DAGs share that people start: which pipelines there are, and who owns them."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Param

from onceload.pipeline_file import GIVEN, PipelineFileRefused, find_pipelines, read_pipeline
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
    """One of the pipelines of the folder; a broken file is told by its own DAG."""
    names = []
    for path in find_pipelines(Path(PIPELINES)) if Path(PIPELINES).is_dir() else ():
        try:
            names.append(read_pipeline(path, offered=dict.fromkeys(GIVEN, "0")).name)
        except PipelineFileRefused:
            continue
    return Param(names[0] if names else "", type="string", enum=names or [""], description="Which pipeline.")
