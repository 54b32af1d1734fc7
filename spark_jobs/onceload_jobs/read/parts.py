"""Where records end: cut files between them, and split a chunk into parts of whole records, one in memory at a time."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, TypeAlias

from onceload_jobs.files.addresses import Unreadable, errors_naming
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.files.fingerprints import StreamMarks
from onceload_jobs.files.reading import open_stream, read_at
from onceload_jobs.formats.chunks import KEPT_BYTES, Chunk, FileRefused, LastLineOpen, Part
from onceload_jobs.formats.csv.dialect import RecordEnds
from onceload_jobs.pipeline.declared import Format, Source

STEP_BYTES = 2**20
_LOOK_BYTES = 64 * 2**10
#: How far into a file lines are counted for messages, because that is quick.
_COUNTED_BYTES = 64 * 2**20


def is_stream(source: Source, name: str) -> bool:
    """Whether the records of a file can only be found by reading it from its start."""
    multiline = source.format is Format.CSV and source.csv.multiline
    return multiline or not is_plain_text(source, name)


def is_plain_text(source: Source, name: str) -> bool:
    """Whether the bytes of a file are its records, in a text that may grow."""
    return not source.format.is_whole and not is_compressed(name)


def cuts(url: str, *, first: int, end: int, chunk_bytes: int, record_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Cut `[first, end)` of a plain file after the first newlines that follow multiples of `chunk_bytes`."""
    edge, wanted = first, first + chunk_bytes
    while wanted < end:
        # Include the byte before: a newline there ends a record exactly here.
        newline = find_newline(url, first=wanted - 1, end=min(end, wanted + record_bytes_max))
        reached = wanted + record_bytes_max if newline is None else newline + 1
        if newline is not None and newline + 1 < end:
            yield edge, newline + 1
            edge = newline + 1
        # An oversized record has no newline soon, so skip the multiples inside it.
        wanted = first + ((reached - first) // chunk_bytes + 1) * chunk_bytes
    if edge < end:
        yield edge, end


def complete_end(url: str, *, first: int, size: int) -> int:
    """Return the end of the last whole line in a plain file's `[first, size)`, or `first` if there is none."""
    end, step = size, _LOOK_BYTES
    while end > first:
        start = max(first, end - step)
        newline = read_at(url, offset=start, size=end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end, step = start, min(2 * step, STEP_BYTES)
    return first


def find_newline(url: str, *, first: int, end: int) -> int | None:
    """Return the position of the first newline in a plain file's `[first, end)`."""
    for at, block in _blocks(url, first=first, end=end):
        if (newline := block.find(b"\n")) >= 0:
            return at + newline
    return None


def _blocks(url: str, *, first: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Small ones first, each with its place: what is looked for is mostly near."""
    at, step = first, _LOOK_BYTES
    while at < end and (block := read_at(url, offset=at, size=min(step, end - at))):
        yield at, block
        at, step = at + len(block), min(2 * step, STEP_BYTES)


class _LineEnds:
    """Finds newlines as `RecordEnds` does, in files where each of them ends a record."""

    open_quote = None

    def last_end(self, block: bytes) -> int | None:
        return block.rfind(b"\n") + 1 or None

    def first_end(self, block: bytes) -> int | None:
        return block.find(b"\n") + 1 or None


_Ends: TypeAlias = RecordEnds | _LineEnds


def _ends_of(source: Source, *, first: int) -> _Ends:
    is_multiline = source.format is Format.CSV and source.csv.multiline
    return RecordEnds(source.csv, starts_file=first == 0) if is_multiline else _LineEnds()


@dataclass
class UnfinishedRecord:
    """What a chunk holds after its last whole record; known after reading all of it."""

    size: int = 0
    #: The position of an unclosed quote in it, in the (decompressed) stream.
    open_quote: int | None = None

    def note(self, size: int, ends: _Ends, *, begin: int) -> None:
        self.size, opened = size, ends.open_quote
        self.open_quote = None if opened is None else begin + opened


def parts_of(
    chunk: Chunk, source: Source, *, marks: StreamMarks | None = None, rest: UnfinishedRecord | None = None
) -> Iterator[Part]:
    """Read the whole records of a chunk.

    Marks that are given for a compressed file are exactly at the end of each part when it is returned.
    A truncated stream first returns all of its whole records, and then raises Incomplete.
    A record that fits neither `record_bytes_max` nor `chunk_bytes` with its newline is a part of its own, because it
    is never held in memory; oversized records that fit into a chunk are found by the reader of the parts.
    Reading ends early in such a record if a quote is open, which would swallow the rest of the file.
    """
    with open_stream(chunk.url) as stream:
        splitter = _Splitter(chunk, source, stream, marks=marks, rest=rest or UnfinishedRecord())
        splitter.start()
        yield from splitter.parts()


def find_open_end(url: str, source: Source, *, first: int, size: int) -> LastLineOpen | FileRefused | None:
    """Why a plain file's `[first, size)`, which starts at a record, holds no whole record."""
    ends, seen = _ends_of(source, first=first), first
    for at, block in _blocks(url, first=first, end=size):
        if ends.last_end(block) is not None:
            return None
        seen = at + len(block)
        if ends.open_quote is not None and seen - first >= _held_max(source):
            break
    rest = UnfinishedRecord()
    rest.note(seen - first, ends, begin=first)
    return open_end(url, source, rest)


def open_end(url: str, source: Source, rest: UnfinishedRecord, *, sealed: bool = False) -> LastLineOpen | FileRefused:
    """Report an unfinished record: it may still be written, or its quote may never be closed."""
    if rest.open_quote is None:
        return LastLineOpen(rest.size)
    quote = f"the quote that opens at {_place(url, rest.open_quote)} is not closed"
    if rest.size < _held_max(source):
        if not sealed:
            return LastLineOpen(rest.size, f"is not complete: {quote} yet")
        found = f"{quote} before the end of the file, which counts as complete (source.sealed)"
        return FileRefused(url, "closed quotes", found, "Close that quote")
    fix = "Close that quote, or raise record_bytes_max if its value is meant to be so long"
    return FileRefused(url, "closed quotes", f"{quote} in the {_held_max(source)} bytes that a record may have", fix)


def _place(url: str, at: int) -> str:
    """Format a position in the stream for messages, with its line if that is quick to count."""
    if at > _COUNTED_BYTES:
        return f"byte {at}"
    with errors_naming(url), open_stream(url) as stream:
        line = stream.read(at).count(b"\n") + 1
    return f"line {line} (byte {at})"


def piece_bytes_max(source: Source) -> int:
    """How much is read and committed together at most: a chunk ends after a newline, slightly later than requested."""
    return source.chunk_bytes * 5 // 4


def _held_max(source: Source) -> int:
    # Whether a record stands alone must not depend on where parts start.
    return max(source.record_bytes_max, source.chunk_bytes)


class _Splitter:
    """Splits a chunk, whose bytes it reads in order, and none after its end."""

    def __init__(
        self, chunk: Chunk, source: Source, stream: BinaryIO, *, marks: StreamMarks | None, rest: UnfinishedRecord
    ) -> None:
        self._chunk, self._source, self._stream = chunk, source, stream
        self._is_packed = is_compressed(chunk.url)
        self._marks = marks if self._is_packed else None
        self._rest, self._ends = rest, _ends_of(source, first=chunk.first)
        self._at, self._unread = chunk.first, b""

    def start(self) -> None:
        """Go to the start of the chunk. Compressed files cannot be seeked, so they are read up to there."""
        missing = self._chunk.first
        with errors_naming(self._chunk.url):
            if not self._is_packed:
                missing = max(0, missing - self._stream.seek(0, os.SEEK_END))
                self._stream.seek(self._chunk.first)
            while missing and self._is_packed and (block := self._stream.read(min(STEP_BYTES, missing))):
                self._mark(block)
                missing -= len(block)
        if missing:
            raise self._too_short()

    def parts(self) -> Iterator[Part]:
        ends, held_max = self._ends, _held_max(self._source)
        first, held = self._chunk.first, bytearray()
        while block := self._read(self._wanted_bytes(len(held))):
            end = ends.last_end(block)
            if end is not None:
                raw = block if not held and end == len(block) else b"".join((held, memoryview(block)[:end]))
                yield self._part(first, raw)
                first, held = first + len(held) + end, bytearray(memoryview(block)[end:])
            elif len(held) + len(block) < held_max:
                held += block
            elif ends.open_quote is not None:
                self._note_rest(len(held) + len(block))
                return
            else:
                long, has_end = self._too_long(first, bytes(held) + block)
                if not has_end:
                    self._note_rest(long.end - first)
                    return
                first, held = long.end, bytearray()
                yield long
        # With an open quote, more than the last line would be one record.
        is_open = ends.open_quote is not None and b"\n" in held
        if held and self._chunk.sealed and not is_open:
            yield replace(self._part(first, bytes(held)), is_tail=True)
        elif held:
            self._note_rest(len(held))

    def _wanted_bytes(self, held_bytes: int) -> int:
        """How much to read: what is missing to a whole number of chunks, unless a record in memory would get too long.

        If little of the chunk is left, all of it is read at once, because joining two parts would copy both.
        """
        source, end = self._source, self._chunk.end
        left = None if end is None else end - self._at + len(self._unread)
        if left is not None and held_bytes + left <= min(piece_bytes_max(source), _held_max(source)):
            return left
        missing = source.chunk_bytes - held_bytes % source.chunk_bytes
        return min(missing, _held_max(source) - held_bytes)

    def _read(self, size: int) -> bytes:
        if self._unread:
            block, self._unread = self._unread[:size], self._unread[size:]
            return block
        end = self._chunk.end
        with errors_naming(self._chunk.url):
            block = self._stream.read(size if end is None else min(size, end - self._at))
        self._at += len(block)
        if not block and end is not None and self._at < end:
            # Without the end of the file, its last line would look like a whole record.
            raise self._too_short()
        return block

    def _part(self, first: int, raw: bytes) -> Part:
        self._mark(raw)
        return Part(producer_id=self._chunk.producer_id, first=first, end=first + len(raw), raw=raw)

    def _too_long(self, first: int, begun: bytes) -> tuple[Part, bool]:
        """Skip the rest of a record, and return whether it has an end."""
        self._mark(begun)
        kept, end, record_end = begun[:KEPT_BYTES], first + len(begun), None
        while record_end is None and (block := self._read(STEP_BYTES)):
            record_end = self._ends.first_end(block)
            passed = block[:record_end]
            self._unread = block[len(passed) :] + self._unread
            self._mark(passed)
            kept, end = kept + passed[: KEPT_BYTES - len(kept)], end + len(passed)
        is_tail = record_end is None
        part = Part(producer_id=self._chunk.producer_id, first=first, end=end, raw=kept, too_long=True, is_tail=is_tail)
        return part, not is_tail or (self._chunk.sealed and self._ends.open_quote is None)

    def _mark(self, block: bytes) -> None:
        if self._marks is not None:
            self._marks.feed(block)

    def _note_rest(self, size: int) -> None:
        self._rest.note(size, self._ends, begin=self._chunk.first)

    def _too_short(self) -> Unreadable:
        return Unreadable(self._chunk.url, f"it ends before byte {self._chunk.end or self._chunk.first}")
