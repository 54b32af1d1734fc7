"""Real loads, and the plugs that are pulled on them: each record is in once, whatever is killed.

A load is struck as soon as something that it has done can be seen, then called again under the same name, as a
scheduler does, until it says that there is nothing new.
"""

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random

import psycopg2
import pytest

from dedup_core.postgres import LedgerSettings, connect
from onceload import schema
from spark_jobs.declared import Publish
from tests.fault.server import CrashableServer, crashable_server
from tests.fault.sizes import chosen_seed
from tests.loads.counter import COLUMNS, Life, Place, broken, records_of, stream_of
from tests.loads.worker import Ended, RunningLoad, running_load
from tests.servers import execute

_IS_FULL = os.environ.get("HYPOTHESIS_PROFILE") == "faults"
_LINES = 200_000
_CHUNK_BYTES = 2**20
_CALLS_MAX = 8
_CRASHES = 2
#: What a load may say that could not go on; a negative one was killed.
_CALL_AGAIN = (1, 3)


class Fault(StrEnum):
    DRIVER_KILLED = "driver killed"
    WORKER_KILLED = "worker killed"
    GROUP_KILLED = "group killed"
    SERVER_CRASHED = "server crashed"


#: Spark starts for each call, so that CI tries few.
_IN_CI = [
    (Fault.DRIVER_KILLED, Publish.DIRECT),
    (Fault.WORKER_KILLED, Publish.DIRECT),
    (Fault.SERVER_CRASHED, Publish.STAGED),
]
_IN_FULL = [(fault, publish) for _ in range(10) for fault in Fault for publish in Publish]


@dataclass(frozen=True, kw_only=True)
class Plugged:
    """One pipeline, its files, and a server that may be crashed."""

    server: CrashableServer
    place: Place
    pipeline_file: Path
    files: tuple[Path, ...]

    @property
    def dsn(self) -> str:
        return self.server.dsn()

    def progress(self) -> int:
        """How much a load has done that can be seen: commits, and pieces that are staged."""
        try:
            ((stages,),) = execute(self.dsn, _STAGES)
            commits = execute(self.dsn, f"SELECT position FROM onceload.pipeline WHERE name = '{self.place.pipeline}'")
            staged = execute(self.dsn, f"SELECT count(*) FROM {stages}") if stages else [(0,)]
        except psycopg2.Error:
            # The server is down, or the stage is gone between two looks.
            return 0
        return int(staged[0][0]) + sum(int(position) for (position,) in commits)

    def differences(self) -> list[str]:
        engine = connect(LedgerSettings(dsn=self.dsn))
        try:
            return broken(engine, self.place, records_of({Life(f.name, 1): stream_of(f)[0] for f in self.files}))
        finally:
            engine.dispose()


_STAGES = """
SELECT min(CAST(oid AS regclass)::text) FROM pg_class
 WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r' AND relname LIKE '% parts'"""


@pytest.fixture(scope="module")
def server() -> Iterator[CrashableServer]:
    with crashable_server() as server:
        engine = connect(LedgerSettings(dsn=server.dsn()))
        schema.upgrade(engine)
        engine.dispose()
        yield server


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    """A large file that is cut, one that cannot be, and small ones that are bundled."""
    folder = tmp_path_factory.mktemp("landing")
    paths = tuple(folder / name for name in ("large.jsonl", "packed.jsonl.gz", "small-1.jsonl", "small-2.jsonl"))
    shares = (_LINES // 2, _LINES // 2, 50, 70)
    numbers = count(1)
    for path, lines in zip(paths, shares, strict=True):
        content = "".join(_line(next(numbers)) for _ in range(lines)).encode()
        path.write_bytes(gzip.compress(content, compresslevel=1) if path.suffix == ".gz" else content)
    return paths


def _line(number: int) -> str:
    if number % 5_003 == 0:
        return f'{{"id": {number}, "amount": "no amount"}}\n'
    return json.dumps({"id": number, "amount": f"{number % 1000}.{number % 90 + 10}", "note": f"n{number}"}) + "\n"


_NUMBERS = count(1)


@pytest.fixture
def plugged(server: CrashableServer, files: tuple[Path, ...], publish: Publish, tmp_path: Path) -> Plugged:
    number = next(_NUMBERS)
    place = Place(pipeline=f"plugged_{number}", target=f"public.plugged_{number}")
    pipeline_file = tmp_path / "pipeline.yaml"
    columns = "\n".join(f"  {name}: {of_type}" for name, of_type in COLUMNS.items())
    pipeline_file.write_text(
        f"pipeline: {place.pipeline}\n"
        f"source:\n  path: {files[0].parent}/*.jsonl*\n  format: jsonl\n  chunk_bytes: {_CHUNK_BYTES}\n"
        f"columns:\n{columns}\n"
        f"target: {{table: {place.target}}}\n"
        f"publish: {publish}\n"
    )
    return Plugged(server=server, place=place, pipeline_file=pipeline_file, files=files)


@pytest.fixture
def rng() -> Random:
    seed = chosen_seed()
    print(f"ONCELOAD_FAULT_SEED={seed}")
    return Random(seed)


@pytest.mark.parametrize(("fault", "publish"), _IN_FULL if _IS_FULL else _IN_CI)
def test_a_load_that_is_struck_and_called_again_lands_each_record_once(plugged, fault, publish, rng):
    with running_load(plugged.pipeline_file, dsn=plugged.dsn, batch="run") as load:
        # As many as are there in any case, before the last.
        seen = rng.randint(1, 5)
        load.wait_until(lambda: plugged.progress() >= seen)
        _strike(plugged, load, fault)
        ended = load.end()
    calls = [ended, *_call_until_nothing_is_new(plugged)]

    assert all(call.exit_code <= 0 or call.exit_code in _CALL_AGAIN for call in calls), calls
    assert plugged.differences() == []
    assert calls[-1].is_nothing_new, calls


def _strike(plugged: Plugged, load: RunningLoad, fault: Fault) -> None:
    match fault:
        case Fault.DRIVER_KILLED:
            load.kill_driver()
        case Fault.WORKER_KILLED:
            load.kill_spark_worker()
        case Fault.GROUP_KILLED:
            load.kill_group()
        case Fault.SERVER_CRASHED:
            for _ in range(_CRASHES):
                plugged.server.crash()
                plugged.server.start()
                before = plugged.progress()
                if not load.look_until(lambda before=before: plugged.progress() > before):  # type: ignore[misc]
                    return


def _call_until_nothing_is_new(plugged: Plugged) -> list[Ended]:
    calls: list[Ended] = []
    while len(calls) < _CALLS_MAX and not (calls and calls[-1].is_nothing_new):
        with running_load(plugged.pipeline_file, dsn=plugged.dsn, batch="run") as load:
            calls.append(load.end())
    return calls
