"""Rows of a staged batch that go through files, into the target at once."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import Connection, Engine, event

from onceload_core.guards import RowsDiffer
from onceload_core.names import SessionName
from onceload_core.postgres import LedgerSettings
from onceload_core.verdicts import Order
from onceload_jobs.batch import pieces, spool
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.named_file import NamedFile, Runs, read_named_file
from onceload_jobs.batch.pieces import StagedPiece
from onceload_jobs.batch.stage import open_stage
from onceload_jobs.files.notes import Note
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.load.staged import staged_batch
from onceload_jobs.pipeline.declared import Declared, MessageId, Publish, RecordProducer, TransformEngine, Write
from onceload_jobs.publish import early_copy, named_rows
from onceload_jobs.publish import publish as publishing
from onceload_jobs.write import writer
from onceload_jobs.write.binary_copy import copy_encoded, copy_in, encoded
from tests.loads.conftest import InThisProcess, Loads, line
from tests.servers import execute
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.parametrize("publish", [Publish.STAGED])

_ROWS = 300
READ_AND_CUT = """
import os, sys
from onceload_jobs.batch.named_file import NamedFile, Runs, read_named_file
found = read_named_file(*os.path.split(sys.argv[1]))
os.truncate(sys.argv[1], 0)
print(sum(found.rows.column(0).to_pylist()))
"""


def test_a_file_of_rows_that_is_cut_while_it_is_copied_does_not_end_the_process(tmp_path: Path) -> None:
    rows = pa.table([range(100_000)], names=["n"])
    none = Runs(producers=np.empty(0, np.int64), firsts=np.empty(0, np.int64), ends=np.empty(0, np.int64))
    named = NamedFile(rows=rows, ids=pa.chunked_array([np.zeros(len(rows), np.int64)]), runs=none)
    (tmp_path / "rows").write_bytes(b"".join(named.encoded()))

    command = [sys.executable, "-c", READ_AND_CUT, str(tmp_path / "rows")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)

    assert (done.returncode, done.stdout.strip()) == (0, str(sum(range(100_000))))


@pytest.fixture(autouse=True)
def spool_home(loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two files in several pieces, and a folder of temporary files of our own."""
    home = tmp_path / "temporary"
    home.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=2000))
    for number in range(2):
        loads.write(f"{number}.jsonl", "".join(line(each) for each in range(number * _ROWS, (number + 1) * _ROWS)))
    return home


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were written."""
    names: list[str] = []

    def write(folder: str, encoded: Iterator[bytes]) -> str:
        names.append(spool.write_file(folder, encoded))
        return names[-1]

    monkeypatch.setattr(pieces, "write_file", write)
    return names


@pytest.mark.parametrize("lineage", [True, False])
def test_rows_go_from_files_into_the_target_and_no_file_is_left(loads, spool_home, written, monkeypatch, lineage):
    stagings: list[Any] = []

    def opening(*given: Any, **more: Any) -> Any:
        stagings.append(given)
        return open_stage(*given, **more)

    monkeypatch.setattr(staged_batch, "open_stage", opening)
    loads.declared = replace(loads.declared, target=replace(loads.declared.target, lineage=lineage))

    report, again = loads.load(), loads.load()

    assert (report.loaded, again.loaded, len(stagings)) == (2 * _ROWS, 0, 1)
    assert loads.rows() == list(range(2 * _ROWS))
    assert len(written) > 2
    assert list(spool_home.iterdir()) == []


def test_a_killed_load_s_files_are_removed_by_the_next_and_those_of_a_live_one_stay(loads, spool_home):
    abandoned = spool_home / "onceload-rows-0123456789abcdef"
    abandoned.mkdir()
    (abandoned / "rows").write_bytes(b"rows")
    with spool.open_spool() as live:
        loads.load()

        assert not abandoned.exists()
        assert Path(live).is_dir()


@pytest.fixture(params=["copied", "named"])
def each_kind(loads: Loads, request: pytest.FixtureRequest) -> str:
    """Rows that are only copied, or whose records name their producer."""
    if request.param == "named":
        loads.declared = replace(loads.declared, producer=RecordProducer(name="note", sequence="id"))
    kind: str = request.param
    return kind


def test_a_batch_whose_files_vanish_is_staged_again(loads, written, monkeypatch, each_kind):
    vanished: list[str] = []

    def vanishing(read: Callable[[str, str], Any]) -> Callable[[str, str], Any]:
        def read_or_vanish(folder: str, name: str) -> Any:
            if not vanished:
                vanished.append(name)
                (Path(folder) / name).unlink()
            return read(folder, name)

        return read_or_vanish

    named = each_kind == "named"
    for module in (named_rows, pieces) if named else (early_copy, publishing):
        name = "read_named_file" if named else "read_file"
        monkeypatch.setattr(module, name, vanishing(read_named_file if named else spool.read_file))

    assert loads.load().loaded == 2 * _ROWS
    assert vanished
    assert loads.rows() == list(range(2 * _ROWS))


@pytest.mark.usefixtures("each_kind")
@pytest.mark.parametrize("cut", [0, 1, 5, 200])
def test_a_batch_with_a_file_that_is_cut_is_staged_again(loads, monkeypatch, cut):
    written: list[str] = []

    def write(folder: str, encoded: Iterator[bytes]) -> str:
        written.append(spool.write_file(folder, encoded))
        if len(written) == 1:
            path = Path(folder) / written[0]
            path.write_bytes(path.read_bytes()[: -cut if cut else 0])
        return written[-1]

    monkeypatch.setattr(pieces, "write_file", write)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


def _shorter(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def _longer(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


@pytest.mark.parametrize("change", [_shorter, _longer])
@pytest.mark.parametrize("at", [(0,), (3,), (0, 3)])
def test_a_batch_whose_files_have_more_or_fewer_rows_than_their_pieces_is_staged_again(loads, monkeypatch, change, at):
    """Also if one has a row more and another a row less."""
    number = count()

    def encode_other(rows: pa.Table, *arguments: Any, **named: Any) -> Iterator[bytes]:
        place = next(number)
        if place in at:
            rows = (change if place == at[0] else {_shorter: _longer, _longer: _shorter}[change])(rows)
        return encoded(rows, *arguments, **named)

    monkeypatch.setattr(pieces, "encoded", encode_other)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


def _tabled(kind: str, declared: Declared) -> Declared:
    match kind:
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


@pytest.mark.parametrize("kind", ["merged", "by id", "named", "transformed", "transformed without lineage"])
def test_a_batch_whose_table_took_fewer_rows_than_its_pieces_is_staged_again(loads, monkeypatch, kind):
    copied = count()

    def copy_other(connection: Connection, rows: pa.Table, **named: Any) -> int:
        return copy_in(connection, rows.slice(1) if next(copied) == 2 else rows, **named)

    monkeypatch.setattr(writer, "copy_in", copy_other)
    loads.declared = _tabled(kind, loads.declared)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


class Losing(InThisProcess):
    """Loses a staged row, as nothing should."""

    def __init__(self, loads: Loads) -> None:
        super().__init__()
        self._loads, self.lost = loads, 0

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        notes = super().run(job, sessions)
        if not self.lost and job.stage:
            with self._loads.engine.begin() as connection:
                self.lost = connection.exec_driver_sql(f"DELETE FROM {job.stage.rows} WHERE id = 7").rowcount
        return notes


@pytest.mark.parametrize("kind", ["by id", "named", "transformed", "transformed without lineage"])
def test_a_batch_whose_table_lost_a_row_is_staged_again(loads, kind):
    """It would count as a duplicate, or as filtered."""
    tasks = Losing(loads)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)

    report = load(_tabled(kind, loads.declared), settings, batch=new_batch(), tasks=tasks)

    assert (tasks.lost, report.loaded, report.filtered, report.duplicates) == (1, 2 * _ROWS, 0, 0)
    assert loads.rows() == list(range(2 * _ROWS))


def test_a_merge_whose_table_lost_a_row_is_refused(loads):
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    declared = _tabled("merged", loads.declared)

    with pytest.raises(RowsDiffer, match="wrote 599 rows instead of 600"):
        load(declared, settings, batch=new_batch(), tasks=Losing(loads))

    assert loads.rows() == []
    assert load(declared, settings, batch=new_batch(), tasks=InThisProcess()).loaded == 2 * _ROWS


@pytest.mark.usefixtures("each_kind")
def test_without_room_for_files_rows_go_through_the_table(loads, monkeypatch):
    def fail(*_: Any) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pieces, "write_file", fail)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == list(range(2 * _ROWS))


def test_a_row_that_only_the_target_refuses_goes_to_quarantine_alone(loads, written):
    execute(
        loads.admin_dsn,
        "CREATE TABLE target (id bigint NOT NULL CHECK (id <> 7), amount numeric(12,2), note text,"
        " _producer_id bigint, _sequence bigint); GRANT ALL ON target TO onceload_loader",
    )

    report = loads.load()

    assert (report.loaded, report.quarantined) == (2 * _ROWS - 1, 1)
    assert written
    assert loads.rows() == [each for each in range(2 * _ROWS) if each != 7]


def test_merged_rows_need_the_table(loads, written):
    merged = replace(loads.declared.target, write=Write.MERGE, key=("id",))

    assert loads.load(target=merged).loaded == 2 * _ROWS
    assert written == []


@pytest.mark.usefixtures("each_kind")
def test_files_of_a_try_that_does_not_count_are_not_published(loads, written, monkeypatch):
    """All deliveries are staged a second time, after the files of the first time were copied."""
    copied: list[int] = []
    taken: list[early_copy.OpenTransaction | None] = []
    take = early_copy.EarlyCopy.take

    def copy(*arguments: Any, **named: Any) -> int:
        copied.append(copy_encoded(*arguments, **named))
        return copied[-1]

    def take_noted(self: early_copy.EarlyCopy, staged: Sequence[StagedPiece]) -> early_copy.OpenTransaction | None:
        taken.append(take(self, staged))
        return taken[-1]

    class Twice(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            notes = super().run(job, sessions)
            until(lambda: len(copied) == len(written))
            execute(loads.admin_dsn, "UPDATE onceload.delivery SET state = 'waiting' WHERE state = 'staged'")
            return notes + super().run(job, sessions)

    monkeypatch.setattr(early_copy, "copy_encoded", copy)
    monkeypatch.setattr(early_copy.EarlyCopy, "take", take_noted)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)

    report = load(loads.declared, settings, batch=new_batch(), tasks=Twice())

    assert (taken, report.loaded) == ([None], 2 * _ROWS)
    assert loads.rows() == list(range(2 * _ROWS))


@pytest.mark.usefixtures("each_kind")
@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_connection_that_is_lost_after_files_were_copied_costs_no_load(loads, monkeypatch, is_given_up):
    """Its rollback fails too, in the commit or before it."""
    ended: list[int] = []
    take = early_copy.EarlyCopy.take

    def take_and_lose(self: early_copy.EarlyCopy, staged: Sequence[StagedPiece]) -> early_copy.OpenTransaction | None:
        begun = take(self, staged)
        assert begun is not None
        driver: Any = begun.connection.connection.dbapi_connection
        ended.append(driver.info.backend_pid)
        execute(loads.admin_dsn, f"SELECT pg_terminate_backend({ended[-1]}, 5000)")
        if is_given_up:
            self.close()
            return None
        return begun

    monkeypatch.setattr(early_copy.EarlyCopy, "take", take_and_lose)

    assert loads.load().loaded == 2 * _ROWS
    assert len(ended) == 1
    assert loads.rows() == list(range(2 * _ROWS))


@pytest.mark.parametrize("at", [0, 1, 2, 3, 5, 8, 13])
def test_a_connection_that_is_lost_at_any_word_of_early_copies_costs_no_load(
    loads, written, monkeypatch, each_kind, at
):
    """It copies in a thread of its own, so faults of the thread that loads never reach it."""
    words: list[int] = []

    def hear(connection: Connection) -> None:
        if threading.current_thread().name != early_copy.THREAD_NAME:
            return
        driver: Any = connection.connection.dbapi_connection
        words.append(driver.info.backend_pid)
        if len(words) == at + 1:
            execute(loads.admin_dsn, f"SELECT pg_terminate_backend({words[-1]}, 5000)")

    def hear_statement(connection: Connection, *_: Any) -> None:
        hear(connection)

    def copy(connection: Connection, *arguments: Any, **named: Any) -> int:
        hear(connection)
        rows = copy_encoded(connection, *arguments, **named)
        hear(connection)
        return rows

    class UntilHeard(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            notes = super().run(job, sessions)
            until(lambda: len(words) > at)
            return notes

    monkeypatch.setattr(early_copy, "copy_encoded", copy)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    event.listen(Engine, "before_cursor_execute", hear_statement)
    try:
        report = load(loads.declared, settings, batch=new_batch(), tasks=UntilHeard())
    finally:
        event.remove(Engine, "before_cursor_execute", hear_statement)

    assert report.loaded == 2 * _ROWS
    # The loss may be noticed by the next word only. Named rows are then moved to the table, and others go there.
    if each_kind != "named":
        assert len(words) in (at + 1, at + 2)
        assert len(written) > 2
    assert loads.rows() == list(range(2 * _ROWS))
