"""All views of a pipeline show one state, and the true one, after any sequence of operations.

An oracle reads files, table, quarantine and ledger, and remembers when each file came. An hour passes by moving the
times of all files and records back.
"""

import gzip
import io
import json
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, text

from onceload import cli, lag, settling
from onceload.console.overview import lines_of
from onceload.lag import Behind
from onceload.metrics import Metrics
from onceload.pipeline_file import read_pipeline
from onceload.states import State
from onceload_core.errors import DatabaseLost, OnceloadError, SettingRefused
from onceload_core.names import Position
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_jobs.load import context
from onceload_jobs.load.load import load
from onceload_jobs.load.offering import Offering
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.plan.choice import Choice
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.recover.rewind import rewind
from tests.laws import examples
from tests.loads.conftest import InThisProcess
from tests.servers import execute, temporary_database

_HOUR_S = 3600.0
_PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/landing/*.jsonl", format: jsonl}}
columns: {{n: bigint not null}}
target: {{table: public.{name}}}
publish: {publish}
schedule: "*/5 * * * *"
{quality}
"""


class Step(StrEnum):
    APPEND = "a good record"
    APPEND_MANY = "many good records"
    APPEND_BAD = "a bad record"
    APPEND_OPEN = "a record without its newline"
    REMOVE = "a file is removed"
    AWAY = "the source goes away"
    BACK = "the source comes back"
    LOAD = "a load"
    LOAD_ONE = "a load of one file"
    REPLACE = "all files are loaded again"
    FAIL = "a load fails because the target has drifted"
    BROKEN = "a load fails after its plan, because the connection is lost"
    RETRY = "a corrected record is retried"
    DISCARD = "a record is discarded"
    REWIND = "a rewind"
    HOUR = "an hour passes"


_LIMITS = {"": 0.01, "quality: {quarantined_max: 40%}": 0.4}
_MOMENTS = st.lists(st.tuples(st.sampled_from(Step), st.sampled_from("ab")), min_size=2, max_size=8)


@dataclass
class Oracle:
    """When each file came and was loaded, by a clock that only `Step.HOUR` moves."""

    now: float = 0.0
    since: dict[str, float] = field(default_factory=dict)
    #: The records of each file that waited before.
    waited: dict[str, set[int]] = field(default_factory=dict)
    changed: dict[str, float] = field(default_factory=dict)
    #: When a load last listed all files, in whatever way it ended, and when one last succeeded.
    last_listing: float = 0.0
    last_success: float = float("-inf")
    has_failed: bool = False
    #: The records whose rows a rewind has deleted.
    rolled_back: set[int] = field(default_factory=set)

    def update(self, waiting: dict[str, set[int]], *, rewound: bool = False) -> None:
        came = {name: max(self.changed[name], self.last_success) if rewound else self.now for name in waiting}
        loaded = {name for name, before in self.waited.items() if before - waiting.get(name, set())}
        # After a load of a part of a file, its last line is left.
        left = {name: self.changed[name] for name in loaded & waiting.keys()}
        self.since = {name: left.get(name, self.since.get(name, came[name])) for name in waiting}
        self.waited = waiting

    @property
    def is_late(self) -> bool:
        # Two runs of the schedule begin in each hour.
        oldest = min(self.since.values(), default=self.now)
        return bool(self.since) and (oldest < self.now or self.last_listing < self.now)


@dataclass
class World:
    folder: Path
    dsn: str
    engine: Engine
    name: str
    limit: float
    oracle: Oracle = field(default_factory=Oracle)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    _lives: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.behind = Behind(self.engine, self.folder / "pipelines")

    @property
    def landing(self) -> Path:
        return self.folder / "landing"

    @property
    def file(self) -> Path:
        return self.folder / "pipelines" / "p.yaml"

    def do(self, step: Step, which: str) -> None:
        # A name that is written again would be a rewritten file.
        path = self.landing / f"{which}{self._lives[which]}.jsonl"
        match step:
            case Step.LOAD:
                self.load(Choice())
            case Step.LOAD_ONE:
                self.load(Choice(files=(path.name,)))
            case Step.REPLACE:
                self.load(Choice(replaces=True))
            case Step.FAIL:
                self.fail()
            case Step.BROKEN:
                self.break_off()
            case Step.RETRY | Step.DISCARD:
                self.settle(step)
            case Step.REWIND:
                self.rewind()
            case Step.HOUR:
                self.pass_an_hour()
            case _:
                self.change(step, path, which)
        if self.landing.is_dir():
            self.oracle.update(self.waiting(), rewound=step is Step.REWIND)

    # Operations.

    def change(self, step: Step, path: Path, which: str) -> None:
        is_there = self.landing.is_dir()
        match step:
            case Step.APPEND | Step.APPEND_MANY | Step.APPEND_BAD | Step.APPEND_OPEN if is_there:
                before = path.read_text() if path.exists() else ""
                quote, mark = ('"', "x") if step is Step.APPEND_BAD else ("", "")
                lines = 200 if step is Step.APPEND_MANY else 1
                added = [f'{{"n": {quote}{mark}{next(self._numbers)}{quote}}}' for _ in range(lines)]
                with path.open("a") as file:
                    file.write("" if not before or before.endswith("\n") else "\n")
                    file.write("\n".join(added) + ("" if step is Step.APPEND_OPEN else "\n"))
                self.oracle.changed[path.name] = self.oracle.now
            case Step.REMOVE if path.exists():
                path.unlink()
                self._lives[which] += 1
            case Step.AWAY if is_there:
                self.landing.rename(self.folder / "away")
            case Step.BACK if not is_there:
                (self.folder / "away").rename(self.landing)
            case _:
                pass

    def load(self, choice: Choice, *, lists: bool = True) -> None:
        how = LoadSettings(ledger=LedgerSettings(dsn=self.dsn), wait_s=0, choice=choice)
        is_listed = self.landing.is_dir() and not choice.files and lists
        try:
            report = load(read_pipeline(self.file), how, batch=new_batch(), executor=InThisProcess())
            self.oracle.has_failed = report.exit_code != 0
        except OnceloadError:
            self.oracle.has_failed = True
        if is_listed:
            self.oracle.last_listing = self.oracle.now
            if not self.oracle.has_failed:
                self.oracle.last_success = self.oracle.now

    def fail(self) -> None:
        """The table has drifted, which a load finds before it lists files."""

        def drifted(*_: object) -> None:
            raise SettingRefused("target.table", "a column of another type", "bigint")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(context, "check_target", drifted)
            self.load(Choice(), lists=False)
        assert self.oracle.has_failed

    def break_off(self) -> None:
        """The connection is lost when a load claims what is new."""

        def lost(*_: object) -> None:
            raise DatabaseLost("claiming spans", "the server closed the connection")

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Offering, "claimed", lost)
            self.load(Choice())

    def settle(self, step: Step) -> None:
        held = list(find_records(self.engine, Selection(pipeline=self.name)))[:1]
        if not held:
            return
        if step is Step.DISCARD:
            settling.discard(self.engine, self.name, held, by="ann")
        else:
            fix = Fix(raw=b'{"n": %d}' % _number(held[0].raw), digest=held[0].digest)
            fixed = {held[0].quarantine_id: fix}
            settling.retry(self.engine, read_pipeline(self.file), held, fixed=fixed)

    def rewind(self) -> None:
        position = self.ask("SELECT position FROM onceload.pipeline WHERE name = :name", name=self.name)
        before = self.taken()
        if position and position[0][0]:
            # A position whose rows an earlier rewind has deleted is refused.
            with suppress(SettingRefused):
                rewind(read_pipeline(self.file), self.engine, to=Position(position[0][0] // 2), dry_run=False)
        self.oracle.rolled_back |= before - self.taken()

    def pass_an_hour(self) -> None:
        self.oracle.now += _HOUR_S
        for folder in (self.landing, self.folder / "away"):
            for path in folder.glob("*"):
                os.utime(path, (path.stat().st_mtime - _HOUR_S,) * 2)
        hour = "- interval '1 hour'"
        execute(
            self.dsn,
            f"UPDATE onceload.attempt SET begun_at = begun_at {hour}, ended_at = ended_at {hour},"
            f" listed_at = listed_at {hour}, looked_at = looked_at {hour} WHERE pipeline = '{self.name}'",
        )
        execute(self.dsn, f"UPDATE onceload.waiting_file SET since = since {hour} WHERE pipeline = '{self.name}'")
        # The console starts again: what it remembers is by the real clock.
        self.behind = Behind(self.engine, self.folder / "pipelines")

    # The truth.

    def waiting(self) -> dict[str, set[int]]:
        """The records of each file that are neither in the table nor quarantined, retried or discarded."""
        taken = self.taken()
        return {name: left for name, numbers in self.written().items() if (left := numbers - taken)}

    def taken(self) -> set[int]:
        taken = {_number(bytes(raw)) for (raw,) in self.of_pipeline("SELECT raw FROM onceload.quarantine")}
        return taken | ({n for (n,) in self.ask(f"SELECT n FROM {self.name}")} if self.has_table() else set())

    def written(self) -> dict[str, set[int]]:
        return {path.name: set(map(_number, path.read_text().splitlines())) for path in self.landing.glob("*")}

    def lost(self) -> set[int]:
        """The records that were rolled back, and are in no file any more."""
        return self.oracle.rolled_back.difference(self.taken(), *self.written().values())

    def state(self) -> State:
        """By what is on the disk and in the tables, without any code of the product."""
        held = [p for (p,) in self.of_pipeline("SELECT position FROM onceload.quarantine", "AND state = 'held'")]
        counts = dict(self.of_pipeline("SELECT position, loaded + quarantined + filtered FROM onceload.ledger"))
        beside = sum(counts[position] for position in set(held))
        wrong = {
            State.NEEDS_A_PERSON: self.landing.is_dir() and bool(self.lost()),
            State.UNREADABLE: not self.landing.is_dir(),
            State.FAILED: self.oracle.has_failed,
            State.LATE: self.landing.is_dir() and self.oracle.is_late,
            State.QUARANTINE: len(held) > self.limit * beside,
        }
        return next((state for state, is_so in wrong.items() if is_so), State.FINE)

    # The views.

    def shown(self) -> dict[str, str]:
        self.behind.look()
        (line,) = lines_of(self.engine, self.behind, now=datetime.now(UTC), only=self.name)
        return {"console": str(line.state), "status": self.by_status(), "metrics": self.by_metrics()}

    def by_status(self) -> str:
        out = io.StringIO()
        command = ["status", "--json", "--pipelines", str(self.folder / "pipelines"), "--pipeline", self.name]
        with redirect_stdout(out), redirect_stderr(io.StringIO()):
            assert cli.main(command, {**os.environ, "ONCELOAD_DSN": self.dsn}) == 0
        (row,) = json.loads(out.getvalue())["status"]
        return str(row["state"])

    def by_metrics(self) -> str:
        behind = Behind(self.engine, self.folder / "pipelines")
        with redirect_stderr(io.StringIO()):
            behind.look()
        (states,) = (each for each in Metrics(self.engine, behind).collect() if each.name == "onceload_state")
        mine = (sample for sample in states.samples if sample.labels["pipeline"] == self.name)
        on = {sample.labels["state"] for sample in mine if sample.value}
        return next(str(state) for state in State if state in on)

    # The database.

    def has_table(self) -> bool:
        columns = "SELECT FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attname = 'n'"
        return bool(self.ask(columns, table=f"public.{self.name}"))

    def of_pipeline(self, select: str, more: str = "") -> list[Any]:
        mine = "pipeline_id = (SELECT pipeline_id FROM onceload.pipeline WHERE name = :name)"
        return self.ask(f"{select} WHERE {mine} {more}", name=self.name)

    def ask(self, statement: str, **binds: object) -> list[Any]:
        with self.engine.begin() as connection:
            return [tuple(row) for row in connection.execute(text(statement), binds)]


def _number(line: str | bytes) -> int:
    return int(str(json.loads(line)["n"]).strip("x"))


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    with temporary_database(server_dsn, template=template) as dsn:
        yield dsn


@pytest.fixture(scope="module")
def worlds(database: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    engine, numbers = connect(LedgerSettings(dsn=database)), count(1)

    @contextmanager
    def new_world(publish: str, quality: str) -> Iterator[World]:
        folder, name = tmp_path_factory.mktemp("world"), f"p{next(numbers)}"
        (folder / "pipelines").mkdir()
        (folder / "landing").mkdir()
        described = _PIPELINE.format(name=name, folder=folder, publish=publish, quality=quality)
        (folder / "pipelines" / "p.yaml").write_text(described)
        yield World(folder=folder, dsn=database, engine=engine, name=name, limit=_LIMITS[quality])

    yield new_world
    engine.dispose()


def run(world: World, steps: list[tuple[Step, str]], *, asked: set[int]) -> Iterator[str]:
    """The states at the moments that are asked for, and at the end."""
    # A pipeline that was never loaded is new, and has no load to be late after.
    world.do(Step.LOAD, "a")
    for number, (step, which) in enumerate(steps):
        world.do(step, which)
        if number in asked or number == len(steps) - 1:
            expected = str(world.state())
            shown = world.shown()
            assert shown == dict.fromkeys(shown, expected), f"after {step} {which}"
            yield expected


@settings(
    examples(12),
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    publish=st.sampled_from(["direct", "staged"]),
    quality=st.sampled_from(list(_LIMITS)),
    steps=_MOMENTS,
    asked=st.sets(st.integers(0, 7), max_size=1),
)
def test_all_views_show_the_true_state_at_any_moment(worlds, publish, quality, steps, asked):
    with worlds(publish, quality) as world:
        for state in run(world, steps, asked=asked):
            event(state)


_PAST = {
    "a source that cannot be read": ([(Step.APPEND, "a"), (Step.LOAD, "a"), (Step.AWAY, "a")], "cannot be read"),
    "a file is late, and another one is loaded": (
        [(Step.APPEND, "a"), (Step.HOUR, "a"), (Step.APPEND, "b"), (Step.LOAD_ONE, "b")],
        "late",
    ),
    "a file is late, and a record is discarded": (
        [
            *[(Step.APPEND_BAD, "b"), (Step.APPEND_MANY, "b"), (Step.LOAD, "a")],
            *[(Step.APPEND, "a"), (Step.HOUR, "a"), (Step.DISCARD, "a")],
        ],
        "late",
    ),
    "a file that a failed load has left is late, and grows": (
        [
            *[(Step.APPEND, "a"), (Step.BROKEN, "a"), (Step.HOUR, "a"), (Step.BROKEN, "a")],
            *[(Step.APPEND, "a"), (Step.APPEND, "b"), (Step.LOAD_ONE, "b")],
        ],
        "late",
    ),
    "a load failed, and none has succeeded since": (
        [(Step.APPEND, "a"), (Step.FAIL, "a"), (Step.DISCARD, "a"), (Step.HOUR, "a")],
        "failed",
    ),
    "a load succeeds after one that failed": ([(Step.APPEND, "a"), (Step.FAIL, "a"), (Step.LOAD, "a")], "fine"),
    "one record of 11 is bad": ([(Step.APPEND_BAD, "a"), *[(Step.APPEND, "a")] * 10, (Step.LOAD, "a")], "quarantine"),
    "rows that a rewind deleted are gone with their file": (
        [(Step.APPEND, "b"), *[(each, "a") for each in (Step.APPEND, Step.LOAD, Step.REWIND, Step.REMOVE, Step.LOAD)]],
        "needs a person",
    ),
    "a last line has no newline": (
        [(Step.APPEND_OPEN, "a"), (Step.LOAD, "a"), (Step.HOUR, "a"), (Step.LOAD, "a")],
        "late",
    ),
    "a last line has no newline just now": (
        [*[(each, "a") for each in (Step.APPEND_OPEN, Step.LOAD, Step.HOUR, Step.APPEND_OPEN, Step.LOAD)]],
        "fine",
    ),
    "a last line has had no newline since before a failure": (
        [*[(each, "a") for each in (Step.APPEND, Step.APPEND_OPEN, Step.BROKEN, Step.HOUR, Step.LOAD)]],
        "late",
    ),
    "a file is gone that was late": (
        [(Step.APPEND, "a"), (Step.HOUR, "a"), (Step.REMOVE, "a")],
        "fine",
    ),
}


@pytest.mark.parametrize("publish", ["direct", "staged"])
@pytest.mark.parametrize(("steps", "state"), _PAST.values(), ids=_PAST.keys())
def test_a_state_is_shown_that_was_hidden_once(worlds, steps, state, publish):
    with worlds(publish, "") as world:
        assert list(run(world, steps, asked={len(steps) - 2}))[-1] == state


def test_files_behind_one_that_is_not_complete_wait_since_they_came(worlds):
    """In order, none of them is loaded before the last line of the first one is complete."""
    with worlds("staged\ndelivery: {mode: ordered}", "") as world:
        steps = [(Step.APPEND_OPEN, "a"), (Step.APPEND, "b"), (Step.LOAD, "a"), (Step.HOUR, "a")]
        assert list(run(world, [*steps, (Step.REMOVE, "a")], asked={3})) == ["late", "late"]


def test_a_last_line_is_not_late_before_its_file_is_sealed(worlds):
    with worlds("direct", "") as world:
        world.file.write_text(world.file.read_text().replace("format: jsonl", "format: jsonl, sealed: 3h"))
        for step in (Step.APPEND, Step.APPEND_OPEN, Step.LOAD, Step.HOUR, Step.LOAD):
            world.do(step, "a")
        before = world.shown()
        for step in (Step.HOUR, Step.HOUR, Step.HOUR):
            world.do(step, "a")

        assert set(before.values()) == {"fine"}
        assert set(world.shown().values()) == {"late"}
        world.do(Step.LOAD, "a")
        assert set(world.shown().values()) == {"fine"}


def test_rolled_back_records_are_missed_though_a_last_line_waits_in_their_file(worlds):
    with worlds("direct", "") as world:
        for step in (Step.APPEND, Step.LOAD, Step.REWIND):
            world.do(step, "a")
        (world.landing / "a0.jsonl").write_text('{"n": 9')
        world.load(Choice())

        assert set(world.shown().values()) == {"needs a person"}


def test_a_source_that_does_not_answer_is_shown_for_all_that_wait_for_it(worlds, monkeypatch):
    """As a mount of a server that is gone. The sources behind it are not listed either."""
    with worlds("direct", "") as world:
        for name, place in ((f"{world.name}_x", "hung"), (f"{world.name}_y", "behind")):
            declared = world.file.read_text().replace(world.name, name).replace("/landing/", f"/{place}/")
            world.file.with_name(f"{place}.yaml").write_text(declared)
            (world.folder / place).mkdir()
            (world.folder / place / "a.jsonl").touch()
        world.load(Choice())
        world.behind.look()
        began, ends = threading.Event(), threading.Event()

        def plan(declared, *arguments, **options):
            if "/hung/" in declared.source.path:
                began.set()
                ends.wait()
            return make_plan(declared, *arguments, **options)

        monkeypatch.setattr(lag, "make_plan", plan)
        monkeypatch.setattr(lag, "_STALE_AFTER_S", 0.0)
        looking = threading.Thread(target=world.behind.look)
        looking.start()
        began.wait()
        try:
            lines = {line.name: line for line in lines_of(world.engine, world.behind, now=datetime.now(UTC))}
        finally:
            ends.set()
            looking.join()

        shown = {name: lines[f"{world.name}_{name}"] for name in "xy"}
        assert [str(line.state) for line in shown.values()] == ["cannot be read"] * 2
        assert f"listing the files of {world.name}_x has not ended for" in shown["y"].reason


def test_a_packed_file_that_breaks_off_waits_until_it_is_complete(worlds):
    with worlds("staged", "") as world:
        world.file.write_text(world.file.read_text().replace("*.jsonl", "*.jsonl.gz"))
        packed = gzip.compress(b'{"n": 1}\n' * 1000)
        (world.landing / "a.jsonl.gz").write_bytes(packed[:-9])
        states = []
        for _ in range(2):
            world.load(Choice())
            world.pass_an_hour()
            world.load(Choice())
            states.append(world.shown())
        (world.landing / "a.jsonl.gz").write_bytes(packed)
        world.load(Choice())

        assert states == [dict.fromkeys(("console", "status", "metrics"), "late")] * 2
        assert set(world.shown().values()) == {"fine"}
