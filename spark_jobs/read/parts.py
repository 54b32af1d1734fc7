"""A chunk in, parts out: whole records, in order, and never more of them in memory than one part."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO, Protocol

from spark_jobs.files.addresses import Unreadable, told
from spark_jobs.files.compression import Compression
from spark_jobs.files.fingerprints import StreamMarks
from spark_jobs.files.reading import open_stream, read_at
from spark_jobs.formats.records import KEPT_BYTES, Chunk, FileRefused, LastLineOpen, Part
from spark_jobs.pipeline.declared import Format, Source
from spark_jobs.read.cuts import LOOK_BYTES, STEP_BYTES


def is_stream(source: Source, name: str) -> bool:
    """Whether only reading a file from its start tells where its records are."""
    multiline = source.format is Format.CSV and source.csv.multiline
    return source.format is Format.PARQUET or multiline or Compression.of(name) is not Compression.NONE


#: How far into a file it takes no time to count lines.
_COUNTED_BYTES = 64 * 2**20


class _Ends(Protocol):
    """Finds records in blocks that follow each other, the first of them at the start of a record."""

    @property
    def open_quote(self) -> int | None:
        """Where a quote opens that is not closed, counted from the start of the first block."""

    def last_end(self, block: bytes) -> int | None:
        """Say where in this block the last record that ends in it does, behind its newline."""

    def first_end(self, block: bytes) -> int | None:
        """Say where the first one does; what is behind it comes again, in the next block."""


@dataclass
class Rest:
    """What a chunk holds behind its last whole record; known when all of it was read."""

    size: int = 0
    #: Where in the (decompressed) stream a quote opens in it that is not closed.
    open_quote: int | None = None

    def note(self, size: int, ends: _Ends, *, begin: int) -> None:
        self.size, opened = size, ends.open_quote
        self.open_quote = None if opened is None else begin + opened


def pieces(
    chunk: Chunk, source: Source, *, marks: StreamMarks | None = None, rest: Rest | None = None
) -> Iterator[Part]:
    """Read the whole records of a chunk.

    Marks that are given for a compressed file stand, whenever a part comes out, exactly at its end.
    A stream that breaks off gives all its whole records, and only then raises Incomplete.
    A part of its own is a record that fits, with its newline, neither `record_bytes_max` nor `chunk_bytes`, because
    nobody has to hold it; those that are too long and fit into a chunk are found by who reads the parts.
    Reading ends early in such a record if a quote is open in it, which would swallow the rest of the file.
    """
    is_packed = Compression.of(chunk.url) is not Compression.NONE
    with open_stream(chunk.url) as stream:
        reader = _Reader(stream, chunk, marks=marks if is_packed else None)
        if is_packed:
            reader.skip()
        else:
            reader.seek()
        yield from _parts(reader, _ends_of(source, first=chunk.first), source, rest or Rest())


def find_open_end(url: str, source: Source, *, first: int, size: int) -> LastLineOpen | FileRefused | None:
    """What keeps a plain file's `[first, size)`, which starts where a record does, from holding a whole record."""
    ends, at, step = _ends_of(source, first=first), first, LOOK_BYTES
    while at < size and (block := read_at(url, offset=at, size=min(step, size - at))):
        if ends.last_end(block) is not None:
            return None
        at, step = at + len(block), min(2 * step, STEP_BYTES)
        if ends.open_quote is not None and at - first >= _held_max(source):
            break
    rest = Rest()
    rest.note(at - first, ends, begin=first)
    return open_end(url, source, rest)


def open_end(url: str, source: Source, rest: Rest, *, sealed: bool = False) -> LastLineOpen | FileRefused:
    """What to say of a record without an end: it may still be written, but a quote may also have no other."""
    if rest.open_quote is None:
        return LastLineOpen(rest.size)
    quote = f"the quote that opens at {_place(url, rest.open_quote)} is not closed"
    if rest.size < _held_max(source):
        if not sealed:
            return LastLineOpen(rest.size, f"is not complete: {quote} yet")
        found = f"{quote} before the end of the file, which counts as complete (source.sealed)"
        return FileRefused(url, "close its quotes", found, "close that quote")
    fix = "close that quote, or raise record_bytes_max if its value is meant to be so long"
    return FileRefused(url, "close its quotes", f"{quote} in the {_held_max(source)} bytes that a record may have", fix)


def _place(url: str, at: int) -> str:
    """Where a byte of the stream is, for people: its line too, if that is quickly counted."""
    if at > _COUNTED_BYTES:
        return f"byte {at}"
    with told(url), open_stream(url) as stream:
        line = stream.read(at).count(b"\n") + 1
    return f"line {line} (byte {at})"


def _ends_of(source: Source, *, first: int) -> _Ends:
    if source.format is Format.CSV and source.csv.multiline:
        from spark_jobs.formats.csv.dialect import RecordEnds

        return RecordEnds(source.csv, starts_file=first == 0)
    return _LineEnds()


class _LineEnds:
    open_quote = None

    def last_end(self, block: bytes) -> int | None:
        return block.rfind(b"\n") + 1 or None

    def first_end(self, block: bytes) -> int | None:
        return block.find(b"\n") + 1 or None


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
            block = self._take(min(STEP_BYTES, missing))
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
    held_max, begin = _held_max(source), reader.chunk.first
    first, held = begin, bytearray()
    while block := reader.read(min(source.chunk_bytes - len(held) % source.chunk_bytes, held_max - len(held))):
        end = ends.last_end(block)
        if end is not None:
            raw = block if not held and end == len(block) else b"".join((held, memoryview(block)[:end]))
            yield _part(reader, first=first, raw=raw)
            first, held = first + len(held) + end, bytearray(memoryview(block)[end:])
        elif len(held) + len(block) < held_max:
            held += block
        elif ends.open_quote is not None:
            rest.note(len(held) + len(block), ends, begin=begin)
            return
        else:
            long, has_end = _too_long(reader, ends, first=first, begun=bytes(held) + block)
            if not has_end:
                rest.note(long.end - first, ends, begin=begin)
                return
            first, held = long.end, bytearray()
            yield long
    # With an open quote, more than the last line would be one record.
    is_open = ends.open_quote is not None and b"\n" in held
    if held and reader.chunk.sealed and not is_open:
        yield replace(_part(reader, first=first, raw=bytes(held)), is_tail=True)
    elif held:
        rest.note(len(held), ends, begin=begin)


def _held_max(source: Source) -> int:
    # Where parts happen to start must not decide whether a record stands alone.
    return max(source.record_bytes_max, source.chunk_bytes)


def _part(reader: _Reader, *, first: int, raw: bytes) -> Part:
    reader.feed(raw)
    return Part(producer_id=reader.chunk.producer_id, first=first, end=first + len(raw), raw=raw)


def _too_long(reader: _Reader, ends: _Ends, *, first: int, begun: bytes) -> tuple[Part, bool]:
    """Pass over the rest of a record, and say whether it has an end."""
    reader.feed(begun)
    kept, end, record_end = begun[:KEPT_BYTES], first + len(begun), None
    while record_end is None and (block := reader.read(STEP_BYTES)):
        record_end = ends.first_end(block)
        passed = block[:record_end]
        reader.unread(block[len(passed) :])
        reader.feed(passed)
        kept, end = kept + passed[: KEPT_BYTES - len(kept)], end + len(passed)
    part = Part(
        producer_id=reader.chunk.producer_id,
        first=first,
        end=end,
        raw=kept,
        too_long=True,
        is_tail=record_end is None,
    )
    return part, record_end is not None or (reader.chunk.sealed and ends.open_quote is None)
