"""Progress and result messages of a load."""

from collections.abc import Iterator
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING

from onceload.commands.arguments import Arguments
from onceload.terminal import (
    counted,
    is_watched,
    renewed_line,
    size_in_words,
    time_in_words,
    words,
)
from onceload_core.pause import Pause

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.load.report import Report
    from onceload_jobs.recover.retry import RetryReport
    from onceload_jobs.work.progress import OnProgress, Progress, Waiting


def print_ignored(report: "Report | RetryReport") -> None:
    if report.ignored_fields:
        fix = "Declare them under columns to load them, or set unknown_fields: add"
        words(f"fields without a column were not loaded: {report.ignored}. {fix}")


def print_report(report: "Report") -> None:
    for note in report.notes:
        words(f"{note.name}: {note.reason}")
    print_ignored(report)
    engine = f", engine {report.engine}" if report.engine else ""
    words(
        f"pipeline {report.pipeline}: {report.loaded:,} loaded, {report.duplicates:,} duplicates, "
        f"{report.quarantined:,} quarantined, {report.filtered:,} filtered; position {report.position}; "
        f"{report.seconds:.1f} s ({report.rows_per_s:,} rows/s{engine})"
    )
    if report.replaced:
        old, files = sum(report.replaced.values()), counted(len(report.replaced), "file")
        words(f"old rows of {files} that were replaced, in the transaction that wrote the new ones: {old:,}")
    if report.quarantined:
        which = "every record" if report.quarantined == report.records else counted(report.quarantined, "record")
        pipeline = quote(report.pipeline)
        words(f"{which} of this load went to quarantine. Run `onceload quarantine list --pipeline {pipeline}`")


def print_staged(report: "Report", *, then: str) -> None:
    words(
        f"pipeline {report.pipeline}: {report.staged or 0:,} rows are staged as batch {report.batch}, in"
        f" {report.seconds:.1f} s{then}"
    )
    print_ignored(report)


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
        yield lambda progress: show(f"pipeline {pipeline}: {_progress(progress)}")


def _progress(progress: "Progress | Waiting") -> str:
    from onceload_jobs.work.progress import Waiting

    if isinstance(progress, Waiting):
        return f"waiting for {progress.waits_for}"
    planned, left = progress.bytes_planned, progress.seconds_left
    of_all = "" if planned is None else f" of {size_in_words(planned)}"
    until_then = "" if left is None else f", {time_in_words(left)} left"
    return f"{size_in_words(progress.bytes)}{of_all}, {progress.records_per_s:,} rows/s{until_then}"
