"""Threads that take their steps in a given order, as the sessions of Postgres' isolationtester do.

An actor stops at a gate before each of its steps. The stage opens one gate after the other and goes on once no
actor moves any more: each is at a gate, is finished, or waits for a lock that another one holds. Such a step is
left waiting; it completes when the lock is free, and the steps of its actor that came due meanwhile follow it.
Whether an actor waits for a lock is asked of Postgres itself, never guessed from the time that it takes.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from threading import Condition
from time import monotonic

from sqlalchemy import Engine, text

from tests.waiting import PATIENCE_S

Work = Callable[[], object]

#: What a step usually takes; after this, Postgres is asked whether it waits.
_USUAL_S = 0.001
_WAITING = text(
    "SELECT count(*) FROM unnest(CAST(:backends AS integer[])) AS backend WHERE pg_blocking_pids(backend) <> '{}'"
)


class NeverAtRest(AssertionError):
    """A step that neither ends nor waits for a lock, or a gate that is not opened."""


class Actor:
    """One thread at its gates; `backend` is the server process that works for it."""

    def __init__(self, changed: Condition, *, backend: int) -> None:
        self.backend = backend
        self._changed = changed
        self._steps_due = 0
        self._steps_begun = 0
        self._moving = False
        self._finished = False

    @property
    def at_rest(self) -> bool:
        return self._finished or not (self._moving or self._steps_begun < self._steps_due)

    def gate(self) -> None:
        """Stop here until the next step is due."""
        with self._changed:
            self._moving = False
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._steps_begun < self._steps_due, timeout=PATIENCE_S):
                raise NeverAtRest("a gate that was not opened")
            self._steps_begun += 1
            self._moving = True

    def open_gates(self, count: int = 1) -> None:
        with self._changed:
            self._steps_due += count
            self._changed.notify_all()

    def play(self, work: Work) -> object:
        """Do the work behind a first gate; a step that comes due after its end does nothing."""
        try:
            self.gate()
            return work()
        finally:
            with self._changed:
                self._finished = True
                self._changed.notify_all()


class Stage:
    """Where actors play one order after another; `waits` counts how often each waited for a lock."""

    def __init__(self, engine: Engine) -> None:
        self.changed = Condition()
        self.waits: Counter[str] = Counter()
        self._observer = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        self._threads = ThreadPoolExecutor()

    def close(self) -> None:
        self._threads.shutdown()
        self._observer.close()

    def play(self, order: Iterable[str], cast: Mapping[str, tuple[Actor, Work]]) -> dict[str, object]:
        """What became of each work, an error included, when the steps come due in this order."""
        actors = {name: actor for name, (actor, _) in cast.items()}
        with self._playing(cast) as results:
            for name in order:
                actors[name].open_gates()
                self.waits.update(self._settle(actors))
        return {name: result.exception() or result.result() for name, result in results.items()}

    @contextmanager
    def _playing(self, cast: Mapping[str, tuple[Actor, Work]]) -> Iterator[dict[str, Future[object]]]:
        """Threads that end with the block, however it ends."""
        results = {name: self._threads.submit(actor.play, work) for name, (actor, work) in cast.items()}
        try:
            yield results
        finally:
            for actor, _ in cast.values():
                actor.open_gates(1_000_000)
            for result in results.values():
                result.exception(timeout=PATIENCE_S)

    def _settle(self, actors: Mapping[str, Actor]) -> list[str]:
        """Return once no actor moves, with the names of those that wait for a lock."""
        end = monotonic() + PATIENCE_S
        waiting: list[str] = []
        while monotonic() < end:
            with self.changed:
                others = [actor for name, actor in actors.items() if name not in waiting]
                self.changed.wait_for(partial(_all_at_rest, others), timeout=_USUAL_S)
                moving = [name for name, actor in actors.items() if not actor.at_rest]
            # An actor at rest stays so until the next gate is opened: what holds a lock now, keeps it.
            if self._all_wait([actors[name].backend for name in moving]):
                return moving
            waiting = moving
        raise NeverAtRest(f"{', '.join(waiting)}: a step that neither ends nor waits for a lock")

    def _all_wait(self, backends: list[int]) -> bool:
        if not backends:
            return True
        return bool(self._observer.execute(_WAITING, {"backends": backends}).scalar_one() == len(backends))


def _all_at_rest(actors: Iterable[Actor]) -> bool:
    return all(actor.at_rest for actor in actors)
