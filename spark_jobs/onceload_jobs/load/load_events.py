"""The events of one load: that it starts, what it plans, and how it ends."""

import logging
from typing import Any

from onceload_core.events import event
from onceload_core.names import Batch
from onceload_jobs.files.notes import Ignored
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.report import Report
from onceload_jobs.plan.plan import Plan


class LoadEvents:
    """Logs each event of a load once.

    Without new files and rows, they are at level debug: a consumer loads again and again.
    """

    def __init__(self, context: LoadContext) -> None:
        self._context = context
        self._of_load: dict[str, Any] = {"pipeline": context.declared.name, "batch": context.batch}
        self._is_started = False
        self._level = logging.DEBUG

    def planned(self, plan: Plan) -> None:
        found = {"files": len(plan.to_read), "bytes": sum(file.bytes for file in plan.to_read)}
        if not self._is_started:
            self._is_started = True
            self._level = logging.INFO if plan.to_read else logging.DEBUG
            event("load_started", level=self._level, **self._of_load, **found)
        event("work_planned", level=logging.DEBUG, **self._of_load, **found, done=plan.done, noted=len(plan.notes))

    def ended(self, report: Report) -> None:
        event(
            "load_ended",
            level=logging.INFO if report.records else self._level,
            **self._of_load,
            outcome=self._outcome(report),
            **_counted(report),
            noted=len({note.name for note in report.notes}),
            seconds=round(report.seconds, 3),
            **{f"{phase}_s": round(seconds, 3) for phase, seconds in report.seconds_of.items()},
        )
        log_ignored(report.ignored, **self._of_load)

    def _outcome(self, report: Report) -> str:
        if report.staged is not None:
            return "staged"
        if self._context.is_stopped:
            return "stopped"
        return "loaded" if report.records else "nothing_loaded"

    def failed(self, error: BaseException) -> None:
        # The message may repeat values, such as those of a failed audit.
        event("load_ended", **self._of_load, outcome="failed", reason=type(error).__name__)


def _counted(report: Report) -> dict[str, int]:
    """The rows; and the quarantined records, which `batch_staged` has counted for a batch that is only staged."""
    if report.staged is not None:
        return {"rows": report.staged}
    return {"rows": report.loaded, "quarantined": report.quarantined}


def log_ignored(ignored: Ignored, *, pipeline: str, batch: Batch) -> None:
    if ignored.fields:
        event("fields_ignored", pipeline=pipeline, batch=batch, fields=str(ignored))
