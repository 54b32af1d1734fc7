"""An executor in this process: for a consumer, which is one process and stays one, and for programs that want one."""

from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from typing import Any

from onceload_jobs.executor.executor import Outcome, called


class InProcessExecutor:
    """Calls the function itself."""

    slots = 1

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        for number, item in enumerate(items):
            # What the function sets for its process does not stay here.
            yield number, copy_context().run(called, function, item)

    def close(self) -> None:
        pass


IN_PROCESS = InProcessExecutor()
