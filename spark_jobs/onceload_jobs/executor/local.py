"""Processes of this machine, forked from one that has imported what they need while the load still plans."""

import multiprocessing
import os
import pickle
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from onceload_core.events import show_events
from onceload_jobs.executor.executor import Died, Outcome, called

_PROCESSES = multiprocessing.get_context("forkserver")
#: A process has its next item already when it is done with one, so that it never waits for the load.
_GIVEN_MAX = 2
#: A start also looks at all other processes. If two threads look at one that died, only the first gets its exit code.
_LOOKING = threading.Lock()


def cores() -> int:
    """How many processes run at once; containers may have fewer cores than their machine."""
    return len(os.sched_getaffinity(0))


def import_early(*modules: str) -> None:
    """Start the process to fork from, and do not wait for it."""
    # pyarrow imports the last one with its first array of numpy.
    _PROCESSES.set_forkserver_preload([*modules, "numpy.ma"])
    forkserver.ensure_running()


class LocalExecutor:
    """As many processes as there are cores. One that dies is replaced by another."""

    def __init__(self, slots: int | None = None) -> None:
        self.slots = slots or cores()
        self._idle: list[_Process] = []

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        feeding = _Feeding(self._idle, function, deque(enumerate(items)), slots=self.slots)
        try:
            yield from feeding.outcomes()
        finally:
            feeding.stop()

    def close(self) -> None:
        for process in self._idle:
            process.kill()
        self._idle.clear()


class _Feeding:
    """Gives items to processes, in a thread of its own: they go on while the load writes what they have read."""

    def __init__(
        self, idle: "list[_Process]", function: Callable[[Any], Any], items: deque[tuple[int, Any]], *, slots: int
    ) -> None:
        self._idle, self._function, self._items = idle, function, items
        self._slots = min(slots, len(items))
        self._working: list[_Process] = []
        self._came: SimpleQueue[tuple[int, Outcome] | Exception | None] = SimpleQueue()
        self._wakes, self._wake = _PROCESSES.Pipe(duplex=False)
        self._thread = threading.Thread(target=self._feed, name="onceload feeds processes", daemon=True)
        self._thread.start()

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        while (came := self._came.get()) is not None:
            if isinstance(came, Exception):
                raise came
            yield came

    def stop(self) -> None:
        """Kill the processes that still work."""
        with suppress(OSError):
            self._wake.send(None)
        self._thread.join()
        for process in self._working:
            process.kill()
        self._wakes.close()
        self._wake.close()

    def _feed(self) -> None:
        try:
            while self._give():
                ready = wait([self._wakes, *(each.link for each in self._working)])
                if self._wakes in ready:
                    return
                for process in [each for each in self._working if each.link in ready]:
                    self._take(process)
        except Exception as error:  # noqa: BLE001 - raised where the outcomes are taken.
            self._came.put(error)
        self._came.put(None)

    def _give(self) -> bool:
        """Give items to all processes, one each before any gets its second; whether any still works."""
        while self._items and len(self._working) < self._slots:
            process = self._idle_or_new()
            process.begin(self._function)
            process.give(*self._items.popleft())
            self._working.append(process)
        for process in self._working:
            if self._items and len(process.given) < _GIVEN_MAX:
                process.give(*self._items.popleft())
        return bool(self._working)

    def _idle_or_new(self) -> "_Process":
        try:
            # Another call may take it at the same moment.
            return self._idle.pop()
        except IndexError:
            return _Process.started()

    def _take(self, process: "_Process") -> None:
        outcome = process.outcome()
        number, _ = process.given.popleft()
        self._came.put((number, outcome))
        if isinstance(outcome, Died):
            # It has not begun with these.
            self._items.extendleft(reversed(process.given))
            self._working.remove(process)
        elif not process.given:
            self._working.remove(process)
            self._idle.append(process)


@dataclass(frozen=True, kw_only=True)
class _Process:
    process: BaseProcess
    #: Brings outcomes, or the end of the file if it dies.
    link: Connection
    #: The items that it has no outcome of; it works on the first.
    given: deque[tuple[int, Any]] = field(default_factory=deque)

    @classmethod
    def started(cls) -> "_Process":
        link, its = _PROCESSES.Pipe()
        process = _PROCESSES.Process(target=_work, args=(its,), name="onceload", daemon=True)
        with _LOOKING, _as_parent():
            process.start()
        its.close()
        return cls(process=process, link=link)

    def begin(self, function: Callable[[Any], Any]) -> None:
        with suppress(OSError):
            self.link.send(function)

    def give(self, number: int, item: object) -> None:
        self.given.append((number, item))
        # A dead one is seen when its outcome is read.
        with suppress(OSError):
            self.link.send((item,))

    def outcome(self) -> Outcome:
        try:
            outcome: Outcome = self.link.recv()
        except (EOFError, OSError):
            self._end()
            return Died(f"its process ended with {_end_of(self.process.exitcode)}")
        return outcome

    def kill(self) -> None:
        self.process.kill()
        self._end()

    def _end(self) -> None:
        with _LOOKING:
            self.process.join()
        self.link.close()


def _end_of(code: int | None) -> str:
    return signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"


@contextmanager
def _as_parent() -> Iterator[None]:
    """Keep a new process from running the program that called us again, as an import that it does not need.

    A daemonic process, such as a worker of Celery, may have children here too: ours end with it by themselves.
    """
    main, caller = sys.modules["__main__"], multiprocessing.current_process()
    is_daemonic = caller.daemon
    sys.modules["__main__"] = ModuleType("__main__")
    if is_daemonic:
        caller.daemon = False
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        if is_daemonic:
            caller.daemon = True


def _work(link: Connection) -> None:
    """Call functions until the load closes the link."""
    # Ctrl-C in a terminal reaches all processes; the load ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_load, daemon=True).start()
    keep_pandas_out()
    show_events(os.environ)
    messages: SimpleQueue[bytes | None] = SimpleQueue()
    threading.Thread(target=_receive, args=(link, messages), daemon=True).start()
    function: Any = None
    with suppress(OSError):
        for message in iter(messages.get, None):
            match pickle.loads(message):  # noqa: S301 - of the load.
                case (item,):
                    link.send(called(function, item))
                case other:
                    function = other


def _receive(link: Connection, messages: "SimpleQueue[bytes | None]") -> None:
    """Take what the load sends while this process works: the load reads no outcome before its item is taken."""
    try:
        with suppress(EOFError, OSError):
            while True:
                messages.put(link.recv_bytes())
    finally:
        # Also if there is no memory for an item: the process ends then.
        messages.put(None)


def _end_with_the_load() -> None:
    """End this process if the load is killed: it may wait for the database, and hold locks."""
    if (load := multiprocessing.parent_process()) is not None:
        load.join()
        os._exit(1)


def keep_pandas_out() -> None:
    """Keep pyarrow from importing pandas, which takes 0.2 s in each process.

    pyarrow tries to import it when it converts its first list and its first array of numpy, and remembers the result.
    After that, it no longer knows the nulls of pandas. So this is only for a process in which no other code runs.
    """
    # The load itself would wait for these before it starts the process to fork from.
    import numpy as np
    import pyarrow as pa

    finder = _NotFound()
    sys.meta_path.insert(0, finder)
    try:
        pa.array([])
        pa.array(np.zeros(0))
    finally:
        sys.meta_path.remove(finder)


class _NotFound(MetaPathFinder):
    def find_spec(self, name: str, *_: object) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name=name)
