"""What Spark's tasks report to the driver: notes, and errors that a retry does not fix."""

import gc
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import PySparkException

from onceload_core.errors import OnceloadError
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.transformed import TransformedRows
from onceload_jobs.files.addresses import use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.work.failures import ends_all


@dataclass(frozen=True)
class TaskReports:
    """What tasks report to the driver besides rows; Spark delivers it when a task succeeds."""

    notes: Accumulator[tuple[Note, ...]]
    #: The numbers of the deliveries that were read to their end.
    read: Accumulator[tuple[int, ...]]
    #: The accepted tries: Spark delivers only the first success of each partition.
    transformed: Accumulator[tuple[TransformedRows, ...]]
    #: Pickled, so that Spark need not know the types.
    errors: Accumulator[tuple[bytes, ...]]

    @classmethod
    def by_tasks_of(cls, context: SparkContext) -> "TaskReports":
        stop = _AddingUp(context.cancelAllJobs)
        return cls(
            notes=context.accumulator((), _AddingUp()),
            read=context.accumulator((), _AddingUp()),
            transformed=context.accumulator((), _AddingUp()),
            errors=context.accumulator((), stop),
        )


class _AddingUp(AccumulatorParam[tuple[Any, ...]]):
    """Collects the reports of tasks; on the driver, it may call a function for each."""

    def __init__(self, on_report: Callable[[], None] | None = None) -> None:
        self._on_report = on_report

    def __reduce__(self) -> tuple[object, ...]:
        return _AddingUp, ()

    def zero(self, value: tuple[Any, ...]) -> tuple[Any, ...]:
        del value
        return ()

    def addInPlace(self, value1: tuple[Any, ...], value2: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: N802 - Spark's.
        if value2 and self._on_report:
            self._on_report()
        return value1 + value2


@contextmanager
def reporting_errors(job: Job, reports: TaskReports) -> Iterator[None]:
    """Report permanent errors to the driver, instead of failing a task that Spark would retry in vain."""
    _keep_modules()
    use_access(job.access)
    try:
        yield
    except OnceloadError as error:
        if not ends_all(error):
            raise
        reports.errors.add((pickle.dumps(error),))


def raise_first(reports: TaskReports) -> None:
    for error in reports.errors.value:
        raise pickle.loads(error) from None  # noqa: S301 - our own task pickled it.


def message_of(error: Exception) -> str:
    """The error in one line: from the task's own traceback, or from Spark."""
    text = ""
    # Spark's errors ask its JVM for their text, and that may be gone.
    with suppress(Py4JError, OSError):
        text = str(error)
    _, is_ours, trace = text.rpartition("Traceback (most recent call last):")
    lines = [line for line in trace.splitlines() if line.strip()]
    if is_ours:
        # Indented lines are the traceback.
        lines = [line for line in lines if not line[0].isspace()]
    elif isinstance(error, Py4JError):
        # The first line only names the call.
        lines = lines[1:] or lines
    return lines[0].strip(" :;") if lines else type(error).__name__


def sql_state_of(error: Exception) -> str:
    """The SQLSTATE of an error of Spark SQL, or empty."""
    with suppress(Py4JError, OSError):
        if isinstance(error, PySparkException):
            return error.getSqlState() or ""
    return ""


@cache
def _keep_modules() -> None:
    """Spark collects garbage after each task, and would scan all imported modules each time."""
    gc.freeze()
