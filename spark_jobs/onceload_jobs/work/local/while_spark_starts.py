"""Local sessions load until Spark is up, and Spark loads the rest."""

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack

from onceload_core.names import SessionName
from onceload_jobs.batch.job import Job
from onceload_jobs.files.notes import Note
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.work.local.tasks import LocalTasks
from onceload_jobs.work.session import Tasks


class TasksWhileSparkStarts:
    """Starts Spark in a thread. Its start takes seconds, in which local sessions load what they can."""

    def __init__(
        self,
        started: AbstractContextManager[Tasks],
        *,
        names: Callable[[int], Sequence[SessionName]],
    ) -> None:
        self._started, self._names = started, names
        self._local = LocalTasks()
        self._spark: Tasks | None = None
        self._error: Exception | None = None
        self._is_over = threading.Event()
        self._open = ExitStack()
        self._thread = threading.Thread(target=self._start, name="onceload starts Spark", daemon=True)
        self._thread.start()

    def _start(self) -> None:
        try:
            self._spark = self._open.enter_context(self._started)
        except Exception as error:  # noqa: BLE001 - raised by the thread that waits.
            self._error = error
        self._is_over.set()

    def close(self) -> None:
        """Stop Spark; a JVM that still starts cannot be stopped before it is up."""
        self._thread.join()
        self._open.close()

    @property
    def slots(self) -> int:
        return self._spark.slots if self._spark else self._local.slots

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        notes: list[Note] = []
        if not self._is_over.is_set():
            notes = self._local.run(job, sessions, until=self._is_over)
            if not self._is_over.is_set():
                # All is loaded.
                return notes
        return [*notes, *self._tasks().run(job, self._names(self.slots))]

    def _tasks(self) -> Tasks:
        self._thread.join()
        if self._spark is None:
            raise self._error or AssertionError
        return self._spark

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        raise NotImplementedError

    def writing(self, job: Job) -> Job:
        return job
