"""The folder that files come to, and what happens to them there."""

import gzip
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import zstandard

from onceload_jobs.pipeline.declared import Write
from tests.loads.counter import Form, stream_of
from tests.loads.model import Kind, Offered
from tests.loads.operations import Age, Append, Delete, FileChange, Move, Pack, Piece, Rewrite, Truncate

_PACKED = (".gz", ".zst")


@dataclass(kw_only=True)
class Landing:
    """The folder that files come to, and the changes in it."""

    folder: Path
    kind: Kind
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    #: What half lines lack.
    _rests: dict[Path, str] = field(default_factory=dict)

    def offered(self) -> dict[str, Offered]:
        paths = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): Offered.at(path, self.kind) for path in paths}

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
            case Pack() if path.suffix not in _PACKED:
                packed = path.with_name(path.name + change.suffix)
                packed.write_bytes(_packed(packed, path.read_bytes()))
                path.unlink()
            case Age():
                os.utime(path, (0, 0))
            case Delete():
                path.unlink()
            case _:
                pass

    def _append(self, change: Append, path: Path) -> None:
        end = "\r\n" if change.is_crlf else "\n"
        # An upload that broke off is not appended to: it is sent again.
        before = path.read_bytes() if path.exists() and stream_of(path)[1] else b""
        header = "id,amount,note" + end if self.kind.contract.has_header and not before else ""
        written = header + "".join(self._piece(path, piece, end=end) for piece in change.pieces)
        self.put(change.file, before + (_packed(path, written.encode()) if written else b""))

    def _piece(self, path: Path, piece: Piece, *, end: str) -> str:
        number = next(self._numbers)
        line = self._good(number)
        match piece:
            case Piece.GOOD:
                return line + end
            case Piece.BAD:
                bad = self._bad(line)
                return bad[number % len(bad)] + end
            case Piece.BLANK:
                return (" \t" if number % 2 else "") + end
            case Piece.HALF:
                self._rests[path] = line[20:] + end
                return line[:20]
            case Piece.REST:
                return self._rests.pop(path, line + end)

    def _good(self, number: int) -> str:
        """A record of its own; where content identifies records, some are repeated."""
        amount = f"{number % 97}.{number % 90 + 10}"
        if self.kind.order is not None:
            return self._line(number % 8 + number // 16, amount, f"d{number % 2}")
        identifier = number % 5 + 1 if self.kind.write is Write.MERGE else number
        return self._line(identifier, amount, f"n\u00fc 🐍 {number}")

    def _line(self, number: int, amount: str, note: str) -> str:
        match self.kind.form:
            case Form.JSONL:
                return json.dumps({"id": number, "amount": amount, "note": note}).replace("\\ud83d\\udc0d", "🐍")
            case Form.CSV if self.kind.order is None:
                return f'{number},{amount},"{note}\n""{number}"'
            case _:
                return f"{number},{amount},{note if number % 3 else f'{chr(34)}{note}{chr(34)}'}"

    def _bad(self, line: str) -> tuple[str, ...]:
        if self.kind.form is Form.JSONL:
            too_large = line.replace('"amount": "', '"amount": "90000000000')
            return "{nothing", '{"amount": 1}', too_large, "[1]", line + line, '{"id": "x"}'
        too_large = line.replace(",", ",90000000000", 1)
        return (
            "nothing",
            ",1.00,d0",
            too_large,
            line + "," + line,
            "x,1.00,d1",
            '1,1.00,d"1"',
            '1,1.00,"d1"d',
            "1,1.005,d1",
        )

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
        # Each digit becomes the next, so that no file soon becomes what it was.
        changed = stream[:at] + b"%d" % (int(stream[at : at + 1]) % 9 + 1) + stream[at + 1 :]
        path.write_bytes(_packed(path, changed))


def _packed(path: Path, stream: bytes) -> bytes:
    """A name says how a file is packed."""
    match path.suffix:
        case ".gz":
            return gzip.compress(stream, mtime=0)
        case ".zst":
            return zstandard.compress(stream)
        case _:
            return stream
