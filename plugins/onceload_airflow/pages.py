"""Pages in Airflow's web UI: the commits of a run, and its audit results.

Airflow does not protect the apps of plugins. So each page requires a login and the right to read the task logs of the
pipeline's DAG, because like those it shows values of records. Everything is escaped, and no page may run a script.
"""

import base64
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import Engine

from onceload_airflow.hook import OnceloadHook
from onceload_airflow.ingest import dag_id_of
from onceload_core.errors import NotFound, OnceloadError
from onceload_core.names import Batch
from onceload_core.postgres.views import View, is_audited_elsewhere, look

_ROWS_MAX = 1000
_STYLE = (
    "body{font:14px system-ui,sans-serif;margin:1.5rem}table{border-collapse:collapse;margin:1rem 0}"
    "th,td{border:1px solid #bbb;padding:.25rem .5rem;text-align:left;vertical-align:top}"
    "th{white-space:nowrap}td{overflow-wrap:break-word;max-width:28rem}"
)
_STYLE_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_NOTHING_ELSE = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
#: Sources of the styles of Great Expectations' pages.
_STYLES = "https://unpkg.com https://maxcdn.bootstrapcdn.com https://cdnjs.cloudflare.com https://cdn.jsdelivr.net"

_A_NAME = r"^[^\x00]{1,1000}$"
Pipeline = Annotated[str, Query(pattern=_A_NAME)]
BatchName = Annotated[str, Query(alias="batch", pattern=_A_NAME)]


def may_see(request: Request, user: GetUserDep, pipeline: Pipeline) -> None:
    """Allow users who can read the logs of the pipeline's tasks."""
    requires_access_dag("GET", DagAccessEntity.TASK_LOGS, dag_id_of(pipeline))(request, user)


def make_app() -> FastAPI:
    # No OpenAPI document and no docs pages: they would be unprotected.
    app = FastAPI(dependencies=[Depends(may_see)], openapi_url=None)
    app.get("/ledger")(show_ledger)
    app.get("/audit")(show_audit)
    app.get("/docs")(show_docs)
    return app


def show_ledger(pipeline: Pipeline, batch: BatchName) -> Response:
    """The ledger entries of a batch, and their receipts."""
    with _database() as (engine, _):
        entries, receipts = (_rows(engine, view, pipeline, batch) for view in ("ledger", "receipts"))
    table = _table(entries, batch, nothing="This run has committed nothing yet.")
    return _page(f"Ledger of {pipeline}", batch, table, _table(receipts, batch))


def show_audit(pipeline: Pipeline, batch: BatchName) -> Response:
    """The audit results of a batch, the latest first."""
    with _database() as (engine, docs):
        findings = _rows(engine, "audits", pipeline, batch)
        is_there = _docs_of(engine, docs, pipeline, batch, findings) is not None
    link = f"docs?{urlencode({'pipeline': pipeline, 'batch': batch})}"
    more = f'<p><a href="{escape(link)}">The page of Great Expectations</a></p>' if is_there else ""
    table = _table(findings, batch, nothing="There is no audit of this run, or it was deleted because of its age.")
    return _page(f"Audit of {pipeline}", batch, table, more)


def show_docs(pipeline: Pipeline, batch: BatchName) -> Response:
    """The Data Docs page of Great Expectations; third-party content, so it runs in a sandbox."""
    with _database() as (engine, docs):
        page = _docs_of(engine, docs, pipeline, batch, _rows(engine, "audits", pipeline, batch))
    if page is None:
        raise HTTPException(404, f"this machine has no Data Docs page of batch {batch}. See the page audit instead")
    policy = f"{_NOTHING_ELSE}; sandbox; style-src 'unsafe-inline' {_STYLES}"
    return HTMLResponse(page.read_bytes(), headers=_headers(policy))


def _docs_of(
    engine: Engine, docs: Path, pipeline: str, batch: str, findings: Sequence[dict[str, object]]
) -> Path | None:
    """The newest page of an audit; None if the folder could belong to another pipeline."""
    if not findings:
        return None
    suite = str(findings[0]["suite"])
    if is_audited_elsewhere(engine, pipeline=pipeline, suite=suite, batch=Batch(batch)):
        return None
    # Each must be the name of one folder, and must not leave it.
    if any(name in ("", ".", "..") or "/" in name for name in (suite, batch)):
        return None
    return max((docs / "validations" / suite / batch).glob("*/*.html"), default=None)


@contextmanager
def _database() -> Iterator[tuple[Engine, Path]]:
    hook = OnceloadHook()
    try:
        with hook.opened() as engine:
            yield engine, hook.settings.home / "quality"
    except OnceloadError as error:
        raise HTTPException(404 if isinstance(error, NotFound) else 503, str(error)) from error


def _rows(engine: Engine, view: View, pipeline: str, batch: str) -> list[dict[str, object]]:
    return look(engine, view, pipeline=pipeline, batch=Batch(batch), at_most=_ROWS_MAX)


def _page(title: str, batch: str, *parts: str) -> Response:
    head = f"<!DOCTYPE html><html lang=en><meta charset=utf-8><title>{escape(title)}</title><style>{_STYLE}</style>"
    body = f"<h1>{escape(title)}</h1><p>Batch {escape(batch)}; times are UTC.</p>{''.join(parts)}</html>"
    return HTMLResponse(head + body, headers=_headers(f"{_NOTHING_ELSE}; style-src 'sha256-{_STYLE_DIGEST}'"))


def _headers(policy: str) -> dict[str, str]:
    return {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }


def _table(rows: Sequence[dict[str, object]], batch: str, *, nothing: str = "") -> str:
    if not rows:
        return f"<p>{escape(nothing)}</p>"
    # The heading already shows the batch.
    columns = [name for name in rows[0] if any(row[name] != batch for row in rows)]
    lines = [_line("th", [name.replace("_", " ") for name in columns])]
    lines += [_line("td", [_shown(row[name]) for name in columns]) for row in rows]
    cut = f"<p>Only the first {_ROWS_MAX:,} are shown.</p>" if len(rows) == _ROWS_MAX else ""
    return f"<table>{''.join(lines)}</table>{cut}"


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value:%Y-%m-%d %H:%M:%S}"
        case _:
            return str(value)


def _line(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(each)}</{tag}>" for each in cells) + "</tr>"
