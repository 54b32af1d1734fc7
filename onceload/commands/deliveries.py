"""The commands around deliveries: consume, and deliveries list, show, redeliver, abandon."""

import argparse
from collections.abc import Callable, Collection
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Literal

from sqlalchemy import Engine

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
from onceload.commands.reports import print_report
from onceload.settings import Settings, user_name
from onceload.terminal import on_terminal, show_json, show_table, words
from onceload_core.delivery import State
from onceload_core.errors import ExitCode, OnceloadError, SettingRefused
from onceload_core.names import DeliveryId, SessionName
from onceload_core.postgres import LedgerSettings, by_hand

if TYPE_CHECKING:
    # Arrow takes a while to import.
    from onceload_jobs.files.notes import Note
    from onceload_jobs.load.report import Report
from onceload.databases import ready_database
from onceload.stopping import asked_to_stop

Action = Literal["list", "show", "redeliver", "abandon"]


_SPANS_SHOWN = 100


def add(commands: Commands) -> None:
    teaches = "load without Spark, as one of several parallel sessions"
    example = "onceload consume pipelines/events.yaml --session loader-1"
    consumer = command(commands, "consume", consume, teaches, example)
    file_arguments(consumer)
    consume_arguments(consumer)
    teaches = "show deliveries that wait, are in progress or are dead letters; redeliver or abandon them"
    group = commands.add_parser("deliveries", help=teaches, description=sentence(teaches))
    actions = group.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for action, (run, help_text, example) in _DELIVERIES.items():
        each = command(actions, action, on_one_pipeline(run), help_text, f"onceload deliveries {action} {example}")
        add_arguments(action, each)
        if action == "list":
            pipeline_option(each)
            limit_option(each)


def consume(arguments: Arguments, settings: Settings) -> ExitCode:
    """Load without Spark, as one session."""
    with ready_database(settings) as dsn:
        return _consume(arguments, settings, dsn)


def _consume(arguments: Arguments, settings: Settings, dsn: str) -> ExitCode:
    from onceload_jobs.load.consume import consume as consume_now
    from onceload_jobs.load.settings import LoadSettings, new_batch

    declared, every_s = read_declared(arguments), seconds("--every", arguments.every)
    if not every_s:
        raise SettingRefused("--every", repr(arguments.every), "a time longer than 0, such as 1s")
    on_terminal(f"pipeline {declared.name}: session {arguments.session} is loading")
    shown: set[Note] = set()
    code, total, failure = ExitCode.DONE, None, ""
    with asked_to_stop() as stopped:
        wait_s = 0 if arguments.follow else seconds("--wait", arguments.wait)
        is_stopped = stopped.is_set
        how = LoadSettings(ledger=LedgerSettings(dsn=dsn), stage=settings.stage, wait_s=wait_s, is_stopped=is_stopped)

        def pause() -> bool:
            return bool(arguments.follow) and not stopped.wait(every_s)

        name = SessionName(arguments.session)
        for report in consume_now(declared, how, name=name, batch=new_batch(), pause=pause):
            if isinstance(report, OnceloadError):
                if not arguments.follow:
                    raise report
                failure = _print_failure(f"session {name} of pipeline {declared.name}", report, before=failure)
                continue
            failure = ""
            _print_news(report, shown, is_follower=arguments.follow)
            shown = set(report.notes)
            total = report if total is None else total.and_then(report)
            code = report.exit_code
    if arguments.json and total is not None:
        show_json({**asdict(total), "rows_per_s": total.rows_per_s})
    if not stopped.is_set():
        return code
    words(f"pipeline {declared.name}: session {name} was stopped, and has released the deliveries it did not finish")
    # Stopping is how a follower ends. Callers of other loads may count on everything being loaded.
    ended = ExitCode.DONE if arguments.follow else ExitCode.CALL_AGAIN
    return code if code is ExitCode.NEEDS_A_PERSON else ended


def _print_failure(whose: str, error: OnceloadError, *, before: str) -> str:
    """Print a new failure. A pause or a database that is down may last for hours."""
    if str(error) != before:
        words(f"{whose} failed and retries: {error}")
    return str(error)


def _print_news(report: "Report", shown: "Collection[Note]", *, is_follower: bool) -> None:
    """Print a report; a follower prints each note only once, and nothing if nothing is new."""
    notes = tuple(note for note in report.notes if note not in shown)
    if report.records or notes or not is_follower:
        print_report(replace(report, notes=notes))


def list_them(arguments: Arguments, engine: Engine) -> ExitCode:
    """List deliveries: waiting, held, staged or dead letters; and the claims of planners, which are held."""
    state = None if arguments.state == "any" else State(arguments.state)
    found = by_hand.list_deliveries(engine, arguments.pipeline, state=state, at_most=arguments.limit + 1)
    if len(found) > arguments.limit:
        found.pop()
        words(f"only the first {arguments.limit} are shown; use --limit to see more")
    if arguments.json:
        show_json({"pipeline": arguments.pipeline, "deliveries": found})
    else:
        columns = ("delivery", "state", "tries", "session", "deadline_at", "producer", "producers", "last_failure")
        rows = [{column: row[column] for column in columns} for row in found]
        show_table(rows, nothing="no delivery waits, is in progress or is a dead letter")
    return ExitCode.DONE


def show(arguments: Arguments, engine: Engine) -> ExitCode:
    """Show what a delivery covers, and each failed attempt."""
    found = by_hand.describe(engine, DeliveryId(arguments.number), at_most=_SPANS_SHOWN)
    if arguments.json:
        show_json({**found.delivery, "spans": found.spans, "failures": found.failures})
        return ExitCode.DONE
    columns = ("pipeline", "state", "tries", "batch", "session", "offered_at", "deadline_at")
    show_table([{column: found.delivery[column] for column in columns}], nothing="")
    show_table(found.spans, nothing="it covers no records")
    show_table(found.failures, nothing="no attempt has failed")
    for each in found.failures[-1:]:
        words(f"last failure: {each['reason']}")
    return ExitCode.DONE


def redeliver(arguments: Arguments, engine: Engine) -> ExitCode:
    """Reset the retries of a dead letter, and hand it out again."""
    outcome = "is handed out again: the next load or consumer takes it"
    return _by_hand(arguments, engine, by_hand.redrive, outcome)


def abandon(arguments: Arguments, engine: Engine) -> ExitCode:
    """Drop a delivery; the next load plans its records again."""
    outcome = "is abandoned: the next load plans its records again"
    return _by_hand(arguments, engine, by_hand.abandon, outcome)


def _by_hand(arguments: Arguments, engine: Engine, change: Callable[..., None], outcome: str) -> ExitCode:
    number = DeliveryId(arguments.number)
    pipeline = str(by_hand.describe(engine, number, at_most=0).delivery["pipeline"])
    change(engine, pipeline, number, by=user_name())
    if arguments.json:
        show_json({"pipeline": pipeline, "delivery": number})
    words(f"pipeline {pipeline}: delivery {number} {outcome}")
    return ExitCode.DONE


def consume_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--session",
        required=True,
        metavar="NAME",
        help="the name of the session, the same at every start; in mode session: 1, 2, 3 and so on",
    )
    command.add_argument("--follow", action="store_true", help="keep running, and load new records as they arrive")
    command.add_argument(
        "--every", default="1s", metavar="TIME", help="with --follow: how often to check for new records (default: 1s)"
    )
    wait_argument(command)


def add_arguments(action: Action, command: argparse.ArgumentParser) -> None:
    if action == "list":
        states = ("any", State.WAITING, State.HELD, State.DEAD)
        command.add_argument("--state", choices=states, default="any", help="show only this state (default: any)")
    else:
        command.add_argument("number", type=int, metavar="NUMBER", help="the number of the delivery, see `list`")


_DELIVERIES: dict[Action, tuple[Callable[[Arguments, Engine], ExitCode], str, str]] = {
    "list": (list_them, "list deliveries that wait, are in progress or are dead letters", "--state dead"),
    "show": (show, "show what a delivery covers, and each failed attempt", "12"),
    "redeliver": (redeliver, "retry a dead letter, after its cause is fixed", "12"),
    "abandon": (
        abandon,
        "drop a delivery or what a lost session holds, so that the next load plans its records again",
        "12",
    ),
}
