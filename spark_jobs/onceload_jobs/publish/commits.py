"""What a batch proves in all, and its one commit.

It is of what was read of files, or of the records of the quarantine that the batch settles.

Rows of a transform name their record by `_producer_id` and `_sequence`, if it hands both on. If all do, each record
without a row is counted as filtered, whatever number of rows the others have. If any row names no record, it is unknown
which records it was made of, and none is counted. If there are no rows at all, all records are filtered.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import AlreadyConsumed, RowsRefused
from onceload_core.events import event
from onceload_core.names import ProducerId
from onceload_core.ports import Advance, Claim, MadeOfRecords, QuarantinedRecord
from onceload_core.postgres import BulkCommit, BulkSettlement, PostgresLedger
from onceload_core.postgres.connection import first_line, statements
from onceload_core.replay import Condition, Counts, EntryKind
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import HALF_A_NAME, Job, lineage_refused
from onceload_jobs.batch.piece import MadeOf, Piece, advances_of
from onceload_jobs.batch.stage import Stage, StageLost, still_there
from onceload_jobs.batch.used_ids import OFFERED, IdTables
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.bad_records import check_quarantine
from onceload_jobs.write.find_refused import is_of_rows
from onceload_jobs.write.sql import filled, table_name
from onceload_jobs.write.until_certain import until_certain

SQL = statements("commits.sql", package=__package__)


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


def check_pieces(declared: Declared, pieces: Sequence[Piece]) -> None:
    """Refuse more bad records than the pipeline allows."""
    bad = [record for piece in pieces for record in piece.quarantined]
    check_quarantine(declared, bad, records=sum(piece.records for piece in pieces) + len(bad))


def until_it_took_effect(
    ledger: PostgresLedger, job: Job, write: Callable[[], bool], *, last_totals: Callable[[], BatchTotals | None]
) -> bool:
    """Write a batch until it is certain that it took effect, completely or not at all; whether this process saw it.

    `write` returns whether there was anything to commit, and `last_totals` what its last try would have committed.
    """
    unsure: BatchTotals | None = None
    has_committed = False

    def find_rest() -> Callable[[], bool] | None:
        return None if unsure is not None and _took_effect(ledger, job, unsure) else write

    def try_once(write: Callable[[], bool]) -> None:
        nonlocal has_committed
        try:
            has_committed = write()
        except AlreadyConsumed:
            # The other process may be an earlier try of this one, whose COMMIT came late.
            if unsure is None or not _took_effect(ledger, job, unsure):
                raise

    def note_unsure() -> None:
        nonlocal unsure
        unsure = last_totals()

    until_certain(find_rest, try_once, is_whole=True, on_unsure=note_unsure)
    return has_committed


def _took_effect(ledger: PostgresLedger, job: Job, totals: BatchTotals) -> bool:
    """A commit exists completely or not at all, so one of its spans is enough to check."""
    probe = next((advance for advance in totals.advances if advance.spans), None)
    if probe is None:
        return False
    known = ledger.know(job.session, [probe.producer_id])
    return known[probe.producer_id].state.consumed.covers(probe.spans)


def refuse_repeats(ledger: PostgresLedger, job: Job, advances: Sequence[Advance]) -> None:
    """Rows that collide with those of a process that was first, or of an earlier try, are not bad."""
    read = {advance.producer_id: advance.spans for advance in advances}
    if not read:
        return
    repeated = tuple(
        f"producer {producer_id}"
        for producer_id, knowledge in ledger.know(job.session, list(read)).items()
        if knowledge.state.consumed.overlaps(read[producer_id])
    )
    if repeated:
        raise AlreadyConsumed(job.declared.name, repeated)


def publish_commit(
    ledger: PostgresLedger,
    job: Job,
    totals: BatchTotals,
    ids: IdTables,
    *,
    write_rows: Callable[[Connection], int],
    claim: Claim | None,
    is_last: bool = True,
    begun: Connection | None = None,
    is_logged_as: str = "batch_published",
) -> None:
    """Commit a batch, whose ids are offered in tables."""
    commit = _commit_of(job, totals, ids, write_rows=write_rows, claim=claim, is_last=is_last)
    with refusing_rows(job):
        if isinstance(commit, BulkSettlement):
            ledger.settle(commit, begun=begun)
            return
        position = ledger.commit(commit, begun=begun)
    event(
        is_logged_as,
        pipeline=job.declared.name,
        batch=job.batch,
        session=job.session.name,
        position=position,
        rows=totals.rows,
        quarantined=len(totals.quarantined),
    )


def _commit_of(
    job: Job,
    totals: BatchTotals,
    ids: IdTables,
    *,
    write_rows: Callable[[Connection], int],
    claim: Claim | None,
    is_last: bool,
) -> BulkCommit | BulkSettlement:
    settling = partial(
        BulkSettlement, kind=EntryKind.RETRY, session=job.session, batch=job.batch, records=totals.settled
    )
    if totals.settled and ids.used is None:
        return settling(write_rows=write_rows, made=totals.made, bytes=totals.bytes, offered_messages=ids.messages)
    load = BulkCommit(
        session=job.session,
        batch=job.batch,
        advances=totals.advances,
        write_rows=write_rows,
        claim=claim,
        is_last=is_last,
        counts=totals.counts,
        bytes=totals.bytes,
        quarantined=totals.quarantined,
        run=job.run,
        engine=job.engine,
        spark_ui=job.spark_ui,
        offered=OFFERED if ids.used else None,
        offered_messages=ids.messages,
    )
    if not totals.settled:
        return load
    # The rows of records that name their producers are in a commit of their own.
    return settling(write_rows=lambda _: 0, made=MadeOfRecords(rows=0, rows_of={}), load=load)


@contextmanager
def refusing_rows(job: Job) -> Iterator[None]:
    """Translate the target's refusal of the batch, while the server's own message is still available."""
    try:
        yield
    except DBAPIError as error:
        if not is_of_rows(error):
            raise
        raise RowsRefused(job.declared.name, table_name(job.declared.target), first_line(error)) from error
