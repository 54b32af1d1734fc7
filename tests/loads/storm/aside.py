"""A worker in a process of its own, which real signals kill and stop.

It is forked from a server that has no threads: a lock that some thread held when it was forked would be held forever.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from typing import Any

import psutil

from onceload_jobs.write import patience as loading
from tests.loads.storm.strikes import Strike, listening, struck

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload([__name__])
_LOOKS_EVERY_S = 0.01


@dataclass
class Aside:
    _process: ForkServerProcess
    _reader: "Connection[Any, Any]"

    @classmethod
    def started(cls, call: Callable[[], Any], strike: Strike) -> "Aside":
        reader, writer = _SERVER.Pipe(duplex=False)
        # What happens while it is stopped, happens here.
        there = replace(strike, stopped=_nothing, is_in_task=True, is_forked=True)
        process = _SERVER.Process(target=_work, args=(call, there, loading._PATIENCE_S, writer))
        process.start()
        writer.close()
        return cls(process, reader)

    def has_ended(self) -> bool:
        return bool(wait([self._process.sentinel], _LOOKS_EVERY_S))

    def is_stopped(self) -> bool:
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).status() == psutil.STATUS_STOPPED
        return False

    def go_on(self) -> None:
        assert self._process.pid
        os.kill(self._process.pid, signal.SIGCONT)

    def ended_with(self) -> Any:
        """How it ended; nothing, if it was killed."""
        self._process.join()
        with self._reader, suppress(EOFError):
            return self._reader.recv()
        return None


def _work(call: Callable[[], Any], strike: Strike, patience_s: float, writer: "Connection[Any, Any]") -> None:
    loading._PATIENCE_S = patience_s
    with listening(), struck(strike):
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - the caller raises it.
            result = error
    writer.send(result)


def _nothing() -> None:
    pass
