"""Processes for local sessions: forked from one that imports what they need while the load still plans."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from types import ModuleType

PROCESSES = multiprocessing.get_context("forkserver")


def import_early() -> None:
    """Start the process to fork from, and do not wait for it."""
    # pyarrow imports the second one with its first array of numpy.
    PROCESSES.set_forkserver_preload(["onceload_jobs.work.local.tasks", "numpy.ma"])
    forkserver.ensure_running()


def start(target: Callable[..., None], *arguments: object, name: str) -> BaseProcess:
    """Start a process; it ends with this one."""
    import_early()
    process = PROCESSES.Process(target=target, args=arguments, name=name, daemon=True)
    with _without_main():
        process.start()
    return process


@contextmanager
def _without_main() -> Iterator[None]:
    """Keep the new process from running the program that called us again, as an import that it does not need."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
