"""The commands that check loaded data: verify for a whole pipeline, why for one file."""

import argparse
from dataclasses import asdict
from shlex import quote
from typing import TYPE_CHECKING

from onceload.commands.arguments import (
    Arguments,
    Commands,
    command,
    engine_arguments,
    engine_named,
    file_arguments,
    read_declared,
)
from onceload.commands.reports import print_pause
from onceload.explanation import Explanation
from onceload.pipeline import Pipeline
from onceload.settings import Settings
from onceload.sources import has_source
from onceload.terminal import counted, on_terminal, show_json, show_table, words
from onceload_core.advice import Ways
from onceload_core.commands import PIPELINE_FILE, reload_command
from onceload_core.errors import ExitCode
from onceload_core.postgres.history import ClaimedSpans, CommittedSpans, Generation

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.pipeline.declared import Declared
    from onceload_jobs.verify.findings import Difference
    from onceload_jobs.verify.verify import Verification


def add(commands: Commands) -> None:
    teaches = "compare files and rows with the ledger, and list the differences"
    proof = command(commands, "verify", verify, teaches, "onceload verify pipelines/events.yaml")
    file_arguments(proof)
    verify_arguments(proof)
    teaches = "explain why a file is or is not loaded, and what the next load does with it"
    reason = command(commands, "why", why, teaches, "onceload why pipelines/events.yaml 2026/a.jsonl")
    file_arguments(reason)
    why_arguments(reason)


def verify_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--deep",
        action="store_true",
        help="parse the files again, and compare every value of every row",
    )
    engine_arguments(command)


def why_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the path of the file below the source's root")


# verify


def verify(arguments: Arguments, settings: Settings) -> ExitCode:
    """Compare files and rows with the ledger, and list the differences."""
    pipeline = Pipeline(read_declared(arguments, needs_source=False), settings)
    on_terminal(f"pipeline {pipeline.name}: reading its files and counting its rows")
    found = pipeline.verify(deep=arguments.deep, **engine_named(arguments))
    if arguments.json:
        show_json({**asdict(found), "differing": found.differing})
    elif found.differences:
        show_table([_difference_row(each) for each in found.differences], nothing="")
    for note in found.not_compared:
        words(f"{note.name}: {note.reason}")
    if found.differing > len(found.differences):
        words(f"only the first of each kind are shown: {len(found.differences)} of {found.differing:,}")
    for kind, count in found.counts.items():
        words(f"{kind} ({count:,}): {_MEANING[kind].format(**_commands(pipeline.declared, found, kind))}")
    words(_compared(found))
    return ExitCode.NEEDS_A_PERSON if found.differing else ExitCode.DONE


def _difference_row(each: "Difference") -> dict[str, object]:
    place = each.span if each.sequence_id is None else str(each.sequence_id)
    if each.column is not None:
        place = f"{place} {each.column}" if place else each.column
    return {
        "producer": each.producer,
        "kind": str(each.kind),
        "at": place,
        "expected": each.expected,
        "found": each.found,
    }


def _compared(found: "Verification") -> str:
    rows = "counted no rows" if found.rows is None else f"counted {counted(found.rows, 'row')}"
    values = f" and compared the values of {counted(found.rows_compared, 'row')}" if found.is_deep else ""
    what = f"compared {counted(found.files, 'file')} ({found.bytes:,} bytes that were loaded), {rows}{values}"
    outcome = counted(found.differing, "difference") if found.differing else "no differences"
    noted = "; the lines above list files that are not loaded yet or were not compared" if found.not_compared else ""
    return f"pipeline {found.pipeline} at position {found.position}: {what}; {outcome}{noted}"


def _commands(declared: "Declared", found: "Verification", kind: str) -> dict[str, str]:
    """What the meaning of a kind names: among them how the records of a file are loaded once."""
    from onceload_jobs.plan.declaration_texts import pipeline_with_declaration

    again = f"load everything again with `onceload recover rebuild {PIPELINE_FILE}` on a new database"
    restore = (
        f"Restore the file and run `onceload load {PIPELINE_FILE}`, or load the rows again from the program that gave "
        "them"
        if has_source(declared)
        else "Load them again from the program that gave them"
    )
    files = list(dict.fromkeys(each.producer for each in found.differences if each.kind == kind))
    if files and Ways.of(pipeline_with_declaration(declared).declaration).may_reload:
        which = "run" if len(files) == 1 else "load each of these files once more. For the first of them, run"
        again = f"{which} {reload_command(files[0])}, which deletes all rows of the file and loads it once"
        restore += f". If the content of the file now is the right one, {again}"
    return {"again": again, "restore": restore, "file": PIPELINE_FILE, "pipeline": quote(declared.name)}


#: The meaning of each kind of difference, and what to do.
_MEANING = {
    "file missing": (
        "its rows stay in the target, but can no longer be checked or reloaded. Restore the file, or make a note that "
        "it was archived"
    ),
    "file shorter": "loaded bytes are missing from the file. Restore it from a copy",
    "file unreadable": "its loaded records cannot be compared. Fix its permissions, or replace it with an intact copy",
    "bytes changed": (
        "the file was changed after it was loaded, and its rows have the earlier content. Restore the file, or set "
        "on_rewrite to load the new content"
    ),
    "gap": (
        "a part of the file was never loaded and no delivery holds it, so its records are missing from the target. "
        "Run `onceload load {file}`, and verify again. If the gap stays, {again}, or see "
        "`onceload recover --help`"
    ),
    "not loaded again": (
        "a rewind deleted the rows of these records, and the files as they are now no longer have them. {restore}"
    ),
    "loaded again": (
        "records were loaded more than once, so their rows are duplicated. That happens if the producer state was "
        "damaged. Check it with `onceload recover state --dry-run --pipeline {pipeline}`, then {again}"
    ),
    "row missing": (
        "rows were deleted or changed outside Onceload after they were loaded. To load them again from the file, see "
        "`onceload recover --help`"
    ),
    "row duplicated": (
        "rows were duplicated outside Onceload, which writes each row once. Delete all but one of each _sequence"
    ),
    "row from nowhere": (
        "these rows match no record. Another program wrote them, or an earlier release loaded a record that is refused "
        "now. Look for the record in the file first. Delete a row, or move it to another table, only if the file has "
        "no record for it. Rows without _producer_id are only counted, and look like rows that loads wrote: find out "
        "which ones were added"
    ),
    "value changed": (
        "rows were updated outside Onceload after they were loaded, or the pipeline file now reads the file in another "
        "way. Correct the values, or see `onceload recover --help`. If a column that a load added was dropped, the "
        "files still have its values: {again}"
    ),
    "quarantine differs": (
        "quarantined records were deleted or moved outside Onceload. Their raw bytes are still in the files"
    ),
    "table missing": "the target was dropped or renamed. Restore it, or see `onceload recover --help`",
    "column differs": (
        "the table was altered, or the pipeline file declares other types. No values were compared, and the next load "
        "is refused. Make the types of the table and of the pipeline file the same, and verify again"
    ),
}


# why


def why(arguments: Arguments, settings: Settings) -> ExitCode:
    """Explain why a file is or is not loaded."""
    pipeline = Pipeline(read_declared(arguments), settings)
    declared, found = pipeline.declared, pipeline.why(arguments.name)
    if arguments.json:
        show_json(_document(declared, found))
    else:
        rows = [_commit_row(declared, each) for each in found.history.commits]
        show_table(rows, nothing="no commit has loaded any of it")
        for sentence in _sentences(found):
            words(f"{found.name}: {sentence}")
    print_pause(pipeline.name, found.pause)
    return ExitCode.NEEDS_A_PERSON if found.needs_a_person else ExitCode.DONE


def _sentences(found: Explanation) -> list[str]:
    sentences = [_of_generation(each) for each in found.history.generations] or ["none of it was ever loaded"]
    sentences += [_of_claim(each) for each in found.history.claims]
    return [*sentences, f"the next load {found.next_load}"]


def _of_claim(each: ClaimedSpans) -> str:
    if each.session is None or each.until is None:
        what = "is a dead letter:" if each.state == "dead" else "waits for a session:"
        return f"{each.spans} {what} delivery {each.delivery} of batch {each.batch}"
    until = f"{each.until:%Y-%m-%d %H:%M:%S}Z"
    return f"session {each.session} (batch {each.batch}) is loading {each.spans}; its lease expires at {until}"


def _of_generation(each: Generation) -> str:
    consumed = f"{each.consumed} is loaded" if each.consumed else "nothing is loaded"
    consumed = f"it is a copy, and its records are loaded as {each.copy_of}" if each.copy_of else consumed
    quarantined = f", {counted(each.quarantined, 'record')} of it went to quarantine" if each.quarantined else ""
    forgotten = "; it was idle, and its state was deleted" if each.is_forgotten else ""
    return f"generation {each.generation} ({each.condition}): {consumed}{quarantined}{forgotten}"


def _commit_row(declared: "Declared", each: CommittedSpans) -> dict[str, object]:
    return {
        "position": each.position,
        "time": each.committed_at,
        "batch": each.batch,
        "kind": each.kind,
        "spans": str(each.spans),
        "rows": each.rows,
        "bytes": _bytes_of(declared, each),
    }


def _bytes_of(declared: "Declared", each: CommittedSpans) -> int | None:
    """The bytes of a commit, where sequence ids are byte offsets."""
    return each.spans.count if each.is_of_file and not declared.source.format.is_whole else None


def _document(declared: "Declared", found: Explanation) -> dict[str, object]:
    return {
        "pipeline": declared.name,
        "file": found.name,
        "is_there": found.is_there,
        "lives": [{**asdict(each), "consumed": str(each.consumed)} for each in found.history.generations],
        "commits": [{**_commit_row(declared, each), "generation": each.generation} for each in found.history.commits],
        "claims": [{**asdict(each), "spans": str(each.spans)} for each in found.history.claims],
        "next_load": found.next_load,
        "needs_a_person": found.needs_a_person,
        "pause": found.pause,
    }
