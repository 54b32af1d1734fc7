"""Measure, after checking the rows; never a test, because a number depends on the machine.

python -m bench            everything, on an embedded Postgres of its own; writes docs/benchmarks.md and -loads.md
python -m bench ledger     commits and states alone; writes docs/benchmarks.md
python -m bench loads      loads alone; writes docs/benchmarks-loads.md, part by part (--only: some of them)
python -m bench parsing    what Airflow's DAG processor takes for many pipeline files; prints it
python -m bench trace      what one small load calls and sends; prints it
python -m bench dirty      how fast dirty data is read, against clean data; prints it
python -m bench console    how long each page of the console takes with 10 000 000 commits; prints it (15 GB of disk)
python -m bench scale      a run over 1 000 000 files, and with 100 000 000 producers; prints it (an hour, 60 GB)
python -m bench --quick    one short repetition, to see that it works; writes nothing
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench import commits, console, dirty, loads, parsing, scale, states, trace
from bench.machine import Machine, describe
from bench.measured import Measured
from onceload import schema
from onceload.embedded import running
from onceload_core.postgres import LedgerSettings, connect

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
LOADS_PAGE = PAGE.with_name("benchmarks-loads.md")


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure, after checking the rows.")
    parts = ["ledger", "loads", "parsing", "trace", "dirty", "console", "scale"]
    parser.add_argument("part", nargs="?", choices=parts, help="left out, all but trace, console and scale")
    parser.add_argument("--quick", action="store_true", help="one short repetition; the pages stay as they are")
    loads.add_arguments(parser)
    scale.add_arguments(parser)
    parsed = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="onceload-bench-") as folder:
        home = Path(folder)
        # The server's account must be able to reach what is below.
        home.chmod(0o755)
        measure_reading(home, parsed)
        if parsed.part not in ("parsing", "dirty"):
            with running(home) as dsn:
                measure_on_server(home, dsn, parsed)
    return 0


def measure_reading(home: Path, parsed: argparse.Namespace) -> None:
    if parsed.part in (None, "parsing"):
        for what, seconds in parsing.measure(home, repetitions=1 if parsed.quick else 5).items():
            print(f"{what}: {seconds} s", flush=True)
    if parsed.part in (None, "dirty"):
        for what, share in dirty.measure(repetitions=1 if parsed.quick else 5).items():
            print(f"{what}: {share}", flush=True)


def measure_on_server(home: Path, dsn: str, parsed: argparse.Namespace) -> None:
    if parsed.part in (None, "ledger"):
        measure_ledger(dsn, quick=parsed.quick)
    if parsed.part in (None, "loads"):
        measure_loads(home, dsn, parsed)
    if parsed.part == "trace":
        _make_schema(dsn)
        for line in trace.report(dsn):
            print(line, flush=True)
    if parsed.part == "console":
        for path, milliseconds in console.measure(dsn, repetitions=1 if parsed.quick else 5):
            print(f"{path}: {milliseconds} ms", flush=True)
    if parsed.part == "scale":
        for found in scale.measure(home, dsn, parsed):
            print(found, flush=True)


def _make_schema(dsn: str) -> None:
    engine = connect(LedgerSettings(dsn=dsn))
    schema.upgrade(engine)
    engine.dispose()


def measure_ledger(dsn: str, *, quick: bool) -> None:
    repetitions, seconds = (1, 0.5) if quick else (3, 3.0)
    _make_schema(dsn)
    engine = connect(LedgerSettings(dsn=dsn))
    machine = describe(engine)
    engine.dispose()
    rates = commits.measure(dsn, repetitions=repetitions, seconds=seconds)
    parts = states.measure(dsn, repetitions=repetitions)
    text = page(machine, rates, parts, repetitions=repetitions, seconds=seconds)
    print(text)
    if not quick:
        PAGE.write_text(text, encoding="utf-8")


def measure_loads(home: Path, dsn: str, parsed: argparse.Namespace) -> None:
    """Each part takes its section's place as soon as it is measured; the others stay as they were."""
    for title, text in loads.measure(home, dsn, parsed):
        print(f"## {title}\n\n{text}", flush=True)
        if not parsed.quick:
            found = LOADS_PAGE.read_text(encoding="utf-8") if LOADS_PAGE.exists() else ""
            LOADS_PAGE.write_text(loads.page(found, title, text), encoding="utf-8")


def page(
    machine: Machine,
    rates: dict[tuple[str, int], Measured],
    parts: dict[str, Measured],
    *,
    repetitions: int,
    seconds: float,
) -> str:
    """What `docs/benchmarks.md` keeps: machine, data, command, and the numbers beside their limit."""
    return f"""# Benchmarks

Command: `python -m bench ledger`, a part of `make bench`, run on {datetime.now(UTC):%Y-%m-%d}.
A number is the median of {repetitions} repetitions, with the lowest and the highest in brackets.
Rows, receipts and states were checked before each number was taken down.
They are measurements of one machine, not tests: compare them only with your own run.
Loads, beside others and beside their limit: [benchmarks-loads.md](benchmarks-loads.md).

## The machine

- {machine.processors}, {machine.memory} of memory, load {machine.load}; {machine.system}.
- Python {machine.python}, Postgres {machine.postgres} (embedded, on the same machine, through a Unix socket).
- {machine.settings}.

## Commits per second

Data: each committer is a process with a connection, a session and a producer of its own; \
a commit is one span and one row.
The limit is the bare transaction: one INSERT and a COMMIT of the same row, on as many connections, \
through the same driver and without any proof.
The ways take turns within a repetition, {seconds:g} s each, so other work on the machine slows all of them.

{commits.report(rates)}

One pipeline commits one after another, because its commit lock makes positions gapless.
Pipelines do not wait for each other.
A commit runs five statements and the bare transaction one, so a commit of one row pays most for its proof.
They are for the id of the transaction, the row, the position with the session, the producer with its receipt, and \
the entry.

## A million producers

Data: {states.PRODUCERS:,} record producers of one pipeline; then {states.ENTRIES:,} ledger entries after the \
snapshot, with one receipt of ten records each.
The aims are 12 s for one commit that advances all of them, and 10 s for a rebuild of their states.

{states.report(parts)}
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
