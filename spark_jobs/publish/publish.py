"""Publish all staged rows of a batch, with all of their proofs, in one commit."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import (
    AlreadyConsumed,
    CommitOutcomeUnknown,
    DatabaseLost,
    NeedsAPerson,
    PipelineBusy,
    RowsRefused,
)
from dedup_core.events import event
from dedup_core.names import ProducerId
from dedup_core.ports import Advance, Claim, Commit, QuarantinedRecord
from dedup_core.postgres import BulkCommit, PostgresLedger
from dedup_core.postgres.connection import CONCURRENT_CHANGE, first_line
from dedup_core.replay import Condition, Counts
from dedup_core.spans import SpanSet
from spark_jobs.batch.job import Job, Replacement
from spark_jobs.batch.pieces import StagedPiece, check_kept
from spark_jobs.batch.stage import Stage
from spark_jobs.files.notes import Note
from spark_jobs.pipeline.columns import Column
from spark_jobs.pipeline.declared import Target, Write
from spark_jobs.publish.merge import advances_of, merge_in, refuse_twice
from spark_jobs.publish.new_rows import NewRows, open_sieve
from spark_jobs.publish.replaced_rows import replace_rows
from spark_jobs.publish.source import WORK_MEMORY
from spark_jobs.read.limits import check_quarantine
from spark_jobs.write.find_refused import is_of_rows
from spark_jobs.write.patience import Patience
from spark_jobs.write.sql import quoted, run, table_name
from spark_jobs.write.target import count_written, undeclared_columns
from spark_jobs.write.writer import ColumnsDiffer, Writer, cast_to_target


@dataclass(eq=False)
class BatchIncomplete(NeedsAPerson):
    """A part of a batch could not be staged, and the batch may only be published completely."""

    pipeline: str
    batch: str
    tries: int
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: a part of batch {self.batch} failed {self.tries} times, last with: "
            f"{self.reason}; nothing was published, because this batch is published completely or not at all. Fix the "
            "cause, and load again."
        )


@dataclass(frozen=True, kw_only=True)
class _BatchTotals:
    """What all pieces of a batch bring and prove together."""

    pieces: int
    rows: int
    #: How many good records were read; a transform may make more or fewer rows of them.
    records: int
    bytes: int
    quarantined: tuple[QuarantinedRecord, ...]
    advances: tuple[Advance, ...]
    #: The generations whose rows are replaced.
    replaced: tuple[ProducerId, ...]

    @classmethod
    def of(cls, job: Job, pieces: Sequence[StagedPiece]) -> "_BatchTotals":
        read = advances_of(pieces)
        ids = {advance.producer_id for advance in read}
        replaced = tuple(replacement.old for new, replacement in job.replaced.items() if new in ids)
        return cls(
            pieces=len(pieces),
            rows=sum(piece.rows for piece in pieces),
            records=sum(piece.records for piece in pieces),
            bytes=sum(piece.bytes for piece in pieces),
            quarantined=tuple(record for piece in pieces for record in piece.quarantined),
            advances=read + _noted_as_replaced(replaced),
            replaced=replaced,
        )

    @property
    def probe(self) -> Advance | None:
        """An advance that shows whether the batch took effect."""
        return next((advance for advance in self.advances if advance.spans), None)


def _noted_as_replaced(replaced: Sequence[ProducerId]) -> tuple[Advance, ...]:
    return tuple(Advance(producer_id=old, spans=SpanSet(), condition=Condition.REPLACED) for old in replaced)


def publish(
    engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage, pieces: Sequence[StagedPiece], *, claim: Claim
) -> None:
    """Commit until it is certain that it took effect."""
    totals = _BatchTotals.of(job, pieces)
    if not totals.advances:
        return
    check_quarantine(job.declared, totals.quarantined, records=totals.records + len(totals.quarantined))
    patience = Patience()
    with open_sieve(engine, ledger, job, stage) as sieve:
        while True:
            new = patience.until_answered(partial(sieve.sift, totals.advances, staged=totals.rows))
            commit = _commit_of(job, stage, totals, new, claim=claim)
            try:
                _commit(ledger, job, commit)
            except ColumnsDiffer as error:
                # Another run has just added them; the next try reads their types.
                raise PipelineBusy(job.declared.name, CONCURRENT_CHANGE) from error
            except AlreadyConsumed as error:
                # Another run may have loaded records of the same producers; of files, only an unknown process.
                if not job.records_have_own_ids:
                    raise
                patience.wait(error)
            except (CommitOutcomeUnknown, DatabaseLost, PipelineBusy) as error:
                patience.wait(error)
                if totals.probe and patience.until_answered(partial(_took_effect, ledger, job, totals.probe)):
                    return
            else:
                return


def _commit_of(job: Job, stage: Stage, totals: _BatchTotals, new: NewRows, *, claim: Claim) -> Commit[Connection]:
    """The commit of the new rows, and of all that the batch proves."""
    kind: Callable[..., Commit[Connection]]
    kind = Commit if new.offered is None else partial(BulkCommit, offered=new.offered)
    return kind(
        session=job.session,
        batch=job.batch,
        advances=new.advances,
        write_rows=partial(
            _publish_rows, job=job, stage=stage, pieces=totals.pieces, source=new.source, replaced=totals.replaced
        ),
        claim=claim,
        counts=Counts(
            loaded=new.count,
            duplicate=totals.rows - new.count,
            quarantined=len(totals.quarantined),
            # A transform may also make several rows of one record; then nothing was filtered out.
            filtered=max(0, totals.records - totals.rows),
        ),
        bytes=totals.bytes,
        message_ids=new.message_ids,
        quarantined=totals.quarantined,
        run=job.run,
    )


def _commit(ledger: PostgresLedger, job: Job, commit: Commit[Connection]) -> None:
    with _refusing_rows(job):
        position = ledger.commit(commit)
    event(
        "batch_published",
        pipeline=job.declared.name,
        batch=job.batch,
        position=position,
        rows=commit.counts.loaded,
        quarantined=commit.counts.quarantined,
    )


@contextmanager
def _refusing_rows(job: Job) -> Iterator[None]:
    """Translate a refusal of the batch by the target's constraints or triggers."""
    try:
        yield
    except DBAPIError as error:
        if not is_of_rows(error):
            raise
        raise RowsRefused(job.declared.name, table_name(job.declared.target), first_line(error)) from error


def half_read(job: Job, pieces: Sequence[StagedPiece], notes: Sequence[Note]) -> dict[ProducerId, Replacement]:
    """New generations that were not read completely: they must not replace loaded rows."""
    read = {advance.producer_id: advance for advance in advances_of(pieces)}
    noted = {note.name for note in notes}
    return {
        new: replacement
        for new, replacement in job.replaced.items()
        if new in read and (replacement.name in noted or not replacement.is_whole(read[new]))
    }


def _took_effect(ledger: PostgresLedger, job: Job, advance: Advance) -> bool:
    """A commit exists completely or not at all, so one of its spans is enough to check."""
    known = ledger.know(job.session, [advance.producer_id])
    return known[advance.producer_id].state.consumed.covers(advance.spans)


def _publish_rows(
    connection: Connection, *, job: Job, stage: Stage, pieces: int, source: str, replaced: Sequence[ProducerId]
) -> int:
    check_kept(connection, stage, pieces)
    run(connection, WORK_MEMORY)
    target = job.declared.target
    added = undeclared_columns(connection, stage.rows, known=[column.name for column in job.written])
    writer = Writer.into_target(target, job.written).adding(added)
    # The server's own message is still available here.
    with _refusing_rows(job):
        writer.add_columns(connection)
        append_or_merge = partial(_append_or_merge, connection, job, source, writer.columns)
        return replace_rows(connection, job, replaced, append_or_merge) if replaced else append_or_merge()


def _append_or_merge(connection: Connection, job: Job, source: str, columns: tuple[Column, ...]) -> int:
    """Write the new rows to the target, and return how many the server wrote."""
    target = job.declared.target
    match target.write:
        case Write.APPEND:
            return _append(connection, target, source, columns)
        case Write.MERGE:
            if job.declared.transform is not None:
                refuse_twice(connection, job, source)
            return merge_in(connection, target, source, columns)


def _append(connection: Connection, target: Target, source: str, columns: tuple[Column, ...]) -> int:
    names = ", ".join(map(quoted, Writer.into_target(target, columns).names))
    table, arriving = table_name(target), f"SELECT {cast_to_target(columns, lineage=target.lineage)} FROM {source}"
    return count_written(
        connection,
        table,
        lambda: run(connection, f"INSERT INTO {table} ({names}) {arriving}").rowcount,
        columns=columns,
        lineage=target.lineage,
    )
