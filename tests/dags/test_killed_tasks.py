"""A task that is killed while it loads: nothing of it goes on, and the next try has all of its files."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.dags.stand import ROOT, Airflow
from tests.servers import execute
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long

_ROWS = 600_000
_PIPELINE = """\
pipeline: readings
source: {{path: "{folder}/*.jsonl", format: jsonl, sealed: always, chunk_bytes: 65536}}
columns: {{n: bigint not null}}
target: {{table: public.readings}}
publish: {publish}
"""
#: A task as Airflow runs it: in a process group of its own, with Airflow's handler of the signal.
_TASK = """
import os, signal
from datetime import UTC, datetime
from types import SimpleNamespace
from onceload_airflow.operators import Load

os.setpgid(0, 0)
at = datetime(2026, 3, 1, tzinfo=UTC)
run = SimpleNamespace(logical_date=at, run_after=at, data_interval_start=at, data_interval_end=at)
load = Load(task_id="load", pipeline_file=os.environ["FILE"], publishes=True, engine="local")
signal.signal(signal.SIGTERM, lambda *_: load.on_kill())
try:
    load.execute({"dag_run": run, "params": {}, "run_id": "r", "ti": SimpleNamespace(xcom_push=print)})
    print("went on")
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.fixture(params=["staged", "direct"])
def environment(tmp_path, dsn, request):
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(_ROWS)))
    file = tmp_path / "readings.yaml"
    file.write_text(_PIPELINE.format(folder=tmp_path / "landing", publish=request.param))
    airflow = Airflow(home=tmp_path / "airflow", pipelines=tmp_path, dsn=dsn)
    return {**airflow.environment, "FILE": str(file)}


@contextmanager
def loading(environment: dict[str, str]) -> Iterator[tuple["subprocess.Popen[str]", list[psutil.Process]]]:
    """A task while its load runs, with the processes that it has started."""
    command = [sys.executable, "-c", _TASK]
    with subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True) as task:
        started: list[psutil.Process] = []

        def is_loading() -> bool:
            assert task.poll() is None, "the task has ended before it could be killed"
            started[:] = psutil.Process(task.pid).children(recursive=True)
            # The process that forks, and at least one that reads.
            return len(started) > 2

        until(is_loading, "processes of the task load")
        try:
            yield task, started
        finally:
            task.kill()


def by_signal(task: "subprocess.Popen[str]") -> None:
    """As Airflow does it when a task is cleared."""
    os.killpg(task.pid, signal.SIGTERM)
    assert task.stdout
    said = task.stdout.read().splitlines()[-1]
    assert said.startswith("AirflowException interrupted. "), said


def by_force(task: "subprocess.Popen[str]") -> None:
    task.kill()


@pytest.mark.parametrize("killed", [by_signal, by_force])
def test_no_process_of_a_killed_task_goes_on_and_the_next_try_loads_each_row_once(
    environment: dict[str, str], dsn: str, killed: Callable[["subprocess.Popen[str]"], None]
) -> None:
    with loading(environment) as (task, started):
        killed(task)
        task.wait(PATIENCE_S)
        _, left = psutil.wait_procs(started, timeout=PATIENCE_S)
        assert left == []

    command = [sys.executable, "-c", _TASK]
    again = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)

    assert again.stdout.splitlines()[-1] == "went on", again.stderr
    assert execute(dsn, "SELECT count(*), count(DISTINCT n) FROM readings") == [(_ROWS, _ROWS)]


def test_a_task_that_ends_by_a_signal_releases_what_it_has_claimed(environment: dict[str, str], dsn: str) -> None:
    with loading(environment) as (task, _):
        by_signal(task)
        task.wait(PATIENCE_S)

    assert execute(dsn, "SELECT count(*) FROM onceload.delivery") == [(0,)]


def test_the_address_of_the_database_is_in_the_environment_of_no_other_process(environment: dict[str, str]) -> None:
    dsn = environment.pop("ONCELOAD_DSN")
    environment["AIRFLOW_CONN_ONCELOAD"] = dsn

    with loading(environment) as (_, started):
        found = [Path(f"/proc/{each.pid}/environ").read_text() for each in started if each.is_running()]

    assert found
    assert not any("ONCELOAD_DSN=" in each for each in found)
