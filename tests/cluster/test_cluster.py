"""Loads on a Spark cluster: by its address alone, and exact through the end of any of its parts."""

import json
import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import psycopg2
import pytest

from onceload import cluster
from tests.object_store import SECRET, object_store
from tests.ports import free_port
from tests.servers import execute, temporary_database, temporary_home
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long(minutes=4)

ROWS = 5_000_000
PIPELINE = """\
pipeline: numbers
source: {{path: "{path}", format: jsonl, chunk_bytes: {chunk_bytes}}}
columns: {{n: bigint not null}}
target: {{table: public.numbers}}
publish: {publish}
quality: {{quarantined_max: 10%}}
delivery: {{ack_deadline: 5s}}
"""
#: All that has nothing to do with who committed when, or where the files are.
LEDGER = """
SELECT producer, generation, CAST(spans AS text), span.rows, records, digest, size, condition, loaded, quarantined,
       bytes
  FROM onceload.ledger JOIN onceload.ledger_span AS span USING (pipeline_id, position) ORDER BY 1, 2, spans"""


@pytest.fixture(scope="module")
def spark():
    with (
        temporary_home() as home,
        cluster.running(home, port=free_port(), ui_port=free_port(), workers=2) as spark,
    ):
        yield spark


@dataclass
class Stand:
    """A database, and a pipeline into it."""

    dsn: str
    file: Path
    environment: dict[str, str]

    def load(self, *options: str) -> "subprocess.Popen[str]":
        return subprocess.Popen(
            [sys.executable, "-m", "onceload", "load", str(self.file), "--json", *options],
            env={**os.environ, **self.environment, "ONCELOAD_DSN": self.dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ask(self, statement: str):
        return execute(self.dsn, statement)

    def until(self, what, is_so, process=None):
        """Wait until the database answers as wanted."""

        def answers():
            assert process is None or process.poll() is None, process.communicate()
            with suppress(psycopg2.errors.UndefinedTable):
                return is_so(self.ask(what)[0][0])

        until(answers, what)


@contextmanager
def ended(loading):
    """A load that is gone at the end of the block, whatever becomes of the test."""
    try:
        yield loading
    finally:
        loading.kill()
        loading.communicate()


@contextmanager
def stand(server_dsn, folder, *, path, chunk_bytes=2**20, publish="direct", **environment):
    with temporary_database(server_dsn) as dsn:
        file = folder / f"{publish}.yaml"
        file.write_text(PIPELINE.format(path=path, chunk_bytes=chunk_bytes, publish=publish))
        env = {**os.environ, "ONCELOAD_DSN": dsn}
        subprocess.run([sys.executable, "-m", "onceload", "init"], env=env, check=True, capture_output=True)
        yield Stand(dsn, file, environment)


def write_numbers(path, numbers):
    with path.open("w") as file:
        for first in range(numbers.start, numbers.stop, 100_000):
            some = range(first, min(first + 100_000, numbers.stop))
            file.write("".join(f'{{"n":{n}}}\n' for n in some))


@pytest.mark.parametrize("publish", ["direct", "staged"])
def test_the_same_pipeline_gives_the_same_ledger_and_rows_wherever_its_files_and_spark_are(
    spark, server_dsn, tmp_path, publish
):
    (tmp_path / "in").mkdir()
    write_numbers(tmp_path / "in" / "a.jsonl", range(50_000))
    write_numbers(tmp_path / "in" / "b.jsonl", range(50_000, 60_000))
    with (tmp_path / "in" / "b.jsonl").open("a") as file:
        file.write('{"n": "bad"}\n{"n": 60000}\n')
    found = {}
    secrets = SECRET, (spark.conf.parent / "secret").read_text()
    with object_store(tmp_path / "log") as store:
        files = store.files()
        files.mkdir("landing")
        files.put(f"{tmp_path}/in/", "landing/in/", recursive=True)
        there = dict(store.environment)
        on_cluster = {"SPARK_CONF_DIR": str(spark.conf)}
        for place, path, of_place in (("disk", f"{tmp_path}/in", {}), ("store", "s3://landing/in", there)):
            for where, options, of_spark in (("local", [], {}), ("cluster", ["--master", spark.master], on_cluster)):
                environment = of_place | of_spark
                made = stand(
                    server_dsn, tmp_path, path=f"{path}/*.jsonl", chunk_bytes=65_536, publish=publish, **environment
                )
                with made as here:
                    with ended(here.load(*options)) as loading:
                        here.until("SELECT count(*) FROM onceload.session", bool, loading)
                        shown = [" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])]
                        said, why = loading.communicate(timeout=PATIENCE_S)
                    assert loading.returncode == 0, why
                    assert not any(secret in each for each in shown for secret in secrets)
                    report = json.loads(said)
                    assert (report["loaded"], report["quarantined"]) == (60_001, 1)
                    rows = here.ask("SELECT n, _sequence, count(*) FROM numbers GROUP BY 1, 2 ORDER BY 1")
                    found[place, where] = rows, here.ask(LEDGER)

    assert len(found) == 4
    assert all(each == found["disk", "local"] for each in found.values())


def executors(spark):
    """The processes of Spark's that tasks run in, of any worker."""
    below = [
        each
        for name, part in spark.parts.processes.items()
        if name != "master"
        for each in psutil.Process(part.pid).children(recursive=True)
    ]
    found = []
    for each in below:
        # One that has ended since has no command line any more.
        with suppress(psutil.NoSuchProcess):
            found += [each] if "CoarseGrainedExecutorBackend" in " ".join(each.cmdline()) else []
    return found


def test_five_million_rows_are_exact_through_the_kill_of_an_executor_a_worker_and_the_master(
    spark, server_dsn, tmp_path
):
    write_numbers(tmp_path / "numbers.jsonl", range(ROWS))
    path = tmp_path / "numbers.jsonl"
    struck = []

    def strike(process, name):
        process.kill()
        struck.append(name)

    with stand(server_dsn, tmp_path, path=path, chunk_bytes=2**19, SPARK_CONF_DIR=str(spark.conf)) as here:
        commits = "SELECT count(*) FROM onceload.ledger"
        calls = 1
        loading = here.load("--master", spark.master)
        with ended(loading):
            here.until(commits, lambda found: found >= 15, loading)
            lives = dict(here.ask("SELECT name, epoch FROM onceload.session"))
            strike(executors(spark)[0], "executor")
            here.until(commits, lambda found: found >= 40, loading)
            strike(spark.parts.processes["worker-1"], "worker")
            here.until(commits, lambda found: found >= 65, loading)
            strike(spark.parts.processes["master"], "master")
            _, why = loading.communicate(timeout=PATIENCE_S)
        while loading.returncode == 1:
            calls += 1
            assert calls < 10, why
            with ended(here.load("--master", spark.master)) as loading:
                _, why = loading.communicate(timeout=PATIENCE_S)

        assert loading.returncode == 0, why
        assert struck == ["executor", "worker", "master"]
        # Sessions of those that were killed had another life.
        later = dict(here.ask("SELECT name, epoch FROM onceload.session"))
        assert any(later.get(name, epoch) > epoch for name, epoch in lives.items())
        assert here.ask("SELECT count(*), count(DISTINCT n), min(n), max(n) FROM numbers") == [
            (ROWS, ROWS, 0, ROWS - 1)
        ]
        env = {**os.environ, "ONCELOAD_DSN": here.dsn}
        verified = [sys.executable, "-m", "onceload", "verify", str(here.file)]
        assert subprocess.run(verified, env=env, capture_output=True, check=False).returncode == 0


def test_a_process_without_the_secret_of_a_cluster_cannot_run_anything_there(spark, server_dsn, tmp_path):
    write_numbers(tmp_path / "numbers.jsonl", range(10))
    conf = tmp_path / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        "spark.authenticate true\nspark.authenticate.secret guessed\nspark.ui.enabled false\n"
        "spark.driver.host 127.0.0.1\nspark.driver.bindAddress 127.0.0.1\n"
    )

    with stand(server_dsn, tmp_path, path=tmp_path / "numbers.jsonl", SPARK_CONF_DIR=str(conf)) as here:
        with ended(here.load("--master", spark.master)) as loading:
            _, why = loading.communicate(timeout=PATIENCE_S)

        assert loading.returncode != 0, why
        assert "The master of a cluster might be unreachable, or use another secret" in why
        # And not because no master was there.
        assert "SaslException" in (spark.conf.parent / "master.log").read_text()
        assert here.ask("SELECT count(*) FROM onceload.ledger") == [(0,)]
    assert (spark.conf / "spark-defaults.conf").stat().st_mode & 0o777 == 0o600
