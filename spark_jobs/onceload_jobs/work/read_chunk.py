"""A worker is a function: it reads a bundle of chunks, and returns what they prove and where their rows are.

It has no database, lease or state, so it may run twice, at once or one after the other, and its process may die at any
point. It proves that each file is still the planned one, and sets bad records aside.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import pyarrow as pa

from onceload_core.names import ProducerId
from onceload_core.ports import Advance, QuarantinedRecord
from onceload_jobs.batch.piece import Piece, one_each
from onceload_jobs.batch.stage_folder import BlockWriter, StageFolder, written
from onceload_jobs.files.addresses import use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.bundles import Bundle
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.new_content import (
    NOTHING_REFUSED,
    NewContent,
    leave_out_consumed,
    note_ignored,
    pieces_of,
    records_of,
    without_refused_files,
)
from onceload_jobs.work.buckets import Buckets
from onceload_jobs.write.writer import ColumnsDiffer, Writer


@dataclass(frozen=True, kw_only=True)
class RowForm:
    """The form in which a worker hands on rows: for COPY, or for another worker."""

    #: The columns of the rows, in the order of COPY.
    writer: Writer
    #: As they are, in Arrow's format.
    as_arrow: bool = False
    #: For a worker that leaves out repeats.
    buckets: Buckets | None = None

    def write(self, into: BlockWriter, rows: pa.Table, added: tuple[Column, ...]) -> None:
        """Write rows with their columns for undeclared fields."""
        if not rows.num_rows:
            return
        for bucket, some in ((0, rows),) if self.buckets is None else self.buckets.split(rows):
            encoded = (_as_stream(some),) if self.as_arrow else self.writer.adding(added).encoded(some)
            into.write(encoded, rows=some.num_rows, added=added, bucket=bucket)


def _as_stream(rows: pa.Table) -> bytes:
    """Rows as a stream in Arrow's format."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    content: bytes = sink.getvalue().to_pybytes()
    return content


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Everything that a worker needs; it is pickled and sent to it."""

    declared: Declared
    columns: tuple[Column, ...]
    form: RowForm
    folder: StageFolder
    #: Credentials for the object store of the files.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A bundle of chunks with its number in the batch, and what the server said of its rows."""

    number: int
    chunks: Bundle
    #: What cannot be read now is not tried again.
    is_last_try: bool = True
    #: It was tried before, maybe by a worker that is still alive.
    is_redelivered: bool = False
    #: The columns of the table for undeclared fields, if they have other types than were read before.
    differing: ColumnsDiffer | None = None
    #: The rows that the server refused, by producer and sequence id, and why.
    refused: Mapping[tuple[ProducerId, int], str] = field(default_factory=lambda: NOTHING_REFUSED)


def read_chunk(reading: Reading, part: Part) -> Piece:
    """Read a part of a batch; report what could not be read, and read the rest."""
    use_access(reading.access)
    return written(reading.folder, partial(_read, reading, part))


def _read(reading: Reading, part: Part, writer: BlockWriter) -> Piece:
    notes: list[Note] = []
    advances: list[Advance] = []
    quarantined: list[QuarantinedRecord] = []
    size = 0
    for rows, new, added in blocks_of(reading, part, notes):
        advances += new.advances
        quarantined += new.quarantined
        size += new.bytes
        reading.form.write(writer, rows, added)
    rows_read = sum(block.rows for block in writer.blocks)
    return Piece(
        number=part.number,
        advances=one_each(advances),
        rows=rows_read,
        records=rows_read,
        quarantined=tuple(quarantined),
        bytes=size,
        notes=tuple(notes),
        file=writer.file,
        blocks=tuple(writer.blocks),
    )


def rows_of(reading: Reading, part: Part) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
    """The rows of a part, block by block."""
    use_access(reading.access)
    for rows, _, added in blocks_of(reading, part, []):
        yield rows, added


def blocks_of(
    reading: Reading, part: Part, notes: list[Note]
) -> Iterator[tuple[pa.Table, NewContent, tuple[Column, ...]]]:
    """The content of a part, a chunk's worth at a time."""
    refused: set[str] = set()
    for parts, _ in pieces_of(reading.declared, part.chunks, notes, is_last_try=part.is_last_try):
        new, added = without_refused_files(
            partial(_new_content, reading, part, notes), parts, refused=refused, notes=notes
        )
        yield new.rows, new, added


def _new_content(
    reading: Reading, part: Part, notes: list[Note], parts: list[ReadPart]
) -> tuple[NewContent, tuple[Column, ...]]:
    records, writer = records_of(
        reading.declared, reading.columns, parts, reading.form.writer, differing=part.differing, refused=part.refused
    )
    note_ignored(records, notes)
    return leave_out_consumed(parts, records, consumed={}), writer.added
