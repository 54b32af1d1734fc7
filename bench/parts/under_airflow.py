"""Runs under a whole Airflow: from the arrival of a file to its rows, and a scheduled run with an audit."""

import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from sqlalchemy import Engine, text

from bench.events import COLUMNS, Events
from bench.measured import Figure, Measured, table
from bench.parts.stand import Stand, check_deep
from onceload import stack
from onceload.pipeline_file import read_pipeline
from onceload_core.postgres import LedgerSettings, connect
from tests.ports import free_port

_ROWS = 1000
_LOOKS_EVERY_S = 0.02
_ARRIVES_WITHIN_S = 10.0
_PATIENCE_S = 300.0
_SUITE = {"expectations": [{"type": "expect_column_values_to_be_unique", "kwargs": {"column": "sequence"}}]}


def under_airflow(stand: Stand) -> str:
    with stand.folder() as folder:
        pipelines = folder / "pipelines"
        pipelines.mkdir()
        with stack.running(folder / "airflow", port=free_port(), pipelines=pipelines, samples=False) as running:
            measuring = _Airflow(folder, pipelines, running.dsn, stand.sizes.repetitions)
            arrivals, of_arrivals = measuring.runs("arriving", schedule="on_arrival", suite=False)
            scheduled, of_scheduled = measuring.runs("audited", schedule="* * * * *", suite=True)
    figures = [
        Figure(
            name="from the arrival of a file to its rows",
            must=15,
            aim=8,
            measured=Measured(tuple(each.rows_s for each in arrivals)),
            unit=" s",
            is_less_better=True,
        ),
        Figure(
            name=f"a scheduled run of {_ROWS:,} rows with an audit",
            must=10,
            aim=6,
            measured=Measured(tuple(each.run_s for each in scheduled)),
            unit=" s",
            is_less_better=True,
        ),
    ]
    return f"""Data: files of {_ROWS:,} events, one for each run, renamed into the folder at random moments.
Airflow runs as `onceload run` starts it. A scheduled run counts from its minute to its end.

{table(["figure", "must", "aim", "measured", "reached"], [each.row() for each in figures])}

{table(["task", "on arrival: from", "to, s", "scheduled: from", "to, s"], list(_lines(of_arrivals, of_scheduled)))}
"""


@dataclass(frozen=True)
class _Run:
    #: From the arrival of the file.
    rows_s: float
    #: From its date.
    run_s: float


_Row = tuple[Any, ...]
#: When each task began and ended, in seconds since its run should have begun.
_Tasks = dict[str, list[tuple[float, float]]]


class _Airflow:
    def __init__(self, folder: Path, pipelines: Path, dsn: str, repetitions: int) -> None:
        self._folder, self._pipelines, self._dsn, self._repetitions = folder, pipelines, dsn, repetitions

    def runs(self, name: str, *, schedule: str, suite: bool) -> tuple[list[_Run], _Tasks]:
        """Let files arrive one after the other; the run of a first one is not measured."""
        landing = self._folder / name
        landing.mkdir()
        pipeline = self._write_pipeline(name, landing, schedule=schedule, suite=suite)
        tasks: _Tasks = {}
        runs = []
        with self._connected("postgres") as loaded, self._connected("airflow") as airflow:
            for number in range(self._repetitions + 1):
                run_id, rows_s = self._arrive(landing, name, number, loaded)
                its = {"dag_id": f"ingest__{name}", "run_id": run_id}
                run_s = float(_until(partial(_ask, airflow, _RUN_S, **its))[0][0])
                print(f"{number}, {name}: rows after {rows_s:.1f} s, run {run_s:.1f} s", file=sys.stderr, flush=True)
                if number:
                    runs.append(_Run(rows_s, run_s))
                    for task, *span in _ask(airflow, _TASKS, **its):
                        tasks.setdefault(task, []).append((float(span[0]), float(span[1])))
            check_deep(read_pipeline(pipeline), loaded, rows=_ROWS * (self._repetitions + 1))
        pipeline.unlink()
        return runs, tasks

    def _write_pipeline(self, name: str, landing: Path, *, schedule: str, suite: bool) -> Path:
        (self._pipelines / f"{name}.suite.json").write_text(json.dumps(_SUITE))
        content = {
            "pipeline": name,
            "source": {"path": f"{landing}/*.jsonl", "format": "jsonl"},
            "columns": COLUMNS,
            "target": {"table": f"public.{name}"},
            "schedule": schedule,
            **({"quality": {"suite": f"{name}.suite.json"}} if suite else {}),
        }
        file = self._pipelines / f"{name}.yaml"
        # All JSON is YAML too.
        file.write_text(json.dumps(content))
        return file

    def _arrive(self, landing: Path, name: str, number: int, loaded: Engine) -> tuple[str, float]:
        """The run that loads the file, and the seconds until its rows are there."""
        # Files do not arrive in step with the pauses of those that look for them.
        time.sleep(random.Random(number).uniform(0, _ARRIVES_WITHIN_S))
        new = landing / f"{number}.new"
        Events(rows=_ROWS, devices=1).write_jsonl(new)
        new.rename(landing / f"{number}.jsonl")
        started = time.monotonic()
        found = _until(lambda: _ask(loaded, _RUN, name=name, runs=number + 1))
        return found[0][0], time.monotonic() - started

    @contextmanager
    def _connected(self, database: str) -> Iterator[Engine]:
        engine = connect(LedgerSettings(dsn=self._dsn.replace("/postgres?", f"/{database}?")))
        try:
            yield engine
        finally:
            engine.dispose()


#: The last run of a pipeline, when so many have loaded something.
_RUN = """
SELECT (array_agg(run_id ORDER BY ledger.position DESC))[1]
  FROM onceload.ledger
  JOIN onceload.pipeline USING (pipeline_id)
 WHERE name = :name AND loaded > 0
HAVING count(*) = :runs
"""
_RUN_S = """
SELECT extract(epoch FROM end_date - run_after)
  FROM dag_run
 WHERE dag_id = :dag_id AND run_id = :run_id AND state = 'success'
"""
_TASKS = """
SELECT task_id, extract(epoch FROM task_instance.start_date - run_after),
       extract(epoch FROM task_instance.end_date - run_after)
  FROM task_instance
  JOIN dag_run USING (dag_id, run_id)
 WHERE dag_id = :dag_id AND run_id = :run_id
 ORDER BY task_instance.start_date
"""


def _ask(engine: Engine, statement: str, **binds: object) -> list[_Row]:
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(text(statement), binds)]


def _until(look: Callable[[], list[_Row]]) -> list[_Row]:
    until = time.monotonic() + _PATIENCE_S
    while not (found := look()):
        if time.monotonic() > until:
            raise SystemExit(f"Airflow did not load a file within {_PATIENCE_S:g} s. Nothing was measured")
        time.sleep(_LOOKS_EVERY_S)
    return found


def _lines(*of_ways: _Tasks) -> Iterator[list[str]]:
    for task in dict.fromkeys(name for tasks in of_ways for name in tasks):
        spans = [tasks.get(task) for tasks in of_ways]
        yield [task, *(cell for each in spans for cell in _cells(each))]


def _cells(spans: list[tuple[float, float]] | None) -> tuple[str, str]:
    if not spans:
        return "-", "-"
    begins, ends = zip(*spans, strict=True)
    return f"{median(begins):.1f}", f"{median(ends):.1f}"
