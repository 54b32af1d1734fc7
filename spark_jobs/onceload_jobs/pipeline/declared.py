"""A parsed pipeline file: what to read, how, and where to write it. The YAML is parsed by onceload."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from onceload_core.delivery import Mode, Rules
from onceload_core.pipeline import Pipeline
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.columns import Column


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    FIXED = "fixed"
    JSON = "json"
    PARQUET = "parquet"
    ORC = "orc"
    AVRO = "avro"

    @property
    def proper_name(self) -> str:
        """Its name in messages."""
        return self.upper() if self is Format.ORC else self.capitalize()

    @property
    def is_whole(self) -> bool:
        """Whether a file is written once and loaded only as a whole; its records are numbered, as rows."""
        return self is Format.JSON or self.is_typed

    @property
    def is_typed(self) -> bool:
        """Whether values have types of their own, in files that are compressed internally."""
        return self in (Format.PARQUET, Format.ORC, Format.AVRO)


class Identity(StrEnum):
    """What identifies a file that was already loaded."""

    #: Its path below the source's root.
    PATH = "path"
    #: Its path, or the same content under another path.
    CONTENT = "content"


class UnknownFields(StrEnum):
    """What to do with a field that has no declared column."""

    IGNORE = "ignore"
    #: Quarantine its record.
    FAIL = "fail"
    #: Add a column for it to the target, in the same commit.
    ADD = "add"


class OnNewColumn(StrEnum):
    """What to do if the target lacks a declared column, or has a narrower type."""

    #: Load nothing; a person must change the table.
    STOP = "stop"
    #: Add the column before the load, and widen types that need no rewrite of the table.
    ADD = "add"


class Publish(StrEnum):
    STAGED = "staged"
    DIRECT = "direct"


class Write(StrEnum):
    APPEND = "append"
    MERGE = "merge"


class NewerFile(StrEnum):
    """Which of two files is the newer one, if both are new in the same load."""

    #: The one whose name sorts last.
    BY_NAME = "by_name"
    #: The one that was modified last.
    BY_TIME = "by_time"


class OnRewrite(StrEnum):
    """What to do with a file that no longer begins with its loaded content."""

    STOP = "stop"
    NEW_GENERATION = "new_generation"
    REPLACE = "replace"


class MissingColumns(StrEnum):
    """What to do with a CSV file whose header lacks a declared column."""

    #: Do not load it; a person must act.
    STOP = "stop"
    #: Load null for the column, if it is nullable.
    IGNORE = "ignore"


@dataclass(frozen=True, kw_only=True)
class CsvOptions:
    header: bool = True
    delimiter: str = ","
    #: Empty: nothing is quoted.
    quote: str = '"'
    #: None: a quote inside quotes is doubled.
    escape: str | None = None
    #: The unquoted text for null.
    null: str = ""
    #: Newlines inside quotes belong to the value.
    multiline: bool = False
    missing_columns: MissingColumns = MissingColumns.STOP


class ShortLines(StrEnum):
    """What to do with a fixed-width line that ends before its last column."""

    #: It may have been cut off.
    QUARANTINE = "quarantine"
    #: Read it as if blanks followed.
    PAD = "pad"


@dataclass(frozen=True, kw_only=True)
class Place:
    """The characters of a line that hold a column: `[first, end)`, counted from 0."""

    column: str
    first: int
    end: int

    def __str__(self) -> str:
        return f"{self.first + 1}-{self.end}"


@dataclass(frozen=True, kw_only=True)
class FixedOptions:
    places: tuple[Place, ...] = ()
    #: The text for null, without the blanks around it.
    null: str = ""
    short_lines: ShortLines = ShortLines.QUARANTINE

    @property
    def width(self) -> int:
        return max((place.end for place in self.places), default=0)


#: The path of a pipeline whose rows a program gives: below a file, there is none.
NO_FILES = "/dev/null/rows of a program"


@dataclass(frozen=True, kw_only=True)
class Source:
    #: A pattern of any fsspec URL.
    path: str
    format: Format
    #: The folder that names start below; None: the one before the first wildcard. The values of placeholders are part
    #: of the names, because the files of two days are never the same.
    root: str | None = None
    #: The path with its placeholders; None: the path itself.
    pattern: str | None = None
    #: The former root of all files below this one; the names below it did not change.
    moved_from: str | None = None
    csv: CsvOptions = field(default_factory=CsvOptions)
    fixed: FixedOptions = field(default_factory=FixedOptions)
    identity: Identity = Identity.PATH
    #: After how many seconds without a change a file is complete, so that a last line without newline counts; 0: files
    #: are complete when they appear; None: never.
    sealed_after_s: float | None = None
    #: The size of one commit, or of one staged part. From 32 MiB on, the C library takes new memory for each.
    chunk_bytes: int = 24 * 2**20
    record_bytes_max: int = 64 * 2**20

    @property
    def is_of_program(self) -> bool:
        """Whether there are no files, because a program gives the rows."""
        return self.path == NO_FILES

    @property
    def is_whole(self) -> bool:
        """Whether the path has all files, and not those of one day."""
        return self.pattern is None or self.pattern == self.path


@dataclass(frozen=True, kw_only=True)
class RecordProducer:
    """A producer that the records themselves name."""

    name: str
    sequence: str
    order: Order = Order.ANY

    @property
    def prefix(self) -> str:
        """The prefix of its producers' names: the column distinguishes them from files."""
        return f"{self.name}="


@dataclass(frozen=True, kw_only=True)
class MessageId:
    """The columns that identify a record in any file, and for how long."""

    columns: tuple[str, ...]
    keep_days: int


@dataclass(frozen=True, kw_only=True)
class Target:
    schema: str
    table: str
    write: Write = Write.APPEND
    key: tuple[str, ...] = ()
    #: A boolean column of the records: if true, the row of the key is deleted (merge only).
    deleted: str | None = None
    #: Which file's row of a key wins (merge only); None: by name, as long as names identify files.
    newer_file: NewerFile | None = None
    #: Whether rows have _producer_id and _sequence, which rewind and verify need.
    lineage: bool = True


@dataclass(frozen=True, kw_only=True)
class QuarantineLimit:
    """If one batch has more bad records, nothing of it is published; None: no file may be entirely bad."""

    records: int | None = None
    share: float | None = None

    @property
    def is_declared(self) -> bool:
        return (self.records, self.share) != (None, None)

    def __str__(self) -> str:
        return f"{self.records} records" if self.records is not None else f"{self.share:.4%} of the records"

    def is_passed(self, *, quarantined: int, records: int) -> bool:
        if self.records is not None:
            return quarantined > self.records
        return self.share is not None and quarantined > self.share * records


class Severity(StrEnum):
    """The effect of an expectation that is not met."""

    #: Nothing is published.
    CRITICAL = "critical"
    #: It is reported.
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """An expectation of Great Expectations, in its own terms."""

    type: str
    kwargs: Mapping[str, object]
    severity: Severity = Severity.CRITICAL

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it checks."""
        named = (self.kwargs.get(key) for key in ("column", "column_A", "column_B", "column_list", "column_set"))
        each = (name for some in named for name in (some if isinstance(some, list) else [some]))
        return tuple(name for name in each if isinstance(name, str))


@dataclass(frozen=True, kw_only=True)
class Suite:
    """The expectations that all rows of a batch must meet before it is published."""

    name: str
    #: The file that it was read from, for messages.
    path: str
    expectations: tuple[Expectation, ...]
    #: How long the rows of a failed batch are kept for inspection.
    kept_s: float = 86_400.0

    @property
    def digest(self) -> str:
        """A digest of the expectations: the result of one suite does not count for another."""
        return hashlib.sha256(repr(self.expectations).encode()).hexdigest()[:16]


#: The schedule of a pipeline that runs whenever there is something new.
ON_ARRIVAL = "on_arrival"


class TransformEngine(StrEnum):
    """What runs the query of a transform."""

    #: Spark SQL: the rows are made while the files are read.
    SPARK = "spark"
    #: The database: the rows are made of the staged records.
    POSTGRES = "postgres"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A complete and consistent pipeline file."""

    #: The part that the ledger needs.
    pipeline: Pipeline
    source: Source
    columns: tuple[Column, ...]
    target: Target
    unknown_fields: UnknownFields = UnknownFields.IGNORE
    on_new_column: OnNewColumn = OnNewColumn.STOP
    producer: RecordProducer | None = None
    message_id: MessageId | None = None
    #: A query over `records`, and what runs it.
    transform: str | None = None
    transform_engine: TransformEngine = TransformEngine.SPARK
    publish: Publish = Publish.STAGED
    delivery: Rules = field(default_factory=Rules)
    on_rewrite: OnRewrite = OnRewrite.STOP
    quarantine_limit: QuarantineLimit = field(default_factory=QuarantineLimit)
    suite: Suite | None = None
    #: A cron expression, or `on_arrival`; None: not scheduled here.
    schedule: str | None = None

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def column_names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The fields of a record that are columns, or have columns inside."""
        return tuple(dict.fromkeys(column.steps[0] for column in self.columns))

    @property
    def found_by(self) -> frozenset[str]:
        """The columns that identify rows: none of them may be null."""
        of_messages = self.message_id.columns if self.message_id else ()
        of_producers = (self.producer.name, self.producer.sequence) if self.producer else ()
        return frozenset((*self.target.key, *of_messages, *of_producers))

    @property
    def columns_as_read(self) -> tuple[Column, ...]:
        """Columns that identify rows are not null: a record without them is quarantined, and fails no batch."""
        found_by = self.found_by
        return tuple(replace(each, not_null=True) if each.name in found_by else each for each in self.columns)

    @property
    def needs_spark(self) -> bool:
        """Whether only Spark can make its rows."""
        return self.transform is not None and self.transform_engine is TransformEngine.SPARK

    @property
    def is_made_by_postgres(self) -> bool:
        """Whether Postgres makes the rows of the staged records."""
        return self.transform is not None and self.transform_engine is TransformEngine.POSTGRES

    @property
    def is_direct(self) -> bool:
        return self.publish is Publish.DIRECT

    @property
    def has_fixed_sessions(self) -> bool:
        """Whether each delivery belongs to one fixed session."""
        return self.is_direct and self.delivery.mode is Mode.SESSION

    @property
    def keeps_order(self) -> bool:
        """Whether later parts of a file, or later files, must not take effect first."""
        return self.delivery.mode is not Mode.SHARED

    @property
    def is_ordered_across_files(self) -> bool:
        """Whether a load between two others would decide what is new in the second."""
        is_of_records = self.producer is not None and self.producer.order is Order.ORDERED
        # Direct commits wait in one line; a batch takes effect when it is published.
        return is_of_records or (self.delivery.mode is Mode.ORDERED and not self.is_direct)

    @property
    def is_merge_of_files(self) -> bool:
        """Whether the place in its file shows which record of a key is the last one."""
        return self.target.write is Write.MERGE and self.producer is None

    @property
    def is_published_whole(self) -> bool:
        """Whether a batch may only be published completely."""
        is_of_all = self.target.write is Write.MERGE or self.transform is not None
        return self.is_ordered_across_files or (is_of_all and not self.is_direct)
