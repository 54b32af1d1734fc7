"""The records of a JSON file: the elements of its array, or the one object that it is.

A file is read to its end before any of it is loaded, because nothing else distinguishes the beginning of an upload
from a whole file. Each record is identified by its number. Records are read in groups whose places depend on
nothing but the bytes of the file, so that receipts of any version can be compared with it.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.fingerprints import Fingerprint
from onceload_jobs.files.reading import open_stream
from onceload_jobs.formats.chunks import FileRefused, RowGroup
from onceload_jobs.formats.json.tokens import Structure, Tokens, not_blank
from onceload_jobs.formats.lines import BOM
from onceload_jobs.formats.records import Indices
from onceload_jobs.formats.signatures import check_signature

#: A group ends with the first record that ends behind so many bytes; a record of this size is one of its own.
GROUP_BYTES = 2**18
_STEP_BYTES = 2**20
EXPECTED = "one JSON array of objects, or one JSON object"


@lru_cache(maxsize=16)
def read_documents(
    url: str,
    fingerprint: Fingerprint,
    version: Hashable,  # noqa: ARG001 - it says of which content they are.
) -> tuple[RowGroup, ...]:
    """The groups of records of a file in this version; refuse a file that is not complete."""
    scan = _Scan(url=url, size=fingerprint.stream.end)
    with open_stream(url) as stream:
        with errors_naming(url):
            block = stream.read(_STEP_BYTES)
        check_signature(url, block)
        # A byte order mark belongs to no record.
        scan.skip(len(BOM) if block.startswith(BOM) else 0)
        block = block[scan.at :]
        while block:
            scan.feed(block)
            with errors_naming(url):
                block = stream.read(_STEP_BYTES)
    scan.end()
    return tuple(scan.groups)


@dataclass(kw_only=True)
class _Scan:
    """Reads a file once, and holds one block of it."""

    url: str
    size: int
    groups: list[RowGroup] = field(default_factory=list)
    #: How many bytes were read.
    at: int = 0
    _tokens: Tokens = field(default_factory=Tokens)
    _is_array: bool = False
    #: The place of the first byte that is not blank, and of the one that closes what it opens; -1 before that.
    _opened: int = -1
    _closed: int = -1
    #: Whether anything follows the opening bracket.
    _is_filled: bool = False
    #: The start of the first record without a group, of the last record, and how many records have ended before it.
    _first_byte: int = 0
    _record: int = 0
    _ended: int = 0

    def skip(self, size: int) -> None:
        self.at += size

    def feed(self, block: bytes) -> None:
        structure = self._tokens.feed(block)
        # Between the first record and the end, blanks make no difference.
        if not self._is_filled or self._closed >= 0 or not structure.depths.all():
            self._look_at_edges(block, structure, not_blank(block))
        if self._is_array:
            self._end_records(structure.commas(depth=1) + self.at)
        self.at += len(block)

    def end(self) -> None:
        if self._closed < 0:
            raise self._incomplete()
        if not self._is_array:
            self._group(self._opened, self._closed + 1, rows=1)
        elif self._is_filled:
            self._end_record(self._closed)
            if self._first_byte < self._record:
                self._group(self._first_byte, self._closed, rows=self._ended - self._rows)

    def _open(self, block: bytes, first: int) -> None:
        opening = block[first : first + 1]
        if opening not in (b"[", b"{"):
            found = f"it begins with {block[first : first + 20].decode(errors='backslashreplace')!r}"
            raise FileRefused(
                self.url, EXPECTED, found, "Set source.format to the format of the file, or replace the file"
            )
        self._opened, self._is_array = self.at + first, opening == b"["
        self._first_byte = self._record = self._opened + 1

    def _look_at_edges(self, block: bytes, structure: Structure, filled: Indices) -> None:
        """Find the beginning of the first record, and the end of the last one, behind which only blanks may follow."""
        if self._opened < 0 and len(filled):
            self._open(block, int(filled[0]))
        if self._closed < 0 <= self._opened:
            closed = structure.positions[structure.depths == 0][:1].tolist()
            self._closed = self.at + closed[0] if closed else -1
        places = filled + self.at
        self._is_filled = self._is_filled or bool(((places > self._opened) & (places != self._closed)).any())
        behind = places[places > self._closed] if self._closed >= 0 else places[:0]
        if len(behind):
            what = "array" if self._is_array else "object"
            found = f"its {what} ends at byte {self._closed}, and more follows at byte {behind[0]}"
            raise FileRefused(
                self.url, EXPECTED, found, "Declare format: jsonl if each line is a record, or fix the file"
            )

    @property
    def _rows(self) -> int:
        return self.groups[-1].end if self.groups else 0

    def _end_records(self, ends: Indices) -> None:
        """Look only at the records that end a group: there may be very many others."""
        sizes = ends - np.concatenate([[self._record], ends[:-1] + 1])[: len(ends)]
        large, done = np.flatnonzero(sizes >= GROUP_BYTES), 0
        while done < len(ends):
            at = int(np.searchsorted(ends, self._first_byte + GROUP_BYTES))
            at = min([at, *large[large >= done][:1].tolist()])
            if at > done:
                self._ended += at - done
                self._record = int(ends[at - 1]) + 1
            if at < len(ends):
                self._end_record(int(ends[at]))
            done = at + 1

    def _end_record(self, end: int) -> None:
        """A record ends before this comma or bracket; its group may end with it or before it."""
        if end - self._record >= GROUP_BYTES and self._first_byte < self._record:
            self._group(self._first_byte, self._record - 1, rows=self._ended - self._rows)
        self._ended += 1
        self._record = end + 1
        if end - self._first_byte >= GROUP_BYTES:
            self._group(self._first_byte, end, rows=self._ended - self._rows)

    def _group(self, first_byte: int, end_byte: int, *, rows: int) -> None:
        first = self._rows
        self.groups.append(
            RowGroup(
                number=len(self.groups),
                first=first,
                end=first + rows,
                first_byte=first_byte,
                end_byte=end_byte,
                footer=b"",
                file_size=self.size,
            )
        )
        self._first_byte = end_byte + 1

    def _incomplete(self) -> FileRefused:
        fix = "Replace it with a complete copy"
        if self._opened < 0:
            return FileRefused(self.url, EXPECTED, "it holds no JSON", fix)
        what = "array" if self._is_array else "object"
        inside = ", and a string is still open" if self._tokens.in_string else ""
        found = f"it is damaged or truncated: its {what} is not closed at its end (byte {self.at}){inside}"
        return FileRefused(self.url, f"a complete JSON {what}", found, fix)


def elements_of(raw: bytes) -> tuple[Indices, Indices] | None:
    """Where each element of a group begins, and the comma or end behind it; None if brackets are left open."""
    tokens = Tokens()
    structure = tokens.feed(raw)
    if tokens.depth or tokens.in_string or (structure.depths < 0).any():
        return None
    commas = structure.commas(depth=0)
    return np.concatenate([[0], commas + 1]), np.append(commas, len(raw))
