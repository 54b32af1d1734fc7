"""A task that leaves out the records whose producer has had their id before."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
from sqlalchemy import Connection

from onceload_core.errors import PipelineBusy, SettingRefused
from onceload_core.postgres.connection import CONCURRENT_CHANGE, array, statements
from onceload_core.postgres.producers import register_all
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import FILE, PLACE, Piece
from onceload_jobs.batch.stage_folder import BlockWriter, written
from onceload_jobs.batch.used_ids import USED_IDS, used_ids_block
from onceload_jobs.formats.casts import one_array
from onceload_jobs.formats.records import Indices, Mask
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import RecordProducer
from onceload_jobs.work.dedup import Bucket, Deduplicating, Records
from onceload_jobs.write.binary_copy import copied_as, copy_in
from onceload_jobs.write.sql import filled

SQL = statements("by_producer.sql", package=__package__)
#: Producers that records name have no later generations.
GENERATION = 1
_BIGINT = ColumnType(kind=Kind.BIGINT)


def dedup_by_producer(producer: RecordProducer, task: Deduplicating, bucket: Bucket) -> Piece:
    """The new rows of one bucket, under the ids of the producers that their records name."""
    records = Records.of(task.folder, bucket)
    found = task.ask(lambda connection: new_of_producers(connection, producer, task.job, records, files=task.files))
    return written(task.folder, partial(_piece, task, bucket, records, found))


def _piece(task: Deduplicating, bucket: Bucket, records: Records, found: "NewOfProducers", into: BlockWriter) -> Piece:
    new = found.new.rows
    task.write(into, records.kept(new, found.columns))
    count, blocks = int(new.sum()), len(into.blocks)
    used_ids_block(into, found.used_ids(counts_rows=task.counts_rows))
    return Piece(
        number=-1 - bucket.number,
        rows=count,
        duplicates=len(new) - count,
        file=into.file,
        blocks=tuple(into.blocks[:blocks]),
        ids=tuple(into.blocks[blocks:]),
    )


def new_of_producers(
    connection: Connection, producer: RecordProducer, job: Job, records: Records, *, files: Sequence[str]
) -> "NewOfProducers":
    """Register the producers that records name, and find what they have consumed."""
    pipeline = job.declared.name
    called = one_array(records.column(producer.name)).dictionary_encode()
    numbers, ids = called.indices.to_numpy().astype(np.int64), records.integers(producer.sequence)
    _name_producers(connection, producer, job, _ends_of(called.dictionary, numbers, ids))
    register_all(connection, pipeline, "(SELECT DISTINCT name FROM onceload_named)", generation=GENERATION)
    where = {"pipeline": pipeline, "generation": GENERATION}
    found = connection.execute(SQL["look_up"], {**where, "files": array(files)}).all()
    if len(found) != len(called.dictionary):
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
    return NewOfProducers(
        order=producer.order,
        producers=np.fromiter((row.producer_id for row in found), np.int64)[numbers],
        ids=ids,
        places=records.places,
        consumed=consumed,
    )


def _ends_of(called: pa.Array, numbers: Indices, ids: Indices) -> pa.Table:
    """Each name that records call their producers by, with its number, and its first and last id."""
    ends = pa.table({"number": numbers, "id": ids}).group_by("number").aggregate([("id", "min"), ("id", "max")])
    number = ends.column("number")
    values = {"number": number, "called": called.take(one_array(number))}
    return pa.table({**values, "first": ends.column("id_min"), "last": ends.column("id_max")})


def _name_producers(connection: Connection, producer: RecordProducer, job: Job, names: pa.Table) -> None:
    of_names = next(column for column in job.columns if column.name == producer.name)
    connection.execute(filled(SQL["create_called"], type=str(copied_as(of_names))))
    columns = [
        replace(of_names, name=name) if name == "called" else Column(name=name, type=_BIGINT)
        for name in names.column_names
    ]
    copy_in(connection, names, table="onceload_called", names=names.column_names, columns=columns)
    called = f"CAST(called AS {of_names.type})"
    connection.execute(filled(SQL["name_them"], called=called), {"prefix": producer.prefix})


def _runs(found: Iterable[Sequence[int]]) -> "Runs":
    runs = np.array([tuple(row) for row in found], np.int64).reshape(-1, 3)
    return Runs(producers=runs[:, 0], first=runs[:, 1], end=runs[:, 2])


@dataclass(frozen=True, kw_only=True)
class NewOfProducers:
    """Which records are new of the producers that they name."""

    order: Order
    #: The producer and the id of each record, new or not; and its file and place.
    producers: Indices
    ids: Indices
    places: tuple[Indices, Indices]
    consumed: "Runs"

    @cached_property
    def new(self) -> "NewIds":
        return new_ids(self.producers, self.ids, self.places, self.consumed)

    @property
    def columns(self) -> dict[str, Indices]:
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


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Ranges of ids, `first` to before `end`, by producer and then by id."""

    producers: Indices
    first: Indices
    end: Indices

    def cover(self, producers: Indices, ids: Indices) -> Mask:
        """Whether each of these ids, in the same order, is in one of the ranges."""
        if not len(self.first):
            return np.zeros(len(ids), bool)
        of_runs = len(self.first)
        both = (
            # A range comes before the ids that it begins with.
            np.repeat([0, 1], [of_runs, len(ids)]),
            np.concatenate([self.first, ids]),
            np.concatenate([self.producers, producers]),
        )
        order = np.lexsort(both)
        last_run = np.maximum.accumulate(np.where(order < of_runs, order, -1))[order >= of_runs]
        run = np.maximum(last_run, 0)
        covers: Mask = (last_run >= 0) & (self.producers[run] == producers) & (ids < self.end[run])
        return covers


@dataclass(frozen=True, kw_only=True)
class NewIds:
    """The rows with a new id, and these ids."""

    rows: Mask
    runs: Runs
    #: How many rows each range has.
    counts: Indices


def new_ids(producers: Indices, ids: Indices, places: tuple[Indices, Indices], consumed: Runs) -> NewIds:
    """The first of several rows of one id counts: by file, and by the place in it."""
    files, in_file = places
    order = np.lexsort((in_file, files, ids, producers))
    producers, ids = producers[order], ids[order]
    is_first = np.ones(len(ids), bool)
    is_first[1:] = (producers[1:] != producers[:-1]) | (ids[1:] != ids[:-1])
    is_new = is_first & ~consumed.cover(producers, ids)
    rows = np.zeros(len(ids), bool)
    rows[order[is_new]] = True
    return _in_runs(rows, producers[is_new], ids[is_new])


def _in_runs(rows: Mask, producers: Indices, ids: Indices) -> NewIds:
    """New ids, which are in order and each there once, as ranges."""
    begins = np.ones(len(ids), bool)
    begins[1:] = (producers[1:] != producers[:-1]) | (ids[1:] != ids[:-1] + 1)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(ids))[: len(starts)]
    runs = Runs(producers=producers[starts], first=ids[starts], end=ids[ends - 1] + 1)
    return NewIds(rows=rows, runs=runs, counts=ends - starts)
