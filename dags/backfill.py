"""Days, or files, of one pipeline: load what is missing, or load them anew: an airflow DAG."""

from datetime import UTC, datetime

from airflow.sdk import DAG, Param
from onceload_airflow.by_hand import DEFAULTS, PIPELINES, pipeline_param
from onceload_airflow.ingest import differences_param, files_param, mode_param
from onceload_airflow.recovery import ChooseRuns, runs_of

_ABOUT = """Starts a run of `ingest__<pipeline>` for each day of a range, or one run where its path has no day in it.

With mode `missing` each loads what is not in yet, so that doing it twice is the same as once. With `replace` the rows
of each file go, and come again, in one commit: for files that were written anew, or rows that somebody damaged.
"""
_DAY = {"type": ["null", "string"], "format": "date"}

with DAG(
    "backfill",
    description="Load days or files of a pipeline: what is missing, or anew",
    doc_md=_ABOUT,
    schedule=None,
    start_date=datetime(2000, 1, 1, tzinfo=UTC),
    catchup=False,
    default_args=DEFAULTS,
    params={
        "pipeline": pipeline_param(),
        "mode": mode_param(),
        "accept_differences": differences_param(),
        "first_day": Param(None, **_DAY, description="The first day, where the pipeline's path has one in it."),
        "last_day": Param(None, **_DAY, description="The last day; it is loaded as well."),
        "files": files_param(),
    },
    tags=["onceload", "recovery"],
):
    choose = ChooseRuns(
        task_id="choose", pipelines=PIPELINES, doc_md="Which runs load it; refuses what that pipeline cannot do."
    )
    runs_of(
        choose,
        task_id="load",
        doc_md="One run of the pipeline's own DAG, whose grid shows its steps; this waits for its end.",
    )
