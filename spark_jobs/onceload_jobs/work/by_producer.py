"""A worker that leaves out the records whose producer has had their id before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection

from onceload_core.errors import PipelineBusy, SettingRefused
from onceload_core.postgres.connection import CONCURRENT_CHANGE, array, statements, translated
from onceload_core.postgres.producers import register_all
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.batch.piece import FILE, PLACE, Piece
from onceload_jobs.batch.stage_folder import BlockWriter, written
from onceload_jobs.batch.used_ids import USED_IDS, used_ids_block
from onceload_jobs.formats.casts import one_array
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.work.bucket import Bucket, Deduplicating, Records, without_places
from onceload_jobs.work.new_ids import Integers, Mask, NewIds, Runs, new_ids
from onceload_jobs.write.binary_copy import copied_as, copy_in
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.sql import filled

SQL = statements("by_producer.sql", package=__package__)
#: Producers that records name have no later generations.
GENERATION = 1
_BIGINT = ColumnType(kind=Kind.BIGINT)


def dedup_by_producer(producer: RecordProducer, task: Deduplicating, bucket: Bucket) -> Piece:
    """The new rows of one bucket, under the ids of the producers that their records name."""
    records = Records.of(task.folder, bucket)
    found = until_answered(partial(_ask, producer, task, records))
    piece = written(task.folder, partial(_piece, task, list(records.kept(found.new.rows, found.columns)), found))
    return replace(piece, number=-1 - bucket.number)


@dataclass(frozen=True, kw_only=True)
class NewOfProducers:
    """Which records are new of the producers that they name."""

    order: Order
    #: The producer and the id of each record, new or not; and its file and place.
    producers: Integers
    ids: Integers
    places: tuple[Integers, Integers]
    consumed: Runs

    @cached_property
    def new(self) -> NewIds:
        return new_ids(self.producers, self.ids, self.places, self.consumed)

    @property
    def columns(self) -> dict[str, Integers]:
        """What the rows get: the ids of their producers. Where they came from stays known."""
        file, place = self.places
        return {PRODUCER_ID: self.producers, SEQUENCE: self.ids, FILE: file, PLACE: place}

    def among(self, mask: Mask) -> "NewOfProducers":
        """The same of some records."""
        file, place = self.places
        return replace(self, producers=self.producers[mask], ids=self.ids[mask], places=(file[mask], place[mask]))

    def used_ids(self, *, counts_rows: bool) -> pa.Table:
        """What the commit consumes: exactly the new ids, or of ordered producers all up to the last one."""
        runs, counts = self.new.runs, self.new.counts
        if self.order is Order.ORDERED and len(counts):
            # Skipped ids are consumed too, and refused later.
            is_last = np.append(runs.producers[1:] != runs.producers[:-1], True)
            starts = np.append(0, np.flatnonzero(is_last)[:-1] + 1)
            producers = runs.producers[is_last]
            first = self.consumed.end[np.searchsorted(self.consumed.producers, producers)]
            runs = Runs(producers=producers, first=first, end=runs.end[is_last])
            counts = np.add.reduceat(counts, starts)
        values = (runs.producers, runs.first, runs.end, counts if counts_rows else np.zeros_like(counts))
        return pa.table(dict(zip((column.name for column in USED_IDS), values, strict=True)))


def _piece(
    task: Deduplicating, kept: Sequence[tuple[pa.Table, tuple[Column, ...]]], found: NewOfProducers, into: BlockWriter
) -> Piece:
    for rows, added in kept:
        task.form.write(into, rows if task.is_followed else without_places(rows), added)
    new = found.new.rows
    count, blocks = int(new.sum()), len(into.blocks)
    used_ids_block(into, found.used_ids(counts_rows=task.counts_rows))
    return Piece(
        number=-1,
        rows=count,
        duplicates=len(new) - count,
        file=into.file,
        blocks=tuple(into.blocks[:blocks]),
        ids=tuple(into.blocks[blocks:]),
    )


@dataclass(frozen=True, kw_only=True)
class _Named:
    """How the records of a bucket name themselves."""

    #: The different names of producers, as the values of their column.
    called: pa.Array
    #: Which of these names each record has, and its sequence id.
    numbers: Integers
    ids: Integers

    @classmethod
    def of(cls, records: Records, producer: RecordProducer) -> "_Named":
        called = one_array(records.column(producer.name)).dictionary_encode()
        numbers = called.indices.to_numpy().astype(np.int64)
        return cls(called=called.dictionary, numbers=numbers, ids=records.integers(producer.sequence))

    @property
    def as_table(self) -> pa.Table:
        """Each name with its number, and its first and last id."""
        ids = pa.table({"number": self.numbers, "id": self.ids}).group_by("number")
        ends = ids.aggregate([("id", "min"), ("id", "max")])
        return pa.table(
            {
                "number": ends.column("number"),
                "called": self.called.take(one_array(ends.column("number"))),
                "first": ends.column("id_min"),
                "last": ends.column("id_max"),
            }
        )


def _ask(producer: RecordProducer, task: Deduplicating, records: Records) -> NewOfProducers:
    job = task.job
    doing = translated(pipeline=job.declared.name, doing="looking for new records")
    with doing, engine_of(job).begin() as connection:
        return new_of_producers(connection, producer, job, records, files=task.files)


def new_of_producers(
    connection: Connection, producer: RecordProducer, job: Job, records: Records, *, files: Sequence[str]
) -> NewOfProducers:
    """Register the producers that records name, and find what they have consumed."""
    pipeline, named = job.declared.name, _Named.of(records, producer)
    _name_producers(connection, producer, job, named)
    register_all(connection, pipeline, "(SELECT DISTINCT name FROM onceload_named)", generation=GENERATION)
    where = {"pipeline": pipeline, "generation": GENERATION}
    found = connection.execute(SQL["look_up"], {**where, "files": array(files)}).all()
    if len(found) != len(named.called):
        # A producer that is not used may be forgotten right after it was registered.
        raise PipelineBusy(pipeline, CONCURRENT_CHANGE)
    if taken := [row.name for row in found if row.is_file]:
        found_name = f"{taken[0]}, which is also the name of a file"
        raise SettingRefused("producer", found_name, "other names for files (rename it)")
    if producer.order is Order.ORDERED:
        # Nothing at or below the last loaded id is new, seen or not.
        consumed = _runs(sorted({(row.producer_id, 0, row.consumed_to) for row in found}))
    else:
        consumed = _runs(connection.execute(SQL["find_consumed"], where))
    ids_of_names = np.fromiter((row.producer_id for row in found), np.int64)
    return NewOfProducers(
        order=producer.order,
        producers=ids_of_names[named.numbers],
        ids=named.ids,
        places=records.places,
        consumed=consumed,
    )


def _name_producers(connection: Connection, producer: RecordProducer, job: Job, named: _Named) -> None:
    of_names = next(column for column in job.columns if column.name == producer.name)
    connection.execute(filled(SQL["create_called"], type=str(copied_as(of_names))))
    columns = (
        Column(name="number", type=_BIGINT),
        replace(of_names, name="called"),
        Column(name="first", type=_BIGINT),
        Column(name="last", type=_BIGINT),
    )
    names = [column.name for column in columns]
    copy_in(connection, named.as_table, table="onceload_called", names=names, columns=columns)
    called = f"CAST(called AS {of_names.type})"
    connection.execute(filled(SQL["name_them"], called=called), {"prefix": producer.prefix})


def _runs(found: Iterable[Sequence[int]]) -> Runs:
    runs = np.array([tuple(row) for row in found], np.int64).reshape(-1, 3)
    return Runs(producers=runs[:, 0], first=runs[:, 1], end=runs[:, 2])
