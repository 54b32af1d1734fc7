"""What the formats have in common: parts of files in, rows with their sequence ids and bad records out."""

from dataclasses import dataclass, field

import pyarrow as pa

from dedup_core.names import ProducerId
from spark_jobs.columns import Column

PRODUCER_ID = "_producer_id"
SEQUENCE = "_sequence"
LINEAGE = (pa.field(PRODUCER_ID, pa.int64()), pa.field(SEQUENCE, pa.int64()))


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
    #: The file is complete: a last line without newline is a record too.
    sealed: bool = False
    #: The columns that a CSV file's first line names, or that are declared for it.
    header: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Part:
    """Whole records of one chunk, as many as are read at once."""

    producer_id: ProducerId
    #: Where the bytes start and end in the (decompressed) stream.
    first: int
    end: int
    raw: bytes
    #: One record beyond record_bytes_max, of which `raw` is only the beginning.
    too_long: bool = False


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
