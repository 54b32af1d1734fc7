"""A real `onceload load`: a driver, Spark's machine and its Python workers, and how a test strikes each of them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO, Any

import psutil

_PATIENCE_S = 120
#: Between two looks at whether something has come about.
_PACE_S = 0.02
_ROOT = Path(__file__).resolve().parents[2]
_SPARK_WORKERS = "pyspark.daemon"


class NotAsPlanned(AssertionError):
    """The load ended before it could be struck, so that the run proves nothing."""


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a load ended: its exit code, negative if it was killed, and its one document if it said one."""

    exit_code: int
    document: dict[str, Any]
    words: str

    @property
    def is_nothing_new(self) -> bool:
        """And nothing that waits for anybody."""
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
        never = Event()
        for _ in range(round(_PATIENCE_S / _PACE_S)):
            if holds():
                return True
            if not self.is_running:
                return False
            never.wait(_PACE_S)
        raise NotAsPlanned(f"nothing came about within {_PATIENCE_S} s")

    def kill_driver(self) -> None:
        self._descendants()
        self._process.kill()

    def kill_spark_worker(self) -> None:
        """One of the processes that Spark's daemon forks for tasks."""
        self.wait_until(lambda: bool(self._spark_workers()))
        victim = self._spark_workers()[0]
        with suppress(psutil.NoSuchProcess):
            victim.kill()

    def kill_group(self) -> None:
        """All of it at once; Spark's daemon has a group of its own, so that it is killed by its number."""
        descendants = self._descendants()
        os.killpg(self._process.pid, signal.SIGKILL)
        _kill(descendants)

    def end(self) -> Ended:
        """Wait for its end, and see to it that nothing of it is left."""
        self._process.wait(timeout=_PATIENCE_S)
        # Without its driver, the rest ends by itself: that is a part of what is tried here.
        _, left = psutil.wait_procs(self._seen, timeout=_PATIENCE_S)
        assert not left, f"nobody drives these any more, and they go on: {left}"
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
        with suppress(psutil.NoSuchProcess):
            self._seen |= set(psutil.Process(self._process.pid).children(recursive=True))
        return self._seen

    def _spark_workers(self) -> list[psutil.Process]:
        return [each for each in self._descendants() if _is_spark_worker(each)]


def _is_spark_worker(process: psutil.Process) -> bool:
    try:
        parent = process.parent()
        return _SPARK_WORKERS in process.cmdline() and parent is not None and _SPARK_WORKERS in parent.cmdline()
    except psutil.Error:
        return False


def _kill(processes: set[psutil.Process]) -> None:
    for process in processes:
        # It knows when it was started, so that a number which is somebody else's by now is left alone.
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def running_load(pipeline_file: Path, *, dsn: str, batch: str) -> Iterator[RunningLoad]:
    """Load, as a shell would; whatever is left of it when the block ends is killed."""
    command = [sys.executable, "-m", "onceload", "load", str(pipeline_file), "--json", "--batch", batch]
    folder = pipeline_file.parent
    # Files, because a pipe that nobody empties would stop it.
    with (folder / "said.json").open("w+b") as said, (folder / "words.txt").open("w+b") as words:
        process = subprocess.Popen(
            command,
            cwd=_ROOT,
            env={**os.environ, "ONCELOAD_DSN": dsn},
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
