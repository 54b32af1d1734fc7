"""The commands around a load: validate, plan, load, stage, audit, publish."""

import shlex
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from onceload.commands.arguments import (
    Arguments,
    Commands,
    batch_argument,
    choice_arguments,
    command,
    differences_argument,
    engine_named,
    file_arguments,
    load_arguments,
    read_declared,
    seconds,
)
from onceload.commands.reports import print_pause, print_report, watching
from onceload.outcome import Outcome
from onceload.settings import Settings
from onceload.terminal import (
    counted,
    on_terminal,
    show_json,
    show_table,
    words,
)
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.postgres.pausing import find_pause

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.files.notes import Note
    from onceload_jobs.load.report import Report
    from onceload_jobs.pipeline.declared import Declared
    from onceload_jobs.plan.plan import Plan
    from onceload_jobs.plan.to_read import FileToRead
from onceload.commands.suggest import suggest, suggest_arguments
from onceload.databases import open_database, ready_database
from onceload.pipeline import Pipeline
from onceload.stopping import interrupted_by_signals


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
    from onceload_jobs.files.notes import code_of

    pipeline = Pipeline(read_declared(arguments), settings)
    with open_database(settings) as engine:
        found = pipeline.plan(only=arguments.only, replaces=arguments.replace)
        pause = find_pause(engine, pipeline.name)
    if arguments.json:
        show_json({**_plan_document(pipeline.name, found), "pause": pause})
    else:
        unit = "row" if pipeline.declared.source.format.is_whole else "byte"
        rows = [_plan_row(file, unit) for file in found.to_read] + [_note_row(note, unit) for note in found.notes]
        show_table(rows, nothing="nothing new")
    words(
        f"{counted(len(found.to_read), 'file')} to read, {found.done} without new records, {len(found.notes)} skipped"
    )
    print_pause(pipeline.name, pause)
    # A plan does not wait for other loads.
    return code_of([replace(note, is_busy=False) for note in found.notes], is_idle=not found.to_read)


def load(arguments: Arguments, settings: Settings, *, publishes: bool = True) -> ExitCode | Outcome:
    """Load new records, exactly once; or stage them for `publish`."""
    pipeline = Pipeline(read_declared(arguments), settings)
    on_terminal(f"pipeline {pipeline.name}: {'loading' if publishes else 'staging'}")
    run: Callable[..., Report] = pipeline.stage
    if publishes:
        run = partial(pipeline.load, accepts_differences=arguments.accept_differences)
    with watching(pipeline.name, arguments) as on_progress, interrupted_by_signals():
        report = run(
            only=arguments.only,
            replaces=arguments.replace,
            batch=arguments.batch or None,
            **engine_named(arguments),
            wait_s=seconds("--wait", arguments.wait),
            on_progress=on_progress,
        )
    # Under Airflow, the next tasks publish a staged batch.
    then = "" if settings.run else f"; {_publishing(pipeline.declared, report.batch)} writes them to the target"
    print_report(report, then=then)
    if settings.dsn is None and report.loaded and not arguments.json:
        words(f"Look at the rows: onceload show {PIPELINE_FILE}")
    if arguments.json:
        show_json({**asdict(report), "rows_per_s": report.rows_per_s})
    return Outcome.of(report)


def _publishing(declared: "Declared", batch: str) -> str:
    publishing = f"`onceload publish {PIPELINE_FILE} --batch={shlex.quote(batch)}`"
    if declared.suite is None:
        return publishing
    return f"after `onceload audit {PIPELINE_FILE} --batch={shlex.quote(batch)}`, {publishing}"


def publish(arguments: Arguments, settings: Settings) -> ExitCode:
    """Publish a staged batch, once."""
    pipeline, batch = Pipeline(read_declared(arguments), settings), arguments.batch
    if arguments.give_up:
        is_gone = pipeline.give_up(batch)
        if arguments.json:
            show_json({"pipeline": pipeline.name, "batch": batch, "given_up": is_gone})
        found = "was deleted, and the next load plans its records again" if is_gone else "is not staged"
        words(f"pipeline {pipeline.name}: batch {batch} {found}; this call published nothing")
        return ExitCode.DONE
    report = pipeline.publish(batch, accepts_differences=arguments.accept_differences)
    print_report(report)
    if arguments.json:
        show_json({**asdict(report), "rows_per_s": report.rows_per_s})
    return report.exit_code


def audit(arguments: Arguments, settings: Settings) -> ExitCode:
    """Check a staged batch with its suite, or draft a suite."""
    if not arguments.suggest and (arguments.batch is None or arguments.output is not None):
        found = "no batch" if arguments.batch is None else "--output"
        raise SettingRefused("onceload audit", found, "--batch NAME, or --suggest with or without --output FILE")
    if arguments.suggest:
        with ready_database(settings) as dsn:
            return suggest(arguments, dsn)
    return _audit(arguments, settings)


def _audit(arguments: Arguments, settings: Settings) -> ExitCode:
    """Check a staged batch with its suite, before it is published."""
    pipeline = Pipeline(read_declared(arguments), settings)
    on_terminal(f"pipeline {pipeline.name}: auditing")
    result = pipeline.audit(arguments.batch)
    for finding in result.findings:
        if not finding.success:
            words(str(finding))
    met = sum(each.success for each in result.findings)
    words(
        f"pipeline {pipeline.name}: {result.rows:,} rows of batch {result.batch} meet {met} of {len(result.findings)}"
        f" expectations of {result.suite}, including all critical ones; the batch can be published"
    )
    if arguments.json:
        show_json({**asdict(result), "passed": result.passed})
    return ExitCode.DONE


def _plan_document(pipeline: str, found: "Plan") -> dict[str, object]:
    return {
        "pipeline": pipeline,
        "to_read": [
            {
                "file": each.listed.name,
                "generation": each.generation,
                "spans": each.spans,
                "bytes": each.bytes,
                "loaded_as": each.copy_record.name if each.copy_record else None,
            }
            for each in found.to_read
        ],
        "waiting": [asdict(note) for note in found.notes],
        "done": found.done,
    }


def _plan_row(file: "FileToRead", unit: str) -> dict[str, object]:
    if not file.spans:
        return _row(file.listed.name, unit, first=None, end=None, why=file.why)
    first, end = file.spans[0][0], file.spans[-1][1]
    return _row(file.listed.name, unit, first=first, end="the end" if end is None else end, why=file.why)


def _note_row(note: "Note", unit: str) -> dict[str, object]:
    return _row(note.name, unit, first=None, end=None, why=note.reason)


def _row(file: str, unit: str, *, first: int | None, end: int | str | None, why: str) -> dict[str, object]:
    return {"file": file, f"from_{unit}": first, f"to_{unit}": end, "why": why}
