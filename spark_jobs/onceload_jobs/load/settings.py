"""What a load is given: where it runs, on which database, which files, and the name of its batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

from onceload_core.names import Batch, Position, SessionName, Version
from onceload_core.postgres import LedgerSettings, PostgresLedger
from onceload_jobs.files.notes import Note
from onceload_jobs.load.engine import EngineSettings
from onceload_jobs.plan.choice import EVERYTHING, Choice
from onceload_jobs.work.progress import OnProgress
from onceload_jobs.work.session import never


@dataclass(frozen=True, kw_only=True)
class LoadSettings(EngineSettings):
    """Where a load runs, and on which database."""

    ledger: LedgerSettings
    #: Where rows wait to be copied; None is a folder of this machine.
    stage: str | None = None
    #: Called every second with the progress of the load, or what it waits for.
    on_progress: OnProgress | None = None
    #: How long to wait for other loads of the same files after they last made progress.
    wait_s: float = 600.0
    #: For a loader that uses one name for all its runs.
    session: SessionName | None = None
    #: Called between deliveries.
    is_stopped: Callable[[], bool] = never
    #: If false, a batch that is published as a whole is staged and kept for another call.
    publishes: bool = True
    #: The folder for the pages of audits.
    docs: Path | None = None
    choice: Choice = EVERYTHING
    #: The version of an earlier load in this process; if another one is in force, nothing is loaded.
    version: Version | None = None
    #: Replace rows even if their number differs from the receipts.
    differences_accepted: bool = False


def new_batch() -> Batch:
    """Generate a name for the batch of one run."""
    return Batch(f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid4().hex[:8]}")


def without_replaced(
    choice: Choice, ledger: PostgresLedger, pipeline: str, batch: Batch, *, begun_at: Position | None = None
) -> Choice:
    """Do not replace again what this batch has replaced, or what this call of it has loaded."""
    if not choice.replaces:
        return choice
    done = ledger.done_by(pipeline, batch, after=begun_at)
    notes = (
        Note(
            name=name,
            reason=f"batch {batch} has already replaced it, at position {position}. This call does not replace it "
            "again. To replace it again, use another batch name",
        )
        for name, position in sorted(done.items())
        if choice.includes(name) and (begun_at is None or position <= begun_at)
    )
    return replace(choice, done=frozenset(done), notes=tuple(notes))
