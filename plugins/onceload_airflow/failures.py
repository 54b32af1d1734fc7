"""What Airflow does after an error: it retries, waits for an upgrade, or fails for good."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import get_current_context

from onceload.outcome import Outcome
from onceload_airflow.versions import AirflowRescheduleException
from onceload_core.errors import ExitCode, OnceloadError, UpgradeUnfinished

_LOG = logging.getLogger(__name__)
#: A retry does not help.
_FINAL = (ExitCode.WRONG_USE, ExitCode.NEEDS_A_PERSON)
#: How often a task checks whether an upgrade is finished before the wait counts as a failure.
_UPGRADE_LOOKS_MAX = 60
_UPGRADE_LOOKS_EVERY = timedelta(minutes=1)


@contextmanager
def in_airflows_words() -> Iterator[None]:
    """Translate errors, so that Airflow retries only what a retry can solve."""
    try:
        yield
    except UpgradeUnfinished as error:
        raise _during_an_upgrade(str(error)) from error
    except OnceloadError as error:
        if error.exit_code in _FINAL:
            raise AirflowFailException(str(error)) from error
        raise AirflowException(str(error)) from error


def failure_of(outcome: Outcome | None, *, last_line: str) -> AirflowException:
    """The load's own result decides whether it is retried; a killed load wrote none, and is retried."""
    if outcome is None or outcome.exit_code is ExitCode.DONE:
        end = last_line.strip() or "(empty)"
        what_now = f"Committed rows stay loaded. Retry. The last line of its log: {end}"
        return AirflowException(f"The load ended before it reported a result. {what_now}")
    if outcome.error == UpgradeUnfinished.__name__:
        return _during_an_upgrade(outcome.message)
    why = outcome.message or f"the load ended with exit code {outcome.exit_code}; see its log"
    return AirflowFailException(why) if outcome.exit_code in _FINAL else AirflowException(why)


def _during_an_upgrade(why: str) -> AirflowException:
    """Waiting for an upgrade does not count as a try; after an hour it does, so that an alert is sent."""
    if get_current_context().get("task_reschedule_count", 0) >= _UPGRADE_LOOKS_MAX:
        return AirflowException(why)
    _LOG.warning("%s Checking again in %s", why, _UPGRADE_LOOKS_EVERY)
    next_look = datetime.now(UTC) + _UPGRADE_LOOKS_EVERY
    return AirflowRescheduleException(next_look)  # type: ignore[no-untyped-call] # Airflow's own.
