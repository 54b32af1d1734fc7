"""Keep the program that calls a load as it was, and keep its errors out of the load."""

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
    """The same callback. Its first error is logged, and then it is not called any more: the load goes on."""
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
            log.exception("on_progress failed, and is not called any more; the load goes on")

    return report


class _Main:
    """The main module of this program, which a load hides for the moment in which it starts a process.

    Two loads in two threads may each hide what the other has put in its place. So the last one restores it.
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
