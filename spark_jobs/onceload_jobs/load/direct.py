"""The direct road: each task commits its own chunk, rows and proof in one transaction.

A task that is tried again finds what an earlier try of it has committed, and commits the rest. The claim and the epoch
of the load fence the tasks of a load that is dead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from onceload_core.ports import Claim
from onceload_jobs.batch.job import Job
from onceload_jobs.executor.executor import Failed, map_all
from onceload_jobs.files.addresses import use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.offering import ClaimedWork
from onceload_jobs.load.phases import Phase
from onceload_jobs.load.sessions import Sessions
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.work.failures import ends_all
from onceload_jobs.work.load_delivery import load_delivery
from onceload_jobs.work.parts import Parts
from onceload_jobs.work.read_chunk import Part
from onceload_jobs.work.session import OF_NO_FILE


@dataclass(frozen=True, kw_only=True)
class Committing:
    """Everything that a task needs to commit its chunk; it is pickled and sent to it."""

    job: Job
    claim: Claim


def commit_chunk(committing: Committing, part: Part) -> list[Note]:
    """Read a part of a load, and commit it piece by piece."""
    job = replace(committing.job, is_redelivered=part.is_redelivered, is_last_try=part.is_last_try)
    use_access(job.access)
    delivery = Delivery(number=part.number, chunks=part.chunks, claim=committing.claim, is_kept=True)
    return load_delivery(job, delivery, by_file=part.is_redelivered and len(part.chunks) == 1)


def commit_chunks(context: LoadContext, sessions: Sessions, work: ClaimedWork) -> list[Note]:
    """Let the tasks of this load commit all that it has claimed."""
    # What a claim covers, its holder knows; a task need not.
    committing = Committing(job=sessions.prepared_job(), claim=replace(work.claim, spans={}))
    parts = Parts(work.bundles, tries_max=context.declared.delivery.deliveries_max)
    notes: list[Note] = []
    with context.stopwatch.during(Phase.STAGE), sessions.watching():
        first = map(parts.first_try, parts)
        commit = partial(commit_chunk, committing)
        for part, result in map_all(sessions.executor, commit, first, next_try=parts.next_try, ends_all=_ends_the_load):
            if isinstance(result, Failed):
                parts.give_up(part, result)
            else:
                notes += result
            if context.is_stopped:
                break
    context.set_aside(work.claim, parts.take_culprits())
    return list(_without_repeats(notes))


def _without_repeats(notes: Iterable[Note]) -> Iterator[Note]:
    """Each note once; of a file that needs a person, only the first: its other chunks mostly have the same fault."""
    told: set[str] = set()
    for note in dict.fromkeys(notes):
        if note.name not in told:
            yield note
        if note.needs_a_person:
            told.add(note.name)


def _ends_the_load(error: Exception) -> bool:
    return isinstance(error, OF_NO_FILE) or ends_all(error)
