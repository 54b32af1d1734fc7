"""What a load is given: where its workers run and why, on which database, which files, and the name of its batch."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from onceload_core.names import Batch, Position, SessionName, Version
from onceload_core.postgres import LedgerSettings, PostgresLedger
from onceload_jobs.executor.executor import Executor
from onceload_jobs.executor.local import LocalExecutor
from onceload_jobs.files.notes import Note
from onceload_jobs.plan.choice import EVERYTHING, Choice
from onceload_jobs.work.progress import OnProgress, never

if TYPE_CHECKING:
    from onceload_jobs.work.spark.spark import Spark


class Engine(StrEnum):
    #: Spark where one is asked for, or where Spark SQL makes the rows; otherwise processes of this machine.
    AUTO = "auto"
    SPARK = "spark"
    LOCAL = "local"


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Where the workers of a command are to run."""

    #: The address of a Spark Connect server, or of a master; without both, Spark starts on this machine.
    remote: str | None = None
    #: What names this server, and its pages.
    remote_named_by: str = "--remote"
    remote_ui: str | None = None
    master: str | None = None
    spark_options: Mapping[str, str] = field(default_factory=dict)
    engine: Engine = Engine.AUTO

    def chosen(self, *, needs_spark: bool) -> "Ran":
        """What runs the workers, and why."""
        if self.engine is Engine.LOCAL:
            return Ran(engine=Engine.LOCAL, why="--engine local")
        if self.remote is not None:
            server = self.remote.partition(";")[0].removesuffix("/")
            return Ran(engine=Engine.SPARK, why=f"{self.remote_named_by} {server}", ui=self.remote_ui)
        reasons = {
            f"--master {self.master}": self.master is not None,
            "--conf": bool(self.spark_options),
            "--engine spark": self.engine is Engine.SPARK,
            "the transform is in Spark SQL": needs_spark,
        }
        why = next((why for why, holds in reasons.items() if holds), None)
        return Ran(engine=Engine.LOCAL, why="no Spark is named") if why is None else Ran(engine=Engine.SPARK, why=why)

    @contextmanager
    def executor(self, pipeline: str, *, doing: str) -> Iterator[Executor]:
        """The processes or the Spark for a command that makes no rows by Spark SQL."""
        if self.chosen(needs_spark=False).engine is Engine.LOCAL:
            with closing(LocalExecutor()) as local:
                yield local
            return
        with self.spark(pipeline, batch=doing) as spark:
            yield spark

    @contextmanager
    def spark(self, pipeline: str, *, batch: str, tries: int = 0) -> "Iterator[Spark]":
        """The Spark that is named, or one that is started; the name of the batch is on its pages."""
        if self.remote is not None:
            from onceload_jobs.work.spark.connect import connected

            with connected(pipeline, self.remote, batch=batch) as spark:
                yield spark
            return
        from onceload_jobs.work.spark.classic import ClassicSpark

        with ClassicSpark.started(pipeline, self.master, self.spark_options, batch=batch, tries=tries) as started:
            yield started


@dataclass(frozen=True, kw_only=True)
class Ran:
    """What ran the workers of a load."""

    engine: Engine
    why: str
    #: The pages that show its jobs.
    ui: str | None = None

    def __str__(self) -> str:
        return f"{self.engine} ({self.why})"


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
