"""What Airflow does after an error: it retries, waits for an upgrade, or fails for good."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import get_current_context

from onceload.named_files import with_file
from onceload.outcome import Outcome
from onceload_airflow.versions import AirflowException, AirflowFailException, AirflowRescheduleException
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import ExitCode, OnceloadError, UpgradeUnfinished
from onceload_core.messages import whole_message
from onceload_core.pause import PipelinePaused

_LOG = logging.getLogger(__name__)
#: A retry does not help.
_FINAL = (ExitCode.WRONG_USE, ExitCode.NEEDS_A_PERSON)
#: How often a task checks whether an upgrade is finished before the wait counts as a failure.
_UPGRADE_LOOKS_MAX = 60
_UPGRADE_LOOKS_EVERY = timedelta(minutes=1)


@contextmanager
def in_airflows_words(pipeline_file: str = PIPELINE_FILE) -> Iterator[None]:
    """Translate errors, so that Airflow retries only what a retry can solve; the commands in them name the file."""
    try:
        yield
    except OnceloadError as error:
        message = with_file(whole_message(error), Path(pipeline_file))
        if isinstance(error, UpgradeUnfinished):
            raise _during_an_upgrade(message) from error
        # A pause may last for days, and ends when a person wants it to.
        if error.exit_code in _FINAL or isinstance(error, PipelinePaused):
            raise AirflowFailException(message) from error
        raise AirflowException(message) from error


def failure_of(outcome: Outcome | None, *, exit_code: int, last_line: str) -> AirflowException:
    """The load's own result decides whether it is retried; a killed load wrote none, and is retried."""
    end = last_line.strip() or "(empty)"
    if outcome is None and exit_code == ExitCode.WRONG_USE:
        return AirflowFailException(f"The load was refused before it began, and nothing was loaded: {end}")
    if outcome is None or outcome.exit_code is ExitCode.DONE:
        what_now = f"Committed rows stay loaded. Retry. The last line of its log: {end}"
        return AirflowException(f"The load ended before it reported a result. {what_now}")
    if outcome.error == UpgradeUnfinished.__name__:
        return _during_an_upgrade(outcome.message)
    why = outcome.message or outcome.held or f"the load ended with exit code {outcome.exit_code}; see its log"
    is_final = outcome.exit_code in _FINAL or outcome.error == PipelinePaused.__name__
    return AirflowFailException(why) if is_final else AirflowException(why)


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
