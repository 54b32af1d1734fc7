"""Read a bounded part of a text file: its beginning, its middle and its end."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from onceload_core.names import ProducerId
from onceload_jobs.files.addresses import errors_naming
from onceload_jobs.files.compression import Incomplete, is_compressed
from onceload_jobs.files.listing import Listed
from onceload_jobs.files.reading import open_stream, read_at
from onceload_jobs.formats.chunks import FileRefused, Part
from onceload_jobs.formats.signatures import check_text

PIECE_BYTES = 2**18
_PIECES = 3
#: A file without a newline in its first bytes is probably not a file of lines.
FIRST_LINE_BYTES_MAX = 2**24
#: A smaller share of lines with other bytes than those of UTF-8 may be broken ones.
_BROKEN_MAX = 0.1


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A range of the (decompressed) content of a file."""

    first: int
    raw: bytes
    reaches_end: bool


@dataclass(frozen=True, kw_only=True)
class Content:
    """The pieces that were read of one file, in order."""

    listed: Listed
    pieces: tuple[Piece, ...]

    @property
    def beginning(self) -> bytes:
        return self.pieces[0].raw

    @property
    def is_whole(self) -> bool:
        """Whether the first piece is all that the file has."""
        return self.pieces[0].reaches_end


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The whole records that were read of one file."""

    listed: Listed
    parts: tuple[Part, ...]
    #: Whether all records of the file are in them.
    is_whole: bool
    #: For CSV: the names in its header, or the numbers of its fields.
    header: tuple[str, ...] = ()
    #: For a file without rows whose schema says the types of its columns: a table of these types.
    empty: pa.Table | None = None
    #: The columns with times that are finer than a microsecond.
    finer: frozenset[str] = frozenset()

    @property
    def has_tail(self) -> bool:
        """Whether its last line has no newline."""
        return any(part.is_tail for part in self.parts)


def read_content(listed: Listed) -> Content:
    content = _packed(listed) if is_compressed(listed.url) else _plain(listed)
    begins = content.beginning
    check_text(listed.url, begins)
    _check_encoding(content)
    if b"\n" not in begins and not content.is_whole:
        found = f"its first line does not end within {len(begins):,} bytes"
        raise FileRefused(listed.url, "one record on each line", found, _SPLIT)
    return content


_SPLIT = "If it is one JSON document, write each record on a line of its own, for example with jq -c '.[]'"


def _check_encoding(content: Content) -> None:
    lines = content.beginning.split(b"\n")
    lines = lines if content.is_whole else lines[:-1]
    broken = [line for line in lines if b"\0" in line or not is_utf8(line)]
    if len(broken) <= _BROKEN_MAX * len(lines):
        return
    if not any(b"\0" in line for line in broken):
        raise not_utf8(content.listed.url)
    found = "it contains bytes that never occur in text, so it is a binary file"
    expected = "text in UTF-8, Parquet, ORC or Avro"
    raise FileRefused(content.listed.url, expected, found, "Write it as JSON lines, CSV or Parquet")


def is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def not_utf8(url: str) -> FileRefused:
    fix = "Convert it with iconv -f ENCODING -t UTF-8, where ENCODING is the one it was written in, such as SHIFT_JIS"
    return FileRefused(url, "text in UTF-8", "it is text in another encoding", fix)


def _plain(listed: Listed) -> Content:
    def read(size: int) -> bytes:
        return read_at(listed.url, offset=0, size=size)

    if listed.size <= _PIECES * PIECE_BYTES:
        return Content(listed=listed, pieces=(Piece(first=0, raw=read(listed.size), reaches_end=True),))
    beginning = _until_newline(read, PIECE_BYTES)
    pieces = [Piece(first=0, raw=beginning, reaches_end=len(beginning) >= listed.size)]
    for first in ((listed.size - PIECE_BYTES) // 2, listed.size - PIECE_BYTES):
        if first >= len(beginning):
            raw = read_at(listed.url, offset=first, size=PIECE_BYTES)
            pieces.append(Piece(first=first, raw=raw, reaches_end=first + PIECE_BYTES >= listed.size))
    return Content(listed=listed, pieces=tuple(pieces))


def _packed(listed: Listed) -> Content:
    """The beginning of a compressed file, which can be read from its start only."""
    with errors_naming(listed.url), open_stream(listed.url) as stream:
        held, is_ended, broken = b"", False, None

        def read(size: int) -> bytes:
            nonlocal held, is_ended, broken
            try:
                more = stream.read(size - len(held))
            except Incomplete as error:
                broken = error
                return held
            held, is_ended = held + more, not more
            return held

        raw = _until_newline(read, _PIECES * PIECE_BYTES)
        read(len(raw) + 1)
    # The whole records before the break are loaded too.
    if broken and b"\n" not in raw:
        raise broken
    return Content(listed=listed, pieces=(Piece(first=0, raw=raw, reaches_end=is_ended),))


def _until_newline(read: Callable[[int], bytes], size: int) -> bytes:
    """The beginning with at least one line, unless that is very long."""
    raw = read(size)
    while b"\n" not in raw and len(raw) == size < FIRST_LINE_BYTES_MAX:
        size = min(4 * size, FIRST_LINE_BYTES_MAX)
        raw = read(size)
    return raw


def parts_of(content: Content, *, last_end: Callable[[bytes], int | None] | None = None) -> tuple[Part, ...]:
    """The whole lines of all pieces, and a last line without a newline.

    Where only reading from the start finds the ends of records, `last_end` returns the last one in the beginning.
    """
    pieces = content.pieces if last_end is None else content.pieces[:1]
    parts = []
    for piece in pieces:
        # The first line of a later piece began before it.
        start = piece.raw.find(b"\n") + 1 if piece.first else 0
        raw = piece.raw[start:]
        end = (raw.rfind(b"\n") + 1) if last_end is None else (last_end(raw) or 0)
        first, tail = piece.first + start, raw[end:]
        if end and (start or not piece.first):
            parts.append(_part(first, raw[:end]))
        if tail and piece.reaches_end and (start or not piece.first):
            parts.append(_part(first + end, tail, is_tail=True))
    return tuple(parts)


def _part(first: int, raw: bytes, *, is_tail: bool = False) -> Part:
    return Part(producer_id=ProducerId(0), first=first, end=first + len(raw), raw=raw, is_tail=is_tail)
