"""What a load is told, and what it reports."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from dedup_core.names import Batch, Position, SessionName, Version
from dedup_core.postgres import LedgerSettings, PostgresLedger
from spark_jobs.files.notes import Note
from spark_jobs.plan.choice import EVERYTHING, Choice
from spark_jobs.work.progress import Tell
from spark_jobs.work.session import never


@dataclass(frozen=True, kw_only=True)
class LoadSettings:
    """Where a load runs, and on which database."""

    ledger: LedgerSettings
    #: Left out, this machine.
    master: str | None = None
    spark_options: Mapping[str, str] = field(default_factory=dict)
    #: Told every second how far the load is, or what it waits for.
    tell: Tell | None = None
    #: How long to wait for others that load the same, since they were last seen to get on.
    wait_s: float = 600.0
    #: Of a loader that has one name for all its runs.
    session: SessionName | None = None
    #: Asked between deliveries.
    is_stopped: Callable[[], bool] = never
    #: Left to another call, a batch that is published at once is staged, and kept.
    publishes: bool = True
    #: The folder that what audits say is shown in, as pages.
    docs: Path | None = None
    choice: Choice = EVERYTHING
    #: The version that an earlier load of the same process has taken; under another one, nothing is loaded.
    version: Version | None = None
    #: Replace rows also where they are not as many as their receipts say.
    differences_accepted: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a load did, as the ledger says."""

    pipeline: str
    batch: Batch
    position: Position
    #: Of the pipeline's declaration, by which it was loaded.
    version: Version | None = None
    loaded: int = 0
    duplicates: int = 0
    quarantined: int = 0
    filtered: int = 0
    bytes: int = 0
    seconds: float = 0.0
    session_start_seconds: float = 0.0
    #: Rows that wait to be published; nothing, where nothing was staged or all of it is published.
    staged: int | None = None
    notes: tuple[Note, ...] = ()

    @property
    def records(self) -> int:
        """How many were read, whatever became of them."""
        return self.loaded + self.duplicates + self.quarantined + self.filtered

    @property
    def rows_per_s(self) -> int:
        return round(self.loaded / self.seconds) if self.seconds else 0

    def and_then(self, later: "Report") -> "Report":
        """What two loads of one batch come to, one after the other."""
        return replace(
            later,
            loaded=self.loaded + later.loaded,
            duplicates=self.duplicates + later.duplicates,
            quarantined=self.quarantined + later.quarantined,
            filtered=self.filtered + later.filtered,
            bytes=self.bytes + later.bytes,
            seconds=self.seconds + later.seconds,
        )


def new_batch() -> Batch:
    """A name for what one run loads, for those who have none."""
    return Batch(f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}")


def what_came_of(ledger: PostgresLedger, pipeline: str, batch: Batch, *, after: Position) -> Report:
    """What a batch has done since a position: the ledger alone knows, whatever became of tasks and answers."""
    outcome = ledger.outcome_of(pipeline, batch, after=after)
    return Report(
        pipeline=pipeline,
        batch=batch,
        position=outcome.position,
        loaded=outcome.counts.loaded,
        duplicates=outcome.counts.duplicate,
        quarantined=outcome.counts.quarantined,
        filtered=outcome.counts.filtered,
        bytes=outcome.bytes,
    )


def what_is_left_of(choice: Choice, ledger: PostgresLedger, pipeline: str, batch: Batch) -> Choice:
    """What a batch has replaced it does not replace again, however often it is called."""
    return replace(choice, replaced=ledger.loaded_by(pipeline, batch)) if choice.replaces else choice
