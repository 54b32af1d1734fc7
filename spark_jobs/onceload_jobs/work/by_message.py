"""A task that leaves out the records whose business id was loaded before, or is that of an earlier record."""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from sqlalchemy import Connection

from onceload_core.names import ProducerId
from onceload_core.postgres.connection import statements
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import MadeOf, Piece
from onceload_jobs.batch.stage_folder import BlockWriter, written
from onceload_jobs.batch.used_ids import USED_IDS, messages_block, used_ids_block
from onceload_jobs.formats.records import Indices, Mask
from onceload_jobs.pipeline.columns import PRODUCER_ID, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import MessageId
from onceload_jobs.work.dedup import Bucket, Deduplicating, Records
from onceload_jobs.write.binary_copy import copied_as, copy_in, copy_out
from onceload_jobs.write.sql import filled

SQL = statements("by_message.sql", package=__package__)
_BIGINT = ColumnType(kind=Kind.BIGINT)
#: A row of COPY with a number and a hash, each behind its size.
_ROW = np.dtype([("columns", ">i2"), ("size", ">i4"), ("number", ">i8"), ("hash_size", ">i4"), ("hash", "S32")])
_HEADER_BYTES, _TRAILER_BYTES = 19, 2


@dataclass(frozen=True, kw_only=True)
class NewMessages:
    """Which records are new, and the hashes of their ids, in order."""

    rows: Mask
    hashes: NDArray[np.bytes_]


def dedup_by_message(message_id: MessageId, task: Deduplicating, bucket: Bucket) -> Piece:
    """The new rows of one bucket, and their business ids."""
    records = Records.of(task.folder, bucket)
    found = task.ask(lambda connection: new_messages(connection, message_id, task.job, records))
    return written(task.folder, partial(_piece, task, bucket, records, found))


def _piece(task: Deduplicating, bucket: Bucket, records: Records, found: NewMessages, into: BlockWriter) -> Piece:
    is_new, hashes = found.rows, found.hashes
    task.write(into, records.kept(is_new, {}))
    blocks = len(into.blocks)
    messages_block(into, hashes)
    names_producers = task.job.declared.producer is not None
    producers = records.integers(PRODUCER_ID)[is_new]
    if task.counts_rows and names_producers:
        used_ids_block(into, _counts(producers))
    return Piece(
        number=-1 - bucket.number,
        rows=len(hashes),
        duplicates=len(is_new) - len(hashes),
        file=into.file,
        blocks=tuple(into.blocks[:blocks]),
        messages=tuple(into.blocks[blocks : blocks + 1]),
        ids=tuple(into.blocks[blocks + 1 :]),
        made_of=_made_of(producers) if task.counts_rows and not names_producers else (),
    )


def new_messages(connection: Connection, message_id: MessageId, job: Job, records: Records) -> NewMessages:
    """Which records are new: the first of each business id that is not in the window of the pipeline.

    Ids are compared by their hashes, which the server makes: it knows which values have the same text.
    """
    # They may be called anything.
    ids = {f"id{number}": name for number, name in enumerate(message_id.columns)}
    of_names = {column.name: column for column in job.columns}
    columns = [replace(of_names[name], name=place) for place, name in ids.items()]
    values = {place: records.column(name) for place, name in ids.items()}
    count = len(records.places[0])
    rows = pa.table({"number": pa.array(np.arange(count)), **values})
    hashed = ", ".join(f"CAST({place} AS text)" for place in ids)
    typed = ", ".join(f"{column.name} {copied_as(column)}" for column in columns)
    connection.execute(filled(SQL["create_ids"], columns=typed))
    all_columns = [Column(name="number", type=_BIGINT), *columns]
    copy_in(connection, rows, table="onceload_ids", names=rows.column_names, columns=all_columns)
    window = connection.execute(SQL["window"], {"pipeline": job.declared.name}).one()
    texts = {"ids": hashed, "pipeline_id": str(window.pipeline_id), "first_day": str(window.first_day)}
    copied = copy_out(connection, filled(SQL["find_unknown"], **texts).text)
    return _first_of_each(np.frombuffer(copied[_HEADER_BYTES:-_TRAILER_BYTES], _ROW), records)


def _first_of_each(asked: NDArray[np.void], records: Records) -> NewMessages:
    files, places = records.places
    in_files = asked[np.lexsort((places[asked["number"]], files[asked["number"]]))]
    by_hash = in_files[np.argsort(in_files["hash"], kind="stable")]
    is_first = np.ones(len(by_hash), bool)
    is_first[1:] = by_hash["hash"][1:] != by_hash["hash"][:-1]
    new = by_hash[is_first]
    is_new = np.zeros(len(files), bool)
    is_new[new["number"]] = True
    return NewMessages(rows=is_new, hashes=new["hash"])


def _counts(producers: Indices) -> pa.Table:
    """How many rows each producer has; which ids it uses up is in other pieces."""
    ids, counts = np.unique(producers, return_counts=True)
    values = (ids, np.zeros_like(ids), np.zeros_like(ids), counts)
    return pa.table(dict(zip((column.name for column in USED_IDS), values, strict=True)))


def _made_of(producers: Indices) -> tuple[MadeOf, ...]:
    """How many rows each file has."""
    found = zip(*np.unique(producers, return_counts=True), strict=True)
    return tuple(MadeOf(producer_id=ProducerId(int(each)), rows=int(rows), records=int(rows)) for each, rows in found)
