"""Notifications when a task has failed for good or a run is late, by Airflow's own notifiers.

    ONCELOAD_ALERTS='[{"classpath": "<a notifier>", "kwargs": {"subject": "{{ alert.subject }}", ...}}]'

Templates of a notifier can use `alert.subject`, `alert.text` and `alert.html` (the text, escaped).
"""

import asyncio
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk.definitions.deadline import DeadlineAlert, DeadlineReference
from structlog import get_logger

from onceload.pipeline_file import read_pipeline
from onceload.placeholders import GIVEN
from onceload_airflow.connections import CONNECTION
from onceload_airflow.hook import OnceloadHook
from onceload_airflow.links import console_page
from onceload_airflow.versions import AirflowFailException, AsyncCallback, redact
from onceload_core.errors import OnceloadError, SettingRefused
from onceload_core.postgres.views import look

if TYPE_CHECKING:
    from airflow.sdk import Context

log = get_logger(__name__)


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One notification."""

    subject: str
    text: str

    @property
    def html(self) -> str:
        return escape(self.text).replace("\n", "<br>\n")


@dataclass(frozen=True, kw_only=True)
class _Notifier:
    classpath: str
    kwargs: Mapping[str, Any]


def tell_failure(context: "Context") -> None:
    """Notify about a task that Airflow does not retry."""
    if notifiers(os.environ):
        _notify(_of_failure(context), dict(context))


# Airflow stores this function's path with each open deadline, so the name must stay.
async def tell_late(context: Mapping[str, Any]) -> None:
    """Notify about a run that missed its deadline; the triggerer calls this."""
    run = context["dag_run"]
    if run.get("end_date"):
        # It ended between its deadline and this check.
        return
    text = (
        f"Run {run['dag_run_id']} of {run['dag_id']} missed its deadline {context['deadline']['deadline_time']}: it is "
        "still running.\nNo data is lost.\nWhat to do: check which task runs or waits. Clear a task that hangs: this "
        f"loads nothing twice.\nConsole: {console_page('')}"
    )
    alert = Alert(subject=f"{run['dag_id']}: a run is late", text=text)
    await asyncio.to_thread(_notify, alert, dict(context))


def deadline(environment: Mapping[str, str]) -> DeadlineAlert | None:
    """The deadline of a run after it is queued, if ONCELOAD_LATE_AFTER_S is set."""
    given = environment.get("ONCELOAD_LATE_AFTER_S")
    if not given:
        return None
    if not given.isdecimal() or int(given) == 0:
        raise SettingRefused("ONCELOAD_LATE_AFTER_S", repr(given), "a number of seconds, such as 3600")
    reference, after = DeadlineReference.DAGRUN_QUEUED_AT, timedelta(seconds=int(given))
    return DeadlineAlert(reference=reference, interval=after, callback=AsyncCallback(tell_late))


def notifiers(environment: Mapping[str, str]) -> list[_Notifier]:
    """The notifiers of ONCELOAD_ALERTS."""
    try:
        given: Any = json.loads(environment.get("ONCELOAD_ALERTS") or "[]")
        return [_Notifier(classpath=str(each["classpath"]), kwargs=dict(each.get("kwargs", {}))) for each in given]
    except (ValueError, TypeError, KeyError, AttributeError):
        expected = 'a JSON list such as [{"classpath": "module.Notifier", "kwargs": {}}]'
        found = "another value (not shown, as it may contain a secret)"
        raise SettingRefused("ONCELOAD_ALERTS", found, expected) from None


def _of_failure(context: "Context") -> Alert:
    ti: Any = context["ti"]
    error = context.get("exception")
    # A retry does not help: a failed audit, a file that was rewritten, a wrong setting.
    if isinstance(error, AirflowFailException):
        happened, then = "needs a person", "fix the cause, then clear the task"
    else:
        happened = f"failed at try {ti.try_number}, and may recover by itself"
        then = "wait for the next run, which retries, or clear the task"
    reason = str(error or "It reported no error: it was killed, or its worker was lost.")
    lines = [
        f"Task {ti.task_id} of {ti.dag_id}, run {ti.run_id}, {happened}.",
        str(redact(reason)),
        *_where(context),
        f"What to do: {then}. No data is lost, and nothing is loaded twice.",
        f"Log: {ti.log_url}",
    ]
    return Alert(subject=f"{ti.dag_id}: {ti.task_id} {happened}", text="\n".join(lines))


def _where(context: "Context") -> list[str]:
    """The page of the task's pipeline, if it has one, and its position, if the database answers."""
    task: Any = context["task"]
    lines: list[str] = []
    with suppress(OnceloadError):
        if file := getattr(task, "pipeline_file", None):
            name = read_pipeline(Path(file), offered=dict.fromkeys(GIVEN, "0")).name
        elif not (name := str(context.get("params", {}).get("pipeline") or "")):
            return []
        lines = [f"Console: {console_page('attention', pipeline=name)}"]
        with OnceloadHook(getattr(task, "onceload_conn_id", CONNECTION)).opened() as engine:
            (status,) = look(engine, "status", pipeline=name, at_most=1)
        lines = [f"Pipeline {name} is at position {status['position']}.", *lines]
    return lines


def _notify(alert: Alert, context: dict[str, Any]) -> None:
    for each in notifiers(os.environ):
        module, _, name = each.classpath.rpartition(".")
        try:
            getattr(import_module(module), name)(**each.kwargs)({**context, "alert": alert})
        except Exception:
            # An error of one notifier must not stop the others.
            log.exception("alert_not_sent", notifier=each.classpath)
