"""A delivery that several sessions hold, one after the other, takes effect as one whole try of one content."""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_core.delivery import Rules
from onceload_jobs.batch.stage_folder import BlockWriter
from onceload_jobs.load.report import Report
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, Declared, Format, OnRewrite, Publish
from onceload_jobs.verify.verify import verify
from onceload_jobs.work import load_delivery as loading
from tests.loads.conftest import InThisProcess, Loads, WorkerKilled, line, through_a_table
from tests.loads.test_versions import edited, load_now, settings_of

STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])


def packed(numbers: Sequence[int], note: str = "x" * 40) -> bytes:
    rows = (json.dumps({"id": number, "amount": "1.50", "note": note}) + "\n" for number in numbers)
    return gzip.compress("".join(rows).encode(), mtime=0)


@dataclass
class KilledOnce(InThisProcess):
    """The worker that has written so many pieces is killed; something happens, and another takes its deliveries."""

    pieces: int
    then: Callable[[], object]
    is_killed: bool = field(default=False, init=False)
    _patched: pytest.MonkeyPatch = field(default_factory=pytest.MonkeyPatch, init=False)

    def begins(self) -> None:
        if not self.is_killed:
            self.is_killed = True
            left: Iterator[int] = iter(range(self.pieces))
            for owner, name in ((loading, "_commit_piece"), (BlockWriter, "write")):
                self._patched.setattr(owner, name, self._at_most(getattr(owner, name), left))

    def was_killed(self) -> None:
        self._patched.undo()
        self.then()

    def _at_most(self, take: Callable[..., None], left: Iterator[int]) -> Callable[..., None]:
        def taken(*arguments: Any, **named: Any) -> None:
            if next(left, None) is None:
                raise WorkerKilled
            take(*arguments, **named)

        return taken


def load_killed(loads: Loads, declared: Declared, *, pieces: int, then: Callable[[], object]) -> Report:
    from onceload_jobs.load.load import load
    from onceload_jobs.load.settings import new_batch

    return load(declared, settings_of(loads), batch=new_batch(), executor=KilledOnce(pieces, then))


def nothing() -> None:
    pass


@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_the_next_try_of_a_delivery_begins_it_again(loads, pieces):
    numbers = list(range(200))
    loads.write("a.jsonl.gz", packed(numbers))

    load_killed(loads, edited(loads, source={"chunk_bytes": 1000}), pieces=pieces, then=nothing)

    assert loads.rows() == numbers
    assert verify(loads.declared, loads.engine, deep=True).differing == 0


@STAGED
@pytest.mark.parametrize("becomes", ["smaller", "gone"])
def test_a_file_beside_it_that_changed_between_two_tries_shifts_no_piece(loads, becomes):
    """Both are in one delivery, and the first is a piece of its own when it is unpacked."""
    a, b = list(range(100)), list(range(1000, 1300))
    file = loads.write("a.jsonl.gz", packed(a))
    loads.write("b.jsonl.gz", packed(b))
    declared = edited(loads, source={"chunk_bytes": 8000}, delivery=Rules(deliveries_max=2))

    def change() -> None:
        file.unlink()
        if becomes == "smaller":
            file.write_bytes(packed(a[:10], note="y"))

    load_killed(loads, declared, pieces=1, then=change)

    assert [number for number in loads.rows() if number >= 1000] == b
    load_now(loads, declared)
    assert loads.rows() == (a[:10] if becomes == "smaller" else []) + b


@pytest.mark.parametrize("kind", ["gz", "parquet", "multiline"])
def test_a_file_that_is_replaced_between_two_tries_is_loaded_of_one_content(loads, kind):
    """The old one up to where it was loaded, and all of the new one as another generation: never its tail alone."""
    old, new = list(range(300)), list(range(1000, 1400))
    declared, write = {
        "gz": lambda: (edited(loads, source={"chunk_bytes": 2000}), lambda n: loads.write("a.jsonl.gz", packed(n))),
        "parquet": lambda: _parquet(loads),
        "multiline": lambda: _multiline(loads),
    }[kind]()
    declared = replace(declared, on_rewrite=OnRewrite.NEW_GENERATION)
    write(old)

    load_killed(loads, declared, pieces=3, then=lambda: write(new))
    load_now(loads, declared)
    load_now(loads, declared)

    of_old = [number for number in loads.rows() if number < 1000]
    assert of_old == old[: len(of_old)]
    assert [number for number in loads.rows() if number >= 1000] == new
    assert len(of_old) < len(old)


def _parquet(loads: Loads) -> tuple[Declared, Callable[[list[int]], object]]:
    def write(numbers: list[int]) -> None:
        table = pa.table({"id": numbers, "note": ["x" * 40] * len(numbers)})
        pq.write_table(table, loads.folder / "a.parquet", row_group_size=30)

    columns = (parse_column("id", "bigint"), parse_column("note", "text"))
    source = {"format": Format.PARQUET, "path": str(loads.folder / "*.parquet"), "chunk_bytes": 200}
    return edited(loads, source=source, columns=columns), write


def _multiline(loads: Loads) -> tuple[Declared, Callable[[list[int]], object]]:
    def write(numbers: list[int]) -> None:
        loads.write("a.csv", "".join(f'{number},"{"x" * 20}\ny"\n' for number in numbers))

    columns = (parse_column("id", "bigint"), parse_column("note", "text"))
    csv = CsvOptions(header=False, multiline=True)
    source = {"format": Format.CSV, "csv": csv, "path": str(loads.folder / "*.csv"), "chunk_bytes": 500}
    return edited(loads, source=source, columns=columns), write


@STAGED
def test_a_file_that_is_replaced_between_two_tries_replaces_all_rows_or_none(loads):
    old, first, second = list(range(10)), list(range(100, 400)), list(range(1000, 1400))
    loads.write("a.jsonl.gz", packed(old))
    declared = edited(loads, source={"chunk_bytes": 2000}, on_rewrite=OnRewrite.REPLACE)
    load_now(loads, declared)
    loads.write("a.jsonl.gz", packed(first))

    load_killed(loads, declared, pieces=3, then=lambda: loads.write("a.jsonl.gz", packed(second)))
    assert loads.rows() == old

    load_now(loads, declared)
    assert loads.rows() == second


@STAGED
def test_a_hole_in_a_packed_file_is_loaded_by_the_next_load(loads):
    """However it came there: a stream is not done because its size was noted."""
    numbers = list(range(200))
    loads.write("a.jsonl.gz", packed(numbers))
    declared = edited(loads, source={"chunk_bytes": 1000})
    load_now(loads, declared)
    with loads.engine.begin() as connection:
        gone = connection.exec_driver_sql(
            "DELETE FROM target WHERE _sequence >= 700 AND _sequence < 1400 RETURNING _sequence"
        ).scalars()
        first, last = (edge(gone_ids) for gone_ids in [list(gone)] for edge in (min, max))
        end = connection.exec_driver_sql(f"SELECT min(_sequence) FROM target WHERE _sequence > {last}").scalar_one()
        connection.exec_driver_sql(f"UPDATE onceload.producer SET consumed = consumed - '{{[{first},{end})}}'")

    load_now(loads, declared)

    assert loads.rows() == numbers


class AfterOneTry(InThisProcess):
    """Something happens to the files of a delivery when it was read for the first time."""

    def __init__(self, happen: Callable[[], object]) -> None:
        self._happen: Callable[[], object] | None = happen

    def _called(self, function: Callable[[Any], Any], item: Any) -> Any:
        outcome = super()._called(function, item)
        if (happen := self._happen) is not None:
            self._happen = None
            happen()
        return outcome


@STAGED
@pytest.mark.parametrize("changed", [lambda declared: declared, through_a_table], ids=["copied", "through a table"])
def test_a_file_that_vanishes_before_its_delivery_is_read_again_holds_no_other_back(loads, changed):
    """It is read again without a record that the server refuses, at last each file alone."""
    from onceload_jobs.load.load import load
    from onceload_jobs.load.settings import new_batch

    refusing = "CREATE TABLE target (id bigint PRIMARY KEY CHECK (id <> 2), _producer_id bigint, _sequence bigint)"
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(refusing)
    first, *_ = [loads.write(f"{number}.jsonl", line(number)) for number in range(1, 6)]
    declared = changed(edited(loads, columns=(parse_column("id", "bigint not null"),)))

    report = load(declared, settings_of(loads), batch=new_batch(), executor=AfterOneTry(first.unlink))

    assert loads.rows() == [3, 4, 5]
    assert (report.loaded, report.quarantined, [note.name for note in report.notes]) == (3, 1, ["1.jsonl"])


@STAGED
@pytest.mark.parametrize("changed", [lambda declared: declared, through_a_table], ids=["copied", "through a table"])
@pytest.mark.parametrize("becomes", ["gone", "another"])
def test_a_file_that_changes_before_its_refused_rows_are_found_holds_no_other_back(loads, changed, becomes):
    from onceload_jobs.load.load import load
    from onceload_jobs.load.settings import new_batch

    refusing = "CREATE TABLE target (id bigint PRIMARY KEY CHECK (id <> 1), _producer_id bigint, _sequence bigint)"
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(refusing)
    first, _ = [loads.write(f"{number}.jsonl", line(number)) for number in (1, 2)]
    declared = changed(edited(loads, columns=(parse_column("id", "bigint not null"),)))

    def change() -> None:
        first.unlink() if becomes == "gone" else first.write_text(line(3))

    report = load(declared, settings_of(loads), batch=new_batch(), executor=AfterOneTry(change))

    assert loads.rows() == [2]
    assert (report.loaded, report.quarantined, [note.name for note in report.notes]) == (1, 0, ["1.jsonl"])
