"""The lag of the pipelines, measured often while someone looks, and seldom otherwise."""

import threading
import time

from onceload.console.access import Access
from onceload.lag import Behind
from onceload.terminal import words

_EVERY_S = 60.0
#: After this time without a request, the files are listed less often, for the chart of the longest waits.
_IDLE_S, _IDLE_EVERY_S = 600.0, 900.0
#: The first requests wait so long for the pipeline files to be read.
_FIRST_S = 2.0


class Watch:
    """Lists the files of all pipelines in the background, because a listing may take long."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._asked_at = 0.0
        self._first_until = 0.0
        self._is_running = False
        self._is_asked = threading.Event()
        self._stopped = threading.Event()
        self._has_read = threading.Event()
        self._behind: Behind | None = None

    def now(self) -> Behind | None:
        """The last listing; None if no pipeline file was read yet, or there is no folder of them."""
        if self._access.folder is None:
            return None
        with self._lock:
            self._asked_at = time.monotonic()
            self._is_asked.set()
            if not self._is_running:
                self._first_until = self._asked_at + _FIRST_S
                # A daemon, because the process may end during a long listing.
                threading.Thread(target=self._run, name="onceload console", daemon=True).start()
                self._is_running = True
        # Before that, a pipeline without commits is unknown.
        self._has_read.wait(max(0.0, self._first_until - time.monotonic()))
        return self._behind

    def stop(self) -> None:
        """List no more. A listing in progress ends in the background."""
        with self._lock:
            self._stopped.set()
            self._is_asked.set()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._look()
            except Exception as error:  # noqa: BLE001 - the next attempt may succeed, and the page shows the age.
                if not self._stopped.is_set():
                    words(f"the lag is unknown: {error}")
            finally:
                self._has_read.set()
            self._wait()

    def _wait(self) -> None:
        with self._lock:
            is_idle = time.monotonic() - self._asked_at > _IDLE_S
            if is_idle and not self._stopped.is_set():
                self._is_asked.clear()
        if is_idle:
            # The next request ends it.
            self._is_asked.wait(_IDLE_EVERY_S)
        else:
            self._stopped.wait(_EVERY_S)

    def _look(self) -> None:
        folder = self._access.folder
        if folder is None:
            return
        with self._access.opened() as engine:
            behind = self._behind or Behind(engine, folder, self._access.reaching)
            behind.engine, behind.folder = engine, folder
            # The result of one pipeline is shown while others are still listed.
            self._behind = behind
            wrong = behind.read()
            self._has_read.set()
            behind.measure(wrong)
