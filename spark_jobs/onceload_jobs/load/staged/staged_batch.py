"""A batch that is published as a whole: read by workers, and published in one commit or kept."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

from onceload_core.errors import DatabaseLost, PipelineBusy
from onceload_core.events import event
from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.connection import CONCURRENT_CHANGE
from onceload_core.spans import Span, SpanSet
from onceload_jobs.batch.job import BatchIncomplete, Job, Replacement
from onceload_jobs.batch.piece import Piece, PieceGone, Pieces, added_by
from onceload_jobs.batch.stage import Stage, StageLost, keep_batch
from onceload_jobs.batch.stage_folder import RENEWED_EVERY_S, open_folder
from onceload_jobs.executor.executor import Executor
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.offering import ClaimedWork
from onceload_jobs.load.phases import Phase
from onceload_jobs.load.road import Road, road_of, writer_of
from onceload_jobs.load.sessions import Sessions
from onceload_jobs.load.staged.overtaking import overtaking, sealed_ends
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields
from onceload_jobs.publish.batch_road import copy_and_commit
from onceload_jobs.publish.commits import SharedRecords, check_pieces
from onceload_jobs.publish.replaced_rows import half_read, without_records
from onceload_jobs.publish.table_road import copy_to, open_tables, publish, with_made_rows
from onceload_jobs.quality.audit import audit_stage, check
from onceload_jobs.work.batch_pieces import BatchPieces
from onceload_jobs.work.bucket import Bucket, Deduplicating
from onceload_jobs.work.buckets import Buckets, bucket_count
from onceload_jobs.work.by_message import dedup_by_message
from onceload_jobs.work.by_producer import dedup_by_producer
from onceload_jobs.work.new_pieces import NewPieces
from onceload_jobs.work.parts import Culprit, Parts
from onceload_jobs.work.read_chunk import Reading
from onceload_jobs.work.row_form import RowForm
from onceload_jobs.work.session import renewed
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: A crash of the server empties the tables of a stage, which are then filled again from the pieces.
_LOST_MAX = 5


class _LeavesOut(Exception):
    """Some chunks cannot be published; the others are published without them."""

    def __init__(self, is_left_out: Callable[[Chunk], bool], notes: Sequence[Note]) -> None:
        super().__init__(notes)
        self.is_left_out, self.notes = is_left_out, notes


class StagedBatch:
    """Reads a batch and publishes it, or keeps it for another call to publish."""

    def __init__(self, context: LoadContext, sessions: Sessions) -> None:
        self._context, self._sessions = context, sessions
        self._declared = context.declared
        #: How many rows are kept for another call; None if none are left to publish.
        self.kept: int | None = None

    def stage_and_publish(self, work: ClaimedWork) -> list[Note]:
        """Read the whole batch, and publish it in one commit.

        Left out are files that should replace their loaded rows but cannot be read completely, chunks that end every
        process that reads them, and files that would overtake something that cannot be read.
        """
        job = replace(self._sessions.prepared_job(), replaced=_replaced(work))
        with ExitStack() as opened, self._context.stopwatch.during(Phase.STAGE):
            folder = opened.enter_context(open_folder(self._context.settings.stage))
            opened.enter_context(renewed(folder.renew, every_s=RENEWED_EVERY_S))
            road = road_of(self._declared, is_kept=not self._context.settings.publishes)
            executor = self._sessions.executor
            buckets = bucket_count(work.bundles, slots=executor.slots) if job.records_have_own_ids else 1
            forms = _forms(job, writer_of(job, road), buckets)
            way = _Way(
                road=road,
                reading=Reading(
                    declared=job.declared, columns=job.columns, form=forms[0], folder=folder, access=job.access
                ),
                forms=forms[1:],
            )
            pieces = BatchPieces(
                executor,
                way.reading,
                Parts(work.bundles, tries_max=self._declared.delivery.deliveries_max),
                on_piece=self._sessions.watch.piece_came,
            )
            with self._sessions.watch.watching():
                return self._publish_without_what_is_left_out(job, pieces, work, way)

    def _publish_without_what_is_left_out(
        self, job: Job, pieces: BatchPieces, work: ClaimedWork, way: "_Way"
    ) -> list[Note]:
        left_out: list[Note] = []
        while not self._context.is_stopped:
            batch = _Batch(self._context, job, pieces, work.claim, left_out=left_out)
            try:
                batch.leave_out_repeats(self._sessions.executor, way)
                if self._declared.needs_spark:
                    batch.transform(self._sessions, way.reading)
                notes = batch.publish(way.road)
            except _LeavesOut as leaves:
                # Each time less is left, so this ends.
                left_out += leaves.notes
                pieces.leave_out(leaves.is_left_out)
                job = replace(job, replaced=_still_replaced(job, pieces))
            except PieceGone:
                # The next round judges what is left, or reads again what was lost.
                if self._declared.needs_spark:
                    # With made rows, the records that they were made of may be lost too.
                    pieces.read_again()
            except SharedRecords:
                way = way.through_a_table(job)
            else:
                self.kept, work.is_acked = batch.kept, batch.has_committed
                return [*left_out, *notes]
        return left_out


@dataclass(frozen=True, kw_only=True)
class _Way:
    """How the rows of a batch go from worker to worker, and into the target."""

    road: Road
    reading: Reading
    #: The form behind each worker that leaves out repeats.
    forms: Sequence[RowForm]

    def through_a_table(self, job: Job) -> "_Way":
        form = replace(self.reading.form, writer=writer_of(job, Road.TABLE))
        return replace(self, road=Road.TABLE, reading=replace(self.reading, form=form))


def _still_replaced(job: Job, pieces: BatchPieces) -> dict[ProducerId, Replacement]:
    left = {chunk.producer_id for chunks in pieces.bundles for chunk in chunks}
    return {new: each for new, each in job.replaced.items() if new in left}


def _forms(job: Job, writer: Writer, buckets: int) -> tuple[RowForm, ...]:
    """The rows as they are read, and behind each worker that leaves out repeats."""
    cut = (Buckets.by_producer(job.declared, buckets), Buckets.by_message(job.declared, buckets))
    between = (RowForm(writer=writer, as_arrow=True, buckets=each) for each in cut if each is not None)
    return (*between, RowForm(writer=writer, as_arrow=job.declared.needs_spark))


class _Batch:
    """One try to publish what is left of a batch."""

    def __init__(
        self, context: LoadContext, job: Job, pieces: BatchPieces, claim: Claim, *, left_out: Sequence[Note]
    ) -> None:
        self._context, self._job, self._read, self._claim = context, job, pieces, claim
        self._pieces: Pieces = pieces
        self._declared, self._left_out = context.declared, left_out
        self._started = time.monotonic()
        self._notes: list[Note] = []
        self.kept: int | None = None
        self.has_committed = False

    def leave_out_repeats(self, executor: Executor, way: _Way) -> None:
        """Let workers leave out the records that repeat others: first by producer, then by business id."""
        declared, names = self._declared, {chunk.name for chunks in self._read.bundles for chunk in chunks}
        looks: list[Callable[[Deduplicating, Bucket], Piece]] = []
        if declared.producer is not None:
            looks.append(partial(dedup_by_producer, declared.producer))
            names = {name for name in names if name.startswith(declared.producer.prefix)}
        if declared.message_id is not None:
            looks.append(partial(dedup_by_message, declared.message_id))
        read: BatchPieces | NewPieces = self._read
        for number, (look, form) in enumerate(zip(looks, way.forms, strict=True), 1):
            task = Deduplicating(
                job=self._job,
                folder=way.reading.folder,
                form=form,
                is_followed=number < len(looks),
                files=tuple(sorted(names)) if declared.producer else (),
            )
            read = NewPieces(executor=executor, look=look, task=task, read=read)
        self._pieces = read

    def transform(self, sessions: Sessions, reading: Reading) -> None:
        """Let Spark SQL make the rows of all records."""
        read = list(self._pieces.each())
        self._judge(read)
        self._pieces = sessions.transform(self._job, reading, read)

    def publish(self, road: Road) -> list[Note]:
        if road is Road.BATCH:
            self._copy_and_commit()
        else:
            self._publish_through_table()
        return self._notes

    def _copy_and_commit(self) -> None:
        added: Sequence[tuple[Column, ...]] = ()
        if self._needs_all_first:
            pieces = list(self._pieces.each())
            self._judge(pieces)
            added = added_by(pieces)
        context = self._context
        self.has_committed = copy_and_commit(
            context.engine,
            context.ledger,
            self._job,
            self._pieces,
            claim=self._claim,
            judge=self._judge_and_log,
            added=added,
        )

    @property
    def _needs_all_first(self) -> bool:
        """Whether old rows are deleted, or columns added, which locks the table against its readers."""
        return bool(self._job.replaced) or self._declared.unknown_fields is UnknownFields.ADD

    def _judge_and_log(self, pieces: Sequence[Piece]) -> None:
        self._judge(pieces)
        check_pieces(self._declared, pieces)
        self._log_staged(pieces)
        self._context.stopwatch.switch_to(Phase.PUBLISH)

    def _publish_through_table(self) -> None:
        losses = 0
        while True:
            try:
                with ExitStack() as staging:
                    stage = until_answered(partial(open_tables, self._context.engine, self._job, staging))
                    self._stage_and_publish(stage)
                    return
            except StageLost:
                losses += 1
                if losses == _LOST_MAX:
                    raise DatabaseLost(
                        f"staging batch {self._job.batch}", f"the server lost staged rows {losses} times"
                    ) from None

    def _stage_and_publish(self, stage: Stage) -> None:
        engine, job = self._context.engine, self._job
        copied = until_answered(partial(copy_to, engine, job, stage, self._pieces))
        self._judge(copied)
        pieces = with_made_rows(engine, job, stage, copied)
        self._log_staged(pieces)
        self._audit_and_publish_or_keep(stage, pieces)

    def _audit_and_publish_or_keep(self, stage: Stage, pieces: Sequence[Piece]) -> None:
        context, job = self._context, self._job
        engine, ledger, settings, stopwatch = context.engine, context.ledger, context.settings, context.stopwatch
        if settings.publishes:
            if self._declared.suite is not None:
                with stopwatch.during(Phase.AUDIT):
                    check(audit_stage(engine, job, stage, pieces, docs=settings.docs), job, stage)
            with stopwatch.during(Phase.PUBLISH):
                try:
                    self.has_committed = publish(engine, ledger, job, stage, pieces, claim=self._claim)
                except ColumnsDiffer as error:
                    # The next call reads their types.
                    raise PipelineBusy(job.declared.name, CONCURRENT_CHANGE) from error
        elif any(piece.advances for piece in pieces):
            sealed = tuple(sealed_ends(self._declared.source, self._read.bundles, pieces))
            notes = [*self._left_out, *self._notes]
            keep_batch(engine, job, stage, self._claim, pieces=pieces, notes=notes, sealed=sealed)
            self.kept = sum(piece.rows for piece in pieces)

    def _judge(self, pieces: Sequence[Piece]) -> None:
        """Refuse to publish what must be left out."""
        self._notes = [note for piece in pieces for note in piece.notes]
        if culprits := self._read.take_culprits():
            self._set_aside(culprits)
            chunks = {culprit.chunk for culprit in culprits}
            raise _LeavesOut(chunks.__contains__, ())
        half = {
            new: _why_half(each.name, self._notes) for new, each in half_read(self._job, pieces, self._notes).items()
        }
        without = without_records(self._job, self._context.ledger, pieces)
        broken = {new: [note] for new, note in without.items()} | half
        if broken:
            raise _LeavesOut(lambda chunk: chunk.producer_id in broken, [n for notes in broken.values() for n in notes])
        noted = {note.name for note in self._notes}
        behind = overtaking(self._declared, self._read.bundles, pieces, noted=noted)
        if behind:
            raise _LeavesOut(behind.chunks.__contains__, list(behind.notes(self._declared)))

    def _set_aside(self, culprits: Sequence[Culprit]) -> None:
        """Make dead letters of them; some batches fail instead."""
        if self._declared.is_published_whole:
            reasons = culprits[0].reasons
            raise BatchIncomplete(self._declared.name, self._context.batch, len(reasons), reasons[-1])
        self._context.set_aside(self._claim, culprits)

    def _log_staged(self, pieces: Sequence[Piece]) -> None:
        event(
            "batch_staged",
            pipeline=self._declared.name,
            batch=self._job.batch,
            rows=sum(piece.rows for piece in pieces),
            pieces=len(pieces),
            quarantined=sum(len(piece.quarantined) for piece in pieces),
            seconds=round(time.monotonic() - self._started, 3),
        )


def _why_half(name: str, notes: Sequence[Note]) -> list[Note]:
    of_file = [note for note in notes if note.name == name]
    return [each.of_no_replacement() for each in of_file or [Note(name=name, reason="it was not read completely")]]


def _replaced(work: ClaimedWork) -> dict[ProducerId, Replacement]:
    return {
        work.ids[file.listed.name, file.generation]: Replacement(
            old=file.replaces,
            name=file.listed.name,
            planned=SpanSet(Span(first, end) for first, end in file.spans if end is not None),
        )
        for file in work.files
        if file.replaces is not None
    }
