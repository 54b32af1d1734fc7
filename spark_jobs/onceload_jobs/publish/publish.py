"""Publish all staged rows of a batch, with all of their proofs, in one commit."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import (
    AlreadyConsumed,
    CommitOutcomeUnknown,
    DatabaseLost,
    NeedsAPerson,
    PipelineBusy,
    RowsRefused,
)
from onceload_core.events import event
from onceload_core.names import ProducerId
from onceload_core.ports import Advance, Claim, Commit, QuarantinedRecord
from onceload_core.postgres import BulkCommit, PostgresLedger
from onceload_core.postgres.connection import first_line, translated
from onceload_core.replay import Condition, Counts
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import Job, Replacement
from onceload_jobs.batch.pieces import StagedPiece, advances_of, check_kept, move_to_table, still_in_files
from onceload_jobs.batch.spool import read_file
from onceload_jobs.batch.stage import Stage
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.declared import Target, Write
from onceload_jobs.publish.early_copy import EarlyCopy, OpenTransaction, copy_all
from onceload_jobs.publish.made_rows import MadeRows, made_in_files, made_in_table
from onceload_jobs.publish.merge import merge_in, refuse_twice
from onceload_jobs.publish.new_rows import NewRows, open_duplicate_filter
from onceload_jobs.publish.replaced_rows import replace_rows
from onceload_jobs.publish.source import WORK_MEMORY
from onceload_jobs.read.limits import check_quarantine
from onceload_jobs.write.find_refused import is_of_rows
from onceload_jobs.write.patience import Patience
from onceload_jobs.write.sql import Sql, run, table_name
from onceload_jobs.write.target import refuse_altered, undeclared_columns
from onceload_jobs.write.writer import Writer


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
            f"{self.reason}. Nothing was published, because this batch is published completely or not at all. Fix the "
            "cause, and load again."
        )


@dataclass(frozen=True, kw_only=True)
class _BatchTotals:
    """The rows and proofs of all pieces of a batch, summed up."""

    pieces: int
    rows: int
    #: The files with rows that are in no table, each with their number.
    files: Mapping[str, int]
    #: How many good records were read; a transform may make more or fewer rows of them.
    records: int
    bytes: int
    quarantined: tuple[QuarantinedRecord, ...]
    advances: tuple[Advance, ...]
    #: The generations whose rows are replaced.
    replaced: tuple[ProducerId, ...]
    #: How many records a transform made no row of.
    filtered: int = 0

    @classmethod
    def of(cls, job: Job, pieces: Sequence[StagedPiece]) -> "_BatchTotals":
        read = advances_of(pieces)
        ids = {advance.producer_id for advance in read}
        replaced = tuple(replacement.old for new, replacement in job.replaced.items() if new in ids)
        return cls(
            pieces=len(pieces),
            rows=sum(piece.rows for piece in pieces),
            files={piece.file: piece.rows for piece in pieces if piece.file},
            records=sum(piece.records for piece in pieces),
            bytes=sum(piece.bytes for piece in pieces),
            quarantined=tuple(record for piece in pieces for record in piece.quarantined),
            advances=read + _noted_as_replaced(replaced),
            replaced=replaced,
        )

    def with_made(self, made: MadeRows) -> "_BatchTotals":
        advances = tuple(replace(each, rows=made.rows_of.get(each.producer_id, 0)) for each in self.advances)
        return replace(self, advances=advances, filtered=made.filtered)

    @property
    def probe(self) -> Advance | None:
        """An advance that shows whether the batch took effect."""
        return next((advance for advance in self.advances if advance.spans), None)


def _noted_as_replaced(replaced: Sequence[ProducerId]) -> tuple[Advance, ...]:
    return tuple(Advance(producer_id=old, spans=SpanSet(), condition=Condition.REPLACED) for old in replaced)


def publish(
    engine: Engine,
    ledger: PostgresLedger,
    job: Job,
    stage: Stage,
    pieces: Sequence[StagedPiece],
    *,
    claim: Claim,
    early: EarlyCopy | None = None,
) -> None:
    """Commit until it is certain that it took effect; first in the transaction that has copied files already.

    ColumnsDiffer is raised if another run has added new columns of the batch with other types since it was staged.
    """
    totals = _BatchTotals.of(job, pieces)
    if not totals.advances:
        return
    check_quarantine(job.declared, totals.quarantined, records=totals.records + len(totals.quarantined))
    patience, outcome = Patience(), _Outcome.TRY_AGAIN
    transaction = early.take(pieces) if early else None
    if job.declared.transform is not None:
        stage, totals = patience.until_answered(partial(_with_made, engine, job, stage, totals, pieces))
    with open_duplicate_filter(engine, ledger, job, stage) as duplicate_filter:
        while outcome is _Outcome.TRY_AGAIN:
            if stage.producer is not None and transaction is None:
                stage, totals = patience.until_answered(partial(_moved_to_table, engine, job, stage, totals))
            if transaction is not None and transaction.offered is not None:
                new = _all_new(stage, totals, transaction)
            else:
                new = patience.until_answered(partial(duplicate_filter.select_new, totals.advances, staged=totals.rows))
            commit = _commit_of(job, stage, totals, new, claim=claim, transaction=transaction)
            outcome = _try_to_commit(ledger, job, totals, commit, patience, transaction=transaction, early=early)
            # The transaction that has copied files early serves the first try, and ends with it.
            transaction = None


class _Outcome(Enum):
    """What one try to commit has achieved."""

    TOOK_EFFECT = "took effect"
    TRY_AGAIN = "try again"


def _try_to_commit(
    ledger: PostgresLedger,
    job: Job,
    totals: _BatchTotals,
    commit: Commit[Connection],
    patience: Patience,
    *,
    transaction: OpenTransaction | None,
    early: EarlyCopy | None,
) -> _Outcome:
    """Commit once, and wait before another try; what has copied files early is closed at once."""
    try:
        with ExitStack() as opened:
            if early:
                opened.enter_context(closing(early))
            if transaction:
                opened.enter_context(closing(transaction))
            _commit(ledger, job, commit, transaction=transaction)
    except AlreadyConsumed as error:
        # Another run may have loaded records of the same producers; of files, only an unknown process.
        if not job.records_have_own_ids:
            raise
        patience.wait(error)
        return _Outcome.TRY_AGAIN
    except (CommitOutcomeUnknown, DatabaseLost, PipelineBusy) as error:
        patience.wait(error)
        took_effect = patience.until_answered(partial(_took_effect, ledger, job, totals))
        return _Outcome.TOOK_EFFECT if took_effect else _Outcome.TRY_AGAIN
    return _Outcome.TOOK_EFFECT


def _moved_to_table(engine: Engine, job: Job, stage: Stage, totals: _BatchTotals) -> tuple[Stage, _BatchTotals]:
    """The same batch with all rows in the table of its stage, where the server decides about them."""
    with translated(pipeline=job.declared.name, doing="staging rows"), _refusing_rows(job):
        for file in totals.files:
            move_to_table(engine, stage, file)
    return replace(stage, spool=None, producer=None), replace(totals, files={})


def _with_made(
    engine: Engine, job: Job, stage: Stage, totals: _BatchTotals, pieces: Sequence[StagedPiece]
) -> tuple[Stage, _BatchTotals]:
    """With the rows that a transform made of each file, and the number of records without any."""
    if not job.has_lineage:
        return stage, totals.with_made(MadeRows.without_lineage(pieces))
    if (made_of := made_in_files(pieces)) is None:
        stage, totals = _moved_to_table(engine, job, stage, totals)
        with translated(pipeline=job.declared.name, doing="counting rows"), engine.begin() as connection:
            run(connection, WORK_MEMORY)
            made_of = made_in_table(connection, job, stage, rows=totals.rows)
    return stage, totals.with_made(MadeRows.of(job, pieces, made_of))


def _all_new(stage: Stage, totals: _BatchTotals, transaction: OpenTransaction) -> NewRows:
    """All rows that the transaction copied count as new, for the producers that their records name."""
    advances = tuple(replace(each, rows=0) for each in totals.advances)
    return NewRows(source=stage.rows, count=totals.rows, advances=advances, offered=transaction.offered)


def _commit_of(
    job: Job, stage: Stage, totals: _BatchTotals, new: NewRows, *, claim: Claim, transaction: OpenTransaction | None
) -> Commit[Connection]:
    """The commit of the new rows, and of all that the batch proves."""
    proven: dict[str, Any] = {
        "session": job.session,
        "batch": job.batch,
        "advances": new.advances,
        "write_rows": _Publication(
            job=job, stage=stage, totals=totals, source=new.source, transaction=transaction
        ).write,
        "claim": claim,
        "counts": Counts(
            loaded=new.count,
            duplicate=totals.rows - new.count,
            quarantined=len(totals.quarantined),
            filtered=totals.filtered,
        ),
        "bytes": totals.bytes,
        "quarantined": totals.quarantined,
        "run": job.run,
    }
    if new.offered is None and new.offered_messages is None:
        return Commit(**proven)
    return BulkCommit(**proven, offered=new.offered, offered_messages=new.offered_messages)


def _commit(
    ledger: PostgresLedger, job: Job, commit: Commit[Connection], *, transaction: OpenTransaction | None
) -> None:
    with _refusing_rows(job):
        position = ledger.commit(commit, begun=transaction.connection if transaction else None)
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


def _took_effect(ledger: PostgresLedger, job: Job, totals: _BatchTotals) -> bool:
    """A commit exists completely or not at all, so one of its spans is enough to check."""
    probe = totals.probe
    if probe is None:
        return False
    known = ledger.know(job.session, [probe.producer_id])
    return known[probe.producer_id].state.consumed.covers(probe.spans)


@dataclass(frozen=True, kw_only=True)
class _Publication:
    """The rows that a commit takes from a stage into the target."""

    job: Job
    stage: Stage
    totals: _BatchTotals
    #: Where the new rows of its table are selected from.
    source: Sql
    #: The transaction that has copied some files already.
    transaction: OpenTransaction | None

    @property
    def _target(self) -> Target:
        return self.job.declared.target

    def write(self, connection: Connection) -> int:
        job, replaced = self.job, self.totals.replaced
        check_kept(connection, self.stage, self.totals.pieces)
        run(connection, WORK_MEMORY)
        added = undeclared_columns(connection, self.stage.rows, known=[column.name for column in job.written])
        writer = Writer.into_target(self._target, job.written).adding(added)
        if added or replaced:
            # Both change the table before rows are written.
            refuse_altered(connection, table_name(self._target), columns=job.written, lineage=self._target.lineage)
        # The server's own message is still available here.
        with _refusing_rows(job):
            writer.add_columns(connection)
            append_or_merge = partial(self._append_or_merge, connection, writer)
            return replace_rows(connection, job, replaced, append_or_merge) if replaced else append_or_merge()

    def _append_or_merge(self, connection: Connection, writer: Writer) -> int:
        """Write the new rows to the target, and return how many the server wrote."""
        match self._target.write:
            case Write.APPEND:
                written = self.transaction.written if self.transaction else writer.counting(connection)
                return written.remaining(connection, self._append(connection, writer))
            case Write.MERGE:
                if self.job.declared.transform is not None:
                    refuse_twice(connection, self.job, self.source)
                return merge_in(connection, self._target, self.source, writer.columns)

    def _append(self, connection: Connection, writer: Writer) -> int:
        return self._copy_files(connection) + writer.insert_from(connection, self.source)

    def _copy_files(self, connection: Connection) -> int:
        """Copy the rows of the pieces that have a file."""
        copied = dict(self.transaction.copied) if self.transaction else {}
        with still_in_files(self.stage):
            for file, rows in self.totals.files.items():
                if file not in copied:
                    copy_all(connection, self.job, read_file(self.stage.spool or "", file), rows=rows)
                    copied[file] = rows
        return sum(copied.values())
