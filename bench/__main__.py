"""Measure, after checking the rows; never a test, because a number depends on the machine.

python -m bench            everything, on an embedded Postgres of its own; writes docs/benchmarks.md
python -m bench --quick    one short repetition, to see that it works; writes nothing
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from bench import commits, states
from bench.machine import Machine, describe
from bench.measured import Measured
from dedup_core.postgres import LedgerSettings, connect
from onceload import schema
from onceload.embedded import running

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Measure, after checking the rows.")
    parser.add_argument("--quick", action="store_true", help="one short repetition; docs/benchmarks.md stays as it is")
    quick = parser.parse_args(arguments).quick
    repetitions, seconds = (1, 0.5) if quick else (3, 3.0)
    with tempfile.TemporaryDirectory(prefix="onceload-bench-") as folder:
        home = Path(folder)
        # The server's account must be able to reach what is below.
        home.chmod(0o755)
        with running(home) as dsn:
            engine = connect(LedgerSettings(dsn=dsn))
            schema.upgrade(engine)
            machine = describe(engine)
            engine.dispose()
            rates = commits.measure(dsn, repetitions=repetitions, seconds=seconds)
            parts = states.measure(dsn, repetitions=repetitions)
    text = page(machine, rates, parts, repetitions=repetitions, seconds=seconds)
    print(text)
    if not quick:
        PAGE.write_text(text, encoding="utf-8")
    return 0


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

Command: `make bench`, run on {datetime.now(UTC):%Y-%m-%d}.
A number is the median of {repetitions} repetitions, with the lowest and the highest in brackets.
Rows, receipts and states were checked before each number was taken down.
They are measurements of one machine and no tests: compare them with your own run only.

## The machine

- {machine.processors}, {machine.memory} of memory, load {machine.load}; {machine.system}.
- Python {machine.python}, Postgres {machine.postgres} (embedded, on the same machine, through a Unix socket).
- {machine.settings}.

## Commits per second

Data: each committer is a process with a connection, a session and a producer of its own; \
a commit is one span and one row.
The limit is the bare transaction: one INSERT and a COMMIT of the same row, on as many connections, \
through the same driver and without any proof.
The ways take turns within a repetition, {seconds:g} s each, so that they share whatever else the machine does.

{commits.report(rates)}

One pipeline commits one after another, because its commit lock is what makes positions gapless.
Pipelines do not wait for each other.
A commit is five statements against one (row, position, session, producer with receipt, entry), \
so a commit of one row pays most for its proof.

## A million producers

Data: {states.PRODUCERS:,} record producers of one pipeline; then {states.ENTRIES:,} ledger entries after the \
snapshot, with one receipt of ten records each.
The aims are 12 s for one commit that advances all of them, and 10 s for a rebuild of their states.

{states.report(parts)}
"""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
