"""What a load records of itself: that it has begun, how it ended, and which files it left. It logs the same."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import ExitCode, OnceloadError, SessionFenced
from onceload_core.events import event
from onceload_core.names import Batch
from onceload_core.pause import PipelinePaused
from onceload_core.postgres.attempts import Ended, begin, end, keep, withdraw
from onceload_jobs.files.notes import Ignored, Note, code_of
from onceload_jobs.load.report import Report
from onceload_jobs.plan.plan import Plan


@dataclass(kw_only=True)
class Recorded:
    """The facts about a load that is running."""

    #: Whether it loads whatever its pipeline has.
    is_whole: bool
    #: The files that are not loaded yet, with the time when each was modified; None before the first plan.
    left: Mapping[str, float | None] | None = None
    has_files: bool = False
    report: Report = field(init=False)

    def planned(self, plan: Plan) -> None:
        self.left, self.has_files = plan.waiting | plan.left_by(plan.notes), plan.has_files

    def worked(self, plan: Plan, notes: Sequence[Note], *, claimed: frozenset[str]) -> None:
        """The load has worked on its last plan."""
        waiting = {name: at for name, at in plan.waiting.items() if name in claimed}
        self.left = waiting | plan.left_by(notes)

    def ended(self, code: ExitCode, reason: str) -> Ended:
        return Ended(exit_code=code, reason=reason, left=self.left, has_files=self.has_files, is_whole=self.is_whole)


@contextmanager
def recorded(engine: Engine, pipeline: str, batch: Batch, *, is_whole: bool) -> Iterator[Recorded]:
    """Record a load that runs in the block."""
    begun_at = begin(engine, pipeline, batch)
    load = Recorded(is_whole=is_whole)
    try:
        yield load
    except (PipelinePaused, SessionFenced):
        # The pause is known, and the run that took over records its own end.
        withdraw(engine, pipeline, batch)
        raise
    except BaseException as error:
        ended = load.ended(_code_of(error), _reason_of(error))
        end(engine, pipeline, batch, ended, begun_at=begun_at)
        raise
    if load.report.staged is None:
        code = load.report.exit_code
        ended = load.ended(code, _reason_of_notes(code, load.report.notes))
        end(engine, pipeline, batch, ended, begun_at=begun_at)
    elif is_whole and load.left is not None:
        # Nothing takes effect before the batch is published.
        keep(engine, pipeline, batch, left=load.left)
    else:
        withdraw(engine, pipeline, batch)


def ended_by(plan: Plan, *, is_whole: bool) -> Ended:
    """How a run ends that finds nothing to load."""
    load = Recorded(is_whole=is_whole)
    load.planned(plan)
    code = code_of(plan.notes, is_idle=True)
    return load.ended(code, _reason_of_notes(code, plan.notes))


def _code_of(error: BaseException) -> ExitCode:
    match error:
        case OnceloadError():
            return error.exit_code
        case DBAPIError():
            return ExitCode.WRONG_USE
        case _:
            return ExitCode.CALL_AGAIN


def _reason_of(error: BaseException) -> str:
    # The message may repeat values, such as those of a failed audit.
    return "it was interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__


def _reason_of_notes(code: ExitCode, notes: Sequence[Note]) -> str:
    if code is ExitCode.DONE:
        return ""
    # Their text may repeat values too.
    counts = {
        "cannot be loaded": sum(note.needs_a_person for note in notes),
        "could not be read": sum(note.is_unreadable and not note.needs_a_person for note in notes),
        "other loads hold": sum(note.is_busy and not note.needs_a_person for note in notes),
    }
    return ", ".join(f"files that {words}: {count:,}" for words, count in counts.items() if count)


class LoadEvents:
    """Logs each event of a load once.

    Without new files and rows, they are at level debug: a consumer loads again and again.
    """

    def __init__(self, pipeline: str, batch: Batch) -> None:
        self._of_load: dict[str, Any] = {"pipeline": pipeline, "batch": batch}
        self._is_started = False
        self._level = logging.DEBUG

    def planned(self, plan: Plan) -> None:
        found = {"files": len(plan.to_read), "bytes": sum(file.bytes for file in plan.to_read)}
        if not self._is_started:
            self._is_started = True
            self._level = logging.INFO if plan.to_read else logging.DEBUG
            event("load_started", level=self._level, **self._of_load, **found)
        event("work_planned", level=logging.DEBUG, **self._of_load, **found, done=plan.done, noted=len(plan.notes))

    def ended(self, report: Report, *, is_stopped: bool) -> None:
        # `batch_staged` has counted the quarantined records of a batch that is only staged.
        counted = {"rows": report.loaded, "quarantined": report.quarantined}
        outcome = "stopped" if is_stopped else "loaded" if report.records else "nothing_loaded"
        if report.staged is not None:
            outcome, counted = "staged", {"rows": report.staged}
        event(
            "load_ended",
            level=logging.INFO if report.records else self._level,
            **self._of_load,
            outcome=outcome,
            **counted,
            noted=len({note.name for note in report.notes}),
            seconds=round(report.seconds, 3),
            **{f"{phase}_s": round(seconds, 3) for phase, seconds in report.seconds_of.items()},
        )
        log_ignored(report.ignored, **self._of_load)

    def failed(self, error: BaseException) -> None:
        # The message may repeat values, such as those of a failed audit.
        event("load_ended", **self._of_load, outcome="failed", reason=type(error).__name__)


def log_ignored(ignored: Ignored, *, pipeline: str, batch: Batch) -> None:
    if ignored.fields:
        event("fields_ignored", pipeline=pipeline, batch=batch, fields=str(ignored))
