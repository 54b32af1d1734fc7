"""The sessions of one load, in this process or in Spark tasks, and the job that each gets."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, cast

from onceload_core.errors import SettingRefused
from onceload_core.names import SessionName
from onceload_core.postgres.deliveries import OpenWork
from onceload_core.postgres.sessions import session_of
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, Pieces
from onceload_jobs.executor.executor import Executor
from onceload_jobs.executor.local import LocalExecutor
from onceload_jobs.files.addresses import is_of_s3, known_access
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.engine import Engine, Ran
from onceload_jobs.load.phases import Phase
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.publish.postgres_transform import with_made_columns
from onceload_jobs.work.progress import Waiting, Watch, committed
from onceload_jobs.work.read_chunk import Reading
from onceload_jobs.work.run_sessions import run_sessions
from onceload_jobs.work.session import work
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.sql import table_name
from onceload_jobs.write.target import columns_to_read, ensure_target

if TYPE_CHECKING:
    from onceload_jobs.work.spark.spark import Spark


class Sessions:
    """Starts sessions when there is work."""

    def __init__(self, context: LoadContext, *, executor: Executor | None, running: ExitStack) -> None:
        self._context, self._given, self._running = context, executor, running
        self.watch = Watch(context.settings.on_progress)
        self._job: Job | None = None
        self._have_worked = False
        #: How the target table was changed.
        self.notes: tuple[Note, ...] = ()

    def prepared_job(self) -> Job:
        """The job for all sessions; the first call creates or changes the target table if needed."""
        if self._job is None:
            self._job = self._prepare()
        return self._job

    def _prepare(self) -> Job:
        context, declared, settings = self._context, self._context.declared, self._context.settings
        columns = columns_to_read(context.engine, declared)
        job = Job(
            declared=declared,
            columns=columns,
            written=columns,
            ledger=settings.ledger,
            session=context.session,
            batch=context.batch,
            run=context.run,
            engine=str(self.ran) if self._given is None else None,
            spark_ui=settings.remote_ui,
            wait_s=settings.wait_s,
            differences_accepted=settings.differences_accepted,
            access=known_access() if is_of_s3(declared.source.path) else {},
        )
        if declared.is_made_by_postgres:
            job = with_made_columns(context.engine, job)
        if declared.needs_spark:
            job = self._spark.writing(job)
        if settings.choice.replaces and not job.has_lineage:
            found = "a transform without them, so the old rows would stay beside the new ones"
            expected = f"{PRODUCER_ID} and {SEQUENCE} among the columns of the transform"
            raise SettingRefused(f"replacing rows of pipeline {declared.name}", found, expected)
        changes = evolve_target(context.engine, declared, context.session, columns=job.written)
        self.notes = tuple(Note(name=table_name(declared.target), reason=each.outcome) for each in changes)
        ensure_target(
            context.engine,
            declared,
            columns=job.written,
            is_recorded=context.is_target_recorded,
            replaces=settings.choice.replaces,
        )
        return job

    def work(self) -> list[Note]:
        """Let sessions work on open deliveries of any planner, as long as they may get one."""
        context = self._context
        notes: list[Note] = []
        if context.is_staged:
            return notes
        before, left = None, context.left()
        while left != before and self._is_for_us(left) and not context.is_stopped:
            job = self.prepared_job()
            with context.stopwatch.during(Phase.STAGE), self.watching():
                notes += self._run(job)
            # A newer process with the same session name continues instead.
            until_answered(context.renew)
            before, left = left, context.left()
        return notes

    def _run(self, job: Job) -> list[Note]:
        """A consumer works itself, under its own name, and learns if another one takes that."""
        settings = self._context.settings
        if settings.session is None:
            return run_sessions(self.executor, job, self._names())
        return work(job, settings.session, is_stopped=settings.is_stopped)

    @property
    def has_run(self) -> Ran | None:
        """What ran the workers, if there was work for them."""
        return self.ran if self._have_worked and self._given is None else None

    def report_waiting(self, waits_for: str) -> None:
        if (on_progress := self._context.settings.on_progress) is not None:
            with suppress(OSError):
                on_progress(Waiting(waits_for=waits_for))

    @contextmanager
    def watching(self) -> Iterator[None]:
        context = self._context
        if context.settings.on_progress is None:
            yield
            return
        asked = committed(context.settings.ledger, context.declared.name, context.batch, after=context.before)
        with asked as look, self.watch.watching(look):
            yield

    @cached_property
    def executor(self) -> Executor:
        """What runs the workers."""
        self._have_worked = True
        if self._given is not None:
            return self._given
        if self.ran.engine is Engine.SPARK:
            return self._spark
        return self._running.enter_context(closing(LocalExecutor()))

    def transform(self, job: Job, reading: Reading, read: Sequence[Piece]) -> Pieces:
        """The rows that Spark SQL makes of all that was read."""
        return self._spark.transform(job, reading, read)

    @cached_property
    def ran(self) -> Ran:
        """What runs the workers, and why."""
        return self._context.settings.chosen(needs_spark=self._context.declared.needs_spark)

    @cached_property
    def _spark(self) -> "Spark":
        self._have_worked = True
        if self._given is not None:
            return cast("Spark", self._given)
        if self._context.settings.engine is Engine.LOCAL:
            found = "local, for a pipeline with a transform in Spark SQL"
            raise SettingRefused("--engine", found, "spark or auto, because only Spark runs it")
        self.report_waiting("Spark to start")
        declared, settings, batch = self._context.declared, self._context.settings, self._context.batch
        with self._context.stopwatch.during(Phase.START):
            started = settings.spark(declared.name, batch=batch, tries=declared.delivery.deliveries_max)
            spark = self._running.enter_context(started)
        self.ran = replace(self.ran, ui=self.ran.ui or spark.ui)
        return spark

    def _names(self) -> list[SessionName]:
        """The fixed sessions, or as many of our own as there is work for."""
        rules = self._context.declared.delivery
        if self._context.declared.has_fixed_sessions:
            return list(rules.names)
        count = min(rules.sessions or self.executor.slots, max(1, self._context.left().count))
        return [session_of(self._context.batch, str(number)) for number in range(1, count + 1)]

    def _is_for_us(self, left: OpenWork) -> bool:
        """Whether our sessions may find work."""
        if self._context.declared.needs_spark:
            return False
        return left.of_session if self._context.has_own_line else bool(left.waiting or left.of_batch)
