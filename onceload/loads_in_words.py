"""Messages about loads, on a terminal or in the log of a task: their progress and their results."""

from collections.abc import Callable
from shlex import quote
from typing import TYPE_CHECKING, TypeAlias

from onceload.terminal import counted, size_in_words, time_in_words
from onceload_core.commands import PIPELINE_FILE

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.load.report import Report
    from onceload_jobs.recover.rebuild import Comparison, Rebuild
    from onceload_jobs.recover.retry import RetryReport
    from onceload_jobs.work.progress import Progress, Waiting

#: What takes each line.
Words: TypeAlias = Callable[[str], None]
_NAMES_SHOWN = 20


def progress_in_words(pipeline: str, progress: "Progress | Waiting") -> str:
    from onceload_jobs.work.progress import Waiting

    if isinstance(progress, Waiting):
        return f"pipeline {pipeline}: waiting for {progress.waits_for}"
    planned, left = progress.bytes_planned, progress.seconds_left
    of_all = "" if planned is None else f" of {size_in_words(planned)}"
    until_then = "" if left is None else f", {time_in_words(left)} left"
    speed = f"{progress.records_per_s:,} rows/s{until_then}"
    return f"pipeline {pipeline}: {size_in_words(progress.bytes)}{of_all}, {speed}"


def show_report(report: "Report", words: Words, *, then: str = "") -> None:
    """The lines of a load; of a batch that it has only staged, with what to do then."""
    if report.staged is not None:
        words(
            f"pipeline {report.pipeline}: {report.staged:,} rows are staged as batch {report.batch}, in"
            f" {report.seconds:.1f} s{then}"
        )
        show_ignored(report, words)
        return
    for note in report.notes:
        words(f"{note.name}: {note.reason}")
    show_ignored(report, words)
    engine = f", engine {report.engine}: {report.engine_why}" if report.engine else ""
    words(
        f"pipeline {report.pipeline}: {report.loaded:,} loaded, {report.duplicates:,} duplicates, "
        f"{report.quarantined:,} quarantined, {report.filtered:,} filtered; position {report.position}; "
        f"{report.seconds:.1f} s ({report.rows_per_s:,} rows/s{engine})"
    )
    if report.spark_ui is not None:
        words(f"its jobs in Spark: {report.spark_ui}")
    if report.replaced:
        old, files = sum(report.replaced.values()), counted(len(report.replaced), "file")
        words(f"old rows of {files} that were replaced, in the transaction that wrote the new ones: {old:,}")
    if report.quarantined:
        which = "every record" if report.quarantined == report.records else counted(report.quarantined, "record")
        pipeline = quote(report.pipeline)
        words(f"{which} of this load went to quarantine. Run `onceload quarantine list --pipeline {pipeline}`")


def show_ignored(report: "Report | RetryReport", words: Words) -> None:
    if report.ignored_fields:
        fix = "Declare them under columns to load them, or set unknown_fields: add"
        words(f"fields without a column were not loaded: {report.ignored}. {fix}")


def show_rebuild(done: "Rebuild", words: Words, *, remembers_ids: bool) -> None:
    report = done.report
    for note in report.notes:
        words(f"{note.name}: {note.reason}")
    words(
        f"pipeline {report.pipeline}: {report.loaded:,} loaded, {report.duplicates:,} duplicates, "
        f"{report.quarantined:,} quarantined, {report.filtered:,} filtered; position {report.position}"
    )
    if remembers_ids and report.duplicates:
        words(
            "business ids were compared across all files at once: records that repeat an id after its window are "
            "counted as duplicates here, although the old database loaded them"
        )
    if done.comparison is None:
        words("the result was not compared; use --snapshot FILE to compare it with an exported snapshot")
    else:
        _show_comparison(done.comparison, words)


def _show_comparison(found: "Comparison", words: Words) -> None:
    words(
        f"compared with the snapshot at position {found.snapshot_position}: {found.same:,} producers are the same, "
        f"{len(found.ahead):,} are ahead or new, {len(found.different):,} lack records or were rewritten"
    )
    for each in found.different[:_NAMES_SHOWN]:
        words(f"{each.producer} (generation {each.generation}): expected {each.expected}, found {each.found}")
    if len(found.different) > _NAMES_SHOWN:
        words(f"only the first {_NAMES_SHOWN} are shown; use --json to see all")
    if found.different:
        words(
            "loaded records stay loaded. Restore the missing or rewritten files, and run "
            f"`onceload load {PIPELINE_FILE}`"
        )
