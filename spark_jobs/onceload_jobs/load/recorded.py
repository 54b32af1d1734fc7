"""Each load records that it has begun, how it ended, and which files it left."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import ExitCode, OnceloadError, SessionFenced
from onceload_core.names import Batch
from onceload_core.pause import PipelinePaused
from onceload_core.postgres.attempts import Ended, begin, end, keep, withdraw
from onceload_jobs.files.notes import Note, code_of
from onceload_jobs.load.report import Report
from onceload_jobs.plan.plan import Plan


@dataclass
class Recorded:
    """The facts about a load that is running."""

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


@contextmanager
def recorded(engine: Engine, pipeline: str, batch: Batch, *, is_whole: bool) -> Iterator[Recorded]:
    """Record a load that runs in the block."""
    begun_at = begin(engine, pipeline, batch)
    load = Recorded()
    try:
        yield load
    except (PipelinePaused, SessionFenced):
        # The pause is known, and the run that took over records its own end.
        withdraw(engine, pipeline, batch)
        raise
    except BaseException as error:
        ended = Ended(
            exit_code=_code_of(error),
            reason=_reason_of(error),
            left=load.left,
            has_files=load.has_files,
            is_whole=is_whole,
        )
        end(engine, pipeline, batch, ended, begun_at=begun_at)
        raise
    if load.report.staged is not None:
        # Nothing takes effect before the batch is published.
        if is_whole and load.left is not None:
            keep(engine, pipeline, batch, left=load.left)
        else:
            withdraw(engine, pipeline, batch)
        return
    code = load.report.exit_code
    reason = _reason_of_notes(code, load.report.notes)
    ended = Ended(exit_code=code, reason=reason, left=load.left, has_files=load.has_files, is_whole=is_whole)
    end(engine, pipeline, batch, ended, begun_at=begun_at)


def ended_by(plan: Plan, *, is_whole: bool) -> Ended:
    """How a run ends that finds nothing to load."""
    code = code_of(plan.notes, is_idle=True)
    left = plan.waiting | plan.left_by(plan.notes)
    reason = _reason_of_notes(code, plan.notes)
    return Ended(exit_code=code, reason=reason, left=left, has_files=plan.has_files, is_whole=is_whole)


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
