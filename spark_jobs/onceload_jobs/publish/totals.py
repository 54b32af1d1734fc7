"""What a batch proves in all: what was read of its files, and how many rows were made of it.

Rows of a transform name their record by `_producer_id` and `_sequence`, if it hands both on. If all do, each record
without a row is counted as filtered, whatever number of rows the others have. If any row names no record, it is unknown
which records it was made of, and none is counted. If there are no rows at all, all records are filtered.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sqlalchemy import Connection

from onceload_core.names import ProducerId
from onceload_core.ports import Advance, MadeOfRecords, QuarantinedRecord
from onceload_core.postgres.connection import statements
from onceload_core.replay import Condition, Counts
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import HALF_A_NAME, Job, lineage_refused
from onceload_jobs.batch.piece import MadeOf, Piece, advances_of
from onceload_jobs.batch.stage import Stage, StageLost, still_there
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.limits import check_quarantine
from onceload_jobs.write.sql import filled

SQL = statements("totals.sql", package=__package__)


@dataclass(frozen=True, kw_only=True)
class BatchTotals:
    """The rows and proofs of all pieces of a batch, summed up."""

    rows: int
    #: How many good records were read; a transform may make more or fewer rows of them.
    records: int
    bytes: int
    quarantined: tuple[QuarantinedRecord, ...]
    advances: tuple[Advance, ...]
    #: The generations whose rows are replaced.
    replaced: tuple[ProducerId, ...]
    #: How many records repeat others.
    duplicates: int
    #: How many records a transform made no row of.
    filtered: int = 0
    #: The records of the quarantine that the rows were made of, and how, if not one of each.
    settled: Mapping[tuple[ProducerId, int], str] = field(default_factory=dict)
    made: MadeOfRecords | None = None

    @classmethod
    def of(cls, job: Job, pieces: Sequence[Piece]) -> "BatchTotals":
        advances = advances_of(pieces)
        if job.records_have_own_ids:
            # Workers count the rows that are left, if they are those of files.
            rows_of = Counter[ProducerId]()
            for each in _made_of(pieces):
                rows_of[each.producer_id] += each.rows
            advances = tuple(replace(each, rows=rows_of[each.producer_id]) for each in advances)
        ids = {advance.producer_id for advance in advances}
        replaced = tuple(each.old for new, each in job.replaced.items() if new in ids)
        gone = (Advance(producer_id=old, spans=SpanSet(), condition=Condition.REPLACED) for old in replaced)
        return cls(
            rows=sum(piece.rows for piece in pieces),
            records=sum(piece.records for piece in pieces),
            bytes=sum(piece.bytes for piece in pieces),
            quarantined=tuple(record for piece in pieces for record in piece.quarantined),
            advances=(*advances, *gone),
            replaced=replaced,
            duplicates=sum(piece.duplicates for piece in pieces),
            settled={record: digest for piece in pieces for record, digest in piece.settled.items()},
        )

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self.advances or self.settled)

    @property
    def counts(self) -> Counts:
        return Counts(
            loaded=self.rows,
            duplicate=self.duplicates,
            quarantined=len(self.quarantined),
            filtered=self.filtered,
        )

    def with_made(self, job: Job, pieces: Sequence[Piece], made_of: Sequence[MadeOf]) -> "BatchTotals":
        """With the rows of each file, and the number of records without any.

        Only records of the batch may be named. More of them than were read show that a row names another place.
        """
        new = self.records - self.duplicates
        if not job.has_lineage:
            return self._with_rows_of({}, filtered=0 if self.rows else new)
        read = Counter({advance.producer_id: advance.rows for advance in advances_of(pieces)})
        read.update(producer_id for producer_id, _ in self.settled)
        rows_of, named = dict.fromkeys(read, 0), dict.fromkeys(read, 0)
        for each in made_of:
            if each.producer_id not in read:
                raise lineage_refused(job, "rows name a file of which this batch has read nothing")
            rows_of[each.producer_id] += each.rows
            named[each.producer_id] += each.records
        if any(named[producer_id] > records for producer_id, records in read.items()):
            raise lineage_refused(job, "rows name records that this batch has not read")
        name_all = sum(rows_of.values()) == self.rows
        return self._with_rows_of(rows_of, filtered=new - sum(named.values()) if name_all else 0)

    def _with_rows_of(self, rows_of: Mapping[ProducerId, int], *, filtered: int) -> "BatchTotals":
        advances = tuple(replace(each, rows=rows_of.get(each.producer_id, 0)) for each in self.advances)
        made = MadeOfRecords(rows=self.rows, rows_of=rows_of, filtered=filtered)
        return replace(self, advances=advances, filtered=filtered, made=made)


def check_pieces(declared: Declared, pieces: Sequence[Piece]) -> None:
    """Refuse more bad records than the pipeline allows."""
    bad = [record for piece in pieces for record in piece.quarantined]
    check_quarantine(declared, bad, records=sum(piece.records for piece in pieces) + len(bad))


class SharedRecords(Exception):
    """Rows of several pieces may name the same record, so that only a table shows how many records have none."""


def made_in_pieces(pieces: Sequence[Piece]) -> Sequence[MadeOf]:
    """The records that the pieces say their rows name."""
    made_of = _made_of(pieces)
    ends = sorted((each.producer_id, each.first, each.last) for each in made_of if each.records)
    if any(before[0] == after[0] and after[1] <= before[2] for before, after in pairwise(ends)):
        raise SharedRecords
    return made_of


def _made_of(pieces: Sequence[Piece]) -> list[MadeOf]:
    return [each for piece in pieces for each in piece.made_of]


def made_in_table(connection: Connection, job: Job, stage: Stage, *, rows: int) -> Sequence[MadeOf]:
    """The same of the rows in the table of the stage, all of which must be there."""
    with still_there(stage):
        found = connection.execute(filled(SQL["count_by_record"], rows=stage.rows)).all()
    if sum(each.rows for each in found) != rows:
        raise StageLost(stage.rows)
    # Some rows may name nothing.
    named = [each for each in found if each.producer_id is not None or each.records]
    if any(each.producer_id is None or each.without_record for each in named):
        raise lineage_refused(job, HALF_A_NAME)
    return [MadeOf(producer_id=each.producer_id, rows=each.rows, records=each.records) for each in named]


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
