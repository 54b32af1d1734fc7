"""The plugin that Airflow discovers: our pages, in its API server."""

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin


class _Pages:
    """The pages, built at the first request, because every Airflow process imports this module."""

    @cached_property
    def _app(self) -> Any:  # noqa: ANN401 - an ASGI app.
        from onceload_airflow.pages import make_app

        return make_app()

    async def __call__(self, *request: Any) -> None:  # noqa: ANN401 - as ASGI has it.
        await self._app(*request)


class OnceloadPlugin(AirflowPlugin):
    name = "onceload"
    fastapi_apps = [{"app": _Pages(), "url_prefix": "/onceload", "name": "Onceload"}]  # noqa: RUF012 - Airflow's way.
