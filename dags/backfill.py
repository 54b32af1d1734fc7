"""The DAG `backfill`: load missing days or files of one pipeline, or reload them (airflow DAG)."""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param

from onceload_airflow.by_hand import DEFAULTS, PIPELINES, mode_of_any_param, pipeline_param
from onceload_airflow.ingest import differences_param, files_param
from onceload_airflow.recovery import ChooseRuns, runs_of

_ABOUT = """Starts a run of `ingest__<pipeline>` for each day of a range, or one run if the path contains no day.

Mode `missing` loads only records that are not loaded yet, so it is safe to repeat. Mode `replace` deletes the rows of
each file and loads it again, in one transaction: use it for rewritten files or damaged rows.
"""
_DAY = {"type": ["null", "string"], "format": "date"}

with DAG(
    "backfill",
    description="Load missing days or files of a pipeline, or reload them",
    doc_md=_ABOUT,
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args=DEFAULTS,
    params={
        "pipeline": pipeline_param(),
        "mode": mode_of_any_param(),
        "accept_differences": differences_param(),
        "first_day": Param(None, **_DAY, description="The first day, if the pipeline's path contains one."),
        "last_day": Param(None, **_DAY, description="The last day (inclusive)."),
        "files": files_param(),
    },
    tags=["onceload", "recovery"],
):
    choose = ChooseRuns(
        task_id="choose",
        pipelines=PIPELINES,
        doc_md="Lists the runs to start. Fails if the pipeline does not allow the choice.",
    )
    runs_of(
        choose,
        task_id="load",
        doc_md="Starts a run of the pipeline's own DAG, and waits until it ends. The grid of that DAG shows its steps.",
    )
