"""The job of a batch: the pipeline, and how its rows are read and written."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

from sqlalchemy import Engine

from onceload_core.errors import NeedsAPerson, SettingRefused
from onceload_core.names import Batch, ProducerId
from onceload_core.ports import Advance, Session
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.replay import Run
from onceload_core.spans import SpanSet
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import Declared, OnRewrite


@dataclass(eq=False)
class TransformRefused(NeedsAPerson):
    """The rows of a transform do not fit; without raw bytes, none of them can be quarantined."""

    pipeline: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: the rows of the transform do not fit the target: {self.reason}. Nothing of the "
            "batch was loaded. Fix the SQL of the transform, the declared column or the records."
        )


@dataclass(eq=False)
class BatchIncomplete(NeedsAPerson):
    """A part of a batch could not be staged, and the batch may only be published completely."""

    pipeline: str
    batch: str
    tries: int
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: a part of batch {self.batch} failed {self.tries} times, last with: "
            f"{self.reason}. Nothing was published, because this batch is published completely or not at all. Fix the "
            "cause, and load again."
        )


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A generation whose rows are deleted when those of a later one are committed."""

    old: ProducerId
    name: str
    #: The spans to read of the later one; empty if its end is only known after reading.
    planned: SpanSet

    def is_whole(self, advance: Advance) -> bool:
        """Whether all of the later one was read; a reader that was stopped records no size."""
        is_read = advance.spans.covers(self.planned) if self.planned else advance.spans.is_without_holes
        return advance.size is not None and is_read


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything a task needs; it is pickled and sent to the task."""

    declared: Declared
    #: The columns that are read and those that are written; a transform may make them different.
    columns: tuple[Column, ...]
    written: tuple[Column, ...]
    session: Session
    batch: Batch
    #: Where its workers commit, if they do.
    ledger: LedgerSettings = field(default_factory=lambda: LedgerSettings(dsn=""))
    run: Run | None = None
    #: What runs its workers, and why, in words; and the pages of Spark, if it stays.
    engine: str | None = None
    spark_ui: str | None = None
    #: How long to wait for other sessions after they last made progress.
    wait_s: float = 600.0
    #: Generations whose rows are deleted with the commit of a later one, by the id of the later one.
    replaced: Mapping[ProducerId, Replacement] = field(default_factory=dict)
    #: Replace rows even if their number differs from the receipts.
    differences_accepted: bool = False
    #: Another worker may have committed a part of this delivery.
    is_redelivered: bool = False
    #: The last try: what cannot be read now is not handed out again.
    is_last_try: bool = True
    #: Whether staged rows know their record; only a transform may drop that.
    has_lineage: bool = True
    #: Its records come after later ones of their files, as those of a retry do.
    is_late: bool = False
    #: Credentials for the object store of the files.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def records_have_own_ids(self) -> bool:
        """Whether the records name themselves, so that another load may be first with any of them."""
        return self.declared.producer is not None or self.declared.message_id is not None


def engine_of(job: Job) -> Engine:
    """Return the connection pool of this process, shared by its tasks."""
    return _engine(job.ledger)


@cache
def _engine(settings: LedgerSettings) -> Engine:
    return connect(settings)


def writing_columns(job: Job, made: Sequence[Column], *, has_lineage: bool) -> Job:
    """The job that writes the columns that a transform makes, which may be others than the declared ones."""
    key = job.declared.target.key
    written = tuple(replace(column, not_null=True) if column.name in key else column for column in made)
    _check_needed(job.declared, {column.name: column.type for column in written}, has_lineage=has_lineage)
    changed = with_lineage_of(job.declared, has_lineage=has_lineage)
    return replace(job, written=written, has_lineage=has_lineage, declared=changed)


def with_lineage_of(declared: Declared, *, has_lineage: bool) -> Declared:
    """The declaration for the rows of a transform, which have lineage if the transform kept it."""
    return replace(declared, target=replace(declared.target, lineage=declared.target.lineage and has_lineage))


def _check_needed(declared: Declared, made: dict[str, ColumnType], *, has_lineage: bool) -> None:
    """Refuse a transform without the columns that the rest of the pipeline file needs."""
    deleted = declared.target.deleted
    needed = [("target.key", name) for name in declared.target.key]
    if deleted:
        needed.append(("target.deleted", deleted))
    for place, name in needed:
        if name not in made:
            found = f"{name}, but the transform makes {', '.join(made)}"
            raise SettingRefused(place, found, "a column that the transform makes")
    if deleted and made[deleted] != ColumnType(kind=Kind.BOOLEAN):
        raise SettingRefused("target.deleted", f"{deleted}, which the transform makes as {made[deleted]}", "a boolean")
    if declared.on_rewrite is OnRewrite.REPLACE and not has_lineage:
        why = "which on_rewrite: replace needs to find old rows"
        raise SettingRefused("transform", ", ".join(made), f"{PRODUCER_ID} and {SEQUENCE} among its columns, {why}")


#: Such rows would be rows of no record to some, and rows of a file to others.
HALF_A_NAME = f"rows have {PRODUCER_ID} or {SEQUENCE} without the other"


def lineage_refused(job: Job, why: str) -> TransformRefused:
    """An error about the records that rows name."""
    return TransformRefused(job.declared.name, f"{why} (select {PRODUCER_ID} and {SEQUENCE} unchanged)")
