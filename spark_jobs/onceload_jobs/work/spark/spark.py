"""Spark, by the DataFrame API: what tasks read and write never crosses into the JVM, but for the rows of transforms.

The records of a transform are proven already: how often Spark SQL reads them does not matter.
"""

import pickle
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from secrets import token_hex
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from onceload_core.errors import OnceloadError, SettingRefused
from onceload_jobs.batch.folders import NO_FOLDER
from onceload_jobs.batch.job import Job, TransformRefused
from onceload_jobs.batch.piece import Block, BlockLost, MadeOf, Piece, PieceGone, Refused
from onceload_jobs.batch.stage_folder import BlockWriter, StageFolder, content_of, written_once
from onceload_jobs.executor.spark import SPARK_ERRORS, SparkExecutor, message_of, sql_state_of
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.work.failures import TasksFailed
from onceload_jobs.work.read_chunk import Reading
from onceload_jobs.work.spark.transform import BATCH_ROWS, as_declared, for_spark, spark_schema, with_output
from onceload_jobs.write.binary_copy import encoded
from onceload_jobs.write.find_refused import ROW_REFUSED
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: As long as a job gets as many tasks as Spark runs at once, by default.
_MANY = 2**20
#: On lines of its own, because it may end with a comment.
_QUERY = """WITH records AS (SELECT * FROM {view}) SELECT * FROM (
{sql}
) AS made"""

#: How much of the made rows is written at once.
_GATHERED_BYTES = 16 * 2**20
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

    def transform(self, job: Job, reading: Reading, read: Sequence[Piece]) -> "MadePieces":
        """The rows that a transform makes of all records that were read."""
        make = partial(_make, job, reading.form.writer, reading.folder)
        try:
            with self._in_our_words(), self._transformed(job, reading.folder, read) as made:
                pieces = [pickle.loads(row.piece) for row in made.mapInArrow(make, "piece binary").collect()]  # noqa: S301 - of our own tasks.
        except TasksFailed:
            # Spark does not report that records are lost.
            _check_there(reading.folder, read)
            raise
        failed = [each for each in pieces if isinstance(each, Exception)]
        if failed:
            raise failed[0]
        numbered = [replace(piece, number=-1 - number) for number, piece in enumerate(pieces)]
        return MadePieces(folder=reading.folder, read=read, made=numbered)

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


def records(
    job: Job, folder: StageFolder, pieces: Sequence[Piece], numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """In a task of Spark: the records of the pieces with these numbers."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            for block in pieces[number].blocks:
                stream = b"".join(content_of(folder, pieces[number], block))
                rows = pa.ipc.open_stream(stream).read_all()
                yield from for_spark(rows, job.columns).to_batches(max_chunksize=BATCH_ROWS)


def _check_there(folder: StageFolder, pieces: Sequence[Piece]) -> None:
    """Raise PieceGone unless all records of the pieces are there."""
    try:
        for piece in pieces:
            for block in piece.blocks:
                deque(content_of(folder, piece, block), maxlen=0)
    except BlockLost as lost:
        raise PieceGone from lost


def made_piece(job: Job, writer: Writer, folder: StageFolder, batches: Iterator[pa.RecordBatch]) -> Piece:
    """In a task of Spark: the rows of one partition, in a file of their own."""
    return written_once(folder, partial(_made_piece, job, writer, batches))


def _made_piece(job: Job, writer: Writer, batches: Iterator[pa.RecordBatch], into: BlockWriter) -> Piece:
    made_of: list[MadeOf] = []
    for table in _gathered(batches):
        rows = as_declared(table, job)
        into.write(encoded(rows, writer.columns, names=writer.names), rows=rows.num_rows)
        made_of += _made_of(rows)
    count = sum(block.rows for block in into.blocks)
    return Piece(number=-1, rows=count, file=into.file, blocks=tuple(into.blocks), made_of=tuple(made_of))


def _gathered(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """Combine batches up to the size of a block, because Spark sends few rows at a time."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        if sum(each.nbytes for each in held) >= _GATHERED_BYTES:
            yield pa.Table.from_batches(held)
            held = []
    if any(each.num_rows for each in held):
        yield pa.Table.from_batches(held)


def _made_of(table: pa.Table) -> Iterator[MadeOf]:
    if {PRODUCER_ID, SEQUENCE} <= set(table.column_names):
        named = table.filter(pc.field(PRODUCER_ID).is_valid())
        by_record = named.group_by([PRODUCER_ID, SEQUENCE]).aggregate([([], "count_all")])
        counts = [("count_all", "sum"), (SEQUENCE, "count"), (SEQUENCE, "min"), (SEQUENCE, "max")]
        for each in by_record.group_by(PRODUCER_ID).aggregate(counts).to_pylist():
            yield MadeOf(
                producer_id=each[PRODUCER_ID],
                rows=each["count_all_sum"],
                records=each[f"{SEQUENCE}_count"],
                first=each[f"{SEQUENCE}_min"] or 0,
                last=each[f"{SEQUENCE}_max"] or 0,
            )


@dataclass(frozen=True, kw_only=True)
class MadePieces:
    """The pieces that were read, and the rows that Spark SQL made of them."""

    folder: StageFolder
    read: Sequence[Piece]
    made: Sequence[Piece]

    def each(self) -> Iterator[Piece]:
        yield from (piece.proof for piece in self.read)
        yield from self.made

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        return content_of(self.folder, piece, block)

    def again(self, piece: Piece) -> Piece:
        del piece
        raise PieceGone

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> NoReturn:
        del piece
        raise differing

    def without(self, piece: Piece, refused: Refused) -> NoReturn:
        del piece, refused
        raise NotImplementedError

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[()]]]:
        """Without raw bytes, no single row can be quarantined."""
        del piece
        return iter(())
