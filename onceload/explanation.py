"""Why a file is or is not loaded: its history in the database, and what the next load would do with it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from onceload_core.errors import NotFound
from onceload_core.pause import Pause
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.history import History, history_of, names_of
from onceload_core.postgres.pausing import find_pause

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.files.notes import Note
    from onceload_jobs.pipeline.declared import Declared
    from onceload_jobs.plan.to_read import FileToRead

_NAMES_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Everything about one file, and what the next load would do with it."""

    name: str
    is_there: bool
    history: History
    next_load: str
    needs_a_person: bool = False
    #: Before the pipeline is resumed, no load runs.
    pause: Pause | None = None


def explain(declared: "Declared", engine: Engine, asked: str) -> Explanation:
    """Explain a file, given by its name below the source's root or by its full path."""
    from onceload_jobs.files.listing import list_files
    from onceload_jobs.plan.plan import make_plan

    listing = list_files(declared.source.path, root=declared.source.root)
    there = {each.name for each in listing.files}
    name = asked if asked in there else _name_of(declared, asked)
    history = _history(declared, engine, name)
    plan = make_plan(declared, PostgresLedger(engine), now_s=time.time())
    own, note = _notes_on(name, plan.notes)
    if name not in there and note is None and not history.generations:
        raise NotFound("file", name, _near(name, [*there, *_known(declared, engine)]))
    to_read = next((each for each in plan.to_read if each.listed.name == name), None)
    return Explanation(
        name=name,
        is_there=name in there or own is not None,
        history=history,
        next_load=_next_load(to_read, note, is_there=name in there),
        needs_a_person=note is not None and note.needs_a_person,
        pause=find_pause(engine, declared.name),
    )


def _notes_on(name: str, notes: "Sequence[Note]") -> "tuple[Note | None, Note | None]":
    """The note on a file, and the one that explains it: its own, or that of a folder which was not read."""
    noted = {note.name: note for note in notes}
    # Notes on unreadable names carry the repr of the name.
    own = noted.get(name) or noted.get(repr(name))
    folders = (noted.get(repr(f"{folder}/")) for folder in PurePosixPath(name).parents)
    of_folder = next((replace(note, reason=f"{note.name}: {note.reason}") for note in folders if note), None)
    return own, own or of_folder


def _name_of(declared: "Declared", asked: str) -> str:
    """The name in the ledger; the full path of a file is accepted too."""
    from onceload_jobs.files.listing import root_of

    root = root_of(declared.source.path, root=declared.source.root)
    return asked.removeprefix(root).removeprefix("/") if asked.startswith(f"{root.rstrip('/')}/") else asked


def _history(declared: "Declared", engine: Engine, name: str) -> History:
    try:
        return history_of(engine, declared.name, name)
    except NotFound:
        # Before its first load the pipeline knows no file.
        return History(generations=(), commits=(), claims=())


def _known(declared: "Declared", engine: Engine) -> Sequence[str]:
    try:
        return names_of(engine, declared.name)
    except NotFound:
        return ()


def _near(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """Similar names; if there are none, some of the known names."""
    ends = sorted(each for each in set(known) if each.endswith(f"/{name}"))
    alike = get_close_matches(name, sorted(set(known)), n=_NAMES_SHOWN, cutoff=0.5)
    return tuple(dict.fromkeys([*ends, *alike]))[:_NAMES_SHOWN] or tuple(sorted(set(known))[:_NAMES_SHOWN])


def _next_load(to_read: "FileToRead | None", note: "Note | None", *, is_there: bool) -> str:
    if to_read is not None and not to_read.spans and to_read.copy_record:
        return f"records that all of it is {to_read.loaded_elsewhere}"
    if to_read is not None:
        before = f"; the part before that is {to_read.loaded_elsewhere}" if to_read.copy_record else ""
        spans = ", ".join(f"[{first},{'the end' if end is None else end})" for first, end in to_read.spans)
        return f"reads {spans} as generation {to_read.generation}{before}"
    if note is not None:
        return f"does not read it: {note.reason}"
    if is_there:
        return "does nothing: all of it is loaded"
    return "does nothing: the source has no such file; its loaded rows stay"
