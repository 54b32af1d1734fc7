"""Find the ends of CSV records, and split them into fields."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from functools import cache

import numpy as np
import numpy.typing as npt

from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.lines import BOM, positions_of
from onceload_jobs.formats.records import Indices, Mask, RecordRefused
from onceload_jobs.pipeline.declared import CsvOptions

_NEWLINE, _RETURN = ord("\n"), ord("\r")


class _Place(Enum):
    """The state of the parser before the next byte."""

    #: At the start of a value, the only place where a quote opens one.
    START = auto()
    #: In a value without quotes, or after the closing quote.
    BARE = auto()
    QUOTED = auto()
    #: After a quote inside quotes, which closes them unless another quote follows.
    CLOSED = auto()
    #: After an escape outside or inside quotes: the next byte means nothing, but a newline outside quotes.
    BARE_ESCAPED = auto()
    QUOTED_ESCAPED = auto()


#: The places from which counting quotes is enough to know whether a byte is inside quotes.
_USUAL = (_Place.START, _Place.BARE, _Place.QUOTED)
#: A slab and its intermediate results fit into the processor's cache.
_SLAB_BYTES, _SMALL_SLAB_BYTES = 2**16, 2**12


class _Octet(IntEnum):
    """What a byte means to the parser."""

    PLAIN = 0
    DELIMITER = 1
    NEWLINE = 2
    QUOTE = 3
    ESCAPE = 4


def _next_places(*, doubles: bool) -> dict[_Place, tuple[_Place, ...]]:
    """The place behind a byte, by the place before it and by what the byte means."""
    start, bare, quoted, closed = _Place.START, _Place.BARE, _Place.QUOTED, _Place.CLOSED
    bare_escaped, quoted_escaped = _Place.BARE_ESCAPED, _Place.QUOTED_ESCAPED
    second_quote = quoted if doubles else bare
    return {
        # before         PLAIN   DELIMITER NEWLINE QUOTE         ESCAPE
        start:          (bare,   start,    start,  quoted,       bare_escaped),
        bare:           (bare,   start,    start,  bare,         bare_escaped),
        quoted:         (quoted, quoted,   quoted, closed,       quoted_escaped),
        closed:         (bare,   start,    start,  second_quote, bare_escaped),
        bare_escaped:   (bare,   bare,     start,  bare,         bare),
        quoted_escaped: (quoted, quoted,   quoted, quoted,       quoted),
    }  # fmt: skip


class RecordEnds:
    """Finds the newlines that end records, in consecutive blocks from the start of a record.

    It keeps only the parser state, so blocks may be cut anywhere, even between two quotes that stand for one.
    """

    def __init__(self, options: CsvOptions, *, starts_file: bool = False) -> None:
        self._multiline = options.multiline and bool(options.quote)
        self._dialect = Dialect.of(options)
        self._place = _Place.START
        self._next = _next_places(doubles=self._dialect.doubles)
        #: How many bytes were read, and where the last quoted value in them started.
        self._passed = self._opened = 0
        #: The rest of a byte order mark that may still follow; it is not part of the first value.
        self._mark = BOM if starts_file else b""

    def last_end(self, block: bytes) -> int | None:
        """Return the end of the last record that ends in this block, after its newline."""
        newlines = self.newlines(block)
        return int(newlines[-1]) + 1 if len(newlines) else None

    def first_end(self, block: bytes) -> int | None:
        """Return the end of the first record; the bytes after it must be passed again in the next block."""
        passed, newlines = self._passed, self.newlines(block)
        if not len(newlines):
            return None
        end = int(newlines[0]) + 1
        self._place, self._passed = _Place.START, passed + end
        return end

    @property
    def open_quote(self) -> int | None:
        """The position of an unclosed quote, from the start of the first block."""
        return self._opened if self._place in (_Place.QUOTED, _Place.QUOTED_ESCAPED) else None

    def newlines(self, block: bytes) -> Indices:
        """Return the positions of newlines in this block that end records."""
        if not self._multiline or not block:
            return positions_of(b"\n", block)
        skipped = self._mark_in(block) if self._mark else 0
        if skipped:
            self._passed += skipped
            return self.newlines(block[skipped:]) + skipped
        return self._in_slabs(block, of=_SLAB_BYTES)

    def _mark_in(self, block: bytes) -> int:
        """How many bytes of a byte order mark this block starts with."""
        here, left = self._mark[: len(block)], self._mark[len(block) :]
        if block.startswith(here):
            self._mark = left
            return len(here)
        # The bytes that looked like a byte order mark were the start of a value.
        self._place = self._place if self._mark == BOM else _Place.BARE
        self._mark = b""
        return 0

    def _in_slabs(self, block: bytes, *, of: int) -> Indices:
        """Go step by step only through small slabs with an escape, or with a quote in an unusual place."""
        found = [np.zeros(0, np.int64)]
        for start in range(0, len(block), of):
            slab, at = block[start : start + of], start
            if self._place not in _USUAL:
                # A quote or an escape at the end of a slab depends on the first byte of the next one.
                found.append(self._step_by_step(slab[:1]) + at)
                slab, at = slab[1:], at + 1
            ends = self._at_once(slab) if self._is_usual(slab) else None
            if ends is None and of > _SMALL_SLAB_BYTES:
                ends = self._in_slabs(slab, of=_SMALL_SLAB_BYTES)
            found.append((self._step_by_step(slab) if ends is None else ends) + at)
        return np.concatenate(found)

    def _is_usual(self, slab: bytes) -> bool:
        escape = self._dialect.escape
        return bool(slab) and self._place in _USUAL and (escape is None or escape not in slab)

    def _at_once(self, block: bytes) -> Indices | None:
        """Count quotes, which is enough as long as each quote is in a valid place."""
        octets = np.frombuffer(block, np.uint8)
        quotes = np.flatnonzero(octets == self._dialect.quote)
        opened = int(self._place is _Place.QUOTED)
        opens = np.arange(opened, len(quotes) + opened) % 2 == 0
        at_start = (quotes == 0) & (self._place is _Place.START)
        at_end = quotes == len(block) - 1
        if not self._dialect.in_place(octets, quotes, opens=opens, at_start=at_start, at_end=at_end).all():
            return None
        newlines = positions_of(b"\n", block)
        outside: Mask = (np.searchsorted(quotes, newlines) + opened) % 2 == 0
        self._place = self._place_behind(block[-1], is_quoted=(len(quotes) + opened) % 2 == 1)
        if self._place in (_Place.QUOTED, _Place.CLOSED):
            # A quote at the start of the next block would reopen the value. The second quote of a pair opens nothing.
            opening = quotes[opens & ((quotes == 0) | (octets[quotes - 1] != self._dialect.quote))]
            self._opened = self._passed + int(opening[-1]) if len(opening) else self._opened
        self._passed += len(block)
        ends: Indices = newlines[outside]
        return ends

    def _place_behind(self, octet: int, *, is_quoted: bool) -> _Place:
        if is_quoted:
            return _Place.QUOTED
        if octet == self._dialect.quote:
            return _Place.CLOSED
        return _Place.START if octet in (self._dialect.delimiter, _NEWLINE) else _Place.BARE

    def _step_by_step(self, block: bytes) -> Indices:
        ends, place, expected = list[int](), self._place, 0
        meanings = self._dialect.meanings
        for at in self._dialect.special(block).tolist():
            if at != expected:
                place = self._next[place][_Octet.PLAIN]
            before, meaning = place, meanings[block[at]]
            place = self._next[before][meaning]
            if meaning is _Octet.NEWLINE and place is _Place.START:
                ends.append(at)
            elif before is _Place.START and place is _Place.QUOTED:
                self._opened = self._passed + at
            expected = at + 1
        self._place = place if expected == len(block) else self._next[place][_Octet.PLAIN]
        self._passed += len(block)
        return np.array(ends, np.int64)


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """The special bytes."""

    delimiter: int
    quote: int | None
    escape: int | None

    @staticmethod
    def of(options: CsvOptions) -> "Dialect":
        return Dialect(
            delimiter=ord(options.delimiter),
            quote=ord(options.quote) if options.quote else None,
            escape=ord(options.escape) if options.escape and options.escape != options.quote else None,
        )

    @property
    def doubles(self) -> bool:
        return self.escape is None

    @property
    def meanings(self) -> dict[int, _Octet]:
        """What the special bytes mean."""
        meanings = {self.delimiter: _Octet.DELIMITER, _NEWLINE: _Octet.NEWLINE}
        if self.quote is not None:
            meanings[self.quote] = _Octet.QUOTE
        if self.escape is not None:
            meanings[self.escape] = _Octet.ESCAPE
        return meanings

    def special(self, block: bytes) -> Indices:
        is_special = np.zeros(256, np.bool_)
        is_special[list(self.meanings)] = True
        found: Indices = np.flatnonzero(is_special[np.frombuffer(block, np.uint8)])
        return found

    def in_place(
        self, octets: npt.NDArray[np.uint8], quotes: Indices, *, opens: Mask, at_start: Mask, at_end: Mask
    ) -> Mask:
        """Which quotes open at the start of a value, close at its end, or are one of a pair."""
        if not len(quotes):
            return np.zeros(0, np.bool_)
        before = np.where(quotes == 0, ord("x"), octets[quotes - 1])
        after = octets[np.minimum(quotes + 1, len(octets) - 1)]
        is_second, is_first = (self.doubles & (each == self.quote) for each in (before, after))
        opens_well = at_start | is_second | (before == self.delimiter) | (before == _NEWLINE)
        closes_well = at_end | is_first | (after == self.delimiter) | (after == _NEWLINE) | (after == _RETURN)
        well: Mask = np.where(opens, opens_well, closes_well)
        return well


def record_ends(options: CsvOptions) -> Callable[[Part], Indices] | None:
    if not options.multiline or not options.quote:
        return None
    return lambda part: RecordEnds(options, starts_file=part.first == 0).newlines(part.raw)


_NEVER = "(?!)()"


@cache
def _patterns(options: CsvOptions) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """Patterns for quoted text and unquoted text, and for escaped characters inside each."""
    quote, delimiter = re.escape(options.quote), re.escape(options.delimiter)
    if Dialect.of(options).doubles:
        inside, outside = (rf"(?:[^{quote}]|{quote}{quote})*+" if quote else "", rf"[^{delimiter}]*+")
        # Outside of quotes, two quotes are two stray ones.
        in_quoted, in_bare = f"{quote}({quote})" if quote else _NEVER, _NEVER
    else:
        escape = re.escape(options.escape or "")
        inside, outside = (rf"(?:[^{each}{escape}]|{escape}.)*+" for each in (quote, delimiter))
        in_quoted = in_bare = f"{escape}(.)"
    return (
        re.compile(f"{quote}({inside}){quote}", re.DOTALL),
        re.compile(outside, re.DOTALL),
        re.compile(in_quoted, re.DOTALL),
        re.compile(in_bare, re.DOTALL),
    )


def split_record(text: str, options: CsvOptions) -> list[str | None]:
    """Split a record into its values."""
    quoted, bare, in_quoted, in_bare = _patterns(options)
    values, at = list[str | None](), 0
    while True:
        is_quoted = bool(options.quote) and text.startswith(options.quote, at)
        pattern, escaped = (quoted, in_quoted) if is_quoted else (bare, in_bare)
        found = pattern.match(text, at)
        if found is None:
            raise RecordRefused(f"the quote at character {at} is never closed")
        written = found[1] if is_quoted else found[0]
        if not is_quoted and options.quote and options.quote in escaped.sub("", written):
            raise RecordRefused(f"a stray quote in the value at character {at}")
        at = found.end()
        if not text.startswith(options.delimiter, at) and at != len(text):
            raise RecordRefused(f"the value continues after its end, at character {at}")
        values.append(None if not is_quoted and written == options.null else escaped.sub(r"\1", written))
        if at == len(text):
            return values
        at += 1
