"""Processes that run until somebody says stop; one that dies is started again.

One thread starts them, watches them, and stops them. Each is a session of the system's, which all that it starts
belongs to, whoever of them dies first: so nothing of a part outlives its end.
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

from dedup_core.errors import CallAgain
from onceload.terminal import words

_ROOT = Path(__file__).resolve().parents[1]
_ENDS_IN_S = 30.0
_LOOKS_EVERY_S = 0.5
#: Between two starts of a part that dies over and over.
_PAUSE_S = 10.0
#: Whoever started this may be killed without a chance to stop it; it is then asked to end (PR_SET_PDEATHSIG, SIGTERM).
_ENDS_WITH_US = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.orig_argv[3], sys.orig_argv[3:])"


@dataclass(eq=False)
class NotStarted(CallAgain):
    """A part ended, or did not answer in time."""

    part: str
    log: str
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.part} should run until it is stopped, but {self.reason}; everything was stopped, and nothing is "
            f"lost: see {self.log}, and call again"
        )


class Parts:
    """Parts of something, in the hands of a thread of their own: the system ends them with whatever started them."""

    def __init__(
        self, whose: str, commands: Mapping[str, Sequence[str]], *, logs: Path, environment: Mapping[str, str]
    ) -> None:
        #: In the order in which they are started; all need what stands before.
        self._whose, self._commands, self._logs, self._environment = whose, commands, logs, environment
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        #: From then on what ends is started again.
        self.are_ready = threading.Event()
        self._stopping = threading.Event()
        #: No part is started again before.
        self._not_before: dict[str, float] = {}

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Start them, and end them with the block."""
        thread = threading.Thread(target=self._work, name=f"{self._whose} parts")
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()

    def log_of(self, part: str) -> Path:
        """Where what it says is written."""
        return self._logs / f"{part}.log"

    def check(self) -> None:
        """Raise if one has ended that should still be starting."""
        for part, process in list(self.processes.items()):
            if (code := process.poll()) is not None:
                raise self.not_started(part, f"it ended with exit code {code}")

    def not_started(self, part: str, reason: str) -> NotStarted:
        return NotStarted(f"{self._whose} {part}", str(self.log_of(part)), reason)

    def may_start(self, part: str) -> bool:
        """Whether it has not been started just now."""
        if time.monotonic() < self._not_before.get(part, 0.0):
            return False
        self._not_before[part] = time.monotonic() + _PAUSE_S
        return True

    def look(self) -> None:
        """What there is to see to before the parts are looked at."""

    def fault_of(self, part: str) -> str | None:
        """Why it has to be started again."""
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
                    words(f"{self._whose} {part} {fault}, and is started again; see {self.log_of(part)}")
                    # Of what it has started, nobody else would take care.
                    end([self.processes[part]])
                    with suppress(OSError):
                        self.start(part)
        except Exception as error:  # noqa: BLE001 - without whoever watches, nothing would be started again.
            words(f"looking after {self._whose} parts failed, and is tried again: {error!r}")

    def start(self, part: str) -> None:
        """Start one."""
        with self.log_of(part).open("a") as log:
            self.processes[part] = subprocess.Popen(
                [sys.executable, "-c", _ENDS_WITH_US, *self._commands[part]],
                env=self._environment,
                cwd=_ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C is for us; they are stopped one after the other.
                start_new_session=True,
            )


def end(parts: Collection["subprocess.Popen[bytes]"]) -> None:
    """Ask parts, the last one first, and all that they have started; whoever does not listen is killed."""
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
    """Whoever lives of some sessions of the system's; tasks at work are in groups of their own, but in no other."""
    found = []
    for pid in psutil.pids():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(pid) in sessions and (process := psutil.Process(pid)).status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found
