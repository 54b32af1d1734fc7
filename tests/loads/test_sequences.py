"""Any sequence of what happens to files and to loads leaves each record in once, and the ledger its proof.

Faults strike a loader at a word that it says to the server: it dies there, the server ends its connection, or its
COMMIT stays without an answer. In the end a quiet load makes good whatever was left.
"""

import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Any

import psycopg2
import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, text
from sqlalchemy import event as engine_event

from onceload.choices import chosen
from onceload.contradictions import may_choose, may_replace
from onceload_core.delivery import Rules
from onceload_core.errors import AskTheLedger, CallAgain
from onceload_core.names import Batch
from onceload_core.pipeline import Pipeline, SnapshotPolicy
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect, recover_state
from onceload_jobs.executor.executor import Died, Outcome, called
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    CsvOptions,
    Declared,
    Format,
    OnRewrite,
    Publish,
    QuarantineLimit,
    RecordProducer,
    Source,
    Target,
    Write,
)
from onceload_jobs.verify.findings import Kind as Differing
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess
from tests.loads.counter import COLUMNS, Form, Place, broken, commits_of
from tests.loads.landing import Landing
from tests.loads.model import EVERYTHING, Kind, Model, Told
from tests.loads.operations import (
    KINDS,
    SEQUENCES,
    Append,
    Fault,
    Load,
    LoadTogether,
    Operation,
    Piece,
    PutBack,
    Recover,
    Rewrite,
    TakeSnapshot,
    Truncate,
    Verify,
)
from tests.servers import execute, temporary_database
from tests.waiting import until

#: Whole loads are slow: a tenth of the examples of other tests.
_EXAMPLES = settings().max_examples // 10 // len(KINDS)


class Killed(BaseException):
    """The process is dead: nothing catches this, and nothing is sent to the server afterwards."""


class TaskKilled(BaseException):
    """One try of a task is dead."""


@dataclass
class Plug:
    """Listens to what one loader says to the server, and pulls at the word that it was given."""

    fault: Fault | None
    at: int
    server_dsn: str
    in_task: bool = False
    is_pulled: bool = False
    _heard: int = 0

    def hear(self, connection: Connection, *, is_commit: bool) -> None:
        if self.is_pulled and self.fault is Fault.KILLED:
            raise Killed
        if self.fault is None or self.is_pulled or not self._is_meant(is_commit=is_commit):
            return
        self._heard += 1
        if self._heard > self.at:
            self.is_pulled = True
            self._pull(self.fault, connection)

    def _is_meant(self, *, is_commit: bool) -> bool:
        return (is_commit or self.fault is not Fault.UNANSWERED) and (
            self.in_task or self.fault is not Fault.TASK_KILLED
        )

    def _pull(self, fault: Fault, connection: Connection) -> None:
        match fault:
            case Fault.KILLED:
                raise Killed
            case Fault.TASK_KILLED:
                raise TaskKilled
            case Fault.CUT:
                pid = _driver(connection).info.backend_pid
                execute(self.server_dsn, f"SELECT pg_terminate_backend({pid}, 10000)")
            case Fault.UNANSWERED:
                _driver(connection).commit()
                _driver(connection).close()


def _driver(connection: Connection) -> psycopg2.extensions.connection:
    driver = connection.connection.dbapi_connection
    assert isinstance(driver, psycopg2.extensions.connection)
    return driver


class _Plugged(threading.local):
    plug: Plug | None = None


_PLUGGED = _Plugged()


def _say(connection: Connection, *_: object) -> None:
    if _PLUGGED.plug:
        _PLUGGED.plug.hear(connection, is_commit=False)


def _commit(connection: Connection) -> None:
    if _PLUGGED.plug:
        _PLUGGED.plug.hear(connection, is_commit=True)


# Carrying it out.


@dataclass
class World:
    """The files, the database and the model of one sequence."""

    landing: Landing
    dsn: str
    server_dsn: str
    engine: Engine
    place: Place
    model: Model
    #: How loads ended that were struck by a fault.
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    _batches: Iterator[int] = field(default_factory=lambda: count(1))

    def do(self, operation: Operation) -> None:
        match operation:
            case Load():
                self._load(operation)
            case LoadTogether():
                self._load_together(operation)
            case TakeSnapshot():
                PostgresSnapshots(self.engine).take(self.place.pipeline)
            case Verify():
                self._verify(operation)
            case Recover():
                self._recover(operation)
            case PutBack():
                life = self.model.latest(operation.file)
                if life:
                    self.landing.put(operation.file, self.model.taken[life].offered.raw)
            case _:
                self.landing.change(operation)

    def finish(self) -> None:
        """A load that nothing happens to makes good what was left."""
        self._load(Load(publish=Publish.STAGED, chunk_bytes=100))
        self._load(Load(publish=Publish.DIRECT, chunk_bytes=2**20))
        self._verify(Verify(is_deep=True))

    # Loads.

    def _load(self, asked: Load) -> None:
        asked = self._allowed(asked)
        if asked.is_quiet:
            self._let_claims_end(but_of=asked.batch)
            self._until_nobody_holds_a_stage()
        told, handed_out = self._told(asked), self._handed_out()
        offered = self.landing.offered()
        conflicted = self.model.conflicted(offered, told)
        broken_off = {
            name
            for name, each in offered.items()
            if self.model.kind.sealed and told.includes(name) and not each.is_whole
        }
        effects = self.model.effects
        records, duplicates = effects.records.total(), effects.duplicates
        report = self._run(asked)
        self.outcomes[asked.fault or "nothing", type(report).__name__] += 1
        self._compare(told, handed_out=handed_out, is_whole=asked.is_quiet)
        if asked.is_quiet:
            assert isinstance(report, Report), f"a load that nothing happened to failed: {report!r}"
            assert (report.loaded + report.quarantined) == effects.records.total() - records
            # It also reports chunks of earlier loads that it could not read.
            needing = {note.name for note in report.notes if note.needs_a_person}
            assert conflicted | broken_off <= needing <= conflicted | broken_off | handed_out
            if self._publish(asked) is Publish.STAGED:
                # What commits piece by piece counts what it reads twice as well.
                assert report.duplicates == effects.duplicates - duplicates
                assert not report.loaded or not self._stages(), "staged rows were left behind"

    def _load_together(self, asked: LoadTogether) -> None:
        # What changes under the hands of one may rightly be in already by those of the other.
        loads = [self._allowed(replace(each, meanwhile=None)) for each in (asked.one, asked.other)]
        handed_out = self._handed_out()
        with ThreadPoolExecutor(len(loads)) as threads:
            list(threads.map(self._run, loads))
        self._compare(*map(self._told, loads), handed_out=handed_out, is_whole=False)

    def _allowed(self, asked: Load) -> Load:
        """The same, with a batch of its own if it names none, and without a choice where its pipeline allows none."""
        declared = self._declared(asked)
        asked = replace(asked, batch=asked.batch or f"batch {next(self._batches)}")
        if not may_choose(declared):
            asked = replace(asked, only=())
        return asked if may_replace(declared) else replace(asked, replaces=False)

    def _told(self, asked: Load) -> Told:
        is_direct = self._publish(asked) is Publish.DIRECT
        return Told(batch=str(asked.batch), is_direct=is_direct, only=asked.only, replaces=asked.replaces)

    def _run(self, asked: Load) -> Report | BaseException:
        """One loader's life; how it ended, if its fault ended it."""
        _PLUGGED.plug = plug = Plug(fault=asked.fault, at=asked.at, server_dsn=self.server_dsn)
        declared, batch = self._declared(asked), Batch(str(asked.batch))
        choice = chosen(declared, files=asked.only, replaces=asked.replaces)
        how = LoadSettings(ledger=LedgerSettings(dsn=self.dsn), wait_s=0, choice=choice)
        try:
            if declared.is_direct or not asked.is_in_two:
                return load(declared, how, batch=batch, executor=Tasks(self, asked, plug))
            staged = load(declared, replace(how, publishes=False), batch=batch, executor=Tasks(self, asked, plug))
            if staged.staged is None:
                return staged
            published = publish_batch(declared, how, batch=batch)
            # Each call has said something of its own.
            return replace(staged.and_then(published), notes=(*staged.notes, *published.notes))
        except (Killed, CallAgain, AskTheLedger) as error:
            return error
        finally:
            _PLUGGED.plug = None

    def _publish(self, asked: Load) -> Publish:
        return Publish.STAGED if self.model.kind.is_staged else asked.publish

    def _declared(self, asked: Load) -> Declared:
        kind, (schema_name, table) = self.model.kind, self.place.target.split(".")
        return Declared(
            pipeline=_pipeline(self.place.pipeline),
            source=Source(
                path=str(self.landing.folder / "**/*.log*"),
                format=Format.CSV if kind.contract.has_header else Format.JSONL,
                csv=CsvOptions(multiline=kind.form is Form.CSV),
                chunk_bytes=asked.chunk_bytes,
                sealed_after_s=0 if kind.sealed else None,
            ),
            columns=tuple(parse_column(name, of_type) for name, of_type in COLUMNS.items()),
            target=Target(schema=schema_name, table=table, write=kind.write, key=_key(kind)),
            producer=RecordProducer(name="note", sequence="id", order=kind.order) if kind.order else None,
            publish=self._publish(asked),
            # The wait for what a killed loader held is short.
            delivery=Rules(ack_deadline_s=1),
            on_rewrite=kind.on_rewrite,
            # The model knows no file that is refused as a whole; storms have such files.
            quarantine_limit=QuarantineLimit(share=1),
        )

    def _compare(self, *loads: Told, handed_out: Set[str] = frozenset(), is_whole: bool) -> None:
        commits = commits_of(self.engine, self.place.pipeline, after=self.model.commits)
        faults = self.model.after_loads(
            self.landing.offered(), commits, loads, handed_out=handed_out, is_whole=is_whole
        )
        assert not faults
        effects = self.model.effects
        assert not broken(self.engine, self.place, effects.records, gone=effects.gone)

    def _verify(self, asked: Verify) -> None:
        """Nothing differs but files that do not hold any more what was loaded of them."""
        differences = verify(self._declared(_LOAD), self.engine, deep=asked.is_deep).differences
        files = self.landing.offered()
        changed, conflicted = self.model.changed(files), self.model.conflicted(files, EVERYTHING)
        # A file that goes on in its last line shows other records, although it holds what was loaded.
        of_rows = [each for each in differences if each.kind not in _OF_FILES and each.producer not in conflicted]
        assert not of_rows
        differing = {each.producer for each in differences if each.kind in _OF_FILES}
        # Only the latest life of a file is compared.
        assert differing == changed

    # The database.

    def _let_claims_end(self, *, but_of: str | None) -> None:
        """As if the leases of all that died had passed; an earlier life of the same batch ends by itself."""
        self._execute(
            "UPDATE onceload.delivery SET deadline_at = clock_timestamp() FROM onceload.session"
            " WHERE session.session_id = delivery.session_id AND state = 'held'"
            " AND NOT starts_with(session.name, :but_of)",
            but_of=f"{but_of}/",
        )

    def _until_nobody_holds_a_stage(self) -> None:
        """The server notices a little later than we do that a loader is dead."""
        held = (
            "SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = pg_locks.database"
            " WHERE locktype = 'advisory' AND datname = current_database()"
        )
        until(lambda: not self._count(held), "no dead loader holds its stage")

    def _handed_out(self) -> set[str]:
        """Files with a delivery that waits or is held, and that the session that takes it commits."""
        query = """
            SELECT DISTINCT producer.name
              FROM onceload.pipeline JOIN onceload.delivery USING (pipeline_id)
              JOIN onceload.delivery_span USING (delivery_id) JOIN onceload.producer USING (producer_id)
             WHERE pipeline.name = :pipeline AND work IS NOT NULL AND NOT is_staged"""
        with self.engine.begin() as connection:
            return set(connection.execute(text(query), {"pipeline": self.place.pipeline}).scalars())

    def _stages(self) -> int:
        return self._count(
            "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r'"
        )

    def _count(self, query: str) -> int:
        with self.engine.begin() as connection:
            return int(connection.execute(text(query)).scalar_one())

    def _recover(self, asked: Recover) -> None:
        query = "SELECT pipeline_id FROM onceload.pipeline WHERE name = :name"
        with self.engine.begin() as connection:
            pipeline_id = connection.execute(text(query), {"name": self.place.pipeline}).scalar_one()
        self._execute(asked.damage, pipeline_id=pipeline_id)
        recover_state(self.engine, self.place.pipeline, dry_run=False)
        self._compare(is_whole=False)

    def _execute(self, statement: str, **binds: object) -> None:
        with self.engine.begin() as connection:
            connection.execute(text(statement), binds)


@dataclass(frozen=True)
class Tasks(InThisProcess):
    """As Spark runs them: in any order, some of them twice, and again if one dies."""

    world: World
    asked: Load
    plug: Plug

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        order, rng = list(enumerate(items)), Random(self.asked.seed)
        # What grows though it is declared to be whole gets what it asked for.
        if self.asked.meanwhile and not self.world.model.kind.sealed:
            self.world.do(self.asked.meanwhile)
        if self.asked.seed:
            rng.shuffle(order)
            for _, item in rng.sample(order, len(order) // 2):
                # One of two tries that run at once counts.
                self._tried(function, item)
        for number, item in order:
            yield number, self._tried(function, item)

    def _tried(self, function: Callable[[Any], Any], item: Any) -> Outcome:
        self.plug.in_task = True
        try:
            return called(function, item)
        except TaskKilled:
            return Died("its process was killed")
        finally:
            self.plug.in_task = False


#: Differences from the sources, not from the rows.
_OF_FILES = {Differing.FILE_MISSING, Differing.FILE_SHORTER, Differing.FILE_UNREADABLE, Differing.BYTES_CHANGED}


def _key(kind: Kind) -> tuple[str, ...]:
    return ("id",) if kind.write is Write.MERGE else ()


def _pipeline(name: str) -> Pipeline:
    return Pipeline(name=name, snapshot=SnapshotPolicy(every_commits=7, every_s=86_400))


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    with temporary_database(server_dsn, template=template) as dsn:
        # Nothing here crashes the server, and what it has said is all that counts.
        execute(
            dsn,
            "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
        )
        yield dsn


@pytest.fixture(scope="module", autouse=True)
def listening() -> Iterator[None]:
    engine_event.listen(Engine, "before_cursor_execute", _say)
    engine_event.listen(Engine, "commit", _commit)
    yield
    engine_event.remove(Engine, "before_cursor_execute", _say)
    engine_event.remove(Engine, "commit", _commit)


@pytest.fixture(scope="module")
def worlds(database: str, server_dsn: str, tmp_path_factory: pytest.TempPathFactory):
    engine = connect(LedgerSettings(dsn=database))
    numbers = count(1)

    @contextmanager
    def new_world(kind: Kind) -> Iterator[World]:
        number = next(numbers)
        place = Place(pipeline=f"sequence {number}", target=f"public.target_{number}")
        PostgresLedger(engine).declare(_pipeline(place.pipeline))
        columns = ", ".join(f"{name} {of_type}" for name, of_type in COLUMNS.items())
        key = f", PRIMARY KEY ({', '.join(_key(kind))})" if _key(kind) else ""
        with engine.begin() as connection:
            connection.exec_driver_sql(
                f"CREATE TABLE {place.target} ({columns}, _producer_id bigint, _sequence bigint{key})"
            )
        folder = tmp_path_factory.mktemp("landing")
        try:
            yield World(
                landing=Landing(folder=folder, kind=kind),
                dsn=database,
                server_dsn=server_dsn,
                engine=engine,
                place=place,
                model=Model(kind=kind),
            )
        finally:
            shutil.rmtree(folder)

    yield new_world
    engine.dispose()


_GOOD = (Piece.GOOD,)
_LOAD = Load(publish=Publish.STAGED, chunk_bytes=100)
#: Each was once loaded wrongly, or would have been, or was wrong in the model.
_PAST = {
    "the newline of a last line comes that counted without it": (
        [Append("a.log.gz", (Piece.HALF,)), _LOAD, Append("a.log.gz", (Piece.BLANK, Piece.GOOD))],
        Kind(sealed=True),
    ),
    "the end of a file that was loaded out of order is rewritten": (
        [Append("a.log", 4 * _GOOD), Load(Publish.DIRECT, 1, seed=1), Rewrite("a.log", 100)],
        Kind(),
    ),
    "a file is rewritten between plan and read": (
        [
            Append("a.log", _GOOD),
            _LOAD,
            Append("a.log", _GOOD),
            replace(_LOAD, meanwhile=Rewrite("a.log", 0)),
        ],
        Kind(),
    ),
    "an upload that is declared to be whole breaks off": (
        [Append("a.log.gz", 9 * _GOOD), Truncate("a.log.gz", 80)],
        Kind(on_rewrite=OnRewrite.NEW_GENERATION, sealed=True),
    ),
    "a generation that nothing was loaded of is rolled back": (
        [
            Append("a.log", 3 * _GOOD),
            _LOAD,
            Truncate("a.log", 60),
            replace(_LOAD, meanwhile=Truncate("a.log", 0)),
            PutBack("a.log"),
        ],
        Kind(on_rewrite=OnRewrite.NEW_GENERATION),
    ),
    "a last line that counted without its newline goes on": (
        [Append("a.log", (Piece.GOOD, Piece.HALF)), _LOAD, Append("a.log", (Piece.REST, Piece.GOOD))],
        Kind(sealed=True),
    ),
    "a merge numbers a file again that a killed load had numbered before an older one": (
        [
            Append("a.log", _GOOD),
            Append("c.log.gz", _GOOD),
            replace(_LOAD, fault=Fault.KILLED, at=60, only=("c.log.gz",)),
        ],
        Kind(write=Write.MERGE),
    ),
    "a file is filled that was empty when it counted as complete": (
        [
            Append("a.log", _GOOD),
            Append("c.log.zst", _GOOD),
            Truncate("c.log.zst", 0),
            _LOAD,
            Append("c.log.zst", _GOOD),
            replace(_LOAD, replaces=True),
        ],
        Kind(sealed=True, on_rewrite=OnRewrite.REPLACE),
    ),
    "a rewritten file breaks off before its first record": (
        [Append("a.log", _GOOD), Append("c.log.zst", _GOOD), _LOAD, Append("a.log", _GOOD), Truncate("c.log.zst", 1)],
        Kind(on_rewrite=OnRewrite.REPLACE),
    ),
    "a loader dies while it stages rows in tables": (
        [Append("a.log", _GOOD), replace(_LOAD, fault=Fault.KILLED, at=60, is_in_two=True)],
        Kind(),
    ),
    "a loader dies that has staged rows in tables": (
        [Append("a.log", _GOOD), replace(_LOAD, fault=Fault.KILLED, at=70, is_in_two=True)],
        Kind(),
    ),
}


@pytest.mark.parametrize(("operations", "kind"), _PAST.values(), ids=_PAST.keys())
def test_a_sequence_that_went_wrong_once_does_not_again(worlds, operations, kind):
    with worlds(kind) as world:
        for operation in operations:
            world.do(operation)
        world.finish()


@settings(
    max_examples=_EXAMPLES,
    # An explanation would take hundreds of sequences more.
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow],
)
@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS.keys())
@given(operations=SEQUENCES, data=st.data())
def test_each_record_takes_effect_once_whatever_happens_to_files_and_loads(worlds, operations, data, kinds):
    with worlds(data.draw(kinds)) as world:
        for operation in operations:
            world.do(operation)
        world.finish()
        for fault, outcome in world.outcomes:
            event(f"{fault}: {outcome}")
