"""The progress of a load, by what is committed or staged in the database.

A thread polls while tasks run, with its own connection. It only reads, and its errors disturb nothing.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from onceload_core.errors import OnceloadError
from onceload_core.names import Position, SessionName
from onceload_core.postgres import PostgresLedger, connect
from onceload_core.postgres.connection import statements
from onceload_jobs.batch.job import Job
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.notes import Note
from onceload_jobs.read.board_work import Bundle, Delivery
from onceload_jobs.work.session import Tasks
from onceload_jobs.write.sql import filled

SQL = statements("progress.sql", package=__package__)
_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The completed part of a load."""

    bytes: int
    #: None if only reading shows it: for compressed files.
    bytes_planned: int | None
    records: int
    seconds: float

    @property
    def records_per_s(self) -> int:
        return round(self.records / self.seconds) if self.seconds else 0

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far."""
        if not self.bytes or self.bytes_planned is None:
            return None
        return max(0, self.bytes_planned - self.bytes) * self.seconds / self.bytes


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What a load waits for."""

    waits_for: str


OnProgress: TypeAlias = Callable[[Progress | Waiting], None]


class WatchedTasks:
    """Tasks with progress reports."""

    def __init__(self, tasks: Tasks, on_progress: OnProgress, *, after: Position, planned: int | None) -> None:
        self._tasks = tasks
        self._on_progress = on_progress
        self._after = after
        self._planned = planned

    @property
    def slots(self) -> int:
        return self._tasks.slots

    def writing(self, job: Job) -> Job:
        return self._tasks.writing(job)

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        with self._watching(job):
            return self._tasks.run(job, sessions)

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        with self._watching(job):
            return self._tasks.transform(job, deliveries)

    @contextmanager
    def _watching(self, job: Job) -> Iterator[None]:
        ended = threading.Event()
        watching = threading.Thread(target=self._watch, args=(job, ended), name="onceload progress", daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            # Do not wait for a missing answer.
            watching.join(_EVERY_S)

    def _watch(self, job: Job, ended: threading.Event) -> None:
        engine, started = connect(job.ledger), time.monotonic()
        while not ended.wait(_EVERY_S):
            with suppress(OSError):
                self._on_progress(self._look(engine, job, seconds=time.monotonic() - started))
        engine.dispose()

    def _look(self, engine: Engine, job: Job, *, seconds: float) -> Progress | Waiting:
        try:
            done, records = self._done(engine, job)
        except (OnceloadError, SQLAlchemyError):
            return Waiting(waits_for="the database, which does not answer")
        return Progress(bytes=done, bytes_planned=self._planned, records=records, seconds=seconds)

    def _done(self, engine: Engine, job: Job) -> tuple[int, int]:
        if job.stage is None:
            outcome = PostgresLedger(engine).outcome_of(job.declared.name, job.batch, after=self._after)
            counts = outcome.counts
            return outcome.bytes, counts.loaded + counts.duplicate + counts.quarantined
        with engine.connect() as connection:
            done, records = connection.execute(filled(SQL["staged"], pieces=job.stage.pieces)).one()
        return int(done), int(records)


def planned_bytes(bundles: Iterable[Bundle]) -> int | None:
    """How many bytes will be read."""
    chunks = [chunk for chunks in bundles for chunk in chunks]
    if any(is_compressed(chunk.url) for chunk in chunks):
        return None
    return sum(chunk.bytes for chunk in chunks)
