"""What Airflow takes up by itself: our pages, in its API server."""

from functools import cached_property
from typing import Any

from airflow.plugins_manager import AirflowPlugin


class _Pages:
    """The pages, made when the first one is asked for: every process of Airflow's imports this module."""

    @cached_property
    def _app(self) -> Any:  # noqa: ANN401 - an ASGI app.
        from onceload_airflow.pages import make_app

        return make_app()

    async def __call__(self, *request: Any) -> None:  # noqa: ANN401 - as ASGI has it.
        await self._app(*request)


class OnceloadPlugin(AirflowPlugin):
    name = "onceload"
    fastapi_apps = [{"app": _Pages(), "url_prefix": "/onceload", "name": "Onceload"}]  # noqa: RUF012 - Airflow's way.
