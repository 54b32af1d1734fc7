"""Files that wait: another run, a staged batch or a dead letter holds them, or they must not overtake such a file."""

import shlex
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC

from onceload_core.commands import PIPELINE_FILE
from onceload_core.delivery import Kept
from onceload_core.names import DeliveryId
from onceload_core.ports import Outlook
from onceload_core.verdicts import Order
from onceload_jobs.files.listing import Listed, Listing
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import LastLineOpen
from onceload_jobs.pipeline.declared import Declared
from onceload_jobs.plan.to_read import FileToRead, Finding


def dead_letter_notes(outlook: Outlook) -> tuple[Note, ...]:
    """The files with a part in the dead letters."""
    return tuple(
        Note(name=name, reason=dead_letter_reason(dead), needs_a_person=True)
        for name, dead in outlook.dead_letters.items()
    )


def dead_letter_reason(dead: DeliveryId) -> str:
    return (
        f"a part of it became dead letter {dead}, because it failed as often as deliveries_max allows. That part"
        f" is not loaded. See `onceload deliveries show {dead}`, fix the cause, then"
        f" `onceload deliveries redeliver {dead}`"
    )


def held_note(name: str, outlook: Outlook) -> Note:
    """About a file that another run claims."""
    if (kept := outlook.kept.get(name)) is None:
        return Note(name=name, reason="another run is loading it", is_busy=True)
    reason = f"{_kept_reason(kept)}. Nothing new of this file is loaded until then"
    return Note(name=name, reason=reason, is_busy=True, is_kept=True)


def _kept_reason(kept: Kept) -> str:
    """Which batch holds records that it has staged, until when, and how to end that."""
    until = f"{kept.until.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    batch = f"{PIPELINE_FILE} --batch={shlex.quote(kept.batch)}"
    return (
        f"batch {kept.batch} is staged but not published, and holds it until {until}. To publish it now, run `onceload "
        f"publish {batch}` (with a suite, first `onceload audit {batch}`). To discard the staged rows instead, run "
        f"`onceload publish {batch} --give-up`, and load again"
    )


def waiting_for_runs(found: Mapping[Listed, Finding], outlook: Outlook) -> dict[Listed, Note]:
    """Files whose new records depend on another run: it may load a copy, or records that come first."""
    to_read = (listed for listed, file in found.items() if isinstance(file, FileToRead))
    if outlook.dead_letters:
        name, dead = next(iter(outlook.dead_letters.items()))
        why = f"which of its records are new depends on {name}: {dead_letter_reason(dead)}"
        reason = f"nothing new of this file is loaded, because {why}"
        return {listed: Note(name=listed.name, reason=reason, needs_a_person=True) for listed in to_read}
    if outlook.kept:
        name, kept = next(iter(outlook.kept.items()))
        reason = f"which records of this file are new depends on {name}: {_kept_reason(kept)}"
    else:
        reason = (
            "which records of this file are new depends on the records that another run is loading. Nothing of this "
            "file is planned until that run ends"
        )
    held = Note(name="", reason=reason, is_busy=True, is_kept=bool(outlook.kept), has_more=True)
    return {listed: replace(held, name=listed.name) for listed in to_read}


def waiting_behind(
    declared: Declared,
    listing: Listing,
    found: Mapping[Listed, Finding],
    *,
    copies: Container[Listed],
) -> dict[Listed, Note]:
    """The files that would overtake one that is not read completely: they wait.

    A copy in progress of a file that sorts after it does not count: each of the two would wait for the other.
    """
    not_whole = [listed.name for listed, file in found.items() if listed not in copies and _is_not_whole(file)]
    # Refused files hold no records of their own.
    not_whole += [name for name, _ in (*listing.unreadable, *listing.misnamed)]
    if not not_whole:
        return {}
    first = min(not_whole)
    return {
        listed: waits_for(declared, listed.name, first if first.isprintable() else repr(first))
        for listed, file in found.items()
        if isinstance(file, FileToRead) and file.spans and listed.name > first
    }


def _is_not_whole(file: Finding) -> bool:
    """Whether a part of a file is missing, as far as a plan can know."""
    if isinstance(file, FileToRead):
        end = file.spans[-1][1] if file.spans else None
        return end is not None and end < file.listed.size
    return isinstance(file, Note)


def open_ends(found: Iterable[Finding]) -> Iterator[Note]:
    """Files whose plan leaves out their last line; for some files only reading finds it."""
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
