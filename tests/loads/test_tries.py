"""A delivery that several sessions hold, one after the other, takes effect as one whole try of one content."""

import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_core.delivery import Rules
from onceload_core.errors import DatabaseLost, DeliveryTakenAway
from onceload_core.names import ProducerId, SessionName
from onceload_core.ports import Advance
from onceload_core.spans import SpanSet
from onceload_jobs.batch import pieces as pieces_module
from onceload_jobs.batch import stage
from onceload_jobs.batch.job import Job
from onceload_jobs.files.notes import Note
from onceload_jobs.load.report import Report
from onceload_jobs.load.staged.staged_batch import StagedBatch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, Declared, Format, OnRewrite, Publish
from onceload_jobs.verify.verify import verify
from onceload_jobs.work import load_delivery as loading
from onceload_jobs.work.session import work
from tests.loads.conftest import Loads
from tests.loads.test_versions import edited, load_now, settings_of

STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])


class Killed(BaseException):
    """A worker is dead; its driver goes on."""


def packed(numbers: Sequence[int], note: str = "x" * 40) -> bytes:
    rows = (json.dumps({"id": number, "amount": "1.50", "note": note}) + "\n" for number in numbers)
    return gzip.compress("".join(rows).encode(), mtime=0)


@dataclass
class KilledOnce:
    """The worker that has written so many pieces is killed; something happens, and another takes its deliveries."""

    pieces: int
    then: Callable[[], object]
    slots: int = 1
    is_killed: bool = field(default=False, init=False)

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        if not self.is_killed:
            self.is_killed = True
            with pytest.MonkeyPatch.context() as patched:
                for name in ("_stage_piece", "_commit_piece"):
                    patched.setattr(loading, name, self._at_most(getattr(loading, name)))
                with pytest.raises(Killed):
                    work(job, sessions[0])
            self.then()
        return [note for name in sessions for note in work(job, name)]

    def _at_most(self, take: Callable[..., None]) -> Callable[..., None]:
        left: Iterator[int] = iter(range(self.pieces))

        def taken(*arguments: Any, **named: Any) -> None:
            if next(left, None) is None:
                raise Killed
            take(*arguments, **named)

        return taken

    def transform(self, job: Job, deliveries: object) -> list[Note]:
        raise NotImplementedError

    def writing(self, job: Job) -> Job:
        return job


def load_killed(loads: Loads, declared: Declared, *, pieces: int, then: Callable[[], object]) -> Report:
    from onceload_jobs.load.load import load
    from onceload_jobs.load.settings import new_batch

    return load(declared, settings_of(loads), batch=new_batch(), tasks=KilledOnce(pieces, then))


def nothing() -> None:
    pass


@pytest.mark.parametrize("spools", [True, False])
@pytest.mark.parametrize("pieces", [0, 1, 3])
def test_the_next_try_of_a_delivery_begins_it_again(loads, pieces, spools, monkeypatch):
    """Its rows are in files, or in the table of the stage."""
    if not spools:
        monkeypatch.setattr(StagedBatch, "_may_spool", lambda *_, **__: False)
    numbers = list(range(200))
    loads.write("a.jsonl.gz", packed(numbers))

    load_killed(loads, edited(loads, source={"chunk_bytes": 1000}), pieces=pieces, then=nothing)

    assert loads.rows() == numbers
    assert verify(loads.declared, loads.engine, deep=True).differing == 0


@STAGED
@pytest.mark.parametrize("becomes", ["smaller", "gone"])
def test_a_file_beside_it_that_changed_between_two_tries_shifts_no_piece(loads, becomes, monkeypatch):
    """Both are in one delivery, and the first is a piece of its own when it is unpacked."""
    stages: list[object] = []
    open_stage = stage.open_stage

    def opened(*arguments: Any, **named: Any) -> AbstractContextManager[stage.Stage]:
        stages.append(arguments)
        return open_stage(*arguments, **named)

    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.open_stage", opened)
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
    # The second try deleted what the first one had staged; otherwise all of it would have been staged again.
    assert len(stages) == 1
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
def test_a_late_piece_of_an_earlier_try_is_refused(loads, monkeypatch):
    """Its worker was only slow: the delivery is in another hand by now."""
    numbers = list(range(200))
    loads.write("a.jsonl.gz", packed(numbers))
    late: list[Callable[[], None]] = []
    stage_piece = pieces_module.stage_piece

    def kept_back(*arguments: Any, **named: Any) -> None:
        if len(late) == 0:
            late.append(lambda: stage_piece(*arguments, **named))
            raise Killed
        if len(late) == 1:
            late.append(nothing)
            with pytest.raises(DeliveryTakenAway):
                late[0]()
        stage_piece(*arguments, **named)

    monkeypatch.setattr(loading, "stage_piece", kept_back)
    load_killed(loads, edited(loads, source={"chunk_bytes": 1000}), pieces=10, then=nothing)

    assert len(late) == 2
    assert loads.rows() == numbers


@STAGED
@pytest.mark.parametrize("spools", [True, False])
def test_a_piece_is_staged_once_though_the_answer_was_lost(loads, spools, monkeypatch):
    if not spools:
        monkeypatch.setattr(StagedBatch, "_may_spool", lambda *_, **__: False)
    numbers = list(range(200))
    loads.write("a.jsonl.gz", packed(numbers))
    lost: list[object] = []
    stage_piece = pieces_module.stage_piece

    def unanswered(*arguments: Any, **named: Any) -> None:
        stage_piece(*arguments, **named)
        if not lost:
            lost.append(arguments)
            raise DatabaseLost("staging rows", "the connection was closed")

    monkeypatch.setattr(loading, "stage_piece", unanswered)
    load_now(loads, edited(loads, source={"chunk_bytes": 1000}))

    assert lost
    assert loads.rows() == numbers


def test_pieces_that_overlap_are_not_whole():
    first, second = _piece(0, "{[0,20)}"), _piece(1, "{[20,40)}", is_last=True)

    assert pieces_module.is_whole([first, second], deliveries=1)
    assert not pieces_module.is_whole([first, _piece(1, "{[10,40)}", is_last=True)], deliveries=1)
    assert not pieces_module.is_whole([first], deliveries=1)
    assert not pieces_module.is_whole([second], deliveries=1)


def _piece(number: int, spans: str, *, is_last: bool = False) -> pieces_module.StagedPiece:
    return pieces_module.StagedPiece(
        delivery=0,
        number=number,
        is_last=is_last,
        advances=(Advance(producer_id=ProducerId(1), spans=SpanSet.parse(spans)),),
        rows=1,
        quarantined=(),
        bytes=1,
        records=1,
    )


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
