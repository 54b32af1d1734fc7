"""Spark, by the DataFrame API: what tasks read and write never crosses into the JVM, but for the rows of transforms."""

import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property, partial
from secrets import token_hex

import pyarrow as pa
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from onceload_core.errors import OnceloadError, SettingRefused
from onceload_jobs.batch.folders import NO_FOLDER
from onceload_jobs.batch.job import Job, TransformRefused
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage_folder import StageFolder
from onceload_jobs.executor.spark import SparkExecutor
from onceload_jobs.work.failures import TasksFailed
from onceload_jobs.work.read_chunk import Reading
from onceload_jobs.work.spark.made_rows import MadePieces, made_piece, records
from onceload_jobs.work.spark.messages import SPARK_ERRORS, message_of, sql_state_of
from onceload_jobs.work.spark.transform import spark_schema, with_output
from onceload_jobs.write.find_refused import ROW_REFUSED
from onceload_jobs.write.writer import Writer

#: As long as a job gets as many tasks as Spark runs at once, by default.
_MANY = 2**20
#: On lines of its own, because it may end with a comment.
_QUERY = """WITH records AS (SELECT * FROM {view}) SELECT * FROM (
{sql}
) AS made"""

_LINE = re.compile(r"\(line (\d+),")


class Spark(SparkExecutor):
    """A session of Spark: it runs functions as tasks, and transforms."""

    def __init__(self, session: SparkSession, pipeline: str, *, batch: str) -> None:
        super().__init__(session, name=f"{pipeline} {batch}")
        self._pipeline = pipeline

    @property
    def ui(self) -> str | None:
        """Its pages, if it knows them."""
        return None

    @cached_property
    def slots(self) -> int:
        """As many as a job has tasks that does not say how many it wants."""
        with self._in_our_words():
            return self._session.range(_MANY).selectExpr("spark_partition_id()").distinct().count()

    def transform(self, job: Job, reading: Reading, read: Sequence[Piece]) -> MadePieces:
        """The rows that a transform makes of all records that were read."""
        make = partial(_make, job, reading.form.writer, reading.folder)
        with self._in_our_words(), self._transformed(job, reading.folder, read) as made:
            pieces = [pickle.loads(row.piece) for row in made.mapInArrow(make, "piece binary").collect()]  # noqa: S301 - of our own tasks.
        failed = [each for each in pieces if isinstance(each, Exception)]
        if failed:
            raise failed[0]
        numbered = [replace(piece, number=-1 - number) for number, piece in enumerate(pieces)]
        return MadePieces(job=job, folder=reading.folder, read=read, made=numbered)

    def writing(self, job: Job) -> Job:
        """The job, with the columns that its transform makes."""
        with self._in_our_words():
            try:
                with self._transformed(job, NO_FOLDER, ()) as made:
                    # Spark's own functions that convert schemas differ from release to release.
                    schema = made.limit(0).toArrow().schema
            except ParseException:
                # Alone, it has a clearer error.
                _ = self._session.sql(f"EXPLAIN\n{job.declared.transform}").schema
                raise
            return with_output(job, schema)

    @contextmanager
    def _transformed(self, job: Job, folder: StageFolder, read: Sequence[Piece]) -> Iterator[DataFrame]:
        """The rows of the transform; computing only the schema reads no records."""
        shape = from_arrow_schema(spark_schema(job.columns), prefer_timestamp_ntz=True)
        numbers = self._session.range(0, len(read), 1, max(1, len(read)))
        # Other loads may use the same session.
        view = f"onceload_records_{token_hex(8)}"
        numbers.mapInArrow(partial(records, job, folder, read), shape).createOrReplaceTempView(view)
        try:
            yield self._session.sql(_QUERY.format(view=view, sql=(job.declared.transform or "").rstrip().rstrip(";")))
        finally:
            # If Spark is gone, so is the view.
            with suppress(*SPARK_ERRORS):
                self._session.catalog.dropTempView(view)

    @contextmanager
    def _in_our_words(self) -> Iterator[None]:
        """Shorten Spark's messages to one sentence."""
        try:
            yield
        except AnalysisException as error:
            raise SettingRefused(
                "transform", _of_query(message_of(error)), "Spark SQL over the view records"
            ) from error
        except SPARK_ERRORS as error:
            if sql_state_of(error).startswith(ROW_REFUSED):
                raise TransformRefused(self._pipeline, message_of(error)) from error
            raise TasksFailed(self._pipeline, self.why(error)) from error

    def why(self, error: Exception) -> str:
        return f"Spark did not run all tasks: {message_of(error)}"


def _of_query(message: str) -> str:
    """The same message with the line in the query, which begins on the second line of what Spark was asked."""
    return _LINE.sub(lambda found: f"(line {int(found[1]) - 1},", message)


def _make(job: Job, writer: Writer, folder: StageFolder, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    made: Piece | Exception
    try:
        made = made_piece(job, writer, folder, batches)
    except OnceloadError as error:
        # A retry would meet it too.
        made = error
    yield pa.record_batch([pa.array([pickle.dumps(made)], pa.binary())], names=["piece"])
