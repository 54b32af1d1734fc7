"""Any sequence of rewinds, of calls of a program, and of files that come and go: what was rolled back stays known.

The models count ids and lines one by one. A program is refused exactly if it would go on behind rows that a rewind
deleted, and verify names exactly what no load brings again.
"""

import gzip
from collections.abc import Iterator
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

import onceload
from onceload_core.names import Position
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.spans import SpanSet
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Declared, Publish, Target
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.findings import Kind
from onceload_jobs.verify.verify import verify
from tests.laws import examples
from tests.loads.conftest import InThisProcess, declared_for, line
from tests.servers import execute, temporary_database

_NUMBERS = count(1)
_HOW = settings(
    examples(4),
    # An explanation would take many sequences more.
    phases=[phase for phase in Phase if phase is not Phase.explain],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    with temporary_database(server_dsn, template=template) as dsn:
        yield dsn


@dataclass(frozen=True)
class Rewind:
    """Back to one of the positions that can be reached, by its number among them."""

    number: int


_REWINDS = st.builds(Rewind, st.integers(0, 20))


# Rows of a program.


@dataclass(frozen=True)
class Offer:
    producer: str
    first: int
    ids: int
    #: The ids are in a column, with gaps if they are apart.
    apart: int = 0


@dataclass(frozen=True)
class GoOn:
    """What a program does that remembers where it was, and knows nothing of rewinds."""

    producer: str
    ids: int


_PRODUCERS = st.sampled_from(["crm", "erp"])
_CALLS: st.SearchStrategy[list[Offer | GoOn | Rewind]] = st.lists(
    st.one_of(
        st.builds(GoOn, _PRODUCERS, st.integers(1, 5)),
        st.builds(Offer, _PRODUCERS, st.integers(0, 12), st.integers(1, 8), st.integers(0, 3)),
        _REWINDS,
    ),
    min_size=3,
    max_size=10,
)

Ids: TypeAlias = dict[str, set[int]]


def _islands(ids: set[int]) -> int:
    return sum(each - 1 not in ids for each in ids)


@dataclass
class Program:
    """A program, its table, and what should be in it."""

    dsn: str
    publish: Publish
    number: int = field(default_factory=_NUMBERS.__next__)
    ever: Ids = field(default_factory=lambda: {"crm": set(), "erp": set()})
    there: Ids = field(default_factory=lambda: {"crm": set(), "erp": set()})
    #: The ids that were there at each position that a rewind can reach.
    history: dict[int, Ids] = field(default_factory=dict)
    next: dict[str, int] = field(default_factory=lambda: {"crm": 0, "erp": 0})

    def __post_init__(self) -> None:
        described = {
            "pipeline": f"rows {self.number}",
            "columns": {"id": "bigint", "whose": "text"},
            "target": {"table": f"public.rows_{self.number}"},
            "publish": str(self.publish),
        }
        self.pipeline = onceload.Pipeline.of(described, dsn=self.dsn)
        self.history[0] = deepcopy(self.there)

    def do(self, operation: Offer | GoOn | Rewind) -> None:
        match operation:
            case Offer():
                ids = [operation.first + each * max(1, operation.apart) for each in range(operation.ids)]
                self._offer(operation.producer, ids, is_counted=operation.apart == 0)
            case GoOn():
                first = self.next[operation.producer]
                self._offer(operation.producer, list(range(first, first + operation.ids)), is_counted=True)
            case Rewind():
                self._rewind(sorted(self.history)[operation.number % len(self.history)])

    def finish(self) -> None:
        """A program that gives all rows again leaves nothing owed."""
        for producer, ids in self.ever.items():
            if ids:
                self._offer(producer, sorted(ids), is_counted=False)
        assert self.there == self.ever
        if max(self.history):
            assert self.pipeline.verify(deep=True).differences == ()

    def _offer(self, producer: str, ids: list[int], *, is_counted: bool) -> None:
        is_refused = self._is_refused(producer, set(ids), is_counted=is_counted)
        rows = pa.table({"id": ids, "whose": [producer] * len(ids), "key": ids})
        how: dict[str, Any] = {"first_id": ids[0]} if is_counted else {"id_column": "key"}
        rows = rows.drop_columns(["key"]) if is_counted else rows
        try:
            report = self.pipeline.load_rows(rows, producer=producer, **how)
        except onceload.OfferRefused:
            assert is_refused, f"{producer} {ids} was refused: {self.ever} were loaded, {self.there} are there"
        else:
            assert not is_refused, f"{producer} {ids} was taken: {self.ever} were loaded, {self.there} are there"
            assert report.loaded == len(set(ids) - self.there[producer])
            self.ever[producer] |= set(ids)
            self.there[producer] |= set(ids)
            self.next[producer] = max(self.next[producer], ids[-1] + 1)
            self.history[self._position()] = deepcopy(self.there)
        self._compare()

    def _is_refused(self, producer: str, ids: set[int], *, is_counted: bool) -> bool:
        ever, there = self.ever[producer], self.there[producer]
        never_loaded = ids - ever
        if any(owed < max(never_loaded, default=0) for owed in ever - there - ids):
            return True
        return is_counted and bool(ever) and _islands(ever | ids) > _islands(ever)

    def _rewind(self, to: int) -> None:
        if not self._position():
            return
        self.pipeline.recover_rewind(position=to)
        self.there = deepcopy(self.history[to])
        self.history = {position: ids for position, ids in self.history.items() if position <= to}
        self.history[self._position()] = deepcopy(self.there)
        self._compare()

    def _compare(self) -> None:
        if not self._position():
            return
        found = execute(self.dsn, f"SELECT whose, id FROM rows_{self.number} ORDER BY 1, 2")
        assert found == [(whose, each) for whose in ("crm", "erp") for each in sorted(self.there[whose])]
        owed = {name: self.ever[name] - self.there[name] for name in ("crm", "erp")}
        differences = self.pipeline.verify().differences
        assert {each.producer: each.span for each in differences if each.kind == Kind.NOT_LOADED_AGAIN} == {
            name: SpanSet.of_ids(ids).shortened for name, ids in owed.items() if ids
        }
        assert {each.kind for each in differences} <= {Kind.NOT_LOADED_AGAIN}

    def _position(self) -> int:
        query = f"SELECT coalesce(max(position), 0) FROM onceload.pipeline WHERE name = 'rows {self.number}'"
        return int(execute(self.dsn, query)[0][0])


@_HOW
@given(operations=_CALLS, publish=st.sampled_from(Publish))
@example(operations=[GoOn("crm", 3), Rewind(0), GoOn("crm", 2)], publish=Publish.STAGED)
@example(operations=[GoOn("crm", 3), GoOn("erp", 3), Rewind(1), GoOn("erp", 2)], publish=Publish.DIRECT)
def test_a_program_is_refused_exactly_if_it_leaves_out_rewound_rows(database, operations, publish):
    program = Program(dsn=database, publish=publish)
    for operation in operations:
        program.do(operation)
    program.finish()


# Files.


@dataclass(frozen=True)
class Write:
    """A file has its first lines, or is gone if it has none. Its lines are always the same."""

    file: str
    lines: int


@dataclass(frozen=True)
class Load:
    pass


_FILES = ("a.jsonl", "b.jsonl.gz")
_CHANGES: st.SearchStrategy[list[Write | Load | Rewind]] = st.lists(
    st.one_of(st.builds(Write, st.sampled_from(_FILES), st.integers(0, 6)), st.builds(Load), st.builds(Load), _REWINDS),
    min_size=4,
    max_size=14,
)


@dataclass
class Folder:
    """A folder of files, its table, and what should be in it."""

    dsn: str
    path: Path
    publish: Publish
    number: int = field(default_factory=_NUMBERS.__next__)
    lines: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FILES, 0))
    loaded: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FILES, 0))
    #: Up to which line rewinds have rolled back records of each file.
    rolled_back: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_FILES, 0))
    history: dict[int, dict[str, int]] = field(default_factory=lambda: {0: dict.fromkeys(_FILES, 0)})

    def __post_init__(self) -> None:
        self.engine = connect(LedgerSettings(dsn=self.dsn))

    def do(self, operation: Write | Load | Rewind) -> None:
        match operation:
            case Write():
                self._write(operation.file, operation.lines)
            case Load():
                self._load()
            case Rewind():
                self._rewind(sorted(self.history)[operation.number % len(self.history)])

    def finish(self) -> None:
        """Files that have all their lines leave nothing owed."""
        for name in _FILES:
            self._write(name, 7)
        self._load()
        assert verify(self._declared, self.engine, deep=True).differences == ()

    @property
    def _declared(self) -> Declared:
        return replace(
            declared_for(self.path),
            pipeline=Pipeline(name=f"files {self.number}"),
            target=Target(schema="public", table=f"files_{self.number}"),
            publish=self.publish,
        )

    def _write(self, name: str, lines: int) -> None:
        self.lines[name] = lines
        path = self.path / name
        with suppress(FileNotFoundError):
            path.unlink()
        if lines:
            content = "".join(line(_FILES.index(name) * 100 + number) for number in range(lines)).encode()
            path.write_bytes(gzip.compress(content, mtime=0) if name.endswith("gz") else content)

    def _load(self) -> None:
        settings = LoadSettings(ledger=LedgerSettings(dsn=self.dsn), wait_s=0)
        load(self._declared, settings, batch=new_batch(), executor=InThisProcess())
        # A file that is shorter than what is loaded of it is left alone.
        self.loaded = {name: max(self.lines[name], self.loaded[name]) for name in _FILES}
        self.history[self._position()] = dict(self.loaded)
        self._compare()

    def _rewind(self, to: int) -> None:
        if not self._position():
            return
        going = {name for name in _FILES if self.history[to][name] < self.loaded[name]}
        done = rewind(self._declared, self.engine, to=Position(to), dry_run=False)
        lost = {name for name in going if self.lines[name] < self.loaded[name]}
        said = {each.partition(" ")[0] for each in done.lost}
        # Whether a packed file is shorter is not looked at.
        assert {name for name in lost if not self.lines[name] or not name.endswith("gz")} == said
        self.rolled_back |= {name: max(self.rolled_back[name], self.loaded[name]) for name in going}
        self.loaded = dict(self.history[to])
        self.history = {position: lines for position, lines in self.history.items() if position <= to}
        self.history[self._position()] = dict(self.loaded)
        self._compare()

    def _compare(self) -> None:
        if not self._position():
            return
        found = [number for (number,) in execute(self.dsn, f"SELECT id FROM files_{self.number} ORDER BY 1")]
        expected = [place * 100 + each for place, name in enumerate(_FILES) for each in range(self.loaded[name])]
        assert found == expected
        differences = verify(self._declared, self.engine).differences
        assert {(each.producer, each.kind) for each in differences} == set(self._differences())

    def _differences(self) -> Iterator[tuple[str, Kind]]:
        for name in _FILES:
            if self.lines[name] < self.loaded[name]:
                yield name, Kind.FILE_SHORTER if self.lines[name] else Kind.FILE_MISSING
            if max(self.lines[name], self.loaded[name]) < self.rolled_back[name]:
                yield name, Kind.NOT_LOADED_AGAIN

    def _position(self) -> int:
        query = f"SELECT coalesce(max(position), 0) FROM onceload.pipeline WHERE name = 'files {self.number}'"
        return int(execute(self.dsn, query)[0][0])


@_HOW
@given(operations=_CHANGES, publish=st.sampled_from(Publish))
@example(operations=[Write("a.jsonl", 3), Load(), Rewind(0), Write("a.jsonl", 0), Load()], publish=Publish.STAGED)
@example(operations=[Write("b.jsonl.gz", 5), Load(), Rewind(0), Write("b.jsonl.gz", 3), Load(), Rewind(0)],
         publish=Publish.STAGED)  # fmt: skip
def test_files_that_no_longer_have_what_was_rewound_are_named(database, tmp_path_factory, operations, publish):
    folder = Folder(dsn=database, path=tmp_path_factory.mktemp("landing"), publish=publish)
    PostgresLedger(folder.engine).declare(Pipeline(name=f"files {folder.number}"))
    try:
        for operation in operations:
            folder.do(operation)
        folder.finish()
    finally:
        folder.engine.dispose()
