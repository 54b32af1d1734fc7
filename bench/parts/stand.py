"""What all parts share: sizes, ways that take turns, a database for each load, and a Spark session."""

import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cached_property
from pathlib import Path

from sqlalchemy import Engine, text

from bench.events import COLUMNS, Events, check_rows
from bench.measured import DAEMON, PeakMemory, Taken, check_equal
from onceload import schema
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.executor.executor import Executor
from onceload_jobs.executor.local import LocalExecutor
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Declared, Format, Publish, Source, Target
from onceload_jobs.verify.verify import verify
from onceload_jobs.work.spark.classic import ClassicSpark

_WARMING_ROWS = 10_000


@dataclass(frozen=True, kw_only=True)
class Sizes:
    rows: int = 3_000_000
    rows_large: int = 10_000_000
    rows_dlt: int = 300_000
    files: int = 10_000
    memory_bytes: int = 5 * 10**9
    deliveries: int = 5_000
    repetitions: int = 5


QUICK = Sizes(
    rows=100_000, rows_large=200_000, rows_dlt=20_000, files=200, memory_bytes=30_000_000, deliveries=300, repetitions=1
)


@dataclass(frozen=True, kw_only=True)
class Way:
    """How to load so many rows into the database of an address; answers with the seconds it took."""

    rows: int
    amount: Decimal
    load: Callable[[str], float]
    #: The pipeline to verify; None for other loaders, which have no ledger and no Python workers.
    declared: Declared | None = None
    #: How many of the rows are loaded in these seconds; None: all.
    rows_timed: int | None = None

    @property
    def measured_rows(self) -> int:
        return self.rows if self.rows_timed is None else self.rows_timed


@dataclass(kw_only=True)
class Stand:
    """What all parts share."""

    home: Path
    dsn: str
    sizes: Sizes
    #: The driver's jar, if it is installed.
    jdbc: Path | None
    #: Ends with the last part.
    running: ExitStack
    #: How long Spark's session took to start, once it has.
    session_start_s: float | None = None
    _are_local_warm: bool = field(default=False, init=False)

    @property
    def server(self) -> int:
        """The process of Postgres that its backends are below."""
        return int((self.home / "postgres-18" / "data" / "postmaster.pid").read_text().split()[0])

    @cached_property
    def tasks(self) -> ClassicSpark:
        """Spark's session: started by the first part that needs it, and warmed up before anything is measured."""
        started = time.monotonic()
        # As the how-to for Python recommends for a session that stays.
        options = {"spark.python.daemon.module": DAEMON} | ({"spark.jars": str(self.jdbc)} if self.jdbc else {})
        tasks = self.running.enter_context(ClassicSpark.started("bench", None, options))
        self.session_start_s = time.monotonic() - started
        self._warm_up(tasks)
        return tasks

    def local_tasks(self, slots: int = 2) -> LocalExecutor:
        """Sessions in processes of this machine; the process that they are forked from is warmed up too."""
        if not self._are_local_warm:
            with closing(LocalExecutor()) as warming:
                self._warm_up(warming)
            self._are_local_warm = True
        return self.running.enter_context(closing(LocalExecutor(slots)))

    def _warm_up(self, tasks: Executor) -> None:
        with self.folder() as folder, self.database() as (dsn, _):
            Events(rows=_WARMING_ROWS, devices=100).write_jsonl(folder / "events.jsonl")
            declared = declared_as(folder / "events.jsonl", publish=Publish.DIRECT)
            # Enough chunks for all workers.
            source = replace(declared.source, chunk_bytes=2**18)
            self.load(dsn, replace(declared, source=source), tasks=tasks)

    def alternate(self, ways: Mapping[str, Way], *, times: int = 1) -> dict[str, Taken]:
        """Each way once in every repetition, forwards and backwards in turns, so that none is always behind another."""
        taken = {name: Taken(rows=way.measured_rows) for name, way in ways.items()}
        for number in range(times * self.sizes.repetitions):
            for name, way in list(ways.items())[:: -1 if number % 2 else 1]:
                seconds, peak = self.once(way)
                taken[name].seconds.append(seconds)
                taken[name].workers_bytes += peak.of("worker") if way.declared else ()
                print(
                    f"{number + 1}, {name}: {seconds:.2f} s, {way.measured_rows / seconds:,.0f} rows/s",
                    file=sys.stderr,
                    flush=True,
                )
        return taken

    def once(self, way: Way) -> tuple[float, PeakMemory]:
        with self.database() as (dsn, engine):
            with PeakMemory().watching() as peak:
                seconds = way.load(dsn)
            check_rows(engine, "target", rows=way.rows, amount=way.amount)
            if way.declared is not None:
                check_deep(way.declared, engine, rows=way.rows)
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

    def ours(self, declared: Declared, *, rows: int, amount: Decimal, tasks: Executor | None = None) -> Way:
        """A load in Spark's session, unless other tasks are given."""
        chosen = tasks or self.tasks
        return Way(
            rows=rows,
            amount=amount,
            load=lambda dsn: self.load(dsn, declared, tasks=chosen).seconds,
            declared=declared,
        )

    def load(self, dsn: str, declared: Declared, *, tasks: Executor | None = None) -> Report:
        settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
        return load(declared, settings, batch=new_batch(), executor=tasks or self.tasks)

    def load_through_a_table(self, dsn: str, *, declared: Declared, tasks: Executor) -> float:
        """The seconds in which a batch is staged and kept, and then published."""
        settings, batch = LoadSettings(ledger=LedgerSettings(dsn=dsn)), new_batch()
        staged = load(declared, replace(settings, publishes=False), batch=batch, executor=tasks)
        return staged.seconds + publish_batch(declared, settings, batch=batch).seconds


def check_deep(declared: Declared, engine: Engine, *, rows: int) -> None:
    """What `onceload verify --deep` finds: no difference, and as many rows as were loaded."""
    found = verify(declared, engine, deep=True)
    has_values = declared.transform is None
    check_equal(
        "differences, counted rows and compared rows of verify --deep",
        found=(found.counts, found.rows, found.rows_compared),
        expected=({}, rows, rows if has_values else 0),
    )


def declared_as(path: Path, *, publish: Publish) -> Declared:
    return Declared(
        pipeline=Pipeline(name="events"),
        source=Source(path=str(path), format=Format.JSONL),
        columns=tuple(parse_column(*each) for each in COLUMNS.items()),
        target=Target(schema="public", table="target"),
        publish=publish,
    )
