"""The DAG of one pipeline file: plan → load → audit → publish → report. Parsing it asks nobody but the file."""

import hashlib
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import DAG, Asset, AssetWatcher, Param

from onceload.contradictions import may_choose, may_replace
from onceload.pipeline_file import GIVEN, placeholders, read_pipeline
from onceload_airflow.alerts import deadline, notifiers, tell_failure
from onceload_airflow.arrivals import Arrivals
from onceload_airflow.operators import MISSING, MODES, Audit, Load, Plan, Publish, Report
from spark_jobs.files.addresses import shown, split_address
from spark_jobs.pipeline.declared import ON_ARRIVAL, Declared

_DEFAULTS: dict[str, Any] = {
    "owner": "onceload",
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(hours=6),
    "on_failure_callback": tell_failure,
}
_ABOUT = """Loads `{source}` into `{target}`, exactly once: from `{file}`.

Every run loads whatever is new, and nothing twice: clearing a task, running it again, two runs at once and a backfill
of what is in already are all harmless. A run that finds nothing new skips its other tasks.
"""
_PLAN = "What is new? Asks the source and the ledger, in a second, without Spark. Nothing new: the rest is skipped."
_STAGE = "Spark reads what is new, and stages it where nobody sees it. Tried again, it begins anew and stages it once."
_LOAD = "Spark reads what is new; each chunk commits itself, rows and proof in one transaction."
_AUDIT = "Asks the suite about the staged rows. A critical expectation that fails stops the run: nothing is published."
_PUBLISH = "One commit: all rows of the batch, and the proof of what was consumed. A second call changes nothing."
_REPORT = (
    "What has come of the run, as the ledger says; an asset event carries the numbers. Fails if files need a person."
)


def dag_of(path: Path) -> DAG:
    """What a pipeline file declares, as a DAG; a broken one says which line to mend, and breaks no other."""
    declared = read_pipeline(path, offered={name: f"<{name}>" for name in GIVEN})
    table = f"{declared.target.schema}.{declared.target.table}"
    # A setting that is wrong is found here, and not when there is something to tell.
    notifiers(os.environ)
    with DAG(
        dag_id=dag_id_of(declared.name),
        description=f"Load {declared.name} into {table}, exactly once",
        doc_md=_ABOUT.format(source=shown(declared.source.path), target=table, file=path.name),
        schedule=_news_of(declared, path) if declared.schedule == ON_ARRIVAL else declared.schedule,
        start_date=datetime(2000, 1, 1, tzinfo=UTC),
        catchup=False,
        max_active_runs=1,
        deadline=deadline(os.environ),
        default_args=_DEFAULTS,
        params=_params(declared, path),
        tags=["onceload", "ingest"],
    ) as dag:
        of_file: dict[str, Any] = {"pipeline_file": str(path)}
        # Of a table that two pipelines load there is one asset, and of files that two read as well.
        files, rows = Asset(_address_of(declared)), Asset(name=table, uri=f"onceload://tables/{quote(table)}")
        plan = Plan(task_id="plan", doc_md=_PLAN, **of_file)
        load = Load(
            task_id="load", is_direct=declared.is_direct, doc_md=_LOAD if declared.is_direct else _STAGE, **of_file
        )
        report = Report(task_id="report", inlets=[files], outlet=rows, doc_md=_REPORT, **of_file)
        if declared.is_direct:
            plan >> load >> report
        else:
            publish = Publish(task_id="publish", doc_md=_PUBLISH, **of_file)
            audited = [Audit(task_id="audit", doc_md=_AUDIT, **of_file)] if declared.suite else []
            last: Any = plan >> load
            for step in (*audited, publish, report):
                last = last >> step
    return dag


def _news_of(declared: Declared, path: Path) -> Asset:
    """Something that the triggerer looks for, and that is no one else's."""
    watcher = AssetWatcher(name=f"arrivals of {declared.name}", trigger=Arrivals(pipeline_file=str(path)))
    return Asset(name=f"news of {declared.name}", uri=f"onceload://news/{quote(declared.name)}", watchers=[watcher])


def _address_of(declared: Declared) -> str:
    """Where the files are, in the words of lineage."""
    scheme, path = split_address(shown(declared.source.path))
    return f"{scheme}{quote(path, safe='/*:')}" if scheme else f"file://{quote(str(Path(path).absolute()), safe='/*')}"


def _params(declared: Declared, path: Path) -> dict[str, Param]:
    """What a run that people start may be told; one on schedule loads all that is new."""
    params = {}
    if set(placeholders(path)) & set(GIVEN):
        params["date"] = Param(
            None,
            type=["null", "string"],
            format="date",
            description="The day that {{ ds }} stands for; left out, the day of the run.",
        )
    if may_choose(declared):
        params["files"] = files_param()
    if may_replace(declared):
        params["mode"] = mode_param()
        params["accept_differences"] = differences_param()
    return params


def files_param() -> Param:
    return Param(
        [],
        type="array",
        items={"type": "string"},
        description="Names below the source's root, or patterns such as 2026-03-*/*.csv; none means all.",
    )


def mode_param() -> Param:
    return Param(
        MISSING,
        type="string",
        enum=list(MODES),
        description="missing: load what is not in yet. replace: load anew what is in, in place of its rows, in one "
        "commit; files that are gone keep their rows.",
    )


def differences_param() -> Param:
    return Param(
        default=False,
        type="boolean",
        description="With mode replace: replace a file's old rows even if there are more or fewer of them than were "
        "loaded. Run `onceload verify` first.",
    )


def dag_id_of(pipeline: str) -> str:
    """A name that Airflow takes; what has to be changed says so, as two names may come to look alike."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", pipeline)
    short = "" if plain == pipeline else f"_{hashlib.sha256(pipeline.encode()).hexdigest()[:8]}"
    return f"ingest__{plain}{short}"
