"""The commands around deliveries: consume, and deliveries list, show, redeliver, abandon."""

import argparse
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Engine

from dedup_core.delivery import Rules, State
from dedup_core.errors import ExitCode, OnceloadError, SettingRefused
from dedup_core.names import DeliveryId, SessionName
from dedup_core.postgres import LedgerSettings
from dedup_core.postgres.deliveries import PostgresDeliveries, describe, list_deliveries
from onceload.commands.arguments import (
    Arguments,
    Commands,
    command,
    file_arguments,
    limit_option,
    on_one_pipeline,
    pipeline_option,
    read_declared,
    seconds,
    sentence,
    wait_argument,
)
from onceload.commands.reports import code_of, tell_report
from onceload.settings import Settings
from onceload.terminal import on_terminal, show_json, show_table, words

if TYPE_CHECKING:
    # Arrow takes a while to import.
    from spark_jobs.files.notes import Note
from onceload.databases import ready_database
from onceload.stopping import asked_to_stop

Action = Literal["list", "show", "redeliver", "abandon"]


_SPANS_SHOWN = 100


def add(commands: Commands) -> None:
    teaches = "load as one session among others, without Spark"
    example = "onceload consume pipelines/events.yaml --session loader-1"
    consumer = command(commands, "consume", consume, teaches, example)
    file_arguments(consumer)
    consume_arguments(consumer)
    teaches = "look at what waits, is in hand or was set aside, and redeliver or abandon it"
    group = commands.add_parser("deliveries", help=teaches, description=sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for action, (run, says, example) in _DELIVERIES.items():
        each = command(actions, action, on_one_pipeline(run), says, f"onceload deliveries {action} {example}")
        add_arguments(action, each)
        if action == "list":
            pipeline_option(each)
            limit_option(each)


def consume(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load as one session, without Spark."""
    with ready_database(settings) as dsn:
        return _consume(arguments, dsn)


def _consume(arguments: Arguments, dsn: str) -> ExitCode:
    from spark_jobs.load.consume import consume as consume_now
    from spark_jobs.load.report import LoadSettings, new_batch

    declared, every_s = read_declared(arguments), seconds("--every", arguments.every)
    if not every_s:
        raise SettingRefused("--every", repr(arguments.every), "some time, such as 1s")
    on_terminal(f"pipeline {declared.name}: session {arguments.session} is at work")
    told: set[Note] = set()
    code, total = ExitCode.DONE, None
    with asked_to_stop() as stopped:
        load_settings = LoadSettings(
            ledger=LedgerSettings(dsn=dsn),
            wait_s=0 if arguments.follow else seconds("--wait", arguments.wait),
            is_stopped=stopped.is_set,
        )

        def pause() -> bool:
            return bool(arguments.follow) and not stopped.wait(every_s)

        name = SessionName(arguments.session)
        for report in consume_now(declared, load_settings, name=name, batch=new_batch(), pause=pause):
            if isinstance(report, OnceloadError):
                if not arguments.follow:
                    raise report
                words(f"pipeline {declared.name}: {report}; session {name} tries again")
                continue
            # Whoever stays says again only what is new.
            notes = [note for note in report.notes if note not in told]
            told = set(report.notes)
            if report.records or notes or not arguments.follow:
                tell_report(replace(report, notes=tuple(notes)))
            total = report if total is None else total.and_then(report)
            code = code_of(report.notes, is_idle=not report.records)
    if arguments.json and total is not None:
        show_json({**asdict(total), "rows_per_s": total.rows_per_s})
    if stopped.is_set():
        words(f"pipeline {declared.name}: session {name} was asked to stop, and has given back what it did not finish")
        # A follower never ends otherwise; of others somebody may count on all that there was to do.
        ended = ExitCode.DONE if arguments.follow else ExitCode.CALL_AGAIN
        return code if code is ExitCode.NEEDS_A_PERSON else ended
    return code


def list_them(arguments: Arguments, engine: Engine) -> ExitCode:
    """Show what waits, is in hand, is staged or was set aside."""
    state = None if arguments.state == "any" else State(arguments.state)
    found = list_deliveries(engine, arguments.pipeline, state=state, at_most=arguments.limit + 1)
    if len(found) > arguments.limit:
        found.pop()
        words(f"only the first {arguments.limit} are shown; --limit shows more")
    if arguments.json:
        show_json({"pipeline": arguments.pipeline, "deliveries": found})
    else:
        columns = ("delivery", "state", "tries", "session", "producer", "producers", "last_failure")
        rows = [{column: row[column] for column in columns} for row in found]
        show_table(rows, nothing="nothing waits, is in hand or was set aside")
    return ExitCode.DONE


def show(arguments: Arguments, engine: Engine) -> ExitCode:
    """Show what a delivery covers, and each try that came to nothing."""
    found = describe(engine, DeliveryId(arguments.number), at_most=_SPANS_SHOWN)
    if arguments.json:
        show_json({**found.delivery, "spans": found.spans, "failures": found.failures})
        return ExitCode.DONE
    columns = ("pipeline", "state", "tries", "batch", "session", "offered_at")
    show_table([{column: found.delivery[column] for column in columns}], nothing="")
    show_table(found.spans, nothing="it covers nothing")
    show_table(found.failures, nothing="no try of it has failed")
    for each in found.failures[-1:]:
        words(f"last: {each['reason']}")
    return ExitCode.DONE


def redeliver(arguments: Arguments, engine: Engine) -> ExitCode:
    """Give a dead letter all its tries again."""
    said = "is handed out again: the next load or consumer takes it"
    return _by_hand(arguments, engine, PostgresDeliveries.redrive, said)


def abandon(arguments: Arguments, engine: Engine) -> ExitCode:
    """Give a delivery up."""
    return _by_hand(arguments, engine, PostgresDeliveries.abandon, "is given up: the next load plans it anew")


def _by_hand(
    arguments: Arguments, engine: Engine, change: Callable[[PostgresDeliveries, DeliveryId], None], said: str
) -> ExitCode:
    number = DeliveryId(arguments.number)
    pipeline = str(describe(engine, number, at_most=0).delivery["pipeline"])
    change(PostgresDeliveries(engine, pipeline, Rules()), number)
    if arguments.json:
        show_json({"pipeline": pipeline, "delivery": number})
    words(f"pipeline {pipeline}: delivery {number} {said}")
    return ExitCode.DONE


def consume_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--session",
        required=True,
        metavar="NAME",
        help="its name, the same each time it is started; in mode session one of 1, 2, 3 and so on",
    )
    command.add_argument("--follow", action="store_true", help="stay, and look for what is new again and again")
    command.add_argument(
        "--every", default="1s", metavar="TIME", help="with --follow: how long to wait between two looks (default: 1s)"
    )
    wait_argument(command)


def add_arguments(action: Action, command: argparse.ArgumentParser) -> None:
    if action == "list":
        states = ("any", State.WAITING, State.HELD, State.STAGED, State.DEAD)
        command.add_argument("--state", choices=states, default="any", help="only those (default: any)")
    else:
        command.add_argument("number", type=int, metavar="NUMBER", help="of the delivery, as `list` shows it")


_DELIVERIES: dict[Action, tuple[Callable[[Arguments, Engine], ExitCode], str, str]] = {
    "list": (list_them, "what waits, is in hand, is staged or was set aside", "--state dead"),
    "show": (show, "what a delivery covers, and each try of it that failed", "12"),
    "redeliver": (redeliver, "give a dead letter all its tries again, once it is mended", "12"),
    "abandon": (abandon, "give a delivery up, so that the next load plans it anew", "12"),
}
