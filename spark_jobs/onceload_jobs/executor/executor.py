"""What every executor does: it calls a function with each item, and hands back what came of it.

The function has no database, no lease and no state: it may run twice, at once or one after the other, and its process
may die at any point. Which item ended its process is known, and it takes nothing else with it.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

#: Between two tries: what cannot be read now may be readable later.
_PAUSE_S = (0.1, 5.0)


@dataclass(frozen=True)
class Done:
    """What the function returned."""

    result: Any


@dataclass(frozen=True)
class Raised:
    """What the function raised."""

    error: Exception


@dataclass(frozen=True)
class Died:
    """The process ended before the function did."""

    reason: str


Failure = Raised | Died
Outcome = Done | Failure


@dataclass(frozen=True)
class Failed:
    """An item without a result, and what each of its tries met."""

    failures: tuple[Failure, ...]


class ExecutorFailed(Exception):
    """No function can be called any more: the processes die whatever they do, or Spark is gone."""


class Executor(Protocol):
    """Where the function runs."""

    @property
    def slots(self) -> int:
        """How many items are worked on at once."""

    def each(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[tuple[int, Outcome]]:
        """Call the function with each item, and yield each outcome as it comes, with the number of its item."""

    def close(self) -> None:
        """End the processes."""


def called(function: Callable[[Item], Result], item: Item) -> Outcome:
    """What comes of a call."""
    try:
        return Done(function(item))
    except Exception as error:  # noqa: BLE001 - the load decides what it means.
        return Raised(error)


class InProcessExecutor:
    """Calls the function itself: for a consumer, which is one process and stays one, and for programs that want one."""

    slots = 1

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        for number, item in enumerate(items):
            # What the function sets for its process does not stay here.
            yield number, copy_context().run(called, function, item)

    def close(self) -> None:
        pass


IN_PROCESS = InProcessExecutor()


def map_all(
    executor: Executor,
    function: Callable[[Item], Result],
    items: Iterable[Item],
    *,
    next_try: Callable[[Item, Sequence[Failure]], Sequence[Item]],
    ends_all: Callable[[Exception], bool],
) -> Iterator[tuple[Item, Result | Failed]]:
    """The result of each item as it comes; what fails is tried again, as long as `next_try` returns something.

    An error that would end every item is raised at once.
    """
    left: list[tuple[Item, tuple[Failure, ...]]] = [(item, ()) for item in items]
    pause_s = _PAUSE_S[0]
    while left:
        again: list[tuple[Item, tuple[Failure, ...]]] = []
        for number, outcome in executor.each(function, [item for item, _ in left]):
            item, before = left[number]
            match outcome:
                case Done(result):
                    yield item, result
                case Raised(error) if ends_all(error):
                    raise error
                case Raised() | Died():
                    failures = (*before, outcome)
                    nexts = next_try(item, failures)
                    again += [(each, failures) for each in nexts]
                    if not nexts:
                        if isinstance(outcome, Died):
                            _check_lives(executor)
                        yield item, Failed(failures)
        if again:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_S[1])
        left = again


def _check_lives(executor: Executor) -> None:
    """Before an item is blamed for the end of a process, see that one lives which does nothing."""
    for _, outcome in executor.each(_do_nothing, [None]):
        if isinstance(outcome, Died):
            raise ExecutorFailed(f"the processes die without any work: {outcome.reason}")


def _do_nothing(_: None) -> None:
    pass
