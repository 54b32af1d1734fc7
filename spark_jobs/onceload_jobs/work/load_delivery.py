"""Load a delivery in a task: read its chunks, and commit them piece by piece.

The ledger is authoritative. A task may be repeated, run twice at once, or be killed anywhere: its commits are refused
if any part of them is already loaded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres import PostgresLedger
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.batch.piece import Piece, RowsInMemory
from onceload_jobs.files.addresses import Unreadable, use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.plan.bundles import Delivery
from onceload_jobs.publish.batch_road import BatchRoad
from onceload_jobs.read.checked_parts import ReadPart, check_tail
from onceload_jobs.read.new_content import (
    leave_out_consumed,
    note_ignored,
    pieces_of,
    records_of,
    without_refused_files,
)
from onceload_jobs.work.read_chunk import Part
from onceload_jobs.write.until_certain import until_certain
from onceload_jobs.write.writer import Writer


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


def commit_chunk(job: Job, claim: Claim, part: Part) -> list[Note]:
    """Read a part of a load, and commit it piece by piece."""
    use_access(job.access)
    job = replace(job, is_redelivered=part.is_redelivered, is_last_try=part.is_last_try)
    delivery = Delivery(number=part.number, chunks=part.chunks, claim=claim, is_kept=True)
    return load_delivery(job, delivery, by_file=part.is_redelivered and len(part.chunks) == 1)


class _PartsAsPiece(RowsInMemory):
    """The parts of files that are committed together, as one piece."""

    def __init__(self, job: Job, parts: list[ReadPart], *, notes: list[Note]) -> None:
        super().__init__(Writer.into_target(job.declared.target, job.written))
        self._job, self._parts = job, parts
        #: The ids that are loaded: none, because the plan has left them out, until the ledger is asked.
        self._consumed: Mapping[ProducerId, SpanSet] = {}
        self._read_records()
        note_ignored(self._records, notes)

    def leave_out(self, consumed: Mapping[ProducerId, SpanSet]) -> None:
        """Leave out what is loaded."""
        self._consumed = consumed
        self._new = leave_out_consumed(self._parts, self._records, consumed=consumed)

    @property
    def has_something_new(self) -> bool:
        # A file without records is recorded with the others, or by the next load.
        advances = self._new.advances
        return any(each.spans for each in advances) if self._consumed else bool(advances)

    def each(self) -> Iterator[Piece]:
        yield self._piece(number=0)

    def check_tails(self, _: Sequence[Piece]) -> None:
        """As late as possible: what is written to a file after this is found by the next load."""
        for each in self._parts:
            with suppress(Unreadable):
                check_tail(each.chunk, each.part)

    def _read(self, number: int) -> Piece:
        self._read_records()
        return self._piece(number)

    def _read_records(self) -> None:
        declared, columns = self._job.declared, self._job.columns
        self._records, writer = records_of(
            declared, columns, self._parts, self._writer, differing=self._differing, refused=self._refused
        )
        self._added = writer.added
        self._new = leave_out_consumed(self._parts, self._records, consumed=self._consumed)

    def _piece(self, number: int) -> Piece:
        new = self._new
        return Piece(
            number=number,
            advances=new.advances,
            rows=new.rows.num_rows,
            records=new.rows.num_rows,
            quarantined=new.quarantined,
            bytes=new.bytes,
            duplicates=new.duplicate,
            blocks=self._holding(new.rows, self._added),
        )


def _commit_piece(job: Job, parts: list[ReadPart], *, claim: Claim, is_last: bool, notes: list[Note]) -> None:
    engine = engine_of(job)
    ledger = PostgresLedger(engine)
    piece = _PartsAsPiece(job, parts, notes=notes)
    # A part may already be loaded, if another worker held it before.
    is_unsure = job.is_redelivered
    road = BatchRoad(
        engine=engine,
        ledger=ledger,
        job=job,
        claim=claim,
        is_last=is_last,
        judge=piece.check_tails,
        is_logged_as="chunk_committed",
    )

    def note_unsure() -> None:
        nonlocal is_unsure
        is_unsure = True

    def find_rest() -> _PartsAsPiece:
        if is_unsure:
            piece.leave_out(_consumed(ledger, job, parts))
        return piece

    def commit(piece: _PartsAsPiece) -> None:
        if piece.has_something_new:
            road.write(piece)
        elif is_last:
            ledger.release(claim)

    until_certain(find_rest, commit, on_unsure=note_unsure, on_refused=road.check_each_piece)


def _consumed(ledger: PostgresLedger, job: Job, parts: Sequence[ReadPart]) -> dict[ProducerId, SpanSet]:
    known = ledger.know(job.session, list({each.part.producer_id for each in parts}))
    return {producer_id: knowledge.state.consumed for producer_id, knowledge in known.items()}
