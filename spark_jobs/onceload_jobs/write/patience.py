"""Wait for a server that is away or busy."""

import time
from collections.abc import Callable
from typing import TypeVar

from onceload_core.errors import DatabaseLost, OnceloadError, PipelineBusy

Answer = TypeVar("Answer")
#: How long a task retries while a database restarts.
_PATIENCE_S = 120.0
_PAUSE_S = (0.1, 5.0)


class Patience:
    """Waits longer each time, and raises the last error when its time is over."""

    def __init__(self) -> None:
        self._until = time.monotonic() + _PATIENCE_S
        self._pause_s = _PAUSE_S[0]

    def wait(self, error: OnceloadError) -> None:
        if time.monotonic() >= self._until:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_S[1])

    def until_answered(self, ask: Callable[[], Answer]) -> Answer:
        while True:
            try:
                return ask()
            except (DatabaseLost, PipelineBusy) as error:
                self.wait(error)


def until_answered(ask: Callable[[], Answer]) -> Answer:
    """Call until the database answers; the call must be safe to repeat."""
    return Patience().until_answered(ask)
