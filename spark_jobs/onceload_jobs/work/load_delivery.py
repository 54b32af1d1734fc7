"""Load a delivery in a task: read its chunks, and commit or stage them piece by piece.

The ledger is authoritative. A task may be repeated, run twice at once, or be killed anywhere: its commits are refused
if any part of them is already loaded, and each piece that it stages is kept once.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection

from onceload_core.delivery import Mode
from onceload_core.errors import (
    CommitOutcomeUnknown,
    DatabaseLost,
    OnceloadError,
    TooManyQuarantined,
)
from onceload_core.events import event
from onceload_core.names import ProducerId
from onceload_core.ports import Claim, Commit
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import translated
from onceload_core.replay import Counts
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.batch.pieces import StagedPiece, begin_try, stage_piece
from onceload_jobs.batch.stage import Stage, still_there
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk, FileRefused
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.read.added_columns import read_adding
from onceload_jobs.read.bad_rows import without_invalid_ids, without_rows
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.read.checked_parts import FileRewritten, ReadPart, TailWentOn, check_tail, read_parts
from onceload_jobs.read.limits import NothingGood, bad_allowed, check_piece
from onceload_jobs.read.new_content import NewContent, leave_out_consumed
from onceload_jobs.read.parts import piece_bytes_max
from onceload_jobs.read.rows import read_records
from onceload_jobs.write.find_refused import refused_or_raise
from onceload_jobs.write.patience import Answer, until_answered
from onceload_jobs.write.until_certain import until_certain
from onceload_jobs.write.writer import ColumnsDiffer, Writer


def load_delivery(job: Job, delivery: Delivery, on_chunk: Callable[[Chunk], None] | None = None) -> list[Note]:
    """Load one delivery; report what could not be read, and load the rest.

    With `on_chunk`, which is called before each chunk, two chunks are never read or committed together.
    """
    if job.stage is not None:
        until_answered(partial(_begin_try, job, job.stage, delivery))
    notes: list[Note] = []
    refused: set[str] = set()
    for number, (parts, is_last) in enumerate(pieces_of(job, delivery, notes, on_chunk)):
        commit_or_stage: Callable[[list[ReadPart]], None]
        if job.stage is None:
            commit_or_stage = partial(_commit_piece, job, claim=delivery.claim, is_last=is_last, notes=notes)
        else:
            place = (delivery.number, number)
            commit_or_stage = partial(
                _stage_piece, job, job.stage, place=place, claim=delivery.claim, is_last=is_last, notes=notes
            )
        without_refused_files(commit_or_stage, parts, refused=refused, notes=notes, by_file=on_chunk is not None)
    return notes


def _begin_try(job: Job, stage: Stage, delivery: Delivery) -> None:
    with translated(pipeline=job.declared.name, doing="staging rows"):
        begin_try(engine_of(job), stage, delivery.claim, delivery=delivery.number)


def without_refused_files(
    process: Callable[[list[ReadPart]], Answer],
    parts: list[ReadPart],
    *,
    refused: set[str],
    notes: list[Note],
    by_file: bool = False,
) -> Answer:
    """Process a piece without the files that turn out to be unreadable when they are decoded."""
    without_tail: set[str] = set()
    while True:
        left = [each for each in parts if each.chunk.url not in refused]
        left = [each for each in left if not (each.part.is_tail and each.chunk.url in without_tail)]
        try:
            return process(left)
        except TailWentOn as error:
            without_tail.add(error.url)
            notes += [
                Note.of(name, error) for name in {each.chunk.name for each in left if each.chunk.url == error.url}
            ]
        except (FileRefused, NothingGood) as error:
            names = {each.chunk.url: each.chunk.name for each in left if each.chunk.url in error.refused}
            if not names:
                raise
            refused.update(names)
            notes += [Note(name=name, reason=error.refused[url], needs_a_person=True) for url, name in names.items()]
        except TooManyQuarantined as error:
            # A single file says nothing about the others, which would have been judged together with it.
            if not by_file or not left:
                raise
            refused.update(each.chunk.url for each in left)
            notes += [Note.of(name, error) for name in dict.fromkeys(each.chunk.name for each in left)]


def pieces_of(
    job: Job, delivery: Delivery, notes: list[Note], on_chunk: Callable[[Chunk], None] | None = None
) -> Iterator[tuple[list[ReadPart], bool]]:
    """The parts to commit together: one, or small ones up to the size of a chunk; and whether they are the last."""
    held: list[ReadPart] = []
    held_bytes = 0
    bytes_max = piece_bytes_max(job.declared.source)
    for chunk in delivery.chunks:
        if on_chunk is not None:
            if held:
                yield held, False
                held, held_bytes = [], 0
            on_chunk(chunk)
        try:
            for part in read_parts(chunk, job.declared.source):
                if held and held_bytes + len(part.part.raw) > bytes_max:
                    yield held, False
                    held, held_bytes = [], 0
                held.append(part)
                held_bytes += len(part.part.raw)
        except OnceloadError as error:
            if isinstance(error, DatabaseLost | CommitOutcomeUnknown | TooManyQuarantined):
                raise
            if _is_temporary(error) and (not job.is_last_try or _is_followed(job.declared, delivery)):
                # Another worker may be able to read it, or later parts must not take effect first.
                raise
            notes.append(Note.of(chunk.name, error))
    yield held, True


def _is_temporary(error: OnceloadError) -> bool:
    """Whether the same bytes may be readable later."""
    return isinstance(error, Unreadable) and not isinstance(error, FileRewritten)


def _is_followed(declared: Declared, delivery: Delivery) -> bool:
    """Whether other deliveries are ordered after this one."""
    match declared.delivery.mode:
        case Mode.SHARED:
            return False
        case Mode.KEY_SHARED:
            return not declared.needs_spark and any(chunk.is_followed for chunk in delivery.chunks)
        case Mode.ORDERED | Mode.SESSION:
            return not declared.needs_spark and (declared.is_direct or declared.is_published_whole)


@dataclass(kw_only=True)
class _Piece:
    """A piece of a delivery, as it can be written."""

    job: Job
    parts: list[ReadPart]
    #: How rows are written without added columns.
    target: Writer
    records: Records
    writer: Writer
    #: The ids that are loaded: at first none, because the plan has left them out; None if the ledger must be asked.
    consumed: Mapping[ProducerId, SpanSet] | None

    @classmethod
    def read(cls, job: Job, parts: list[ReadPart], target: Writer, *, notes: list[Note]) -> "_Piece":
        records, writer = records_of(job, parts, target)
        note_ignored(records, notes)
        return cls(job=job, parts=parts, target=target, records=records, writer=writer, consumed={})

    def forget_consumed(self) -> None:
        self.consumed = None

    def read_again(self, differing: ColumnsDiffer) -> None:
        self.records, self.writer = records_of(self.job, self.parts, self.target, differing)

    def leave_out_refused(self, _: NewContent, cause: Exception) -> None:
        """Quarantine the rows that the server refuses; another refusal is raised again."""
        name, rows, at_most = self.job.declared.name, self.records.rows, bad_allowed(self.job.declared, self.records)
        refused = refused_or_raise(engine_of(self.job), self.writer, rows, pipeline=name, cause=cause, at_most=at_most)
        if refused:
            self.records = without_rows(self.records, refused, [each.part for each in self.parts])
            check_piece(self.job.declared, self.records, self.parts)


def _commit_piece(job: Job, parts: list[ReadPart], *, claim: Claim, is_last: bool, notes: list[Note]) -> None:
    ledger = PostgresLedger(engine_of(job))
    piece = _Piece.read(job, parts, Writer.into_target(job.declared.target, job.written), notes=notes)
    if job.is_redelivered:
        # A part may already be loaded, if another worker held it before.
        piece.forget_consumed()

    def find_rest() -> NewContent:
        if piece.consumed is None:
            piece.consumed = _consumed(ledger, job, parts)
        return leave_out_consumed(parts, piece.records, consumed=piece.consumed)

    def commit(rest: NewContent) -> None:
        if _has_something_new(rest, piece.consumed or {}):
            _commit(ledger, job, _commit_of(job, parts, rest, writer=piece.writer, claim=claim, is_last=is_last))
        elif is_last:
            ledger.release(claim)

    until_certain(
        find_rest,
        commit,
        on_unsure=piece.forget_consumed,
        on_columns=piece.read_again,
        on_refused=piece.leave_out_refused,
    )


def _consumed(ledger: PostgresLedger, job: Job, parts: Sequence[ReadPart]) -> dict[ProducerId, SpanSet]:
    known = ledger.know(job.session, list({each.part.producer_id for each in parts}))
    return {producer_id: knowledge.state.consumed for producer_id, knowledge in known.items()}


def _has_something_new(prepared: NewContent, consumed: Mapping[ProducerId, SpanSet]) -> bool:
    # A file without records is recorded with the others, or by the next load.
    return any(each.spans for each in prepared.advances) if consumed else bool(prepared.advances)


def _commit(ledger: PostgresLedger, job: Job, commit: Commit[Connection]) -> None:
    position = ledger.commit(commit)
    event(
        "chunk_committed",
        pipeline=job.declared.name,
        batch=job.batch,
        session=job.session.name,
        position=position,
        rows=commit.counts.loaded,
        quarantined=commit.counts.quarantined,
    )


def _commit_of(
    job: Job, parts: Sequence[ReadPart], prepared: NewContent, *, writer: Writer, claim: Claim, is_last: bool
) -> Commit[Connection]:
    def write_rows(connection: Connection) -> int:
        rows = writer.write(connection, prepared.rows)
        # As late as possible: what is written to a file after this is found by the next load.
        for each in parts:
            with suppress(Unreadable):
                check_tail(each.chunk, each.part)
        return rows

    return Commit(
        session=job.session,
        batch=job.batch,
        advances=prepared.advances,
        write_rows=write_rows,
        claim=claim,
        is_last=is_last,
        counts=Counts(loaded=prepared.rows.num_rows, duplicate=prepared.duplicate, quarantined=len(prepared.bad)),
        bytes=prepared.bytes,
        quarantined=prepared.quarantined,
        run=job.run,
    )


def _stage_piece(
    job: Job,
    stage: Stage,
    parts: list[ReadPart],
    *,
    place: tuple[int, int],
    claim: Claim,
    is_last: bool,
    notes: list[Note],
) -> None:
    engine = engine_of(job)
    piece = _Piece.read(job, parts, stage.writer, notes=notes)

    def write(rest: NewContent) -> None:
        staged = StagedPiece.of(rest, delivery=place[0], number=place[1], is_last=is_last)
        # The rows of a transform are made of all records, and count then.
        rows = staged.rows if job.declared.transform is None else 0
        staged = replace(staged, rows=rows, notes=tuple(notes) if is_last else ())
        with translated(pipeline=job.declared.name, doing="staging rows"):
            stage_piece(engine, stage, staged, rest.rows, writer=piece.writer, claim=claim)

    def leave_out_refused(rest: NewContent, cause: Exception) -> None:
        with still_there(stage):
            piece.leave_out_refused(rest, cause)

    # The ledger is not asked: nothing of the batch is loaded before all of it, and a piece is staged only once.
    until_certain(
        lambda: leave_out_consumed(parts, piece.records, consumed={}),
        write,
        on_columns=piece.read_again,
        on_refused=leave_out_refused,
    )


def records_of(
    job: Job, parts: Sequence[ReadPart], writer: Writer, differing: ColumnsDiffer | None = None
) -> tuple[Records, Writer]:
    """Read parts, and decide how to write their rows: with added columns for undeclared fields, if any."""
    if job.declared.transform is None:
        records, added = read_adding(job.declared, job.columns, parts, differing)
        writer = writer.adding(added)
    else:
        # A transform sees the declared columns, and makes the written ones.
        records = read_records(job.declared, job.columns, parts)
    if job.declared.producer is not None:
        records = without_invalid_ids(records, job.declared.producer, [each.part for each in parts])
    check_piece(job.declared, records, parts)
    return records, writer


def note_ignored(records: Records, notes: list[Note]) -> None:
    if records.ignored.fields:
        # No file has this name: the note says nothing about what was read of one.
        notes.append(Note(name="", reason="", ignored=records.ignored))
