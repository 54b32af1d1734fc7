"""Memory of every process of a load, on a large file."""

from functools import partial
from pathlib import Path

from bench.events import Events
from bench.measured import Figure, Measured, PeakMemory, check_equal, table
from bench.parts.outside import finished, pipeline_file, start_load
from bench.parts.section import mb
from bench.parts.stand import Stand, Way
from onceload.pipeline_file import read_pipeline
from onceload_jobs.pipeline.declared import Publish

_BYTES_MAX = 10**9
#: The last moments before a process ends must not be missed.
_LOOKS_EVERY_S = 0.1


def memory(stand: Stand) -> str:
    figures, rows = [], []
    with stand.folder() as folder:
        file = folder / "events.jsonl"
        events = Events(rows=10_000, devices=1000)
        events.write_jsonl(file)
        count = 10_000 * stand.sizes.memory_bytes // file.stat().st_size
        amount = Events(rows=count, devices=max(1, count // 10)).write_jsonl(file)
        size = file.stat().st_size
        for publish in (Publish.DIRECT, Publish.STAGED):
            pipeline = pipeline_file(folder / f"{publish}.yaml", file, publish=publish)
            peaks: list[PeakMemory] = []
            load = partial(_load, pipeline=pipeline, server=stand.server, rows=count, peaks=peaks)
            seconds, _ = stand.once(Way(rows=count, amount=amount, load=load, declared=read_pipeline(pipeline)))
            (peak,) = peaks
            figures.append(_figure(publish, peak))
            each = (
                ", ".join(map(mb, filter(None, peak.of(kind)))) or "-" for kind in ("driver", "jvm", "worker", "other")
            )
            rows.append([publish, f"{count / seconds:,.0f}", *each, mb(peak.of("postgres")[0])])
    header = ["route", "rows/s", "command", "JVM", "Python workers", "other processes", "largest backend of Postgres"]
    return f"""Data: one file of {size / 1e9:.1f} GB, {count:,} events, loaded once by `onceload load`.
Sizes are peaks of resident memory in MB, one for each process. A backend of Postgres counts the shared buffers that \
it has touched.

{table(["figure", "must", "aim", "measured", "reached"], [each.row() for each in figures])}

{table(header, rows)}
"""


def _load(dsn: str, *, pipeline: Path, server: int, rows: int, peaks: list[PeakMemory]) -> float:
    with start_load(dsn, pipeline) as process:
        peak = PeakMemory(process.pid, server, every_s=_LOOKS_EVERY_S)
        peaks.append(peak)
        with peak.watching():
            report = finished(process)
    check_equal("rows loaded by the command", found=report["loaded"], expected=rows)
    return float(report["seconds"])


def _sizes(peak: PeakMemory, kind: str) -> str:
    # A process that has just ended has no size.
    return ", ".join(map(mb, filter(None, peak.of(kind)))) or "-"


def _figure(publish: Publish, peak: PeakMemory) -> Figure:
    limit = _BYTES_MAX / 1e6
    measured = Measured((peak.largest / 1e6,))
    name = f"{publish}, largest process"
    return Figure(name=name, must=limit, aim=limit, measured=measured, unit=" MB", is_less_better=True)
