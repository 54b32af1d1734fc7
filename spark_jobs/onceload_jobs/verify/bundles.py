"""Let an executor work on bundles, and name the item whose worker dies."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from onceload_jobs.executor.executor import Died, Executor, ExecutorFailed, Failed, Failure, map_all
from onceload_jobs.work.failures import TasksFailed

Item = TypeVar("Item")
Result = TypeVar("Result")

#: How often a worker may die with one item alone.
_TRIES_MAX = 3


@dataclass(frozen=True)
class Deadly:
    """Every worker died that read this."""

    reason: str


def over_bundles(
    executor: Executor,
    function: Callable[[tuple[Item, ...]], Result],
    bundles: Iterable[tuple[Item, ...]],
    *,
    pipeline: str,
) -> Iterator[tuple[tuple[Item, ...], Result | Deadly]]:
    """What the function returns for each bundle, as it comes. If a worker dies, its items are tried one by one."""
    try:
        for bundle, result in map_all(executor, function, bundles, next_try=_next_try, ends_all=_always):
            yield bundle, Deadly(_reason_of(result)) if isinstance(result, Failed) else result
    except ExecutorFailed as error:
        raise TasksFailed(pipeline, str(error)) from error


def _next_try(bundle: tuple[Item, ...], failures: Sequence[Failure]) -> Sequence[tuple[Item, ...]]:
    if len(bundle) > 1:
        return [(item,) for item in bundle]
    return [bundle] if len(failures) < _TRIES_MAX else ()


def _always(_: Exception) -> bool:
    """What a worker raises is not about its items: that is a result."""
    return True


def _reason_of(failed: Failed) -> str:
    last = failed.failures[-1]
    return f"while it was read, {last.reason}" if isinstance(last, Died) else str(last.error)
