"""What all parts share: sizes, ways that take turns, a database for each load, and a Spark session."""

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from sqlalchemy import Engine, text

from bench.events import COLUMNS, check_rows
from bench.measured import PeakMemory, Taken
from dedup_core.pipeline import Pipeline
from dedup_core.postgres import LedgerSettings, connect
from onceload import schema
from spark_jobs.load.load import load
from spark_jobs.load.report import Report
from spark_jobs.load.settings import LoadSettings, new_batch
from spark_jobs.pipeline.columns import parse_column
from spark_jobs.pipeline.declared import Declared, Format, Publish, Source, Target
from spark_jobs.work.spark.tasks import SparkTasks


@dataclass(frozen=True, kw_only=True)
class Sizes:
    rows: int = 3_000_000
    rows_large: int = 10_000_000
    rows_dlt: int = 300_000
    files: int = 10_000
    memory_bytes: int = 5 * 10**9
    deliveries: int = 5_000
    repetitions: int = 3


QUICK = Sizes(
    rows=100_000, rows_large=200_000, rows_dlt=20_000, files=200, memory_bytes=30_000_000, deliveries=300, repetitions=1
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How to load so many rows into the database of an address; answers with the seconds it took."""

    rows: int
    amount: Decimal
    load: Callable[[str], float]
    #: Whether Spark's Python workers do it; for other loaders, the memory of these workers means nothing.
    is_ours: bool = True


@dataclass(frozen=True, kw_only=True)
class Stand:
    """What all parts share."""

    home: Path
    dsn: str
    tasks: SparkTasks
    sizes: Sizes
    has_jdbc: bool

    def alternate(self, ways: Mapping[str, Way], *, times: int = 1) -> dict[str, Taken]:
        """Each way once in every repetition, forwards and backwards in turns, so that none is always behind another."""
        taken = {name: Taken(rows=way.rows) for name, way in ways.items()}
        for number in range(times * self.sizes.repetitions):
            for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
                seconds, peak = self.once(way)
                taken[name].seconds.append(seconds)
                taken[name].workers_bytes += peak.of("worker") if way.is_ours else ()
                print(f"{number + 1}, {name}: {way.rows / seconds:,.0f} rows/s", file=sys.stderr, flush=True)
        return taken

    def once(self, way: Way) -> tuple[float, PeakMemory]:
        with self.database() as (dsn, engine):
            with PeakMemory().watching() as peak:
                seconds = way.load(dsn)
            check_rows(engine, "target", rows=way.rows, amount=way.amount)
        return seconds, peak

    @contextmanager
    def database(self) -> Iterator[tuple[str, Engine]]:
        """One of its own for each load, so that none pays for what the last one left."""
        name = f"bench_{uuid.uuid4().hex}"
        server = connect(LedgerSettings(dsn=self.dsn)).execution_options(isolation_level="AUTOCOMMIT")
        with server.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
        dsn = self.dsn.replace("/postgres?", f"/{name}?")
        engine = connect(LedgerSettings(dsn=dsn))
        schema.upgrade(engine)
        with server.connect() as connection:
            connection.execute(text("CHECKPOINT"))
        try:
            yield dsn, engine
        finally:
            engine.dispose()
            with server.connect() as connection:
                # The workers of Spark keep their connections for the next load.
                connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")
            server.dispose()

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """For the files of one part."""
        folder = self.home / uuid.uuid4().hex
        folder.mkdir()
        yield folder
        subprocess.run(["rm", "-r", folder], check=True)

    def ours(self, declared: Declared) -> Callable[[str], float]:
        return lambda dsn: self.load(dsn, declared).seconds

    def load(self, dsn: str, declared: Declared) -> Report:
        settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
        return load(declared, settings, batch=new_batch(), tasks=self.tasks)


def declared_as(path: Path, *, publish: Publish) -> Declared:
    return Declared(
        pipeline=Pipeline(name="events"),
        source=Source(path=str(path), format=Format.JSONL),
        columns=tuple(parse_column(*each) for each in COLUMNS.items()),
        target=Target(schema="public", table="target"),
        publish=publish,
    )
