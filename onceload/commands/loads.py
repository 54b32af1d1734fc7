"""The commands around a load: validate, plan, load, stage, audit, publish."""

import time
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from dedup_core.errors import ExitCode, SettingRefused
from dedup_core.names import Batch
from dedup_core.postgres import PostgresLedger
from onceload.commands.arguments import (
    Arguments,
    Commands,
    batch_argument,
    choice_arguments,
    choice_of,
    command,
    differences_argument,
    file_arguments,
    load_arguments,
    pairs,
    read_as_loaded,
    read_declared,
    seconds,
)
from onceload.commands.reports import code_of, print_report, watching
from onceload.settings import Settings
from onceload.terminal import (
    on_terminal,
    show_json,
    show_table,
    words,
)

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from spark_jobs.files.notes import Note
    from spark_jobs.pipeline.declared import Declared
    from spark_jobs.plan.plan import Plan
    from spark_jobs.plan.to_read import FileToRead
from onceload.choices import how_of
from onceload.commands.suggest import suggest, suggest_arguments
from onceload.databases import open_database, ready_database
from onceload.stopping import interrupted_by_sigterm


def add(commands: Commands) -> None:
    for name, run, teaches in (
        ("validate", validate, "check a pipeline file, and report every error in it"),
        ("plan", plan, "show which files and bytes a load would read, and why it skips the rest"),
        ("load", load, "load new records, exactly once"),
    ):
        each = command(commands, name, run, teaches, f"onceload {name} pipelines/events.yaml")
        file_arguments(each)
        if name in ("plan", "load"):
            choice_arguments(each)
        if name == "load":
            load_arguments(each)
            differences_argument(each)
    for name, run, teaches in (
        (
            "stage",
            partial(load, publishes=False),
            "read new records into a staging table; the target does not change yet",
        ),
        ("audit", audit, "check a staged batch with the pipeline's suite, or draft a suite"),
        ("publish", publish, "write a staged batch to the target, in one commit"),
    ):
        each = command(commands, name, run, teaches, f"onceload {name} pipelines/orders.yaml --batch today")
        file_arguments(each)
        if name == "stage":
            choice_arguments(each)
            load_arguments(each)
        else:
            batch_argument(each, required=name == "publish")
        if name == "publish":
            differences_argument(each)
            each.add_argument(
                "--give-up",
                action="store_true",
                help="publish nothing, and delete the staged batch; the next load plans its records again",
            )
        if name == "audit":
            suggest_arguments(each)


def validate(arguments: Arguments, settings: Settings) -> ExitCode:
    """Check a pipeline file; start nothing."""
    del settings
    declared = read_declared(arguments)
    if arguments.json:
        show_json({"pipeline": declared.name, "columns": {each.name: str(each.type) for each in declared.columns}})
    words(f"{arguments.file}: pipeline {declared.name} is valid")
    return ExitCode.DONE


def plan(arguments: Arguments, settings: Settings) -> ExitCode:
    """Show what a load would read, and why it skips the rest."""
    from spark_jobs.plan.plan import make_plan
    from spark_jobs.write.target import check_target

    with open_database(settings) as engine:
        declared, ledger = read_as_loaded(arguments, engine), PostgresLedger(engine)
        check_target(engine, ledger, declared)
        found = make_plan(declared, ledger, now_s=time.time(), choice=choice_of(arguments, declared))
    if arguments.json:
        show_json(_plan_document(declared, found))
    else:
        rows = [_plan_row(file) for file in found.to_read] + [_note_row(note) for note in found.notes]
        show_table(rows, nothing="nothing new")
    words(f"{len(found.to_read)} files to read, {found.done} without new records, {len(found.notes)} skipped")
    # A plan does not wait for other loads.
    return code_of([replace(note, is_busy=False) for note in found.notes], is_idle=not found.to_read)


def load(arguments: Arguments, settings: Settings, *, publishes: bool = True) -> ExitCode:
    """Load new records, exactly once; or stage them for `publish`."""
    with ready_database(settings) as dsn:
        return _load(arguments, settings, dsn, publishes=publishes)


def _load(arguments: Arguments, settings: Settings, dsn: str, *, publishes: bool) -> ExitCode:
    from spark_jobs.work.local.processes import import_early

    if arguments.engine != "spark" and not arguments.master:
        import_early()
    from spark_jobs.load.engine import Engine
    from spark_jobs.load.load import load as load_now
    from spark_jobs.load.settings import new_batch

    declared = read_declared(arguments)
    on_terminal(f"pipeline {declared.name}: {'loading' if publishes else 'staging'}")
    with watching(declared.name, arguments) as on_progress:
        how = replace(
            how_of(settings, dsn),
            master=arguments.master,
            spark_options=pairs("--conf", arguments.conf),
            engine=Engine(arguments.engine),
            on_progress=on_progress,
            wait_s=seconds("--wait", arguments.wait),
            publishes=publishes,
            choice=choice_of(arguments, declared),
            differences_accepted=publishes and arguments.accept_differences,
        )
        batch = Batch(arguments.batch) if arguments.batch else new_batch()
        with interrupted_by_sigterm():
            report = load_now(declared, how, batch=batch, run=settings.run)
    if report.staged is not None:
        words(
            f"pipeline {declared.name}: {report.staged:,} rows are staged as batch {report.batch}, in"
            f" {report.seconds:.1f} s; run `onceload publish` for this batch to write them to the target"
        )
    else:
        print_report(report)
    if arguments.json:
        show_json({**asdict(report), "rows_per_s": report.rows_per_s})
    # `publish` reports the notes on files.
    return ExitCode.DONE if report.staged is not None else code_of(report.notes, is_idle=not report.records)


def publish(arguments: Arguments, settings: Settings) -> ExitCode:
    """Publish a staged batch, once."""
    with ready_database(settings) as dsn:
        return _publish(arguments, settings, dsn)


def _publish(arguments: Arguments, settings: Settings, dsn: str) -> ExitCode:
    from spark_jobs.load.kept_batch import give_up, publish_batch

    declared, batch = read_declared(arguments), Batch(arguments.batch)
    if arguments.give_up:
        is_gone = give_up(declared, how_of(settings, dsn), batch=batch)
        if arguments.json:
            show_json({"pipeline": declared.name, "batch": batch, "given_up": is_gone})
        found = "was deleted, and the next load plans its records again" if is_gone else "is not staged"
        words(f"pipeline {declared.name}: batch {batch} {found}; this call published nothing")
        return ExitCode.DONE
    how = replace(how_of(settings, dsn), differences_accepted=arguments.accept_differences)
    report = publish_batch(declared, how, batch=batch, run=settings.run)
    print_report(report)
    if arguments.json:
        show_json({**asdict(report), "rows_per_s": report.rows_per_s})
    return code_of(report.notes)


def audit(arguments: Arguments, settings: Settings) -> ExitCode:
    """Check a staged batch with its suite, or draft a suite."""
    if not arguments.suggest and (arguments.batch is None or arguments.output is not None):
        found = "no batch" if arguments.batch is None else "--output"
        raise SettingRefused("onceload audit", found, "--batch NAME, or --suggest with or without --output FILE")
    with ready_database(settings) as dsn:
        return suggest(arguments, dsn) if arguments.suggest else _audit(arguments, settings, dsn)


def _audit(arguments: Arguments, settings: Settings, dsn: str) -> ExitCode:
    """Check a staged batch with its suite, before it is published."""
    from spark_jobs.load.kept_batch import audit_batch
    from spark_jobs.quality.audit import in_words

    declared = read_declared(arguments)
    on_terminal(f"pipeline {declared.name}: auditing")
    result = audit_batch(declared, how_of(settings, dsn), batch=Batch(arguments.batch))
    for finding in result.findings:
        if not finding.success:
            words(in_words(finding))
    met = sum(each.success for each in result.findings)
    words(
        f"pipeline {declared.name}: {result.rows:,} rows of batch {result.batch} meet {met} of {len(result.findings)}"
        f" expectations of {result.suite}, including all critical ones; the batch can be published"
    )
    if arguments.json:
        show_json({**asdict(result), "passed": result.passed})
    return ExitCode.DONE


def _plan_document(declared: "Declared", found: "Plan") -> dict[str, object]:
    return {
        "pipeline": declared.name,
        "to_read": [
            {
                "file": each.listed.name,
                "generation": each.generation,
                "spans": each.spans,
                "bytes": each.bytes,
                "in_already_as": each.copy_record.name if each.copy_record else None,
            }
            for each in found.to_read
        ],
        "waiting": [asdict(note) for note in found.notes],
        "done": found.done,
    }


def _plan_row(file: "FileToRead") -> dict[str, object]:
    why = file.loaded_elsewhere or "new"
    why = "reload: replaces its loaded rows" if file.replaces is not None else why
    if not file.spans:
        return {"file": file.listed.name, "from": None, "to": None, "why": why}
    first, end = file.spans[0][0], file.spans[-1][1]
    why = f"new; the part before it is {why}" if file.copy_record else why
    return {"file": file.listed.name, "from": first, "to": "the end" if end is None else end, "why": why}


def _note_row(note: "Note") -> dict[str, object]:
    return {"file": note.name, "from": None, "to": None, "why": note.reason}
