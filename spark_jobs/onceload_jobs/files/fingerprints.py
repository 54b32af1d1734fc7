"""Recognise a file by the first and last bytes that were loaded of it, never by its time.

A fingerprint holds marks of the unpacked stream up to the consumed end. For a compressed file whose stream was read to
the end, it also holds marks of the packed file: while these match, the file has no new content and need not be
unpacked. They are omitted while more of the stream is expected. If a store reports an ETag, the fingerprint includes
it: while the ETag is the same, nothing has to be read.
"""

from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from struct import Struct

from onceload_core.spans import SEQUENCE_END
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.compression import Incomplete, is_compressed
from onceload_jobs.files.footers import footer_bytes, look_bytes
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import open_stream, read_at

#: The version byte: with or without an ETag before the marks.
_VERSIONS = {False: b"\x01", True: b"\x02"}
_NAME_BYTES = 16
EDGE_BYTES = 4096
_READ_BYTES = 2**20
_MARKS = Struct(">Q16s16s")


class Resemblance(StrEnum):
    """How a file compares with what was loaded of it."""

    SAME = "same"
    #: It begins with the loaded content, and there is more.
    GROWN = "grown"
    #: Its last record was loaded without a newline, because the file was complete, but now it continues.
    CONTINUED = "continued"
    #: It is shorter than the loaded content.
    SHORTER = "shorter"
    #: It has other content where the loaded content was.
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Marks:
    """The bytes `[0, end)` of a stream, identified by their edges."""

    end: int
    head: bytes
    tail: bytes

    @classmethod
    def of(cls, *, end: int, head: bytes, tail: bytes) -> "Marks":
        # In small files, both edges are the same bytes.
        digest = _digest(head)
        return cls(end, digest, digest if tail == head else _digest(tail))


@dataclass(frozen=True, kw_only=True)
class Fingerprint:
    stream: Marks
    #: The packed file, only if its whole stream was read.
    packed: Marks | None = None
    #: A digest of the ETag.
    content: bytes | None = None

    def named(self, etag: str | None) -> "Fingerprint":
        """The same fingerprint with this ETag."""
        return replace(self, content=_digest(etag.encode()) if etag else None)

    def to_bytes(self) -> bytes:
        parts = (self.stream,) if self.packed is None else (self.stream, self.packed)
        start = _VERSIONS[self.content is not None] + (self.content or b"")
        return start + b"".join(_MARKS.pack(marks.end, marks.head, marks.tail) for marks in parts)

    @classmethod
    def from_bytes(cls, stored: bytes) -> "Fingerprint":
        first = 1 + _NAME_BYTES if stored[:1] == _VERSIONS[True] else 1
        is_known = stored[:1] in _VERSIONS.values()
        if not is_known or len(stored) - first not in {_MARKS.size, 2 * _MARKS.size}:
            raise ValueError(f"not a fingerprint of version 1 or 2: {stored[:8].hex()}… of {len(stored)} bytes")
        stream, *packed = (Marks(*values) for values in _MARKS.iter_unpack(stored[first:]))
        if any(marks.end > SEQUENCE_END for marks in (stream, *packed)):
            raise ValueError(f"a fingerprint with more bytes than there are sequence ids: {stored.hex()}")
        content = stored[1:first] or None
        return cls(stream=stream, packed=packed[0] if packed else None, content=content)


@dataclass
class StreamMarks:
    """The marks of a stream that is read once: feed it block by block, and ask after any block."""

    end: int = 0
    _head: bytes = field(default=b"", repr=False)
    _tail: bytes = field(default=b"", repr=False)

    def feed(self, block: bytes) -> None:
        self.end += len(block)
        if len(self._head) < EDGE_BYTES:
            self._head += block[: EDGE_BYTES - len(self._head)]
        self._tail = (self._tail + block if len(block) < EDGE_BYTES else block)[-EDGE_BYTES:]

    @property
    def marks(self) -> Marks:
        return Marks.of(end=self.end, head=self._head, tail=self._tail)


def fingerprint_of(url: str, *, end: int) -> Fingerprint:
    """Fingerprint a file that is not compressed, or not read as a stream, by its bytes `[0, end)`."""
    return Fingerprint(stream=_get_marks(url, end=end))


def fingerprint_of_whole(url: str, *, size: int) -> Fingerprint:
    """Fingerprint a file that is written once, such as Parquet, by its first bytes and its whole footer.

    A compressed one is identified by its unpacked content, whose end must be there.
    """
    return read_whole(url, size=size)[0]


def read_whole(url: str, *, size: int) -> tuple[Fingerprint, bytes]:
    """Also return the last bytes that were read, which contain the footer, if it is not compressed."""
    if is_compressed(url):
        packed = _get_marks(url, end=size)
        return Fingerprint(stream=_marks_of_stream(url, packed), packed=packed), b""
    found = _find_edges(url, end=size, tail_bytes=_footer_bytes(url, size=size))
    if found is None:
        raise _too_short(url, end=size)
    head, tail = found
    return Fingerprint(stream=Marks.of(end=size, head=head, tail=tail)), tail


def compare(listed: Listed, fingerprint: Fingerprint, *, consumed_end: int) -> Resemblance:
    """Compare a file that may grow; unpack a compressed one only if its packed bytes do not decide."""
    if not is_compressed(listed.url):
        if _has_same_etag(listed, fingerprint):
            return Resemblance.GROWN if listed.size > consumed_end else Resemblance.SAME
        return _compare_plain(listed, fingerprint.stream, consumed_end=consumed_end)
    packed = fingerprint.packed
    if packed is not None and _has_same_etag(listed, fingerprint):
        return Resemblance.SAME
    if packed is not None and listed.size >= packed.end and _find_marks(listed.url, end=packed.end) == packed:
        return Resemblance.SAME if listed.size == packed.end else Resemblance.GROWN
    return _compare_unpacked(listed.url, fingerprint.stream, consumed_end=consumed_end)


def compare_whole(listed: Listed, fingerprint: Fingerprint) -> Resemblance:
    """Compare a file that is written once, such as Parquet: any difference is a change."""
    if is_compressed(listed.url):
        return _compare_packed(listed, fingerprint)
    marks = fingerprint.stream
    if listed.size != marks.end:
        return Resemblance.CHANGED
    if _has_same_etag(listed, fingerprint):
        return Resemblance.SAME
    tail_bytes = _footer_bytes(listed.url, size=marks.end)
    is_same = _find_marks(listed.url, end=marks.end, tail_bytes=tail_bytes) == marks
    return Resemblance.SAME if is_same else Resemblance.CHANGED


def _compare_packed(listed: Listed, fingerprint: Fingerprint) -> Resemblance:
    """The same content may be compressed in another way; so it is unpacked, if the packed bytes do not decide."""
    if fingerprint.packed is not None and _has_same_etag(listed, fingerprint):
        return Resemblance.SAME
    packed = _get_marks(listed.url, end=listed.size)
    is_same = packed == fingerprint.packed or _marks_of_stream(listed.url, packed) == fingerprint.stream
    return Resemblance.SAME if is_same else Resemblance.CHANGED


@lru_cache(maxsize=64)
def _marks_of_stream(url: str, packed: Marks) -> Marks:  # noqa: ARG001 - they say of which content it is.
    """The marks of all that a compressed file holds; raises Incomplete if it breaks off."""
    seen = StreamMarks()
    with open_stream(url) as stream:
        while block := stream.read(_READ_BYTES):
            seen.feed(block)
    return seen.marks


def still_begins_with(listed: Listed, stored: bytes) -> bool:
    """Whether a file still begins with these stored bytes, packed or not; more may follow them."""
    marks = Fingerprint.from_bytes(stored).stream
    return listed.size >= marks.end and _find_marks(listed.url, end=marks.end) == marks


def begins_alike(listed: Listed, fingerprint: Fingerprint) -> bool:
    """Whether a file starts with the first bytes of what was loaded; a file with fewer bytes than those never does."""
    with open_stream(listed.url) as stream:
        seen = StreamMarks()
        with suppress(Incomplete):
            while seen.end < EDGE_BYTES and (block := stream.read(EDGE_BYTES - seen.end)):
                seen.feed(block)
    return seen.end == EDGE_BYTES and seen.marks.head == fingerprint.stream.head


def has_other_etag(listed: Listed, fingerprint: Fingerprint) -> bool:
    """Whether the store reports another ETag than in the fingerprint."""
    return fingerprint.content is not None and not has_same_etag_or_none(listed, fingerprint)


def has_same_etag_or_none(listed: Listed, fingerprint: Fingerprint) -> bool:
    """Whether the store reports the same ETag; without an ETag, the edges decide."""
    return listed.etag is None or _has_same_etag(listed, fingerprint)


def _has_same_etag(listed: Listed, fingerprint: Fingerprint) -> bool:
    """Whether the store reports the ETag of the fingerprint."""
    return fingerprint.content is not None and Fingerprint.named(fingerprint, listed.etag) == fingerprint


def _compare_plain(listed: Listed, marks: Marks, *, consumed_end: int) -> Resemblance:
    if listed.size < max(marks.end, consumed_end):
        return Resemblance.SHORTER
    found = _find_marks(listed.url, end=marks.end)
    if found is None:
        return Resemblance.SHORTER
    if found != marks:
        return Resemblance.CHANGED
    return Resemblance.GROWN if listed.size > consumed_end else Resemblance.SAME


def _compare_unpacked(url: str, marks: Marks, *, consumed_end: int) -> Resemblance:
    seen = StreamMarks()
    with open_stream(url) as stream:

        def read_to(end: int) -> bool:
            """Read a truncated upload as far as it goes, like a plain file."""
            try:
                while seen.end < end and (block := stream.read(min(_READ_BYTES, end - seen.end))):
                    seen.feed(block)
            except Incomplete:
                pass
            return seen.end >= end

        if not read_to(marks.end):
            return Resemblance.SHORTER
        if seen.marks != marks:
            return Resemblance.CHANGED
        if not read_to(consumed_end):
            return Resemblance.SHORTER
        return Resemblance.GROWN if read_to(consumed_end + 1) else Resemblance.SAME


def _footer_bytes(url: str, *, size: int) -> int:
    """The length of the footer of a Parquet or ORC file, whose metadata about values may be anywhere in it."""
    look = look_bytes(size)
    length = footer_bytes(read_at(url, offset=size - look, size=look))
    return min(size, max(EDGE_BYTES, length))


def _get_marks(url: str, *, end: int) -> Marks:
    marks = _find_marks(url, end=end)
    if marks is None:
        raise _too_short(url, end=end)
    return marks


def _too_short(url: str, *, end: int) -> Unreadable:
    return Unreadable(url, f"it ends before byte {end}")


def _find_marks(url: str, *, end: int, tail_bytes: int = EDGE_BYTES) -> Marks | None:
    edges = _find_edges(url, end=end, tail_bytes=tail_bytes)
    return None if edges is None else Marks.of(end=end, head=edges[0], tail=edges[1])


def _find_edges(url: str, *, end: int, tail_bytes: int) -> tuple[bytes, bytes] | None:
    """Read the edges of `[0, end)`; None if the file is shorter now."""
    head_bytes, tail_bytes = min(end, EDGE_BYTES), min(end, tail_bytes)
    head = read_at(url, offset=0, size=head_bytes)
    is_one = tail_bytes == head_bytes == end
    tail = head if is_one else read_at(url, offset=end - tail_bytes, size=tail_bytes)
    return (head, tail) if len(head) == head_bytes and len(tail) == tail_bytes else None


def _digest(edge: bytes) -> bytes:
    return blake2b(edge, digest_size=16).digest()
