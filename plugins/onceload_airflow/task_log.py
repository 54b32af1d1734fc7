"""What a load reports while it runs, in the log of its task."""

import logging
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from onceload.loads_in_words import Words, progress_in_words
from onceload_core.events import LEVELS, LOGGER, level_of

if TYPE_CHECKING:
    from onceload import Progress, Waiting

_LINE_EVERY_S = 10.0


def show_events() -> None:
    """Let events pass to the handlers of Airflow, from level info on unless ONCELOAD_LOG sets another one."""
    logging.getLogger(LOGGER).setLevel(LEVELS[level_of(os.environ, default="info")])


def progress_lines(show: Words, pipeline: str) -> "Callable[[Progress | Waiting], None]":
    """A line of progress from time to time."""
    shown_at = time.monotonic()

    def report(progress: "Progress | Waiting") -> None:
        nonlocal shown_at
        if time.monotonic() - shown_at >= _LINE_EVERY_S:
            shown_at = time.monotonic()
            show(progress_in_words(pipeline, progress))

    return report
