"""The sessions of one load, in this process or in Spark tasks, and the job that each gets."""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cached_property

from onceload_core.errors import SettingRefused
from onceload_core.names import SessionName
from onceload_core.postgres.deliveries import OpenWork
from onceload_core.postgres.sessions import session_of
from onceload_jobs.batch.job import Job
from onceload_jobs.files.addresses import is_of_s3, known_access
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.engine import LAUNCHED, Engine, engine_for
from onceload_jobs.load.phases import Phase
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.plan.to_read import FileToRead
from onceload_jobs.publish.postgres_transform import with_made_columns
from onceload_jobs.work.local.tasks import LocalTasks
from onceload_jobs.work.local.while_spark_starts import TasksWhileSparkStarts
from onceload_jobs.work.progress import Waiting, WatchedTasks
from onceload_jobs.work.session import Tasks
from onceload_jobs.write.evolve import evolve_target
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.sql import table_name
from onceload_jobs.write.target import columns_to_read, ensure_target


class Sessions:
    """Starts sessions when there is work."""

    def __init__(self, context: LoadContext, *, tasks: Tasks | None, running: ExitStack) -> None:
        self._context, self._given, self._running = context, tasks, running
        self._files: Sequence[FileToRead] = ()
        self._planned_bytes: int | None = 0
        self._job: Job | None = None
        #: What runs the sessions, once there is work for them.
        self.engine: Engine | None = None
        #: How the target table was changed.
        self.notes: tuple[Note, ...] = ()

    def expect(self, files: Sequence[FileToRead], *, planned_bytes: int | None) -> None:
        """Take down what will be read: it decides what runs the first sessions, and progress is measured against it."""
        self._files, self._planned_bytes = files, planned_bytes

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
            wait_s=settings.wait_s,
            differences_accepted=settings.differences_accepted,
            access=known_access() if is_of_s3(declared.source.path) else {},
        )
        job = with_made_columns(context.engine, job) if declared.is_made_by_postgres else self._tasks.writing(job)
        if settings.choice.replaces and not job.has_lineage:
            found = "a transform without them, so the old rows would stay beside the new ones"
            expected = f"{PRODUCER_ID} and {SEQUENCE} among the columns of the transform"
            raise SettingRefused(f"replacing rows of pipeline {declared.name}", found, expected)
        changes = evolve_target(context.engine, declared, context.session, columns=job.written)
        self.notes = tuple(Note(name=table_name(declared.target), reason=each.outcome) for each in changes)
        ensure_target(context.engine, declared, columns=job.written, replaces=settings.choice.replaces)
        return job

    @property
    def share_files(self) -> bool:
        """Whether all sessions run on this machine."""
        master = self._context.settings.master
        return LAUNCHED not in os.environ and (master is None or master.startswith("local"))

    @property
    def tasks(self) -> Tasks:
        """The tasks, with progress reports if they are wanted."""
        if (on_progress := self._context.settings.on_progress) is None:
            return self._tasks
        return WatchedTasks(self._tasks, on_progress, after=self._context.before, planned=self._planned_bytes)

    def work(self, job: Job | None = None) -> list[Note]:
        """Let sessions work on open deliveries of any planner, as long as they may get one."""
        context = self._context
        notes: list[Note] = []
        before, left = None, context.left()
        while left != before and self._is_for_us(left) and not context.is_stopped:
            prepared, names = job or self.prepared_job(), self._names(self._tasks.slots)
            with context.stopwatch.during(Phase.STAGE):
                notes += self.tasks.run(prepared, names)
            # A newer process with the same session name continues instead.
            until_answered(context.renew)
            before, left = left, context.left()
        return notes

    def report_waiting(self, waits_for: str) -> None:
        if (on_progress := self._context.settings.on_progress) is not None:
            with suppress(OSError):
                on_progress(Waiting(waits_for=waits_for))

    @cached_property
    def _tasks(self) -> Tasks:
        if self._given is not None:
            return self._given
        declared, settings = self._context.declared, self._context.settings
        is_large = engine_for(declared, self._files) is Engine.SPARK
        wants_spark = settings.engine is Engine.SPARK or settings.master is not None or bool(settings.spark_options)
        if settings.engine is Engine.LOCAL or not (wants_spark or is_large):
            self.engine = Engine.LOCAL
            return LocalTasks()
        if settings.engine is Engine.SPARK or declared.needs_spark or not is_large:
            self.report_waiting("Spark to start")
            with self._context.stopwatch.during(Phase.START):
                return self._running.enter_context(self._spark())
        self.engine = Engine.LOCAL
        return self._running.enter_context(closing(TasksWhileSparkStarts(self._spark(), names=self._names)))

    @contextmanager
    def _spark(self) -> Iterator[Tasks]:
        from onceload_jobs.work.spark.tasks import SparkTasks

        declared, settings = self._context.declared, self._context.settings
        tries = declared.delivery.deliveries_max
        with SparkTasks.started(declared.name, settings.master, settings.spark_options, tries=tries) as tasks:
            self.engine = Engine.SPARK
            yield tasks

    def _names(self, slots: int) -> list[SessionName]:
        """The fixed sessions, or as many of our own as there is work for."""
        rules = self._context.declared.delivery
        if self._context.declared.has_fixed_sessions:
            return list(rules.names)
        count = min(rules.sessions or slots, max(1, self._context.left().count))
        return [session_of(self._context.batch, str(number)) for number in range(1, count + 1)]

    def _is_for_us(self, left: OpenWork) -> bool:
        """Whether our sessions may find work."""
        if self._context.declared.needs_spark:
            return False
        return left.of_session if self._context.has_own_line else bool(left.waiting or left.of_batch)
