"""Loads by processes of this machine, real ones, and how each of them ends."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import psutil
import psycopg2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_core.delivery import Mode, Rules
from onceload_core.errors import SettingRefused
from onceload_core.messages import whole_message
from onceload_core.postgres import LedgerSettings
from onceload_jobs.executor import local
from onceload_jobs.executor.executor import ExecutorFailed, Outcome
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import Engine, LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, Publish, Source, UnknownFields
from onceload_jobs.work.failures import TasksFailed
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.worker import running_load
from tests.waiting import PATIENCE_S

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
def killing(times: int) -> Iterator[list[int]]:
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


@contextmanager
def killing_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill each process before it begins."""
    started = local._Process.started

    def started_and_killed() -> local._Process:
        process = started()
        process.process.kill()
        return process

    with monkeypatch.context() as patched:
        patched.setattr(local._Process, "started", started_and_killed)
        yield


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


def test_a_load_whose_processes_always_die_blames_no_file(loads, monkeypatch):
    rules = Rules(deliveries_max=2)
    died = "the processes die without any work: its process ended with SIGKILL"
    with killing_all(monkeypatch), pytest.raises(TasksFailed, match=died):
        load_by(loads, delivery=rules)

    assert loads.ask("SELECT count(*) FROM onceload.delivery") == [(0,)]
    load_by(loads, delivery=rules)
    assert loads.rows() == list(range(2 * _ROWS))


class GoneAfterTheFirst(InThisProcess):
    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        yield next(super().each(function, items))
        raise ExecutorFailed("Spark is gone")


@DIRECT
def test_the_error_of_a_load_says_what_is_loaded(loads):
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    with pytest.raises(TasksFailed) as failed:
        load(loads.declared, settings, batch=new_batch(), executor=GoneAfterTheFirst())

    loaded = len(loads.rows())
    assert 0 < loaded < 2 * _ROWS
    said = f"Before this error, the load had committed {loaded:,} rows. They stay loaded."
    assert said in whole_message(failed.value)
    assert loads.load().loaded == 2 * _ROWS - loaded


@DIRECT
def test_a_session_whose_processes_always_die_ends_and_says_how(loads, monkeypatch):
    rules = Rules(deliveries_max=2, sessions=1, mode=Mode.KEY_SHARED)
    words = r"die without any work|died 6 times \(.*SIGKILL\)"
    with killing_all(monkeypatch), pytest.raises(TasksFailed, match=words):
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


class Elsewhere(InThisProcess):
    """A Spark that is started."""

    ui = "http://there:4040"

    def __init__(self) -> None:
        self.starts, self.stops = list[tuple[object, ...]](), 0

    @contextmanager
    def started(self, *how: object, **_: object) -> "Iterator[Elsewhere]":
        self.starts.append(how)
        yield self
        self.stops += 1


@pytest.mark.parametrize(
    ("chosen", "master"), [(Engine.AUTO, "spark://there:7077"), (Engine.SPARK, None), (Engine.SPARK, "local[1]")]
)
def test_a_load_that_asks_for_spark_runs_there_whatever_its_size(loads, monkeypatch, chosen, master):
    spark = Elsewhere()
    monkeypatch.setattr("onceload_jobs.work.spark.classic.ClassicSpark.started", spark.started)

    report = load_by(loads, chosen, master=master)

    assert (report.engine, report.loaded, spark.stops) == (Engine.SPARK, 2 * _ROWS, 1)
    assert report.spark_ui == spark.ui
    assert [how[1] for how in spark.starts] == [master]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_process_reads_a_delivery_again_as_the_columns_that_are_there(loads):
    """What the server said of the columns goes to the process."""
    source = replace(loads.declared.source, path=str(loads.folder / "*.new"), chunk_bytes=16)
    columns = (parse_column("id", "bigint"),)
    loads.declared = replace(loads.declared, source=source, columns=columns, unknown_fields=UnknownFields.ADD)
    for number, value in enumerate(("1", '"4"', '"t"')):
        loads.write(f"{number}.new", f'{{"id":{number},"x":{value}}}\n')

    # One process, so that the first value decides the type of the column.
    one = local.LocalExecutor(slots=1)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    report = load(loads.declared, settings, batch=new_batch(), executor=one)
    one.close()

    assert (report.loaded, report.quarantined, report.notes) == (2, 1, ())
    assert loads.rows("id, x") == [(0, 1), (1, 4)]
