"""The plugin that Airflow discovers: the console, in its API server and its menu."""

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin

_PREFIX = "/onceload"


class _Console:
    """The pages, built at the first request, because every Airflow process imports this module."""

    @cached_property
    def _app(self) -> Any:  # noqa: ANN401 - an ASGI app.
        from onceload_airflow.console import make_airflow_app

        return make_airflow_app()

    async def __call__(self, *request: Any) -> None:  # noqa: ANN401 - as ASGI has it.
        await self._app(*request)


class _WithSlash:
    """Leads from the address of the console without its last slash to the console: Airflow's own page takes it else."""

    def __init__(self, app: Any) -> None:  # noqa: ANN401 - as ASGI has it.
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:  # noqa: ANN401 - as ASGI has it.
        answer = self._app
        if scope["type"] == "http" and scope["path"] == scope.get("root_path", "") + _PREFIX:
            from starlette.responses import RedirectResponse

            answer = RedirectResponse(f"{scope['path']}/")
        await answer(scope, receive, send)


def _view(destination: str, path: str, *, route: str) -> dict[str, Any]:
    return {
        "name": "Onceload",
        # Relative to the base of Airflow's page, which may have a path of its own.
        "href": f"{_PREFIX[1:]}/{path}",
        "destination": destination,
        "url_route": route,
        "icon": f"{_PREFIX[1:]}/icon.svg",
        # Airflow hides other entries behind one that is called Plugins, if there are two.
        "nav_top_level": destination == "nav",
    }


class OnceloadPlugin(AirflowPlugin):
    name = "onceload"
    fastapi_apps = [{"app": _Console(), "url_prefix": _PREFIX, "name": "Onceload"}]  # noqa: RUF012 - Airflow's way.
    fastapi_root_middlewares = [  # noqa: RUF012 - Airflow's way.
        {"middleware": _WithSlash, "args": [], "kwargs": {}, "name": "Onceload"}
    ]
    external_views = [  # noqa: RUF012 - Airflow's way.
        _view("nav", "", route="onceload"),
        _view("dag", "of/{DAG_ID}", route="onceload-dag"),
        _view("dag_run", "of/{DAG_ID}/{RUN_ID}", route="onceload-run"),
        _view("task_instance", "of/{DAG_ID}/{RUN_ID}", route="onceload-task"),
    ]
