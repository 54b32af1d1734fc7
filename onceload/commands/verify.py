"""The commands that prove what is in: verify for all of a pipeline, why for one file."""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from dedup_core.errors import ExitCode, NotFound
from dedup_core.postgres import PostgresLedger
from dedup_core.postgres.audit import Held, History, Life, Taken, history_of, names_of
from onceload.commands.arguments import Arguments, Commands, command, file_arguments, read_as_loaded
from onceload.settings import Settings
from onceload.terminal import on_terminal, show_json, show_table, words

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from spark_jobs.files.notes import Note
    from spark_jobs.pipeline.declared import Declared
    from spark_jobs.plan.rest import FileToRead
    from spark_jobs.verify.findings import Difference
    from spark_jobs.verify.verify import Verification
from onceload.databases import open_database

_NAMES_SHOWN = 5


def add(commands: Commands) -> None:
    teaches = "compare files and rows with the ledger, and name what differs"
    proof = command(commands, "verify", verify, teaches, "onceload verify pipelines/events.yaml")
    file_arguments(proof)
    verify_arguments(proof)
    teaches = "say why a file is or is not loaded, and what the next load does"
    reason = command(commands, "why", why, teaches, "onceload why pipelines/events.yaml 2026/a.jsonl")
    file_arguments(reason)
    why_arguments(reason)


def verify_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--deep",
        action="store_true",
        help="also parse the files again, and compare every value of every row",
    )


def why_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the file's path below the source's root")


# verify


def verify(arguments: Arguments, settings: Settings) -> ExitCode:
    """Compare the files and the rows with the ledger, and name what differs."""
    with open_database(settings) as engine:
        return _verify(arguments, engine)


def _verify(arguments: Arguments, engine: Engine) -> ExitCode:
    from spark_jobs.verify.verify import verify as verify_now

    declared = read_as_loaded(arguments, engine)
    on_terminal(f"pipeline {declared.name}: reading its files and counting its rows")
    found = verify_now(declared, engine, deep=arguments.deep)
    if arguments.json:
        show_json({**asdict(found), "differing": found.differing})
    elif found.differences:
        show_table([_difference_row(each) for each in found.differences], nothing="")
    for note in found.not_compared:
        words(f"{note.name}: {note.reason}")
    if found.differing > len(found.differences):
        words(f"only the first of each kind are named: {len(found.differences)} of {found.differing:,}")
    for kind, count in found.counts.items():
        words(f"{kind} ({count:,}): {_MEANING[kind]}")
    words(_compared(found))
    return ExitCode.NEEDS_A_PERSON if found.differing else ExitCode.DONE


def _difference_row(each: "Difference") -> dict[str, object]:
    place = each.span if each.sequence_id is None else str(each.sequence_id)
    if each.column is not None:
        place = f"{place} {each.column}"
    return {
        "producer": each.producer,
        "kind": str(each.kind),
        "at": place,
        "expected": each.expected,
        "found": each.found,
    }


def _compared(found: "Verification") -> str:
    rows = "counted no rows" if found.rows is None else f"counted {found.rows:,} rows"
    values = f" and compared the values of {found.rows_compared:,} rows" if found.is_deep else ""
    what = f"compared {found.files:,} files ({found.bytes:,} bytes that were loaded), {rows}{values}"
    outcome = f"{found.differing:,} differences" if found.differing else "no differences"
    noted = "; the lines above say what is not loaded yet or was not compared" if found.not_compared else ""
    return f"pipeline {found.pipeline} at position {found.position}: {what}; {outcome}{noted}"


#: What each kind of difference means, and what to do.
_MEANING = {
    "file missing": (
        "its rows stay, but nothing can prove or repeat them; put the file back, or note that it was archived"
    ),
    "file shorter": "a part of what was loaded is not there any more; restore the file from a copy",
    "file unreadable": "what was loaded of it cannot be compared; mend its rights, or put a whole copy in its place",
    "bytes changed": (
        "the file was changed after it was loaded, and its rows are of the earlier content; restore the file, or set "
        "on_rewrite to load the new one"
    ),
    "gap": (
        "a part of the file was never loaded and no delivery holds it, so its records are missing from the target; "
        "run `onceload load`, and verify again; if the gap stays, run `onceload load` with `--only FILE --replace`, "
        "or see `onceload recover --help`"
    ),
    "row missing": (
        "rows were deleted or changed by others after they were loaded; see `onceload recover --help` for how to load "
        "them again from the file"
    ),
    "row doubled": "somebody copied rows: Onceload writes each once; delete all but one of each _sequence",
    "row from nowhere": "somebody else wrote these rows; delete them, or keep them in a table of their own",
    "value changed": (
        "rows were updated by others after they were loaded, or the pipeline reads the file in another way since; set "
        "the values right, or see `onceload recover --help`"
    ),
    "quarantine differs": "quarantined records were deleted or moved by others; their raw bytes are still in the files",
    "table missing": "the target was dropped or renamed; restore it, or see `onceload recover --help`",
}


# why


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """All that is known of one name, and what the next load would do with it."""

    name: str
    is_there: bool
    history: History
    next_load: str
    needs_a_person: bool = False


def why(arguments: Arguments, settings: Settings) -> ExitCode:
    """Say why a file is or is not loaded."""
    with open_database(settings) as engine:
        return _why(arguments, engine)


def _why(arguments: Arguments, engine: Engine) -> ExitCode:
    declared = read_as_loaded(arguments, engine)
    found = _explain(declared, engine, arguments.name)
    if arguments.json:
        show_json(_document(declared, found))
    else:
        rows = [_commit_row(declared, each) for each in found.history.commits]
        show_table(rows, nothing="no commit has taken anything of it")
        for sentence in _sentences(found):
            words(f"{found.name}: {sentence}")
    return ExitCode.NEEDS_A_PERSON if found.needs_a_person else ExitCode.DONE


def _explain(declared: "Declared", engine: Engine, asked: str) -> Explanation:
    from spark_jobs.files.listing import list_files
    from spark_jobs.plan.plan import make_plan

    listing = list_files(declared.source.path, root=declared.source.root)
    there = {each.name for each in listing.files}
    name = asked if asked in there else _name_of(declared, asked)
    history = _history(declared, engine, name)
    plan = make_plan(declared, PostgresLedger(engine), now_s=time.time())
    noted = {note.name: note for note in plan.notes}
    # What the source refuses to read is named as Python writes it.
    note = noted.get(name) or noted.get(repr(name))
    if name not in there and note is None and not history.lives:
        raise NotFound("file", name, _near(name, [*there, *_known(declared, engine)]))
    to_read = next((each for each in plan.to_read if each.listed.name == name), None)
    return Explanation(
        name=name,
        is_there=name in there or note is not None,
        history=history,
        next_load=_next_load(to_read, note, is_there=name in there),
        needs_a_person=note is not None and note.needs_a_person,
    )


def _name_of(declared: "Declared", asked: str) -> str:
    """A name as the ledger has it: a path that leads to the file is as good."""
    from spark_jobs.files.listing import root_of

    root = root_of(declared.source.path, root=declared.source.root)
    return asked.removeprefix(root).removeprefix("/") if asked.startswith(f"{root.rstrip('/')}/") else asked


def _history(declared: "Declared", engine: Engine, name: str) -> History:
    try:
        return history_of(engine, declared.name, name)
    except NotFound:
        # Asked before its first load: nothing is known of any file.
        return History(lives=(), commits=(), claims=())


def _known(declared: "Declared", engine: Engine) -> Sequence[str]:
    try:
        return names_of(engine, declared.name)
    except NotFound:
        return ()


def _near(name: str, known: Sequence[str]) -> tuple[str, ...]:
    """Names that may have been meant; without any such, some that there are."""
    ends = sorted(each for each in set(known) if each.endswith(f"/{name}"))
    alike = get_close_matches(name, sorted(set(known)), n=_NAMES_SHOWN, cutoff=0.5)
    return tuple(dict.fromkeys([*ends, *alike]))[:_NAMES_SHOWN] or tuple(sorted(set(known))[:_NAMES_SHOWN])


def _next_load(to_read: "FileToRead | None", note: "Note | None", *, is_there: bool) -> str:
    if to_read is not None and not to_read.spans and to_read.twin:
        return f"notes that all of it is {to_read.in_already}"
    if to_read is not None:
        before = f"; what is before that is {to_read.in_already}" if to_read.twin else ""
        spans = ", ".join(f"[{first},{'the end' if end is None else end})" for first, end in to_read.spans)
        return f"reads {spans} as generation {to_read.generation}{before}"
    if note is not None:
        return f"does not read it: {note.reason}"
    if is_there:
        return "does nothing: all of it is in"
    return "does nothing: there is no such file in the source; what was loaded of it stays"


def _sentences(found: Explanation) -> list[str]:
    said = [_of_life(life) for life in found.history.lives] or ["nothing of it was ever loaded"]
    said += [_of_claim(each) for each in found.history.claims]
    return [*said, f"the next load {found.next_load}"]


def _of_claim(each: Held) -> str:
    if each.session is None or each.until is None:
        what = "was set aside" if each.state == "dead" else "waits for a session"
        return f"{each.spans} {what} as delivery {each.delivery} of batch {each.batch}"
    until = f"{each.until:%Y-%m-%d %H:%M:%S}Z"
    return f"session {each.session} (batch {each.batch}) is loading {each.spans}, and has to say so again by {until}"


def _of_life(life: Life) -> str:
    consumed = f"{life.consumed} is in" if life.consumed else "nothing is in"
    consumed = f"it is a copy, and its records are loaded as {life.copy_of}" if life.copy_of else consumed
    quarantined = f", {life.quarantined:,} records of it went to quarantine" if life.quarantined else ""
    forgotten = "; it was idle, and its state was let go" if life.is_forgotten else ""
    return f"generation {life.generation} ({life.condition}): {consumed}{quarantined}{forgotten}"


def _commit_row(declared: "Declared", each: Taken) -> dict[str, object]:
    return {
        "position": each.position,
        "time": each.committed_at,
        "batch": each.batch,
        "kind": each.kind,
        "spans": str(each.spans),
        "rows": each.rows,
        "bytes": _bytes_of(declared, each),
    }


def _bytes_of(declared: "Declared", each: Taken) -> int | None:
    """Where ids are places in a file, they say how many bytes there were."""
    from spark_jobs.pipeline.declared import Format

    return each.spans.count if each.is_of_file and declared.source.format is not Format.PARQUET else None


def _document(declared: "Declared", found: Explanation) -> dict[str, object]:
    return {
        "pipeline": declared.name,
        "file": found.name,
        "is_there": found.is_there,
        "lives": [{**asdict(each), "consumed": str(each.consumed)} for each in found.history.lives],
        "commits": [{**_commit_row(declared, each), "generation": each.generation} for each in found.history.commits],
        "claims": [{**asdict(each), "spans": str(each.spans)} for each in found.history.claims],
        "next_load": found.next_load,
        "needs_a_person": found.needs_a_person,
    }
