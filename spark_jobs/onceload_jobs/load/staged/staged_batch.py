"""A batch that is published as a whole: staged, retried if rows are lost, and published in one commit or kept."""

import time
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial

from onceload_core.errors import DatabaseLost, PipelineBusy, RowsRefused
from onceload_core.events import event
from onceload_core.guards import RowsDiffer
from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.connection import CONCURRENT_CHANGE, translated
from onceload_core.spans import Span, SpanSet
from onceload_jobs.batch.job import Job, Replacement
from onceload_jobs.batch.kept import keep_batch
from onceload_jobs.batch.pieces import StagedPiece, is_whole, staged_pieces
from onceload_jobs.batch.spool import open_spool
from onceload_jobs.batch.stage import Stage, StageLost, open_stage
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.offering import ClaimedWork
from onceload_jobs.load.phases import Phase
from onceload_jobs.load.sessions import Sessions
from onceload_jobs.load.staged.overtaking import Overtaking, overtaking, sealed_ends
from onceload_jobs.pipeline.declared import Declared, UnknownFields, Write
from onceload_jobs.publish.early_copy import EarlyCopy
from onceload_jobs.publish.named_rows import may_name_in_files
from onceload_jobs.publish.postgres_transform import create_records, make_rows
from onceload_jobs.publish.publish import BatchIncomplete, half_read, publish
from onceload_jobs.publish.replaced_rows import without_records
from onceload_jobs.quality.audit import audit_stage, check
from onceload_jobs.read.board_work import Bundle, Delivery, decode_work, offers_of
from onceload_jobs.write.binary_copy import needs_cast
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: A crash of the server empties unlogged tables; the next staging then starts from nothing.
_STAGINGS_MAX = 5


@dataclass(frozen=True, kw_only=True)
class _Staged:
    """The result of one staging."""

    pieces: Sequence[StagedPiece]
    notes: Sequence[Note]
    #: Every piece of every delivery is staged.
    is_complete: bool
    #: New generations that must not replace loaded rows, and why.
    broken: Mapping[ProducerId, Sequence[Note]]
    #: The starts of chunks that became dead letters.
    dead: Set[tuple[ProducerId, int]]
    behind: Overtaking | None

    @property
    def leaves_out(self) -> bool:
        """Whether some files cannot be published, so that the others are staged again without them."""
        return bool(self.dead or self.broken or self.behind)

    def reasons(self, declared: Declared) -> Iterator[Note]:
        """Why the left-out files are not loaded."""
        for notes in self.broken.values():
            yield from notes
        if self.behind:
            yield from self.behind.notes(declared)

    def rest_of(self, bundles: Sequence[Bundle]) -> list[Bundle]:
        late = self.behind.chunks if self.behind else frozenset()
        return [
            tuple(
                chunk
                for chunk in chunks
                if _place(chunk) not in self.dead and chunk.producer_id not in self.broken and chunk not in late
            )
            for chunks in bundles
        ]


class _Again(Enum):
    """Why a batch is staged again as it is."""

    LOST = "rows or pieces of it are missing, because the server crashed"
    NEEDS_TABLE = "the target refuses rows in files or takes other rows, and only a table of the stage shows why"


class StagedBatch:
    """Stages a batch and publishes it, or keeps it for another call to publish."""

    def __init__(self, context: LoadContext, sessions: Sessions) -> None:
        self._context, self._sessions = context, sessions
        self._declared = context.declared
        #: Rows go through files until the target refuses some of them: only a table of the stage shows which.
        self._spools = True
        #: How many rows are kept for another call; None if none are left to publish.
        self.kept: int | None = None

    def stage_and_publish(self, work: ClaimedWork) -> list[Note]:
        """Stage the whole batch, again if the server loses staged rows, and publish it in one commit.

        Left out, and the rest staged again: a file that should replace its loaded rows but cannot be read completely,
        dead letters, and files that would overtake something that cannot be read.
        """
        job = replace(self._sessions.prepared_job(), replaced=_replaced(work))
        bundles, left_out, losses = work.bundles, list[Note](), 0
        while True:
            with self._context.stopwatch.during(Phase.STAGE):
                staged = self._stage_once(job, bundles, work.claim, left_out=left_out)
            if isinstance(staged, _Staged) and not staged.leaves_out:
                return [*left_out, *staged.notes]
            if self._context.is_stopped:
                return left_out
            match staged:
                case _Staged():
                    # Each time less is left, so this ends.
                    left_out += staged.reasons(self._declared)
                    bundles, losses = staged.rest_of(bundles), 0
                case _Again.NEEDS_TABLE:
                    self._spools = False
                case _Again.LOST:
                    losses += 1
                    if losses == _STAGINGS_MAX:
                        raise DatabaseLost(f"staging batch {job.batch}", f"the server lost staged rows {losses} times")

    def _stage_once(
        self, job: Job, bundles: Sequence[Bundle], claim: Claim, *, left_out: Sequence[Note]
    ) -> _Staged | _Again:
        """Stage in a new stage, and publish or keep the batch if nothing must be left out."""
        started = time.monotonic()
        with ExitStack() as staging, suppress(StageLost):
            # After a crash, old connections fail only now; their locks are gone with their stages.
            stage = until_answered(partial(self._open_stage, staging, job, deliveries=len(bundles)))
            early = self._begin_to_copy(staging, job, stage)
            staged = self._stage(replace(job, stage=stage), stage, bundles, claim)
            if staged.leaves_out:
                return staged
            if staged.is_complete:
                pieces = self._with_made_rows(job, stage, staged.pieces)
                _log_staged(job, pieces, seconds=time.monotonic() - started)
                notes = [*left_out, *staged.notes]
                try:
                    self._publish_or_keep(job, stage, pieces, claim, bundles=bundles, notes=notes, early=early)
                except (RowsRefused, RowsDiffer):
                    if stage.spool is None:
                        raise
                    return _Again.NEEDS_TABLE
                return staged
        return _Again.LOST

    def _open_stage(self, staging: ExitStack, job: Job, *, deliveries: int) -> Stage:
        with translated(pipeline=job.declared.name, doing="opening a stage"):
            target = job.declared.target
            stage = open_stage(self._context.engine, job.written, target, lineage=job.has_lineage)
            opened = staging.enter_context(stage)
            if self._declared.is_made_by_postgres:
                create_records(self._context.engine, job, opened)
        if not self._may_spool(job, deliveries=deliveries):
            return opened
        in_files = Writer.into_target(job.declared.target, job.written).names
        spool = staging.enter_context(open_spool())
        return replace(opened, spool=spool, in_files=tuple(in_files), producer=self._declared.producer)

    def _may_spool(self, job: Job, *, deliveries: int) -> bool:
        """Whether rows may go from files into the target: they are only appended, by this call, and the same here."""
        declared = self._declared
        needs_table = declared.message_id or declared.suite or declared.is_made_by_postgres or needs_cast(job.written)
        if declared.producer and not (may_name_in_files(job, deliveries=deliveries) and self._may_copy_early(job)):
            return False
        if declared.transform and job.has_lineage and not job.declared.target.lineage:
            # Files lack what names the records.
            return False
        return (
            not needs_table
            and self._context.settings.publishes
            and declared.target.write is Write.APPEND
            and self._sessions.share_files
            and self._spools
        )

    def _begin_to_copy(self, staging: ExitStack, job: Job, stage: Stage) -> EarlyCopy | None:
        """Copy files while others are staged."""
        if stage.spool is None or not self._may_copy_early(job):
            return None
        return staging.enter_context(closing(EarlyCopy(self._context.engine, job, stage)))

    def _may_copy_early(self, job: Job) -> bool:
        """Whether files may be copied during staging: not if rows must be deleted or columns added first.

        With a transform in Spark, only its end shows which of its files count.
        """
        adds = self._declared.unknown_fields is UnknownFields.ADD
        return not (job.replaced or adds or self._declared.needs_spark)

    def _stage(self, job: Job, stage: Stage, bundles: Sequence[Bundle], claim: Claim) -> _Staged:
        notes = self._let_sessions_stage(job, stage, bundles, claim)
        pieces = until_answered(partial(self._pieces, stage))
        notes += [note for piece in pieces for note in piece.notes]
        half = {new: _why_half(each.name, notes) for new, each in half_read(job, pieces, notes).items()}
        broken = {new: [note] for new, note in without_records(job, self._context.ledger, pieces).items()} | half
        dead = self._detach_dead_letters(claim)
        is_complete = not dead and is_whole(pieces, deliveries=len(bundles)) and not _has_holes(pieces, bundles)
        noted = {note.name for note in notes} | {job.replaced[each].name for each in broken}
        behind = overtaking(self._declared, bundles, pieces, noted=noted) if is_complete else None
        return _Staged(pieces=pieces, notes=notes, is_complete=is_complete, broken=broken, dead=dead, behind=behind)

    def _let_sessions_stage(self, job: Job, stage: Stage, bundles: Sequence[Bundle], claim: Claim) -> list[Note]:
        """Let all sessions stage the batch, also deliveries that come back."""
        if self._declared.needs_spark:
            # Spark SQL may read its input again, so this one session keeps all deliveries.
            deliveries = [Delivery(number=number, chunks=chunks, claim=claim) for number, chunks in enumerate(bundles)]
            return self._sessions.tasks.transform(job, deliveries)
        offers = offers_of(bundles, stage=stage.name)
        # After a crash, an old connection may fail only here. Offering again replaces what was offered.
        until_answered(partial(self._context.board.offer_batch, claim, offers, batch=self._context.batch))
        if self._declared.is_made_by_postgres:
            job = replace(job, stage=stage.of_records(job.columns))
        return self._sessions.work(job)

    def _with_made_rows(self, job: Job, stage: Stage, pieces: Sequence[StagedPiece]) -> Sequence[StagedPiece]:
        """The pieces, with the rows that Postgres makes of their records."""
        if not self._declared.is_made_by_postgres:
            return pieces
        return until_answered(partial(make_rows, self._context.engine, job, stage, pieces))

    def _pieces(self, stage: Stage) -> tuple[StagedPiece, ...]:
        with translated(pipeline=self._declared.name, doing="looking at staged pieces"):
            return staged_pieces(self._context.engine, stage)

    def _detach_dead_letters(self, claim: Claim) -> set[tuple[ProducerId, int]]:
        """Take dead letters out of the batch, and return the starts of their chunks; some batches fail instead."""
        board = self._context.board
        dead = until_answered(partial(board.dead_of, claim))
        if dead and self._declared.is_published_whole:
            raise BatchIncomplete(self._declared.name, self._context.batch, dead[0].tries, dead[0].reason)
        until_answered(partial(board.detach_dead_letters, claim))
        letters = (decode_work(self._declared, each.work, claim)[0] for each in dead)
        return {_place(chunk) for letter in letters for chunk in letter.chunks}

    def _publish_or_keep(
        self,
        job: Job,
        stage: Stage,
        pieces: Sequence[StagedPiece],
        claim: Claim,
        *,
        bundles: Sequence[Bundle],
        notes: Sequence[Note],
        early: EarlyCopy | None,
    ) -> None:
        engine, ledger, settings = self._context.engine, self._context.ledger, self._context.settings
        stopwatch = self._context.stopwatch
        if settings.publishes:
            if self._declared.suite is not None:
                with stopwatch.during(Phase.AUDIT):
                    audit = audit_stage(engine, ledger, job, stage, pieces, docs=settings.docs)
                    check(audit, job, stage)
            with stopwatch.during(Phase.PUBLISH):
                try:
                    publish(engine, ledger, job, stage, pieces, claim=claim, early=early)
                except ColumnsDiffer as error:
                    # The next call reads their types.
                    raise PipelineBusy(job.declared.name, CONCURRENT_CHANGE) from error
        elif any(piece.advances for piece in pieces):
            sealed = tuple(sealed_ends(self._declared.source, bundles, pieces))
            keep_batch(engine, job, stage, claim, deliveries=len(bundles), notes=notes, sealed=sealed)
            self.kept = sum(piece.rows for piece in pieces)


def _log_staged(job: Job, pieces: Sequence[StagedPiece], *, seconds: float) -> None:
    event(
        "batch_staged",
        pipeline=job.declared.name,
        batch=job.batch,
        rows=sum(piece.rows for piece in pieces),
        pieces=len(pieces),
        quarantined=sum(len(piece.quarantined) for piece in pieces),
        seconds=round(seconds, 3),
    )


def _why_half(name: str, notes: Sequence[Note]) -> list[Note]:
    of_file = [note for note in notes if note.name == name]
    return [each.of_no_replacement() for each in of_file or [Note(name=name, reason="it was not read completely")]]


def _has_holes(pieces: Sequence[StagedPiece], bundles: Sequence[Bundle]) -> bool:
    """Whether a chunk has staged pieces after a piece that is missing."""
    staged: dict[tuple[int, ProducerId], SpanSet] = {}
    for piece in pieces:
        for advance in piece.advances:
            key = piece.delivery, advance.producer_id
            staged[key] = staged.get(key, SpanSet()) | advance.spans
    for number, chunks in enumerate(bundles):
        for chunk in chunks:
            whole = SpanSet([chunk.span])
            read = staged.get((number, chunk.producer_id), SpanSet()) & whole
            if read and read != SpanSet([Span(chunk.first, read.end)]):
                return True
    return False


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


def _place(chunk: Chunk) -> tuple[ProducerId, int]:
    return chunk.producer_id, chunk.first
