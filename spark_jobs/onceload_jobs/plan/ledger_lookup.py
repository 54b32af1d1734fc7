"""What the ledger and the board know about files."""

import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC
from typing import Any, TypeAlias

from onceload_core.commands import PIPELINE_FILE
from onceload_core.delivery import Kept
from onceload_core.errors import NotFound
from onceload_core.names import DeliveryId, Position
from onceload_core.pipeline import Pipeline
from onceload_core.ports import KnownProducer, Ledger, Outlook
from onceload_jobs.files.notes import Note

#: The producers of the registered names.
KnownNames: TypeAlias = Mapping[str, KnownProducer]


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
    reason = f"{kept_reason(kept)}. Nothing new of this file is loaded until then"
    return Note(name=name, reason=reason, is_busy=True, is_kept=True)


def kept_reason(kept: Kept) -> str:
    """Which batch holds records that it has staged, until when, and how to end that."""
    until = f"{kept.until.astimezone(UTC):%Y-%m-%d %H:%M:%S}Z"
    batch = f"{PIPELINE_FILE} --batch={shlex.quote(kept.batch)}"
    return (
        f"batch {kept.batch} is staged but not published, and holds it until {until}. To publish it now, run `onceload "
        f"publish {batch}` (with a suite, first `onceload audit {batch}`). To discard the staged rows instead, run "
        f"`onceload publish {batch} --give-up`, and load again"
    )


def outlook_of(ledger: Ledger[Any], pipeline: str) -> Outlook:
    try:
        return ledger.outlook(pipeline)
    except NotFound:
        # Planned before the first load.
        return Outlook(position=Position(0), claimed=frozenset())


def find_known(ledger: Ledger[Any], pipeline: Pipeline, names: Sequence[str]) -> KnownNames:
    try:
        return ledger.find(pipeline.name, names, here=pipeline)
    except NotFound:
        # Planned before the first load: no file is known yet.
        return {}
