"""A client of Airflow's REST API, with the standard library alone."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from onceload_core.errors import CallAgain

_PAUSE_S = 0.5
_ENDED = ("success", "failed")


@dataclass(eq=False)
class AirflowUnfit(CallAgain):
    """Airflow refused a request, or did not reach the expected state in time."""

    asked: str
    found: str
    #: The HTTP status; 0 without an answer.
    code: int = 0

    def __str__(self) -> str:
        return f"request to Airflow failed: {self.asked}: {self.found}. Nothing is lost. See Airflow's logs, and retry"


@dataclass(frozen=True)
class AirflowApi:
    address: str
    user: str
    password: str
    patience_s: float = 300.0

    def ask(self, path: str, payload: object = None, *, method: str | None = None) -> Any:  # noqa: ANN401 - of Airflow.
        """Send one request; a refusal is raised in Airflow's own words."""
        try:
            return self._call(path, payload, method=method, headers={"Authorization": f"Bearer {self.token}"})
        except HTTPError as error:
            if error.code == HTTPStatus.UNAUTHORIZED:
                # The next call logs in again.
                self.__dict__.pop("token", None)
            words = error.read().decode(errors="replace")[:500]
            raise AirflowUnfit(path, f"status {error.code}: {words}", error.code) from error
        except (URLError, HTTPException, OSError) as error:
            raise AirflowUnfit(path, f"Airflow cannot be reached: {error}") from error

    def until(self, path: str, is_so: Callable[[Any], bool]) -> Any:  # noqa: ANN401
        """Poll until the condition holds; Airflow may be restarting while it cannot be reached."""
        deadline = time.monotonic() + self.patience_s
        while True:
            found: object
            try:
                found = self.ask(path)
                if is_so(found):
                    return found
            except AirflowUnfit as unfit:
                found = unfit
            if time.monotonic() >= deadline:
                raise AirflowUnfit(path, f"timeout after {self.patience_s:g} s; the last answer was {str(found)[:500]}")
            time.sleep(_PAUSE_S)

    def until_it_knows(self, *dag_ids: str) -> None:
        self.until("/api/v2/dags?limit=100", lambda found: {*dag_ids} <= {each["dag_id"] for each in found["dags"]})

    def start(self, dag_id: str, run_id: str, **params: object) -> None:
        self.ask(f"{_dag(dag_id)}/dagRuns", {"dag_run_id": run_id, "logical_date": None, "conf": params})

    def ended(self, dag_id: str, run_id: str) -> dict[str, str]:
        """Wait for the end of a run; return the states of its tasks."""
        try:
            self.until(_run(dag_id, run_id), lambda found: found["state"] in _ENDED)
        except AirflowUnfit as unfit:
            raise AirflowUnfit(unfit.asked, f"{unfit.found}; its tasks: {self.states(dag_id, run_id)}") from unfit
        return self.states(dag_id, run_id)

    def run(self, dag_id: str, run_id: str, **params: object) -> dict[str, str]:
        self.start(dag_id, run_id, **params)
        return self.ended(dag_id, run_id)

    def states(self, dag_id: str, run_id: str) -> dict[str, str]:
        tasks = self.ask(f"{_run(dag_id, run_id)}/taskInstances")["task_instances"]
        return {each["task_id"]: each["state"] for each in tasks}

    def clear(self, dag_id: str, run_id: str, task_id: str) -> None:
        """Clear a task of a run and the tasks after it, so that they run again."""
        payload: Mapping[str, object] = {
            "dag_run_id": run_id,
            "task_ids": [task_id],
            "include_downstream": True,
            "only_failed": False,
            "dry_run": False,
        }
        self.ask(f"{_dag(dag_id)}/clearTaskInstances", payload)

    def asked(self, dag_id: str, run_id: str, task_id: str) -> str:
        """Wait until a task asks a person, and return its question."""
        self.until_noticed(dag_id, run_id, task_id, "awaiting_input")
        return str(self.ask(f"{_run(dag_id, run_id)}/taskInstances/{task_id}/-1/hitlDetails")["body"])

    def until_noticed(self, dag_id: str, run_id: str, task: str, state: str) -> None:
        """Wait until a task waits in a state, and the scheduler has noticed that its process has ended.

        If the task goes on before that, Airflow takes the end of its first process for its own, and tries it again.
        """
        self.until(f"{_run(dag_id, run_id)}/taskInstances/{task}", lambda found: found["state"] == state)
        for _ in range(2):
            self._until_the_scheduler_looks()

    def answer(self, dag_id: str, run_id: str, task_id: str, option: str) -> None:
        details = f"{_run(dag_id, run_id)}/taskInstances/{task_id}/-1/hitlDetails"
        self.ask(details, {"chosen_options": [option], "params_input": {}}, method="PATCH")

    def _until_the_scheduler_looks(self) -> None:
        health = "/api/v2/monitor/health"
        before = self.ask(health)["scheduler"]["latest_scheduler_heartbeat"]
        self.until(health, lambda found: found["scheduler"]["latest_scheduler_heartbeat"] != before)

    @cached_property
    def token(self) -> str:
        login = {"username": self.user, "password": self.password}
        return str(self._call("/auth/token", login, headers={})["access_token"])

    def _call(self, path: str, payload: object, *, method: str | None = None, headers: Mapping[str, str]) -> Any:  # noqa: ANN401
        body = None if payload is None else json.dumps(payload).encode()
        headers = {"Content-Type": "application/json", **headers}
        request = Request(self.address + path, data=body, headers=headers, method=method)  # noqa: S310 - our own address.
        with urlopen(request, timeout=30) as answer:  # noqa: S310
            # A deletion answers nothing.
            return json.loads(answer.read() or "null")


def _dag(dag_id: str) -> str:
    return f"/api/v2/dags/{quote(dag_id)}"


def _run(dag_id: str, run_id: str) -> str:
    return f"{_dag(dag_id)}/dagRuns/{quote(run_id)}"
