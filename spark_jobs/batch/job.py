"""What a session works on: the pipeline, the batch and how its rows are written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

from sqlalchemy import Engine

from dedup_core.errors import NeedsAPerson
from dedup_core.names import Batch, ProducerId
from dedup_core.ports import Advance, Session
from dedup_core.postgres import LedgerSettings, connect
from dedup_core.replay import Run
from dedup_core.spans import SpanSet
from spark_jobs.batch.stage import Stage
from spark_jobs.pipeline.columns import Column
from spark_jobs.pipeline.declared import Declared


@dataclass(eq=False)
class TransformRefused(NeedsAPerson):
    """What a transform makes has no bytes of its own, so that none of it can be quarantined."""

    pipeline: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: the transform should have made rows that fit the target, but: {self.reason}; "
            "nothing of the batch was loaded: mend the SQL of the transform, the declared column or the records"
        )


@dataclass(frozen=True, kw_only=True)
class Replacement:
    """A generation whose rows go when those of a later one come."""

    old: ProducerId
    name: str
    #: What is to be read of the later one; empty where only reading tells.
    planned: SpanSet

    def is_whole(self, advance: Advance) -> bool:
        """Whether all of the later one was read; its size is noted by nobody who was stopped.

        Nothing takes the place of nothing: a packed file that is empty inside deletes no rows, as a plain one does not.
        """
        is_read = advance.spans.covers(self.planned) if self.planned else advance.spans.is_without_holes
        return advance.size is not None and bool(advance.spans) and is_read


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a task has to know; it travels to wherever the task runs."""

    declared: Declared
    #: What is read of the records, and what is written of them: another, where a transform makes it.
    columns: tuple[Column, ...]
    written: tuple[Column, ...]
    ledger: LedgerSettings
    session: Session
    batch: Batch
    run: Run | None = None
    #: How long to wait for what others hold, since they were last seen to get on.
    wait_s: float = 600.0
    #: Generations whose rows go when those of a later one come, by the later one's id.
    replaced: Mapping[ProducerId, Replacement] = field(default_factory=dict)
    #: Rows are replaced also where they are not as many as their receipts say.
    differences_accepted: bool = False
    #: Somebody may have committed a part of what is in hand.
    is_redelivered: bool = False
    #: What cannot be read now is not handed out again.
    is_last_try: bool = True
    #: Left out, every piece commits itself.
    stage: Stage | None = None
    #: Whether staged rows know which record they were made from; only a transform may lose that.
    has_lineage: bool = True
    #: How to get into the store of the files.
    access: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def names_records(self) -> bool:
        """Whether records say themselves who they are."""
        return self.declared.producer is not None or self.declared.message_id is not None


def engine_of(job: Job) -> Engine:
    """The pool of this process; the next task finds it open."""
    return _engine(job.ledger)


@cache
def _engine(settings: LedgerSettings) -> Engine:
    return connect(settings)
