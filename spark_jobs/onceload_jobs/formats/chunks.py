"""What every format reads: chunks of files, in parts of whole records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from onceload_core.errors import CallAgain, NeedsAPerson
from onceload_core.names import ProducerId
from onceload_core.spans import SEQUENCE_END, Span
from onceload_jobs.files.addresses import shown

#: How much of an oversized record is kept, so that people can recognise it.
KEPT_BYTES = 2**20


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """A span of a file that one task reads; it starts and ends between records."""

    producer_id: ProducerId
    #: The file's path below the source's root, for messages.
    name: str
    url: str
    #: In bytes of the unpacked content; in formats whose files are written as a whole, in rows.
    first: int
    #: In the same unit; None if only reading finds it: compressed files, newlines inside quotes, and whole files.
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
    #: For rows: how many bytes of the file hold them.
    row_bytes: int | None = None

    @property
    def span(self) -> Span:
        """Its ids; without a known end, all from its start."""
        return Span(self.first, SEQUENCE_END if self.end is None else self.end)

    @property
    def bytes(self) -> int:
        """How much there is to read; for a compressed file, as much as is known."""
        if self.row_bytes is not None:
            return self.row_bytes
        return max(0, (self.size if self.end is None else self.end) - self.first)


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Some rows of a file that is written as a whole: their numbers, and their bytes in the unpacked content."""

    number: int
    #: The range of its rows.
    first: int
    end: int
    first_byte: int
    end_byte: int
    #: What describes the rows: the footer of a Parquet file.
    footer: bytes = field(repr=False)
    #: The size of the unpacked content.
    file_size: int

    @property
    def bytes(self) -> int:
        return self.end_byte - self.first_byte


@dataclass(frozen=True, kw_only=True)
class Part:
    """Whole records of one chunk, as many as are read at once."""

    producer_id: ProducerId
    #: The byte range in the unpacked content, or the range of rows.
    first: int
    end: int
    raw: bytes
    #: One record larger than the limit in memory; `raw` is only its beginning.
    too_long: bool = False
    #: A last line without a newline, which counts because the file is sealed.
    is_tail: bool = False
    #: For rows: the row group in `raw`.
    row_group: RowGroup | None = None


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
