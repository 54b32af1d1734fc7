"""Spark: started late, with our Python, and with work that never crosses into the JVM."""

import gc
import os
import pickle
import re
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext, TaskContext
from pyspark.accumulators import Accumulator, AccumulatorParam
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from dedup_core.delivery import Mode
from dedup_core.errors import (
    CallAgain,
    DeliveryTakenAway,
    ExitCode,
    OnceloadError,
    RowsRefused,
    SessionFenced,
    SettingRefused,
)
from dedup_core.events import show_events
from dedup_core.names import SessionName
from spark_jobs.batch.job import Job, TransformRefused
from spark_jobs.batch.stage import StageLost
from spark_jobs.batch.transformed import TransformedRows
from spark_jobs.files.addresses import use_access
from spark_jobs.files.notes import Note
from spark_jobs.read.board_work import Delivery
from spark_jobs.work.for_transform import accept_rows, read_delivery, stage_rows
from spark_jobs.work.session import work
from spark_jobs.work.transform import as_declared, for_spark, spark_schema, with_output
from spark_jobs.write.find_refused import ROW_REFUSED

_BATCH_ROWS = 65_536
#: How much of a transform's rows is written at once.
_GATHERED_BYTES = 16 * 2**20
#: The plan steps that leave out records regardless of their content.
_LIMITS = re.compile(r"^[\s:+-]*(GlobalLimit|LocalLimit|Offset|Tail|Sample)\b", re.MULTILINE)
#: The result of tasks that only write.
_NO_ROWS = "rows bigint"


_STOPPED = "Spark stopped (see the lines above). The master of a cluster might not answer, or have another secret"
#: How often a task may fail by no fault of a delivery: the local scheduler's default is zero.
_TASK_FAILURES = 4
#: Set by spark-submit for the program that it runs.
_LAUNCHED = "PYSPARK_GATEWAY_PORT"
_LOGGING = Path(__file__).parents[1] / "log4j2.properties"
_OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Pauses of the JVM do not matter, so use the collector with the least work.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -XX:+UseParallelGC",
}
_LOCAL_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


@dataclass(eq=False)
class TasksFailed(CallAgain):
    """Spark failed: a lost executor, no memory, or a task that used up its tries."""

    pipeline: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: Spark did not run all tasks: {self.reason}. Committed rows stay loaded. Retry "
            "to load the rest."
        )


class SparkTasks:
    """Spark tasks, one for each session; Spark retries those that fail."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    @classmethod
    @contextmanager
    def started(
        cls, name: str, master: str | None, options: Mapping[str, str], *, tries: int = 0
    ) -> "Iterator[SparkTasks]":
        """Start Spark for one load; it retries a task at least as often as a delivery that kills it."""
        try:
            context = _start(name, master, options, tries=tries)
        except (PySparkException, Py4JError, OSError) as error:
            expected = "a Spark session (check Java with `onceload doctor`, and the options --master and --conf)"
            raise SettingRefused("Spark", _message_of(error), expected) from error
        try:
            yield cls(context)
        finally:
            # If Spark itself died, there is nothing to stop.
            with suppress(Py4JError, OSError):
                context.stop()

    @property
    def slots(self) -> int:
        return int(self._context.defaultParallelism)

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        """Let each session, which is a partition, take deliveries until it can get no more."""
        reports = _TaskReports.by_tasks_of(self._context)
        has_copies = self._context.getConf().get("spark.speculation", "false") == "true"
        with self._in_our_words(job, reports):
            # Spark SQL is not needed here, and takes seconds to start.
            each = self._context.parallelize(sessions, len(sessions))
            each.foreachPartition(partial(_work, job, reports, has_copies))
        # Repeated reads repeat their notes.
        return list(dict.fromkeys(reports.notes.value))

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        """Read each delivery at least once, and stage what the transform makes of all of them."""
        reports = _TaskReports.by_tasks_of(self._context)
        with self._in_our_words(job, reports):
            self._made(job, tuple(deliveries), reports).mapInArrow(partial(_stage, job, reports), _NO_ROWS).collect()
            accept_rows(job, reports.made.value)
        if len(set(reports.read.value)) < len(deliveries):
            # The proof would count unread records as loaded.
            expected = "Spark SQL that reads all of the view records (no LIMIT, and no condition that is always false)"
            raise SettingRefused("transform", "SQL that leaves records unread", expected)
        # Repeated reads repeat their notes.
        return list(dict.fromkeys(reports.notes.value))

    def writing(self, job: Job) -> Job:
        """The job, with the columns that its transform makes."""
        if job.declared.transform is None:
            return job
        reports = _TaskReports.by_tasks_of(self._context)
        with self._in_our_words(job, reports):
            made = self._made(job, (), reports)
            _refuse_limits(made)
            return with_output(job, to_arrow_schema(made.schema, timezone="UTC"))

    def _made(self, job: Job, deliveries: tuple[Delivery, ...], reports: "_TaskReports") -> DataFrame:
        """The rows of the transform; computing only the schema reads no records."""
        shape = from_arrow_schema(spark_schema(job.columns))
        numbers = self._session.range(0, len(deliveries), 1, max(1, len(deliveries)))
        records = numbers.mapInArrow(partial(_read, job, deliveries, reports), shape)
        records.createOrReplaceTempView("records")
        return self._session.sql(job.declared.transform or "")

    @contextmanager
    def _in_our_words(self, job: Job, reports: "_TaskReports") -> Iterator[None]:
        """Raise the errors of tasks here, and shorten Spark's messages to one sentence."""
        try:
            yield
        except AnalysisException as error:
            raise SettingRefused("transform", _message_of(error), "Spark SQL over the view records") from error
        except (PySparkException, Py4JError, OSError) as error:
            _raise_first(reports)
            if isinstance(error, PySparkException) and (error.getSqlState() or "").startswith(ROW_REFUSED):
                raise TransformRefused(job.declared.name, _message_of(error)) from error
            raise TasksFailed(job.declared.name, self._why_stopped() or _message_of(error)) from error
        _raise_first(reports)

    def _why_stopped(self) -> str | None:
        """A stopped context fails at the next call, with an error about that call only."""
        with suppress(Py4JError, OSError):
            # Python has no public API for this.
            if self._context._jsc.sc().isStopped():  # noqa: SLF001
                return _STOPPED
        return None

    @cached_property
    def _session(self) -> SparkSession:
        return SparkSession(self._context)


def _refuse_limits(made: DataFrame) -> None:
    """Refuse limits: the omitted records would count as consumed, and chance decides which ones they are."""
    # Python has no public API for the resolved plan.
    plan: Any = made._jdf.queryExecution().analyzed()  # noqa: SLF001
    if found := _LIMITS.search(plan.toString()):
        expected = f"Spark SQL without LIMIT, OFFSET and TABLESAMPLE ({found[1]}), which would lose records"
        raise SettingRefused("transform", "SQL that leaves out arbitrary records", expected)


def _start(name: str, master: str | None, options: Mapping[str, str], *, tries: int) -> SparkContext:
    """Start Spark for one load; given options override ours."""
    # Spark warns about the version of pandas, which is not used here.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # A delivery that kills its worker must use up its tries before Spark gives up its session.
    failures_max = _TASK_FAILURES + tries
    ours = _OPTIONS | {"spark.task.maxFailures": str(failures_max)}
    if is_submitted := _LAUNCHED in os.environ:
        # The JVM knows the options that spark-submit was started with.
        with _signals_wait():
            SparkContext._ensure_initialized()  # noqa: SLF001 - a configuration without it knows nothing.
        master = master or SparkConf().get("spark.master")
    conf = SparkConf().setAppName(f"onceload {name}")
    ours |= {} if master and not master.startswith("local") else _LOCAL_OPTIONS
    if master is None or (is_submitted and master.startswith("local[") and "," not in master):
        # By default, the local scheduler gives up a task at its first failure.
        master = f"{(master or 'local[*]').removesuffix(']')},{failures_max}]"
    conf.setMaster(master).setAll(list((ours | dict(options)).items()))
    # All users of this machine can see the command line of the JVM.
    with _signals_wait():
        SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001 - a context would start it with all that it is given.
    # Masters and workers read the cluster secret from the environment, a driver only from its settings.
    if secret := os.environ.get("_SPARK_AUTH_SECRET"):
        conf.set("spark.authenticate.secret", secret)
    context = SparkContext.getOrCreate(conf)
    context.setLogLevel("ERROR")
    return context


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM while the JVM starts: otherwise PySpark would leave it running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])


@dataclass(frozen=True)
class _TaskReports:
    """What tasks report to the driver besides rows; Spark delivers it when a task succeeds."""

    notes: Accumulator[tuple[Note, ...]]
    #: The numbers of the deliveries that were read to their end.
    read: Accumulator[tuple[int, ...]]
    #: The accepted tries: Spark delivers only the first success of each partition.
    made: Accumulator[tuple[TransformedRows, ...]]
    #: Pickled, so that Spark need not know the types.
    errors: Accumulator[tuple[bytes, ...]]

    @classmethod
    def by_tasks_of(cls, context: SparkContext) -> "_TaskReports":
        stop = _AddingUp(context.cancelAllJobs)
        return cls(
            notes=context.accumulator((), _AddingUp()),
            read=context.accumulator((), _AddingUp()),
            made=context.accumulator((), _AddingUp()),
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
def _reporting(job: Job, reports: _TaskReports) -> Iterator[None]:
    """Report permanent errors to the driver, instead of failing a task that Spark would retry in vain."""
    _keep_modules()
    use_access(job.access)
    try:
        yield
    except OnceloadError as error:
        is_final = error.exit_code in (ExitCode.WRONG_USE, ExitCode.NEEDS_A_PERSON)
        if not is_final and not isinstance(error, SessionFenced | DeliveryTakenAway | StageLost):
            raise
        reports.errors.add((pickle.dumps(error),))


def _raise_first(reports: _TaskReports) -> None:
    for error in reports.errors.value:
        raise pickle.loads(error) from None  # noqa: S301 - our own task pickled it.


def _message_of(error: Exception) -> str:
    """The error in one line: from the task's own traceback, or from Spark."""
    _, is_ours, trace = str(error).rpartition("Traceback (most recent call last):")
    lines = [line for line in trace.splitlines() if line.strip()]
    if is_ours:
        # Indented lines are the traceback.
        lines = [line for line in lines if not line[0].isspace()]
    elif isinstance(error, Py4JError):
        # The first line only names the call.
        lines = lines[1:] or lines
    return lines[0].strip(" :;") if lines else type(error).__name__


def _work(job: Job, reports: _TaskReports, has_copies: bool, sessions: Iterator[SessionName]) -> None:  # noqa: FBT001 - by partial.
    show_events(os.environ)
    context = TaskContext.get()
    # A retried task replaces the first try, unless that may still be alive, or have another name.
    is_retry = context is not None and context.attemptNumber() > 0
    waits = has_copies or not is_retry or job.declared.delivery.mode is Mode.SESSION
    # A newer epoch that took over does the rest.
    with _reporting(job, reports), suppress(SessionFenced):
        for name in sessions:
            reports.notes.add(tuple(work(job, name, waits=waits)))


def _read(
    job: Job, deliveries: Sequence[Delivery], reports: _TaskReports, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with _reporting(job, reports):
        for number in _each(numbers):
            notes: list[Note] = []
            for rows in read_delivery(job, deliveries[number], notes):
                yield from for_spark(rows, job.columns).to_batches(max_chunksize=_BATCH_ROWS)
            reports.notes.add(tuple(notes))
            reports.read.add((number,))


def _stage(job: Job, reports: _TaskReports, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    with _reporting(job, reports):
        tables = (as_declared(table, job) for table in _gathered(batches))
        try:
            made = stage_rows(job, tables, partition=context.partitionId() if context else 0)
        except RowsRefused as error:
            raise TransformRefused(job.declared.name, error.reason) from error
        reports.made.add((made,) if made else ())
    return iter(())


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches up to the size of a piece, because Spark sends few rows at a time."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= _GATHERED_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if any(each.num_rows for each in held):
        yield pa.Table.from_batches(held)


@cache
def _keep_modules() -> None:
    """Spark collects garbage after each task, and would scan all imported modules each time."""
    gc.freeze()


def _each(numbers: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in numbers:
        yield from batch.column(0).to_pylist()
