"""What a scheduler asks of a pipeline: whether there is work, what the result was, and whether it may rebuild."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from shlex import quote

from onceload.databases import open_database
from onceload.pipeline import Pipeline
from onceload.terminal import counted
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import NotFound, OnceloadError
from onceload_core.names import Batch, Position
from onceload_core.pause import Pause
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.attempts import Ended, begin, end, withdraw
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_core.postgres.pausing import find_pause
from onceload_jobs.files.notes import held_in_words, problems_of
from onceload_jobs.load.recorded import ended_by
from onceload_jobs.load.report import Report, report_of
from onceload_jobs.load.settings import Engine
from onceload_jobs.plan.plan import Plan
from onceload_jobs.recover.rebuild import refuse_loaded

#: A log names this many.
_FILES_MAX = 20


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a load would do: numbers and texts, so that no plan is kept while a trigger waits."""

    files: int
    bytes: int
    #: A digest that changes only if other files or bytes are new.
    news: str
    lines: tuple[str, ...]
    #: What would run it.
    engine: Engine
    #: Deliveries that wait or are in progress.
    open: int
    #: Whether an earlier call of the same batch holds work, which a later call takes over.
    is_held: bool
    #: Whether another load is in progress, or a kept batch waits to be published.
    is_busy: bool
    #: The files that kept batches hold, with the batches; empty if there are none.
    held: str
    #: The files that need a person, with reasons; empty if there are none.
    needs_a_person: str
    #: Until the pipeline is resumed, a load would do nothing.
    is_paused: bool = False
    #: How a run ends that finds this; None if it has something to load, waits for another load, or is paused.
    ended: Ended | None = None

    @property
    def is_anything_new(self) -> bool:
        return bool(self.files or self.open or self.is_held)


def look(pipeline: Pipeline, *, only: Sequence[str] = (), replaces: bool = False, batch: str | None = None) -> Found:
    """Look for new records, without Spark and without changing anything."""
    with open_database(pipeline.settings) as engine:
        pause = find_pause(engine, pipeline.name)
    if pause is not None:
        # Neither the files nor an edit of the pipeline file matter before the resume.
        return _nothing_while_paused(pipeline.name, pause)
    plan = pipeline.plan(only=only, replaces=replaces, batch=batch)
    declared = pipeline.declared
    # No batch has an empty name.
    named = Batch(batch or "")
    with open_database(pipeline.settings) as engine:
        board = PostgresDeliveries(engine, declared.name, declared.delivery)
        open_now = 0
        # A pipeline that was never loaded has no open deliveries.
        with suppress(NotFound):
            open_now = board.open_work(named).count
        is_held = PostgresBatches(engine, declared.name).is_held(named)
    size = sum(file.bytes for file in plan.to_read)
    line = (
        f"{counted(len(plan.to_read), 'file')} with {counted(size, 'new byte')}, "
        f"{counted(plan.done, 'file')} without new bytes, "
        f"{open_now:,} open {'delivery' if open_now == 1 else 'deliveries'}"
    )
    engine_now = Engine.SPARK if declared.needs_spark else Engine.LOCAL
    found = Found(
        files=len(plan.to_read),
        bytes=size,
        news=_news(plan),
        lines=(line, *_files(plan, engine_now), *(f"{note.name}: {note.reason}" for note in plan.notes)),
        engine=engine_now,
        open=open_now,
        is_held=is_held,
        is_busy=any(note.is_busy for note in plan.notes),
        held=held_in_words(note for note in plan.notes if note.is_kept),
        needs_a_person=problems_of(plan.notes),
    )
    if found.is_anything_new or found.is_busy:
        return found
    return replace(found, ended=ended_by(plan, is_whole=not only and declared.source.is_whole))


def look_for_run(pipeline: Pipeline, *, only: Sequence[str] = (), replaces: bool = False, batch: str) -> Found:
    """Look before a run of this batch, and record that it has begun, or how it ends if it has nothing to load."""
    named = Batch(batch)
    with open_database(pipeline.settings) as engine:
        begun_at = begin(engine, pipeline.name, named)
        try:
            found = look(pipeline, only=only, replaces=replaces, batch=batch)
        except OnceloadError as error:
            ended = Ended(exit_code=error.exit_code, reason=type(error).__name__)
            end(engine, pipeline.name, named, ended, begun_at=begun_at)
            raise
        if found.ended is not None:
            end(engine, pipeline.name, named, found.ended, begun_at=begun_at)
        elif not found.is_anything_new:
            withdraw(engine, pipeline.name, named)
    return found


def _files(plan: Plan, engine_now: Engine) -> Iterator[str]:
    """The files that a load reads, and what would run it."""
    for file in plan.to_read[:_FILES_MAX]:
        yield f"{file.listed.name}: {counted(file.bytes, 'byte')} to read ({file.why})"
    if (left := len(plan.to_read) - _FILES_MAX) > 0:
        yield f"and {counted(left, 'more file')}; `onceload plan {PIPELINE_FILE}` lists all of them"
    if plan.to_read:
        yield f"engine {engine_now}"


def _nothing_while_paused(pipeline: str, pause: Pause) -> Found:
    until = f"no load runs until `onceload resume {quote(pipeline)}`"
    return Found(
        files=0,
        bytes=0,
        news="",
        lines=(f"pipeline {pipeline} is {pause}; {until}",),
        engine=Engine.LOCAL,
        open=0,
        is_held=False,
        is_busy=False,
        held="",
        needs_a_person="",
        is_paused=True,
    )


def _news(plan: Plan) -> str:
    found = [
        (file.listed.name, file.generation, file.listed.size, file.listed.modified_at, file.spans)
        for file in plan.to_read
    ]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:32]


def outcome(pipeline: Pipeline, *, batch: str) -> Report:
    """The result of a batch, over all its calls, with its files that have no good record."""
    with open_database(pipeline.settings) as engine:
        return report_of(PostgresLedger(engine), pipeline.declared, Batch(batch), after=Position(0))


def is_published(pipeline: Pipeline, *, batch: str) -> bool:
    """Whether a batch has committed any record."""
    # A pipeline that was never loaded is not known.
    with suppress(NotFound):
        return outcome(pipeline, batch=batch).records > 0
    return False


def check_rebuild(pipeline: Pipeline) -> None:
    """Refuse to rebuild a pipeline that this database already has data of."""
    with open_database(pipeline.settings) as engine:
        refuse_loaded(pipeline.declared, engine)
