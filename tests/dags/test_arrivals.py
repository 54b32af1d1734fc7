"""The trigger that says what is new, in a process of its own as in the triggerer, with a real Postgres."""

import json
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from onceload_core.pipeline import Pipeline
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.pausing import pause, resume
from tests.dags.stand import ROOT, Airflow

PIPELINE = """\
pipeline: readings
source: {{path: "{folder}/*.jsonl", format: jsonl}}
columns: {{n: bigint not null}}
target: {{table: public.readings}}
schedule: on_arrival
"""
#: Says when each look began, and each event; what is remembered is in a file.
WATCH = """
import asyncio, json, sys, time
from pathlib import Path
from onceload_airflow.arrivals import Arrivals

class Store:
    def __init__(self, path):
        self.path = path

    async def aget(self, key):
        return json.loads(self.path.read_text()).get(key) if self.path.exists() else None

    async def aset(self, key, value):
        self.path.write_text(json.dumps({key: value}))

class Watched(Arrivals):
    async def _look(self):
        began = time.monotonic()
        found = await super()._look()
        print("look", began, flush=True)
        return found

async def watch():
    path, kwargs = Watched(pipeline_file=sys.argv[1], every_s=float(sys.argv[4])).serialize()
    assert path == "onceload_airflow.arrivals.Arrivals", path
    assert sys.argv[3] not in json.dumps(kwargs), kwargs
    trigger = Watched(**kwargs)
    trigger.asset_state_store = Store(Path(sys.argv[2]))
    async for event in trigger.run():
        print("event", json.dumps(event.payload), flush=True)

asyncio.run(watch())
"""


class Watcher:
    def __init__(self, process):
        self._process = process

    def events(self, *, looks):
        """Its output until it has looked a number of times more."""
        found = []
        while looks:
            line = self._process.stdout.readline()
            assert line, self._process.wait()
            if line.startswith("look "):
                looks -= 1
            elif line.startswith("event "):
                found.append(json.loads(line.removeprefix("event ")))
        return found

    def look_from_now_on(self):
        """Wait for the end of a look that has seen all that is there now."""
        now = time.monotonic()
        while True:
            line = self._process.stdout.readline()
            assert line.startswith("look "), line
            if float(line.removeprefix("look ")) >= now:
                return

    def event(self):
        """The event of the look that it has just printed."""
        return json.loads(self._process.stdout.readline().removeprefix("event "))

    def next_event(self):
        while not (found := self.events(looks=1)):
            pass
        return found


@pytest.fixture
def airflow(tmp_path, dsn):
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (tmp_path / "landing").mkdir()
    (pipelines / "readings.yaml").write_text(PIPELINE.format(folder=tmp_path / "landing"))
    return Airflow(home=tmp_path / "airflow", pipelines=pipelines, dsn=dsn)


@contextmanager
def watching(airflow, *, every_s=0.01):
    file, told = airflow.pipelines / "readings.yaml", airflow.home.with_name("told")
    arguments = [str(file), str(told), airflow.dsn, str(every_s)]
    with subprocess.Popen(
        [sys.executable, "-c", WATCH, *arguments], env=airflow.environment, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield Watcher(process)
        finally:
            process.kill()


@pytest.mark.long
def test_new_files_are_reported_once_also_over_a_restart(airflow, tmp_path):
    with watching(airflow) as watcher:
        assert watcher.events(looks=2) == []

        (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')

        assert watcher.next_event() == [{"files": 1, "bytes": 9}]
        # It is not loaded yet, and not reported again for that.
        assert watcher.events(looks=5) == []
        (tmp_path / "landing" / "b.jsonl").write_text('{"n": 22}\n')
        assert watcher.next_event() == [{"files": 2, "bytes": 19}]
        assert watcher.events(looks=2) == []

    with watching(airflow) as watcher:
        assert watcher.events(looks=3) == []

        (tmp_path / "landing" / "b.jsonl").write_text('{"n": 33}\n')

        assert watcher.next_event() == [{"files": 2, "bytes": 19}]


def test_a_file_on_disk_is_reported_when_it_arrives_and_not_at_the_next_look(airflow, tmp_path):
    with watching(airflow, every_s=3600) as watcher:
        assert watcher.events(looks=1) == []

        (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')

        assert watcher.events(looks=1) == []
        assert watcher.event() == {"files": 1, "bytes": 9}


def test_a_pause_is_waited_out_and_what_was_reported_before_it_is_reported_again(airflow, tmp_path, dsn):
    """A run that was started before the pause may have loaded nothing."""
    engine = connect(LedgerSettings(dsn=dsn))
    PostgresLedger(engine).declare(Pipeline(name="readings"))
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    with watching(airflow) as watcher:
        assert watcher.next_event() == [{"files": 1, "bytes": 9}]
        assert watcher.events(looks=2) == []

        pause(engine, "readings", by="ann", why="a repair")
        # A look that began before the pause may still list the files.
        watcher.look_from_now_on()
        (tmp_path / "landing" / "b.jsonl").write_text('{"n": 2}\n')
        assert watcher.events(looks=20) == []
        (tmp_path / "landing" / "b.jsonl").unlink()
        resume(engine, "readings", by="ann")

        assert watcher.next_event() == [{"files": 1, "bytes": 9}]
        assert watcher.events(looks=20) == []
    engine.dispose()


@pytest.mark.long
def test_a_failed_look_is_repeated(airflow, tmp_path):
    (tmp_path / "landing" / "a.jsonl").write_text('{"n": 1}\n')
    file = airflow.pipelines / "readings.yaml"
    whole = file.read_text()
    file.write_text(whole.replace("jsonl}", "jsn}"))

    with watching(airflow) as watcher:
        assert watcher.events(looks=3) == []

        file.write_text(whole)

        assert watcher.next_event() == [{"files": 1, "bytes": 9}]
