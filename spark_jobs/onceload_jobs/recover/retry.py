"""Retry quarantined records: read them again with the current pipeline file, and commit them together.

The ledger is authoritative. A record was consumed when it was quarantined. It takes effect once because one commit
settles it, with its row and its entry. So two concurrent retries, a killed retry, and one without an answer to COMMIT
have the same result: the next look finds the settled records, and continues with the rest.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from shlex import quote
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from onceload_core.advice import Ways
from onceload_core.errors import RowsRefused, SettingRefused
from onceload_core.events import event
from onceload_core.names import Batch, Position
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.quarantine import (
    Fix,
    KeptRecord,
    QuarantineId,
    Refusal,
    Selection,
    find_records,
    note_reasons,
)
from onceload_core.postgres.sessions import session_of
from onceload_core.replay import EntryKind
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import PieceGone, Pieces
from onceload_jobs.batch.stage_folder import RowsLost, StageFolder, open_folder
from onceload_jobs.files.notes import Ignored
from onceload_jobs.load.recorded import log_ignored
from onceload_jobs.load.road import Road, road_of, writer_of
from onceload_jobs.load.settings import EngineSettings
from onceload_jobs.pipeline.declared import Declared, Publish, Write
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish.batch_road import BatchRoad
from onceload_jobs.publish.postgres_transform import with_made_columns
from onceload_jobs.publish.table_road import commit_stage, copy_to, open_tables, totals_of, with_made_rows
from onceload_jobs.recover.stored_fields import StoredFields
from onceload_jobs.recover.stored_pieces import StoredPieces
from onceload_jobs.recover.stored_records import StoredRecords
from onceload_jobs.work.read_chunk import Reading, RowForm
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.target import check_target, columns_to_read, ensure_target
from onceload_jobs.write.until_certain import until_certain

if TYPE_CHECKING:
    from onceload_jobs.work.spark.spark import Spark


@dataclass(frozen=True, kw_only=True)
class RetryReport:
    """The result of a retry, from the ledger."""

    pipeline: str
    batch: Batch
    #: The position of its commit, or the last one if it made none.
    position: Position
    retried: int = 0
    still_bad: Mapping[QuarantineId, Refusal] = field(default_factory=dict)
    #: Settled by another retry meanwhile.
    settled_elsewhere: int = 0
    #: The files of records that are still bad, and whose fields are not where the pipeline file says now.
    laid_out_otherwise: tuple[str, ...] = ()
    #: Fields without a column, which were not loaded, with the number of records that have them …
    ignored_fields: Mapping[str, int] = field(default_factory=dict)
    #: … among those that were looked at.
    ignored_of: int = 0

    @property
    def ignored(self) -> Ignored:
        return Ignored.of(self.ignored_fields, records=self.ignored_of)


def retry(
    engine: Engine,
    ledger: PostgresLedger,
    declared: Declared,
    asked: Sequence[KeptRecord],
    *,
    batch: Batch,
    fixed: Mapping[QuarantineId, Fix] | None = None,
    by: str | None = None,
    where: EngineSettings | None = None,
) -> RetryReport:
    """Load the records that are good now in one commit; the others stay held, with the current reason.

    Fixed bytes have the layout of the record that they are for. If they are bad too, the record keeps its reason.
    Only a transform in Spark SQL needs an engine.
    """
    _refuse_unfit(declared)
    if not asked:
        return RetryReport(pipeline=declared.name, batch=batch, position=ledger.position(declared.name))
    with ExitStack() as running:
        spark = None
        if declared.needs_spark:
            spark = running.enter_context((where or EngineSettings()).spark(declared.name, batch=batch))
        job = _begun(engine, ledger, declared, batch=batch, by=by, spark=spark)
        fields = StoredFields(declared, engine, ledger, asked)
        stored = StoredRecords(declared=declared, columns=job.columns, fields=fields, fixed=fixed or {})
        before = ledger.position(declared.name)
        folder = running.enter_context(open_folder())
        settling = _Settling(engine, ledger, job, stored, asked, folder=folder, spark=spark)
        settling.settle()
    # The reason of a fix that is bad too is not that of the stored record.
    of_stored = {each: refusal for each, refusal in settling.still_bad.items() if each not in stored.fixed}
    note_reasons(engine, declared.name, of_stored)
    report = _report(ledger, job, settling, asked=len(asked), after=before)
    _log_retried(report, asked=len(asked))
    return report


def _begun(
    engine: Engine, ledger: PostgresLedger, declared: Declared, *, batch: Batch, by: str | None, spark: "Spark | None"
) -> Job:
    """It writes rows like a load, with the current pipeline file."""
    is_recorded = check_target(engine, ledger, declared)
    version = ledger.declare(pipeline_with_declaration(declared))
    name = session_of(batch, f"retry by {by}" if by else "retry")
    session = ledger.open_session(declared.name, name, version=version)
    columns = columns_to_read(engine, declared)
    job = Job(
        declared=declared,
        columns=columns,
        written=columns,
        session=session,
        batch=batch,
        is_late=True,
    )
    if declared.is_made_by_postgres:
        job = with_made_columns(engine, job)
    if spark is not None:
        job = spark.writing(job)
    _refuse_unknown_turn(job)
    evolve_target(engine, declared, session, columns=job.written)
    ensure_target(engine, declared, columns=job.written, is_recorded=is_recorded)
    return job


def _refuse_unknown_turn(job: Job) -> None:
    """The target has nothing to compare a late record with."""
    if job.declared.transform is not None and job.declared.target.write is Write.MERGE and not job.has_lineage:
        found = "a transform that leaves out _producer_id or _sequence, so it is unknown which row of a key is newer"
        raise SettingRefused(
            f"retrying records of {job.declared.name}",
            found,
            "both among its columns. Or write the fixed records into a new file below source.path, and load that",
        )


def _log_retried(report: RetryReport, *, asked: int) -> None:
    event(
        "records_retried",
        pipeline=report.pipeline,
        batch=report.batch,
        position=report.position,
        records=asked,
        loaded=report.retried,
        still_bad=len(report.still_bad),
        settled_elsewhere=report.settled_elsewhere,
    )
    log_ignored(report.ignored, pipeline=report.pipeline, batch=report.batch)


def _refuse_unfit(declared: Declared) -> None:
    """Refuse pipelines whose rows depend on more than their own bytes, or whose order is lost in the target."""
    ways = Ways.of(pipeline_with_declaration(declared).declaration)
    if ways.against_retry is not None:
        expected = f"a pipeline without it. Instead, {ways.instead_of_retry()}. Then discard the quarantined records"
        raise SettingRefused(f"retrying records of {declared.name}", f"the setting {ways.against_retry}", expected)


def _report(ledger: PostgresLedger, job: Job, settling: "_Settling", *, asked: int, after: Position) -> RetryReport:
    """Report what took effect, from the ledger, regardless of lost answers."""
    pipeline = job.declared.name
    entries = [entry for entry in ledger.entries(pipeline, after=after) if entry.batch == job.batch]
    receipts = (receipt for entry in entries if entry.kind is EntryKind.RETRY for receipt in entry.receipts)
    retried = sum(receipt.spans.count for receipt in receipts)
    return RetryReport(
        pipeline=pipeline,
        batch=job.batch,
        position=entries[-1].position if entries else ledger.position(pipeline),
        retried=retried,
        still_bad=settling.still_bad,
        laid_out_otherwise=settling.laid_out_otherwise,
        settled_elsewhere=asked - retried - len(settling.still_bad),
        ignored_fields=dict(settling.ignored.fields) if retried else {},
        ignored_of=settling.ignored.records if retried else 0,
    )


class _Settling:
    """The tries to commit the records that are good now."""

    def __init__(
        self,
        engine: Engine,
        ledger: PostgresLedger,
        job: Job,
        stored: StoredRecords,
        asked: Sequence[KeptRecord],
        *,
        folder: StageFolder,
        spark: "Spark | None",
    ) -> None:
        self._engine, self._ledger, self._job, self._stored = engine, ledger, job, stored
        self._folder, self._spark = folder, spark
        self._held = Selection(pipeline=job.declared.name, ids=tuple(record.quarantine_id for record in asked))
        staged = replace(job.declared, publish=Publish.STAGED)
        self._road = road_of(staged, is_kept=job.declared.transform is not None)
        self._batch_road = BatchRoad(engine=engine, ledger=ledger, job=job)
        self._form = RowForm(writer=writer_of(job, self._road), as_arrow=spark is not None)
        self._pieces = StoredPieces(engine, job, stored, form=self._form, folder=folder)
        #: All records that are still bad, for any reason.
        self.still_bad: Mapping[QuarantineId, Refusal] = {}
        #: The fields without a column in the records of the last try.
        self.ignored = Ignored()

    @property
    def laid_out_otherwise(self) -> tuple[str, ...]:
        return self._pieces.reading.laid_out_otherwise

    def settle(self) -> None:
        on_refused = self._batch_road.check_each_piece if self._road is Road.BATCH else self._look_again
        until_certain(self._find_good, self._write, on_columns=self._pieces.note_columns, on_refused=on_refused)
        # Another retry may have settled some since they were read.
        held = {record.quarantine_id for record in find_records(self._engine, self._held, raw_bytes_max=0)}
        refusals = self._pieces.reading.refusals
        self.still_bad = {each: refusal for each, refusal in refusals.items() if each in held}

    def _find_good(self) -> StoredPieces | None:
        # Records that any retry has settled are no longer held.
        records = tuple(find_records(self._engine, self._held))
        _refuse_fixes_of_others(records, self._stored.fixed)
        return self._pieces if self._pieces.read(records).rows else None

    def _look_again(self, refused: RowsRefused) -> None:
        """Raise it, unless less is good now: then these may be rows of another process, or of an earlier try.

        A table of the stage has no constraints that find single rows.
        """
        tried, rest = self._pieces.piece.settled, self._find_good()
        if rest is not None and rest.piece.settled == tried:
            raise refused

    def _write(self, pieces: StoredPieces) -> None:
        if self._road is Road.BATCH:
            self._batch_road.write(pieces)
        else:
            self._write_through_table(pieces)
        self.ignored = pieces.reading.ignored

    def _write_through_table(self, pieces: StoredPieces) -> None:
        engine, job = self._engine, self._job
        with ExitStack() as staging:
            try:
                made = self._made_of(pieces)
                stage = open_tables(engine, job, staging)
                copied = with_made_rows(engine, job, stage, copy_to(engine, job, stage, made))
            except PieceGone as gone:
                raise RowsLost(self._folder.path) from gone
            totals = totals_of(engine, job, stage, copied)
            if not totals.is_empty:
                commit_stage(self._ledger, job, stage, totals)

    def _made_of(self, pieces: StoredPieces) -> Pieces:
        if self._spark is None:
            return pieces
        job = self._job
        reading = Reading(declared=job.declared, columns=job.columns, form=self._form, folder=self._folder)
        return self._spark.transform(job, reading, [pieces.piece])


def _refuse_fixes_of_others(records: Sequence[KeptRecord], fixed: Mapping[QuarantineId, Fix]) -> None:
    """In another database, or after a restore, the same id, file and sequence id may belong to another record."""
    for record in records:
        fix = fixed.get(record.quarantine_id)
        if fix is not None and fix.digest != record.digest:
            place = f"sequence id {record.sequence_id} of {record.file}"
            again = f"`onceload quarantine export again.jsonl --pipeline {quote(record.pipeline)}`"
            raise SettingRefused(
                f"record {record.quarantine_id}",
                f"a fix of other bytes than this database holds of {place}",
                f"a fix of these bytes (run {again} and fix that file, or open the record again in the console)",
            )
