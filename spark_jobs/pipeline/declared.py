"""A pipeline as its file declares it: what to read, as what, and where to put it. The face reads the YAML."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from dedup_core.delivery import Mode, Rules
from dedup_core.pipeline import Pipeline
from dedup_core.verdicts import Order
from spark_jobs.pipeline.columns import Column


class Format(StrEnum):
    JSONL = "jsonl"
    CSV = "csv"
    PARQUET = "parquet"


class Identity(StrEnum):
    """What makes a file the one that was loaded before."""

    #: Its path below the source's root.
    PATH = "path"
    #: Its path, or the same content under another path.
    CONTENT = "content"


class UnknownFields(StrEnum):
    """What becomes of a field that no column is declared for."""

    IGNORE = "ignore"
    #: Its record goes to quarantine.
    FAIL = "fail"
    #: The target gets a column for it, in the same commit.
    ADD = "add"


class Publish(StrEnum):
    STAGED = "staged"
    DIRECT = "direct"


class Write(StrEnum):
    APPEND = "append"
    MERGE = "merge"


class OnRewrite(StrEnum):
    """What to do with a file that no longer starts with what was loaded of it."""

    STOP = "stop"
    NEW_GENERATION = "new_generation"
    REPLACE = "replace"


class MissingColumns(StrEnum):
    """What becomes of a CSV file whose header lacks a declared column."""

    #: It is not loaded, and a person has to look.
    STOP = "stop"
    #: The column is null in all its records, where it may be.
    IGNORE = "ignore"


@dataclass(frozen=True, kw_only=True)
class CsvOptions:
    header: bool = True
    delimiter: str = ","
    #: Empty: nothing is quoted.
    quote: str = '"'
    #: Left out, a quote inside quotes is doubled.
    escape: str | None = None
    #: The unquoted text that stands for null.
    null: str = ""
    #: Newlines inside quotes belong to the value.
    multiline: bool = False
    missing_columns: MissingColumns = MissingColumns.STOP


@dataclass(frozen=True, kw_only=True)
class Source:
    #: A pattern of any fsspec URL.
    path: str
    format: Format
    #: The folder that names start below; left out, the one before the first wildcard. What fills a placeholder is
    #: a part of the names, because the files of two days are never the same.
    root: str | None = None
    #: The path with its placeholders, where it has some; left out, it is the path itself.
    pattern: str | None = None
    #: The root that everything below this one was moved from, names and all.
    moved_from: str | None = None
    csv: CsvOptions = field(default_factory=CsvOptions)
    identity: Identity = Identity.PATH
    #: After how many seconds without a change a file is complete, so that a last line without newline counts;
    #: 0: files are complete when they appear; left out: never.
    sealed_after_s: float | None = None
    #: How much one commit takes, or one staged part.
    chunk_bytes: int = 32 * 2**20
    record_bytes_max: int = 64 * 2**20


@dataclass(frozen=True, kw_only=True)
class RecordProducer:
    """A producer that is named by the records themselves."""

    name: str
    sequence: str
    order: Order = Order.ANY

    @property
    def prefix(self) -> str:
        """What the names of its producers begin with: the column tells them from files."""
        return f"{self.name}="


@dataclass(frozen=True, kw_only=True)
class MessageId:
    """The columns that identify a record whatever file it comes in, and for how long."""

    columns: tuple[str, ...]
    keep_days: int


@dataclass(frozen=True, kw_only=True)
class Target:
    schema: str
    table: str
    write: Write = Write.APPEND
    key: tuple[str, ...] = ()
    #: A boolean column of the records: where it is true, the key's row is deleted (merge only).
    deleted: str | None = None
    #: Whether rows carry _producer_id and _sequence; rewind and verification need them.
    lineage: bool = True


@dataclass(frozen=True, kw_only=True)
class QuarantineLimit:
    """More than this in one batch, and nothing of it is published; left out, a file may not be bad as a whole."""

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
    """What comes of an expectation that is not met."""

    #: Nothing is published.
    CRITICAL = "critical"
    #: It is told.
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """One of Great Expectations, by the names that it gives."""

    type: str
    kwargs: Mapping[str, object]
    severity: Severity = Severity.CRITICAL

    @property
    def columns(self) -> tuple[str, ...]:
        """What it is about."""
        named = (self.kwargs.get(key) for key in ("column", "column_A", "column_B", "column_list", "column_set"))
        each = (name for some in named for name in (some if isinstance(some, list) else [some]))
        return tuple(name for name in each if isinstance(name, str))


@dataclass(frozen=True, kw_only=True)
class Suite:
    """What all rows of a batch are expected to meet before it is published."""

    name: str
    #: The file that it was read from, for people.
    path: str
    expectations: tuple[Expectation, ...]
    #: How long the rows of a batch that failed are kept, to be looked at.
    kept_s: float = 86_400.0

    @property
    def digest(self) -> str:
        """What it expects, in short: another one has said nothing of what this one would say."""
        return hashlib.sha256(repr(self.expectations).encode()).hexdigest()[:16]


#: The schedule of a pipeline that runs whenever there is something new.
ON_ARRIVAL = "on_arrival"


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A pipeline file, whole and without contradictions."""

    #: What the ledger has to know.
    pipeline: Pipeline
    source: Source
    columns: tuple[Column, ...]
    target: Target
    unknown_fields: UnknownFields = UnknownFields.IGNORE
    producer: RecordProducer | None = None
    message_id: MessageId | None = None
    #: Spark SQL over the view `records`.
    transform: str | None = None
    publish: Publish = Publish.STAGED
    delivery: Rules = field(default_factory=Rules)
    on_rewrite: OnRewrite = OnRewrite.STOP
    quarantine_limit: QuarantineLimit = field(default_factory=QuarantineLimit)
    suite: Suite | None = None
    #: A cron text, or `on_arrival`; left out, somebody else says when.
    schedule: str | None = None

    @property
    def name(self) -> str:
        return self.pipeline.name

    @property
    def found_by(self) -> frozenset[str]:
        """The columns that rows are found by: none of them may be null."""
        of_messages = self.message_id.columns if self.message_id else ()
        of_producers = (self.producer.name, self.producer.sequence) if self.producer else ()
        return frozenset((*self.target.key, *of_messages, *of_producers))

    @property
    def is_direct(self) -> bool:
        return self.publish is Publish.DIRECT

    @property
    def has_fixed_sessions(self) -> bool:
        """Whether each delivery belongs to one session, whoever else is there."""
        return self.is_direct and self.delivery.mode is Mode.SESSION

    @property
    def keeps_order(self) -> bool:
        """Whether what stands behind in a file, or behind the file, must not take effect first."""
        return self.delivery.mode is not Mode.SHARED

    @property
    def is_in_turn(self) -> bool:
        """Whether a load that comes between two others would decide what is new of the second."""
        is_of_records = self.producer is not None and self.producer.order is Order.ORDERED
        # What commits chunk by chunk waits in one line; a batch takes effect when it is published.
        return is_of_records or (self.delivery.mode is Mode.ORDERED and not self.is_direct)

    @property
    def is_published_whole(self) -> bool:
        """Whether a batch makes no sense without a part of it."""
        is_of_all = self.target.write is Write.MERGE or self.transform is not None
        return self.is_in_turn or (is_of_all and not self.is_direct)
