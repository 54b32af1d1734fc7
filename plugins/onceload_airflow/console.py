"""The console in Airflow's web UI.

Airflow does not protect the apps of plugins. So each page requires a login and the right to read the task logs of the
pipeline's DAG, because like those it shows values of records.
"""

import hashlib
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import quote, urlencode

from airflow.api.common.trigger_dag import trigger_dag
from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.asset import AssetModel, DagScheduleAssetReference
from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from airflow.utils.types import DagRunTriggeredByType
from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import RedirectResponse
from sqlalchemy import Engine, select

from onceload import schema
from onceload.console.access import Job, Link
from onceload.console.app import make_app
from onceload.console.overview import names_of
from onceload.lag import Described
from onceload_airflow.by_hand import PIPELINES
from onceload_airflow.hook import OnceloadHook, access_of
from onceload_airflow.ingest import dag_id_of
from onceload_airflow.versions import AirflowException, conf
from onceload_core.errors import SettingRefused
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.files.addresses import use_access


class AirflowAccess:
    """Airflow's users, connection and pages."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engines: dict[str, Engine] = {}

    @property
    def folder(self) -> Path | None:
        folder = Path(PIPELINES)
        return folder if folder.is_dir() else None

    async def authenticate(self, request: Request, user: GetUserDep) -> None:
        request.state.user = user

    #: A run loads the files of one day.
    loads_by_day = True

    @contextmanager
    def opened(self) -> Iterator[Engine]:
        """A connection of this process, which is kept: each page would open several."""
        dsn = str(OnceloadHook().settings.dsn)
        with self._lock:
            if dsn not in self._engines:
                self._engines[dsn] = connect(LedgerSettings(dsn=dsn))
            engine = self._engines[dsn]
        schema.check(engine)
        yield engine

    @contextmanager
    def reaching(self, path: str) -> Iterator[None]:
        use_access(access_of(path))
        yield

    def seen_by(self, request: Request, pipelines: Collection[str]) -> set[str]:
        ids = {dag_id_of(name): name for name in pipelines}
        details, manager = _details(ids), get_auth_manager()
        return {
            name
            for dag_id, name in ids.items()
            if manager.is_authorized_dag(
                method="GET",
                access_entity=DagAccessEntity.TASK_LOGS,
                details=details[dag_id],
                user=request.state.user,
            )
        }

    def refusal(self, request: Request, pipeline: str) -> str | None:
        return (
            None
            if self._may_start(request, dag_id_of(pipeline))
            else f"you have no right to start the DAG of pipeline {pipeline}"
        )

    def user(self, request: Request) -> str:
        return str(request.state.user.get_name())

    def identity(self, request: Request) -> str:
        return str(request.state.user.get_id())

    @property
    def secret(self) -> bytes:
        return hashlib.sha256(f"onceload console {conf.get('api', 'secret_key')}".encode()).digest()

    def start(self, request: Request, job: Job, described: Described | None) -> Link:
        del described
        if not self._may_start(request, job.kind):
            raise HTTPException(HTTPStatus.FORBIDDEN, f"you have no right to start the DAG {job.kind}")
        loads = job.kind in ("backfill", "recover")
        for dag_id in (job.kind, *([dag_id_of(job.pipeline)] if loads else [])):
            _check_runs(dag_id)
        try:
            run = trigger_dag(
                job.kind,
                triggered_by=DagRunTriggeredByType.UI,
                triggering_user_name=self.user(request),
                conf={"pipeline": job.pipeline, **job.params},
            )
        except (AirflowException, ValueError) as error:
            raise SettingRefused(f"a run of the DAG {job.kind}", str(error), "parameters that Airflow takes") from error
        runs = f"{_base()}/dags/{job.kind}/runs"
        address = f"{runs}/{quote(str(run.run_id), safe='')}" if run is not None else runs
        return Link(address=address, words=f"The run of the DAG {job.kind}", is_outside=True)

    def _may_start(self, request: Request, dag_id: str) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="POST",
            access_entity=DagAccessEntity.RUN,
            details=_details([dag_id])[dag_id],
            user=request.state.user,
        )

    def login(self, request: Request) -> str | None:
        # Without the host: behind a proxy, this process does not know it.
        here = f"{request.url.path}?{request.url.query}".rstrip("?")
        back = here if request.method == "GET" else f"{request.scope.get('root_path', '')}/"
        return str(get_auth_manager().get_url_login(next_url=back))

    def run(self, dag_id: str, run_id: str) -> Link | None:
        return Link(
            address=f"{_base()}/dags/{quote(dag_id, safe='')}/runs/{quote(run_id, safe='')}",
            words="Airflow",
            is_outside=True,
        )

    def dag(self, pipeline: str) -> Link | None:
        address = f"{_base()}/dags/{quote(dag_id_of(pipeline), safe='')}"
        return Link(address=address, words="Its DAG in Airflow", is_outside=True)

    def readers(self, request: Request, table: str) -> list[Link]:
        query = (
            select(AssetModel.id, DagScheduleAssetReference.dag_id)
            .outerjoin(DagScheduleAssetReference, DagScheduleAssetReference.asset_id == AssetModel.id)
            .where(AssetModel.name == table)
        )
        with create_session() as session:
            rows = session.execute(query).all()
        if not rows:
            return []
        # An asset that no DAG reads has a row too.
        readers = sorted({row.dag_id for row in rows if row.dag_id and self._may_see(request, row.dag_id)})
        return [
            Link(address=f"{_base()}/assets/{rows[0].id}", words=f"Asset {table}", is_outside=True),
            *(
                Link(address=f"{_base()}/dags/{quote(dag_id, safe='')}", words=f"DAG {dag_id}", is_outside=True)
                for dag_id in readers
            ),
        ]

    def _may_see(self, request: Request, dag_id: str) -> bool:
        return get_auth_manager().is_authorized_dag(
            method="GET", details=_details([dag_id])[dag_id], user=request.state.user
        )


def make_airflow_app() -> FastAPI:
    access = AirflowAccess()
    app = make_app(access)
    known = [Depends(access.authenticate)]

    # Airflow writes the ids into these addresses as they are, so they are in the path: in a query, + is a space.
    @app.get("/of/{dag_id}", dependencies=known)
    def of_dag(request: Request, dag_id: str) -> RedirectResponse:
        return _to(request, "pipeline", pipeline=_pipeline_of(access, request, dag_id))

    @app.get("/of/{dag_id}/{run_id:path}", dependencies=known)
    def of_run(request: Request, dag_id: str, run_id: str) -> RedirectResponse:
        return _to(request, "run", pipeline=_pipeline_of(access, request, dag_id), batch=run_id)

    return app


def _details(dag_ids: Collection[str]) -> dict[str, DagDetails]:
    has_teams = conf.getboolean("core", "multi_team", fallback=False)
    teams = DagModel.get_dag_id_to_team_name_mapping([*dag_ids]) if has_teams else {}
    return {each: DagDetails(id=each, **({"team_name": teams[each]} if each in teams else {})) for each in dag_ids}


def _check_runs(dag_id: str) -> None:
    """Refuse a DAG whose run would wait without end."""
    dag = DagModel.get_dagmodel(dag_id)
    if dag is None or dag.is_stale:
        raise SettingRefused("this action", f"no DAG {dag_id} in Airflow", "a DAG that Airflow has parsed")
    if dag.is_paused:
        raise SettingRefused(
            "this action", f"the DAG {dag_id}, which is paused in Airflow", "a DAG that runs (unpause it)"
        )
    if dag.has_import_errors:
        raise SettingRefused("this action", f"the DAG {dag_id}, which has an import error", "a DAG without errors")


def _pipeline_of(access: AirflowAccess, request: Request, dag_id: str) -> str:
    behind = request.app.state.watch.now()
    with access.opened() as engine:
        # A pipeline without a commit is known by its file.
        known = [*names_of(engine), *(behind.described if behind else ())]
    names = {name for name in known if dag_id_of(name) == dag_id}
    for name in access.seen_by(request, names):
        return name
    message = (
        f"the DAG {dag_id} is not the DAG of a pipeline, or you have no right to read its task logs. A new pipeline "
        "file is found within a minute"
    )
    raise HTTPException(HTTPStatus.NOT_FOUND, message)


def _to(request: Request, page: str, **query: str) -> RedirectResponse:
    address = f"{request.scope.get('root_path', '')}/{page}?{urlencode(query)}"
    return RedirectResponse(address, status_code=HTTPStatus.SEE_OTHER)


def _base() -> str:
    return str(conf.get("api", "base_url", fallback="")).rstrip("/")
