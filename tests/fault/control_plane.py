"""Faults that hit Airflow and all that it runs, and what they lost, repeated or broke.

The stack runs once, with pipelines that are loaded side by side, each in a lane of its own. Before each strike the
files of a lane grow by rows that are known, and a run is triggered; it is struck as soon as something that it has done
can be seen, and has to come to its end: by Airflow's own retries, or by being cleared after it failed. A strike at the
scheduler or at the server meets all lanes at once.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from http import HTTPStatus
from itertools import count
from pathlib import Path
from random import Random
from threading import Lock
from typing import Any, assert_never
from unittest.mock import patch
from urllib.parse import quote

import psutil
import psycopg2
import psycopg2.extensions

from onceload import cli, stack
from onceload.airflow_api import AirflowApi, AirflowUnfit
from tests.fault.server import CrashableServer
from tests.ports import free_port
from tests.servers import execute, temporary_home
from tests.waiting import PATIENCE_S, until

_LOOKS_EVERY_S = 0.02
#: A run that is over before it could be struck is followed by another.
_MISSED_MAX = 6
_STRIKES_PER_RUN = 3
_FILES = 2
_ROWS = 2_000
#: The chunks are so small that a delivery is held for long enough to be seen.
_PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/*.jsonl", format: jsonl, chunk_bytes: 1024}}
columns: {{n: bigint not null, note: text}}
target: {{table: public.{name}}}
publish: {publish}
delivery: {{ack_deadline: 20s, deliveries_max: 50}}
"""
_SUITE = """\
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: n, min_value: 0}
"""
#: Airflow's own way to say what the tasks of all DAGs should do.
_POLICIES = """\
from datetime import timedelta

def task_policy(task):
    task.retries, task.retry_delay, task.retry_exponential_backoff = 5, timedelta(seconds=1), False
    if task.task_id == "load" and task.dag_id in {submitted}:
        task.engine = "spark"

def dag_policy(dag):
    dag.max_active_runs = 2 if dag.dag_id in {at_once} else 1
"""
QUICK = {
    # No DAG changes here, and to parse all of them again and again takes a large part of two cores.
    "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
    "AIRFLOW__SCHEDULER__JOB_HEARTBEAT_SEC": "2",
    "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "5",
    "AIRFLOW__SCHEDULER__SCHEDULER_HEALTH_CHECK_THRESHOLD": "12",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "12",
    "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT_DETECTION_INTERVAL": "3",
    "AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL": "2",
}


def policies_for(*, at_once: Sequence[str] = (), submitted: Sequence[str] = ()) -> str:
    """Airflow's settings for quick retries; some DAGs have two runs at once, and some load in Spark."""
    return _POLICIES.replace("{at_once}", repr(at_once)).replace("{submitted}", repr(submitted))


class Kind(StrEnum):
    """How a lane loads."""

    #: Staged, asked by a suite, published.
    AUDITED = "audited"
    DIRECT = "direct"
    #: Staged without a suite, by two runs at once.
    TWINS = "twins"

    @property
    def is_direct(self) -> bool:
        return self is Kind.DIRECT

    @property
    def has_publish(self) -> bool:
        """Whether a task of its own publishes; otherwise its load does."""
        return self is Kind.AUDITED

    @property
    def may_run_twice(self) -> bool:
        return self in (Kind.DIRECT, Kind.TWINS)


class Fault(StrEnum):
    SCHEDULER = "scheduler killed"
    WORKER = "worker of the executor killed"
    TASK = "process of the task killed"
    DRIVER = "process of the load killed"
    CLEARED = "running task cleared"
    AT_ONCE = "two runs at once"
    CRASH = "server crashed"
    BACKEND = "backend of the server killed"

    def happens_to(self, kind: Kind) -> bool:
        return self is not Fault.AT_ONCE or kind is Kind.DIRECT


class Moment(StrEnum):
    """The visible moment of a run at which it is struck."""

    LAUNCHED = "its load was launched"
    PLANNING = "its session is open"
    IN_HAND = "a delivery is held"
    KEPT = "its batch is staged"
    LATER = "its publish (without a suite: report) runs"

    def happens_to(self, kind: Kind, fault: Fault) -> bool:
        if self is Moment.KEPT and not kind.has_publish:
            return False
        # There is no Spark any more.
        return fault is not Fault.DRIVER or self in (Moment.LAUNCHED, Moment.PLANNING, Moment.IN_HAND)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One strike, to be had again from its seed."""

    fault: Fault
    kind: Kind
    moment: Moment
    seed: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What strikes at one run lost, repeated or broke; and what it took."""

    #: Most runs are struck more than once: on the way to its end there are more moments.
    struck: tuple[Trial, ...] = ()
    lost: int = 0
    repeated: int = 0
    broken: tuple[str, ...] = ()
    #: Of the tasks of the runs that were struck, those after the first of each.
    retries: int = 0
    #: Runs that failed, and were cleared.
    failed: int = 0
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.repeated or self.broken)


def trials(strikes: int, *, seed: int) -> list[Trial]:
    """Each fault equally often, and in each lane that it can happen to, in an order of the seed's."""
    faults, asked = list(Fault), []
    for number in range(strikes):
        fault, turn = faults[number % len(faults)], number // len(faults)
        kinds = [kind for kind in Kind if fault.happens_to(kind)]
        # Not all faults of a turn in the same lane.
        kind = kinds[(turn + faults.index(fault)) % len(kinds)]
        rng = Random(f"{seed}:{number}")
        moment = rng.choice([each for each in Moment if each.happens_to(kind, fault)])
        asked.append(Trial(fault=fault, kind=kind, moment=moment, seed=f"{seed}:{number}"))
    Random(seed).shuffle(asked)
    return asked


def strike_all(stand: "Stand", asked: Sequence[Trial]) -> list[Outcome]:
    """All strikes, in as many lanes at once as there are; then whatever each lane must look like at its end."""
    with ThreadPoolExecutor(len(stand.lanes)) as lanes:
        found = list(
            lanes.map(lambda lane: lane.strike_all([each for each in asked if each.kind is lane.kind]), stand.lanes)
        )
        ended = list(lanes.map(Lane.ended, stand.lanes))
    return [*(outcome for some in found for outcome in some), *ended, stand.left_behind()]


@contextmanager
def open_stand() -> Iterator["Stand"]:
    """The real stack, whose Airflow notices faster than by default what has died."""
    with temporary_home() as home:
        pipelines, config = home / "pipelines", home / "airflow" / "config"
        for folder in (pipelines, config, *(home / "landing" / kind for kind in Kind)):
            folder.mkdir(parents=True)
        (pipelines / "suite.yaml").write_text(_SUITE)
        for kind in Kind:
            publish = "direct" if kind.is_direct else "staged"
            declared = _PIPELINE.format(name=kind, folder=home / "landing" / kind, publish=publish)
            suite = "quality: {suite: suite.yaml}\n" if kind is Kind.AUDITED else ""
            (pipelines / f"{kind}.yaml").write_text(declared + suite)
        at_once = [f"ingest__{kind}" for kind in Kind if kind.may_run_twice]
        submitted = [f"ingest__{Kind.AUDITED}"]
        policies = policies_for(at_once=at_once, submitted=submitted)
        (config / "airflow_local_settings.py").write_text(policies)
        with (
            patch.dict(os.environ, QUICK),
            patch.object(stack, "_STALLS_AFTER_S", 60.0),
            stack.running(home, port=free_port(), pipelines=pipelines, samples=False) as running,
        ):
            stand = Stand(home=home, running=running)
            stand.wait_for_dags()
            yield stand
        assert stand.processes() == [], "the stack has ended, and these have not"


class Stand:
    """The stack, and a lane for each kind of pipeline."""

    def __init__(self, *, home: Path, running: stack.Running) -> None:
        self.home, self.running = home, running
        self.server = CrashableServer(home=home, dsn=running.dsn)
        self.lanes = [Lane(stand=self, kind=kind) for kind in Kind]
        self._api = AirflowApi(running.address, running.user, running.password)
        #: Crashing a server that is down would fail.
        self.crashing = Lock()
        #: The last strike in any lane: a server or a scheduler that dies takes down the runs in all of them.
        self.struck_at = 0.0

    def wait_for_dags(self) -> None:
        names = {f"ingest__{kind}" for kind in Kind}

        def are_known() -> bool:
            return names <= {each["dag_id"] for each in self.ask("/api/v2/dags")["dags"]}

        until(are_known, "Airflow knows the DAGs", every_s=0.5)

    def ask(self, path: str, said: object = None) -> Any:
        """What Airflow answers, as soon as it does: it may be down, or its database."""
        ends = time.monotonic() + PATIENCE_S
        while True:
            try:
                return self._api.ask(path, said)
            except AirflowUnfit as unfit:
                # It was asked before, and the answer was lost.
                if unfit.code == HTTPStatus.CONFLICT:
                    return {}
                is_refused = 0 < unfit.code < HTTPStatus.INTERNAL_SERVER_ERROR
                is_refused = is_refused and unfit.code != HTTPStatus.UNAUTHORIZED
                if is_refused or time.monotonic() > ends:
                    raise AssertionError(str(unfit)) from unfit
            time.sleep(0.5)

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Processes that this stack started, by name; one that renames itself might be missed."""
        there = psutil.process_iter(["environ", "name"])
        of_us = [
            each for each in there if (each.info["environ"] or {}).get("AIRFLOW_HOME") == str(self.home / "airflow")
        ]
        return [each for each in of_us if name in each.info["name"]]

    def left_behind(self) -> Outcome:
        """Find what is still there though nothing is to be done."""
        with suppress(AssertionError):
            until(lambda: not self.processes("java"), "no process of Spark is left", every_s=0.5)
        spark = self.processes("java")
        runs = execute(
            _metadata(self.running.dsn), "SELECT dag_id, run_id FROM dag_run WHERE state IN ('running', 'queued')"
        )
        return Outcome(
            broken=(
                *(f"{each} is still there" for each in spark),
                *(f"run {run} of {dag} has not ended" for dag, run in runs),
            ),
        )


def _metadata(dsn: str) -> str:
    return dsn.replace("/postgres?", "/airflow?")


@dataclass(frozen=True, kw_only=True)
class _AtWork:
    """A task that runs, in a process whose parent, the executor's worker, watches over it."""

    task: str
    process: psutil.Process
    worker: psutil.Process
    scheduler: psutil.Process

    @classmethod
    def of(cls, task: str, pid: int) -> "_AtWork | None":
        """Nothing, unless it is what Airflow says: a process that died may have left its number to a stranger."""
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            process, scheduler = psutil.Process(pid), psutil.Process(os.getsid(pid))
            worker = process.parent()
            if worker and worker.ppid() == scheduler.pid and "LocalExecutor" in " ".join(worker.cmdline()):
                return cls(task=task, process=process, worker=worker, scheduler=scheduler)
        return None

    def drivers(self) -> list[psutil.Process]:
        """The JVM that a load is submitted to, or the processes that read for it; without these, the task itself."""
        with suppress(psutil.NoSuchProcess):
            return list(filter(_is_ours, self.process.children(recursive=True))) or [self.process]
        return []


class Missed(Exception):
    """A run was over, or its process gone, before it could be struck."""


@dataclass(kw_only=True)
class Lane:
    """One pipeline, whose files grow."""

    stand: Stand
    kind: Kind
    rows: int = 0
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    #: Kept, because a connection for each look would slow down what is looked at.
    _looking: dict[str, psycopg2.extensions.connection] = field(default_factory=dict)

    # Faults.

    def strike_all(self, asked: Sequence[Trial]) -> list[Outcome]:
        """Run after run, until all strikes of this lane are done."""
        left, outcomes, missed = list(asked), [], 0
        while left and missed < _MISSED_MAX:
            # Of the next ones, those that come early in a run first.
            some = sorted(left[:_STRIKES_PER_RUN], key=lambda each: list(Moment).index(each.moment))
            outcome = self._run(some)
            left = [each for each in left if each not in outcome.struck]
            missed = 0 if outcome.struck else missed + 1
            outcomes.append(outcome)
            print(self.kind, outcome, flush=True)
        return outcomes if not left else [*outcomes, Outcome(broken=tuple(f"never seen: {each}" for each in left))]

    def _run(self, asked: Sequence[Trial]) -> Outcome:
        """One run, or two at once, with all of these strikes that it gives an opportunity for."""
        started, struck, broken = time.monotonic(), [], []
        retries = failed = 0
        try:
            self._write(Random(asked[0].seed))
            runs = [self._trigger()]
            if self.kind is Kind.TWINS:
                runs.append(self._trigger())
            for trial in asked:
                with suppress(Missed):
                    self._strike(trial.fault, self._await(trial.moment, runs[0]), runs, Random(trial.seed))
                    self.stand.struck_at = time.monotonic()
                    struck.append(trial)
            ended = [self._ended(run) for run in runs]
            retries, failed = (sum(each) for each in zip(*ended, strict=True))
        except AssertionError as error:
            broken.append(str(error))
        lost, repeated = self._compared()
        return Outcome(
            struck=tuple(struck),
            lost=lost,
            repeated=repeated,
            broken=tuple(broken),
            retries=retries,
            failed=failed,
            seconds=time.monotonic() - started,
        )

    def ended(self) -> Outcome:
        """One more run, without a fault; then all rows are loaded once, and no session holds anything."""
        broken = []
        try:
            self._write(Random(self.kind))
            self._ended(self._trigger())
        except AssertionError as error:
            broken.append(str(error))
        lost, repeated = self._compared()
        held = execute(
            self.stand.running.dsn,
            "SELECT delivery_id, batch, state FROM onceload.claim JOIN onceload.delivery USING (delivery_id)"
            f" JOIN onceload.pipeline ON pipeline.pipeline_id = delivery.pipeline_id WHERE name = '{self.kind}'",
        )
        broken += [f"held: {each}" for each in held]
        file = str(self.stand.home / "pipelines" / f"{self.kind}.yaml")
        environment = {"ONCELOAD_DSN": self.stand.running.dsn, "ONCELOAD_HOME": str(self.stand.home)}
        if code := cli.main(["verify", "--deep", file], {**os.environ, **environment}):
            broken.append(f"verify ended with {code}")
        for connection in self._looking.values():
            connection.close()
        return Outcome(lost=lost, repeated=repeated, broken=tuple(broken))

    def _write(self, rng: Random) -> None:
        """More rows, in files that grow and in new ones."""
        folder = self.stand.home / "landing" / self.kind
        for number in range(_FILES):
            name = "growing" if number == 0 else f"{rng.randrange(5)}"
            with (folder / f"{name}.jsonl").open("a") as file:
                for n in range(self.rows, self.rows + _ROWS):
                    file.write(json.dumps({"n": n, "note": _note(n)}) + "\n")
            self.rows += _ROWS

    @property
    def _dag(self) -> str:
        return f"/api/v2/dags/ingest__{self.kind}"

    def _trigger(self) -> str:
        run = f"{self.kind}-{next(self._numbers)}"
        self.stand.ask(f"{self._dag}/dagRuns", {"dag_run_id": run, "logical_date": None})
        return run

    def _strike(self, fault: Fault, at_work: _AtWork, runs: list[str], rng: Random) -> None:
        match fault:
            case Fault.SCHEDULER:
                _kill(at_work.scheduler)
            case Fault.WORKER:
                _kill(at_work.worker)
            case Fault.TASK:
                _kill(at_work.process)
            case Fault.DRIVER:
                _kill(rng.choice(at_work.drivers() or [None]))
            case Fault.CLEARED:
                self.stand.ask(
                    f"{self._dag}/clearTaskInstances",
                    {"dry_run": False, "only_failed": False, "task_ids": [at_work.task], "dag_run_id": runs[0]},
                )
            case Fault.AT_ONCE:
                if len(runs) == 1:
                    runs.append(self._trigger())
            case Fault.CRASH:
                with self.stand.crashing, suppress(IndexError, OSError):
                    self.stand.server.crash()
            case Fault.BACKEND:
                self._kill_backend(rng)
            case _ as never:
                assert_never(never)

    def _kill_backend(self, rng: Random) -> None:
        """One process of the server dies, and it ends all sessions and recovers."""
        pids = self._look(
            self.stand.running.dsn, "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend'"
        )
        if not pids:
            raise Missed
        try:
            backend = psutil.Process(rng.choice(sorted(pids))[0])
        except psutil.NoSuchProcess as error:
            raise Missed from error
        _kill(backend)

    # Observations.

    def _may_take_longer(self, started: float) -> bool:
        return time.monotonic() < max(started, self.stand.struck_at) + PATIENCE_S

    def _await(self, moment: Moment, run: str) -> _AtWork:
        started = time.monotonic()
        while True:
            assert self._may_take_longer(started), f"run {run} never came to this: {moment}"
            at_work = self._at_work(run)
            if at_work and self._is_there(moment, at_work, run):
                return at_work
            if self._state(run) in ("success", "failed"):
                raise Missed
            time.sleep(_LOOKS_EVERY_S)

    def _is_there(self, moment: Moment, at_work: _AtWork, run: str) -> bool:
        mine = f"pipeline.name = '{self.kind}'"
        match moment:
            case Moment.LAUNCHED:
                return at_work.task == "load" and bool(at_work.drivers())
            case Moment.PLANNING:
                return at_work.task == "load" and self._is_any(
                    f"session JOIN onceload.pipeline USING (pipeline_id) WHERE {mine} AND session.name = '{run}/plan'"
                )
            case Moment.IN_HAND:
                return at_work.task == "load" and self._is_any(f"delivery WHERE batch = '{run}' AND state = 'held'")
            case Moment.KEPT:
                return self._is_any(f"delivery WHERE batch = '{run}' AND stage IS NOT NULL")
            case Moment.LATER:
                return at_work.task == ("publish" if self.kind.has_publish else "report")

    def _is_any(self, of: str) -> bool:
        return bool(self._look(self.stand.running.dsn, f"SELECT FROM onceload.{of} LIMIT 1"))

    def _at_work(self, run: str) -> _AtWork | None:
        rows = self._look(
            _metadata(self.stand.running.dsn),
            f"SELECT task_id, pid FROM task_instance WHERE dag_id = 'ingest__{self.kind}' AND run_id = '{run}'"
            " AND state = 'running' AND pid IS NOT NULL",
        )
        return _AtWork.of(*rows[0]) if rows else None

    def _state(self, run: str) -> str | None:
        rows = self._look(
            _metadata(self.stand.running.dsn),
            f"SELECT state FROM dag_run WHERE dag_id = 'ingest__{self.kind}' AND run_id = '{run}'",
        )
        return rows[0][0] if rows else None

    def _ended(self, run: str) -> tuple[int, int]:
        """Wait for the end of a run, which is cleared if it failed: how many retries it took, and clearings."""
        cleared, started = 0, time.monotonic()
        while (state := self._state(run)) != "success":
            assert self._may_take_longer(started), (
                f"run {run} is stuck: {self._look(_metadata(self.stand.running.dsn), _TASKS.format(run=run))}"
            )
            if state == "failed":
                cleared += 1
                self.stand.ask(f"{self._dag}/dagRuns/{quote(run)}/clear", {"dry_run": False, "only_failed": False})
            time.sleep(0.2)
        tries = self._look(
            _metadata(self.stand.running.dsn),
            f"SELECT sum(greatest(try_number - 1, 0)) FROM task_instance WHERE run_id = '{run}'",
        )
        return int(tries[0][0] or 0) if tries else 0, cleared

    def _compared(self) -> tuple[int, int]:
        """How many rows are not there, and how many once more or changed."""
        there: Counter[tuple[int, str]] = Counter()
        with suppress(psycopg2.errors.UndefinedTable):
            there = Counter(
                _until_answered(lambda: execute(self.stand.running.dsn, f"SELECT n, note FROM {self.kind}"))
            )
        expected = Counter((n, _note(n)) for n in range(self.rows))
        return (expected - there).total(), (there - expected).total()

    def _look(self, dsn: str, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query; none, if the server is down."""
        try:
            if dsn not in self._looking:
                self._looking[dsn] = psycopg2.connect(dsn)
                self._looking[dsn].autocommit = True
            with self._looking[dsn].cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall()
        except psycopg2.Error:
            if connection := self._looking.pop(dsn, None):
                connection.close()
            return []


_TASKS = "SELECT task_id, state, try_number FROM task_instance WHERE run_id = '{run}'"


def _is_ours(process: psutil.Process) -> bool:
    """Spark's script may leave a zombie to the JVM, which stays as long as the JVM and has no command line."""
    with suppress(psutil.NoSuchProcess):
        return process.name() == "java" or cli.__package__ in " ".join(process.cmdline())
    return False


def _note(n: int) -> str:
    return f"note {n * 7919 % 10_007}"


def _until_answered(ask: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    ends = time.monotonic() + PATIENCE_S
    while True:
        try:
            return ask()
        except psycopg2.OperationalError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.2)


def _kill(process: psutil.Process | None) -> None:
    if process is None:
        raise Missed
    try:
        process.kill()
    except psutil.NoSuchProcess as error:
        raise Missed from error
