"""Common types of the formats: parts of files in, rows with sequence ids and bad records out."""

from collections.abc import Callable, Mapping, Sequence
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
    """A value that its column does not accept, with the reason."""


class RecordRefused(Exception):
    """A record that cannot become a row, with the reason."""

    def __init__(self, reason: str, *, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


@dataclass(frozen=True, kw_only=True)
class Origins:
    """The origin of each record, by its index."""

    producer_ids: Indices
    sequence_ids: Indices
    raw: Callable[[int], bytes]


#: How much of an oversized record is kept, so that people can recognise it.
KEPT_BYTES = 2**20


@dataclass(eq=False)
class FileRefused(NeedsAPerson):
    """A file of which no record, or no further record, can be read."""

    url: str
    expected: str
    found: str
    fix: str

    @property
    def refused(self) -> Mapping[str, str]:
        """The reason, by the address of the file."""
        return {self.url: str(self)}

    def __str__(self) -> str:
        return (
            f"{shown(self.url)} was refused: {self.found}; expected {self.expected}. Nothing more of it is loaded. "
            f"{self.fix}."
        )


_NAMES_SHOWN = 5


def refuse_lacking(url: str, lacking: Sequence[str], *, names: Sequence[str], place: str, fix: str) -> None:
    """Refuse a file that lacks declared columns: all of their values would be null."""
    if lacking:
        shown_names = ", ".join(map(repr, names[:_NAMES_SHOWN])) + (", ..." if len(names) > _NAMES_SHOWN else "")
        expected = f"the declared columns in its {place}, among them {', '.join(lacking[:_NAMES_SHOWN])}"
        raise FileRefused(url, expected, f"its {place} names {shown_names}", fix)


@dataclass(eq=False)
class LastLineOpen(CallAgain):
    """All whole records of a file were read, and an incomplete one follows."""

    #: How many bytes the last line has so far.
    size: int
    #: What it lacks.
    why: str = "has no newline yet"

    def __str__(self) -> str:
        return f"its last line ({self.size} bytes) {self.why}. It is loaded once it is complete"


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A span of a file that one task reads; it starts and ends between records."""

    producer_id: ProducerId
    #: The file's path below the source's root, for messages.
    name: str
    url: str
    first: int
    #: None if only reading finds the end: compressed files, and newlines inside quotes.
    end: int | None
    #: The start of the first record, if the bytes before it belong to one that is already loaded.
    begins: int | None = None
    #: Fingerprints that the file must match when it is read.
    expected: tuple[bytes, ...] = ()
    #: The file's size when it was listed.
    size: int = 0
    #: The marks of its stored bytes when it was planned: everything that is read must be of that content.
    stored: bytes | None = None
    #: Its ETag at that time.
    etag: str | None = None
    #: The file is complete: a last line without newline is a record too.
    sealed: bool = False
    #: The columns in the header of a CSV file, or the declared ones.
    header: tuple[str, ...] = ()
    #: The plan has more of this file after this chunk.
    is_followed: bool = False


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """A row group of a Parquet file: its rows, its byte range, and the footer that describes it."""

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
    #: The byte range in the (decompressed) stream.
    first: int
    end: int
    raw: bytes
    #: One record larger than the limit in memory; `raw` is only its beginning.
    too_long: bool = False
    #: A last line without a newline, which counts because the file is sealed.
    is_tail: bool = False
    #: For Parquet: the row group in `raw`.
    row_group: RowGroup | None = None


@dataclass(frozen=True, kw_only=True)
class BadRecord:
    """A record that cannot be loaded, with its bytes and the reason."""

    producer_id: ProducerId
    sequence_id: int
    raw: bytes
    reason: str
    column: str | None = None


@dataclass(frozen=True, kw_only=True)
class Records:
    """All records of some parts; each is either a row or a bad record."""

    #: The declared columns in their order and Arrow types, and the two lineage columns.
    rows: pa.Table
    bad: tuple[BadRecord, ...] = field(default=())
    #: Undeclared fields, if the pipeline adds them: declare these, and read again.
    unknown: tuple[Column, ...] = ()

    @property
    def count(self) -> int:
        rows: int = self.rows.num_rows
        return rows + len(self.bad)
