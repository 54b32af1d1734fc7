"""The rows that Spark SQL makes of records, which are proven already: how often it reads them does not matter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Block, MadeOf, Piece, PieceGone, Refused
from onceload_jobs.batch.stage_folder import BlockWriter, StageFolder, content_of, written_once
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.work.spark.transform import as_declared, for_spark
from onceload_jobs.write.binary_copy import encoded
from onceload_jobs.write.writer import ColumnsDiffer, Writer

BATCH_ROWS = 65_536
#: How much of the made rows is written at once.
_GATHERED_BYTES = 16 * 2**20


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

    job: Job
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
