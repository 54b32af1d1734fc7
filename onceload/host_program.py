"""Protect the program that calls a load from its side effects, and the load from errors of that program."""

import logging
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Arrow takes a while to import.
    from onceload_jobs.work.progress import OnProgress, Progress, Waiting

log = logging.getLogger(__name__)


def guarded(on_progress: "OnProgress | None") -> "OnProgress | None":
    """The same callback. Its first error is logged and ends the calls, but not the load."""
    if on_progress is None:
        return None
    has_failed = threading.Event()

    def report(progress: "Progress | Waiting") -> None:
        if has_failed.is_set():
            return
        try:
            on_progress(progress)
        except OSError:
            # The load ignores it: what shows the progress may be gone.
            raise
        except Exception:
            has_failed.set()
            log.exception("on_progress raised an error and is not called again; the load continues")

    return report


class _Main:
    """The main module of this program. A load hides it while it starts a process.

    If two loads in two threads do this at once, one of them may find the stand-in of the other. So the last one
    restores the module.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loads = 0
        self._main: ModuleType | None = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        with self._lock:
            if not self._loads:
                self._main = sys.modules["__main__"]
            self._loads += 1
        try:
            yield
        finally:
            with self._lock:
                self._loads -= 1
                if not self._loads and self._main is not None:
                    sys.modules["__main__"] = self._main


main_kept = _Main().kept
