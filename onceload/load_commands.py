"""The commands around a load: validate, plan, load."""

import argparse
import re
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from dedup_core.errors import ExitCode, SettingRefused
from dedup_core.names import Batch
from dedup_core.postgres import LedgerSettings, PostgresLedger
from onceload.settings import Settings
from onceload.terminal import (
    is_watched,
    on_terminal,
    renewed_line,
    show_json,
    show_table,
    size_in_words,
    time_in_words,
    words,
)

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from spark_jobs.files.notes import Note
    from spark_jobs.load.report import LoadSettings, Report
    from spark_jobs.pipeline.declared import Declared
    from spark_jobs.plan.choice import Choice
    from spark_jobs.plan.plan import Plan
    from spark_jobs.plan.rest import FileToRead
    from spark_jobs.work.progress import Progress, Tell, Waiting

Arguments = argparse.Namespace


def validate(arguments: Arguments) -> ExitCode:
    """Read a pipeline file completely, and start nothing."""
    declared = read_declared(arguments)
    if arguments.json:
        show_json({"pipeline": declared.name, "columns": {each.name: str(each.type) for each in declared.columns}})
    words(f"{arguments.file}: pipeline {declared.name} can be loaded as it is declared")
    return ExitCode.DONE


def plan(arguments: Arguments, engine: Engine) -> ExitCode:
    """Say what a load would read, and why not the rest."""
    from spark_jobs.plan.plan import make_plan
    from spark_jobs.write.target import check_target

    declared, ledger = read_as_loaded(arguments, engine), PostgresLedger(engine)
    check_target(engine, ledger, declared)
    found = make_plan(declared, ledger, now_s=time.time(), choice=choice_of(arguments, declared))
    if arguments.json:
        show_json(_plan_document(declared, found))
    else:
        rows = [_plan_row(file) for file in found.to_read] + [_note_row(note) for note in found.notes]
        show_table(rows, nothing="nothing new")
    words(f"{len(found.to_read)} files to read, {found.done} have nothing new, {len(found.notes)} noted")
    # Whoever loads is not waited for here.
    return code_of([replace(note, is_busy=False) for note in found.notes], is_idle=not found.to_read)


def load(arguments: Arguments, settings: Settings, dsn: str, *, publishes: bool = True) -> ExitCode:
    """Load what is new, exactly once; or stage it, for `publish`."""
    from spark_jobs.load.load import load as load_now
    from spark_jobs.load.report import new_batch

    declared = read_declared(arguments)
    on_terminal(f"pipeline {declared.name}: {'loading' if publishes else 'staging'}")
    with watching(declared.name, arguments) as tell:
        how = replace(
            how_of(settings, dsn),
            master=arguments.master,
            spark_options=pairs("--conf", arguments.conf),
            tell=tell,
            wait_s=seconds("--wait", arguments.wait),
            publishes=publishes,
            choice=choice_of(arguments, declared),
            differences_accepted=publishes and arguments.accept_differences,
        )
        batch = Batch(arguments.batch) if arguments.batch else new_batch()
        with interrupted_by_sigterm():
            report = load_now(declared, how, batch=batch, run=settings.run)
    started = f" and {report.session_start_seconds:.1f} s to start Spark"
    if report.staged is not None:
        words(
            f"pipeline {declared.name}: {report.staged:,} rows are staged as batch {report.batch}, in"
            f" {report.seconds:.1f} s{started}; nobody sees them until `onceload publish` is called for that batch"
        )
    else:
        tell_report(report, and_then=started)
    if arguments.json:
        show_json({**asdict(report), "rows_per_s": report.rows_per_s})
    # What is to be said of files is said by whoever publishes the others.
    return ExitCode.DONE if report.staged is not None else code_of(report.notes, is_idle=not report.records)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Let SIGTERM be what Ctrl-C is: whatever runs ends at once, and gives back what it holds."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        # Whoever ends many at once may say it twice, and giving back must not be interrupted.
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def publish(arguments: Arguments, settings: Settings, dsn: str) -> ExitCode:
    """Publish a staged batch, once."""
    from spark_jobs.load.kept_batch import give_up, publish_batch

    declared, batch = read_declared(arguments), Batch(arguments.batch)
    if arguments.give_up:
        is_gone = give_up(declared, how_of(settings, dsn), batch=batch)
        if arguments.json:
            show_json({"pipeline": declared.name, "batch": batch, "given_up": is_gone})
        found = "is given up, and the next load plans the same records anew" if is_gone else "is not staged"
        words(f"pipeline {declared.name}: batch {batch} {found}; nothing was published by this call")
        return ExitCode.DONE
    how = replace(how_of(settings, dsn), differences_accepted=arguments.accept_differences)
    report = publish_batch(declared, how, batch=batch, run=settings.run)
    tell_report(report)
    if arguments.json:
        show_json({**asdict(report), "rows_per_s": report.rows_per_s})
    return code_of(report.notes)


def audit(arguments: Arguments, settings: Settings, dsn: str) -> ExitCode:
    """Ask the suite about a staged batch, before anybody sees it."""
    from spark_jobs.load.kept_batch import audit_batch
    from spark_jobs.quality.audit import in_words

    declared = read_declared(arguments)
    on_terminal(f"pipeline {declared.name}: auditing")
    said = audit_batch(declared, how_of(settings, dsn), batch=Batch(arguments.batch))
    for finding in said.findings:
        if not finding.success:
            words(in_words(finding))
    met = sum(each.success for each in said.findings)
    words(
        f"pipeline {declared.name}: {said.rows:,} rows of batch {said.batch} meet {met} of {len(said.findings)}"
        f" expectations of {said.suite}, and all that are critical; they may be published"
    )
    if arguments.json:
        show_json({**asdict(said), "passed": said.passed})
    return ExitCode.DONE


def how_of(settings: Settings, dsn: str) -> "LoadSettings":
    """How to load, as far as the environment says."""
    from spark_jobs.load.report import LoadSettings

    return LoadSettings(ledger=LedgerSettings(dsn=dsn), docs=settings.home / "quality")


def tell_report(report: "Report", *, and_then: str = "") -> None:
    for note in report.notes:
        words(f"{note.name}: {note.reason}")
    words(
        f"pipeline {report.pipeline}: {report.loaded:,} loaded, {report.duplicates:,} duplicates, "
        f"{report.quarantined:,} quarantined, {report.filtered:,} filtered; position {report.position}; "
        f"{report.seconds:.1f} s ({report.rows_per_s:,} rows/s){and_then}"
    )
    if report.quarantined:
        which = "every record" if report.quarantined == report.records else f"{report.quarantined:,} records"
        look = f"onceload quarantine list --pipeline {report.pipeline}"
        words(f"{which} of this load went to quarantine: see `{look}`")


@contextmanager
def watching(pipeline: str, arguments: Arguments) -> "Iterator[Tell | None]":
    """Say how far a load is, unless a program called that wants JSON."""
    if arguments.json and not is_watched():
        yield None
        return
    with renewed_line() as show:
        yield lambda progress: show(f"pipeline {pipeline}: {_progress(progress)}")


def _progress(progress: "Progress | Waiting") -> str:
    from spark_jobs.work.progress import Waiting

    if isinstance(progress, Waiting):
        return f"waiting for {progress.waits_for}"
    planned, left = progress.bytes_planned, progress.seconds_left
    of_all = "" if planned is None else f" of {size_in_words(planned)}"
    until_then = "" if left is None else f", {time_in_words(left)} left"
    return f"{size_in_words(progress.bytes)}{of_all}, {progress.records_per_s:,} rows/s{until_then}"


def file_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="the pipeline's YAML file")
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="fill {{ NAME }} in the source's path; may be given several times",
    )


def wait_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wait",
        default="10m",
        metavar="TIME",
        help="how long to wait for others that load the same and do not get on, such as 30s (default: 10m)",
    )


def seconds(option: str, given: str) -> float:
    """A time with its unit, as in pipeline files."""
    match = re.fullmatch(r"([0-9]{1,9}) ?([smhd])", given)
    if match is None:
        raise SettingRefused(option, repr(given), "a time with its unit, such as 30s, 10m or 1h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]]


def batch_argument(command: argparse.ArgumentParser, *, required: bool) -> None:
    command.add_argument("--batch", metavar="NAME", required=required, help="the batch, as it was staged")


def choice_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FILE",
        help="a file's name below the source's root, or a pattern such as '2026-03-*/*' (may be given several times)",
    )
    command.add_argument(
        "--replace",
        action="store_true",
        help="load anew what is in already: its old rows go in the commit that brings the new ones",
    )


def differences_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--accept-differences",
        action="store_true",
        help="replace a file's old rows even if there are more or fewer of them than were loaded (default: refuse)",
    )


def choice_of(arguments: Arguments, declared: "Declared") -> "Choice":
    return chosen(declared, files=arguments.only, replaces=arguments.replace)


def chosen(declared: "Declared", *, files: Sequence[str], replaces: bool) -> "Choice":
    """Which files a load is about, refused where that pipeline allows no such choice."""
    from onceload.contradictions import refuse_choice
    from spark_jobs.plan.choice import Choice

    refuse_choice(declared, files=files, replaces=replaces)
    return Choice(files=tuple(files), replaces=replaces)


def load_arguments(command: argparse.ArgumentParser) -> None:
    """What a load may be told besides its file."""
    wait_argument(command)
    command.add_argument("--batch", metavar="NAME", help="a name of this run; a later run of the same name fences it")
    command.add_argument("--master", metavar="URL", help="where Spark runs (default: this machine, all cores)")
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="an option of Spark's; may be given several times",
    )


def read_declared(arguments: Arguments) -> "Declared":
    from onceload.pipeline_file import read_pipeline

    return read_pipeline(arguments.file, values=pairs("--set", arguments.set))


def read_as_loaded(arguments: Arguments, engine: Engine) -> "Declared":
    """Read a pipeline file, and refuse one that gives what is loaded another meaning."""
    from spark_jobs.plan.versions import as_declared

    declared = read_declared(arguments)
    PostgresLedger(engine).find_version(as_declared(declared))
    return declared


def pairs(option: str, given: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise SettingRefused(option, repr(each), "NAME=VALUE")
        found[name] = value
    return found


def code_of(notes: Sequence["Note"], *, is_idle: bool = False) -> ExitCode:
    """What is left for a person stops no other file, but is said to whoever called.

    To find nothing new is well; to find nothing because it could not be read, or was left to others who did not finish
    it, is not.
    """
    if any(note.needs_a_person for note in notes):
        return ExitCode.NEEDS_A_PERSON
    is_left = any(note.is_busy or (is_idle and note.is_unreadable) for note in notes)
    return ExitCode.CALL_AGAIN if is_left else ExitCode.DONE


def _plan_document(declared: "Declared", found: "Plan") -> dict[str, object]:
    return {
        "pipeline": declared.name,
        "to_read": [
            {
                "file": each.listed.name,
                "generation": each.generation,
                "spans": each.spans,
                "bytes": each.bytes,
                "in_already_as": each.twin.name if each.twin else None,
            }
            for each in found.to_read
        ],
        "waiting": [asdict(note) for note in found.notes],
        "done": found.done,
    }


def _plan_row(file: "FileToRead") -> dict[str, object]:
    why = file.in_already or "new"
    why = "in place of what was loaded of it" if file.replaces is not None else why
    if not file.spans:
        return {"file": file.listed.name, "from": None, "to": None, "why": why}
    first, end = file.spans[0][0], file.spans[-1][1]
    why = f"new; what is before it is {why}" if file.twin else why
    return {"file": file.listed.name, "from": first, "to": "the end" if end is None else end, "why": why}


def _note_row(note: "Note") -> dict[str, object]:
    return {"file": note.name, "from": None, "to": None, "why": note.reason}
