"""The road of a batch through its stage table: one SQL statement publishes its rows, with all of its proofs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection, Engine

from onceload_core.errors import AlreadyConsumed
from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage import Stage, check_there
from onceload_jobs.pipeline.declared import Target, Write
from onceload_jobs.publish.commits import commit_of, publish_commit
from onceload_jobs.publish.made_rows import MadeRows, made_in_table, records_named
from onceload_jobs.publish.merge import merge_in, merge_late, refuse_twice
from onceload_jobs.publish.refusals import refusing_rows
from onceload_jobs.publish.replaced_rows import replace_rows
from onceload_jobs.publish.source import SQL, WORK_MEMORY
from onceload_jobs.publish.totals import BatchTotals, took_effect
from onceload_jobs.read.limits import check_quarantine
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.sql import filled, run, table_name
from onceload_jobs.write.target import refuse_altered, undeclared_columns
from onceload_jobs.write.until_certain import until_certain
from onceload_jobs.write.writer import Writer


def publish(
    engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage, pieces: Sequence[Piece], *, claim: Claim
) -> bool:
    """Commit the rows of a stage until it is certain that they took effect; whether this process saw it.

    ColumnsDiffer is raised if another run has added new columns of the batch with other types since it was staged.
    """
    totals = until_answered(partial(totals_of, engine, job, stage, pieces))
    if totals.is_empty:
        return False
    check_quarantine(job.declared, totals.quarantined, records=totals.records + len(totals.quarantined))
    road = TableRoad(ledger, job, stage, totals, claim=claim)
    until_certain(road.find_rest, road.write, on_unsure=road.note_unsure)
    return road.has_committed


def totals_of(engine: Engine, job: Job, stage: Stage, pieces: Sequence[Piece]) -> BatchTotals:
    """With the rows that a transform made of each file, and the number of records without any."""
    totals = BatchTotals.of(job, pieces)
    if totals.is_empty or job.declared.transform is None:
        return totals
    if not job.has_lineage:
        return totals.with_made(MadeRows.without_lineage(pieces))
    with translated(pipeline=job.declared.name, doing="counting rows"), engine.begin() as connection:
        run(connection, WORK_MEMORY)
        if job.declared.producer is not None:
            named = records_named(connection, job, stage, rows=totals.rows)
            new = totals.records - totals.duplicates
            return replace(totals, filtered=0 if named is None else new - named)
        made_of = made_in_table(connection, job, stage, rows=totals.rows)
    return totals.with_made(MadeRows.of(job, pieces, made_of))


class TableRoad:
    """The tries to publish a stage."""

    def __init__(
        self,
        ledger: PostgresLedger,
        job: Job,
        stage: Stage,
        totals: BatchTotals,
        *,
        claim: Claim | None = None,
    ) -> None:
        self._ledger, self._job, self._stage, self._totals = ledger, job, stage, totals
        self._claim = claim
        self._is_unsure = self.has_committed = False
        #: Another process was first: of files only an unknown one, or another load that had some of the same records.
        self._overtaken: AlreadyConsumed | None = None

    def find_rest(self) -> BatchTotals | None:
        """The batch, unless it took effect."""
        if self._is_unsure and took_effect(self._ledger, self._job, self._totals):
            return None
        if self._overtaken is not None:
            raise self._overtaken
        return self._totals

    def note_unsure(self) -> None:
        self._is_unsure = True

    def write(self, totals: BatchTotals) -> None:
        """Publish in one commit."""
        job, stage = self._job, self._stage
        write_rows = _Publication(job=job, stage=stage, replaced=totals.replaced).write
        commit = commit_of(job, totals, stage.id_tables(job.declared), claim=self._claim, write_rows=write_rows)
        try:
            with refusing_rows(job):
                publish_commit(self._ledger, commit)
            self.has_committed = True
        except AlreadyConsumed as error:
            self._overtaken = error
            raise


@dataclass(frozen=True, kw_only=True)
class _Publication:
    """The rows that a commit takes from a stage into the target."""

    job: Job
    stage: Stage
    replaced: Sequence[ProducerId]

    @property
    def _target(self) -> Target:
        return self.job.declared.target

    def write(self, connection: Connection) -> int:
        job = self.job
        check_there(connection, self.stage)
        run(connection, WORK_MEMORY)
        added = undeclared_columns(connection, self.stage.rows, known=[column.name for column in job.written])
        writer = Writer.into_target(self._target, job.written).adding(added)
        if added or self.replaced:
            # Both change the table before rows are written.
            refuse_altered(connection, table_name(self._target), columns=job.written, lineage=self._target.lineage)
        # The server's own message is still available here.
        with refusing_rows(job):
            writer.add_columns(connection)
            append_or_merge = partial(self._append_or_merge, connection, writer)
            # A transform makes any number of rows of a record.
            counts = None if job.declared.transform is None else filled(SQL["count_by_producer"], rows=self.stage.rows)
            self.stage.id_tables(job.declared).offer(connection, counts=counts)
            return replace_rows(connection, job, self.replaced, append_or_merge) if self.replaced else append_or_merge()

    def _append_or_merge(self, connection: Connection, writer: Writer) -> int:
        """Write the new rows to the target, and return how many the server wrote."""
        match self._target.write:
            case Write.APPEND:
                written = writer.counting(connection)
                return written.remaining(connection, writer.insert_from(connection, self.stage.rows))
            case Write.MERGE:
                if self.job.declared.transform is not None:
                    refuse_twice(connection, self.job, self.stage.rows)
                merge = merge_late if self.job.is_late else merge_in
                return merge(connection, self._target, self.stage.rows, writer.columns)
