"""A real `onceload load`: a driver, its sessions in local processes or Spark's workers, and how each is struck."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryFile
from types import MappingProxyType
from typing import IO, Any

import psutil
import pyspark

from tests.waiting import PATIENCE_S, until

_SPARK_HOME = Path(pyspark.__file__).parent
#: Spark's Python workers are forked from a daemon, local sessions from a fork server.
_FORKED_FROM = ("pyspark.daemon", "onceload_jobs.work.spark.daemon", "multiprocessing.forkserver")


class NotAsPlanned(AssertionError):
    """The load could not be struck as it was meant to be, so that the run proves nothing."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a load ended: its exit code, negative if it was killed, and its one document if it said one."""

    exit_code: int
    document: dict[str, Any]
    words: str

    @property
    def is_nothing_new(self) -> bool:
        """And nothing that waits for a person."""
        said = self.document
        return self.exit_code == 0 and not (said["loaded"] or said["quarantined"] or said["notes"])


class RunningLoad:
    """One load in a process group of its own."""

    def __init__(self, process: subprocess.Popen[bytes], said: IO[bytes], words: IO[bytes]) -> None:
        self._process, self._said, self._words = process, said, words
        self._seen: set[psutil.Process] = set()

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait_until(self, holds: Callable[[], bool]) -> None:
        """Look again and again, until it holds."""
        if not self.look_until(holds):
            raise NotAsPlanned(f"the load ended before it could be struck: {self.end()}")

    def look_until(self, holds: Callable[[], bool]) -> bool:
        """As above; false if the load ends first."""
        until(lambda: not self.is_running or holds(), error=NotAsPlanned)
        return self.is_running

    def kill_driver(self) -> None:
        self._descendants()
        self._process.kill()

    def terminate_driver(self) -> None:
        """Ask it to end, twice: this happens when a group is ended and its members too."""
        self._descendants()
        for _ in range(2):
            self._process.terminate()

    @contextmanager
    def pausing_driver(self) -> Iterator[None]:
        """Stop it for as long as the block runs; its workers go on."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill_worker(self) -> None:
        """One of the processes in which sessions run."""
        self.wait_until(lambda: bool(self.workers()))
        victim = self.workers()[0]
        with suppress(psutil.NoSuchProcess):
            victim.kill()

    def kill_group(self) -> None:
        """All of it at once; Spark's daemon has a group of its own, so that it is killed by its number."""
        descendants = self._descendants()
        os.killpg(self._process.pid, signal.SIGKILL)
        _kill(descendants)

    def end(self, *, patience_s: float = PATIENCE_S) -> Ended:
        """Wait for its end, and see to it that nothing of it is left."""
        self._process.wait(timeout=patience_s)
        # Without its driver, the rest ends by itself: that is a part of what is tried here.
        _, left = psutil.wait_procs(self._seen, timeout=patience_s)
        assert not left, f"these have no driver any more, and they go on: {left}"
        self._said.seek(0)
        self._words.seek(0)
        document = self._said.read()
        return Ended(
            exit_code=self._process.returncode,
            document=json.loads(document) if document else {},
            words=self._words.read().decode(),
        )

    def close(self) -> None:
        _kill(self._descendants())
        if self.is_running:
            self._process.kill()
            self._process.wait()

    def _descendants(self) -> set[psutil.Process]:
        self._seen |= _descendants_of(self._process.pid)
        return self._seen

    def workers(self) -> list[psutil.Process]:
        return [each for each in self._descendants() if is_worker(each)]


def _descendants_of(pid: int) -> set[psutil.Process]:
    with suppress(psutil.NoSuchProcess):
        return set(psutil.Process(pid).children(recursive=True))
    return set()


def is_worker(process: psutil.Process) -> bool:
    """Whether it is one of the processes in which workers run."""
    try:
        parent = process.parent()
        own, its = " ".join(process.cmdline()), " ".join(parent.cmdline() if parent else ())
    except psutil.Error:
        return False
    return any(each in own and each in its for each in _FORKED_FROM)


def _workers_of(process: psutil.Process) -> list[psutil.Process]:
    return [each for each in _descendants_of(process.pid) if is_worker(each)]


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        # It knows when it was started, so that a number which belongs to another process by now is left alone.
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def running_load(
    pipeline_file: Path,
    *,
    dsn: str,
    batch: str,
    options: Sequence[str] = (),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[RunningLoad]:
    """Load, as a shell would; whatever is left of it when the block ends is killed."""
    command = [sys.executable, "-m", "onceload", "load", str(pipeline_file), "--json", "--batch", batch, *options]
    # Files, because a pipe that is not emptied would stop it.
    with TemporaryFile() as said, TemporaryFile() as words:
        process = subprocess.Popen(
            command,
            cwd=pipeline_file.parent,
            env={**os.environ, "ONCELOAD_DSN": dsn, **environment},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=words,
            start_new_session=True,
        )
        running = RunningLoad(process, said, words)
        try:
            yield running
        finally:
            running.close()


#: Each is this machine; Spark takes them for different ones.
HOSTS = ("127.0.0.2", "127.0.0.3")
_CORES_PER_HOST = 3


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Spark on two hosts: only there does it run a second copy of a task that it thinks slow."""

    address: str
    _folder: Path
    #: Its master, and each host.
    _daemons: Sequence[psutil.Process]

    @property
    def options(self) -> Sequence[str]:
        return ["--master", self.address, *(f"--conf={name}={value}" for name, value in self.settings.items())]

    @property
    def settings(self) -> Mapping[str, str]:
        """Any task that is slower than its fellows gets a copy, and one that fails is tried again."""
        return {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.executor.memory": "512m",
            "spark.task.maxFailures": "1000",
            "spark.speculation": "true",
            "spark.speculation.interval": "10ms",
            "spark.speculation.multiplier": "1",
            "spark.speculation.quantile": "0.1",
            "spark.speculation.minTaskRuntime": "0ms",
            "spark.speculation.efficiency.enabled": "false",
            "spark.eventLog.enabled": "true",
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.dir": self._events.as_uri(),
        }

    @property
    def _events(self) -> Path:
        return self._folder / "events"

    def kill_worker(self, rng: Random) -> None:
        """One of the processes that carry out tasks, if there are any."""
        found = [each for daemon in self._daemons for each in _workers_of(daemon)]
        if found:
            _kill({rng.choice(found)})

    def workers_on(self, host: str) -> list[psutil.Process]:
        """The same, of one host."""
        return _workers_of(self._daemons[1 + HOSTS.index(host)])

    def tasks_started(self) -> tuple[int, int]:
        """How many copies of tasks were started so far, and how many tries after a first one failed."""
        copies = retries = 0
        for path in self._events.iterdir():
            for line in path.read_text(encoding="utf-8").splitlines():
                if '"SparkListenerTaskStart"' in line:
                    task = json.loads(line)["Task Info"]
                    copies += task["Speculative"]
                    retries += task["Attempt"] > 0 and not task["Speculative"]
        return copies, retries


@contextmanager
def spark_cluster(folder: Path) -> Iterator[Cluster]:
    """A master and its hosts, as processes of this machine."""
    (folder / "events").mkdir()
    log = folder / "master.log"
    with ExitStack() as running:
        master = running.enter_context(_daemon("master.Master", "--host", "127.0.0.1", "--port", "0", log=log))
        address = _find_in(log, r"spark://[\d.]+:\d+")
        daemons = [master, *(running.enter_context(_host(host, address, folder)) for host in HOSTS)]
        for host in HOSTS:
            _find_in(log, f"Registering worker {re.escape(host)}")
        yield Cluster(address=address, _folder=folder, _daemons=daemons)


def _host(host: str, address: str, folder: Path) -> AbstractContextManager[psutil.Process]:
    room = ("--cores", str(_CORES_PER_HOST), "--memory", "1g", "--work-dir", str(folder / host))
    return _daemon("worker.Worker", "--host", host, *room, address, log=folder / f"{host}.log")


@contextmanager
def _daemon(name: str, *arguments: str, log: Path) -> Iterator[psutil.Process]:
    with log.open("wb") as words:
        process = subprocess.Popen(
            [_SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", "--webui-port", "0", *arguments],
            env={**os.environ, "SPARK_HOME": str(_SPARK_HOME), "SPARK_DAEMON_MEMORY": "256m"},
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=words,
            start_new_session=True,
        )
    try:
        yield psutil.Process(process.pid)
    finally:
        descendants = _descendants_of(process.pid)
        process.kill()
        process.wait()
        _kill(descendants)


def _find_in(log: Path, pattern: str) -> str:
    """The first place in a log that is like this, as soon as it is there."""
    what = f"{pattern} is in {log}, where Spark writes"
    found: list[str] = until(
        lambda: re.findall(pattern, log.read_text(encoding="utf-8")), what, timeout_s=PATIENCE_S, error=NotAsPlanned
    )
    return found[0]
