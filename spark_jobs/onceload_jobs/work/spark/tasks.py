"""The tasks of Spark, whose work never crosses into the JVM."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, partial
from typing import Any

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark import SparkContext, TaskContext
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from onceload_core.delivery import Mode
from onceload_core.errors import RowsRefused, SessionFenced, SettingRefused
from onceload_core.events import show_events
from onceload_core.names import SessionName
from onceload_jobs.batch.job import Job, TransformRefused
from onceload_jobs.files.notes import Note
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.work.failures import SparkRefused, TasksFailed
from onceload_jobs.work.session import work
from onceload_jobs.work.spark.for_transform import accept_rows, read_delivery, stage_rows
from onceload_jobs.work.spark.reports import TaskReports, message_of, raise_first, reporting_errors, sql_state_of
from onceload_jobs.work.spark.start import is_refusal, running_spark, start_spark
from onceload_jobs.work.spark.transform import as_declared, for_spark, spark_schema, with_output
from onceload_jobs.write.find_refused import ROW_REFUSED

_BATCH_ROWS = 65_536
#: How much of a transform's rows is written at once.
_GATHERED_BYTES = 16 * 2**20
#: The plan steps that leave out records regardless of their content.
_LIMITS = re.compile(r"^[\s:+-]*(GlobalLimit|LocalLimit|Offset|Tail|Sample)\b", re.MULTILINE)
#: The result of tasks that only write.
_NO_ROWS = "rows bigint"
_STOPPED = "Spark stopped (see the lines above). The master of a cluster might be unreachable, or use another secret"


class SparkTasks:
    """Spark tasks, one for each session; Spark retries those that fail."""

    def __init__(self, name: str, context: SparkContext) -> None:
        self._name, self._context = name, context

    @classmethod
    @contextmanager
    def started(
        cls, name: str, master: str | None, options: Mapping[str, str], *, tries: int = 0
    ) -> "Iterator[SparkTasks]":
        """Start Spark for one load; it retries a task at least as often as a delivery that kills it.

        A Spark that runs in this process already is used as it is, and not stopped.
        """
        if running := running_spark(master, options):
            yield cls(name, running)
            return
        try:
            context = start_spark(name, master, options, tries=tries)
        except (PySparkException, Py4JError, OSError) as error:
            reason = message_of(error).rstrip(".")
            if is_refusal(error):
                raise SparkRefused(name, reason) from error
            raise TasksFailed(name, f"Spark did not start: {reason}") from error
        try:
            yield cls(name, context)
        finally:
            # If Spark itself died, there is nothing to stop.
            with suppress(Py4JError, OSError):
                context.stop()

    @property
    def slots(self) -> int:
        try:
            return int(self._context.defaultParallelism)
        except (Py4JError, OSError) as error:
            # Spark may stop after its start, if no master answers.
            raise self._failed(error) from error

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        """Let each session, which is a partition, take deliveries until it can get no more."""
        reports = TaskReports.by_tasks_of(self._context)
        has_copies = self._context.getConf().get("spark.speculation", "false") == "true"
        with self._in_our_words(job, reports):
            # Spark SQL is not needed here, and takes seconds to start.
            each = self._context.parallelize(sessions, len(sessions))
            each.foreachPartition(partial(_work, job, reports, has_copies))
        # Repeated reads repeat their notes.
        return list(dict.fromkeys(reports.notes.value))

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        """Read each delivery at least once, and stage what the transform makes of all of them."""
        reports = TaskReports.by_tasks_of(self._context)
        with self._in_our_words(job, reports):
            self._transformed(job, tuple(deliveries), reports).mapInArrow(
                partial(_stage, job, reports), _NO_ROWS
            ).collect()
            accept_rows(job, reports.transformed.value)
        if len(set(reports.read.value)) < len(deliveries):
            # The proof would count unread records as loaded.
            expected = "Spark SQL that reads all of the view records (no LIMIT, and no condition that is always false)"
            raise SettingRefused("transform", "SQL that leaves records unread", expected)
        # Repeated reads repeat their notes.
        return list(dict.fromkeys(reports.notes.value))

    def writing(self, job: Job) -> Job:
        """The job, with the columns that its transform makes."""
        if not job.declared.needs_spark:
            return job
        reports = TaskReports.by_tasks_of(self._context)
        with self._in_our_words(job, reports):
            transformed = self._transformed(job, (), reports)
            _refuse_limits(transformed)
            return with_output(job, to_arrow_schema(transformed.schema, timezone="UTC"))

    def _transformed(self, job: Job, deliveries: tuple[Delivery, ...], reports: TaskReports) -> DataFrame:
        """The rows of the transform; computing only the schema reads no records."""
        shape = from_arrow_schema(spark_schema(job.columns))
        numbers = self._session.range(0, len(deliveries), 1, max(1, len(deliveries)))
        records = numbers.mapInArrow(partial(_read, job, deliveries, reports), shape)
        records.createOrReplaceTempView("records")
        return self._session.sql(job.declared.transform or "")

    @contextmanager
    def _in_our_words(self, job: Job, reports: TaskReports) -> Iterator[None]:
        """Raise the errors of tasks here, and shorten Spark's messages to one sentence."""
        try:
            yield
        except AnalysisException as error:
            raise SettingRefused("transform", message_of(error), "Spark SQL over the view records") from error
        except (PySparkException, Py4JError, OSError) as error:
            raise_first(reports)
            if sql_state_of(error).startswith(ROW_REFUSED):
                raise TransformRefused(job.declared.name, message_of(error)) from error
            raise self._failed(error) from error
        raise_first(reports)

    def _failed(self, error: Exception) -> TasksFailed:
        reason = f"Spark did not run all tasks: {self._why_stopped() or message_of(error)}"
        return TasksFailed(self._name, reason)

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


def _refuse_limits(transformed: DataFrame) -> None:
    """Refuse limits: they leave out arbitrary records, which would count as consumed."""
    # Python has no public API for the resolved plan.
    plan: Any = transformed._jdf.queryExecution().analyzed()  # noqa: SLF001
    if found := _LIMITS.search(plan.toString()):
        expected = f"Spark SQL without LIMIT, OFFSET and TABLESAMPLE ({found[1]}), which would lose records"
        raise SettingRefused("transform", "SQL that leaves out arbitrary records", expected)


def _work(job: Job, reports: TaskReports, has_copies: bool, sessions: Iterator[SessionName]) -> None:  # noqa: FBT001 - by partial.
    show_events(os.environ)
    context = TaskContext.get()
    # A retried task replaces the first try, unless that may still be alive, or have another name.
    is_retry = context is not None and context.attemptNumber() > 0
    waits = has_copies or not is_retry or job.declared.delivery.mode is Mode.SESSION
    # A newer epoch that took over does the rest.
    with reporting_errors(job, reports), suppress(SessionFenced):
        for name in sessions:
            reports.notes.add(tuple(work(job, name, waits=waits)))


def _read(
    job: Job, deliveries: Sequence[Delivery], reports: TaskReports, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    with reporting_errors(job, reports):
        for number in _each(numbers):
            notes: list[Note] = []
            for rows in read_delivery(job, deliveries[number], notes):
                yield from for_spark(rows, job.columns).to_batches(max_chunksize=_BATCH_ROWS)
            reports.notes.add(tuple(notes))
            reports.read.add((number,))


def _stage(job: Job, reports: TaskReports, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    context = TaskContext.get()
    with reporting_errors(job, reports):
        tables = (as_declared(table, job) for table in _gathered(batches))
        try:
            staged = stage_rows(job, tables, partition=context.partitionId() if context else 0)
        except RowsRefused as error:
            raise TransformRefused(job.declared.name, error.reason) from error
        reports.transformed.add((staged,) if staged else ())
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


def _each(numbers: Iterator[pa.RecordBatch]) -> Iterator[int]:
    for batch in numbers:
        yield from batch.column(0).to_pylist()
