"""Whole commands, from outside: with the start of Python, of sessions and, if there is any, of Spark."""

from functools import partial
from pathlib import Path

from bench import limit
from bench.events import Events
from bench.measured import Figure, Measured, check_equal
from bench.parts.outside import pipeline_file, run_load
from bench.parts.section import section
from bench.parts.stand import Stand, Way
from onceload.pipeline_file import read_pipeline
from onceload_jobs.pipeline.declared import Publish

_LIMIT = "two bare processes"
_DIRECT, _STAGED, _SPARK = "direct", "staged", "direct, --engine spark"
_APPENDED = "ten appended lines, staged"
_LOADED_ROWS, _APPENDED_ROWS = 100_000, 10


def commands(stand: Stand) -> str:
    rows = stand.sizes.rows
    events = Events(rows=rows, devices=max(1, rows // 10))
    with stand.folder() as folder:
        file = folder / "events.jsonl"
        amount = events.write_jsonl(file)
        ways = {_LIMIT: Way(rows=rows, amount=amount, load=partial(limit.parse_and_copy, file=file))}
        for name, publish, options in (
            (_DIRECT, Publish.DIRECT, ()),
            (_STAGED, Publish.STAGED, ()),
            (_SPARK, Publish.DIRECT, ("--engine", "spark")),
        ):
            pipeline = pipeline_file(folder / f"{publish}.yaml", file, publish=publish)
            load = partial(_load, pipeline=pipeline, rows=rows, options=options)
            ways[name] = Way(rows=rows, amount=amount, load=load, declared=read_pipeline(pipeline))
        ways[_APPENDED] = _appended(stand, folder)
        taken = stand.alternate(ways)
    figures = [
        Figure(
            name="ten appended lines",
            must=2,
            aim=1,
            measured=Measured(tuple(taken[_APPENDED].seconds)),
            unit=" s",
            is_less_better=True,
        ),
        *(
            Figure(
                name=f"{rows:,} events, {name}: seconds ÷ those of L",
                must=2,
                aim=1.5,
                measured=taken[_LIMIT].per(taken[name]),
                is_less_better=True,
            )
            for name in (_DIRECT, _STAGED)
        ),
    ]
    data = (
        f"Data: {rows:,} events in one file, loaded by `onceload load`; and a file of {_LOADED_ROWS:,} loaded events,"
        f" to which {_APPENDED_ROWS} lines were appended.\n"
        f"The {_LIMIT} (L) parse the lines and COPY them; their start is in no number."
        " The commands' own start is, and they keep their bytecode, as Python does by default."
    )
    return section(data, figures, taken)


def _load(dsn: str, *, pipeline: Path, rows: int, options: tuple[str, ...] = ()) -> float:
    seconds, report = run_load(dsn, pipeline, *options)
    check_equal("rows loaded by the command", found=report["loaded"], expected=rows)
    return seconds


def _appended(stand: Stand, folder: Path) -> Way:
    """Load a file, append lines to it, and take the time of the command that loads these."""
    file, lines = folder / "growing.jsonl", folder / "appended.jsonl"
    amount = Events(rows=_LOADED_ROWS, devices=100).write_jsonl(file)
    more = Events(rows=_APPENDED_ROWS, devices=100).write_jsonl(lines)
    loaded, appended = file.read_bytes(), lines.read_bytes()
    pipeline = pipeline_file(folder / "growing.yaml", file, publish=Publish.STAGED)
    declared = read_pipeline(pipeline)

    def load(dsn: str) -> float:
        file.write_bytes(loaded)
        stand.load(dsn, declared, tasks=stand.local_tasks())
        with file.open("ab") as growing:
            growing.write(appended)
        return _load(dsn, pipeline=pipeline, rows=_APPENDED_ROWS)

    return Way(
        rows=_LOADED_ROWS + _APPENDED_ROWS,
        amount=amount + more,
        load=load,
        declared=declared,
        rows_timed=_APPENDED_ROWS,
    )
