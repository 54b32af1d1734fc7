"""Sessions in processes of this machine, without Spark: a file that kills one takes nothing else with it."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TypeAlias

from onceload_core.delivery import Mode
from onceload_core.errors import OnceloadError, SessionFenced, SettingRefused
from onceload_core.events import show_events
from onceload_core.names import SessionName
from onceload_jobs.batch.job import Job
from onceload_jobs.files.addresses import use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.work.failures import FAILURES_MAX, TasksFailed, ends_all
from onceload_jobs.work.local.processes import PROCESSES, start
from onceload_jobs.work.local.without_pandas import keep_pandas_out
from onceload_jobs.work.session import work

_Result: TypeAlias = list[Note] | Exception
#: How often the load looks whether its sessions should stop.
_LOOKS_EVERY_S = 0.1


def cores() -> int:
    """How many processes run at once; containers may have fewer cores than their machine."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True, kw_only=True)
class LocalTasks:
    """A process for each session; one that dies is started again."""

    slots: int = field(default_factory=cores)

    def run(self, job: Job, sessions: Sequence[SessionName], *, until: threading.Event | None = None) -> list[Note]:
        """Let each session take deliveries until it can get no more, or until the event."""
        notes: list[Note] = []
        errors: list[Exception] = []
        for result in _results(job, sessions, until=until or threading.Event()):
            if isinstance(result, list):
                notes += result
            elif ends_all(result):
                raise result
            else:
                # The other sessions may load the rest.
                errors.append(result)
        if errors:
            raise errors[0]
        # Repeated reads repeat their notes.
        return list(dict.fromkeys(notes))

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        raise NotImplementedError

    def writing(self, job: Job) -> Job:
        if job.declared.needs_spark:
            found = "local, for a pipeline with a transform in Spark SQL"
            raise SettingRefused("--engine", found, "spark or auto, because only Spark runs it")
        return job


def _results(job: Job, sessions: Sequence[SessionName], *, until: threading.Event) -> Iterator[_Result]:
    """Run all sessions, and yield each result as it comes; sessions that still run at the end are killed."""
    running: list[_Running] = []
    try:
        for name in sessions:
            running.append(_Running.started(job, name))  # noqa: PERF401 - those that were started must be ended.
        are_stopped = False
        while running:
            ready = wait([each.link for each in running], timeout=_LOOKS_EVERY_S)
            if until.is_set() and not are_stopped:
                are_stopped = True
                for each in running:
                    each.stop()
            for ended in [each for each in running if each.link in ready]:
                running.remove(ended)
                result = ended.result()
                if result is not None:
                    yield result
                elif not are_stopped:
                    running.append(ended.again())
    finally:
        for each in running:
            each.kill()


@dataclass(frozen=True, kw_only=True)
class _Running:
    """The process of one session."""

    job: Job
    name: SessionName
    process: BaseProcess
    #: Brings its result, or the end of the file if it dies.
    link: Connection
    #: How many processes of this session have died before it.
    deaths: int = 0

    @classmethod
    def started(cls, job: Job, name: SessionName, *, deaths: int = 0) -> "_Running":
        link, its = PROCESSES.Pipe()
        # A dead process has not closed its session. The next one takes over, unless another load may have that name.
        waits = not deaths or job.declared.delivery.mode is Mode.SESSION
        process = start(_work, job, name, waits, its, name=f"onceload {name}")
        its.close()
        return cls(job=job, name=name, process=process, link=link, deaths=deaths)

    def stop(self) -> None:
        """Let it end after its delivery."""
        with suppress(OSError):
            self.link.send(None)

    def result(self) -> _Result | None:
        """Its result; None if it died."""
        found: _Result | None = None
        with self.link, suppress(EOFError, OSError):
            found = self.link.recv()
        self.process.join()
        return found

    def again(self) -> "_Running":
        """The same session in another process."""
        deaths = self.deaths + 1
        if deaths >= FAILURES_MAX + self.job.declared.delivery.deliveries_max:
            reason = f"the process of session {self.name} died {deaths} times ({_end_of(self.process.exitcode)})"
            raise TasksFailed(self.job.declared.name, reason)
        return self.started(self.job, self.name, deaths=deaths)

    def kill(self) -> None:
        self.process.kill()
        self.process.join()
        self.link.close()


def _end_of(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


def _work(job: Job, name: SessionName, waits: bool, link: Connection) -> None:  # noqa: FBT001 - by position.
    """One session, in a process of its own."""
    # Ctrl-C in a terminal reaches all processes; the load ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_load, daemon=True).start()
    keep_pandas_out()
    show_events(os.environ)
    use_access(job.access)
    found: _Result
    try:
        found = work(job, name, waits=waits, is_stopped=link.poll)
    except SessionFenced:
        # A newer epoch that took over does the rest.
        found = []
    except OnceloadError as error:
        found = error
    except Exception as error:  # noqa: BLE001 - not every error can be pickled.
        found = TasksFailed(job.declared.name, f"{type(error).__name__}: {error}")
    link.send(found)


def _end_with_the_load() -> None:
    """End this process if the load is killed. Its deliveries are released with the batch."""
    if (load := multiprocessing.parent_process()) is not None:
        load.join()
        os._exit(1)
