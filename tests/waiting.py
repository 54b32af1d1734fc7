"""Waiting for a condition that other processes, threads or servers bring about."""

import os
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")

#: How long a test waits for what has to happen: ten minutes, which a slow and busy machine never needs.
#: Only a test that would hang gets to its end. Planted bugs make many tests hang, so their run sets less.
PATIENCE_S = float(os.environ.get("ONCELOAD_TEST_PATIENCE_S", "600"))


def until(
    holds: Callable[[], Found],
    what: str = "the condition holds",
    *,
    timeout_s: float = PATIENCE_S,
    every_s: float = 0.02,
    error: type[AssertionError] = AssertionError,
) -> Found:
    """Look again and again; return the first answer that is true, or fail with the last one."""
    ends = time.monotonic() + timeout_s
    while not (found := holds()):
        if time.monotonic() > ends:
            raise error(f"waited {timeout_s:g} s in vain until {what}: the last answer was {found!r}")
        time.sleep(every_s)
    return found
