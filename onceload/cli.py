"""The command line: a thin layer over the core; results on stdout, messages on stderr, exit codes by error group."""

import argparse
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from sqlalchemy.exc import DBAPIError

from dedup_core.errors import DatabaseLost, ExitCode, OnceloadError
from dedup_core.events import show_events
from dedup_core.postgres.connection import first_line, is_lost
from onceload.commands import (
    deliveries,
    loads,
    maintain,
    quarantine,
    recover,
    services,
    setup,
    snapshots,
    verify,
    views,
)
from onceload.commands.parser import Parser
from onceload.outcome import Outcome, write_outcome
from onceload.settings import Settings, read_settings
from onceload.terminal import show_json, words

Arguments = argparse.Namespace


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> ExitCode:
    """Run one command; report every error in one sentence."""
    parser = build_parser()
    if "_ARGCOMPLETE" in environment:
        # A shell asks for the words that may follow. The answer ends this process.
        import argcomplete

        argcomplete.autocomplete(parser)
    parsed = parser.parse_args(arguments)
    try:
        if parsed.log_format:
            # Spark's tasks inherit it.
            os.environ["ONCELOAD_LOG_FORMAT"] = parsed.log_format
            show_events({**environment, "ONCELOAD_LOG_FORMAT": parsed.log_format})
        run: Callable[[Arguments, Settings], ExitCode] = parsed.run
        outcome = Outcome(exit_code=run(parsed, read_settings(environment)))
    except BrokenPipeError:
        raise
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no command ends with a traceback.
        if environment.get("ONCELOAD_LOG") == "debug":
            traceback.print_exc()
        message, exit_code = _in_words(error)
        outcome = _report_error(error, message, exit_code, json=parsed.json)
    with suppress(OSError):
        write_outcome(outcome, environment)
    return outcome.exit_code


def _in_words(error: BaseException) -> tuple[str, ExitCode]:
    """The error in one sentence, and its exit code."""
    match error:
        case OnceloadError():
            return str(error), error.exit_code
        case DBAPIError() if is_lost(error):
            return str(DatabaseLost("working", first_line(error))), ExitCode.CALL_AGAIN
        case DBAPIError():
            return f"{first_line(error)}; nothing was changed", ExitCode.WRONG_USE
        case KeyboardInterrupt():
            message = "interrupted. All uncommitted work was rolled back. Run the command again"
            return message, ExitCode.CALL_AGAIN
        case OSError() | UnicodeError() | RuntimeError():
            # Work that was done before the output failed stays done; the next call reports it.
            return f"{type(error).__name__}: {error}", ExitCode.CALL_AGAIN
        case _:
            # The message of an unexpected error may contain values of rows, so it is not shown.
            unexpected = f"an unexpected {type(error).__name__} stopped this command. This is a bug in Onceload"
            what_now = (
                "All uncommitted work was rolled back. Set ONCELOAD_LOG=debug to see the traceback, and report it"
            )
            return f"{unexpected}. {what_now}.", ExitCode.CALL_AGAIN


def _report_error(error: BaseException, message: str, exit_code: ExitCode, *, json: bool) -> Outcome:
    for line in f"onceload: {message}".split("\n"):
        words(line)
    if json:
        with suppress(OSError):
            show_json({"error": type(error).__name__, "message": message, "exit_code": exit_code})
    return Outcome(exit_code=exit_code, error=type(error).__name__, message=message)


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = Parser(
        prog="onceload",
        description="Loads files into Postgres exactly once.",
        epilog="ONCELOAD_DSN names the database. Without it, an embedded Postgres is started\nunder .onceload/.\n"
        "Exit codes: 0 done, 1 failed and safe to retry, 2 wrong usage,\n3 outcome unknown, 4 needs a person.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for group in (setup, loads, verify, views, deliveries, quarantine, snapshots, recover, maintain, services):
        group.add(commands)
    return parser
