"""Progress and result messages of a load."""

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

from onceload.commands.arguments import Arguments
from onceload.loads_in_words import progress_in_words, show_report
from onceload.terminal import is_watched, renewed_line, words
from onceload_core.pause import Pause

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.load.report import Report
    from onceload_jobs.work.progress import OnProgress


def print_report(report: "Report", *, then: str = "") -> None:
    show_report(report, words, then=then)


def print_pause(pipeline: str, pause: Pause | None) -> None:
    if pause is not None:
        words(f"pipeline {pipeline} is {pause}; no load runs until `onceload resume {quote(pipeline)}`")


@contextmanager
def watching(pipeline: str, arguments: Arguments) -> "Iterator[OnProgress | None]":
    """Show the progress of a load, unless a program reads the JSON."""
    if arguments.json and not is_watched():
        yield None
        return
    with renewed_line() as show:
        yield lambda progress: show(progress_in_words(pipeline, progress))
