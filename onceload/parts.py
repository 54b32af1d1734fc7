"""Supervised processes that run until stopped; one that dies is restarted.

One thread starts, watches and stops them. Each is a session of the operating system, and all its child processes belong
to that session, whichever dies first. So no child outlives its part.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from onceload.terminal import words
from onceload_core.errors import CallAgain

_ENDS_IN_S = 30.0
_LOOKS_EVERY_S = 0.5
#: Between two starts of a part that keeps dying.
_PAUSE_S = 10.0
#: If the parent is killed and cannot stop the part, the kernel sends it SIGTERM (PR_SET_PDEATHSIG).
_ENDS_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.orig_argv[3], sys.orig_argv[3:])"


@dataclass(eq=False)
class NotStarted(CallAgain):
    """A part ended, or did not answer in time."""

    part: str
    log: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.part} did not start: {self.reason}. Everything was stopped, and nothing is lost. See {self.log}, "
            "and retry"
        )


class Parts:
    """The parts of one service, owned by their own thread: the kernel ends them when that thread ends."""

    def __init__(
        self, whose: str, commands: Mapping[str, Sequence[str]], *, logs: Path, environment: Mapping[str, str]
    ) -> None:
        #: In start order: each needs those before it.
        self._whose, self._commands, self._logs, self._environment = whose, commands, logs, environment
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: From then on, parts that end are restarted.
        self.are_ready = threading.Event()
        self._stopping = threading.Event()
        #: No part is restarted before this time.
        self._not_before: dict[str, float] = {}

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the parts, and end them with the block."""
        thread = threading.Thread(target=self._work, name=f"{self._whose} parts")
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()

    def log_of(self, part: str) -> Path:
        """The log file of a part."""
        return self._logs / f"{part}.log"

    def check(self) -> None:
        """Raise if a part has ended while starting."""
        for part, process in list(self.processes.items()):
            if (code := process.poll()) is not None:
                raise self.not_started(part, f"it ended with exit code {code}")

    def not_started(self, part: str, reason: str) -> NotStarted:
        return NotStarted(self.name_of(part), str(self.log_of(part)), reason)

    def name_of(self, part: str) -> str:
        """What messages call it."""
        return f"{self._whose} {part}"

    def environment_of(self, part: str) -> Mapping[str, str]:
        """What a part is started with."""
        del part
        return self._environment

    def may_start(self, part: str) -> bool:
        """Whether its last start is long enough ago."""
        if time.monotonic() < self._not_before.get(part, 0.0):
            return False
        self._not_before[part] = time.monotonic() + _PAUSE_S
        return True

    def look(self) -> None:
        """A hook that runs before the parts are checked."""

    def fault_of(self, part: str) -> str | None:
        """Why a part must be restarted, or None."""
        code = self.processes[part].poll()
        return None if code is None else f"has ended (exit code {code})"

    def _work(self) -> None:
        try:
            for part in self._commands:
                self.start(part)
            while not self._stopping.wait(_LOOKS_EVERY_S):
                if self.are_ready.is_set():
                    self._watch()
        finally:
            end(self.processes.values())

    def _watch(self) -> None:
        try:
            self.look()
            for part in self._commands:
                if (fault := self.fault_of(part)) and self.may_start(part):
                    words(f"{self.name_of(part)} {fault}, and is restarted; see {self.log_of(part)}")
                    # Its child processes would be left running.
                    end([self.processes[part]])
                    with suppress(OSError):
                        self.start(part)
        except Exception as error:  # noqa: BLE001 - if this thread ended, nothing would be restarted.
            words(f"watching {self._whose} processes failed, and is retried: {error!r}")

    def start(self, part: str) -> None:
        """Start one part."""
        with self.log_of(part).open("a") as log:
            self.processes[part] = subprocess.Popen(
                [sys.executable, "-c", _ENDS_WITH_US, *self._commands[part]],
                env=self.environment_of(part),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C must reach only us; the parts are stopped one after the other.
                start_new_session=True,
            )


def end(parts: Collection["subprocess.Popen[bytes]"]) -> None:
    """Terminate parts and their child processes, the last part first; kill those that do not end in time."""
    sessions = {part.pid for part in parts}
    for part in reversed([*parts]):
        for process in _of_sessions({part.pid}):
            with suppress(psutil.NoSuchProcess):
                process.terminate()
    until = time.monotonic() + _ENDS_IN_S
    while left := _of_sessions(sessions):
        for process in left if time.monotonic() > until else ():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.1)
    for part in parts:
        part.wait()


def _of_sessions(sessions: Collection[int]) -> list[psutil.Process]:
    """The live processes of some sessions; Airflow's tasks have their own process groups, but no own sessions."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(pid) in sessions and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
