"""Loads by a resident Spark, over Spark Connect: with its own session, its own workers, and without any of them."""

import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyspark
import pytest

from onceload import resident
from onceload.databases import open_database
from onceload.doctor import Check, examine
from onceload.engines import where_to_work
from onceload.pipeline import Pipeline
from onceload.resident import Resident, running, start, stop
from onceload.settings import Settings
from onceload.spark import OnceloadSource
from onceload_core.postgres import LedgerSettings
from onceload_jobs.batch import folders
from onceload_jobs.files.reading import read_at
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import Engine, LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Publish
from onceload_jobs.work.failures import SparkUnreachable, TasksFailed
from onceload_jobs.work.spark.connect import connected
from tests.loads.conftest import COLUMNS, Loads, line
from tests.loads.test_spark_source import declare, in_spark, in_target, read
from tests.object_store import object_store
from tests.ports import free_port
from tests.spark_pages import jobs_of
from tests.waiting import until

_ROWS = 2000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def spark(home: Path) -> Iterator[Resident]:
    yield start(home, port=free_port(), ui_port=free_port())
    assert stop(home) is not None
    assert running(home) is None


@pytest.fixture(params=[Publish.STAGED, Publish.DIRECT])
def publish(request: pytest.FixtureRequest) -> Publish:
    chosen: Publish = request.param
    return chosen


@pytest.fixture(autouse=True)
def _files(loads: Loads) -> None:
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=4000))
    loads.write("a.jsonl", "".join(line(number) for number in range(_ROWS)))


def load_over(loads: Loads, spark: Resident) -> Report:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), remote=spark.remote, wait_s=0)
    return load(loads.declared, settings, batch=new_batch())


def test_a_load_runs_in_the_resident_spark_and_each_record_is_loaded_once(loads, spark):
    first, again = load_over(loads, spark), load_over(loads, spark)

    assert (first.loaded, first.engine, first.engine_why) == (_ROWS, Engine.SPARK, f"--remote {spark.address}")
    assert (again.loaded, again.engine) == (0, None)
    assert loads.rows() == list(range(_ROWS))
    engines = loads.ask("SELECT DISTINCT engine FROM onceload.ledger")
    assert engines == [(f"spark (--remote {spark.address})",)]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("kind", ["disk", "store"])
def test_rows_wait_in_a_place_that_the_load_and_its_workers_share(loads, spark, tmp_path, monkeypatch, kind):
    """The workers have another environment, so the load sends the credentials of the store along."""
    (tmp_path / "shared").mkdir()
    address = {"disk": f"{tmp_path}/shared", "store": "s3://waiting/rows"}[kind]
    read: list[str] = []

    def noted(file: str, **named: Any) -> bytes:
        read.append(file)
        return read_at(file, **named)

    monkeypatch.setattr(folders, "read_at", noted)
    with object_store(tmp_path / "log") as store:
        store.files().mkdir("waiting")
        for name, value in store.environment.items():
            monkeypatch.setenv(name, value)
        settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), remote=spark.remote, stage=address)

        report = load(loads.declared, settings, batch=new_batch())

        assert store.files().find("waiting") == []
    assert (report.loaded, loads.rows()) == (_ROWS, list(range(_ROWS)))
    assert read
    assert all(path.startswith(f"{address}/") for path in read)
    assert list((tmp_path / "shared").iterdir()) == []


def test_its_pages_show_the_load_by_its_pipeline_and_batch(loads, spark):
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), remote=spark.remote)
    batch = new_batch()
    load(loads.declared, settings, batch=batch)

    assert f"events {batch}" in {job.get("description") for job in jobs_of(spark.ui)}


def test_a_verification_reads_there_too(loads, spark):
    load_over(loads, spark)

    found = Pipeline(loads.declared, Settings(dsn=loads.dsn)).verify(deep=True, remote=spark.remote)

    assert (found.differing, found.rows, found.rows_compared) == (0, _ROWS, _ROWS)
    assert "events verify" in {job.get("description") for job in jobs_of(spark.ui)}


def test_two_loads_share_its_session_and_each_sees_its_own_records(loads, spark):
    loads.declared = replace(
        loads.declared, publish=Publish.STAGED, transform="SELECT id, note FROM records WHERE id >= 0"
    )
    other = replace(
        loads.declared,
        pipeline=replace(loads.declared.pipeline, name="others"),
        source=replace(loads.declared.source, path=str(loads.folder / "*.other")),
        target=replace(loads.declared.target, table="others"),
    )
    loads.write("a.other", "".join(line(number) for number in range(_ROWS, 2 * _ROWS)))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), remote=spark.remote)

    with ThreadPoolExecutor() as pool:
        reports = list(pool.map(lambda each: load(each, settings, batch=new_batch()), [loads.declared, other]))

    assert [report.loaded for report in reports] == [_ROWS, _ROWS]
    assert loads.rows() == list(range(_ROWS))
    assert loads.ask("SELECT min(id), max(id), count(*) FROM others") == [(_ROWS, 2 * _ROWS - 1, _ROWS)]


@pytest.mark.usually_staged
def test_a_small_load_does_not_wait_for_all_tasks_of_a_large_job(loads, spark):
    def works_for_long(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        time.sleep(1)
        yield from batches

    with connected("large", spark.remote, batch="large") as large, ThreadPoolExecutor() as pool:
        tasks = 40
        job = pool.submit(large.session.range(0, tasks, 1, tasks).mapInArrow(works_for_long, "id bigint").collect)
        until(lambda: any(each["numActiveTasks"] for each in jobs_of(spark.ui)), "the large job runs")

        assert load_over(loads, spark).loaded == _ROWS

        assert not job.done()
        assert len(job.result()) == tasks


@pytest.mark.usually_staged
def test_a_program_reads_the_records_of_a_source_as_they_are_loaded(loads, spark, tmp_path):
    file = declare(loads, tmp_path)
    loads.write("b.jsonl", line(_ROWS, amount=None) + "{bad\n")
    report = load_over(loads, spark)

    with connected("events", spark.remote, batch="") as client:
        client.session.dataSource.register(OnceloadSource)
        records = in_spark(read(client.session, file, dsn=loads.dsn))
        new = in_spark(read(client.session, file, new=True, dsn=loads.dsn))

    assert (report.loaded, report.quarantined) == (_ROWS + 1, 1)
    assert records == in_target(loads, *COLUMNS)
    assert new == []


def test_a_client_without_the_token_is_refused(loads, spark):
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), remote=f"{spark.address}/;token=wrong")

    refusal = f"Spark at {spark.address} does not answer: Invalid authentication token"
    with pytest.raises(SparkUnreachable, match=refusal) as refused:
        load(loads.declared, settings, batch=new_batch())

    assert "wrong" not in str(refused.value)
    assert loads.rows_or_none() == []


def test_the_token_is_found_by_the_address_and_readable_by_its_user_alone(home, spark):
    settings = Settings(home=home, spark=f"{spark.address}/")
    others = Settings(home=home, spark="sc://elsewhere:1", spark_ui="http://elsewhere:4040")
    named: dict[str, Any] = {"engine": "auto", "master": None, "spark_options": {}}
    ours = {"remote": spark.remote, "remote_ui": spark.ui}

    by_environment = where_to_work(settings, remote=None, **named)
    by_argument = where_to_work(settings, remote=spark.address, **named)
    elsewhere = where_to_work(settings, remote="sc://elsewhere:1", **named)
    with_pages = where_to_work(others, remote=None, **named)
    not_with_its_pages = where_to_work(others, remote="sc://third:1", **named)

    assert by_environment.items() >= {**ours, "remote_named_by": "ONCELOAD_SPARK"}.items()
    assert by_argument.items() >= {**ours, "remote_named_by": "--remote"}.items()
    assert elsewhere.items() >= {"remote": "sc://elsewhere:1", "remote_ui": None}.items()
    assert (with_pages["remote_ui"], not_with_its_pages["remote_ui"]) == ("http://elsewhere:4040", None)
    for file in (home / "spark").iterdir():
        if spark.token in file.read_text(errors="replace"):
            assert file.stat().st_mode & 0o077 == 0, file
    assert not any(spark.token in argument for argument in psutil.Process(spark.pid).cmdline())


def checks(home: Path, spark: str | None) -> dict[str, Check]:
    return {each.name: each for each in examine(Settings(home=home, spark=spark), open_database=open_database)}


def test_doctor_finds_the_python_and_the_onceload_of_its_workers(home, spark):
    found = checks(home, spark.address)["spark"]

    assert found.healthy, found
    assert found.found == f"Python {platform.python_version()} with Onceload {version('onceload')}"
    assert "spark" not in checks(home, None)


def test_doctor_finds_a_server_that_does_not_answer_and_one_that_refuses_its_token(home, spark):
    for address in (f"sc://localhost:{free_port()}", f"{spark.address}/;token=wrong"):
        found = checks(home, address)["spark"]

        assert (found.healthy, found.fix) == (False, "start it, or correct ONCELOAD_SPARK")
        assert "wrong" not in found.found


def test_doctor_finds_workers_without_onceload(tmp_path, monkeypatch):
    """Without the files that add paths (-S), only what is in the folder of packages is there."""
    python = tmp_path / "python"
    packages = Path(pyspark.__file__).parents[1]
    python.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(resident.Server, "environment", others_python(python))
    monkeypatch.setattr(resident, "_DAEMON", "pyspark.daemon")
    mine = start(tmp_path, port=free_port(), ui_port=free_port())
    try:
        found = checks(tmp_path, mine.address)["spark"]
    finally:
        stop(tmp_path)

    assert not found.healthy
    assert "No module named 'onceload" in found.found
    assert found.fix.startswith("install this release of Onceload")


def others_python(python: Path) -> property:
    environment = vars(resident.Server)["environment"].fget
    return property(lambda server: {**environment(server), "PYSPARK_PYTHON": str(python), "PYTHONPATH": ""})


def test_a_second_start_finds_the_first(home, spark):
    assert start(home, port=free_port(), ui_port=free_port()) == spark


def test_a_load_whose_spark_dies_fails_in_words_and_the_next_load_loads_each_record_once(loads, tmp_path):
    for number in range(40):
        loads.write(f"{number}.jsonl", "".join(line(1000 * number + 10_000 + each) for each in range(500)))
    mine = start(tmp_path, port=free_port(), ui_port=free_port())
    try:
        with ThreadPoolExecutor(1) as pool:
            under_way = pool.submit(load_over, loads, mine)
            until(lambda: any(job["status"] == "RUNNING" for job in jobs_of(mine.ui)))
            process = psutil.Process(mine.pid)
            for each in [process, *process.children(recursive=True)]:
                with suppress(psutil.NoSuchProcess):
                    os.kill(each.pid, signal.SIGKILL)
            with pytest.raises((SparkUnreachable, TasksFailed), match="pipeline events"):
                under_way.result()
        assert running(tmp_path) is None
        mine = start(tmp_path, port=free_port(), ui_port=free_port())

        load_over(loads, mine)

        expected = [*range(_ROWS), *(1000 * number + 10_000 + each for number in range(40) for each in range(500))]
        assert loads.rows() == sorted(expected)
    finally:
        stop(tmp_path)
