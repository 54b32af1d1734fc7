"""The sessions of one load, in this process or in Spark tasks, and the job that each gets."""

import time
from contextlib import ExitStack, suppress
from functools import cached_property

from dedup_core.errors import SettingRefused
from dedup_core.names import SessionName
from dedup_core.postgres.deliveries import OpenWork
from dedup_core.postgres.sessions import session_of
from spark_jobs.batch.job import Job
from spark_jobs.files.addresses import is_of_s3, known_access
from spark_jobs.files.notes import Note
from spark_jobs.load.attempt import Attempt
from spark_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from spark_jobs.work.progress import Waiting, WatchedTasks
from spark_jobs.work.session import Tasks
from spark_jobs.write.patience import answered
from spark_jobs.write.target import columns_to_read, ensure_target


class Crew:
    """Starts sessions when there is work."""

    def __init__(self, attempt: Attempt, *, tasks: Tasks | None, running: ExitStack) -> None:
        self._attempt, self._given, self._running = attempt, tasks, running
        #: How long Spark took to start.
        self.starting_s = 0.0
        #: How many bytes will be read, if known.
        self.planned_bytes: int | None = 0

    @cached_property
    def job(self) -> Job:
        """The job for all sessions; creates the target table if needed."""
        attempt, declared, settings = self._attempt, self._attempt.declared, self._attempt.settings
        columns = columns_to_read(attempt.engine, declared)
        job = Job(
            declared=declared,
            columns=columns,
            written=columns,
            ledger=settings.ledger,
            session=attempt.session,
            batch=attempt.batch,
            run=attempt.run,
            wait_s=settings.wait_s,
            differences_accepted=settings.differences_accepted,
            access=known_access() if is_of_s3(declared.source.path) else {},
        )
        job = self._tasks.writing(job)
        if settings.choice.replaces and not job.has_lineage:
            found = "a transform without them, so the old rows would stay beside the new ones"
            expected = f"{PRODUCER_ID} and {SEQUENCE} among the columns of the transform"
            raise SettingRefused(f"replacing rows of pipeline {declared.name}", found, expected)
        ensure_target(attempt.engine, declared, columns=job.written)
        return job

    @property
    def tasks(self) -> Tasks:
        """The tasks, with progress reports if they are wanted."""
        if (on_progress := self._attempt.settings.on_progress) is None:
            return self._tasks
        return WatchedTasks(self._tasks, on_progress, after=self._attempt.before, planned=self.planned_bytes)

    def work(self, job: Job | None = None) -> list[Note]:
        """Let sessions work on open deliveries of any planner, as long as they may get one."""
        attempt = self._attempt
        notes: list[Note] = []
        before, left = None, attempt.left()
        while left != before and self._is_for_us(left) and not attempt.is_stopped:
            notes += self.tasks.run(job or self.job, self._sessions(left.count))
            # A newer process with the same session name continues instead.
            answered(attempt.renew)
            before, left = left, attempt.left()
        return notes

    def report_waiting(self, waits_for: str) -> None:
        if (on_progress := self._attempt.settings.on_progress) is not None:
            with suppress(OSError):
                on_progress(Waiting(waits_for=waits_for))

    @cached_property
    def _tasks(self) -> Tasks:
        if self._given is not None:
            return self._given
        from spark_jobs.work.spark import SparkTasks

        self.report_waiting("Spark to start")
        starting = time.monotonic()
        declared, settings = self._attempt.declared, self._attempt.settings
        spark = SparkTasks.started(
            declared.name, settings.master, settings.spark_options, tries=declared.delivery.deliveries_max
        )
        tasks = self._running.enter_context(spark)
        self.starting_s = time.monotonic() - starting
        return tasks

    def _sessions(self, deliveries: int) -> list[SessionName]:
        """The fixed sessions, or as many of our own as there is work for."""
        rules = self._attempt.declared.delivery
        if self._attempt.declared.has_fixed_sessions:
            return list(rules.names)
        count = min(rules.sessions or self._tasks.slots, max(1, deliveries))
        return [session_of(self._attempt.batch, str(number)) for number in range(1, count + 1)]

    def _is_for_us(self, left: OpenWork) -> bool:
        """Whether our sessions may find work."""
        if self._attempt.declared.transform is not None:
            return False
        return left.of_session if self._attempt.has_own_line else bool(left.waiting or left.of_batch)
