"""The folder that files come to, and which records they have ever shown."""

import os
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from onceload_core.verdicts import Order
from onceload_jobs.pipeline.declared import Identity, OnRewrite, Write
from tests.loads.storm.operations import (
    Append,
    Complete,
    Copy,
    Damage,
    FileChange,
    GrowAlike,
    Move,
    Pack,
    Remove,
    Rewrite,
    Rotate,
    Words,
)
from tests.loads.storm.records import LAYOUTS, Form, Record, packed, stream_of

#: More than times in seconds, as floats, can tell apart.
_STEP_NS = 1_000


class Shown(NamedTuple):
    """A name, and the how many-th content it had."""

    path: str
    content: int


@dataclass
class File:
    whole: bytes
    records: tuple[Record, ...]
    #: All of it is on the disk.
    is_whole: bool = True


@dataclass
class Numbers:
    """The next number of each kind of name; names are repeated only on purpose."""

    uid: int = 0
    seq: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    #: Left out by a producer, so that they may come late.
    left_out: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


@dataclass
class Folder:
    root: Path
    files: dict[str, File] = field(default_factory=dict)
    written: dict[int, Record] = field(default_factory=dict)
    #: Under which names, and how often again, a record was shown.
    shown: dict[int, set[Shown]] = field(default_factory=lambda: defaultdict(set))
    _contents: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    _numbers: Numbers = field(default_factory=Numbers)
    #: Keys of a merge belong to a line of files, so that one record of each is the last.
    _lines: dict[str, int] = field(default_factory=dict)
    #: When a file was changed last, in nanoseconds: each change is later than all before it.
    _changed_ns: int = 0

    def matching(self, pattern: str) -> dict[str, File]:
        return {path: file for path, file in self.files.items() if fnmatchcase(path, pattern)}

    def change(self, change: FileChange, words: Words) -> None:
        """Nothing happens to a file that is not there."""
        if words.producer is not None and words.order is Order.ORDERED:
            in_turn = self._in_turn(change)
            if in_turn is None:
                return
            change = in_turn
        match change:
            case Append():
                self._append(change, words)
            case GrowAlike():
                self._grow_alike(change, words)
            case _ if change.file in self.files:
                self._change_there(change, words)
            case _:
                pass

    def _in_turn(self, change: FileChange) -> FileChange | None:
        """Where order counts, files sort by name in the order of their records: the rest is against the rules."""
        last = max(self._contents, default="")
        match change:
            case Append() if change.file < last:
                # Half of a plain file that ends behind a record looks whole.
                percent = change.percent if last.endswith((".gz", ".zst")) else 100
                return replace(change, file=last, percent=percent)
            case Rewrite() if change.file < last:
                return None
            case Copy() | Move() | Rotate() | GrowAlike():
                return None
            case _:
                return change

    def archive(self) -> None:
        """All files that are there go elsewhere."""
        for path in list(self.files):
            self._remove(path)

    def make_whole(self) -> None:
        for path, file in self.files.items():
            self._put(path, file)

    def _change_there(self, change: FileChange, words: Words) -> None:
        assert not isinstance(change, Append | GrowAlike)
        file = self.files[change.file]
        match change:
            case Complete():
                self._put(change.file, file)
            case Damage() if change.file.endswith((".gz", ".zst")):
                # What can be unpacked of it is another content, and the sound one is so again.
                for record in file.records:
                    self.shown[record.uid].add(Shown(change.file, -1 - self._contents[change.file]))
                at = len(file.whole) // 2
                self._put(change.file, file, file.whole[:at] + b"damaged" + file.whole[at + 7 :])
            case Rewrite():
                self._rewrite(change, words)
            case Remove():
                self._remove(change.file)
            case Copy() | Move() if change.to not in self.files:
                self._take_over(change.file, change.to, is_copy=isinstance(change, Copy))
            case Pack() if not change.file.endswith((".gz", ".zst", ".parquet")):
                self._pack(change)
            case Rotate() if change.to not in self.files and file.is_whole:
                self._take_over(change.file, change.to, is_copy=False)
                self._write(change.file, self._new(change.file, change.records, words), words)
            case _:
                pass

    # Records.

    def _new(self, path: str, count: int, words: Words, *, bad: int = 0, again: int = 0, late: int = 0) -> list[Record]:
        records = []
        for number in range(count):
            self._numbers.uid += 1
            record = self._record(path, words, is_again=number < again, is_late=number < late)
            if number >= count - bad:
                record = Record(**{**record.__dict__, "is_bad": True})
            self.written[record.uid] = record
            records.append(record)
        return records

    def _record(self, path: str, words: Words, *, is_again: bool, is_late: bool) -> Record:
        uid = self._numbers.uid
        dev = "dD"[uid % 2]
        seq = self._sequence_of(dev, is_late=is_late)
        line = self._lines.setdefault(path, len(self._lines))
        k = uid % 3 if words.producer else 10 * line + uid % 3
        record = Record(uid=uid, k=k, dev=dev, seq=seq, oid=uid, is_folded=words.multiline and uid % 4 == 0)
        earlier = self.written.get(uid - 4)
        if is_again and earlier is not None and words.write is not Write.MERGE:
            record = Record(**{**record.__dict__, "dev": earlier.dev, "seq": earlier.seq, "oid": earlier.oid})
        return record

    def _sequence_of(self, dev: str, *, is_late: bool) -> int:
        if is_late and self._numbers.left_out[dev]:
            return self._numbers.left_out[dev].pop(0)
        if self._numbers.seq[dev] % 3 == 1:
            self._numbers.left_out[dev].append(self._numbers.seq[dev])
            self._numbers.seq[dev] += 1
        self._numbers.seq[dev] += 1
        return self._numbers.seq[dev] - 1

    # Files.

    def _append(self, change: Append, words: Words) -> None:
        file = self.files.get(change.file)
        if file and Form.of(change.file).is_whole:
            return
        new = self._new(change.file, change.records, words, bad=change.bad, again=change.again, late=change.late)
        self._write(change.file, new, words, percent=change.percent)

    def _grow_alike(self, change: GrowAlike, words: Words) -> None:
        paths = [path for path in change.files if path in self.files]
        if paths and not Form.of(paths[0]).is_whole:
            new = self._new(paths[0], change.records, words)
            whole = self.files[paths[0]].whole
            for path in paths:
                # Where content identifies files, only what goes on alike from the same content is the same.
                if words.identity is Identity.PATH or self.files[path].whole == whole:
                    self._write(path, new, words)

    def _write(self, path: str, new: Sequence[Record], words: Words, *, percent: int = 100) -> None:
        before = self.files.get(path, File(b"", ()))
        # The writer of files does not read the pipeline file.
        form = Form.of(path)
        if path not in self.files:
            self._contents[path] += 1
        written = packed(path, stream_of(form, new, LAYOUTS[words.layout], is_first=not before.records)) if new else b""
        file = File(before.whole + written, (*before.records, *new))
        self._show(path, new)
        visible = (
            file.whole if percent == 100 or words.sealed else before.whole + written[: len(written) * percent // 100]
        )
        self._put(path, file, visible)

    def _rewrite(self, change: Rewrite, words: Words) -> None:
        kept = self.files[change.file].records[-change.kept :] if change.kept else ()
        if words.identity is Identity.CONTENT or words.write is Write.MERGE or words.producer or words.message_id:
            # There a record that stays is identified by its content, or comes in another content.
            kept = ()
        count = len(self.files[change.file].records) if change.records < 0 else change.records
        self._remove(change.file)
        self._write(change.file, [*self._new(change.file, count, words), *kept], words)

    def _take_over(self, path: str, to: str, *, is_copy: bool) -> None:
        file = self.files[path]
        if Path(path).suffix != Path(to).suffix:
            return
        self._contents[to] += 1
        self._lines.setdefault(to, self._lines.setdefault(path, len(self._lines)))
        self._show(to, file.records)
        self._put(to, File(file.whole, file.records), (self.root / path).read_bytes())
        if not is_copy:
            self._keep_time(path, to)
            self._remove(path)

    def _pack(self, change: Pack) -> None:
        file, to = self.files[change.file], change.file + change.suffix
        if to not in self.files and file.is_whole:
            self._contents[to] += 1
            self._lines.setdefault(to, self._lines.setdefault(change.file, len(self._lines)))
            self._show(to, file.records)
            self._put(to, File(packed(to, file.whole), file.records))
            self._keep_time(change.file, to)
            self._remove(change.file)

    def _remove(self, path: str) -> None:
        del self.files[path]
        (self.root / path).unlink()

    def _show(self, path: str, records: Sequence[Record]) -> None:
        for record in records:
            self.shown[record.uid].add(Shown(path, self._contents[path]))

    def _put(self, path: str, file: File, visible: bytes | None = None) -> None:
        on_disk = self.root / path
        on_disk.parent.mkdir(parents=True, exist_ok=True)
        visible = file.whole if visible is None else visible
        # A reader sees the old content or the new one, as with any upload.
        beside = on_disk.with_name(f".{on_disk.name}.new")
        if on_disk.exists() and on_disk.read_bytes() == visible[: on_disk.stat().st_size]:
            with on_disk.open("ab") as growing:
                growing.write(visible[on_disk.stat().st_size :])
        else:
            beside.write_bytes(visible)
            beside.rename(on_disk)
        self._changed_ns = max(time.time_ns(), self._changed_ns + _STEP_NS)
        os.utime(on_disk, ns=(self._changed_ns, self._changed_ns))
        self.files[path] = File(file.whole, file.records, is_whole=visible == file.whole)

    def _keep_time(self, path: str, to: str) -> None:
        """A file that is renamed or packed was not modified."""
        changed_ns = (self.root / path).stat().st_mtime_ns
        os.utime(self.root / to, ns=(changed_ns, changed_ns))


def allowed(folder: Folder, uid: int, *, identities: set[Identity], rewrites: set[OnRewrite]) -> int:
    """How often a record may be loaded at most, by all that was ever declared."""
    shown = folder.shown[uid]
    if identities == {Identity.CONTENT}:
        # What can be unpacked of a damaged file is another content.
        return 1 + sum(each.content < 0 for each in shown if OnRewrite.NEW_GENERATION in rewrites)
    return len(shown) if OnRewrite.NEW_GENERATION in rewrites else len({each.path for each in shown})
