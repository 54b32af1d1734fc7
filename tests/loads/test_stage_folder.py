"""Rows of a batch wait in the folder of its try, and only those that were written are copied."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine

from onceload_core.guards import RowsDiffer
from onceload_core.postgres import LedgerSettings
from onceload_core.verdicts import Order
from onceload_jobs.batch import folders, stage_folder
from onceload_jobs.batch.folders import DiskFolder
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, Pieces
from onceload_jobs.batch.stage import Stage
from onceload_jobs.batch.stage_folder import BlockWriter, NoRoom, open_folder
from onceload_jobs.executor.executor import Outcome
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import (
    Declared,
    MessageId,
    Publish,
    RecordProducer,
    TransformEngine,
    UnknownFields,
    Write,
)
from onceload_jobs.publish.table_road import copy_to
from onceload_jobs.work.spark.spark import Spark
from onceload_jobs.write.binary_copy import copy_encoded
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.test_rows_of_a_record import load_by_spark
from tests.servers import execute

pytestmark = pytest.mark.parametrize("publish", [Publish.STAGED])

_ROWS = 300


@pytest.fixture(autouse=True)
def home(loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files in several pieces, and a folder of temporary files of our own."""
    home = tmp_path / "temporary"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=2000))
    for number in range(2):
        loads.write(f"{number}.jsonl", "".join(line(each) for each in range(number * _ROWS, (number + 1) * _ROWS)))
    return home


@pytest.fixture
def of_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No worker sees the folder."""
    marked = folders._marked

    def marked_otherwise(folder: Path, *, is_shared: bool) -> DiskFolder:
        return replace(marked(folder, is_shared=is_shared), token="of another machine")

    monkeypatch.setattr(folders, "_marked", marked_otherwise)


def _changed(kind: str, declared: Declared) -> Declared:
    match kind:
        case "copied":
            return declared
        case "without lineage":
            return replace(declared, target=replace(declared.target, lineage=False))
        case "merged":
            return replace(declared, target=replace(declared.target, write=Write.MERGE, key=("id",)))
        case "by id":
            pipeline = replace(declared.pipeline, message_keep_days=2)
            return replace(declared, pipeline=pipeline, message_id=MessageId(columns=("id",), keep_days=2))
        case "named":
            return replace(declared, producer=RecordProducer(name="note", sequence="id", order=Order.ORDERED))
        case _:
            query = "SELECT * FROM records" if kind == "transformed" else "SELECT id, amount, note FROM records"
            return replace(declared, transform=query, transform_engine=TransformEngine.POSTGRES)


_THROUGH_A_TABLE = ["merged", "transformed", "transformed without lineage"]
EACH_KIND = pytest.mark.parametrize("kind", ["copied", "without lineage", "by id", "named", *_THROUGH_A_TABLE])


@EACH_KIND
def test_rows_go_from_files_into_the_target_and_no_file_is_left(loads, home, kind):
    loads.declared = _changed(kind, loads.declared)

    report, again = loads.load(), loads.load()

    assert (report.loaded, again.loaded) == (2 * _ROWS, 0)
    assert loads.rows() == list(range(2 * _ROWS))
    assert list(home.iterdir()) == []


def test_a_killed_load_s_files_are_removed_by_the_next_and_those_of_a_live_one_stay(loads, home):
    abandoned = home / "onceload-rows-0123456789abcdef"
    abandoned.mkdir()
    (abandoned / "rows").write_bytes(b"rows")
    with open_folder() as live:
        loads.load()

        assert not abandoned.exists()
        assert Path(live.path).is_dir()


class Losing:
    """Does something to the file of the first piece, once it is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, lose: Callable[[Path], object]) -> None:
        self.lost: list[Path] = []
        write = BlockWriter.write

        def write_and_lose(writer: BlockWriter, *arguments: Any, **named: Any) -> None:
            write(writer, *arguments, **named)
            if not self.lost and writer.target:
                self.lost.append(Path(writer.target.folder.path) / writer.target.name)
                lose(self.lost[0])

        monkeypatch.setattr(BlockWriter, "write", write_and_lose)


def _cut(path: Path, *, by: int) -> None:
    path.write_bytes(path.read_bytes()[:-by] if by else b"")


def _changed_byte(path: Path) -> None:
    """Within a value: COPY alone would not notice."""
    content = path.read_bytes()
    at = content.index(b"x")
    path.write_bytes(content[:at] + b"y" + content[at + 1 :])


@EACH_KIND
@pytest.mark.parametrize(
    "lose",
    [Path.unlink, _changed_byte, *(pytest.param(partial(_cut, by=by), id=f"cut by {by}") for by in (0, 1, 5, 200))],
)
def test_a_piece_whose_rows_are_lost_or_changed_is_read_again(loads, monkeypatch, lose, kind):
    losing = Losing(monkeypatch, lose)
    loads.declared = _changed(kind, loads.declared)

    assert loads.load().loaded == 2 * _ROWS
    assert losing.lost
    assert loads.rows("id, note") == [(number, "x") for number in range(2 * _ROWS)]


def test_a_folder_that_vanishes_costs_no_load(loads, monkeypatch):
    def remove(path: Path) -> None:
        for each in path.parent.iterdir():
            each.unlink()

    Losing(monkeypatch, remove)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


@EACH_KIND
@pytest.mark.parametrize("at", [0, 3])
def test_without_room_for_files_rows_are_handed_over(loads, monkeypatch, kind, at):
    """Also if the disk is full only from the fourth block on."""
    written = count()
    write_all = stage_folder._write_all

    def fill(file: Any, chunk: bytes) -> None:
        if next(written) >= at:
            raise OSError(28, "No space left on device")
        write_all(file, chunk)

    monkeypatch.setattr(stage_folder, "_write_all", fill)
    loads.declared = _changed(kind, loads.declared)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


@pytest.mark.parametrize("kind", ["copied", "by id", "named"])
def test_rows_with_undeclared_fields_are_handed_over_as_well(loads, of_another_machine, kind):
    """All are read before columns are added, and then again by those who leave out repeats."""
    loads.declared = replace(_changed(kind, loads.declared), unknown_fields=UnknownFields.ADD)
    loads.write("0.jsonl", '{"id": 7000, "note": "x", "other": 1}\n')

    assert loads.load().loaded == _ROWS + 1
    assert loads.rows("id, other")[0] == (_ROWS, None)
    assert loads.rows("id, other")[-1] == (7000, 1)


def test_spark_sql_makes_rows_of_handed_over_records_in_each_try(loads, of_another_machine, tasks):
    """Whether several rows name one record shows only in a table, so there is a second try."""
    query = "SELECT /*+ REPARTITION(3) */ id, _producer_id, _sequence FROM records"

    assert load_by_spark(loads, tasks, transform=query).loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


def test_records_that_are_lost_before_spark_sql_makes_rows_of_them_are_read_again(loads, home, monkeypatch, tasks):
    transform, calls = Spark.transform, count(1)

    def lose_and_transform(spark: Spark, *arguments: Any) -> Any:
        if next(calls) == 1:
            next(home.glob("onceload-rows-*/[!m]*")).unlink()
        return transform(spark, *arguments)

    monkeypatch.setattr(Spark, "transform", lose_and_transform)

    assert load_by_spark(loads, tasks, transform="SELECT id, _producer_id, _sequence FROM records").loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


def test_rows_that_find_no_room_anywhere_end_the_load_in_words(loads, monkeypatch):
    def fill(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stage_folder, "_write_all", fill)
    monkeypatch.setattr(stage_folder, "_HELD_BYTES_MAX", 100)

    with pytest.raises(NoRoom, match=r"Nothing of the batch was loaded\. Make room there, or set TMPDIR"):
        loads.load()

    monkeypatch.undo()
    assert loads.load().loaded == 2 * _ROWS


def test_a_worker_that_does_not_see_the_folder_hands_its_rows_over(loads, monkeypatch):
    monkeypatch.setattr(DiskFolder, "is_here", lambda _: False)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


def test_a_row_that_only_the_target_refuses_goes_to_quarantine_alone(loads):
    execute(
        loads.admin_dsn,
        "CREATE TABLE target (id bigint NOT NULL CHECK (id <> 7), amount numeric(12,2), note text,"
        " _producer_id bigint, _sequence bigint); GRANT ALL ON target TO onceload_loader",
    )

    report = loads.load()

    assert (report.loaded, report.quarantined) == (2 * _ROWS - 1, 1)
    assert loads.rows() == [each for each in range(2 * _ROWS) if each != 7]


class LosingWhatWasRead(InThisProcess):
    """The files of the records that were read are lost once repeats are left out."""

    def __init__(self, home: Path) -> None:
        self._home, self._calls = home, 0

    def begins(self) -> None:
        self._calls += 1

    def _called(self, function: Callable[[Any], Any], item: Any) -> Outcome:
        read = [] if self._calls != 2 else list(self._home.glob("onceload-rows-*/[!m]*"))
        outcome = super()._called(function, item)
        for each in read:
            each.unlink()
        return outcome


@pytest.mark.parametrize("kind", ["by id", "named"])
def test_a_refused_row_is_found_again_if_what_was_read_is_lost(loads, home, kind):
    refusing = "ALTER TABLE target ADD CHECK (id <> 7); GRANT ALL ON target TO onceload_loader"
    created = "CREATE TABLE target (id bigint, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)"
    execute(loads.admin_dsn, f"{created}; {refusing}")
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))

    report = load(_changed(kind, loads.declared), settings, batch=new_batch(), executor=LosingWhatWasRead(home))

    assert (report.loaded, report.quarantined) == (2 * _ROWS - 1, 1)
    assert loads.rows() == [each for each in range(2 * _ROWS) if each != 7]


@pytest.mark.parametrize("differs", [-1, 1])
@EACH_KIND
def test_a_piece_of_which_the_server_took_more_or_fewer_rows_is_not_published(loads, monkeypatch, differs, kind):
    """Rows that changed on their way: the batch is refused, or copied again into another stage."""
    loads.declared = _changed(kind, loads.declared)
    copies = count()

    def copy(connection: Connection, content: Iterator[bytes], **named: Any) -> int:
        return copy_encoded(connection, content, **named) + (0 if next(copies) else differs)

    monkeypatch.setattr("onceload_jobs.write.writer.copy_encoded", copy)

    if kind in _THROUGH_A_TABLE:
        assert loads.load().loaded == 2 * _ROWS
    else:
        with pytest.raises(RowsDiffer):
            loads.load()
        assert loads.rows() == []
        assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


def _lose_a_row(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A row of the stage is lost when all are there, as nothing should."""
    lost: list[int] = []

    def copy_and_lose(engine: Engine, job: Job, stage: Stage, pieces: Pieces) -> Sequence[Piece]:
        copied = copy_to(engine, job, stage, pieces)
        if not lost:
            table = stage.beside("records") if job.declared.is_made_by_postgres else stage.rows
            with loads.engine.begin() as connection:
                lost.append(connection.exec_driver_sql(f"DELETE FROM {table} WHERE id = 7").rowcount)
        return copied

    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.copy_to", copy_and_lose)
    return lost


@pytest.mark.parametrize("kind", ["transformed", "transformed without lineage"])
def test_a_batch_whose_table_lost_a_row_is_staged_again(loads, monkeypatch, kind):
    """It would count as filtered."""
    lost = _lose_a_row(loads, monkeypatch)

    loads.declared = _changed(kind, loads.declared)
    report = loads.load()

    assert (lost, report.loaded, report.filtered, report.duplicates) == ([1], 2 * _ROWS, 0, 0)
    assert loads.rows() == list(range(2 * _ROWS))


def test_a_merge_whose_table_lost_a_row_is_refused(loads, monkeypatch):
    loads.declared = _changed("merged", loads.declared)
    _lose_a_row(loads, monkeypatch)

    with pytest.raises(RowsDiffer, match="wrote 599 rows instead of 600"):
        loads.load()

    assert loads.rows() == []
    assert loads.load().loaded == 2 * _ROWS
