"""Wait for a server that is away or busy."""

import time
from collections.abc import Callable
from typing import TypeVar

from onceload_core.errors import DatabaseLost, OnceloadError, PipelineBusy

Answer = TypeVar("Answer")
#: How long a task retries while a database restarts.
_PATIENCE_S = 120.0
_PAUSE_S = (0.1, 5.0)
#: A batch may be read for hours between two errors, which then have nothing to do with each other.
_TROUBLES_MAX = 5


class Patience:
    """Waits longer each time, and raises the last error when its time is over. It begins with the first error."""

    def __init__(self) -> None:
        self._troubles = 0
        self._until = self._waited_at = float("-inf")
        self._pause_s = _PAUSE_S[0]

    def wait(self, error: OnceloadError) -> None:
        if time.monotonic() - self._waited_at >= _PATIENCE_S and self._troubles < _TROUBLES_MAX:
            self._troubles += 1
            self._until, self._pause_s = time.monotonic() + _PATIENCE_S, _PAUSE_S[0]
        if time.monotonic() >= self._until:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S[1])
        self._waited_at = time.monotonic()

    def until_answered(self, ask: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return ask()
            except (DatabaseLost, PipelineBusy) as error:
                self.wait(error)


def until_answered(ask: Callable[[], Answer]) -> Answer:
    """Call until the database answers; the call must be safe to repeat."""
    return Patience().until_answered(ask)
