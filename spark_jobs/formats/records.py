"""What the formats have in common: parts of files in, rows with their sequence ids and bad records out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dedup_core.errors import CallAgain, NeedsAPerson
from dedup_core.names import ProducerId
from spark_jobs.files.addresses import shown
from spark_jobs.pipeline.columns import Column

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class ValueRefused(Exception):
    """A value that its column does not take; the text says why."""


class RecordRefused(Exception):
    """A record that cannot be a row; the text says why."""

    def __init__(self, reason: str, *, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True, kw_only=True)
class Origins:
    """Where each record comes from, by the record's index."""

    producer_ids: Indices
    sequence_ids: Indices
    raw: Callable[[int], bytes]


#: How much of a record that is too long is kept, so that a person can recognise it.
KEPT_BYTES = 2**20


@dataclass(eq=False)
class FileRefused(NeedsAPerson):
    """A file of which no record can be read, or no more records."""

    url: str
    expected: str
    found: str
    fix: str

    @property
    def refused(self) -> Mapping[str, str]:
        """Why, by the file's address."""
        return {self.url: str(self)}

    def __str__(self) -> str:
        return f"{shown(self.url)} should {self.expected}, but {self.found}; nothing more of it is loaded: {self.fix}"


@dataclass(eq=False)
class LastLineOpen(CallAgain):
    """All whole records of a file were read, and it goes on behind them."""

    #: How many bytes of the last line are there.
    size: int
    #: What it lacks.
    why: str = "has no newline yet"

    def __str__(self) -> str:
        return f"its last line ({self.size} bytes) {self.why}. It is loaded once it is complete"


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A span of one file that one task reads; it starts and ends between records."""

    producer_id: ProducerId
    #: The file's path below the source's root, for people.
    name: str
    url: str
    first: int
    #: Left out where only reading tells: compressed files, and newlines inside quotes.
    end: int | None
    #: Where the first record starts, if the bytes before belong to one that took effect already.
    begins: int | None = None
    #: Fingerprints that the file must still have when it is read.
    expected: tuple[bytes, ...] = ()
    #: The file's size as it was listed.
    size: int = 0
    #: Its bytes as they lay there when it was planned, told by their edges: all that is read of it is of that content.
    lying: bytes | None = None
    #: What its store called its content then.
    etag: str | None = None
    #: The file is complete: a last line without newline is a record too.
    sealed: bool = False
    #: The columns that a CSV file's first line names, or that are declared for it.
    header: tuple[str, ...] = ()
    #: What was planned of the file goes on behind it.
    is_followed: bool = False


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """A row group of a Parquet file: its rows, where its bytes are, and the footer that says what they mean."""

    number: int
    first: int
    end: int
    first_byte: int
    end_byte: int
    footer: bytes = field(repr=False)
    file_size: int


@dataclass(frozen=True, kw_only=True)
class Part:
    """Whole records of one chunk, as many as are read at once."""

    producer_id: ProducerId
    #: Where the bytes start and end in the (decompressed) stream.
    first: int
    end: int
    raw: bytes
    #: One record beyond all that is held at once, of which `raw` is only the beginning.
    too_long: bool = False
    #: A last line without its newline, which counts because the file is sealed.
    is_tail: bool = False
    #: Of a Parquet file: what `raw` holds the bytes of.
    row_group: RowGroup | None = None


@dataclass(frozen=True, kw_only=True)
class BadRecord:
    """A record that cannot be loaded, whole, and why."""

    producer_id: ProducerId
    sequence_id: int
    raw: bytes
    reason: str
    column: str | None = None


@dataclass(frozen=True, kw_only=True)
class Records:
    """All records of some parts: each is a row or a bad record, and none is both."""

    #: The declared columns in their order and Arrow types, and the two of the lineage.
    rows: pa.Table
    bad: tuple[BadRecord, ...] = field(default=())
    #: Fields that nobody declared, where the pipeline adds them: declare these, and read again.
    unknown: tuple[Column, ...] = ()

    @property
    def count(self) -> int:
        rows: int = self.rows.num_rows
        return rows + len(self.bad)
