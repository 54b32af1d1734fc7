"""Arguments that several commands share."""

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from sqlalchemy import Engine

from onceload.databases import only_pipeline, open_database
from onceload.outcome import Outcome
from onceload.settings import Settings
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.events import FORMATS
from onceload_core.postgres import PostgresLedger

if TYPE_CHECKING:
    # Arrow takes a while to import, and most commands do without it.
    from onceload_jobs.pipeline.declared import Declared

Arguments = argparse.Namespace
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # noqa: SLF001 - it has no other name.
Run = Callable[[Arguments, Settings], ExitCode | Outcome]


def command(
    commands: Commands,
    name: str,
    run: Run,
    teaches: str,
    example: str,
) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=teaches,
        description=sentence(teaches),
        epilog=f"example: {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("--json", action="store_true", help="print one JSON document on stdout")
    command.add_argument(
        "--log-format",
        choices=FORMATS,
        help="how events on stderr are written (default: ONCELOAD_LOG_FORMAT, or text); ONCELOAD_LOG=info shows them",
    )
    command.add_argument(
        "--debug", action="store_true", help="print the traceback of an error; it may contain values of rows"
    )
    command.set_defaults(run=run)
    return command


def sentence(teaches: str) -> str:
    return teaches[0].upper() + teaches[1:] + "."


def pipeline_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--pipeline", metavar="NAME", help="the pipeline (optional if there is only one)")


def limit_option(command: argparse.ArgumentParser, *, default: int = 50) -> None:
    teaches = f"show at most N rows (default: {default})"
    command.add_argument("--limit", type=positive, default=default, metavar="N", help=teaches)


def position_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--position", type=positive, metavar="N", help="the position of the snapshot (default: the latest)"
    )


#: N + 1 must still fit an int8.
_NUMBER_MAX = 2**63 - 2


def positive(text: str) -> int:
    return number(text, least=1)


def number(text: str, *, least: int = 0) -> int:
    if not re.fullmatch(r"[0-9]{1,19}", text) or not least <= int(text) <= _NUMBER_MAX:
        raise argparse.ArgumentTypeError(f"expected {least} to {_NUMBER_MAX}, found {text!r}")
    return int(text)


def file_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("file", type=Path, metavar="FILE", help="the pipeline's YAML file")
    set_option(command)


def set_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="the value of the placeholder {{ NAME }} in source.path (repeatable)",
    )


def read_declared(arguments: Arguments, *, needs_source: bool = True) -> "Declared":
    """Read a pipeline file; one without source is for rows that a program has loaded."""
    from onceload.pipeline_file import read_pipeline

    return read_pipeline(arguments.file, values=pairs("--set", arguments.set), needs_source=needs_source)


def read_as_loaded(arguments: Arguments, engine: Engine) -> "Declared":
    """Read a pipeline file, and refuse one that would change the meaning of loaded data."""
    from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
    from onceload_jobs.write.rights import check_schema

    declared = read_declared(arguments, needs_source=False)
    check_schema(engine, declared)
    PostgresLedger(engine).find_version(pipeline_with_declaration(declared))
    return declared


def load_arguments(command: argparse.ArgumentParser) -> None:
    """Options of a load."""
    wait_argument(command)
    command.add_argument("--batch", metavar="NAME", help="the name of this run; a later run of the same name fences it")
    engine_arguments(command)


def engine_arguments(command: argparse.ArgumentParser) -> None:
    """Options for where the workers of a command run."""
    command.add_argument(
        "--engine",
        choices=("auto", "spark", "local"),
        default="auto",
        help="run in Spark, or in processes of this machine (default: Spark, if one is named by --remote, --master, "
        "--conf or ONCELOAD_SPARK, and for a transform in Spark SQL)",
    )
    command.add_argument(
        "--remote",
        metavar="URL",
        help="the Spark Connect server, such as sc://localhost:15002 (default: ONCELOAD_SPARK)",
    )
    command.add_argument("--master", metavar="URL", help="the master of a Spark that starts for this call alone")
    command.add_argument(
        "--conf",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a Spark option (repeatable)",
    )


def engine_named(arguments: Arguments) -> dict[str, Any]:
    """What these options say, as the Python API takes it."""
    return {
        "engine": arguments.engine,
        "remote": arguments.remote,
        "master": arguments.master,
        "spark_options": pairs("--conf", arguments.conf),
    }


def wait_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--wait",
        default="10m",
        metavar="TIME",
        help="how long to wait for other loads of the same files that make no progress, such as 30s (default: 10m)",
    )


def batch_argument(command: argparse.ArgumentParser, *, required: bool) -> None:
    command.add_argument("--batch", metavar="NAME", required=required, help="the name under which the batch was staged")


def choice_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="FILE",
        help="load only this file: its path below the source's root, or a pattern such as '2026-03-*/*' (repeatable)",
    )
    command.add_argument(
        "--replace",
        action="store_true",
        help="reload files that are already loaded; their old rows are deleted in the same transaction",
    )


def differences_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--accept-differences",
        action="store_true",
        help="replace a file's old rows even if the target holds more or fewer of them than were loaded; a load also "
        "replaces the rows of a file that has no good record any more (default: refuse)",
    )


def pairs(option: str, given: Sequence[str]) -> Mapping[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not name or not equals:
            raise SettingRefused(option, repr(each), "NAME=VALUE")
        found[name] = value
    return found


def seconds(option: str, given: str) -> float:
    """Parse a time with its unit, as in pipeline files."""
    match = re.fullmatch(r"([0-9]{1,9}) ?([smhd])", given)
    if match is None:
        raise SettingRefused(option, repr(given), "a time with its unit, such as 30s, 10m or 1h")
    return int(match[1]) * {"s": 1, "m": 60, "h": 3_600, "d": 86_400}[match[2]]


def on_one_pipeline(run: Callable[[Arguments, Engine], ExitCode]) -> Callable[[Arguments, Settings], ExitCode]:
    """Wrap a command on quarantine or deliveries: open the database, and find the only pipeline if none is named."""

    def run_on_it(arguments: Arguments, settings: Settings) -> ExitCode:
        with open_database(settings) as engine:
            if getattr(arguments, "pipeline", "") is None:
                arguments.pipeline = only_pipeline(engine)
            return run(arguments, engine)

    return run_on_it
