"""The job of a session: the pipeline, the batch and how its rows are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from sqlalchemy import Engine

from onceload_core.errors import NeedsAPerson
from onceload_core.names import Batch, ProducerId
from onceload_core.ports import Advance, Session
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.replay import Run
from onceload_core.spans import SpanSet
from onceload_jobs.pipeline.columns import Column
from onceload_jobs.pipeline.declared import Declared


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
