"""A session in this process, without Spark."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import SettingRefused
from onceload_core.names import SessionName
from onceload_jobs.batch.job import Job
from onceload_jobs.files.notes import Note
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.work.session import Worker


@dataclass
class InProcessTasks:
    """One session in this process, open from one plan to the next."""

    name: SessionName
    is_stopped: Callable[[], bool]
    slots: int = 1
    _worker: Worker | None = field(default=None, init=False)

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        del sessions  # Only one of them is ours.
        if self._worker is None:
            worker = Worker(job, self.name, is_stopped=self.is_stopped)
            # An earlier process may still have this name. What cannot be opened now is opened by the next run.
            worker.open(waits=False)
            self._worker = worker
        try:
            return self._worker.run(job)
        except BaseException:
            # Its heartbeat would keep its delivery held.
            self.close()
            raise

    def close(self) -> None:
        """Release the delivery; the next run starts a new epoch."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        del job, deliveries
        expected = f"one without (`onceload load {PIPELINE_FILE}` runs Spark SQL)"
        raise SettingRefused("consume", "a pipeline with a transform", expected)

    def writing(self, job: Job) -> Job:
        return job
