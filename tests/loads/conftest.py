"""A pipeline on a real Postgres and real files, loaded in this process or by Spark."""

import errno
import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, text

import onceload
from onceload.cli import main
from onceload.runs import Found, look
from onceload.settings import Settings
from onceload_core.names import Batch
from onceload_core.pipeline import Pipeline, SnapshotPolicy
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_jobs.executor.executor import Died, InProcessExecutor, Outcome, called
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Declared, Format, Identity, Publish, Source, Target, UnknownFields, Write
from onceload_jobs.recover.retry import retry
from tests.servers import as_member, execute, of_member, temporary_database

COLUMNS = {"id": "bigint not null", "amount": "numeric(12,2)", "note": "text"}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Where publishing is not the subject, `make test` tries one way of it, and `make test-rest` the other."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.get_closest_marker("usually_staged") and params.get("publish") is Publish.DIRECT:
            item.add_marker("long")


@pytest.fixture(scope="session")
def tasks():
    """One Spark session for all tests that are not about starting it. Its first query in Python is slow."""
    # Most tests need none of this, and it is slow to import.
    from pyspark.sql import SparkSession

    from onceload_jobs.work.spark.classic import ClassicSpark

    # These loads are small: less compiling of the JVM's code outweighs slower code.
    options = {"spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"}
    with ClassicSpark.started("tests", "local[2,4]", options) as tasks:
        SparkSession.builder.getOrCreate().range(1).mapInArrow(lambda batches: batches, "id bigint").collect()
        yield tasks


class WorkerKilled(BaseException):
    """A worker is dead; its load goes on."""


class InThisProcess(InProcessExecutor):
    """What workers do, one after the other, and what happens before and after it."""

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        self.begins()
        for number, item in enumerate(items):
            yield number, self._called(function, item)
        self.ends()

    def _called(self, function: Callable[[Any], Any], item: Any) -> Outcome:
        try:
            return copy_context().run(called, function, item)
        except WorkerKilled:
            self.was_killed()
            return Died("its process was killed")

    def begins(self) -> None:
        """Called before any worker reads."""

    def ends(self) -> None:
        """Called when all workers are done."""

    def was_killed(self) -> None:
        """Called when a worker is dead, before its work is tried again."""


def line(number: int, amount: object = "1.50", note: str | None = "x") -> str:
    return json.dumps({"id": number, "amount": amount, "note": note}) + "\n"


@dataclass
class Loads:
    """One pipeline, its folder and its database."""

    folder: Path
    engine: Engine
    #: The address for a loader, whose rights are limited.
    dsn: str
    admin_dsn: str
    declared: Declared
    #: Where rows wait to be copied.
    stage: str | None = None

    def load(self, *, batch: str | None = None, **changes: Any) -> Report:
        # A session that holds something here releases it only when this load has ended.
        settings = LoadSettings(ledger=LedgerSettings(dsn=self.dsn), wait_s=0, stage=self.stage)
        declared = replace(self.declared, **changes)
        return load(declared, settings, batch=Batch(batch) if batch else new_batch(), executor=InThisProcess())

    def look(self, declared: Declared | None = None, **asked: Any) -> Found:
        """What a scheduler finds before a load."""
        return look(onceload.Pipeline(declared or self.declared, Settings(dsn=self.dsn)), **asked)

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def rows(self, columns: str = "id") -> list[Any]:
        with self.engine.begin() as connection:
            found = connection.execute(text(f"SELECT {columns} FROM target ORDER BY {columns}"))
            return [tuple(row) if "," in columns else row[0] for row in found]

    def rows_or_none(self) -> list[Any]:
        """The same, also before there is a table."""
        return self.rows() if self.ask("SELECT to_regclass('target')") != [(None,)] else []

    def ask(self, statement: str) -> list[Any]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement))]

    @property
    def ledger(self) -> PostgresLedger:
        return PostgresLedger(self.engine)


def through_a_table(declared: Declared) -> Declared:
    """The same, with rows on which SQL has to work."""
    return replace(declared, target=replace(declared.target, write=Write.MERGE, key=("id",)))


def declared_for(folder: Path, *, columns: dict[str, str] = COLUMNS, pattern: str = "**/*.jsonl*") -> Declared:
    return Declared(
        pipeline=Pipeline(name="events", snapshot=SnapshotPolicy(every_commits=1_000_000, every_s=86_400)),
        source=Source(path=str(folder / pattern), format=Format.JSONL, chunk_bytes=2**20),
        columns=tuple(parse_column(name, of_type) for name, of_type in columns.items()),
        target=Target(schema="public", table="target"),
    )


@pytest.fixture(params=[Publish.DIRECT, Publish.STAGED])
def publish(request: pytest.FixtureRequest) -> Publish:
    return Publish(request.param)


@pytest.fixture(scope="session")
def template(server_dsn: str, template: str) -> Iterator[str]:
    """A database with our schema in which loaders may create tables, which takes two connections less in each test."""
    with temporary_database(server_dsn, template=template) as dsn:
        execute(dsn, "GRANT CREATE ON SCHEMA public TO onceload_loader")
        as_member(dsn, "onceload_loader")
        yield str(execute(dsn, "SELECT current_database()")[0][0])


@pytest.fixture
def loads(tmp_path: Path, dsn: str, publish: Publish) -> Iterator[Loads]:
    loader_dsn = of_member(dsn, "onceload_loader")
    engine = connect(LedgerSettings(dsn=loader_dsn))
    folder = tmp_path / "landing"
    folder.mkdir()
    yield Loads(
        folder=folder,
        engine=engine,
        dsn=loader_dsn,
        admin_dsn=dsn,
        declared=replace(declared_for(folder), publish=publish),
    )
    engine.dispose()


@pytest.fixture
def logs(loads: Loads) -> Loads:
    """Logs that are known by their content."""
    source = replace(loads.declared.source, path=str(loads.folder / "*.log*"), identity=Identity.CONTENT)
    loads.declared = replace(loads.declared, source=source)
    return loads


@pytest.fixture
def grown(loads: Loads) -> Loads:
    """Four commits: of a file that grows, and of others beside it; one record is bad, and one is retried."""
    loads.write("a.jsonl", line(1) + "{broken\n" + line(2, amount="x"))
    loads.load()
    with (loads.folder / "a.jsonl").open("a") as file:
        file.write(line(3))
    loads.load()
    loads.write("b.jsonl", line(4) + "{also broken\n")
    loads.load()
    kept = [each for each in find_records(loads.engine, Selection(pipeline="events")) if b'"x"' in each.raw]
    fixed = {kept[0].quarantine_id: Fix(raw=line(2).encode().rstrip(), digest=kept[0].digest)}
    retry(loads.engine, loads.ledger, loads.declared, kept, batch=Batch("retry"), fixed=fixed)
    return loads


@pytest.fixture
def closed(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> Loads:
    """A folder `closed/` that this user cannot list."""
    loads.write("closed/a.jsonl", line(1))
    loads.declared = replace(
        loads.declared, source=replace(loads.declared.source, path=str(loads.folder / "**" / "*.jsonl"))
    )
    scandir = os.scandir

    def refusing(folder: str) -> Any:
        if str(folder).rstrip("/").endswith("/closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refusing)
    return loads


def strange(number: int) -> str:
    """A record with a field that is not declared; whether it is bad is the pipeline's word."""
    return json.dumps({"id": number, "amount": "2.50", "note": "x", "surprise": 1}) + "\n"


@pytest.fixture
def two_strange(loads: Loads) -> Loads:
    """1 and 4 are loaded; 2 and 3 are in quarantine, and good as soon as the pipeline ignores unknown fields."""
    loads.write("a.jsonl", line(1) + strange(2) + strange(3) + line(4))
    loads.load(unknown_fields=UnknownFields.FAIL)
    assert loads.rows() == [1, 4]
    return loads


@pytest.fixture
def call(loads: Loads, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """The command line in this process: its exit code, what it prints, and what it reports."""

    def run(*arguments: object) -> tuple[int, str, str]:
        code = main([str(each) for each in arguments], {"ONCELOAD_DSN": loads.dsn})
        return code, *capsys.readouterr()

    return run
