"""What a scheduler asks before and after a load: whether there is work, and what the result was."""

import hashlib
import time
from contextlib import suppress
from dataclasses import dataclass

from onceload import schema
from onceload_core.errors import NotFound
from onceload_core.names import Batch, Position
from onceload_core.postgres import PostgresLedger, connect
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_jobs.load.engine import Engine, engine_for
from onceload_jobs.load.report import Report, report_of
from onceload_jobs.load.settings import LoadSettings, without_replaced
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.plan.plan import Plan, make_plan
from onceload_jobs.write.target import check_target

#: No batch has this name.
_NO_BATCH = Batch("")


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a load would do."""

    files: int
    bytes: int
    #: What would run it.
    engine: Engine
    #: A digest that changes only if other files or bytes are new.
    news: str
    #: Deliveries that wait or are in progress.
    open: int
    lines: tuple[str, ...]
    #: Whether an earlier call of the same batch holds work, which a later call takes over.
    is_held: bool
    #: Whether another load is in progress.
    is_busy: bool
    #: The files that need a person, with reasons; empty if there are none.
    needs_a_person: str

    @property
    def is_anything_new(self) -> bool:
        return bool(self.files or self.open or self.is_held)


def look(declared: Declared, how: LoadSettings, *, batch: Batch = _NO_BATCH) -> Found:
    """Look for new records, without Spark and without changing anything."""
    engine = connect(how.ledger)
    try:
        schema.check(engine)
        ledger = PostgresLedger(engine)
        # Only a load creates a version; an edit that it would refuse is refused here too.
        ledger.find_version(pipeline_with_declaration(declared))
        check_target(engine, ledger, declared)
        choice = without_replaced(how.choice, ledger, declared.name, batch)
        plan = make_plan(declared, ledger, now_s=time.time(), choice=choice)
        board = PostgresDeliveries(engine, declared.name, declared.delivery)
        open_now = 0
        # A pipeline that was never loaded has no open deliveries.
        with suppress(NotFound):
            open_now = board.open_work(batch, is_staged=not declared.is_direct).count
        is_held = PostgresBatches(engine, declared.name).is_held(batch)
    finally:
        engine.dispose()
    problems = [f"{note.name}: {note.reason}" for note in plan.notes if note.needs_a_person]
    size = sum(file.bytes for file in plan.to_read)
    return Found(
        files=len(plan.to_read),
        bytes=size,
        engine=engine_for(declared, plan.to_read),
        news=_news(plan),
        open=open_now,
        lines=(
            f"{len(plan.to_read):,} files with {size:,} new bytes, {plan.done:,} files without new bytes, "
            f"{open_now:,} open deliveries",
            *(f"{note.name}: {note.reason}" for note in plan.notes),
        ),
        is_held=is_held,
        is_busy=any(note.is_busy for note in plan.notes),
        needs_a_person="; ".join(problems),
    )


def _news(plan: Plan) -> str:
    found = [
        (file.listed.name, file.generation, file.listed.size, file.listed.modified_at, file.spans)
        for file in plan.to_read
    ]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:32]


def outcome(declared: Declared, how: LoadSettings, *, batch: Batch) -> Report:
    """The result of a batch, over all its calls."""
    engine = connect(how.ledger)
    try:
        return report_of(PostgresLedger(engine), declared.name, batch, after=Position(0))
    finally:
        engine.dispose()
