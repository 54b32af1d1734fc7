"""Names of one content share one producer, however names and copies change."""

import gzip
from dataclasses import replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onceload_core.errors import DeliveryTakenAway
from onceload_jobs.load import offering
from onceload_jobs.pipeline.declared import Format, OnRewrite, Publish
from tests.loads.conftest import Loads, line
from tests.loads.same_content import counts, lines, settled

pytestmark = pytest.mark.usually_staged


class _Folder:
    """Files whose lines are numbered through, so that each line stands for one record wherever it is."""

    def __init__(self, logs: Loads, rng: Random) -> None:
        self.logs, self.rng, self.numbers, self.offered = logs, rng, count(), set[int]()
        #: Files that are loaded as they are: only such may go on in a way of their own.
        self.settled: set[Path] = set()

    @property
    def files(self) -> list[Path]:
        return sorted(self.logs.folder.iterdir())

    def step(self) -> None:
        self.rng.choice([self.grow, self.grow, self.grow_alike, self.copy, self.move, self.pack, self.delete])()

    def lines(self) -> bytes:
        some = [next(self.numbers) for _ in range(self.rng.randint(1, 4))]
        self.offered.update(some)
        return "".join(map(line, some)).encode()

    def content(self, path: Path) -> bytes:
        return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()

    def put(self, path: Path, content: bytes) -> None:
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    def grow(self) -> None:
        path = self.rng.choice([*self.settled, self.logs.folder / f"new{next(self.numbers)}.log"])
        self.put(path, (self.content(path) if path.exists() else b"") + self.lines())
        self.settled.discard(path)

    def grow_alike(self) -> None:
        """All that hold the same, or are behind."""
        if self.files:
            longest = max(self.files, key=lambda each: len(self.content(each)))
            whole = self.content(longest)
            alike = [each for each in self.files if whole.startswith(self.content(each))]
            grown = whole + self.lines()
            for each in self.rng.sample(alike, self.rng.randint(1, len(alike))):
                lines_of = grown.splitlines(keepends=True)
                at_least = self.content(each).count(b"\n")
                self.put(each, b"".join(lines_of[: self.rng.randint(at_least, len(lines_of))]))
                self.settled.discard(each)
            self.put(longest, grown)
            self.settled.discard(longest)

    def copy(self) -> None:
        if self.files:
            path = self.rng.choice(self.files)
            self.put(self.logs.folder / f"copy{next(self.numbers)}.log", self.content(path))

    def pack(self) -> None:
        if self.files:
            path = self.rng.choice(self.files)
            self.put(self.logs.folder / f"packed{next(self.numbers)}.log.gz", self.content(path))

    def move(self) -> None:
        if self.files:
            path = self.rng.choice(self.files)
            path.rename(path.with_name(f"moved{next(self.numbers)}{''.join(path.suffixes[-2:])}"))
            self.settled.discard(path)

    def delete(self) -> None:
        if self.settled:
            path = self.rng.choice(sorted(self.settled))
            path.unlink()
            self.settled.discard(path)

    def settle(self) -> None:
        for _ in range(8):
            report = self.logs.load()
            if counts(report) == (0, 0):
                break
        busy = {note.name for note in report.notes}
        self.settled = {path for path in self.files if path.name not in busy}


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("seed", range(3))
def test_however_names_and_copies_change_each_record_is_loaded_once(logs, seed):
    rng = Random(seed)
    folder = _Folder(logs, rng)
    for _ in range(12):
        for _ in range(rng.randint(1, 3)):
            folder.step()
        logs.load()
        rows = logs.rows_or_none()
        assert len(rows) == len(set(rows)), "a record was loaded twice"
        if rng.random() < 0.7:
            folder.settle()
            assert logs.rows_or_none() == sorted(folder.offered)


@pytest.mark.parametrize("rewrite", [OnRewrite.STOP, OnRewrite.NEW_GENERATION])
def test_a_planner_that_was_away_does_not_swap_names_back(logs, monkeypatch, rewrite):
    """Its claim fell back to another load, which has noted the same."""
    x = logs.write("x.log", lines(0, 10))
    logs.load(on_rewrite=rewrite)
    logs.write("y.log", lines(0, 20))
    note, calls = offering.Offering._store_copy_records, count()

    def is_away(self: Any, *arguments: Any) -> None:
        if not next(calls):
            logs.ask("UPDATE onceload.delivery SET deadline_at = clock_timestamp() WHERE state = 'held' RETURNING 1")
            logs.load(on_rewrite=rewrite)
        note(self, *arguments)

    monkeypatch.setattr(offering.Offering, "_store_copy_records", is_away)
    with pytest.raises(DeliveryTakenAway):
        logs.load(on_rewrite=rewrite)
    x.write_text(lines(0, 10) + lines(100, 102))

    settled(logs, on_rewrite=rewrite)

    assert logs.rows() == [*range(20), 100, 101]


def test_a_file_that_holds_no_record_is_the_beginning_of_no_other(logs):
    """Every file of a source may begin with the same header."""
    csv = replace(logs.declared.source, format=Format.CSV)
    logs.write("day1.log", "id,amount,note\n")
    logs.load(source=csv)
    for number in (2, 3):
        logs.write(f"day{number}.log", f"id,amount,note\n{number},1.00,x\n")
    logs.load(source=csv)
    (logs.folder / "day1.log").unlink()
    (logs.folder / "day2.log").unlink()

    logs.load(source=csv)

    assert logs.rows() == [2, 3]


def test_a_file_that_waits_for_one_that_is_gone_is_noted_as_not_read(logs):
    """It shares its first record with what was loaded, and nothing is there to tell more."""
    logs.write("day1.log", lines(0, 1))
    logs.load()
    logs.write("day2.log", lines(0, 4))
    logs.write("day3.log", lines(0, 1) + lines(9, 10))
    logs.load()
    (logs.folder / "day1.log").unlink()
    (logs.folder / "day2.log").unlink()

    logs.load()
    report = logs.load()

    assert [(note.name, note.needs_a_person or note.is_unreadable) for note in report.notes] == [("day3.log", True)]
