"""Keep a transaction alive that waits for workers.

The server ends a transaction that is idle for too long, so that a load that hangs holds no locks. A load that waits for
the next piece says now and then that it is there.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from sqlalchemy import Connection
from sqlalchemy.exc import SQLAlchemyError

from onceload_jobs.write.sql import run

#: Well below the time after which the server ends it.
_EVERY_S = 5.0


@dataclass
class KeptAlive:
    """A connection that two threads share: one writes, and the other only speaks while the first waits."""

    connection: Connection
    _alone: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def used(self) -> Iterator[Connection]:
        with self._alone:
            yield self.connection

    @contextmanager
    def while_it_waits(self) -> Iterator[None]:
        ended = threading.Event()
        speaking = threading.Thread(target=self._speak, args=(ended,), name="onceload keeps alive", daemon=True)
        speaking.start()
        try:
            yield
        finally:
            ended.set()
            speaking.join()

    def _speak(self, ended: threading.Event) -> None:
        # The one that writes meets the same error.
        with suppress(SQLAlchemyError):
            while not ended.wait(_EVERY_S):
                with self._alone:
                    run(self.connection, "SELECT")
