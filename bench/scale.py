"""What a run costs where a source has a million files, and where a ledger knows a hundred million producers.

Files are real ones of one row each, on a disk, and go through the commands as a user calls them. Producers are written
into the ledger's own table in bulk; whatever a run asks of them afterwards, it asks through the ledger.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep

import psutil
from sqlalchemy import Engine, text

from bench.measured import Stopwatch, check_equal, peak_bytes, table
from bench.states import register_all
from onceload import schema
from onceload_core.errors import ExitCode
from onceload_core.names import Batch, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import BulkCommit, LedgerSettings, PostgresLedger, PostgresSnapshots, connect
from onceload_core.postgres.metrics import MetricsReader

FILES = (10_000, 100_000, 1_000_000)
PRODUCERS = (1_000_000, 10_000_000, 100_000_000)
#: How many of its producers a run has to do with.
TOUCHED = 10_000
#: How many files come between two runs.
NEW_FILES = 1_000
_FILES_A_FOLDER = 1_000
_GROWN_AT_ONCE = 1_000_000
_LOOK_EVERY_S = 0.05
_PIPELINE = """\
pipeline: scale
source: {{path: "{landing}/**/*.jsonl", format: jsonl, sealed: always}}
columns: {{n: bigint not null}}
target: {{table: public.scale}}
"""
_NAME = "'device-' || to_char(number, 'FM000000000000')"
#: One commit, written in bulk: a snapshot is taken only of what the ledger adds up to.
_GROW = f"""
WITH entry AS (
    INSERT INTO onceload.ledger (pipeline_id, position, kind, batch)
    SELECT :pipeline_id, coalesce(max(position), 0) + 1, 'load', 'grown'
      FROM onceload.ledger WHERE pipeline_id = :pipeline_id
    RETURNING position
), grown AS (
    INSERT INTO onceload.producer (pipeline_id, name, consumed)
    SELECT :pipeline_id, {_NAME}, int8multirange(int8range(0, 100 + number % 1000))
      FROM generate_series(:first, :last) AS number
    RETURNING *
)
INSERT INTO onceload.ledger_span (pipeline_id, position, producer_id, producer, generation, spans, rows, condition)
SELECT pipeline_id, position, producer_id, name, generation, consumed, 0, condition FROM grown CROSS JOIN entry
"""
_SOME = f"SELECT {_NAME} AS name FROM generate_series(1, :known, :known / :touched) AS number LIMIT :touched"
_NEW = f"CREATE UNLOGGED TABLE named AS SELECT 'new-' || {_NAME} AS name FROM generate_series(1, :touched) AS number"
_OFFERED = f"""
CREATE UNLOGGED TABLE offered AS
SELECT producer_id, int8multirange(int8range(:known + 1000, :known + 1100)) AS spans, 100::bigint AS rows
  FROM onceload.producer WHERE pipeline_id = :pipeline_id AND name IN ({_SOME})
"""
_SIZE = "SELECT pg_total_relation_size(:name)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    wanted = parser.add_argument_group("scale")
    wanted.add_argument(
        "--listed", type=int, nargs="*", default=FILES, help="files of the source, rising (%(default)s)"
    )
    wanted.add_argument("--known", type=int, nargs="*", default=PRODUCERS, help="producers, rising (%(default)s)")


def measure(home: Path, dsn: str, arguments: argparse.Namespace) -> Iterator[str]:
    """Print a table for files, then one for producers, each as soon as it is there."""
    listed, known = ((100, 300), (20_000, 40_000)) if arguments.quick else (arguments.listed, arguments.known)
    engine = connect(LedgerSettings(dsn=dsn, idle_timeout_s=3600))
    schema.upgrade(engine)
    if listed:
        yield _of_files(home, dsn, engine, listed)
    if known:
        yield _of_producers(engine, known)
    engine.dispose()


@dataclass(frozen=True)
class _Command:
    """What a whole command took, its start included."""

    seconds: float
    bytes: int

    def __str__(self) -> str:
        return f"{self.seconds:.1f} s, {self.bytes / 2**20:,.0f} MB"


def _of_files(home: Path, dsn: str, engine: Engine, sizes: Sequence[int]) -> str:
    landing, file = home / "landing", home / "scale.yaml"
    file.write_text(_PIPELINE.format(landing=landing))
    rows = []
    there = 0
    for size in sizes:
        new = max(1, min(NEW_FILES, size // 10))
        there = _write_files(landing, there, size - new)
        took = [_onceload(home, dsn, command, file) for command in ("plan", "load", "plan")]
        there = _write_files(landing, there, size)
        took.append(_onceload(home, dsn, "load", file))
        check_equal("rows loaded", found=_asked(engine, "SELECT count(DISTINCT n) FROM scale"), expected=size)
        check_equal("rows loaded twice", found=_asked(engine, "SELECT count(*) FROM scale") - size, expected=0)
        rows.append([f"{size:,}", *map(str, took)])
        print(rows[-1], flush=True)
    return table(["files", "plan, most of them new", "load of those", "plan, nothing new", "load of 1,000 new"], rows)


def _write_files(landing: Path, first: int, end: int) -> int:
    for number in range(first, end):
        folder = landing / f"{number // _FILES_A_FOLDER:06}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:09}.jsonl").write_text(json.dumps({"n": number}) + "\n")
    return end


def _onceload(home: Path, dsn: str, command: str, file: Path) -> _Command:
    environment = {**os.environ, "ONCELOAD_DSN": dsn, "ONCELOAD_HOME": str(home / "state")}
    log = home / "said"
    started = perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "onceload", command, str(file)], env=environment, stdout=output, stderr=output
        )
        peak = 0
        while process.poll() is None:
            with suppress(psutil.Error, OSError):
                peak = max(peak, peak_bytes(psutil.Process(process.pid)))
            sleep(_LOOK_EVERY_S)
    seconds = perf_counter() - started
    if process.returncode != ExitCode.DONE:
        raise SystemExit(f"onceload {command} ended with {process.returncode}: {log.read_text()[-2000:]}")
    return _Command(seconds, peak)


FIND, REGISTER, COMMIT, METRICS, SNAPSHOT = "find", "register", "commit", "metrics", "snapshot"


def _of_producers(engine: Engine, sizes: Sequence[int]) -> str:
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="scale of producers", producers_max=2 * sizes[-1]))
    pipeline_id = _asked(engine, "SELECT pipeline_id FROM onceload.pipeline WHERE name = 'scale of producers'")
    rows = []
    known = 0
    for size in sizes:
        _grow(engine, pipeline_id, known, size)
        known = size
        # What the measured one is compared with.
        PostgresSnapshots(engine).take("scale of producers")
        watch = _run(engine, ledger, pipeline_id, known)
        row = [f"{size:,}", *(f"{seconds[0]:.2f} s" for seconds in watch.seconds.values())]
        their_table = _asked(engine, _SIZE, name="onceload.producer") / 10**9
        both_snapshots = _asked(engine, _SIZE, name="onceload.snapshot_producer") / 10**9
        rows.append([*row, f"{their_table:.1f} GB", f"{both_snapshots / 2:.1f} GB"])
        print(rows[-1], flush=True)
        _execute(engine, "TRUNCATE onceload.snapshot_producer, onceload.snapshot")
        _execute(engine, "DROP TABLE named, offered")
    header = ["producers", FIND, REGISTER, COMMIT, METRICS, SNAPSHOT, "their table", "one snapshot"]
    receipts = _asked(engine, "SELECT count(*) FROM onceload.ledger_span")
    each = _asked(engine, _SIZE, name="onceload.ledger_span") / receipts
    return f"{table(header, rows)}\n\nA receipt takes {each:.0f} bytes, its index included."


def _grow(engine: Engine, pipeline_id: int, known: int, size: int) -> None:
    for first in range(known + 1, size + 1, _GROWN_AT_ONCE):
        last = min(size, first + _GROWN_AT_ONCE - 1)
        _execute(engine, _GROW, pipeline_id=pipeline_id, first=first, last=last)
        print(f"{last:,} producers", end="\r", flush=True)
    counted = "(SELECT count(*) FROM onceload.producer WHERE producer.pipeline_id = pipeline.pipeline_id)"
    newest = "(SELECT max(position) FROM onceload.ledger WHERE ledger.pipeline_id = pipeline.pipeline_id)"
    _execute(
        engine,
        f"UPDATE onceload.pipeline SET producers = {counted}, position = {newest} WHERE pipeline_id = {pipeline_id}",
    )
    _settle(engine)


def _run(engine: Engine, ledger: PostgresLedger, pipeline_id: int, known: int) -> Stopwatch:
    """What a run asks of its ledger that has to do with so many of its producers."""
    watch = Stopwatch()
    pipeline = "scale of producers"
    with engine.connect() as connection:
        names = connection.execute(text(_SOME), {"known": known, "touched": TOUCHED}).scalars().all()
    with watch.timing(FIND):
        found = ledger.find(pipeline, names)
    check_equal("producers found", found=len(found), expected=TOUCHED)
    _execute(engine, _NEW.replace("'new-'", f"'new of {known} '"), touched=TOUCHED)
    with watch.timing(REGISTER):
        register_all(engine, pipeline)
    _execute(engine, _OFFERED, pipeline_id=pipeline_id, known=known, touched=TOUCHED)
    session = ledger.open_session(pipeline, SessionName(f"scale {known}"))
    with watch.timing(COMMIT):
        ledger.commit(
            BulkCommit(session=session, batch=Batch("scale"), advances=(), write_rows=lambda _: 0, offered="offered")
        )
    reader = MetricsReader(engine)
    with watch.timing(METRICS):
        reader.look()
    with watch.timing(SNAPSHOT):
        PostgresSnapshots(engine).take(pipeline)
    kept = _asked(engine, "SELECT producers FROM onceload.snapshot ORDER BY position DESC LIMIT 1")
    check_equal("producers in the snapshot", found=kept, expected=known)
    return watch


def _settle(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM (ANALYZE) onceload.producer"))
        connection.execute(text("CHECKPOINT"))


def _asked(engine: Engine, question: str, **binds: object) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(question), binds).scalar_one())


def _execute(engine: Engine, statements: str, **binds: object) -> None:
    with engine.begin() as connection:
        connection.execute(text(statements), binds)
