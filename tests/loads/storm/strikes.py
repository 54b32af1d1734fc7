"""How a loader is struck at a word that it says to the server."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
from sqlalchemy import Connection, Engine, event

from onceload_jobs.batch.stage_folder import BlockWriter
from tests.loads.storm.operations import Fault
from tests.servers import execute


class Killed(BaseException):
    """The process is dead: nothing catches this, and nothing is sent to the server afterwards."""


class TaskKilled(BaseException):
    """One try of a task is dead."""


@dataclass
class Strike:
    """Listens to what one loader says to the server, and strikes at the word that it was given."""

    fault: Fault | None
    at: int
    server_dsn: str
    #: What happens while it is stopped.
    stopped: Callable[[], None]
    counts_commits: bool = False
    in_task: bool = False
    is_in_task: bool = False
    #: A process of its own gets real signals.
    is_forked: bool = False
    is_done: bool = False
    _is_dead: bool = False
    _is_due: bool = False
    _heard: int = 0

    def hear(self, connection: Connection | None, *, is_commit: bool) -> None:
        if self._is_dead:
            raise Killed if self.fault is Fault.KILLED else TaskKilled
        if self.fault is None or self.is_done:
            return
        if self._is_meant(connection, is_commit=is_commit):
            self._heard += 1
            # Counted by commits, it comes behind one, where it holds no lock that others wait for.
            self._is_due |= self._heard > self.at
        if self._is_due and not (is_commit and self.counts_commits and self.fault is not Fault.UNANSWERED):
            self.is_done = True
            self._strike(self.fault, connection)

    def revive(self) -> None:
        """Another try of the task is alive."""
        self._is_dead = False

    def _is_meant(self, connection: Connection | None, *, is_commit: bool) -> bool:
        if self.in_task != self.is_in_task and self.fault is not Fault.KILLED:
            return False
        if connection is None and self.fault in (Fault.CUT, Fault.UNANSWERED):
            return False
        return is_commit or not (self.counts_commits or self.fault is Fault.UNANSWERED)

    def _strike(self, fault: Fault, connection: Connection | None) -> None:
        match fault:
            case Fault.TASK_KILLED if self.is_forked:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.STOPPED if self.is_forked:
                os.kill(os.getpid(), signal.SIGSTOP)
            case Fault.KILLED:
                self._is_dead = True
                raise Killed
            case Fault.TASK_KILLED:
                self._is_dead = True
                raise TaskKilled
            case Fault.STOPPED:
                self.stopped()
            case Fault.CUT:
                pid = _driver(connection).info.backend_pid
                execute(self.server_dsn, f"SELECT pg_terminate_backend({pid}, 10000)")
            case Fault.UNANSWERED:
                _driver(connection).commit()
                _driver(connection).close()


def _driver(connection: Connection | None) -> psycopg2.extensions.connection:
    assert connection is not None
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, psycopg2.extensions.connection)
    return driver


class _Struck(threading.local):
    strike: Strike | None = None


_STRUCK = _Struck()


@contextmanager
def struck(strike: Strike) -> Iterator[None]:
    """Let it be struck, in this thread, for as long as the block runs."""
    before, _STRUCK.strike = _STRUCK.strike, strike
    try:
        yield
    finally:
        _STRUCK.strike = before


def _say(connection: Connection, *_: object) -> None:
    if _STRUCK.strike:
        _STRUCK.strike.hear(connection, is_commit=False)


def _commit(connection: Connection) -> None:
    if _STRUCK.strike:
        _STRUCK.strike.hear(connection, is_commit=True)


def _write(writer: BlockWriter, *arguments: Any, **named: Any) -> None:
    """Rows that are written to the stage are to a worker what a commit is to others."""
    _WRITE(writer, *arguments, **named)
    if _STRUCK.strike:
        _STRUCK.strike.hear(None, is_commit=True)


_WRITE = BlockWriter.write


@contextmanager
def listening() -> Iterator[None]:
    if event.contains(Engine, "commit", _commit):
        # It is listening for all of this process already.
        yield
        return
    event.listen(Engine, "before_cursor_execute", _say)
    event.listen(Engine, "commit", _commit)
    BlockWriter.write = _write  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        BlockWriter.write = _WRITE  # type: ignore[method-assign]
        event.remove(Engine, "before_cursor_execute", _say)
        event.remove(Engine, "commit", _commit)
