"""A piece: what reading a bundle of chunks gives, and what it proves once its rows are committed."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeAlias

import pyarrow as pa

from onceload_core.names import ProducerId
from onceload_core.ports import Advance, QuarantinedRecord
from onceload_core.spans import SpanSet
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: The file of a record and its place there, if its rows have the id of another producer. No column has such a name.
FILE, PLACE = "\0file", "\0place"
#: Rows that the server refuses, by the file and the place of their records, and why.
Refused: TypeAlias = Mapping[tuple[ProducerId, int], str]


def places_of(rows: pa.Table) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """The file of each record, and its place there."""
    file, place = (FILE, PLACE) if FILE in rows.column_names else (PRODUCER_ID, SEQUENCE)
    return rows.column(file), rows.column(place)


@dataclass(frozen=True, kw_only=True)
class MadeOf:
    """How many rows of a transform name a file, how many of its records they name, and the first and last of these."""

    producer_id: ProducerId
    rows: int
    records: int
    #: 0 if it names none.
    first: int = 0
    last: int = 0


@dataclass(frozen=True, kw_only=True)
class Block:
    """Rows in the format of COPY, one stream: where they are in the file of their piece, or they themselves."""

    rows: int
    first_byte: int
    size: int
    #: Of these bytes, so that none is copied that was lost or changed meanwhile.
    checksum: int
    #: Columns for undeclared fields.
    added: tuple[Column, ...] = ()
    #: Which bucket it belongs to, if the records name themselves.
    bucket: int = 0
    content: bytes | None = None


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What reading a bundle gives."""

    #: Its number in the batch; negative for rows that were made of other pieces, which prove nothing by themselves.
    number: int
    advances: tuple[Advance, ...] = ()
    rows: int = 0
    #: How many good records were read; a transform may make more or fewer rows of them.
    records: int = 0
    quarantined: tuple[QuarantinedRecord, ...] = ()
    bytes: int = 0
    #: The files that could not be read.
    notes: tuple[Note, ...] = ()
    #: The file with the blocks, if they do not have their content.
    file: str | None = None
    blocks: tuple[Block, ...] = ()
    #: Blocks with the ids that its rows use up, if their records name themselves.
    ids: tuple[Block, ...] = ()
    #: Blocks with the hashes of business ids.
    messages: tuple[Block, ...] = ()
    #: How many records were left out, because they repeat others.
    duplicates: int = 0
    #: The records that the rows of a transform name.
    made_of: tuple[MadeOf, ...] = ()
    #: The records of the quarantine that it was made of, by file and place, with the digests of their bytes.
    settled: Mapping[tuple[ProducerId, int], str] = field(default_factory=dict)

    @property
    def proof(self) -> "Piece":
        """The same without rows, which are in pieces that were made of it."""
        return replace(self, rows=0, blocks=())

    @property
    def without_content(self) -> "Piece":
        """The same, without rows that are held in memory."""

        def bare(blocks: tuple[Block, ...]) -> tuple[Block, ...]:
            return tuple(replace(block, content=None) for block in blocks)

        return replace(self, blocks=bare(self.blocks), ids=bare(self.ids), messages=bare(self.messages))


class Pieces(Protocol):
    """The pieces of one try to load a batch; each is read again if its rows are needed in another form."""

    def each(self) -> Iterator[Piece]:
        """All pieces, those that are read already first, the others as they come."""

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        """The rows of a block. BlockLost is raised if they are not those that were written."""

    def again(self, piece: Piece) -> Piece:
        """The same piece, read once more because its rows are lost."""

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> Piece:
        """The same piece, with other types for its columns of undeclared fields."""

    def without(self, piece: Piece, refused: Refused) -> Piece:
        """The same piece, with more rows in quarantine, which the server refuses."""

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        """Its rows with their columns for undeclared fields, block by block, to find those that the server refuses."""


class RowsInMemory(ABC):
    """Pieces that one process reads and copies: the rows of the last one, and what the server said of earlier ones.

    The rows are encoded while they are copied.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._rows: tuple[pa.Table, tuple[Column, ...]]
        self._refused: Refused = {}
        self._differing: ColumnsDiffer | None = None

    @abstractmethod
    def _read(self, number: int) -> Piece:
        """Read a piece, without the refused rows."""

    def _holding(self, rows: pa.Table, added: tuple[Column, ...]) -> tuple[Block, ...]:
        """The blocks of a piece with these rows, and their columns for undeclared fields."""
        self._rows = rows, added
        count: int = rows.num_rows
        return (Block(rows=count, first_byte=0, size=0, checksum=0, added=added),) if count else ()

    def content(self, piece: Piece, block: Block) -> Iterator[bytes]:
        del piece
        return self._writer.adding(block.added).encoded(self._rows[0])

    def rows(self, piece: Piece) -> Iterator[tuple[pa.Table, tuple[Column, ...]]]:
        del piece
        yield self._rows

    def again(self, piece: Piece) -> Piece:
        return self._read(piece.number)

    def of_types(self, piece: Piece, differing: ColumnsDiffer) -> Piece:
        self._differing = differing.after(self._differing)
        return self._read(piece.number)

    def without(self, piece: Piece, refused: Refused) -> Piece:
        self._refused = {**self._refused, **refused}
        return self._read(piece.number)


class PieceGone(Exception):
    """A piece that was read cannot be read once more."""


@dataclass(eq=False)
class BlockLost(Exception):
    """The rows of a piece are gone, or are not those that were written."""

    folder: str

    def __str__(self) -> str:
        return f"rows that waited in {self.folder} to be copied are lost or changed"


def advances_of(pieces: Iterable[Piece]) -> tuple[Advance, ...]:
    """One advance per producer, with the proofs of its pieces in order."""
    return one_each(advance for piece in pieces for advance in piece.advances)


def added_by(pieces: Iterable[Piece]) -> tuple[tuple[Column, ...], ...]:
    """The columns for undeclared fields, as the pieces have them."""
    return tuple(dict.fromkeys(block.added for piece in pieces for block in piece.blocks if block.added))


def one_each(advances: Iterable[Advance]) -> tuple[Advance, ...]:
    """One advance per producer, with all of its proofs in order."""
    of_producer = defaultdict[ProducerId, list[Advance]](list)
    for advance in advances:
        of_producer[advance.producer_id].append(advance)
    return tuple(some[0] if len(some) == 1 else _joined(some) for _, some in sorted(of_producer.items()))


def _joined(advances: Iterable[Advance]) -> Advance:
    in_order = sorted(advances, key=lambda advance: advance.spans.end if advance.spans else -1)
    spans = SpanSet(span for advance in in_order for span in advance.spans)
    # Rows that no file holds have none.
    digests = [advance.digest for advance in in_order if advance.digest is not None]
    digest = b"".join(digests) if digests else None
    rows, records = sum(advance.rows for advance in in_order), sum(advance.records for advance in in_order)
    return replace(in_order[-1], spans=spans, rows=rows, records=records, digest=digest)
