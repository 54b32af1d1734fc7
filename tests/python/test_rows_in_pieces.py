"""The rows of one call in several pieces, which wait in a folder until they are committed together."""

import errno
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import onceload
from onceload.given_rows import offers_of
from onceload_core.errors import DatabaseLost
from onceload_core.names import Batch
from onceload_core.ports import CommitStep
from onceload_core.postgres import LedgerSettings
from onceload_jobs.batch.stage_folder import NoRoom, RowsLost
from onceload_jobs.load.given_rows import load_rows
from onceload_jobs.load.report import Report
from tests.python.conftest import Place
from tests.servers import execute

OF_MAPPINGS = 10_000


def mapping(number: int, **more: Any) -> dict[str, Any]:
    return {"id": number, "amount": "1.50", "note": "x", **more}


def in_batches(*sizes: int, bad: tuple[int, ...] = ()) -> pa.Table:
    """A table whose batches are pieces of their own, with the ids of its rows from 0 on."""
    schema = pa.schema({"id": pa.int64(), "amount": pa.string(), "note": pa.string()})
    batches, first = [], 0
    for size in sizes:
        rows = [mapping(number, **({"id": None} if number in bad else {})) for number in range(first, first + size)]
        batches.append(pa.RecordBatch.from_pylist(rows, schema))
        first += size
    return pa.Table.from_batches(batches)


class Pieces:
    """A pipeline of rows whose batches are pieces of their own."""

    def __init__(self, place: Place) -> None:
        self._place, self.dsn = place, place.dsn

    def pipeline(self, **changes: Any) -> onceload.Pipeline:
        described = self._place.describe(pipeline="crm", **changes)
        del described["source"]
        made = onceload.Pipeline.of(described, dsn=self.dsn)
        small = replace(made.declared, source=replace(made.declared.source, chunk_bytes=1))
        return onceload.Pipeline(small, made.settings)

    def load(self, rows: Any, *, reached: Callable[[CommitStep], None], batch: str = "b", **changes: Any) -> Report:
        """A call that reports its steps."""
        declared = self.pipeline(**changes).declared
        return load_rows(
            declared,
            LedgerSettings(dsn=self.dsn),
            offers_of(rows, declared, producer="crm", first_id=0, id_column=None),
            producer="crm",
            is_without_gaps=True,
            batch=Batch(batch),
            reached=reached,
        )

    def ask(self, statement: str) -> list[tuple[Any, ...]]:
        return execute(self.dsn, statement)

    def ids(self) -> list[int]:
        return [number for (number,) in self._place.rows()]


@pytest.fixture
def pieces(place: Place) -> Pieces:
    return Pieces(place)


def counts(report: Report) -> tuple[int, int, int]:
    return report.loaded, report.duplicates, report.quarantined


@pytest.mark.parametrize(("publish", "commits"), [("staged", 1), ("direct", 3)])
def test_a_call_in_several_pieces_is_one_commit_unless_each_commits_itself(
    pieces: Pieces, publish: str, commits: int
) -> None:
    pipeline = pieces.pipeline(publish=publish)

    reports = [pipeline.load_rows(in_batches(3, 2, 4, bad=(1, 7)), producer="crm", first_id=0) for _ in range(2)]

    assert list(map(counts, reports)) == [(7, 0, 2), (0, 9, 0)]
    assert pieces.ids() == [0, 2, 3, 4, 5, 6, 8]
    assert pieces.ask("SELECT count(*) FROM onceload.ledger") == [(commits,)]
    assert pieces.ask("SELECT sequence_id FROM onceload.quarantine ORDER BY 1") == [(1,), (7,)]
    found = pipeline.verify(deep=True)
    assert (found.differing, found.rows) == (0, 7)


def test_rows_that_are_loaded_are_left_out_of_each_piece(pieces: Pieces) -> None:
    pipeline = pieces.pipeline()
    pipeline.load_rows(in_batches(4), producer="crm", first_id=0)

    report = pipeline.load_rows(in_batches(3, 3, 3), producer="crm", first_id=0)

    assert counts(report) == (5, 4, 0)
    assert pieces.ids() == list(range(9))
    assert pieces.ask("SELECT duplicate FROM onceload.ledger ORDER BY position") == [(0,), (4,)]


@pytest.mark.parametrize("form", [lambda rows: rows, lambda rows: rows.to_pylist()], ids=["table", "mappings"])
def test_rows_that_another_call_loads_meanwhile_are_left_out_of_each_piece(pieces: Pieces, form: Any) -> None:
    given, others = in_batches(3, 3, 3, bad=(0, 8)), [True]

    def reached(step: CommitStep) -> None:
        if step is CommitStep.ROWS_WRITTEN and others:
            others.clear()
            other = pieces.pipeline().load_rows(in_batches(5, bad=(0,)), producer="crm", first_id=0)
            assert counts(other) == (4, 0, 1)

    assert counts(pieces.load(form(given), reached=reached)) == (3, 5, 1)

    assert pieces.ids() == list(range(1, 8))
    assert pieces.ask("SELECT loaded, quarantined FROM onceload.ledger ORDER BY position") == [(4, 1), (3, 1)]
    assert pieces.pipeline().verify(deep=True).differing == 0


def test_rows_that_are_lost_while_they_wait_are_not_taken_for_loaded(
    pieces: Pieces, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def reached(step: CommitStep) -> None:
        if step is CommitStep.ROWS_WRITTEN:
            for folder in tmp_path.glob("onceload*/"):
                shutil.rmtree(folder)
            raise DatabaseLost("committing", "as the test wants")

    with pytest.raises(RowsLost):
        pieces.load(in_batches(3, 3), reached=reached)

    assert pieces.ids() == []
    assert counts(pieces.pipeline().load_rows(in_batches(3, 3), producer="crm", first_id=0)) == (6, 0, 0)


def test_rows_that_commit_themselves_need_no_folder(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found")

    monkeypatch.setattr("tempfile.gettempdir", nowhere)
    rows = in_batches(3, 2)

    assert counts(pieces.pipeline(publish="direct").load_rows(rows, producer="crm", first_id=0)) == (5, 0, 0)
    with pytest.raises(NoRoom, match="set TMPDIR"):
        pieces.pipeline(publish="staged").load_rows(in_batches(3, 2, 1), producer="crm", first_id=0)
    assert pieces.ids() == list(range(5))


@pytest.mark.parametrize("publish", ["staged", "direct"])
def test_a_row_that_a_constraint_refuses_at_the_commit_goes_to_quarantine(pieces: Pieces, publish: str) -> None:
    pieces.ask(
        "CREATE TABLE target (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, amount numeric(12,2), note text,"
        " _producer_id bigint, _sequence bigint)"
    )
    rows = pa.Table.from_batches([*in_batches(3).to_batches(), *in_batches(2).to_batches()])

    report = pieces.pipeline(publish=publish).load_rows(rows, producer="crm", first_id=0)

    assert counts(report) == (3, 0, 2)
    assert pieces.ids() == [0, 1, 2]
    reasons = pieces.ask("SELECT sequence_id, reason FROM onceload.quarantine ORDER BY 1")
    assert [number for number, _ in reasons] == [3, 4]
    assert all("duplicate key" in reason for _, reason in reasons)


def test_columns_of_later_pieces_are_added_to_a_table_with_rules_that_wait_for_the_commit(pieces: Pieces) -> None:
    pieces.ask("CREATE TABLE known (id bigint PRIMARY KEY)")
    pieces.ask("INSERT INTO known SELECT generate_series(0, 9)")
    pieces.ask(
        "CREATE TABLE target (id bigint REFERENCES known DEFERRABLE INITIALLY DEFERRED,"
        " _producer_id bigint, _sequence bigint)"
    )
    schema = pa.schema({"id": pa.int64(), "x": pa.int64(), "y": pa.int64()})
    batches = [pa.RecordBatch.from_pylist([row], schema) for row in ({"id": 0}, {"id": 1, "x": 1}, {"id": 2, "y": 2})]
    pipeline = pieces.pipeline(publish="staged", columns={"id": "bigint"}, unknown_fields="add")

    report = pipeline.load_rows(pa.Table.from_batches(batches), producer="crm", first_id=0)

    assert counts(report) == (3, 0, 0)
    assert pieces.ask("SELECT id, x, y FROM target ORDER BY id") == [(0, None, None), (1, 1, None), (2, None, 2)]


class Row(dict[str, Any]):
    """A mapping that is counted while it lives."""

    alive = most = 0

    def __init__(self, number: int) -> None:
        super().__init__(mapping(number))
        Row.alive += 1
        Row.most = max(Row.most, Row.alive)

    def __del__(self) -> None:
        Row.alive -= 1


@pytest.mark.parametrize("publish", ["staged", "direct"])
def test_a_call_holds_as_many_mappings_as_a_piece_has(pieces: Pieces, publish: str) -> None:
    def rows() -> Iterator[Row]:
        return map(Row, range(6 * OF_MAPPINGS))

    Row.alive = Row.most = 0

    report = pieces.pipeline(publish=publish).load_rows(rows(), producer="crm", first_id=0)

    assert counts(report) == (6 * OF_MAPPINGS, 0, 0)
    # The first piece is held by the caller, and the last one while the next is read.
    assert Row.most <= 3 * OF_MAPPINGS
