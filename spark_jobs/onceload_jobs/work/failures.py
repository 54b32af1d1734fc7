"""Failures of the tasks that sessions run in."""

from dataclasses import dataclass

from sqlalchemy.exc import DBAPIError

from onceload_core.errors import CallAgain, DeliveryTakenAway, ExitCode, OnceloadError, SessionFenced, WrongUse
from onceload_core.pause import PipelinePaused
from onceload_core.postgres.connection import first_line
from onceload_jobs.batch.stage import StageLost
from onceload_jobs.batch.stage_folder import NoRoom
from onceload_jobs.executor.executor import Died, Failure

#: How often a task may fail by no fault of a delivery. A delivery that kills its worker uses up its own tries as well.
FAILURES_MAX = 4


@dataclass(eq=False)
class TasksFailed(CallAgain):
    """A task used up its tries: a lost executor, no memory, a process that dies again and again."""

    pipeline: str
    reason: str

    def __str__(self) -> str:
        return f"pipeline {self.pipeline}: {self.reason}. Committed rows stay loaded. Run the same command again."


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


@dataclass(eq=False)
class SparkUnreachable(CallAgain):
    """The Spark Connect server of a command does not answer, or refuses it."""

    pipeline: str
    address: str
    reason: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: Spark at {self.address} does not answer: {self.reason}. This call loaded "
            "nothing. Check the server (one of this machine with `onceload spark status`), and run the same command "
            "again. With --engine local, processes of this machine work instead."
        )


@dataclass(eq=False)
class QueryOutdated(CallAgain):
    """A file no longer holds what a query of Spark planned to read of it."""

    pipeline: str
    file: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: {self.file} was rewritten after this query had planned what to read of it. The "
            "query has no result, and nothing was loaded. Call load() of spark.read.format('onceload') again, and use "
            "the new DataFrame."
        )


def ends_all(error: Exception) -> bool:
    """Whether the other tasks would fail as well, or work for nothing."""
    if not isinstance(error, OnceloadError):
        return False
    is_final = error.exit_code in (ExitCode.WRONG_USE, ExitCode.NEEDS_A_PERSON)
    return is_final or isinstance(error, SessionFenced | DeliveryTakenAway | PipelinePaused | StageLost | NoRoom)


def reason_of(error: Exception) -> str:
    """The error message, without the values that the driver repeats."""
    if isinstance(error, OnceloadError):
        return str(error)
    message = first_line(error) if isinstance(error, DBAPIError) else str(error)
    return f"{type(error).__name__}: {message}"


def why_failed(failure: Failure, *, doing: str) -> str:
    """Why a task failed, or that its process died while it was doing this."""
    return f"while it {doing}, {failure.reason}" if isinstance(failure, Died) else reason_of(failure.error)
