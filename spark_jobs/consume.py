"""A loader process without Spark: one session with a name of its own, on this machine or on any other.

It plans like any load, hands out what it finds, and works on what is open, whoever found it. It ends when nothing can
come to it any more, or stays and looks again. Asked to stop, it finishes what it has in hand; killed, it has lost
nothing: what it held is handed out again when its lease has ended, or as soon as it comes back under its name.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

from dedup_core.errors import (
    AskTheLedger,
    CallAgain,
    DeclarationChanged,
    OnceloadError,
    SessionFenced,
    SettingRefused,
)
from dedup_core.names import Batch, SessionName
from dedup_core.postgres.deliveries import check_own_name
from spark_jobs.declared import Declared
from spark_jobs.load import LoadSettings, Report, load, take_version
from spark_jobs.loading import Delivery, Job
from spark_jobs.plan import Note
from spark_jobs.work import Worker


@dataclass
class Here:
    """One session in this process, which stays open from one plan to the next."""

    name: SessionName
    is_stopped: Callable[[], bool]
    slots: int = 1
    _worker: Worker | None = field(default=None, init=False)

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        del sessions  # Only one of them is ours.
        if self._worker is None:
            worker = Worker(job, self.name, is_stopped=self.is_stopped)
            # Whoever has this name is an earlier life of ours. What could not be opened now is opened by the next run.
            worker.open(waits=False)
            self._worker = worker
        try:
            return self._worker.run(job)
        except BaseException:
            # Its heartbeat would keep what it has in hand.
            self.close()
            raise

    def close(self) -> None:
        """Give back what is in hand; the next run begins another life."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        del job, deliveries
        raise SettingRefused("consume", "a pipeline with a transform", "one without: `onceload load` runs Spark SQL")

    def writing(self, job: Job) -> Job:
        return job


def consume(
    declared: Declared, settings: LoadSettings, *, name: SessionName, batch: Batch, pause: Callable[[], bool]
) -> Iterator[Report | OnceloadError]:
    """Load what is new and whatever is open; then again, as long as `pause` answers that it should go on.

    What passes is told instead of a report; whoever does not go on has to raise it.
    """
    check_consumer(declared, name)
    settings = replace(settings, session=name)
    with closing(Here(name, settings.is_stopped)) as here:
        while True:
            try:
                if settings.version is None:
                    # Taken once: a file that was edited since ends this process, which would take its own back.
                    settings = replace(settings, version=take_version(declared, settings))
                yield load(declared, settings, batch=batch, tasks=here)
            except (SessionFenced, DeclarationChanged):
                raise
            except (CallAgain, AskTheLedger) as error:
                yield error
            if settings.is_stopped() or not pause():
                return


def check_consumer(declared: Declared, name: SessionName) -> None:
    """Refuse a session that the pipeline has nothing for."""
    check_own_name("--session", name)
    if declared.transform is not None:
        raise SettingRefused("consume", "a pipeline with a transform", "one without: `onceload load` runs Spark SQL")
    rules = declared.delivery
    if declared.has_fixed_sessions and name not in rules.names:
        raise SettingRefused("--session", repr(name), f"1 to {rules.sessions}, as delivery.sessions says")
