"""Rows of a batch wait at an address that machines share: a folder, or an object store."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Any, Protocol

import pytest
import s3fs

from onceload.databases import open_database
from onceload.doctor import Check, examine
from onceload.settings import Settings
from onceload_core.postgres import LedgerSettings
from onceload_jobs.batch import folders, stage_folder
from onceload_jobs.batch.folders import DEAD_AFTER_S, MARK, PREFIX, DiskFolder, StoreFolder
from onceload_jobs.batch.stage_folder import NoRoom, RowsLost, StageFolder, open_folder
from onceload_jobs.executor.executor import Outcome, called
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Declared, Publish, RecordProducer, TransformEngine
from tests.loads.conftest import InThisProcess, Loads, line
from tests.object_store import SECRET, ObjectStore, object_store
from tests.waiting import PATIENCE_S, until

_ROWS = 300
_ALL = list(range(2 * _ROWS))


@pytest.fixture(params=[Publish.STAGED])
def publish(request: pytest.FixtureRequest) -> Publish:
    chosen: Publish = request.param
    return chosen


class Place(Protocol):
    """An address, and what happens there."""

    address: str

    def names(self) -> list[str]:
        """All files, below the address."""

    def get(self, name: str) -> bytes: ...

    def put(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None: ...

    def vanish(self) -> None:
        """All of it is gone."""

    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No file can be written any more."""


class Disk:
    def __init__(self, folder: Path) -> None:
        self.folder, self.address = folder, str(folder)
        folder.mkdir()

    def names(self) -> list[str]:
        return [str(path.relative_to(self.folder)) for path in self.folder.rglob("*") if path.is_file()]

    def get(self, name: str) -> bytes:
        return (self.folder / name).read_bytes()

    def put(self, name: str, content: bytes) -> None:
        (self.folder / name).parent.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(content)

    def remove(self, name: str) -> None:
        (self.folder / name).unlink()

    def vanish(self) -> None:
        shutil.rmtree(self.folder)

    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(DiskFolder, "create", lambda *_: FileIO("/dev/full", "wb"))


class Bucket:
    address = "s3://waiting/rows"

    def __init__(self, files: s3fs.S3FileSystem) -> None:
        self.files = files
        files.mkdir("waiting")

    def names(self) -> list[str]:
        return [path.removeprefix("waiting/rows/") for path in self.files.find("waiting/rows")]

    def get(self, name: str) -> bytes:
        return bytes(self.files.cat_file(f"waiting/rows/{name}"))

    def put(self, name: str, content: bytes) -> None:
        self.files.pipe_file(f"waiting/rows/{name}", content)

    def remove(self, name: str) -> None:
        self.files.rm_file(f"waiting/rows/{name}")

    def vanish(self) -> None:
        self.files.rm("waiting", recursive=True)

    def refuse(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The bucket that files are written to is another one, which is not there."""
        create = StoreFolder.create

        def elsewhere(folder: StoreFolder, file: str) -> Any:
            return create(replace(folder, path="s3://no-such-bucket/rows"), file)

        monkeypatch.setattr(StoreFolder, "create", elsewhere)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    with object_store(tmp_path_factory.mktemp("store") / "log") as store:
        yield store


@pytest.fixture
def bucket(server: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    s3fs.S3FileSystem.clear_instance_cache()
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    bucket = Bucket(server.files())
    yield bucket
    if bucket.files.exists("waiting"):
        bucket.vanish()
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(params=["disk", "store"])
def place(request: pytest.FixtureRequest, loads: Loads, tmp_path: Path) -> Place:
    """Two files in several pieces, and where their rows wait."""
    place: Place = Disk(tmp_path / "shared") if request.param == "disk" else request.getfixturevalue("bucket")
    loads.stage = place.address
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=2000))
    for number in range(2):
        loads.write(f"{number}.jsonl", "".join(map(line, _ALL[number * _ROWS : (number + 1) * _ROWS])))
    return place


def _changed(kind: str, declared: Declared) -> Declared:
    match kind:
        case "named":
            return replace(declared, producer=RecordProducer(name="note", sequence="id"))
        case "transformed":
            return replace(declared, transform="SELECT * FROM records", transform_engine=TransformEngine.POSTGRES)
        case _:
            return declared


EACH_KIND = pytest.mark.parametrize("kind", ["copied", "named", "transformed"])


class Written:
    """Does something once the first piece, or each piece, is written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, then: Callable[[str], object], *, times: int = 1) -> None:
        #: Below the address.
        self.files: list[str] = []
        written_once = stage_folder.written_once

        def write_and_then(folder: StageFolder, write: Any) -> Any:
            piece = written_once(folder, write)
            if folder.is_here() and piece.blocks and len(self.files) < times:
                self.files.append(f"{folder.path.rpartition('/')[2]}/{piece.file}")
                then(self.files[-1])
            return piece

        monkeypatch.setattr(stage_folder, "written_once", write_and_then)


@EACH_KIND
def test_rows_wait_at_the_address_and_no_file_is_left(loads, place, monkeypatch, kind):
    seen: list[str] = []
    written = Written(monkeypatch, lambda _: seen.extend(place.names()), times=1000)
    loads.declared = _changed(kind, loads.declared)

    report, again = loads.load(), loads.load()

    assert (report.loaded, again.loaded) == (2 * _ROWS, 0)
    assert loads.rows() == _ALL
    assert written.files
    assert set(written.files) <= set(seen)
    assert place.names() == []


def _removed(place: Place, name: str) -> None:
    place.remove(name)


def _cut(place: Place, name: str) -> None:
    place.put(name, place.get(name)[:-5])


def _longer(place: Place, name: str) -> None:
    place.put(name, b"x" + place.get(name))


def _changed_byte(place: Place, name: str) -> None:
    """Within a value: COPY alone would not notice."""
    content = place.get(name)
    at = content.index(b"x")
    place.put(name, content[:at] + b"y" + content[at + 1 :])


@EACH_KIND
@pytest.mark.parametrize("lose", [_removed, _cut, _longer, _changed_byte])
def test_a_piece_whose_rows_are_lost_or_changed_is_read_again(loads, place, monkeypatch, lose, kind):
    written = Written(monkeypatch, partial(lose, place))
    loads.declared = _changed(kind, loads.declared)

    assert loads.load().loaded == 2 * _ROWS
    assert written.files
    assert loads.rows("id, note") == [(number, "x") for number in _ALL]


@EACH_KIND
def test_a_place_that_loses_all_rows_ends_the_load_in_words_and_the_next_one_loads_them(
    loads, place, monkeypatch, kind
):
    loads.declared = _changed(kind, loads.declared)

    with monkeypatch.context() as patched:
        Written(patched, partial(_changed_byte, place), times=1000)
        with pytest.raises(RowsLost, match=r"Nothing of the batch was loaded.*set ONCELOAD_STAGE to another place"):
            loads.load()

    assert loads.rows_or_none() == []
    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == _ALL


@EACH_KIND
@pytest.mark.parametrize("after", [1, 3])
def test_a_place_that_vanishes_costs_no_load(loads, place, monkeypatch, kind, after):
    """Its rows are read again, and the rest is handed over in memory."""
    written: Written

    def vanish(_: str) -> None:
        if len(written.files) == after:
            place.vanish()

    written = Written(monkeypatch, vanish, times=after)
    loads.declared = _changed(kind, loads.declared)

    assert loads.load().loaded == 2 * _ROWS
    assert len(written.files) == after
    assert loads.rows() == _ALL


@EACH_KIND
def test_without_room_at_the_address_rows_are_handed_over(loads, place, monkeypatch, kind):
    place.refuse(monkeypatch)
    loads.declared = _changed(kind, loads.declared)

    assert loads.load().loaded == 2 * _ROWS
    assert loads.rows() == _ALL


def test_rows_that_find_no_room_anywhere_end_the_load_in_words(loads, place, monkeypatch):
    with monkeypatch.context() as patched:
        place.refuse(patched)
        patched.setattr(stage_folder, "_HELD_BYTES_MAX", 100)
        with pytest.raises(NoRoom, match=rf"{place.address}.*Nothing of the batch was loaded\. Correct this, or set"):
            loads.load()

    assert loads.rows_or_none() == []
    assert place.names() == []
    assert loads.load().loaded == 2 * _ROWS


class Twice(InThisProcess):
    """Each task runs twice, as Spark may run it, and the load gets the result of its first or its second run."""

    def __init__(self, counts: int) -> None:
        super().__init__()
        self._counts, self.calls = counts, 0

    def _called(self, function: Callable[[Any], Any], item: Any) -> Outcome:
        self.calls += 2
        return [called(function, item), called(function, item)][self._counts]


@pytest.mark.parametrize("counts", [0, 1])
@EACH_KIND
def test_a_task_that_runs_twice_writes_two_files_and_one_counts(loads, place, monkeypatch, counts, kind):
    written = Written(monkeypatch, lambda _: None, times=1000)
    settings, twice = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), stage=loads.stage), Twice(counts)

    report = load(_changed(kind, loads.declared), settings, batch=new_batch(), executor=twice)

    assert report.loaded == 2 * _ROWS
    assert loads.rows() == _ALL
    assert len(set(written.files)) == twice.calls
    assert place.names() == []


def test_a_piece_of_an_earlier_try_does_not_complete_a_later_one(loads, place):
    """Each try has a folder of its own, and a worker of an earlier one does not see it."""
    with open_folder(place.address) as first:
        pass
    with open_folder(place.address) as second:
        assert first.path != second.path
        assert (first.is_here(), second.is_here()) == (False, True)


def test_a_folder_of_the_same_name_on_another_machine_is_not_taken_for_it(place):
    with open_folder(place.address) as folder:
        (mark,) = place.names()
        place.put(mark, b"the token of another folder")

        assert not folder.is_here()


def test_a_killed_load_s_files_are_removed_and_those_of_a_live_one_stay(loads, place, monkeypatch):
    """A live load renews its folder, wherever it runs."""
    # Stores give times in whole seconds.
    monkeypatch.setattr(folders, "DEAD_AFTER_S", 3.0)
    abandoned = [f"{PREFIX}0123456789abcdef/{name}" for name in (MARK, "rows")]
    for name in [*abandoned, "other/rows"]:
        place.put(name, b"rows")
    with open_folder(place.address) as live:

        def is_swept() -> bool:
            live.renew()
            with open_folder(place.address):
                return not set(abandoned) & set(place.names())

        until(is_swept, "the files of the killed load are removed", every_s=0.3)
        assert live.is_here()
    assert place.names() == ["other/rows"]


def test_a_folder_is_swept_only_long_after_it_was_renewed(tmp_path):
    place = Disk(tmp_path / "shared")
    now = time.time()
    for name, age_s in (("young", DEAD_AFTER_S - 600), ("old", DEAD_AFTER_S + 600)):
        place.put(f"{PREFIX}{name}/{MARK}", b"")
        os.utime(place.folder / f"{PREFIX}{name}", (now - age_s, now - age_s))

    with open_folder(place.address):
        pass

    assert place.names() == [f"{PREFIX}young/{MARK}"]


def test_a_load_renews_its_folder(loads, place, monkeypatch):
    renewed: list[str] = []
    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.RENEWED_EVERY_S", 0.01)
    for of_kind in (DiskFolder, StoreFolder):
        renew = of_kind.renew

        def noted(folder: Any, renew: Callable[[Any], None] = renew) -> None:
            renew(folder)
            renewed.append(folder.path)

        monkeypatch.setattr(of_kind, "renew", noted)
    Written(monkeypatch, lambda _: until(lambda: renewed, "the folder is renewed"))

    assert loads.load().loaded == 2 * _ROWS
    assert renewed[0].startswith(place.address)


def test_large_pieces_go_to_a_store_in_parts_and_come_back_whole(loads, bucket, monkeypatch):
    loads.stage = bucket.address
    notes = {number: chr(97 + number % 26) * 2**20 for number in range(20)}
    loads.write("a.jsonl", "".join(line(number, note=note) for number, note in notes.items()))
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=64 * 2**20))
    in_parts: list[bool] = []
    Written(monkeypatch, lambda name: in_parts.append("-" in bucket.files.info(f"waiting/rows/{name}")["ETag"]))

    assert loads.load().loaded == len(notes)
    assert in_parts == [True]
    assert dict(loads.rows("id, note")) == notes


MISSING = {
    "disk": r"{}/gone: No such file or directory",
    "store": r"s3://gone/rows: The specified bucket does not exist",
}


@pytest.mark.parametrize("kind", MISSING)
def test_an_address_that_is_not_there_is_refused_before_anything_is_read(loads, bucket, tmp_path, kind):
    loads.write("a.jsonl", line(1))
    loads.stage = {"disk": str(tmp_path / "gone"), "store": "s3://gone/rows"}[kind]

    with pytest.raises(NoRoom, match=MISSING[kind].format(tmp_path)) as refused:
        loads.load()

    assert "`onceload doctor` checks it" in str(refused.value)
    assert SECRET not in str(refused.value)
    loads.stage = None
    assert loads.load().loaded == 1


def checked(stage: str) -> Check:
    (found,) = [each for each in examine(Settings(stage=stage), open_database=open_database) if each.name == "stage"]
    return found


def test_the_doctor_tries_the_address(place, tmp_path):
    assert checked(place.address).healthy
    assert place.names() == []

    place.vanish()

    assert not checked(place.address).healthy
    assert "not exist" in checked(place.address).found or "No such file" in checked(place.address).found


def command(loads: Loads, file: Path, place: Place) -> "subprocess.Popen[str]":
    environment = {**os.environ, "ONCELOAD_DSN": loads.dsn, "ONCELOAD_STAGE": place.address}
    arguments = [sys.executable, "-m", "onceload", "load", str(file), "--engine", "local", "--json"]
    return subprocess.Popen(arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_what_a_killed_load_left_is_removed_and_all_is_loaded_once(loads, place, tmp_path, monkeypatch):
    """A real process, killed while the rows of its batch wait at the address."""
    file = tmp_path / "events.yaml"
    loads.write("c.jsonl", "".join(map(line, range(2 * _ROWS, 60_000))))
    file.write_text(
        f"pipeline: events\nsource: {{path: '{loads.folder}/*.jsonl', format: jsonl, chunk_bytes: 65536}}\n"
        "columns: {id: bigint not null, amount: 'numeric(12,2)', note: text}\n"
        "target: {table: public.target}\npublish: staged\ndelivery: {ack_deadline: 5s}\n"
    )
    with command(loads, file, place) as killed:
        until(lambda: len(place.names()) > 1 or killed.poll() is not None, "rows wait there")
        assert killed.poll() is None, killed.communicate()
        os.kill(killed.pid, signal.SIGKILL)
    left = place.names()
    assert left
    assert loads.rows_or_none() == []
    monkeypatch.setattr(folders, "DEAD_AFTER_S", 1.0)

    def is_swept() -> bool:
        with open_folder(place.address):
            return not set(left) & set(place.names())

    until(is_swept, "the files of the killed load are removed", every_s=0.3)
    with command(loads, file, place) as loading:
        said, why = loading.communicate(timeout=PATIENCE_S)

    assert loading.returncode == 0, why
    assert json.loads(said)["loaded"] == 60_000
    assert loads.rows() == list(range(60_000))
    assert place.names() == []
