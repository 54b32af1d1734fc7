"""Failures of the tasks that sessions run in."""

from dataclasses import dataclass

from onceload_core.errors import CallAgain, DeliveryTakenAway, ExitCode, OnceloadError, SessionFenced, WrongUse
from onceload_core.pause import PipelinePaused
from onceload_jobs.batch.stage import StageLost

#: How often a task may fail by no fault of a delivery. A delivery that kills its worker uses up its own tries as well.
FAILURES_MAX = 4


@dataclass(eq=False)
class TasksFailed(CallAgain):
    """A task used up its tries: a lost executor, no memory, a process that dies again and again."""

    pipeline: str
    reason: str

    def __str__(self) -> str:
        return f"pipeline {self.pipeline}: {self.reason}. Committed rows stay loaded. Retry to load the rest."


@dataclass(eq=False)
class SparkRefused(WrongUse):
    """Spark does not start with this Java and these options. Local sessions may have committed rows meanwhile."""

    pipeline: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: Spark does not start: {self.reason}. Committed rows stay loaded. Check Java "
            "with `onceload doctor`, and the options --master and --conf. Then run the same command again."
        )


def ends_all(error: Exception) -> bool:
    """Whether the other tasks would fail as well, or work for nothing."""
    if not isinstance(error, OnceloadError):
        return False
    is_final = error.exit_code in (ExitCode.WRONG_USE, ExitCode.NEEDS_A_PERSON)
    return is_final or isinstance(error, SessionFenced | DeliveryTakenAway | PipelinePaused | StageLost)
