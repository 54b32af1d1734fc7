"""Memory of the processes of a load, on a large file."""

from bench.events import Events
from bench.measured import table
from bench.parts.section import mb
from bench.parts.stand import Stand, declared_as
from spark_jobs.pipeline.declared import Publish

_WORKER_BYTES_MAX = 10**9


def memory(stand: Stand) -> str:
    wanted = stand.sizes.memory_bytes
    rows, said = [], []
    with stand.folder() as folder:
        file = folder / "events.jsonl"
        events = Events(rows=10_000, devices=1000)
        events.write_jsonl(file)
        count = 10_000 * wanted // file.stat().st_size
        amount = Events(rows=count, devices=max(1, count // 10)).write_jsonl(file)
        for publish in (Publish.DIRECT, Publish.STAGED):
            seconds, peak = stand.once(stand.ours(declared_as(file, publish=publish), rows=count, amount=amount))
            workers = peak.of("worker")
            row = [f"{count / seconds:,.0f}", *map(mb, (peak.of("driver")[0], peak.of("jvm")[0]))]
            rows.append([publish, *row, ", ".join(map(mb, workers))])
            said.append(f"{publish}: {'within' if max(workers) <= _WORKER_BYTES_MAX else 'above'} the limit")
        size = file.stat().st_size
    header = ["route", "rows/s", "driver, MB", "its JVM, MB", "each Python worker, MB"]
    return f"""Data: one file of {size / 1e9:.1f} GB, {count:,} events.
The limit is {mb(_WORKER_BYTES_MAX)} MB for a Python worker ({"; ".join(said)}).

{table(header, rows)}
"""
