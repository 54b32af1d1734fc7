"""The records that a transform has made the rows of a batch from.

Rows name their record by `_producer_id` and `_sequence`, if the transform hands both on. If all do, each record without
a row is counted as filtered, whatever number of rows the others have. If any row names no record, it is unknown which
records it was made of, and none is counted. If there are no rows at all, all records are filtered.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from sqlalchemy import Connection

from onceload_core.names import ProducerId
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.made_columns import HALF_A_NAME, lineage_refused
from onceload_jobs.batch.piece import MadeOf, Piece, records_by_file
from onceload_jobs.batch.stage import Stage, StageLost, still_there
from onceload_jobs.publish.source import SQL
from onceload_jobs.write.sql import filled


@dataclass(frozen=True, kw_only=True)
class MadeRows:
    """How many rows each file's records have, and how many records have none."""

    rows_of: Mapping[ProducerId, int]
    filtered: int

    @classmethod
    def without_lineage(cls, pieces: Sequence[Piece]) -> "MadeRows":
        has_rows = any(piece.rows for piece in pieces)
        return cls(rows_of={}, filtered=0 if has_rows else sum(piece.records - piece.duplicates for piece in pieces))

    @classmethod
    def of_pieces(cls, job: Job, pieces: Sequence[Piece]) -> "MadeRows":
        """By what the pieces say of their rows."""
        if not job.has_lineage:
            return cls.without_lineage(pieces)
        made_of = tuple(each for piece in pieces for each in piece.made_of)
        ends = sorted((each.producer_id, each.first, each.last) for each in made_of if each.records)
        if any(before[0] == after[0] and after[1] <= before[2] for before, after in pairwise(ends)):
            raise SharedRecords
        return cls.of(job, pieces, made_of)

    @classmethod
    def of(cls, job: Job, pieces: Sequence[Piece], made_of: Iterable[MadeOf]) -> "MadeRows":
        """Only records of the batch may be named. More of them than were read show that a row names another place."""
        read = records_by_file(pieces)
        rows_of, named = dict.fromkeys(read, 0), dict.fromkeys(read, 0)
        for each in made_of:
            if each.producer_id not in read:
                raise lineage_refused(job, "rows name a file of which this batch has read nothing")
            rows_of[each.producer_id] += each.rows
            named[each.producer_id] += each.records
        if any(named[producer_id] > records for producer_id, records in read.items()):
            raise lineage_refused(job, "rows name records that this batch has not read")
        name_all = sum(rows_of.values()) == sum(piece.rows for piece in pieces)
        new = sum(read.values()) - sum(piece.duplicates for piece in pieces)
        return cls(rows_of=rows_of, filtered=new - sum(named.values()) if name_all else 0)


class SharedRecords(Exception):
    """Rows of several pieces may name the same record, so that only a table shows how many records have none."""


def made_in_table(connection: Connection, job: Job, stage: Stage, *, rows: int) -> tuple[MadeOf, ...]:
    """The same of the rows in the table of the stage, all of which must be there."""
    with still_there(stage):
        found = connection.execute(filled(SQL["count_by_record"], rows=stage.rows)).all()
    if sum(each.rows for each in found) != rows:
        raise StageLost(stage.rows)
    return tuple(_made_of(job, each) for each in found if each.producer_id is not None or each.records)


def records_named(connection: Connection, job: Job, stage: Stage, *, rows: int) -> int | None:
    """The same of records that name their producers: how many have rows; None if a row names none of them."""
    used_ids = stage.id_tables(job.declared).used or ""
    with still_there(stage):
        found = connection.execute(filled(SQL["count_named"], rows=stage.rows, used_ids=used_ids)).one()
    if found.rows != rows:
        raise StageLost(stage.rows)
    if found.half_named:
        raise lineage_refused(job, HALF_A_NAME)
    if found.strange:
        raise lineage_refused(job, "rows name records that this batch has not read")
    return None if found.unnamed else found.records


def _made_of(job: Job, row: Any) -> MadeOf:  # noqa: ANN401 - a row has the types that its statement gives it.
    if row.producer_id is None or row.without_record:
        raise lineage_refused(job, HALF_A_NAME)
    return MadeOf(producer_id=row.producer_id, rows=row.rows, records=row.records, first=row.first, last=row.last)
