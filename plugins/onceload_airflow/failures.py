"""What Airflow does after an error: it retries, waits for an upgrade, or fails for good."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import get_current_context

from onceload.errors_in_words import outcome_of
from onceload.named_files import with_file
from onceload.outcome import Outcome
from onceload_airflow.versions import AirflowException, AirflowFailException, AirflowRescheduleException
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import ExitCode, OnceloadError, UpgradeUnfinished
from onceload_core.pause import PipelinePaused

_LOG = logging.getLogger(__name__)
#: A retry does not help.
_FINAL = (ExitCode.WRONG_USE, ExitCode.NEEDS_A_PERSON)
#: How often a task checks whether an upgrade is finished before the wait counts as a failure.
_UPGRADE_LOOKS_MAX = 60
_UPGRADE_LOOKS_EVERY = timedelta(minutes=1)


#: What ends a load, besides the errors of Onceload.
ANY = (Exception, KeyboardInterrupt)


@contextmanager
def in_airflows_words(
    pipeline_file: str = PIPELINE_FILE, *, kinds: tuple[type[BaseException], ...] = (OnceloadError,)
) -> Iterator[None]:
    """Translate errors, so that Airflow retries only what a retry can solve; the commands in them name the file."""
    try:
        yield
    except kinds as error:
        outcome = outcome_of(error)
        named = replace(outcome, message=with_file(outcome.message, Path(pipeline_file)))
        # A traceback may contain values of rows.
        cause = error if os.environ.get("ONCELOAD_LOG") == "debug" else None
        raise failure_of(named) from cause


def failure_of(outcome: Outcome) -> AirflowException:
    """The result of a load, which is not done, decides whether it is retried."""
    if outcome.error == UpgradeUnfinished.__name__:
        return _during_an_upgrade(outcome.message)
    why = outcome.message or outcome.held or f"the load ended with exit code {outcome.exit_code}; see its log"
    # A pause may last for days, and ends when a person wants it to.
    is_final = outcome.exit_code in _FINAL or outcome.error == PipelinePaused.__name__
    return AirflowFailException(why) if is_final else AirflowException(why)


def unreported_failure(*, exit_code: int, last_line: str) -> AirflowException:
    """A submitted load that was killed has reported no result, and is retried."""
    end = last_line.strip() or "(empty)"
    if exit_code == ExitCode.WRONG_USE:
        return AirflowFailException(f"The load was refused before it began, and nothing was loaded: {end}")
    what_now = f"Committed rows stay loaded. Retry. The last line of its log: {end}"
    return AirflowException(f"The load ended before it reported a result. {what_now}")


def _during_an_upgrade(why: str) -> AirflowException:
    """Waiting for an upgrade does not count as a try; after an hour it does, so that an alert is sent."""
    if get_current_context().get("task_reschedule_count", 0) >= _UPGRADE_LOOKS_MAX:
        return AirflowException(why)
    _LOG.warning("%s Checking again in %s", why, _UPGRADE_LOOKS_EVERY)
    next_look = datetime.now(UTC) + _UPGRADE_LOOKS_EVERY
    return AirflowRescheduleException(next_look)  # type: ignore[no-untyped-call] # Airflow's own.


def not_loaded(problems: str, held: str) -> str:
    """The files that a run has left, and what to do about each kind."""
    fixed = "After you have fixed them, clear the task load, or wait for the next run"
    free = f"{CLEAR}. Then clear the task load of this run"
    said = [f"these files need a person: {problems}. {fixed}"] if problems else []
    said += [f"other runs or batches hold these files: {held}. {free}"] if held else []
    return ". Besides, ".join(said)


#: About a batch that holds files.
CLEAR = "If the batch is a run of a DAG, clear the failed task of that run instead"
