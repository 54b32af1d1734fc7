"""Spark: started late, told where our Python is, and given work that never crosses into the JVM."""

import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from spark_jobs.loading import Delivery, Job, deliver, read_delivery, stage_rows
from spark_jobs.plan import Note
from spark_jobs.transform import for_spark, spark_schema, with_output

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_BATCH_ROWS = 65_536

#: Every core, and four tries for a task: the local scheduler's own default is one.
MASTER = "local[*,4]"
_LOGGING = Path(__file__).parent / "log4j2.properties"
_OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
}
_LOCAL_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}


class SparkTasks:
    """Spark's tasks, one for each delivery; one that fails is tried again by Spark."""

    def __init__(self, session: "SparkSession") -> None:
        self._session = session

    @classmethod
    @contextmanager
    def started(cls, name: str, master: str | None, options: Mapping[str, str]) -> "Iterator[SparkTasks]":
        session = _start(name, master, options)
        try:
            yield cls(session)
        finally:
            session.stop()

    def run(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        """Run each delivery at least once, and say what could not be read."""
        if job.declared.transform is not None:
            return self._transform(job, deliveries)
        schema = "name string, reason string, person boolean"
        told = self._numbers(deliveries).mapInArrow(partial(_tasks, job, tuple(deliveries)), schema)
        return [Note(name=row.name, reason=row.reason, needs_a_person=row.person) for row in told.collect()]

    def writing(self, job: Job) -> Job:
        """The job, with the columns that its transform makes."""
        if job.declared.transform is None:
            return job
        from pyspark.sql.pandas.types import to_arrow_schema

        return with_output(job, to_arrow_schema(self._made(job, ()).schema, timezone="UTC"))

    def _transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        made = self._made(job, tuple(deliveries))
        made.mapInArrow(partial(_stage, job), "rows bigint").collect()
        return []

    def _made(self, job: Job, deliveries: tuple[Delivery, ...]) -> "DataFrame":
        """What the transform makes of the records; only asked for its shape, it reads none."""
        from pyspark.sql.pandas.types import from_arrow_schema

        shape = from_arrow_schema(spark_schema(job.columns))
        records = self._numbers(deliveries).mapInArrow(partial(_read, job, deliveries), shape)
        records.createOrReplaceTempView("records")
        return self._session.sql(job.declared.transform or "")

    def _numbers(self, deliveries: Sequence[Delivery]) -> "DataFrame":
        return self._session.range(0, len(deliveries), 1, max(1, len(deliveries)))


def _start(name: str, master: str | None, options: Mapping[str, str]) -> "SparkSession":
    """A session for one load; options that are given win over ours."""
    from pyspark.sql import SparkSession

    # Nothing here uses pandas, whose version Spark warns of.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(f"onceload {name}").master(master or MASTER)
    ours = _OPTIONS | ({} if master and not master.startswith("local") else _LOCAL_OPTIONS)
    for key, value in (ours | dict(options)).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _tasks(job: Job, deliveries: Sequence[Delivery], numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            notes = deliver(job, deliveries[number])
            yield pa.RecordBatch.from_pydict(
                {
                    "name": pa.array([note.name for note in notes], pa.string()),
                    "reason": pa.array([note.reason for note in notes], pa.string()),
                    "person": pa.array([note.needs_a_person for note in notes], pa.bool_()),
                }
            )


def _read(job: Job, deliveries: Sequence[Delivery], numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for rows in read_delivery(job, deliveries[number]):
                yield from for_spark(rows, job.columns).to_batches(max_chunksize=_BATCH_ROWS)


def _stage(job: Job, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    from pyspark import TaskContext

    context = TaskContext.get()
    tables = [pa.Table.from_batches([batch]) for batch in batches]
    rows = stage_rows(job, tables, partition=context.partitionId() if context else 0) if tables else 0
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})
