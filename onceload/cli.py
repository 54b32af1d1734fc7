"""The command line: a thin layer over the core; results on stdout, messages on stderr, exit codes by error group."""

import argparse
import os
import platform
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from typing import Any

from onceload.commands.overview import OVERVIEW
from onceload.commands.parser import Parser
from onceload.engines import begin_early
from onceload.errors_in_words import outcome_of
from onceload.named_files import named
from onceload.outcome import Outcome, write_outcome
from onceload.settings import Settings, read_settings
from onceload.terminal import lines_of_words, naming, show_json, show_text, with_file_named
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import ExitCode
from onceload_core.events import show_events
from onceload_core.pipeline import refuse_other_encodings

Arguments = argparse.Namespace


def main(arguments: Sequence[str], environment: Mapping[str, str]) -> ExitCode:
    """Run one command; report every error in one sentence."""
    is_completing = "_ARGCOMPLETE" in environment
    if not is_completing:
        begin_early(arguments, environment)
    parser = build_parser(None if is_completing else next((each for each in arguments if each[:1] != "-"), ""))
    if is_completing:
        # A shell asks for the words that may follow. The answer ends this process.
        import argcomplete

        argcomplete.autocomplete(parser)
    if not arguments:
        lines_of_words(parser.format_help().rstrip())
        return ExitCode.WRONG_USE
    parsed = parser.parse_args(arguments)
    # Other commands take a file of another kind, or the values for a file that they find.
    takes_file = hasattr(parsed, "file") and hasattr(parsed, "set")
    with naming(named(parsed.file, parsed.set) if takes_file else PIPELINE_FILE):
        outcome = _run(parsed, environment)
        with suppress(OSError):
            write_outcome(replace(outcome, message=with_file_named(outcome.message)), environment)
    return outcome.exit_code


def _run(parsed: Arguments, environment: Mapping[str, str]) -> Outcome:
    """Run the command; print its error."""
    try:
        if parsed.log_format:
            # Spark's tasks inherit it.
            os.environ["ONCELOAD_LOG_FORMAT"] = parsed.log_format
            show_events({**environment, "ONCELOAD_LOG_FORMAT": parsed.log_format})
        # The names of files that are given as arguments are decoded already.
        refuse_other_encodings()
        run: Callable[[Arguments, Settings], ExitCode | Outcome] = parsed.run
        ended = run(parsed, read_settings(environment))
        return ended if isinstance(ended, Outcome) else Outcome(exit_code=ended)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - no command ends with a traceback.
        if parsed.debug or environment.get("ONCELOAD_LOG") == "debug":
            traceback.print_exc()
        outcome = outcome_of(error)
        _report_error(outcome, json=parsed.json)
        return outcome


def _report_error(outcome: Outcome, *, json: bool) -> None:
    lines_of_words(f"onceload: {outcome.message}")
    if json:
        show_json({"error": outcome.error, "message": outcome.message, "exit_code": outcome.exit_code})


def build_parser(wanted: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. Only the wanted one gets its arguments; the others are names in the help."""
    parser = Parser(
        prog="onceload",
        description="Loads files into Postgres exactly once.",
        epilog="To load your own files, first draft a pipeline file from them:\n"
        "  onceload draft 'landing/orders/*.jsonl' > orders.yaml\n"
        "ONCELOAD_DSN names the database. Without it, an embedded Postgres is started\nunder .onceload/.\n"
        "Exit codes: 0 done, 1 failed and safe to retry, 2 wrong usage,\n3 outcome unknown, 4 needs a person.\n"
        'Completion with Tab: eval "$(register-python-argcomplete onceload)"',
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=_Version, help="print the versions of Onceload and its parts, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module, names in OVERVIEW.items():
        if wanted is None or wanted in names:
            import_module(f"onceload.commands.{module}").add(commands)
            continue
        for name, teaches in names.items():
            commands.add_parser(name, help=teaches)
    return parser


class _Version(argparse.Action):
    """Print the versions that a bug report needs. They are looked up only when they are asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, **given: Any) -> None:  # noqa: ANN401 - as above it.
        super().__init__(option_strings, dest, nargs=0, **given)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        import psycopg2

        libpq = psycopg2.__libpq_version__
        show_text(f"onceload {version('onceload')}\n")
        show_text(f"Python {platform.python_version()}, libpq {libpq // 10000}.{libpq % 10000}, ")
        show_text(f"pyarrow {version('pyarrow')}\n")
        parser.exit()
