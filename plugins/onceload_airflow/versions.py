"""Differences between versions of Airflow, from 3.1 on, that Airflow's own compatibility package does not cover."""

from typing import Any

from airflow.providers.common.compat.sdk import AirflowException

try:
    from airflow.sdk.definitions.callback import AsyncCallback
except ImportError:  # Airflow 3.1
    from airflow.sdk.definitions.deadline import AsyncCallback  # type: ignore[attr-defined]

try:
    from airflow.sdk.exceptions import AirflowRescheduleException
except ImportError:  # Airflow 3.1
    from airflow.exceptions import AirflowRescheduleException

__all__ = ["AirflowRescheduleException", "AsyncCallback", "no_retry_after", "plugin_errors"]


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
