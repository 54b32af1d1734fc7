"""Worker processes, and how a test talks to them.

`python -m tests.fault.nursery` holds the imports, which take longer than a run, and forks a worker for each socket
that it is handed.
"""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from onceload_core.errors import OnceloadError
from tests.fault.worker import Finished, Halt, Order, Reached, Refused, live
from tests.waiting import PATIENCE_S


class NotAsPlanned(AssertionError):
    """A worker did something else than its order says, so that the run proves nothing."""


class RunningWorker:
    """A worker process, its output until now, and the signals that it may get."""

    def __init__(self, conversation: Connection, order: Order) -> None:
        self._conversation = conversation
        self._is_gone = False
        self._pid = self._hear()
        self._conversation.send(order)
        self.refusals: list[OnceloadError] = []
        self.is_finished = False

    def wait_for(self, halt: Halt) -> None:
        """Until it stops there for permission."""
        while (word := self._next()) is not None:
            if isinstance(word, Reached) and (word.chunk, word.step) == (halt.chunk, halt.step):
                return
        raise NotAsPlanned(f"the worker ended before {halt}: {self.refusals or 'it finished'}")

    def wait_for_refusal(self) -> OnceloadError | None:
        """The next refusal, or none if it ends without one."""
        already = len(self.refusals)
        while len(self.refusals) == already and self._next() is not None:
            pass
        return self.refusals[-1] if len(self.refusals) > already else None

    def wait_for_end(self) -> None:
        while self._next() is not None:
            pass

    def go_on(self) -> None:
        self._conversation.send("go on")

    def pause(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    def wake(self) -> None:
        os.kill(self._pid, signal.SIGCONT)

    def kill(self) -> None:
        """End it without a last word, and wait until it is gone."""
        # Once it is gone, its number may be that of another process.
        if not self._is_gone:
            with suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self.wait_for_end()

    def close(self) -> None:
        self.kill()
        self._conversation.close()

    def _next(self) -> object:
        """The next word, or none once the worker is gone."""
        try:
            word = self._hear()
        except (EOFError, ConnectionResetError):
            self._is_gone = True
            return None
        if isinstance(word, Refused):
            self.refusals.append(word.error)
        self.is_finished = isinstance(word, Finished)
        return word

    def _hear(self) -> Any:
        if not self._conversation.poll(PATIENCE_S):
            raise NotAsPlanned(f"a worker said nothing for {PATIENCE_S} s")
        return self._conversation.recv()


class Nursery:
    """Starts workers; safe to share between threads."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders
        self._one_at_a_time = threading.Lock()

    @contextmanager
    def worker(self, order: Order) -> Iterator[RunningWorker]:
        """A worker that is gone when the block ends, however it ends."""
        ours, theirs = socket.socketpair()
        with theirs, self._one_at_a_time:
            socket.send_fds(self._orders, [b"."], [theirs.fileno()])
        running = RunningWorker(Connection(ours.detach()), order)
        try:
            yield running
        finally:
            running.close()


@contextmanager
def nursery() -> Iterator[Nursery]:
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "tests.fault.nursery", str(theirs.fileno())]
    root = Path(__file__).resolve().parents[2]
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=root) as process:
        theirs.close()
        try:
            yield Nursery(ours)
        finally:
            ours.close()
            process.wait(timeout=PATIENCE_S)


def _fork_workers(orders: socket.socket) -> None:
    # The system buries the workers: this process does not wait for them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        word, handed, _, _ = socket.recv_fds(orders, 1, 1)
        if not word:
            return
        if os.fork() == 0:
            orders.close()
            live(Connection(handed[0]))
            os._exit(0)
        os.close(handed[0])


if __name__ == "__main__":
    _fork_workers(socket.socket(fileno=int(sys.argv[1])))
