"""The DAG of one pipeline file: plan → load → audit → publish → report. Parsing it reads only the file."""

import hashlib
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

from airflow.sdk import DAG, Asset, AssetWatcher, Param

from onceload.contradictions import may_choose, may_replace
from onceload.pipeline_file import read_pipeline
from onceload.placeholders import GIVEN
from onceload_airflow.alerts import deadline, notifiers, tell_failure
from onceload_airflow.arrivals import Arrivals
from onceload_airflow.asked import MISSING, MODES, is_by_day
from onceload_airflow.operators import Audit, Load, Plan, Publish, Report
from onceload_jobs.files.addresses import shown, split_address
from onceload_jobs.pipeline.declared import ON_ARRIVAL, Declared

_DEFAULTS: dict[str, Any] = {
    "owner": "onceload",
    "retries": 3,
    "retry_delay": timedelta(seconds=30),
    "retry_exponential_backoff": True,
    "max_retry_delay": timedelta(minutes=10),
    "execution_timeout": timedelta(hours=6),
    "on_failure_callback": tell_failure,
}
_ABOUT = """Loads `{source}` into `{target}`, exactly once. Pipeline file: `{file}`.

Every run loads what is new, and nothing twice. It is safe to clear a task, to run it again, to start two runs at once
and to backfill days that are already loaded. A run that finds nothing new skips its other tasks.
"""
_PLAN = "Compares the files with the ledger, in about a second. If nothing is new, or in a pause, the rest is skipped."
_STAGE = "Reads new records into a staging table; the target does not change yet. A retry starts from scratch."
_LOAD = "Reads new records and publishes them in one commit: all rows of the batch, and the receipts of their files."
_DIRECT = "Reads new records. Each chunk commits by itself: rows and receipts in one transaction."
_AUDIT = "Checks the staged rows with the suite. If a critical expectation fails, the run stops and publishes nothing."
_PUBLISH = "One commit: all rows of the batch, and the receipts of what was consumed. A second call changes nothing."
_REPORT = "The result of the run from the ledger; an asset event carries the numbers. Fails if files need a person."


def dag_of(path: Path) -> DAG:
    """The DAG of a pipeline file; a broken file reports the line to fix, and breaks no other DAG."""
    declared = read_pipeline(path, offered={name: f"<{name}>" for name in GIVEN})
    table = f"{declared.target.schema}.{declared.target.table}"
    # A wrong setting fails here, not when the first alert is sent.
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
        # Two pipelines that load the same table, or read the same files, share one asset.
        files, rows = Asset(_address_of(declared)), Asset(name=table, uri=f"onceload://tables/{quote(table)}")
        plan = Plan(task_id="plan", doc_md=_PLAN, **of_file)
        report = Report(task_id="report", inlets=[files], outlet=rows, doc_md=_REPORT, **of_file)
        if declared.suite:
            load = Load(task_id="load", publishes=False, doc_md=_STAGE, **of_file)
            audit = Audit(task_id="audit", doc_md=_AUDIT, **of_file)
            publish = Publish(task_id="publish", doc_md=_PUBLISH, **of_file)
            plan >> load >> audit >> publish >> report
        else:
            about = _DIRECT if declared.is_direct else _LOAD
            plan >> Load(task_id="load", publishes=True, doc_md=about, **of_file) >> report
    return dag


def _news_of(declared: Declared, path: Path) -> Asset:
    """The asset of a pipeline's arrivals, which the triggerer watches; no other pipeline shares it."""
    watcher = AssetWatcher(name=f"arrivals of {declared.name}", trigger=Arrivals(pipeline_file=str(path)))
    return Asset(name=f"news of {declared.name}", uri=f"onceload://news/{quote(declared.name)}", watchers=[watcher])


def _address_of(declared: Declared) -> str:
    """The URI of the files for lineage."""
    scheme, path = split_address(shown(declared.source.path))
    return f"{scheme}{quote(path, safe='/*:')}" if scheme else f"file://{quote(str(Path(path).absolute()), safe='/*')}"


def _params(declared: Declared, path: Path) -> dict[str, Param]:
    """The form of a run that people start; a scheduled run loads everything new."""
    params = {}
    if is_by_day(path):
        params["date"] = Param(
            None,
            type=["null", "string"],
            format="date",
            description="The day for {{ ds }}. Empty: the day of the run.",
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
        description="File paths below the source's root, or patterns such as 2026-03-*/*.csv. Empty: all files.",
    )


def mode_param(*, refusing: Sequence[str] = ()) -> Param:
    """The mode, with the pipelines of the form that cannot replace rows."""
    but_not = f" Not for {', '.join(refusing)}: the settings of these pipelines do not allow it." if refusing else ""
    return Param(
        MISSING,
        type="string",
        enum=list(MODES),
        description="missing: load only records that are not loaded yet. replace: reload files; their old rows are "
        f"deleted in the same transaction. Rows of files that no longer exist stay.{but_not}",
    )


def differences_param() -> Param:
    return Param(
        default=False,
        type="boolean",
        description="With mode replace: replace a file's old rows even if the target holds more or fewer of them than "
        "were loaded. Run `onceload verify` first.",
    )


def dag_id_of(pipeline: str) -> str:
    """A name that Airflow accepts; a changed name gets a hash, because two names could become the same."""
    plain = re.sub(r"[^A-Za-z0-9_.-]", "_", pipeline)
    short = "" if plain == pipeline else f"_{hashlib.sha256(pipeline.encode()).hexdigest()[:8]}"
    return f"ingest__{plain}{short}"
