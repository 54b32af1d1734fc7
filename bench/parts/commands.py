"""Whole commands, from outside: with the start of Python, of sessions and, if there is any, of Spark."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter

from bench import limit
from bench.events import DDL, Events
from bench.measured import Figure, Taken, check_equal
from bench.parts.outside import pipeline_file, run_load, start
from bench.parts.section import section
from bench.parts.stand import Stand, Way
from onceload import resident
from onceload.pipeline_file import read_pipeline
from onceload.services import free_port
from onceload_jobs.pipeline.declared import Publish

_LIMIT, _BARE = "two bare processes", "ten rows, a bare process"
_DIRECT, _STAGED, _SPARK = "direct", "staged", "direct, --engine spark"
_DIRECT_RESIDENT, _STAGED_RESIDENT = "direct, resident Spark", "staged, resident Spark"
_APPENDED, _APPENDED_RESIDENT = "ten appended lines, staged", "ten appended lines, staged, resident Spark"
_LOADED_ROWS, _APPENDED_ROWS = 100_000, 10


def commands(stand: Stand) -> str:
    rows = stand.sizes.rows
    events = Events(rows=rows, devices=max(1, rows // 10))
    with stand.folder() as folder, _spark(stand.home) as spark:
        file = folder / "events.jsonl"
        amount = events.write_jsonl(file)
        ways = {_LIMIT: Way(rows=rows, amount=amount, load=partial(limit.parse_and_copy, file=file))}
        for name, publish, options, remote in (
            (_DIRECT, Publish.DIRECT, (), None),
            (_STAGED, Publish.STAGED, (), None),
            (_DIRECT_RESIDENT, Publish.DIRECT, (), spark),
            (_STAGED_RESIDENT, Publish.STAGED, (), spark),
            (_SPARK, Publish.DIRECT, ("--engine", "spark"), None),
        ):
            pipeline = pipeline_file(folder / f"{publish}.yaml", file, publish=publish)
            load = partial(_load, pipeline=pipeline, rows=rows, options=options, spark=remote)
            ways[name] = Way(rows=rows, amount=amount, load=load, declared=read_pipeline(pipeline))
        ways[_BARE] = _bare(folder)
        ways[_APPENDED] = _appended(stand, folder, "growing", spark=None)
        ways[_APPENDED_RESIDENT] = _appended(stand, folder, "growing-resident", spark=spark)
        taken = stand.alternate(ways)
    local, of_spark, appended = (1.7, 1.4), (1.9, 1.5), ((_APPENDED, 3.5, 2.3), (_APPENDED_RESIDENT, 4.0, 2.8))
    whole = ((_DIRECT, *local), (_STAGED, *local), (_DIRECT_RESIDENT, *of_spark), (_STAGED_RESIDENT, *of_spark))
    figures = [
        *(_times(f"{name}: seconds ÷ those of L", taken[name], taken[_LIMIT], must, aim) for name, must, aim in whole),
        *(
            _times(f"{name}: seconds ÷ those of the bare process", taken[name], taken[_BARE], must, aim)
            for name, must, aim in appended
        ),
    ]
    data = (
        f"Data: {rows:,} events in one file, loaded by `onceload load`; and a file of {_LOADED_ROWS:,} loaded events,"
        f" to which {_APPENDED_ROWS} lines were appended.\n"
        f"The resident Spark is one that `onceload spark start` has started. {_BARE.capitalize()}: Python imports the"
        " libraries of a load, connects, and copies them.\n"
        f"The {_LIMIT} (L) parse the lines and COPY them; their start is in no number."
        " The commands' own start is, and they keep their bytecode, as Python does by default."
    )
    return section(data, figures, taken)


def _times(name: str, taken: Taken, limit: Taken, must: float, aim: float) -> Figure:
    """How many times as long as the limit."""
    return Figure(name=name, must=must, aim=aim, measured=limit.per(taken), is_less_better=True)


@contextmanager
def _spark(home: Path) -> Iterator[str]:
    """The address of a resident Spark."""
    try:
        yield resident.start(home, port=free_port(), ui_port=free_port()).remote
    finally:
        resident.stop(home)


def _load(dsn: str, *, pipeline: Path, rows: int, options: tuple[str, ...] = (), spark: str | None = None) -> float:
    seconds, report = run_load(dsn, pipeline, *options, spark=spark)
    check_equal("rows loaded by the command", found=report["loaded"], expected=rows)
    return seconds


def _bare(folder: Path) -> Way:
    """A process that imports the libraries of a load and copies a few rows."""
    file = folder / "few.csv"
    amount = Events(rows=_APPENDED_ROWS, devices=100).write_csv([file])

    def load(dsn: str) -> float:
        started = perf_counter()
        with start([sys.executable, "-c", _COPY, str(file)], {"ONCELOAD_DSN": dsn}) as process:
            _, messages = process.communicate()
        check_equal("errors of the bare process", found=messages, expected="")
        return perf_counter() - started

    return Way(rows=_APPENDED_ROWS, amount=amount, load=load)


_COPY = f"""
import os, sys
import numpy, pgpq, psycopg2, pyarrow, pyarrow.compute, pyarrow.json, sqlalchemy, yaml
with psycopg2.connect(os.environ["ONCELOAD_DSN"]) as connection, connection.cursor() as cursor:
    cursor.execute("CREATE TABLE target ({DDL})")
    cursor.copy_expert("COPY target FROM STDIN (FORMAT csv)", open(sys.argv[1]))
"""


def _appended(stand: Stand, folder: Path, name: str, *, spark: str | None) -> Way:
    """Load a file, append lines to it, and take the time of the command that loads these."""
    file, lines = folder / f"{name}.jsonl", folder / f"{name}.appended"
    amount = Events(rows=_LOADED_ROWS, devices=100).write_jsonl(file)
    more = Events(rows=_APPENDED_ROWS, devices=100).write_jsonl(lines)
    loaded, appended = file.read_bytes(), lines.read_bytes()
    pipeline = pipeline_file(folder / f"{name}.yaml", file, publish=Publish.STAGED)
    declared = read_pipeline(pipeline)

    def load(dsn: str) -> float:
        file.write_bytes(loaded)
        stand.load(dsn, declared, tasks=stand.local_tasks())
        with file.open("ab") as growing:
            growing.write(appended)
        return _load(dsn, pipeline=pipeline, rows=_APPENDED_ROWS, spark=spark)

    return Way(
        rows=_LOADED_ROWS + _APPENDED_ROWS,
        amount=amount + more,
        load=load,
        declared=declared,
        rows_timed=_APPENDED_ROWS,
    )
