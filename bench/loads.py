"""Loads beside others that load the same rows, and beside themselves in other circumstances.

The ways of a part take turns within a repetition, each into a database of its own; a figure is the ratio of two ways
within a repetition, so that they share whatever else the machine does.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from bench import peers
from bench.machine import Machine, describe
from bench.measured import DAEMON
from bench.parts.commands import commands
from bench.parts.files import SMALL_ROWS, files
from bench.parts.memory import memory
from bench.parts.others import beside_others, large
from bench.parts.parquet import parquet
from bench.parts.producers import producers
from bench.parts.sessions import shared_pipeline
from bench.parts.stand import QUICK, Sizes, Stand
from bench.parts.under_airflow import under_airflow
from onceload_core.postgres import LedgerSettings, connect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    wanted = parser.add_argument_group("loads")
    wanted.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS), help="some parts of the loads")
    wanted.add_argument("--rows", type=int, help="of the comparison with others (3 000 000)")
    wanted.add_argument("--rows-large", type=int, help="of the large file, and of records with ids (10 000 000)")
    wanted.add_argument("--rows-dlt", type=int, help="of the file that dlt loads (300 000)")
    wanted.add_argument("--files", type=int, help=f"small files, of {SMALL_ROWS} rows each (10 000)")
    wanted.add_argument("--memory-bytes", type=int, help="of the file that memory is measured with (5 000 000 000)")
    wanted.add_argument("--deliveries", type=int, help="of tiny chunks, to sessions (5 000)")
    wanted.add_argument("--repetitions", type=int, help="of each way (5)")
    wanted.add_argument("--jdbc", type=Path, default=peers.JDBC_DRIVER, help="the driver's jar (%(default)s)")


def sizes_of(arguments: argparse.Namespace) -> Sizes:
    given = {name: getattr(arguments, name) for name in Sizes.__dataclass_fields__}
    return replace(
        QUICK if arguments.quick else Sizes(), **{name: each for name, each in given.items() if each is not None}
    )


def page(found: str, title: str, text: str) -> str:
    """The text of `docs/benchmarks-loads.md` with one section replaced; each section names its machine and data."""
    _, *sections = f"\n{found}".split("\n## ")
    kept = dict(section.split("\n\n", 1) for section in sections)
    kept[title] = text
    in_order = [f"\n## {name}\n\n{kept[name].strip()}\n" for name in TITLES.values() if name in kept]
    return _INTRODUCTION + "".join(in_order)


_INTRODUCTION = """# Benchmarks of loads

Command: `python -m bench loads`; `--only` and the name of a part rewrite one section.
Rows and the sum of their amounts were checked before each number was taken down, and each load of ours by \
`onceload verify --deep`, outside the measured time.
A ratio compares two ways within a repetition, in which all ways take turns; its median is judged.
They are measurements of one machine, not tests: compare them only with your own run.
"""


def measure(home: Path, dsn: str, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """One part after the other: its title and its text."""
    peers.open_port(home)
    engine = connect(LedgerSettings(dsn=dsn))
    machine = describe(engine)
    engine.dispose()
    jdbc = arguments.jdbc if arguments.jdbc.exists() else None
    with ExitStack() as running:
        stand = Stand(home=home, dsn=dsn, sizes=sizes_of(arguments), jdbc=jdbc, running=running)
        for name in arguments.only:
            load_before = os.getloadavg()[0]
            text = PARTS[name](stand)
            about = _about(machine, stand, load_before=load_before, is_once=PARTS[name] is memory)
            yield TITLES[name], f"{about}\n{text}"


def _about(machine: Machine, stand: Stand, *, load_before: float, is_once: bool) -> str:
    session = ""
    if stand.session_start_s is not None:
        session = (
            f"Spark's session forks its workers from `{DAEMON}`. It took {stand.session_start_s:.1f} s to start and was"
            " warmed up by a load, but not its SQL; neither is in any other number.\n"
        )
    several = (
        f"A number is the median of {stand.sizes.repetitions} repetitions, with the lowest and the highest in brackets."
    )
    return f"""Command: `{" ".join(["python -m bench", *sys.argv[1:]])}`, run on {datetime.now(UTC):%Y-%m-%d}, \
at a load of {load_before:.1f} before this part and {os.getloadavg()[0]:.1f} after it.
{machine.processors}, {machine.memory} of memory, {machine.system}; Python {machine.python}, \
Postgres {machine.postgres} (embedded, same machine); {machine.settings}.
{"Each way was loaded once." if is_once else several}
{session}"""


PARTS: dict[str, Callable[[Stand], str]] = {
    "events": beside_others,
    "large": large,
    "producers": producers,
    "commands": commands,
    "parquet": parquet,
    "files": files,
    "memory": memory,
    "sessions": shared_pipeline,
    "airflow": under_airflow,
}
TITLES = {
    "events": "Beside others",
    "large": "A larger file",
    "producers": "Record producers and business ids",
    "commands": "Whole commands",
    "parquet": "Parquet",
    "files": "Many small files",
    "memory": "Memory",
    "sessions": "Sessions",
    "airflow": "Under Airflow",
}
