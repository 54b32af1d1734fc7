"""The commands on quarantined records: list, show, export, retry, discard."""

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Engine

from onceload import settling
from onceload.commands.arguments import (
    Arguments,
    Commands,
    command,
    engine_arguments,
    engine_named,
    file_arguments,
    limit_option,
    on_one_pipeline,
    pipeline_option,
    read_as_loaded,
    sentence,
)
from onceload.databases import open_database
from onceload.engines import where_to_work
from onceload.loads_in_words import show_ignored
from onceload.named_files import named_by_pipeline
from onceload.quarantine_file import FixedRecord, check_fixed_records, raw_fields, read_fixed_records, write_records
from onceload.quarantine_lines import COMPARED_BYTES, find_lines
from onceload.quarantined import harmless, readable, row_of, summary_of, what_to_do, what_to_do_with, whole_characters
from onceload.settings import Settings, user_name
from onceload.terminal import counted, naming, on_terminal, show_json, show_table, words
from onceload_core.advice import Ways
from onceload_core.commands import PIPELINE_FILE, reload_command
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.ports import QuarantineState
from onceload_core.postgres.quarantine import (
    Chosen,
    KeptRecord,
    QuarantineId,
    Selection,
    choose,
    count_by_reason,
    find_records,
    get_declaration,
    get_record,
)

if TYPE_CHECKING:
    # Arrow takes a while to import, and only a retry needs it.
    from onceload_jobs.pipeline.declared import Declared
    from onceload_jobs.recover.retry import RetryReport

Action = Literal["list", "show", "export", "retry", "discard"]
_REASONS_SHOWN = 10
_IDS_SHOWN = 5
#: How much of a record is shown without --all.
_SHOWN_BYTES = 4 * 2**10
_ANY_STATE = "any"


def add(commands: Commands) -> None:
    teaches = "show records that could not be loaded; fix, retry or discard them"
    group = commands.add_parser("quarantine", help=teaches, description=sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for action, (run, help_text, example) in _QUARANTINE.items():
        each = command(actions, action, run, help_text, f"onceload quarantine {action} {example}")
        add_arguments(action, each)
        if action in ("list", "export", "discard"):
            pipeline_option(each)
        if action == "list":
            limit_option(each)


def list_records(arguments: Arguments, engine: Engine) -> ExitCode:
    """List quarantined records, and count them by reason."""
    selection = _selection(arguments, arguments.pipeline, state=_state(arguments.state))
    reasons = count_by_reason(engine, selection, at_most=_REASONS_SHOWN + 1)
    records = list(find_records(engine, selection, raw_bytes_max=COMPARED_BYTES, at_most=arguments.limit + 1))
    if len(records) > arguments.limit:
        records.pop()
        words(f"only the first {arguments.limit} are shown; use --limit to see more")
    lines = find_lines(engine, records)
    if arguments.json:
        show_json(
            {
                "pipeline": arguments.pipeline,
                "reasons": reasons[:_REASONS_SHOWN],
                "records": [summary_of(record, lines) for record in records],
            }
        )
        return ExitCode.DONE
    _show_reasons(reasons)
    show_table([row_of(record, lines) for record in records], nothing=_nothing_selected(selection))
    return ExitCode.DONE


def show(arguments: Arguments, engine: Engine) -> ExitCode:
    """Show everything about one record."""
    wanted = None if arguments.all else _SHOWN_BYTES
    record = get_record(engine, QuarantineId(arguments.id), raw_bytes_max=wanted)
    is_cut = len(record.raw) < record.raw_bytes
    summary = summary_of(record, find_lines(engine, [record]))
    if arguments.json:
        show_json(summary | raw_fields(whole_characters(record.raw, is_cut=is_cut)) | {"raw_is_cut": is_cut})
        return ExitCode.DONE
    lines = [f"{name.replace('_', ' '):<17} {harmless(value)}" for name, value in summary.items()]
    _print([*lines, "raw", *(f"  {line}" for line in readable(record.raw, is_cut=is_cut))])
    if is_cut:
        words(f"only the first {len(record.raw):,} of {record.raw_bytes:,} bytes are shown; use --all to see the rest")
    ways = Ways.of(get_declaration(engine, record.pipeline))
    _print_commands(record.pipeline, what_to_do(record, ways))
    return ExitCode.DONE


def export(arguments: Arguments, engine: Engine) -> ExitCode:
    """Write records to a file, to fix and retry them."""
    selection = _selection(arguments, arguments.pipeline)
    chosen = choose(engine, selection)
    _print_settled(chosen)
    if not chosen.held:
        words(_nothing_selected(selection))
    else:
        on_terminal(f"writing {counted(len(chosen.held), 'record')}")
        ids = tuple(record.quarantine_id for record in chosen.held)
        records = find_records(engine, Selection(pipeline=arguments.pipeline, ids=ids))
        written = write_records(records, arguments.file)
        ways = Ways.of(get_declaration(engine, arguments.pipeline))
        what_now = what_to_do_with(str(arguments.file), ids, arguments.pipeline, ways)
        _print_commands(arguments.pipeline, [f"{counted(written, 'record')} → {arguments.file}; {what_now}"])
    if arguments.json:
        file = str(arguments.file) if chosen.held else None
        show_json({"pipeline": arguments.pipeline, "records": len(chosen.held), "file": file})
    return ExitCode.DONE


def retry(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load records that are valid now, because the pipeline file or the records were fixed."""
    with open_database(settings) as engine:
        return _retry(arguments, settings, engine)


def _retry(arguments: Arguments, settings: Settings, engine: Engine) -> ExitCode:
    declared = read_as_loaded(arguments, engine)
    fixed = read_fixed_records(arguments.fixed_file, pipeline=declared.name) if arguments.fixed_file else {}
    selection = _selection(arguments, declared.name, fixed=fixed)
    chosen = choose(engine, selection, at_most=arguments.limit)
    if fixed:
        check_fixed_records(fixed, (*chosen.held, *chosen.settled))
    _print_settled(chosen)
    if not chosen.held:
        words(_nothing_selected(selection))
    on_terminal(f"pipeline {declared.name}: retrying {counted(len(chosen.held), 'record')}")
    # Only a transform in Spark SQL needs an engine, and no retry needs other processes.
    where = where_to_work(settings, **engine_named(arguments), calls=()) if declared.needs_spark else None
    report = settling.retry(engine, declared, chosen.held, fixed=fixed, batch=arguments.batch, where=where)
    _print_retried(report, declared, json=arguments.json)
    return ExitCode.DONE


def discard(arguments: Arguments, engine: Engine) -> ExitCode:
    """Mark records as discarded, by an entry in the ledger; none is deleted."""
    selection = _selection(arguments, arguments.pipeline)
    if not selection.is_narrow:
        raise SettingRefused("discard", "no choice of records", "--id, --reason or --file")
    chosen = choose(engine, selection)
    _print_settled(chosen)
    position = None
    if not chosen.held:
        words(_nothing_selected(selection))
    elif arguments.yes:
        position = settling.discard(engine, arguments.pipeline, chosen.held, by=user_name())
        words(f"pipeline {arguments.pipeline}: {counted(len(chosen.held), 'record')} discarded at position {position}")
    else:
        words(
            f"pipeline {arguments.pipeline}: {_counted_with_ids(chosen.held)} would be discarded. Nothing was changed. "
            "Run again with --yes to discard"
        )
    if arguments.json:
        ids = [record.quarantine_id for record in chosen.held]
        show_json(
            {"pipeline": arguments.pipeline, "records": ids, "discarded": position is not None, "position": position}
        )
    return ExitCode.DONE


# Arguments.


def add_arguments(action: Action, command: argparse.ArgumentParser) -> None:
    """Add the arguments of one command."""
    match action:
        case "list":
            _selection_arguments(command)
            _state_argument(command)
        case "show":
            command.add_argument("id", type=int, metavar="ID", help="the id of the record, see `quarantine list`")
            command.add_argument("--all", action="store_true", help="show all bytes of the record")
        case "export":
            command.add_argument("file", type=Path, metavar="FILE", help="the file to write; only you can read it")
            _selection_arguments(command, by_id=True)
        case "retry":
            file_arguments(command)
            _selection_arguments(command, by_id=True)
            _retry_arguments(command)
            engine_arguments(command)
        case "discard":
            _selection_arguments(command, by_id=True)
            command.add_argument("--yes", action="store_true", help="discard them (default: only show how many)")


def _selection_arguments(command: argparse.ArgumentParser, *, by_id: bool = False) -> None:
    command.add_argument(
        "--reason",
        metavar="TEXT",
        help="only records whose reason contains this text, ignoring case; … stands for a value, as in the list",
    )
    command.add_argument("--file", metavar="NAME", dest="producer", help="only records of this file, by its full name")
    if by_id:
        teaches = "only this record (repeatable)"
        command.add_argument("--id", type=int, action="append", dest="ids", metavar="N", help=teaches)


def _state_argument(command: argparse.ArgumentParser) -> None:
    states = [*map(str, QuarantineState), _ANY_STATE]
    default = str(QuarantineState.HELD)
    command.add_argument("--state", choices=states, default=default, help="only records in this state (default: held)")


def _retry_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--from", type=Path, dest="fixed_file", metavar="EXPORTED", help="retry the fixed records of this exported file"
    )
    command.add_argument("--limit", type=int, metavar="N", help="retry at most N records, the oldest first")
    command.add_argument("--batch", metavar="NAME", help="the name of this run; a later run of the same name fences it")


def _selection(
    arguments: Arguments,
    pipeline: str,
    *,
    state: QuarantineState | None = QuarantineState.HELD,
    fixed: Mapping[QuarantineId, FixedRecord] | None = None,
) -> Selection:
    ids = getattr(arguments, "ids", None)
    if fixed:
        strange = [str(each) for each in ids or () if each not in fixed]
        if strange:
            raise SettingRefused("--id", ", ".join(strange), f"ids of records in {arguments.fixed_file}")
        ids = ids or list(fixed)
    return Selection(
        pipeline=pipeline,
        ids=None if ids is None else tuple(dict.fromkeys(map(QuarantineId, ids))),
        reason=arguments.reason,
        file=arguments.producer,
        state=state,
    )


def _state(word: str) -> QuarantineState | None:
    return None if word == _ANY_STATE else QuarantineState(word)


# Output for people.


def _print_commands(pipeline: str, lines: Sequence[str]) -> None:
    """Print what to do, with the name of the pipeline file, which these commands do not take."""
    name = named_by_pipeline(pipeline)
    with naming(name):
        for line in lines:
            words(line)
    if name == PIPELINE_FILE and any(PIPELINE_FILE in line for line in lines):
        words(f"{PIPELINE_FILE} is the pipeline file of {pipeline}")


def _show_reasons(reasons: Sequence[dict[str, object]]) -> None:
    if not reasons:
        return
    shown = ("records", "column", "reason", "example")
    show_table([{name: reason[name] for name in shown} for reason in reasons[:_REASONS_SHOWN]], nothing="")
    if len(reasons) > _REASONS_SHOWN:
        words("there are more reasons; use --reason TEXT to filter by one")
    _print([""])


def _nothing_selected(selection: Selection) -> str:
    named = [
        f"{word} {value!r}" for word, value in (("reason", selection.reason), ("file", selection.file)) if value
    ] + ([f"id {', '.join(map(str, selection.ids))}"] if selection.ids else [])
    which = f" with {' and '.join(named)}" if named else ""
    state = "" if selection.state is None else f" {selection.state}"
    return f"pipeline {selection.pipeline}: no record{which} is{state} in quarantine; there is nothing to do"


def _print_settled(chosen: Chosen) -> None:
    for record in chosen.settled:
        words(f"record {record.quarantine_id} was already {record.state} at position {record.settled_position}")


def _print_retried(report: "RetryReport", declared: "Declared", *, json: bool) -> None:
    if json:
        still_bad = [{"id": each, **asdict(refusal)} for each, refusal in report.still_bad.items()]
        show_json({**asdict(report), "still_bad": still_bad})
    for quarantine_id, refusal in list(report.still_bad.items())[:_REASONS_SHOWN]:
        column = f"{refusal.column}: " if refusal.column else ""
        words(f"record {quarantine_id} is still invalid: {column}{refusal.reason}")
    if len(report.still_bad) > _REASONS_SHOWN:
        rest = len(report.still_bad) - _REASONS_SHOWN
        words(f"and {rest:,} more: see `onceload quarantine list --pipeline {quote(declared.name)}`")
    if report.laid_out_otherwise:
        words(_otherwise(report.laid_out_otherwise, declared))
    if report.settled_elsewhere:
        words(f"{report.settled_elsewhere:,} were retried or discarded by another command in the meantime")
    show_ignored(report, words)
    words(
        f"pipeline {report.pipeline}: {report.retried:,} retried, {len(report.still_bad):,} still held; "
        f"position {report.position}"
    )


def _otherwise(files: Sequence[str], declared: "Declared") -> str:
    """What to do with records that are read as the pipeline file was, and stay bad."""
    from onceload_jobs.plan.declaration_texts import pipeline_with_declaration

    shown = ", ".join(files[:_REASONS_SHOWN]) + (" and others" if len(files) > _REASONS_SHOWN else "")
    read = f"records of {shown} are read with the settings that were in force when they were quarantined."
    if Ways.of(pipeline_with_declaration(declared).declaration).may_reload:
        return f"{read} To read {files[0]} with the current settings, run {reload_command(files[0])}"
    export = f"`onceload quarantine export bad.jsonl --file={quote(files[0])} --pipeline {quote(declared.name)}`"
    return f"{read} To load those of {files[0]}, run {export}, and write `raw` as those settings read it"


def _counted_with_ids(records: Sequence[KeptRecord]) -> str:
    """The count of records, with their ids or the first of them."""
    ids = [str(record.quarantine_id) for record in records[:_IDS_SHOWN]]
    more = ["…"] if len(records) > _IDS_SHOWN else []
    return f"{counted(len(records), 'record')} ({', '.join([*ids, *more])})"


def _print(lines: Sequence[str]) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)


_QUARANTINE: dict[Action, tuple[Callable[[Arguments, Settings], ExitCode], str, str]] = {
    "list": (
        on_one_pipeline(list_records),
        "list quarantined records, and count them by reason",
        "--reason 'not a valid bigint'",
    ),
    "show": (on_one_pipeline(show), "show everything about one record, with its bytes", "12"),
    "export": (
        on_one_pipeline(export),
        "write records to a file, to fix and retry them",
        "bad.jsonl --file 2026/a.jsonl",
    ),
    "retry": (
        retry,
        "load records again, after the pipeline file or the records were fixed",
        "events.yaml --from bad.jsonl\n         onceload quarantine retry events.yaml --id 12 --id 13\n"
        "Records that are still invalid stay held. Retrying again, or twice at once,\nloads nothing twice.",
    ),
    "discard": (
        on_one_pipeline(discard),
        "give up on records: the ledger records it, and their bytes are kept",
        "--id 12 --yes",
    ),
}
