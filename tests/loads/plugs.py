"""Faults that hit real loads, and what the loads lost, repeated or broke.

A load is struck as soon as something that it has done can be seen, then called again under the same name, as a
scheduler does, until it says that there is nothing new.
"""

import gzip
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from decimal import Decimal
from enum import StrEnum
from functools import cached_property
from itertools import chain, count, repeat
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import ClassVar, assert_never

import psycopg2
import psycopg2.extensions
import pyarrow as pa
import pyarrow.parquet as pq

from onceload import schema
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.load.settings import Engine
from onceload_jobs.pipeline.declared import Format, Publish
from tests.fault.server import CrashableServer, crashable_server
from tests.loads.counter import COLUMNS, Life, Place, Record, broken, records_of, stream_of
from tests.loads.worker import Cluster, Ended, NotAsPlanned, RunningLoad, running_load, spark_cluster
from tests.servers import execute

#: How many producers the records name.
_PRODUCERS = 97
_CALLS_MAX = 30
_CRASHES = 2
#: What a load may say that could not go on; a negative one was killed.
_CALL_AGAIN = (1, 3)
_TRACEBACK = "Traceback (most recent call last)"


class Fault(StrEnum):
    DRIVER_KILLED = "driver killed"
    WORKER_KILLED = "worker killed"
    GROUP_KILLED = "group killed"
    SERVER_CRASHED = "server crashed"
    SERVER_CRASHED_AT_PUBLISH = "server crashed when all rows are staged"

    def happens_to(self, way: "Way") -> bool:
        return self is not Fault.SERVER_CRASHED_AT_PUBLISH or way.publish is Publish.STAGED


class Way(StrEnum):
    """How records get into the target."""

    STAGED = "staged"
    DIRECT = "direct"
    ROW_GROUPS = "direct, of row groups"
    BY_PRODUCER = "by the producers that they name"
    BY_MESSAGE = "by their business ids"
    TRANSFORMED = "transformed in Postgres"
    TRANSFORMED_BY_SPARK = "transformed in Spark"

    @property
    def publish(self) -> Publish:
        return Publish.DIRECT if self.startswith("direct") else Publish.STAGED

    @property
    def more(self) -> str:
        """What the pipeline file declares for it."""
        return _MORE.get(self, "")

    @property
    def engines(self) -> tuple[Engine, ...]:
        match self:
            case Way.TRANSFORMED:
                return (Engine.LOCAL,)
            case Way.TRANSFORMED_BY_SPARK:
                return (Engine.SPARK,)
            case _:
                return (Engine.SPARK, Engine.LOCAL)


_MORE = {
    Way.BY_PRODUCER: "producer: {name: note, sequence: id}\n",
    Way.BY_MESSAGE: "message_id: {columns: [id], keep: 1d}\n",
    Way.TRANSFORMED: "transform: {engine: postgres, sql: SELECT * FROM records}\n",
    Way.TRANSFORMED_BY_SPARK: "transform: SELECT * FROM records\n",
}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run, to be had again from its seed."""

    fault: Fault
    way: Way
    engine: Engine
    seed: str

    @property
    def what(self) -> str:
        return f"{self.fault}, {self.way}, {self.engine}"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run lost, repeated or broke; and what it took."""

    what: str
    seed: str
    lost: int
    repeated: int
    broken: tuple[str, ...]
    calls: int
    seconds: float
    crashes: int
    #: The number of second copies of tasks, where Spark was made to, and of tries after one that failed.
    copies: int = 0
    retries: int = 0

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.repeated or self.broken)


def trials(faults: Iterable[Fault], *, repeats: int, seed: int) -> list[Trial]:
    """Each fault with each way and each of its engines, a number of times."""
    return [
        Trial(fault=fault, way=way, engine=engine, seed=f"{seed}:{fault.name}:{way.name}:{engine}:{number}")
        for fault in faults
        for way in Way
        if fault.happens_to(way)
        for engine in way.engines
        for number in range(repeats)
    ]


@dataclass(frozen=True, kw_only=True)
class Landing:
    """Files, and what has to be in the database when they are loaded."""

    pattern: str
    format: Format
    expected: Counter[Record]


@dataclass(frozen=True, kw_only=True)
class Stand:
    """A server that may be crashed, and files that one load after another finds new."""

    server: CrashableServer
    folder: Path
    lines: int
    chunk_bytes: int = 2**20
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    @cached_property
    def _of_lines(self) -> Landing:
        """A large file that is cut, one that cannot be, and small ones that are bundled."""
        return _landed(self._landing("lines"), lines=self.lines)

    @cached_property
    def _of_producers(self) -> Landing:
        """The same files. A good record belongs to the producer that it names."""
        named = Counter({_as_named(record): times for record, times in self._of_lines.expected.items()})
        return replace(self._of_lines, expected=named)

    @cached_property
    def _of_row_groups(self) -> Landing:
        return _landed_row_groups(self._landing("groups"), rows=2 * self.lines)

    def _landing(self, name: str) -> Path:
        folder = self.folder / f"landing-{name}"
        folder.mkdir()
        return folder

    def landing(self, way: Way) -> Landing:
        match way:
            case Way.ROW_GROUPS:
                return self._of_row_groups
            case Way.BY_PRODUCER:
                return self._of_producers
            case _:
                return self._of_lines

    @contextmanager
    def new_plugged(self, way: Way) -> Iterator["Plugged"]:
        """A pipeline that has loaded nothing; its rows, and what is left of its stages, go when the block ends."""
        landing = self.landing(way)
        name = f"plugged_{next(self._numbers)}"
        folder = self.folder / name
        folder.mkdir()
        place = Place(pipeline=name, target=f"public.{name}")
        plugged = Plugged(stand=self, place=place, folder=folder, expected=landing.expected)
        columns = "\n".join(f"  {name}: {of_type}" for name, of_type in COLUMNS.items())
        plugged.pipeline_file.write_text(
            f"pipeline: {name}\n"
            f"source:\n  path: {landing.pattern}\n  format: {landing.format}\n  chunk_bytes: {self.chunk_bytes}\n"
            f"columns:\n{columns}\n"
            f"target: {{table: {plugged.place.target}}}\n"
            f"publish: {way.publish}\n"
            f"{way.more}"
        )
        yield plugged
        plugged.stop_looking()
        for (table,) in [(plugged.place.target,), *execute(self.server.dsn(), _STAGE_TABLES)]:
            execute(self.server.dsn(), f"DROP TABLE IF EXISTS {table}")


_STAGE_TABLES = """
SELECT CAST(CAST(oid AS regclass) AS text) FROM pg_class
 WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r'"""
_PIECES = "onceload-rows-*/*"
_WAITING_BEHIND = "SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY(pg_blocking_pids(pid))"
_THERE = """
SELECT count(*), count(DISTINCT (producer_id, sequence_id)) FROM (
    SELECT _producer_id AS producer_id, _sequence AS sequence_id FROM {target}
     UNION ALL
    SELECT producer_id, sequence_id FROM onceload.quarantine JOIN onceload.pipeline USING (pipeline_id)
     WHERE name = '{pipeline}') AS there"""


@dataclass(kw_only=True)
class Plugged:
    """One pipeline, and what is done to its server."""

    stand: Stand
    place: Place
    folder: Path
    expected: Counter[Record]
    crashes: int = 0
    #: Kept, because a connection for each look would slow down what is looked at.
    _looking: psycopg2.extensions.connection | None = None

    @property
    def dsn(self) -> str:
        return self.stand.server.dsn()

    @property
    def pipeline_file(self) -> Path:
        return self.folder / "pipeline.yaml"

    @contextmanager
    def load(
        self, options: Sequence[str] = (), *, batch: str = "run", temporary: Path | None = None
    ) -> Iterator[RunningLoad]:
        environment = {"TMPDIR": str(temporary or self.folder)}
        run = running_load(self.pipeline_file, dsn=self.dsn, batch=batch, options=options, environment=environment)
        with run as load:
            yield load

    def restart_server(self) -> None:
        self.stand.server.crash()
        self.crashes += 1
        self.stop_looking()
        self.stand.server.start()

    def progress(self) -> int:
        """How much a load has done that can be seen: commits, and pieces that are staged."""
        ((commits,),) = self.ask(
            f"SELECT coalesce(max(position), 0) FROM onceload.pipeline WHERE name = '{self.place.pipeline}'"
        ) or [(0,)]
        return int(commits) + self.staged()

    def staged(self) -> int:
        """How many pieces wait to be published; those of a load that was killed stay until the next one."""
        return sum(path.name != "mark" for path in self.folder.glob(_PIECES))

    def ask(self, statement: str) -> list[tuple]:
        """The rows of a query; none, if the server is down, or the table is gone between two looks."""
        try:
            if self._looking is None:
                self._looking = psycopg2.connect(self.dsn)
                self._looking.autocommit = True
            with self._looking.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall()
        except psycopg2.Error:
            self.stop_looking()
            return []

    def stop_looking(self) -> None:
        if self._looking:
            self._looking.close()
        self._looking = None

    def judged(self, calls: Sequence[Ended], *, what: str, seed: str, started: float, broken: Sequence[str]) -> Outcome:
        """Compare what is there now with what was offered."""
        offered = self.expected.total()
        ((there, different),) = execute(self.dsn, _THERE.format(target=self.place.target, pipeline=self.place.pipeline))
        return Outcome(
            what=what,
            seed=seed,
            lost=max(0, offered - different),
            repeated=there - different,
            broken=(*broken, *_broken_by_calls(calls), *self._differences()),
            calls=len(calls),
            seconds=time.monotonic() - started,
            crashes=self.crashes,
        )

    def _differences(self) -> list[str]:
        engine = connect(LedgerSettings(dsn=self.dsn))
        try:
            return broken(engine, self.place, self.expected)
        finally:
            engine.dispose()


def _broken_by_calls(calls: Sequence[Ended]) -> Iterator[str]:
    for call in calls:
        if call.exit_code > 0 and (call.exit_code not in _CALL_AGAIN or _TRACEBACK in call.words):
            yield f"a call should be made again or be done, but ended with {call.exit_code}: {call.words}"
    if not calls[-1].is_nothing_new:
        yield f"after {len(calls)} calls there is still something new: {calls[-1]}"


@contextmanager
def open_stand(*, lines: int, chunk_bytes: int = 2**20) -> Iterator[Stand]:
    with TemporaryDirectory(prefix="onceload-plugs-") as folder, crashable_server() as server:
        engine = connect(LedgerSettings(dsn=server.dsn()))
        schema.upgrade(engine)
        engine.dispose()
        yield Stand(server=server, folder=Path(folder), lines=lines, chunk_bytes=chunk_bytes)


def _landed(folder: Path, *, lines: int) -> Landing:
    paths = tuple(folder / name for name in ("large.jsonl", "packed.jsonl.gz", "small-1.jsonl", "small-2.jsonl"))
    shares = (lines // 2, lines // 2, 50, 70)
    numbers = count(1)
    for path, share in zip(paths, shares, strict=True):
        content = "".join(_line(next(numbers)) for _ in range(share)).encode()
        path.write_bytes(gzip.compress(content, compresslevel=1) if path.suffix == ".gz" else content)
    return _of_json(folder, paths)


def _of_json(folder: Path, paths: Sequence[Path]) -> Landing:
    expected = records_of({Life(path.name, 1): stream_of(path)[0] for path in paths})
    return Landing(pattern=f"{folder}/*.jsonl*", format=Format.JSONL, expected=expected)


def _landed_row_groups(folder: Path, *, rows: int) -> Landing:
    """A large file of many row groups, and a small one."""
    expected = Counter[Record]()
    numbers = count(1)
    for name, share in (("large.parquet", rows), ("small.parquet", 50)):
        values = [_values(next(numbers)) for _ in range(share)]
        ids, amounts, notes = zip(*values, strict=True)
        table = pa.table({"id": ids, "amount": pa.array(map(Decimal, amounts), pa.decimal128(12, 2)), "note": notes})
        # As large as it looks, so that it has many deliveries.
        size = {"row_group_size": max(1, rows // 40), "compression": "none", "use_dictionary": False}
        pq.write_table(table, folder / name, **size)
        life = Life(name, 1)
        expected.update(Record(life, row, is_row=True, payload=json.dumps(each)) for row, each in enumerate(values))
    return Landing(pattern=f"{folder}/*.parquet", format=Format.PARQUET, expected=expected)


def _as_named(record: Record) -> Record:
    if not record.is_row:
        return record
    number, _, note = json.loads(record.payload)
    return record._replace(life=Life(f"note={note}", 1), offset=number)


def _line(number: int) -> str:
    if number % 5_003 == 0:
        return f'{{"id": {number}, "amount": "no amount"}}\n'
    return json.dumps(dict(zip(COLUMNS, _values(number), strict=True))) + "\n"


def _values(number: int) -> tuple[int, str, str]:
    return number, f"{number % 1000}.{number % 90 + 10}", f"n{number % _PRODUCERS}"


def run_trial(stand: Stand, trial: Trial) -> Outcome:
    """Strike the first call; all others are left alone."""
    started, rng = time.monotonic(), Random(trial.seed)
    with stand.new_plugged(trial.way) as plugged:
        strikes = chain([lambda load: _strike(plugged, load, trial.fault, rng)], repeat(lambda _: None))
        calls, broken = _called(plugged, strikes, options=["--engine", trial.engine])
        return plugged.judged(calls, what=trial.what, seed=trial.seed, started=started, broken=broken)


def _called(
    plugged: Plugged, strikes: Iterator[Callable[[RunningLoad], None]], *, options: Sequence[str] = ()
) -> tuple[list[Ended], list[str]]:
    """Call until nothing is new, and at least once more; answers with what kept a strike from happening, too."""
    calls: list[Ended] = []
    not_as_planned = []
    while len(calls) < _CALLS_MAX and not (len(calls) > 1 and calls[-1].is_nothing_new):
        with plugged.load(options) as load:
            try:
                next(strikes)(load)
            except NotAsPlanned as error:
                not_as_planned.append(str(error))
            calls.append(load.end())
    return calls, not_as_planned


def _strike(plugged: Plugged, load: RunningLoad, fault: Fault, rng: Random) -> None:
    # As many as are there in any case, before the last.
    seen = rng.randint(1, 5)
    load.wait_until(lambda: plugged.progress() >= seen)
    match fault:
        case Fault.DRIVER_KILLED:
            load.kill_driver()
        case Fault.WORKER_KILLED:
            load.kill_worker()
        case Fault.GROUP_KILLED:
            load.kill_group()
        case Fault.SERVER_CRASHED:
            for _ in range(_CRASHES):
                plugged.restart_server()
                before = plugged.progress()
                if not load.look_until(lambda before=before: plugged.progress() > before):  # type: ignore[misc]
                    return
        case Fault.SERVER_CRASHED_AT_PUBLISH:
            _crash_at_publish(plugged, load)
        case _:
            assert_never(fault)


def _crash_at_publish(plugged: Plugged, load: RunningLoad) -> None:
    """Keep the load, which has counted its pieces, from writing its entry, so that it waits in its commit."""
    with closing(psycopg2.connect(plugged.dsn)) as holder, holder.cursor() as cursor:
        cursor.execute("LOCK TABLE onceload.ledger IN SHARE MODE")
        waiting = _WAITING_BEHIND.format(pid=holder.info.backend_pid)
        load.wait_until(lambda: plugged.ask(waiting) == [(1,)])
        plugged.restart_server()


class _Pace:
    """When the server crashes next: as soon as the load has gone on a little, or nothing was seen of it for seconds."""

    _PIECES, _PATIENCE_S = 2.0, 5.0
    #: A crash empties the stage, so that each time more of it must be let through, or it would never be whole.
    _FURTHER: ClassVar = {Publish.DIRECT: 1.0, Publish.STAGED: 1.5}

    def __init__(self, plugged: Plugged, publish: Publish) -> None:
        self._plugged, self._further = plugged, self._FURTHER[publish]
        self._pieces, self._patience_s = self._PIECES, self._PATIENCE_S

    def crash_until_the_end(self, load: RunningLoad, cluster: Cluster, rng: Random) -> None:
        """Each time, a worker of Spark's is killed as well, so that its task is tried again."""
        # No call is struck before anything can be seen of it.
        self._wait_for_more(patience_s=float("inf"))
        while load.look_until(self._is_due):
            # A task starts over, and needs longer each time until it gets further than the last one did.
            self._patience_s = self._PATIENCE_S if self._has_gone_on() else 2 * self._patience_s
            self._plugged.restart_server()
            cluster.kill_worker(rng)
            self._pieces *= self._further
            self._wait_for_more(patience_s=self._patience_s)

    def _wait_for_more(self, *, patience_s: float) -> None:
        self._seen, self._until = self._plugged.progress(), time.monotonic() + patience_s

    def _has_gone_on(self) -> bool:
        return self._plugged.progress() - self._seen >= self._pieces

    def _is_due(self) -> bool:
        return self._has_gone_on() or time.monotonic() >= self._until


def endure(stand: Stand, way: Way, *, seed: int) -> Outcome:
    """Crash the server again and again for as long as a load runs, while Spark runs some of its tasks twice."""
    started, rng = time.monotonic(), Random(f"{seed}:{way}")
    with stand.new_plugged(way) as plugged, spark_cluster(plugged.folder) as cluster:
        pace = _Pace(plugged, way.publish)
        strikes = repeat(lambda load: pace.crash_until_the_end(load, cluster, rng))
        calls, broken = _called(plugged, strikes, options=cluster.options)
        copies, retries = cluster.tasks_started()
        # Whether Spark also starts a copy of a slow task depends on chance.
        if not (copies or retries):
            broken.append("Spark ran no task twice")
        outcome = plugged.judged(calls, what=way, seed=str(seed), started=started, broken=broken)
        return replace(outcome, copies=copies, retries=retries)
