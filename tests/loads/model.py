"""What may happen to files and loads, and what a load promises then: small enough to be seen to be right.

A file is its name. What took effect of it stays its beginning, or else the file is conflicted: with on_rewrite=stop
it is left alone until it is put back, with new_generation it lives anew. Nothing else about a file matters.
"""

import gzip
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from pathlib import Path
from typing import TypeVar

from hypothesis import strategies as st

from dedup_core.spans import SpanSet
from spark_jobs.declared import OnRewrite, Publish
from tests.loads.counter import Life, Record, lines_in, record_of, stream_of


@dataclass(frozen=True, kw_only=True)
class Offered:
    """A file as a load finds it."""

    raw: bytes
    stream: bytes
    #: Its last line is complete without a newline.
    sealed: bool

    @classmethod
    def at(cls, path: Path, *, sealed: bool) -> "Offered":
        stream, is_whole = stream_of(path)
        return cls(raw=path.read_bytes(), stream=stream, sealed=sealed and is_whole)

    @property
    def end(self) -> int:
        """Where its last complete line ends."""
        return len(self.stream) if self.sealed else self.stream.rfind(b"\n") + 1


@dataclass(frozen=True, kw_only=True)
class Taken:
    """What took effect of one generation, and the file as it then was."""

    offered: Offered
    consumed: SpanSet

    def may_go_on_as(self, now: Offered, *, is_packed: bool) -> bool:
        end = self.consumed.end
        if now.stream[:end] != self.offered.stream[:end]:
            return False
        # A last line that counted without its newline has to stay the last, and what was packed and sealed is whole.
        was_sealed = self.offered.sealed and end == len(self.offered.stream)
        is_last = was_sealed and (is_packed or not self.offered.stream.endswith(b"\n"))
        return not is_last or len(now.raw) <= len(self.offered.raw)

    def records(self, life: Life) -> Counter[Record]:
        lines = lines_in(self.offered.stream, sealed=self.offered.sealed)
        return Counter(record_of(life, offset, line) for offset, line in lines if offset in self.consumed)


@dataclass(kw_only=True)
class Model:
    on_rewrite: OnRewrite
    taken: dict[Life, Taken] = field(default_factory=dict)

    def records(self) -> Counter[Record]:
        """All that has to be in the target and in quarantine."""
        return sum((taken.records(life) for life, taken in self.taken.items()), Counter[Record]())

    def latest(self, name: str) -> Life | None:
        return max((life for life in self.taken if life.file == name), default=None)

    def meant(self, name: str, offered: Offered) -> Life | None:
        """Which generation a load goes on with; none if the file is conflicted."""
        life = self.latest(name)
        if life is None:
            return Life(name, 1)
        if self.taken[life].may_go_on_as(offered, is_packed=name.endswith(".gz")):
            return life
        return Life(name, life.generation + 1) if self.on_rewrite is OnRewrite.NEW_GENERATION else None

    def conflicted(self, files: dict[str, Offered]) -> set[str]:
        return {name for name, offered in files.items() if self.meant(name, offered) is None}

    def after_load(self, files: dict[str, Offered], consumed: dict[Life, SpanSet], *, is_whole: bool) -> list[str]:
        """Take over what a load says that it consumed, unless it was not its to consume, or too little."""
        meant = {life: offered for name, offered in files.items() if (life := self.meant(name, offered))}
        faults = []
        for life in meant.keys() | self.taken.keys() | consumed.keys():
            before = self.taken[life].consumed if life in self.taken else SpanSet()
            all_of_it = SpanSet.of((0, meant[life].end)) if life in meant and meant[life].end else SpanSet()
            now = consumed.get(life, SpanSet())
            if not now.covers(before) or not (before | all_of_it).covers(now):
                faults.append(f"{life}: consumed {now}, but had {before} and was offered {all_of_it}")
            if is_whole and now != before | all_of_it:
                faults.append(f"{life}: consumed only {now} of {before | all_of_it}")
            if now and life in meant:
                self.taken[life] = Taken(offered=meant[life], consumed=now)
        return faults


# What may happen.

_NAMES = ("a.jsonl", "below/b.jsonl", "a.jsonl.gz", "c.jsonl.gz")


class Fault(StrEnum):
    KILLED = "the loader dies"
    TASK_KILLED = "a task dies, and is tried again"
    CUT = "the server ends its connection"
    UNANSWERED = "its COMMIT takes effect without an answer"


class Piece(StrEnum):
    GOOD = "good"
    BAD = "bad"
    BLANK = "blank"
    HALF = "half"
    #: The rest of a half line, if it comes right behind one.
    REST = "rest"


_PIECES = st.lists(st.sampled_from([*Piece, Piece.GOOD, Piece.GOOD]), min_size=1, max_size=6)


@dataclass(frozen=True)
class Append:
    """Lines at the end of a file, which is made if it is not there; a compressed one gets another member."""

    file: str
    pieces: tuple[Piece, ...]
    is_crlf: bool = False


@dataclass(frozen=True)
class Truncate:
    """The end of a file goes; a compressed one breaks off."""

    file: str
    percent: int


@dataclass(frozen=True)
class Rewrite:
    """One digit of a file becomes another."""

    file: str
    percent: int


@dataclass(frozen=True)
class Move:
    """A file goes to another name, over whatever is there; or a copy of it does."""

    file: str
    to: str
    is_copy: bool


@dataclass(frozen=True)
class Gzip:
    file: str


@dataclass(frozen=True)
class Age:
    file: str


@dataclass(frozen=True)
class Delete:
    file: str


@dataclass(frozen=True)
class PutBack:
    """A file becomes what it was when it was loaded last."""

    file: str


FileChange = Append | Truncate | Rewrite | Move | Gzip | Age | Delete | PutBack


@dataclass(frozen=True)
class Load:
    publish: Publish
    chunk_bytes: int
    fault: Fault | None = None
    at: int = 0
    #: In which order tasks run, and which of them twice.
    seed: int = 0
    batch: str | None = None
    #: Comes between plan and tasks.
    meanwhile: "FileChange | None" = None

    @property
    def is_quiet(self) -> bool:
        return self.fault is None and self.meanwhile is None


@dataclass(frozen=True)
class LoadTogether:
    one: Load
    other: Load


@dataclass(frozen=True)
class TakeSnapshot:
    pass


@dataclass(frozen=True)
class Recover:
    damage: str


Operation = FileChange | Load | LoadTogether | TakeSnapshot | Recover

Drawn = TypeVar("Drawn")


def _weighed(*weighed: tuple[int, st.SearchStrategy[Drawn]]) -> st.SearchStrategy[Drawn]:
    """One of several, as often as its weight says; Hypothesis itself knows no weights."""
    choices = [strategy for weight, strategy in weighed for _ in range(weight)]
    return st.sampled_from(choices).flatmap(lambda strategy: strategy)


_FILES = st.sampled_from(_NAMES)
_PERCENT = st.integers(0, 100)
_TRUNCATES = st.builds(Truncate, _FILES, _PERCENT)
_REWRITES = st.builds(Rewrite, _FILES, _PERCENT)
_APPENDS = st.builds(Append, _FILES, _PIECES.map(tuple), is_crlf=st.booleans())
_LOADS = st.builds(
    Load,
    publish=st.sampled_from(Publish),
    chunk_bytes=st.sampled_from([2**20, 1000, 100, 40, 7, 1]),
    fault=st.sampled_from([None, *Fault]),
    at=st.integers(0, 60),
    seed=st.integers(0, 3),
    batch=st.none() | st.just("again"),
    meanwhile=_weighed((7, st.none()), (1, _APPENDS), (1, _REWRITES), (1, _TRUNCATES)),
)
_RECOVERIES = st.sampled_from(
    [
        "SELECT 1",
        "UPDATE onceload.producer SET consumed = '{}' WHERE pipeline_id = :pipeline_id",
        "UPDATE onceload.producer SET consumed = consumed + '{[1000,2000)}', fingerprint = NULL"
        " WHERE pipeline_id = :pipeline_id",
        "DELETE FROM onceload.producer WHERE pipeline_id = :pipeline_id",
        "UPDATE onceload.pipeline SET position = position + 1 WHERE pipeline_id = :pipeline_id",
    ]
)
_OPERATIONS: st.SearchStrategy[Operation] = _weighed(
    (4, _APPENDS),
    (1, _TRUNCATES),
    (2, _REWRITES),
    (1, st.builds(Move, _FILES, _FILES, st.booleans())),
    (1, st.builds(Gzip, _FILES)),
    (1, st.builds(Age, _FILES)),
    (1, st.builds(Delete, _FILES)),
    (2, st.builds(PutBack, _FILES)),
    (9, _LOADS),
    (3, st.builds(LoadTogether, _LOADS, _LOADS)),
    (1, st.builds(TakeSnapshot)),
    (1, st.builds(Recover, _RECOVERIES)),
)
#: Without a file, nothing is a test of much.
SEQUENCES = st.tuples(st.lists(_APPENDS, min_size=1, max_size=4), st.lists(_OPERATIONS, min_size=3, max_size=14)).map(
    lambda parts: [*parts[0], *parts[1]]
)


# Carrying out what happens to files.


@dataclass(kw_only=True)
class Landing:
    """The folder that files come to, and the changes in it."""

    folder: Path
    #: Files are complete when they appear.
    sealed: bool
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    #: What half lines lack.
    _rests: dict[Path, str] = field(default_factory=dict)

    def offered(self) -> dict[str, Offered]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): Offered.at(path, sealed=self.sealed) for path in paths}

    def put(self, name: str, raw: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(raw)

    def change(self, change: FileChange) -> None:
        """Nothing happens to a file that is not there, unless it comes with the change."""
        path = self.folder / change.file
        if isinstance(change, Append):
            self._append(change, path)
        elif path.exists():
            self._change_there(change, path)

    def _change_there(self, change: FileChange, path: Path) -> None:
        match change:
            case Truncate():
                path.write_bytes(path.read_bytes()[: path.stat().st_size * change.percent // 100])
            case Rewrite():
                _rewrite(path, change.percent)
            case Move():
                self._move(change, path)
            case Gzip() if path.suffix != ".gz":
                self.put(f"{change.file}.gz", gzip.compress(path.read_bytes(), mtime=0))
                path.unlink()
            case Age():
                os.utime(path, (0, 0))
            case Delete():
                path.unlink()
            case _:
                pass

    def _append(self, change: Append, path: Path) -> None:
        written = "".join(self._piece(path, piece, end="\r\n" if change.is_crlf else "\n") for piece in change.pieces)
        before = path.read_bytes() if path.exists() and stream_of(path)[1] else b""
        if path.suffix == ".gz":
            # Behind an upload that broke off nobody appends: it comes anew.
            self.put(change.file, before + (gzip.compress(written.encode(), mtime=0) if written else b""))
        else:
            self.put(change.file, before + written.encode())

    def _piece(self, path: Path, piece: Piece, *, end: str) -> str:
        number = next(self._numbers)
        line = f'{{"id": {number}, "amount": "{number % 97}.{number % 90 + 10}", "note": "n\\u00fc 🐍 {number}"}}'
        match piece:
            case Piece.GOOD:
                return line + end
            case Piece.BAD:
                too_large = line.replace('"amount": "', '"amount": "90000000000')
                bad = ("{nothing", '{"amount": 1}', too_large, "[1]", line + line, '{"id": "x"}')
                return bad[number % len(bad)] + end
            case Piece.BLANK:
                return (" \t" if number % 2 else "") + end
            case Piece.HALF:
                self._rests[path] = line[20:] + end
                return line[:20]
            case Piece.REST:
                return self._rests.pop(path, line + end)

    def _move(self, change: Move, path: Path) -> None:
        to = self.folder / change.to
        # A name says how a file is packed.
        if to.suffix == path.suffix and to != path:
            self.put(change.to, path.read_bytes())
            if not change.is_copy:
                path.unlink()


def _rewrite(path: Path, percent: int) -> None:
    stream, is_whole = stream_of(path)
    digits = [at for at, octet in enumerate(stream) if chr(octet).isdigit() and chr(octet) != "0"]
    if digits and is_whole:
        at = digits[(len(digits) - 1) * percent // 100]
        changed = stream[:at] + (b"2" if stream[at : at + 1] == b"1" else b"1") + stream[at + 1 :]
        path.write_bytes(gzip.compress(changed, mtime=0) if path.suffix == ".gz" else changed)
