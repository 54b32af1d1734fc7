"""What has to wait because it must not overtake what cannot be read."""

from ast import literal_eval
from collections.abc import Container, Iterable, Iterator, Mapping

from dedup_core.ports import Outlook
from dedup_core.verdicts import Order
from spark_jobs.files.listing import Listed, Listing
from spark_jobs.files.notes import Note
from spark_jobs.formats.records import LastLineOpen
from spark_jobs.pipeline.declared import Declared
from spark_jobs.plan.known import told_dead
from spark_jobs.plan.rest import FileToRead


def waiting_for_runs(found: Mapping[Listed, FileToRead | Note | None], outlook: Outlook) -> dict[Listed, Note]:
    """What another run has read decides what is new: as its copy, or because what comes first takes effect."""
    to_read = (listed for listed, file in found.items() if isinstance(file, FileToRead))
    if outlook.set_aside:
        name, dead = next(iter(outlook.set_aside.items()))
        reason = f"what is new here depends on {name}, of which {told_dead(dead)}"
        return {listed: Note(name=listed.name, reason=reason, needs_a_person=True) for listed in to_read}
    reason = (
        "which records of this file are new depends on what another run is loading, so nothing of it is planned until "
        "that run has ended: one load after the other"
    )
    return {listed: Note(name=listed.name, reason=reason, is_busy=True, has_more=True) for listed in to_read}


def waiting_behind(
    declared: Declared,
    listing: Listing,
    found: Mapping[Listed, FileToRead | Note | None],
    *,
    copies: Container[Listed],
) -> dict[Listed, Note]:
    """The files that would overtake one which is not read whole: they wait.

    A copy under way of a file that sorts after it does not count: each of the two would wait for the other.
    """
    not_whole = [listed.name for listed, file in found.items() if listed not in copies and _is_not_whole(file)]
    # The listing names these as Python writes a text. What it refuses holds no records of its own.
    not_whole += [str(literal_eval(name)) for name, _ in (*listing.unreadable, *listing.misnamed)]
    if not not_whole:
        return {}
    first = min(not_whole)
    return {
        listed: waits_for(declared, listed.name, first if first.isprintable() else repr(first))
        for listed, file in found.items()
        if isinstance(file, FileToRead) and file.spans and listed.name > first
    }


def _is_not_whole(file: FileToRead | Note | None) -> bool:
    """Whether a part of a file is missing, as far as a plan can tell."""
    if isinstance(file, FileToRead):
        end = file.spans[-1][1] if file.spans else None
        return end is not None and end < file.listed.size
    return isinstance(file, Note)


def open_ends(found: Iterable[FileToRead | Note | None]) -> Iterator[Note]:
    """What is planned of a file may leave its last line out; of some, only reading tells."""
    for file in found:
        if isinstance(file, FileToRead) and _is_not_whole(file) and file.spans[-1][1] is not None:
            yield Note(name=file.listed.name, reason=str(LastLineOpen(file.listed.size - file.spans[-1][1])))


def waits_for(declared: Declared, name: str, other: str) -> Note:
    """Why a file waits that would overtake another one."""
    if declared.producer is not None and declared.producer.order is Order.ORDERED:
        setting, lost = "producer.order: ordered", "the missing records would count as duplicates"
    else:
        setting, lost = "delivery.mode: ordered", "its records would take effect before the missing ones"
    reason = f"waits for {other}, which is not completely read. If this file were loaded first, {lost} ({setting})"
    what_to_do = f"Complete or repair {other}, and load again. To continue without its missing records, remove it first"
    return Note(name=name, reason=f"{reason}. Nothing new of this file is loaded. {what_to_do}")
