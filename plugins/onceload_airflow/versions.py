"""Differences between versions of Airflow, from 3.1 on, and of the providers that were installed with each.

Airflow's own compatibility package has these names too, but only in releases that are newer than an Airflow 3.1 that is
installed already, and installing Onceload must not change it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any


def _newest(name: str, *modules: str) -> Any:  # noqa: ANN401 - each has its own type.
    """The name from the first module that has it: the newest comes first."""
    for module in modules:
        try:
            return getattr(import_module(module), name)
        except (AttributeError, ImportError):
            continue
    raise ImportError(f"this version of Airflow has no {name}")


if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import (
        AirflowException,
        AirflowFailException,
        AirflowNotFoundException,
        AirflowSkipException,
        DagRunTriggerException,
        SkipMixin,
        conf,
        mask_secret,
        redact,
    )
    from airflow.sdk import Connection
    from airflow.sdk.definitions.callback import AsyncCallback
    from airflow.sdk.exceptions import AirflowRescheduleException
else:
    _EXCEPTIONS = ("airflow.sdk.exceptions", "airflow.exceptions")
    _SECRETS = (
        "airflow.sdk.log",
        "airflow.sdk._shared.secrets_masker",
        "airflow.sdk.execution_time.secrets_masker",
        "airflow.utils.log.secrets_masker",
    )
    AirflowException = _newest("AirflowException", *_EXCEPTIONS)
    AirflowFailException = _newest("AirflowFailException", *_EXCEPTIONS)
    AirflowNotFoundException = _newest("AirflowNotFoundException", *_EXCEPTIONS)
    AirflowRescheduleException = _newest("AirflowRescheduleException", *_EXCEPTIONS)
    AirflowSkipException = _newest("AirflowSkipException", *_EXCEPTIONS)
    DagRunTriggerException = _newest("DagRunTriggerException", *_EXCEPTIONS)
    AsyncCallback = _newest("AsyncCallback", "airflow.sdk.definitions.callback", "airflow.sdk.definitions.deadline")
    SkipMixin = _newest("SkipMixin", "airflow.sdk.bases.skipmixin", "airflow.models.skipmixin")
    conf = _newest("conf", "airflow.sdk.configuration", "airflow.configuration")
    mask_secret = _newest("mask_secret", *_SECRETS)
    redact = _newest("redact", *_SECRETS)

__all__ = [
    "AirflowException",
    "AirflowFailException",
    "AirflowNotFoundException",
    "AirflowRescheduleException",
    "AirflowSkipException",
    "AsyncCallback",
    "DagRunTriggerException",
    "SkipMixin",
    "conf",
    "find_connection",
    "mask_secret",
    "no_retry_after",
    "plugin_errors",
    "redact",
    "start_run",
    "stats",
]


def find_connection(conn_id: str) -> "Connection":
    """A connection of Airflow; the first release of 3.1 finds those of its database only within a task."""
    from airflow.sdk import BaseHook

    try:
        return BaseHook.get_connection(conn_id)
    except ImportError as error:
        if "SUPERVISOR_COMMS" not in str(error):
            raise
        from airflow.models.connection import Connection as OfServer

        return OfServer.get_connection_from_secrets(conn_id)


def start_run(asked: "DagRunTriggerException") -> None:
    """Start the run that Airflow's operator asks for, as the process around a task does; a run that exists is cleared.

    Airflow itself would then wait with a trigger of its own.
    """
    from airflow.sdk.execution_time.comms import TriggerDagRun
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    # Some of them are newer than Airflow 3.1.
    names = {"logical_date", "run_after", "conf", "reset_dag_run", "note"} & TriggerDagRun.model_fields.keys()
    values: dict[str, Any] = {name: getattr(asked, name, None) for name in names}
    SUPERVISOR_COMMS.send(TriggerDagRun(dag_id=asked.trigger_dag_id, run_id=asked.dag_run_id, **values))


def stats() -> Any:  # noqa: ANN401 - it has no common type.
    """Airflow's metrics; asked for late, because importing them configures them."""
    return _newest("Stats", "airflow.sdk.observability.stats", "airflow.observability.stats", "airflow.stats")


def plugin_errors() -> dict[str, str]:
    """The plugins that Airflow could not import, with the reasons. Asked after Airflow has imported them."""
    try:
        from airflow.plugins_manager import get_import_errors
    except ImportError:  # Airflow 3.1
        from airflow.plugins_manager import import_errors  # type: ignore[attr-defined]

        return dict(import_errors)
    return get_import_errors()


def no_retry_after(reason: str) -> dict[str, Any]:
    """The arguments of an operator that is not retried after an AirflowException itself; before 3.3, it is."""
    try:
        from airflow.sdk import ExceptionRetryPolicy, RetryAction, RetryRule
    except ImportError:
        return {}
    rule = RetryRule(exception=AirflowException, action=RetryAction.FAIL, match_subclasses=False, reason=reason)
    return {"retry_policy": ExceptionRetryPolicy([rule])}
