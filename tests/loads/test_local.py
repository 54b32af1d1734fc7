"""Loads by processes of this machine, real ones, and how each of them ends."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_core.delivery import Rules
from onceload_core.errors import SettingRefused
from onceload_core.messages import whole_message
from onceload_core.names import SessionName
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.files.notes import Note
from onceload_jobs.load import engine
from onceload_jobs.load.engine import Engine
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, Publish, Source
from onceload_jobs.work.failures import FAILURES_MAX, SparkRefused, TasksFailed
from onceload_jobs.work.local.tasks import LocalTasks
from onceload_jobs.work.local.while_spark_starts import TasksWhileSparkStarts
from tests.loads.conftest import Loads, line
from tests.loads.worker import running_load
from tests.waiting import PATIENCE_S, until

_ROWS = 2000

DIRECT = pytest.mark.parametrize("publish", [Publish.DIRECT])


@pytest.fixture(autouse=True)
def _files(loads: Loads) -> None:
    """A file of many deliveries, and one that cannot be cut."""
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=4000))
    loads.write("a.jsonl", "".join(line(number) for number in range(_ROWS)))
    loads.write("b.jsonl", "".join(line(number) for number in range(_ROWS, 2 * _ROWS)))


def load_by(loads: Loads, chosen: Engine = Engine.LOCAL, *, master: str | None = None, **changes: Any) -> Report:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), engine=chosen, master=master, wait_s=0)
    return load(replace(loads.declared, **changes), settings, batch=new_batch())


def session_processes() -> list[psutil.Process]:
    """The processes that the fork server of this one has forked."""
    found: list[psutil.Process] = []
    for child in psutil.Process().children():
        # One that has just ended has neither a command line nor children.
        with suppress(psutil.NoSuchProcess):
            if "forkserver" in " ".join(child.cmdline()):
                found += child.children()
    return found


@contextmanager
def killing(times: float) -> Iterator[list[int]]:
    """Kill session processes as soon as they are there, so many of them."""
    killed: list[int] = []
    is_over = threading.Event()

    def kill() -> None:
        while not is_over.wait(0.005) and len(killed) < times:
            for process in session_processes()[:1]:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                    process.wait(PATIENCE_S)
                    killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        yield killed
    finally:
        is_over.set()
        killer.join()


def test_local_processes_load_each_record_once(loads):
    report, again = load_by(loads), load_by(loads)

    assert (report.loaded, report.engine) == (2 * _ROWS, Engine.LOCAL)
    assert (again.loaded, again.engine) == (0, None)
    assert loads.rows() == list(range(2 * _ROWS))


@pytest.mark.parametrize("of_format", [Format.JSONL, Format.PARQUET])
def test_another_process_goes_on_for_one_that_is_killed(loads, of_format):
    if of_format is Format.PARQUET:
        ids = pa.table({"id": pa.array(range(2 * _ROWS), pa.int64())})
        pq.write_table(ids, loads.folder / "a.parquet", row_group_size=100)
        source = Source(path=str(loads.folder / "*.parquet"), format=of_format, chunk_bytes=1000)
        loads.declared = replace(loads.declared, source=source, columns=(parse_column("id", "bigint"),))
    with killing(3) as killed:
        report = load_by(loads)

    assert len(killed) == 3
    assert report.loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


@DIRECT
def test_a_load_whose_processes_always_die_ends_and_says_how(loads):
    rules = Rules(deliveries_max=2, sessions=1)
    with killing(FAILURES_MAX + 10), pytest.raises(TasksFailed, match=r"died 6 times \(SIGKILL\)"):
        load_by(loads, delivery=rules)

    load_by(loads, delivery=rules)
    assert loads.rows() == list(range(2 * _ROWS))


@DIRECT
@pytest.mark.long
def test_no_process_outlives_a_killed_load(loads, tmp_path):
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        f"pipeline: killed\nsource: {{path: {loads.folder}/*.jsonl, format: jsonl, chunk_bytes: 4000}}\n"
        "columns: {id: bigint not null}\ntarget: {table: public.target}\npublish: direct\n"
    )
    with running_load(file, dsn=loads.dsn, batch="first") as running:
        assert running.end().exit_code == 0
    loads.write("c.jsonl", line(2 * _ROWS))

    with held_table(loads), running_load(file, dsn=loads.dsn, batch="second") as running:
        running.wait_until(lambda: bool(running.workers()))
        # One of them is in the middle of a delivery.
        running.wait_until(lambda: loads.ask("SELECT FROM pg_locks WHERE NOT granted") != [])
        running.kill_driver()
        # This waits for the end of all processes of the load.
        running.end(patience_s=PATIENCE_S)

    with running_load(file, dsn=loads.dsn, batch="second") as running:
        assert running.end().document["engine"] == Engine.LOCAL
    assert loads.rows() == list(range(2 * _ROWS + 1))


@contextmanager
def held_table(loads: Loads) -> Iterator[None]:
    """Lock the target against writes while the block runs."""
    with psycopg2.connect(loads.admin_dsn) as connection, connection.cursor() as cursor:
        cursor.execute("LOCK TABLE target IN SHARE MODE")
        yield
        connection.rollback()
    connection.close()


@DIRECT
def test_a_transform_cannot_run_without_spark(loads):
    with pytest.raises(SettingRefused, match="--engine") as refused:
        load_by(loads, transform="SELECT * FROM records", publish=Publish.STAGED)

    assert "a transform in Spark SQL" in str(refused.value)
    assert loads.ledger.position("events") == 0


class SparkLater:
    """A Spark that is up when a test lets it be."""

    slots = 2

    def __init__(self) -> None:
        self.may_start = threading.Event()
        self.error: Exception | None = None
        self.runs = self.stops = 0
        #: How many deliveries were open when it was up.
        self.deliveries = 0

    @contextmanager
    def started(self, *_: object, **__: object) -> "Iterator[SparkLater]":
        assert self.may_start.wait(PATIENCE_S)
        if self.error is not None:
            raise self.error
        yield self
        self.stops += 1

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        self.runs += 1
        board = PostgresDeliveries(engine_of(job), job.declared.name, job.declared.delivery)
        left = board.open_work(job.batch, is_staged=not job.declared.is_direct, session=None)
        self.deliveries = max(self.deliveries, left.count)
        return LocalTasks().run(job, sessions)

    def writing(self, job: Job) -> Job:
        return job


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkLater:
    """For loads of any size."""
    spark = SparkLater()
    monkeypatch.setattr("onceload_jobs.work.spark.tasks.SparkTasks.started", spark.started)
    monkeypatch.setattr(engine, "_LOCAL_BYTES_MAX", 0)
    return spark


@pytest.mark.parametrize("master", [None, pytest.param("spark://there:7077", marks=pytest.mark.long)])
def test_a_large_load_begins_before_spark_is_up_and_spark_does_the_rest(loads, spark, master):
    with once_there_is_a_session_process(spark.may_start.set):
        report = load_by(loads, Engine.AUTO, master=master)

    assert spark.deliveries > 0
    assert (spark.stops, report.engine, report.loaded) == (1, Engine.SPARK, 2 * _ROWS)
    assert loads.rows() == list(range(2 * _ROWS))


def test_a_small_load_that_asks_for_a_cluster_runs_there(loads, spark, monkeypatch):
    monkeypatch.setattr(engine, "_LOCAL_BYTES_MAX", 2**20)
    monkeypatch.setattr(TasksWhileSparkStarts, "run", None)
    spark.may_start.set()

    report = load_by(loads, Engine.AUTO, master="spark://there:7077")

    assert (report.engine, report.loaded, spark.stops) == (Engine.SPARK, 2 * _ROWS, 1)


@contextmanager
def once_there_is_a_session_process(call: Callable[[], None]) -> Iterator[None]:
    def call_then() -> None:
        until(session_processes, "sessions run")
        call()

    caller = threading.Thread(target=call_then)
    caller.start()
    yield
    caller.join()


def test_a_load_that_ends_before_spark_is_up_stops_it_anyway(loads, spark, monkeypatch):
    close = TasksWhileSparkStarts.close

    def close_then(self: TasksWhileSparkStarts) -> None:
        spark.may_start.set()
        close(self)

    monkeypatch.setattr(TasksWhileSparkStarts, "close", close_then)
    report = load_by(loads, Engine.AUTO)

    assert (spark.runs, spark.stops, report.loaded) == (0, 1, 2 * _ROWS)
    assert loads.rows() == list(range(2 * _ROWS))


def test_records_loaded_before_spark_fails_to_start_are_reported_and_loaded_once(loads, spark):
    spark.error = SparkRefused("events", "no Java")
    starting = threading.Thread(target=lambda: until(loads.rows_or_none) and spark.may_start.set())
    starting.start()
    with pytest.raises(SparkRefused) as refused:
        load_by(loads, Engine.AUTO, publish=Publish.DIRECT)
    starting.join()
    committed = len(loads.rows())
    assert "no Java. Committed rows stay loaded." in str(refused.value)
    assert whole_message(refused.value).endswith(
        f"Before this error, the load had committed {committed:,} rows. They stay loaded."
    )

    report = load_by(loads)

    assert (report.engine, loads.rows()) == (Engine.LOCAL, list(range(2 * _ROWS)))


@pytest.mark.long
def test_spark_itself_does_the_rest_of_a_large_load(loads, monkeypatch):
    monkeypatch.setattr(engine, "_LOCAL_BYTES_MAX", 0)

    report = load_by(loads, Engine.AUTO)

    assert report.loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))
