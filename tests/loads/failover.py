"""Loads whose primary dies: a standby, or a restored backup, takes over, and the loads are called again.

Callers write files and load them, one call after the other, at an address that is moved under them. Commits that the
successor never had are lost with their rows, their proof and their state, so that the next call loads them again.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from threading import Event
from unittest.mock import patch

from onceload import schema, stack
from onceload.airflow_api import AirflowApi
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.pipeline.declared import Publish
from tests.fault.control_plane import QUICK, policies_for
from tests.fault.standby import NeverCame, Site, Successor, open_site, wait_until
from tests.loads.counter import COLUMNS, Life, Place, broken, records_of
from tests.loads.worker import Ended
from tests.ports import free_port
from tests.servers import execute, temporary_home

_ROOT = Path(__file__).resolve().parents[2]
_PLACE = Place(pipeline="drill", target="public.drill")
_LINES = 2_000
_CHUNK_BYTES = 16 * 2**10
_SUITE = "suite.json"
#: A bad record now and then, so that quarantine is a part of it.
_BAD_EVERY = 997
_CALLS_MAX = 20
_CALL_TAKES_S_MAX = 900
#: The moment is one of so many seconds, which are about as long as a call of `consume`.
_LATER_S_MAX = 2.0


class Way(StrEnum):
    STAGED = "staged"
    DIRECT = "direct"
    CONSUME = "consume"
    AIRFLOW = "staged by Airflow"

    @property
    def publish(self) -> Publish:
        return Publish.STAGED if self in (Way.STAGED, Way.AIRFLOW) else Publish.DIRECT

    @property
    def quality(self) -> str:
        return f"quality: {{suite: {_SUITE}}}\n" if self is Way.AIRFLOW else ""

    @property
    def calls(self) -> Sequence[Sequence[str]]:
        """The commands that are called side by side, each again and again under its name."""
        match self:
            case Way.CONSUME:
                return [("consume", "--session", name) for name in ("1", "2")]
            case Way.AIRFLOW:
                return [(f"ingest__{_PLACE.pipeline}",)]
            case Way.STAGED | Way.DIRECT:
                return [("load", "--batch", "run")]


@dataclass(frozen=True, kw_only=True)
class Drill:
    """One drill, to be had again from its seed."""

    successor: Successor
    way: Way
    seed: str

    @property
    def what(self) -> str:
        return f"{self.successor}, {self.way}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a drill lost, repeated or broke; and what it took."""

    what: str
    seed: str
    lost: int
    repeated: int
    broken: tuple[str, ...]
    #: Commits that the old primary had answered, and the new one never had.
    forgotten: int
    calls: int
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.repeated or self.broken)


def drills(number: int, *, seed: int) -> list[Drill]:
    """Each successor with each way to load, in turn; under Airflow, one of them."""
    kinds: list[tuple[Successor, Way]]
    kinds = [(successor, way) for way in Way for successor in Successor if way is not Way.AIRFLOW]
    kinds.append((Successor.ASYNCHRONOUS, Way.AIRFLOW))
    return [
        Drill(successor=successor, way=way, seed=f"{seed}:{each}")
        for each, (successor, way) in zip(range(number), kinds * (number // len(kinds) + 1), strict=False)
    ]


def run_drill(drill: Drill) -> Outcome:
    """Let the primary die once while loads go on, then call them until nothing is new."""
    started, rng = time.monotonic(), Random(drill.seed)
    with ExitStack() as opened:
        folder = Path(opened.enter_context(TemporaryDirectory(prefix="onceload-drill-")))
        site = opened.enter_context(open_site(drill.successor))
        loads = (_Runs if drill.way is Way.AIRFLOW else _Loads)(site=site, way=drill.way, folder=folder)
        opened.enter_context(loads.ready())
        with loads.going_on():
            forgotten = _fail_over(site, rng)
        loads.finish()
        missing, too_many = loads.differences()
        return Outcome(
            what=drill.what,
            seed=drill.seed,
            lost=missing,
            repeated=too_many,
            broken=(*_broken_by_tail(drill.successor, forgotten), *loads.broken()),
            forgotten=forgotten,
            calls=len(loads.ended),
            seconds=time.monotonic() - started,
        )


def _fail_over(site: Site, rng: Random) -> int:
    """At a random moment; answers with how many commits the successor never had."""
    _wait_for_commit(site)
    site.prepare()
    time.sleep(rng.uniform(0, _LATER_S_MAX))
    site.part()
    # A successor without the tail has this one no more.
    _wait_for_commit(site)
    time.sleep(rng.uniform(0, _LATER_S_MAX))
    seen = _position(site)
    site.replace_primary()
    # No load has come to the new one yet.
    forgotten = max(0, seen - _position(site))
    site.move_address()
    return forgotten


def _wait_for_commit(site: Site) -> None:
    before = _position(site)
    wait_until(lambda: _position(site) > before, f"a commit after position {before}")


def _position(site: Site) -> int:
    ((position,),) = execute(site.in_charge.dsn, "SELECT coalesce(max(position), 0) FROM onceload.pipeline")
    return int(position)


def _broken_by_tail(successor: Successor, forgotten: int) -> Iterator[str]:
    if successor.lacks_the_tail and forgotten < 1:
        yield "the successor lacked no commit, so that this proves nothing"
    if not successor.lacks_the_tail and forgotten > 0:
        yield f"{forgotten} commits were answered, and the synchronous standby does not have them"


@dataclass(kw_only=True)
class _Loads:
    """Callers that write files and load them, and what came of it."""

    site: Site
    way: Way
    folder: Path
    ended: list[Ended] = field(default_factory=list)
    _stopping: Event = field(default_factory=Event)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def __post_init__(self) -> None:
        engine = connect(LedgerSettings(dsn=self.site.dsn))
        schema.upgrade(engine)
        engine.dispose()
        self._landing.mkdir()
        self._pipeline_file.parent.mkdir()
        columns = ", ".join(f"{name}: '{of_type}'" for name, of_type in COLUMNS.items())
        self._pipeline_file.write_text(
            f"pipeline: {_PLACE.pipeline}\n"
            f"source: {{path: {self._landing}/*.jsonl, format: jsonl, chunk_bytes: {_CHUNK_BYTES}}}\n"
            f"columns: {{{columns}}}\n"
            f"target: {{table: {_PLACE.target}}}\n"
            f"publish: {self.way.publish}\n"
            # A process that ends while there is no server cannot give back what it holds.
            "delivery: {ack_deadline: 3s, deliveries_max: 100}\n" + self.way.quality
        )
        # Only with a suite is a batch kept between two tasks.
        (self._pipeline_file.parent / _SUITE).write_text(
            '{"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "id"}}]}'
        )

    @contextmanager
    def ready(self) -> Iterator[None]:
        """While the block runs, it can be called."""
        yield

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Load while the block runs, and wait for the calls that run at its end."""
        with ThreadPoolExecutor(len(self.way.calls)) as callers:
            calling = [callers.submit(self._call_again_and_again, call) for call in self.way.calls]
            try:
                yield
            finally:
                self._stopping.set()
        for each in calling:
            each.result()

    def finish(self) -> None:
        """Call until a call finds nothing new, which is looked for even if the last one did not."""
        for _ in range(_CALLS_MAX):
            if self._call(self.way.calls[0]).is_nothing_new:
                return
        raise NeverCame(f"there is still something new: {self.ended[-1]}")

    def differences(self) -> tuple[int, int]:
        """How many records are not there, and how many once more or changed, by their values."""
        written = Counter(line for path in self._files() for line in path.read_text().splitlines())
        there = Counter(row for (row,) in execute(self.site.dsn, _THERE))
        return (written - there).total(), (there - written).total()

    def broken(self) -> Iterator[str]:
        for each in self.ended:
            if each.exit_code not in (0, 1, 3) or "Traceback" in each.words:
                yield f"a call ended with {each.exit_code}: {each.words}"
        engine = connect(LedgerSettings(dsn=self.site.dsn))
        yield from broken(engine, _PLACE, records_of({Life(path.name, 1): path.read_bytes() for path in self._files()}))
        engine.dispose()
        verified = self._run("verify", "--deep")
        if verified.exit_code != 0:
            yield f"verify ended with {verified.exit_code}: {verified.words}"

    @property
    def _landing(self) -> Path:
        return self.folder / "landing"

    @property
    def _pipeline_file(self) -> Path:
        return self.folder / "pipelines" / f"{_PLACE.pipeline}.yaml"

    def _files(self) -> list[Path]:
        return sorted(self._landing.iterdir())

    def _call_again_and_again(self, call: Sequence[str]) -> None:
        growing = self._landing / f"growing-{'-'.join(call)}.jsonl"
        while not self._stopping.is_set():
            self._write(growing)
            self._write(self._landing / f"{next(self._numbers)}.jsonl")
            self._call(call)

    def _write(self, path: Path) -> None:
        """More lines, in a file of its own or in one that grows."""
        with path.open("a") as file:
            file.writelines(_line(next(self._numbers)) for _ in range(_LINES))

    def _call(self, call: Sequence[str]) -> Ended:
        self.ended.append(self._run(*call))
        return self.ended[-1]

    def _run(self, command: str, *options: str) -> Ended:
        done = subprocess.run(
            [sys.executable, "-m", "onceload", command, str(self._pipeline_file), "--json", *options],
            cwd=_ROOT,
            env={**os.environ, "ONCELOAD_DSN": self.site.dsn},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_CALL_TAKES_S_MAX,
            check=False,
        )
        document = json.loads(done.stdout) if done.stdout else {}
        return Ended(exit_code=done.returncode, document=document, words=done.stderr)


class _Runs(_Loads):
    """Runs of a DAG, which Airflow's own retries have to bring to their end."""

    _api: AirflowApi

    @contextmanager
    def ready(self) -> Iterator[None]:
        """The whole stack: Airflow's own database stays where it is, and the loads' is the one that dies."""
        with temporary_home() as home:
            config = home / "airflow" / "config"
            config.mkdir(parents=True)
            (config / "airflow_local_settings.py").write_text(policies_for())
            environment = stack._environment
            with (
                patch.dict(os.environ, QUICK),
                patch.object(
                    stack,
                    "_environment",
                    lambda *given, **more: environment(*given, **more) | {"ONCELOAD_DSN": self.site.dsn},
                ),
                stack.running(home, port=free_port(), pipelines=self._pipeline_file.parent, samples=False) as running,
            ):
                self._api = AirflowApi(running.address, running.user, running.password, patience_s=_CALL_TAKES_S_MAX)
                self._api.until_it_knows(self.way.calls[0][0])
                yield

    def _call(self, call: Sequence[str]) -> Ended:
        run = f"run-{next(self._numbers)}"
        states = self._api.run(call[0], run)
        if states["load"] == "success" and "failed" in (states["audit"], states["publish"]):
            # Its kept batch was on the old primary: cleared, as the how-to says, the run stages it again.
            self._api.clear(call[0], run, "load")
            states = self._api.ended(call[0], run)
        done = set(states.values()) <= {"success", "skipped"}
        document = {"loaded": states["load"] != "skipped", "quarantined": 0, "notes": []}
        self.ended.append(Ended(exit_code=0 if done else 2, document=document, words=f"run {run}: {states}"))
        return self.ended[-1]


_THERE = """
SELECT format('{"id": %s, "amount": "%s", "note": "%s"}', id, amount, note) FROM public.drill
 UNION ALL
SELECT convert_from(raw, 'UTF8') FROM onceload.quarantine"""


def _line(number: int) -> str:
    amount = "no amount" if number % _BAD_EVERY == 0 else f"{number % 1000}.{number % 90 + 10}"
    return json.dumps({"id": number, "amount": amount, "note": f"n{number}"}) + "\n"
