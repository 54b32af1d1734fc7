"""The direct road: each task commits its own chunk, rows and proof in one transaction.

A task that is tried again finds what an earlier try of it has committed, and commits the rest. The claim and the epoch
of the load fence the tasks of a load that is dead.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

from onceload_jobs.files.notes import Note
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.offering import ClaimedWork
from onceload_jobs.load.report import Phase
from onceload_jobs.work.failures import ends_all
from onceload_jobs.work.load_delivery import commit_chunk
from onceload_jobs.work.parts import Parts
from onceload_jobs.work.session import OF_NO_FILE


def commit_chunks(context: LoadContext, work: ClaimedWork) -> list[Note]:
    """Let the tasks of this load commit all that it has claimed."""
    # What a claim covers, its holder knows; a task need not.
    commit = partial(commit_chunk, context.job, replace(work.claim, spans={}))
    parts = Parts(work.bundles, tries_max=context.declared.delivery.deliveries_max)
    notes: list[Note] = []
    with context.stopwatch.during(Phase.STAGE), context.watching_commits():
        for _, found in parts.results(context.executor, commit, parts.all, ends_all=_ends_the_load):
            notes += found
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
