"""Sessions as functions of an executor: each takes deliveries from the board until it can get no more."""

from collections.abc import Sequence
from functools import partial

from onceload_core.names import SessionName
from onceload_jobs.batch.job import Job
from onceload_jobs.executor.executor import Died, Executor, Failed, Failure, Raised, map_all
from onceload_jobs.files.notes import Note
from onceload_jobs.work.failures import FAILURES_MAX, TasksFailed, ends_all
from onceload_jobs.work.session import work_session


def run_sessions(executor: Executor, job: Job, names: Sequence[SessionName]) -> list[Note]:
    """Let each session work, another process instead of one that dies; returns what could not be read."""
    # A delivery that kills its worker uses up its own tries as well.
    tries_max = FAILURES_MAX + job.declared.delivery.deliveries_max

    def next_try(name: SessionName, failures: Sequence[Failure]) -> Sequence[SessionName]:
        return [name] if isinstance(failures[-1], Died) and len(failures) < tries_max else ()

    notes: list[Note] = []
    errors: list[Exception] = []
    work = partial(work_session, job)
    for name, result in map_all(executor, work, names, next_try=next_try, ends_all=ends_all):
        if isinstance(result, Failed):
            # The other sessions may load the rest.
            errors.append(_error_of(job, name, result))
        else:
            notes += result
    if errors:
        raise errors[0]
    # Repeated reads repeat their notes.
    return list(dict.fromkeys(notes))


def _error_of(job: Job, name: SessionName, failed: Failed) -> Exception:
    match failed.failures[-1]:
        case Raised(error):
            return error
        case Died(reason):
            why = f"the process of session {name} died {len(failed.failures)} times ({reason})"
            return TasksFailed(job.declared.name, why)
