"""Load a delivery in a task: read its chunks, and commit them piece by piece.

The ledger is authoritative. A task may be repeated, run twice at once, or be killed anywhere: its commits are refused
if any part of them is already loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Connection

from onceload_core.events import event
from onceload_core.names import ProducerId
from onceload_core.ports import Claim, Commit
from onceload_core.postgres import PostgresLedger
from onceload_core.replay import Counts
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.formats.records import Records
from onceload_jobs.read.bad_rows import without_rows
from onceload_jobs.read.blocks import note_ignored, pieces_of, records_of, without_refused_files
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.read.checked_parts import ReadPart, check_tail
from onceload_jobs.read.limits import bad_allowed, check_piece
from onceload_jobs.read.new_content import NewContent, leave_out_consumed
from onceload_jobs.write.find_refused import refused_or_raise
from onceload_jobs.write.until_certain import until_certain
from onceload_jobs.write.writer import ColumnsDiffer, Writer


def load_delivery(
    job: Job, delivery: Delivery, on_chunk: Callable[[Chunk], None] | None = None, *, by_file: bool = False
) -> list[Note]:
    """Load one delivery; report what could not be read, and load the rest.

    With `on_chunk`, which is called before each chunk, two chunks are never read or committed together. With `by_file`,
    too many bad records are the fault of their file alone.
    """
    notes: list[Note] = []
    refused: set[str] = set()
    pieces = pieces_of(job.declared, delivery.chunks, notes, is_last_try=job.is_last_try, on_chunk=on_chunk)
    for parts, is_end in pieces:
        is_last = is_end and not delivery.is_kept
        commit = partial(_commit_piece, job, claim=delivery.claim, is_last=is_last, notes=notes)
        without_refused_files(commit, parts, refused=refused, notes=notes, by_file=by_file or on_chunk is not None)
    return notes


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
        records, writer = records_of(job.declared, job.columns, parts, target)
        note_ignored(records, notes)
        return cls(job=job, parts=parts, target=target, records=records, writer=writer, consumed={})

    def forget_consumed(self) -> None:
        self.consumed = None

    def read_again(self, differing: ColumnsDiffer) -> None:
        declared, columns = self.job.declared, self.job.columns
        self.records, self.writer = records_of(declared, columns, self.parts, self.target, differing=differing)

    def leave_out_refused(self, _: NewContent, cause: Exception) -> None:
        """Quarantine the rows that the server refuses; another refusal is raised again."""
        name, rows, records = self.job.declared.name, self.records.rows, self.records
        at_most = bad_allowed(self.job.declared, bad=len(records.bad), records=records.count)
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
        engine=job.engine,
        spark_ui=job.spark_ui,
    )
