"""A batch that is published as a whole: read by workers, and published in one commit or kept."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from onceload_core.errors import DatabaseLost, PipelineBusy
from onceload_core.events import event
from onceload_core.postgres.connection import CONCURRENT_CHANGE
from onceload_core.spans import Span, SpanSet
from onceload_jobs.batch.job import BatchIncomplete, Job, Replacement
from onceload_jobs.batch.piece import Piece, PieceGone, Pieces, added_by
from onceload_jobs.batch.stage import Stage, StageLost, keep_batch
from onceload_jobs.batch.stage_folder import RENEWED_EVERY_S, StageFolder, open_folder
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.offering import ClaimedWork
from onceload_jobs.load.report import Phase
from onceload_jobs.load.road import Road, road_of, writer_of
from onceload_jobs.load.staged.overtaking import overtaking, sealed_ends
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import UnknownFields
from onceload_jobs.publish.batch_road import copy_and_commit
from onceload_jobs.publish.commits import SharedRecords, check_pieces
from onceload_jobs.publish.replaced_rows import half_read, without_records
from onceload_jobs.publish.table_road import copy_to, open_tables, publish, with_made_rows
from onceload_jobs.quality.audit import audit_stage, check
from onceload_jobs.work.buckets import Buckets, bucket_count, buckets_of
from onceload_jobs.work.by_message import dedup_by_message
from onceload_jobs.work.by_producer import dedup_by_producer
from onceload_jobs.work.dedup import Bucket, Deduplicating, NewPieces
from onceload_jobs.work.parts import BatchPieces, Culprit
from onceload_jobs.work.progress import repeated
from onceload_jobs.work.read_chunk import Reading, RowForm
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.writer import ColumnsDiffer

#: A crash of the server empties the tables of a stage, which are then filled again from the pieces.
_LOST_MAX = 5


class _LeavesOut(Exception):
    """Some chunks cannot be published; the others are published without them."""

    def __init__(self, is_left_out: Callable[[Chunk], bool], notes: Sequence[Note]) -> None:
        super().__init__(notes)
        self.is_left_out, self.notes = is_left_out, notes


def stage_and_publish(context: LoadContext, work: ClaimedWork) -> list[Note]:
    """Read a whole batch, and publish it in one commit, or keep it for another call to publish."""
    replaced = {
        work.ids[file.listed.name, file.generation]: Replacement(
            old=file.replaces,
            name=file.listed.name,
            planned=SpanSet(Span(first, end) for first, end in file.spans if end is not None),
        )
        for file in work.files
        if file.replaces is not None
    }
    job = replace(context.job, replaced=replaced)
    with ExitStack() as opened, context.stopwatch.during(Phase.STAGE):
        folder = opened.enter_context(open_folder(context.settings.stage))
        opened.enter_context(repeated(folder.renew, every_s=RENEWED_EVERY_S))
        batch = _Batch(context, job, work, folder)
        with context.watch.watching():
            return batch.publish()


class _Batch:
    """A batch, and the tries to publish what is left of it.

    Left out are files that should replace their loaded rows but cannot be read completely, chunks that end every
    process that reads them, and files that would overtake something that cannot be read.
    """

    def __init__(self, context: LoadContext, job: Job, work: ClaimedWork, folder: StageFolder) -> None:
        self._context, self._job, self._work = context, job, work
        self._declared = declared = context.declared
        self._road = road_of(declared, is_kept=not context.settings.publishes)
        buckets: Sequence[Buckets] = ()
        if job.records_have_own_ids:
            buckets = buckets_of(declared, bucket_count(work.bundles, slots=context.executor.slots))
        last = RowForm(writer=writer_of(job, self._road), as_arrow=declared.needs_spark)
        #: As the rows are read, and behind each worker that leaves out repeats.
        form, *self._forms = [*(replace(last, as_arrow=True, buckets=each) for each in buckets), last]
        self._reading = Reading(declared=declared, columns=job.columns, form=form, folder=folder, access=job.access)
        self._read = BatchPieces(
            context.executor,
            self._reading,
            work.bundles,
            tries_max=declared.delivery.deliveries_max,
            on_piece=context.watch.piece_came,
        )
        self._pieces: Pieces = self._read
        self._left_out: list[Note] = []
        #: From this try.
        self._notes: list[Note] = []
        self._started = 0.0

    def publish(self) -> list[Note]:
        while not self._context.is_stopped:
            try:
                self._try_to_publish()
            except _LeavesOut as leaves:
                # Each time less is left, so this ends.
                self._left_out += leaves.notes
                self._read.leave_out(leaves.is_left_out)
                left = {chunk.producer_id for chunk in self._read.chunks}
                replaced = {new: each for new, each in self._job.replaced.items() if new in left}
                self._job = replace(self._job, replaced=replaced)
            except PieceGone:
                # The next round judges what is left, or reads again what was lost.
                if self._declared.needs_spark:
                    # With made rows, the records that they were made of may be lost too.
                    self._read.read_again()
            except SharedRecords:
                self._road = Road.TABLE
            else:
                return [*self._left_out, *self._notes]
        return self._left_out

    def _try_to_publish(self) -> None:
        self._started, self._notes = time.monotonic(), []
        self._pieces = self._without_repeats()
        if self._declared.needs_spark:
            # Spark SQL makes the rows of all records.
            read = list(self._pieces.each())
            self._judge(read)
            form = replace(self._reading.form, writer=writer_of(self._job, self._road))
            self._pieces = self._context.spark.transform(self._job, replace(self._reading, form=form), read)
        if self._road is Road.BATCH:
            self._copy_and_commit()
        else:
            self._publish_through_table()

    def _without_repeats(self) -> BatchPieces | NewPieces:
        """Let workers leave out the records that repeat others: first by producer, then by business id."""
        declared, names = self._declared, {chunk.name for chunk in self._read.chunks}
        looks: list[Callable[[Deduplicating, Bucket], Piece]] = []
        if declared.producer is not None:
            looks.append(partial(dedup_by_producer, declared.producer))
            names = {name for name in names if name.startswith(declared.producer.prefix)}
        if declared.message_id is not None:
            looks.append(partial(dedup_by_message, declared.message_id))
        read: BatchPieces | NewPieces = self._read
        for number, (look, form) in enumerate(zip(looks, self._forms, strict=True), 1):
            task = Deduplicating(
                job=self._job,
                folder=self._reading.folder,
                form=form,
                is_followed=number < len(looks),
                files=tuple(sorted(names)) if declared.producer else (),
            )
            read = NewPieces(executor=self._context.executor, look=look, task=task, read=read)
        return read

    def _copy_and_commit(self) -> None:
        added: Sequence[tuple[Column, ...]] = ()
        # Old rows are deleted, or columns added, which locks the table against its readers: all is read before that.
        if self._job.replaced or self._declared.unknown_fields is UnknownFields.ADD:
            pieces = list(self._pieces.each())
            self._judge(pieces)
            added = added_by(pieces)
        context = self._context
        self._work.is_acked = copy_and_commit(
            context.engine,
            context.ledger,
            self._job,
            self._pieces,
            claim=self._work.claim,
            judge=self._judge_and_log,
            added=added,
        )

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
        context, engine, job = self._context, self._context.engine, self._job
        copied = until_answered(partial(copy_to, engine, job, stage, self._pieces))
        self._judge(copied)
        pieces = with_made_rows(engine, job, stage, copied)
        self._log_staged(pieces)
        if not context.settings.publishes:
            self._keep(stage, pieces)
            return
        if self._declared.suite is not None:
            with context.stopwatch.during(Phase.AUDIT):
                check(audit_stage(engine, job, stage, pieces, docs=context.settings.docs), job, stage)
        with context.stopwatch.during(Phase.PUBLISH):
            try:
                self._work.is_acked = publish(engine, context.ledger, job, stage, pieces, claim=self._work.claim)
            except ColumnsDiffer as error:
                # The next call reads their types.
                raise PipelineBusy(job.declared.name, CONCURRENT_CHANGE) from error

    def _keep(self, stage: Stage, pieces: Sequence[Piece]) -> None:
        if any(piece.advances for piece in pieces):
            sealed = tuple(sealed_ends(self._declared.source, self._read.chunks, pieces))
            notes = [*self._left_out, *self._notes]
            claim = self._work.claim
            keep_batch(self._context.engine, self._job, stage, claim, pieces=pieces, notes=notes, sealed=sealed)
            self._context.kept = sum(piece.rows for piece in pieces)

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
        behind, why = overtaking(self._declared, self._read.chunks, pieces, noted=noted)
        if behind:
            raise _LeavesOut(behind.__contains__, why)

    def _set_aside(self, culprits: Sequence[Culprit]) -> None:
        """Make dead letters of them; some batches fail instead."""
        if self._declared.is_published_whole:
            reasons = culprits[0].reasons
            raise BatchIncomplete(self._declared.name, self._context.batch, len(reasons), reasons[-1])
        self._context.set_aside(self._work.claim, culprits)

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
