"""A reader that looks all the time, each time in one view of the database, whatever is going on."""

import threading
from typing import Self

import psycopg2
import psycopg2.extensions
from psycopg2.extensions import ISOLATION_LEVEL_REPEATABLE_READ

from tests.fault.laws import Place, violations_in_view
from tests.waiting import PATIENCE_S

_PACE_S = 0.03


class Observer:
    """Polls in a thread of its own, and remembers each violation that it has seen of the place it watches."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._ends = threading.Event()
        self._changed = threading.Condition()
        self._watched: Place | None = None
        self._violations: list[str] = []
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.polls = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(timeout=PATIENCE_S)

    def watch(self, place: Place | None) -> tuple[str, ...]:
        """Turn to another place; answers with what was seen of the one before."""
        with self._changed:
            if self._failure:
                raise self._failure
            seen, self._violations = self._violations, []
            self._watched = place
        return tuple(dict.fromkeys(seen))

    def wait_for_a_poll(self) -> None:
        """Until one more look was taken at the place that is watched."""
        with self._changed:
            already = self.polls
            looked = self._changed.wait_for(
                lambda: self.polls > already or self._failure is not None, timeout=PATIENCE_S
            )
        assert looked, "the reader does not get through"

    def _poll(self) -> None:
        while not self._ends.wait(_PACE_S):
            connection = None
            try:
                connection = psycopg2.connect(self._dsn, application_name="observer")
                self._poll_through(connection)
            except psycopg2.Error as error:
                # Now and then the server goes or is down (without an answer there is no code), as part of the test.
                if not (error.pgcode or "57P").startswith("57P"):
                    self._fail(error)
                    return
            finally:
                if connection:
                    connection.close()

    def _poll_through(self, connection: psycopg2.extensions.connection) -> None:
        connection.set_session(isolation_level=ISOLATION_LEVEL_REPEATABLE_READ, readonly=True)
        while not self._ends.wait(_PACE_S):
            with self._changed:
                if self._watched:
                    self._violations += violations_in_view(connection, self._watched)
                    self.polls += 1
                    self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()
