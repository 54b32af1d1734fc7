"""Tasks of Spark, by the DataFrame API alone: the same in a session of this process and over Spark Connect.

There is one task for each item. A result is handed over through a folder of this machine as soon as it is there, if the
task sees that folder; otherwise it comes with the others, when the job ends.
"""

import os
import pickle
import re
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onceload_core.events import show_events
from onceload_jobs.executor.executor import Died, ExecutorFailed, Outcome, called

try:
    from py4j.protocol import Py4JError
except ImportError:
    # A client of Spark Connect has no JVM.
    Py4JError = PySparkException
try:
    from grpc import RpcError  # type: ignore[import-untyped]
except ImportError:
    RpcError = PySparkException

#: What a session of Spark may raise.
SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError, RpcError, OSError)

#: What an error of gRPC says is in one of its lines, and the others are about the call.
_DETAILS = re.compile(r'^\s*details = "(.+)"$', re.MULTILINE)
_MARK = "mark"
_DESCRIPTION = "spark.job.description"
_NO_OUTCOME = "Spark ended its task without an outcome and without an error"
_LOOKS_EVERY_S = 0.02
_SCHEMA = "number bigint, outcome binary"


class SparkExecutor:
    """Runs a job with a task for each item."""

    def __init__(self, session: SparkSession, *, name: str) -> None:
        #: What the pages of Spark call its jobs.
        self._session, self._name = session, name

    @property
    def session(self) -> SparkSession:
        return self._session

    @property
    def slots(self) -> int:
        """How many tasks may run at once."""
        raise NotImplementedError

    def why(self, error: Exception) -> str:
        """The reason of an error of Spark, in words."""
        return f"Spark did not run all tasks: {message_of(error)}"

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        """Which task ended its process, Spark does not say: what is missing runs again, a few at a time, then alone."""
        all_items = list(items)
        left = list(range(len(all_items)))
        for size in self._sizes(len(left)):
            missing: list[int] = []
            for numbers in (left[first : first + size] for first in range(0, len(left), size)):
                there: set[int] = set()
                error = yield from self._run(function, all_items, numbers, there)
                missing += [number for number in numbers if number not in there]
                if missing and size == 1:
                    # Each item has an outcome, whatever Spark says.
                    yield missing.pop(), Died(_NO_OUTCOME if error is None else self.why(error))
            left = missing
            if not left:
                return

    def _sizes(self, count: int) -> Iterator[int]:
        """How many run in one job, at each look for what is missing."""
        yield max(1, count)
        yield self.slots
        yield 1

    def _run(
        self, function: Callable[[Any], Any], items: Sequence[Any], numbers: Sequence[int], there: set[int]
    ) -> Generator[tuple[int, Outcome], None, Exception | None]:
        """Run one job, and return its error if that was of an item, and not of Spark."""
        with TemporaryDirectory(prefix="onceload-results-") as folder:
            self._session.conf.set(_DESCRIPTION, self._name)
            job = _Job(self._session, function, [items[number] for number in numbers], folder)
            try:
                for place, outcome in job.outcomes():
                    there.add(numbers[place])
                    yield numbers[place], outcome
            finally:
                job.stop()
        if job.error is not None and len(there) < len(numbers):
            self._check_there(job.error)
            return job.error
        return None

    def _check_there(self, error: Exception) -> None:
        """Raise ExecutorFailed unless another job runs."""
        try:
            self._session.range(1).collect()
        except Exception:  # noqa: BLE001 - whatever it is, it is not about an item.
            raise ExecutorFailed(self.why(error)) from error

    def close(self) -> None:
        pass


class _Job:
    """A job in a thread of its own, whose results are taken while it runs."""

    def __init__(
        self, session: SparkSession, function: Callable[[Any], Any], items: Sequence[Any], folder: str
    ) -> None:
        self._session, self._folder, self._tag = session, Path(folder), f"onceload-{token_hex(8)}"
        token = token_hex(16)
        (self._folder / _MARK).write_text(token)
        count = len(items)
        numbers = session.range(0, count, 1, max(1, count))
        self._results = numbers.mapInArrow(partial(_work, function, items, folder, token), _SCHEMA)
        self._rows: Sequence[Any] = ()
        self.error: Exception | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onceload runs a job of Spark", daemon=True)
        self._thread.start()

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        seen: set[int] = set()
        is_over = False
        while not is_over:
            # No outcome comes after the end.
            is_over = self._ended.wait(_LOOKS_EVERY_S)
            for number in sorted(self._there() - seen):
                seen.add(number)
                yield number, pickle.loads((self._folder / str(number)).read_bytes())  # noqa: S301 - of our own task.
        for row in self._rows:
            if row.outcome is not None and row.number not in seen:
                seen.add(row.number)
                yield row.number, pickle.loads(row.outcome)  # noqa: S301 - of our own task.

    def stop(self) -> None:
        if not self._ended.is_set():
            # If Spark itself is gone, so is the job.
            with suppress(Exception):
                self._session.interruptTag(self._tag)
        self._thread.join()

    def _run(self) -> None:
        try:
            self._session.addTag(self._tag)
            self._rows = self._results.collect()
        except Exception as error:  # noqa: BLE001 - it is reported with the items that have no outcome.
            self.error = error
        finally:
            with suppress(Exception):
                self._session.removeTag(self._tag)
            self._ended.set()

    def _there(self) -> set[int]:
        return {int(entry.name) for entry in os.scandir(self._folder) if entry.name.isdigit()}


def _work(
    function: Callable[[Any], Any], items: Sequence[Any], folder: str, token: str, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    show_events(os.environ)
    for batch in batches:
        for number in batch.column(0).to_pylist():
            outcome = pickle.dumps(called(function, items[number]))
            is_there = _hand_over(Path(folder), token, number, outcome)
            yield pa.record_batch(
                [pa.array([number], pa.int64()), pa.array([None if is_there else outcome], pa.binary())],
                names=["number", "outcome"],
            )


def _hand_over(folder: Path, token: str, number: int, outcome: bytes) -> bool:
    """Put an outcome into the folder, if it is here: the first one of each item counts."""
    mine = folder / f"{number}.{token_hex(8)}"
    try:
        if (folder / _MARK).read_text() != token:
            return False
        mine.write_bytes(outcome)
        with suppress(FileExistsError):
            os.link(mine, folder / str(number))
        mine.unlink()
    except OSError:
        return False
    return True


def message_of(error: Exception) -> str:
    """The error in one line: from the task's own traceback, or from Spark."""
    text = ""
    # Spark's errors ask its JVM for their text, and that may be gone.
    with suppress(*SPARK_ERRORS):
        text = str(error)
    if details := _DETAILS.search(text):
        return details[1]
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
    with suppress(*SPARK_ERRORS):
        if isinstance(error, PySparkException):
            return error.getSqlState() or ""
    return ""
