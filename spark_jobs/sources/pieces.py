"""A chunk in, parts out: whole records, in order, and never more of them in memory than one part."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from spark_jobs.declared import Format, Source
from spark_jobs.sources.addresses import Unreadable, told
from spark_jobs.sources.files import open_stream, read_at
from spark_jobs.sources.fingerprints import StreamMarks
from spark_jobs.sources.packed import Compression
from spark_jobs.sources.records import Chunk, Part

#: How much of a record that is too long is kept, so that a person can recognise it.
KEPT_BYTES = 2**20
_STEP_BYTES = 2**20
_LOOK_BYTES = 64 * 2**10


class _Ends(Protocol):
    """Finds records in blocks that follow each other, the first of them at the start of a record."""

    def last_end(self, block: bytes) -> int | None:
        """Say where in this block the last record that ends in it does, behind its newline."""


@dataclass
class Rest:
    """What a chunk holds behind its last whole record; known when all of it was read."""

    size: int = 0


def pieces(
    chunk: Chunk, source: Source, *, marks: StreamMarks | None = None, rest: Rest | None = None
) -> Iterator[Part]:
    """Read the whole records of a chunk.

    Marks that are given for a compressed file stand, whenever a part comes out, exactly at its end.
    A stream that breaks off gives all its whole records, and only then raises Incomplete.
    A part of its own is a record that fits, with its newline, neither `record_bytes_max` nor `chunk_bytes`, because
    nobody has to hold it; those that are too long and fit into a chunk are found by who reads the parts.
    """
    is_packed = Compression.of(chunk.url) is not Compression.NONE
    with open_stream(chunk.url) as stream:
        reader = _Reader(stream, chunk, marks=marks if is_packed else None)
        if is_packed:
            reader.skip()
        else:
            reader.seek()
        yield from _parts(reader, _ends_of(source, first=chunk.first), source, rest or Rest())


def cuts(url: str, *, first: int, end: int, chunk_bytes: int, record_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Cut `[first, end)` of a plain file behind newlines that are the next to multiples of `chunk_bytes`."""
    edge, wanted = first, first + chunk_bytes
    while wanted < end:
        # The byte before it is looked at too: a newline there ends a record exactly here.
        newline = find_newline(url, first=wanted - 1, end=min(end, wanted + record_bytes_max))
        reached = wanted + record_bytes_max if newline is None else newline + 1
        if newline is not None and newline + 1 < end:
            yield edge, newline + 1
            edge = newline + 1
        # Within a record that is too long no newline comes soon, so the multiples inside it are passed over.
        wanted = first + ((reached - first) // chunk_bytes + 1) * chunk_bytes
    if edge < end:
        yield edge, end


def complete_end(url: str, *, first: int, size: int) -> int:
    """Say where the last whole line of a plain file's `[first, size)` ends, or `first` if none does."""
    end, step = size, _LOOK_BYTES
    while end > first:
        start = max(first, end - step)
        newline = read_at(url, offset=start, size=end - start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end, step = start, min(2 * step, _STEP_BYTES)
    return first


def find_newline(url: str, *, first: int, end: int) -> int | None:
    """Say where the first newline of a plain file's `[first, end)` is."""
    at, step = first, _LOOK_BYTES
    while at < end and (block := read_at(url, offset=at, size=min(step, end - at))):
        newline = block.find(b"\n")
        if newline >= 0:
            return at + newline
        at, step = at + len(block), min(2 * step, _STEP_BYTES)
    return None


def ends_record(url: str, source: Source, *, first: int, size: int) -> bool:
    """Whether a record ends in a plain file's `[first, size)`, which starts where one does."""
    ends, at, step = _ends_of(source, first=first), first, _LOOK_BYTES
    while at < size and (block := read_at(url, offset=at, size=min(step, size - at))):
        if ends.last_end(block) is not None:
            return True
        at, step = at + len(block), min(2 * step, _STEP_BYTES)
    return False


def _ends_of(source: Source, *, first: int) -> _Ends:
    if source.format is Format.CSV and source.csv.multiline:
        from spark_jobs.sources.csv import RecordEnds

        return RecordEnds(source.csv, starts_file=first == 0)
    return _LineEnds()


class _LineEnds:
    def last_end(self, block: bytes) -> int | None:
        return block.rfind(b"\n") + 1 or None


class _Reader:
    """Reads a chunk's bytes in order, and none behind its end."""

    def __init__(self, stream: BinaryIO, chunk: Chunk, *, marks: StreamMarks | None) -> None:
        self.chunk = chunk
        self.marks = marks
        self._stream = stream
        self._at = chunk.first
        self._unread = b""

    def seek(self) -> None:
        with told(self.chunk.url):
            if self._stream.seek(0, os.SEEK_END) < self.chunk.first:
                raise self._too_short()
            self._stream.seek(self.chunk.first)

    def skip(self) -> None:
        """What is compressed has no middle to go to."""
        missing = self.chunk.first
        while missing:
            block = self._take(min(_STEP_BYTES, missing))
            if not block:
                raise self._too_short()
            self.feed(block)
            missing -= len(block)

    def read(self, size: int) -> bytes:
        if self._unread:
            block, self._unread = self._unread[:size], self._unread[size:]
            return block
        if self.chunk.end is None:
            return self._take(size)
        block = self._take(min(size, self.chunk.end - self._at))
        self._at += len(block)
        if not block and self._at < self.chunk.end:
            # Without its end, the last line would pass for a record that it never was.
            raise self._too_short()
        return block

    def unread(self, block: bytes) -> None:
        self._unread = block + self._unread

    def feed(self, block: bytes) -> None:
        if self.marks is not None:
            self.marks.feed(block)

    def _take(self, size: int) -> bytes:
        with told(self.chunk.url):
            return self._stream.read(size)

    def _too_short(self) -> Unreadable:
        return Unreadable(self.chunk.url, f"it ends before byte {self.chunk.end or self.chunk.first}")


def _parts(reader: _Reader, ends: _Ends, source: Source, rest: Rest) -> Iterator[Part]:
    # Where parts happen to start must not decide whether a record stands alone.
    held_max = max(source.record_bytes_max, source.chunk_bytes)
    first, held = reader.chunk.first, b""
    while block := reader.read(min(source.chunk_bytes - len(held) % source.chunk_bytes, held_max - len(held))):
        end = ends.last_end(block)
        if end is not None:
            raw = block if not held and end == len(block) else b"".join((held, memoryview(block)[:end]))
            yield _part(reader, first=first, raw=raw)
            first, held = first + len(held) + end, block[end:]
        elif len(held) + len(block) < held_max:
            held += block
        else:
            long, has_end = _too_long(reader, ends, first=first, begun=held + block)
            if not has_end:
                rest.size = long.end - first
                return
            first, held = long.end, b""
            yield long
    if held and reader.chunk.sealed:
        yield _part(reader, first=first, raw=held)
    elif held:
        rest.size = len(held)


def _part(reader: _Reader, *, first: int, raw: bytes) -> Part:
    reader.feed(raw)
    return Part(producer_id=reader.chunk.producer_id, first=first, end=first + len(raw), raw=raw)


def _too_long(reader: _Reader, ends: _Ends, *, first: int, begun: bytes) -> tuple[Part, bool]:
    """Pass over the rest of a record, and say whether it has an end."""
    reader.feed(begun)
    kept, end, record_end = begun[:KEPT_BYTES], first + len(begun), None
    while record_end is None and (block := reader.read(_STEP_BYTES)):
        record_end = _first_end(ends, block)
        passed = block[:record_end]
        reader.unread(block[len(passed) :])
        reader.feed(passed)
        kept, end = kept + passed[: KEPT_BYTES - len(kept)], end + len(passed)
    part = Part(producer_id=reader.chunk.producer_id, first=first, end=end, raw=kept, too_long=True)
    return part, record_end is not None or reader.chunk.sealed


def _first_end(ends: _Ends, block: bytes) -> int | None:
    """Ask line by line, because the last end in a block would take the records before it along."""
    at = 0
    while at < len(block):
        line_end = block.find(b"\n", at) + 1 or len(block)
        found = ends.last_end(block[at:line_end])
        if found is not None:
            return at + found
        at = line_end
    return None
