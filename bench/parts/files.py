"""Many small files beside one file of the same events, and a load that finds nothing new."""

from dataclasses import replace
from pathlib import Path

from bench.events import Events
from bench.measured import Figure, Measured, check_equal
from bench.parts.outside import pipeline_file, run_load
from bench.parts.section import section
from bench.parts.stand import Stand, Way, declared_as
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Format, Publish, Source

SMALL, ONE, AGAIN, COMMAND = "small files", "one file", "nothing new", "nothing new, the whole command"
SMALL_ROWS = 100


def files(stand: Stand) -> str:
    files = stand.sizes.files
    events = Events(rows=files * SMALL_ROWS, devices=max(1, files // 10))
    again: dict[str, list[float]] = {AGAIN: [], COMMAND: []}
    with stand.folder() as folder:
        small = folder / "small"
        small.mkdir()
        amount = events.write_small(small, rows_each=SMALL_ROWS)
        check_equal("sum of amounts", found=events.write_jsonl(folder / "events.jsonl"), expected=amount)
        many = declared_as(small / "*.jsonl", publish=Publish.STAGED)
        file = pipeline_file(folder / "events.yaml", small / "*.jsonl", publish=Publish.STAGED)

        def load_many(dsn: str) -> float:
            seconds = stand.load(dsn, many).seconds
            # Without tasks, a load that finds something would start Spark.
            settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
            again[AGAIN].append(_of_nothing(load(many, settings, batch=new_batch())))
            again[COMMAND].append(_command_seconds(dsn, file))
            return seconds

        one = replace(many, source=_source(folder / "events.jsonl"))
        ways = {
            SMALL: Way(rows=events.rows, amount=amount, load=load_many, declared=many),
            ONE: stand.ours(one, rows=events.rows, amount=amount),
        }
        taken = stand.alternate(ways)
    figures = [
        Figure(name="small files ÷ one file, staged", must=0.3, aim=0.7, measured=taken[SMALL].per(taken[ONE])),
        *(
            Figure(name=name, must=3, aim=1, measured=Measured(tuple(seconds)), unit=" s", is_less_better=True)
            for name, seconds in again.items()
        ),
    ]
    data = (
        f"Data: {files:,} files of {SMALL_ROWS} events each, and one file of the same events."
        "\nThe whole command keeps its bytecode, as Python does by default."
    )
    return section(data, figures, taken)


def _source(path: Path) -> Source:
    return Source(path=str(path), format=Format.JSONL)


def _of_nothing(report: Report) -> float:
    found = (report.loaded, report.duplicates, report.engine)
    check_equal("rows loaded again, and the engine that was started", found=found, expected=(0, 0, None))
    return report.seconds


def _command_seconds(dsn: str, file: Path) -> float:
    seconds, report = run_load(dsn, file)
    found = (report["loaded"], report["engine"])
    check_equal("rows loaded by the command, and the engine that was started", found=found, expected=(0, None))
    return seconds
