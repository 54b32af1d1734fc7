"""What a scheduler asks of a pipeline: whether there is work, what the result was, and whether it may rebuild."""

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from onceload.databases import open_database
from onceload.pipeline import Pipeline
from onceload_core.errors import NotFound
from onceload_core.names import Batch, Position
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_jobs.load.engine import Engine, engine_for
from onceload_jobs.load.report import Report, report_of
from onceload_jobs.plan.plan import Plan
from onceload_jobs.recover.rebuild import refuse_loaded


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a load would do."""

    plan: Plan
    #: What would run it.
    engine: Engine
    #: Deliveries that wait or are in progress.
    open: int
    #: Whether an earlier call of the same batch holds work, which a later call takes over.
    is_held: bool

    @property
    def files(self) -> int:
        return len(self.plan.to_read)

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.plan.to_read)

    @property
    def is_anything_new(self) -> bool:
        return bool(self.files or self.open or self.is_held)

    @property
    def is_busy(self) -> bool:
        """Whether another load is in progress."""
        return any(note.is_busy for note in self.plan.notes)

    @property
    def needs_a_person(self) -> str:
        """The files that need a person, with reasons; empty if there are none."""
        return "; ".join(f"{note.name}: {note.reason}" for note in self.plan.notes if note.needs_a_person)

    @property
    def news(self) -> str:
        """A digest that changes only if other files or bytes are new."""
        found = [
            (file.listed.name, file.generation, file.listed.size, file.listed.modified_at, file.spans)
            for file in self.plan.to_read
        ]
        return hashlib.sha256(repr(found).encode()).hexdigest()[:32]

    @property
    def lines(self) -> tuple[str, ...]:
        return (
            f"{self.files:,} files with {self.bytes:,} new bytes, {self.plan.done:,} files without new bytes, "
            f"{self.open:,} open deliveries",
            *(f"{note.name}: {note.reason}" for note in self.plan.notes),
        )


def look(pipeline: Pipeline, *, only: Sequence[str] = (), replaces: bool = False, batch: str | None = None) -> Found:
    """Look for new records, without Spark and without changing anything."""
    plan = pipeline.plan(only=only, replaces=replaces, batch=batch)
    declared = pipeline.declared
    # No batch has an empty name.
    named = Batch(batch or "")
    with open_database(pipeline.settings) as engine:
        board = PostgresDeliveries(engine, declared.name, declared.delivery)
        open_now = 0
        # A pipeline that was never loaded has no open deliveries.
        with suppress(NotFound):
            open_now = board.open_work(named, is_staged=not declared.is_direct).count
        is_held = PostgresBatches(engine, declared.name).is_held(named)
    return Found(plan=plan, engine=engine_for(declared, plan.to_read), open=open_now, is_held=is_held)


def outcome(pipeline: Pipeline, *, batch: str) -> Report:
    """The result of a batch, over all its calls."""
    with open_database(pipeline.settings) as engine:
        return report_of(PostgresLedger(engine), pipeline.name, Batch(batch), after=Position(0))


def check_rebuild(pipeline: Pipeline) -> None:
    """Refuse to rebuild a pipeline that this database already has data of."""
    with open_database(pipeline.settings) as engine:
        refuse_loaded(pipeline.declared, engine)
