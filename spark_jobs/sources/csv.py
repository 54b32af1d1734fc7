"""CSV: records are lines, unless newlines inside quotes belong to the value.

A quote opens a value only where the value starts, and closes it only where the value ends; a quote anywhere else is
stray and makes its record bad, but no quote of another record. Where records end is decided here alone, and Arrow is
given only records whose quotes are all in their places, so that it must see the same records.
An empty line is no record, as in every format of lines; a null in a file of one column is therefore written as text.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import cache, cached_property, partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv

from spark_jobs.columns import Column, ColumnType, Kind
from spark_jobs.declared import CsvOptions, MissingColumns, UnknownFields
from spark_jobs.sources.addresses import told
from spark_jobs.sources.casts import Settled, one_array, settle
from spark_jobs.sources.files import open_stream
from spark_jobs.sources.lines import BOM, Lines, bad_of_too_long, lines_of, not_utf8, positions_of
from spark_jobs.sources.records import FileRefused, Indices, Mask, Part, Records
from spark_jobs.sources.signatures import check_text
from spark_jobs.sources.tiers import RecordRefused, declared_value, may_be_added, read_in_tiers
from spark_jobs.sources.values import from_text

_BLOCK_BYTES_MAX = 2**30
_HEADER_BYTES_MAX = 2**20
_HEADER_STEP_BYTES = 64 * 2**10
_NEWLINE, _RETURN = ord("\n"), ord("\r")


def read_csv(
    parts: Sequence[Part],
    columns: tuple[Column, ...],
    *,
    header: tuple[str, ...],
    options: CsvOptions,
    unknown_fields: UnknownFields,
    record_bytes_max: int,
) -> Records:
    """Read the records of all parts; `header` names the fields in their order."""
    whole = [part for part in parts if not part.too_long]
    ends = _record_ends(options)
    lines = lines_of(whole, blanks=b"", record_bytes_max=record_bytes_max, record_ends=ends)
    if options.header:
        lines = lines.only(lines.sequence_ids != 0)
    reader = _Reader(lines=lines, columns=columns, header=header, options=options, unknown_fields=unknown_fields)
    suspects = lines.too_long | not_utf8(lines) | _misread(lines, options) | (reader.refusal is not None)
    records = read_in_tiers(
        lines.origins(), columns, suspects=suspects, read_many=reader.read_many, read_one=reader.read_one
    )
    return replace(records, bad=records.bad + bad_of_too_long(parts), unknown=reader.unknown(records))


# The first record, which names the fields.


def read_header(url: str, options: CsvOptions, *, sealed: bool) -> tuple[str, ...] | None:
    """The names of a file's fields, which later parts of it do not show; none while its first record may go on."""
    first = _first_record(url, options)
    check_text(url, first)
    if first and not first.endswith(b"\n") and not sealed:
        return None
    try:
        return split_header(first, options) if first else ()
    except (UnicodeDecodeError, RecordRefused) as error:
        reason = "it is no valid UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        raise _header_refused(url, f"that line cannot be read: {reason}") from error


def _first_record(url: str, options: CsvOptions) -> bytes:
    ends, begun = RecordEnds(options, starts_file=True), b""
    with open_stream(url) as stream:
        while len(begun) < _HEADER_BYTES_MAX:
            with told(url):
                block = stream.read(_HEADER_STEP_BYTES)
            found = ends.newlines(block)
            if len(found) or not block:
                return begun + block[: int(found[0]) + 1 if len(found) else None]
            begun += block
    raise _header_refused(url, f"that line has no end in its first {len(begun)} bytes")


def _header_refused(url: str, found: str) -> FileRefused:
    expected = "begin with a line that names its columns"
    return FileRefused(url, expected, found, "mend that line, or set source.options to how the file is written")


def split_header(first_record: bytes, options: CsvOptions) -> tuple[str, ...]:
    """The names of the fields, from a file's first record."""
    line = first_record.removeprefix(BOM).removesuffix(b"\n").removesuffix(b"\r")
    return tuple(name or "" for name in split_record(line.decode(), replace(options, null="")))


def check_header(url: str, header: tuple[str, ...], columns: tuple[Column, ...], options: CsvOptions) -> None:
    """Refuse a file whose first line shows that it is not of these columns: all its values would be null."""
    missing = [column for column in columns if column.name not in header]
    may_miss = options.missing_columns is MissingColumns.IGNORE and len(missing) < len(columns)
    lacking = [column.name for column in missing if column.not_null or not may_miss]
    if lacking:
        names = ", ".join(map(repr, header[:_NAMES_SHOWN])) + (", ..." if len(header) > _NAMES_SHOWN else "")
        raise FileRefused(
            url,
            f"name the declared columns in its first line, among them {', '.join(lacking[:_NAMES_SHOWN])}",
            f"that line names {names}",
            "mend that line or the delimiter, or set missing_columns: ignore, which leaves nullable ones null",
        )


_NAMES_SHOWN = 5


# Where records end.


class _Place(Enum):
    """Where in a record the next byte stands."""

    #: Where a value starts, and where alone a quote opens one.
    START = auto()
    #: In a value without quotes, or behind the quotes of one.
    BARE = auto()
    QUOTED = auto()
    #: Right behind a quote inside quotes, which closes them unless it is one of two.
    CLOSED = auto()


class RecordEnds:
    """Finds the newlines that end records, in blocks that follow each other from the start of a record.

    It knows no more than where it stands, so blocks may be cut anywhere, even between the two of a doubled quote.
    """

    def __init__(self, options: CsvOptions, *, starts_file: bool = False) -> None:
        self._multiline = options.multiline and bool(options.quote)
        self._dialect = _Dialect.of(options)
        self._place = _Place.START
        self._is_escaped = False
        #: How many bytes it has seen, and where in them the last value in quotes began.
        self._passed = self._opened = 0
        #: What may still come of a byte order mark, which is no part of the first value.
        self._mark = BOM if starts_file else b""

    def last_end(self, block: bytes) -> int | None:
        """Say where in this block the last record that ends in it does, behind its newline."""
        newlines = self.newlines(block)
        return int(newlines[-1]) + 1 if len(newlines) else None

    def first_end(self, block: bytes) -> int | None:
        """Say where the first one does; what is behind it comes again, in the next block."""
        passed, newlines = self._passed, self.newlines(block)
        if not len(newlines):
            return None
        end = int(newlines[0]) + 1
        self._place, self._is_escaped, self._passed = _Place.START, False, passed + end
        return end

    @property
    def open_quote(self) -> int | None:
        """Where a quote opens that is not closed, counted from the start of the first block."""
        return self._opened if self._place is _Place.QUOTED else None

    def newlines(self, block: bytes) -> Indices:
        """Say where in this block the newlines are that end records."""
        if not self._multiline or not block:
            return positions_of(b"\n", block)
        skipped = self._mark_in(block) if self._mark else 0
        if skipped:
            self._passed += skipped
            return self.newlines(block[skipped:]) + skipped
        found = None if self._is_unusual(block) else self._at_once(block)
        found = self._step_by_step(block) if found is None else found
        self._passed += len(block)
        return found

    def _mark_in(self, block: bytes) -> int:
        """How many bytes of a byte order mark this block starts with."""
        here, left = self._mark[: len(block)], self._mark[len(block) :]
        if block.startswith(here):
            self._mark = left
            return len(here)
        # What began like a mark was the beginning of a value.
        self._place = self._place if self._mark == BOM else _Place.BARE
        self._mark = b""
        return 0

    def _is_unusual(self, block: bytes) -> bool:
        escape = self._dialect.escape
        return self._is_escaped or self._place is _Place.CLOSED or (escape is not None and escape in block)

    def _at_once(self, block: bytes) -> Indices | None:
        """Count quotes, which says everything as long as each of them is in its place."""
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
        if self._place is _Place.QUOTED:
            # Behind another quote stands the second of two, which opens nothing.
            opening = quotes[opens & ((quotes == 0) | (octets[quotes - 1] != self._dialect.quote))]
            self._opened = self._passed + int(opening[-1]) if len(opening) else self._opened
        ends: Indices = newlines[outside]
        return ends

    def _place_behind(self, octet: int, *, is_quoted: bool) -> _Place:
        if is_quoted:
            return _Place.QUOTED
        if octet == self._dialect.quote:
            return _Place.CLOSED
        return _Place.START if octet in (self._dialect.delimiter, _NEWLINE) else _Place.BARE

    def _step_by_step(self, block: bytes) -> Indices:
        ends, expected = list[int](), 0
        for at in self._dialect.special(block).tolist():
            if at != expected:
                self._pass_plain()
            before = self._place
            if self._step(block[at]):
                ends.append(at)
            if before is _Place.START and self._place is _Place.QUOTED:
                self._opened = self._passed + at
            expected = at + 1
        if expected < len(block):
            self._pass_plain()
        return np.array(ends, np.int64)

    def _pass_plain(self) -> None:
        self._is_escaped = False
        if self._place is not _Place.QUOTED:
            self._place = _Place.BARE

    def _step(self, octet: int) -> bool:
        """Take one special byte, and say whether it ends the record."""
        is_literal = self._is_escaped and (octet != _NEWLINE or self._place is _Place.QUOTED)
        self._is_escaped = not is_literal and octet == self._dialect.escape
        if is_literal or self._is_escaped:
            self._place = _Place.QUOTED if self._place is _Place.QUOTED else _Place.BARE
        elif self._place is _Place.QUOTED:
            self._place = _Place.CLOSED if octet == self._dialect.quote else _Place.QUOTED
        else:
            self._place = self._place_outside(octet)
            return octet == _NEWLINE
        return False

    def _place_outside(self, octet: int) -> _Place:
        if octet in (self._dialect.delimiter, _NEWLINE):
            return _Place.START
        doubled = self._place is _Place.CLOSED and self._dialect.doubles
        # Octets that get here are special, so what is neither of those two is a quote.
        return _Place.QUOTED if doubled or self._place is _Place.START else _Place.BARE


@dataclass(frozen=True, kw_only=True)
class _Dialect:
    """The special bytes."""

    delimiter: int
    quote: int | None
    escape: int | None

    @staticmethod
    def of(options: CsvOptions) -> "_Dialect":
        return _Dialect(
            delimiter=ord(options.delimiter),
            quote=ord(options.quote) if options.quote else None,
            escape=ord(options.escape) if options.escape and options.escape != options.quote else None,
        )

    @property
    def doubles(self) -> bool:
        return self.escape is None

    def special(self, block: bytes) -> Indices:
        is_special = np.zeros(256, np.bool_)
        is_special[[each for each in (self.delimiter, self.quote, self.escape, _NEWLINE) if each is not None]] = True
        found: Indices = np.flatnonzero(is_special[np.frombuffer(block, np.uint8)])
        return found

    def in_place(
        self, octets: npt.NDArray[np.uint8], quotes: Indices, *, opens: Mask, at_start: Mask, at_end: Mask
    ) -> Mask:
        """Which quotes open where a value starts, close where it ends, or are one of two."""
        if not len(quotes):
            return np.zeros(0, np.bool_)
        before = np.where(quotes == 0, ord("x"), octets[quotes - 1])
        after = octets[np.minimum(quotes + 1, len(octets) - 1)]
        is_second, is_first = (self.doubles & (each == self.quote) for each in (before, after))
        opens_well = at_start | is_second | (before == self.delimiter) | (before == _NEWLINE)
        closes_well = at_end | is_first | (after == self.delimiter) | (after == _NEWLINE) | (after == _RETURN)
        well: Mask = np.where(opens, opens_well, closes_well)
        return well


def _record_ends(options: CsvOptions) -> Callable[[Part], Indices] | None:
    if not options.multiline or not options.quote:
        return None
    return lambda part: RecordEnds(options, starts_file=part.first == 0).newlines(part.raw)


# The slow tier: one record.


_NEVER = "(?!)()"


@cache
def _patterns(options: CsvOptions) -> tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str]]:
    """What is inside quotes, what is without, and what stands for another character."""
    quote, delimiter = re.escape(options.quote), re.escape(options.delimiter)
    if _Dialect.of(options).doubles:
        inside, outside = (rf"(?:[^{quote}]|{quote}{quote})*+" if quote else "", rf"[^{delimiter}]*+")
        special = f"{quote}({quote})" if quote else _NEVER
    else:
        escape = re.escape(options.escape or "")
        inside, outside = (rf"(?:[^{each}{escape}]|{escape}.)*+" for each in (quote, delimiter))
        special = f"{escape}(.)"
    return (
        re.compile(f"{quote}({inside}){quote}", re.DOTALL),
        re.compile(outside, re.DOTALL),
        re.compile(special, re.DOTALL),
    )


def split_record(text: str, options: CsvOptions) -> list[str | None]:
    """The values of one record."""
    quoted, bare, special = _patterns(options)
    values, at = list[str | None](), 0
    while True:
        is_quoted = bool(options.quote) and text.startswith(options.quote, at)
        found = (quoted if is_quoted else bare).match(text, at)
        if found is None:
            raise RecordRefused(f"the quote at character {at} is never closed")
        written = found[1] if is_quoted else found[0]
        if not is_quoted and options.quote and options.quote in special.sub("", written):
            raise RecordRefused(f"a stray quote in the value at character {at}")
        at = found.end()
        if not text.startswith(options.delimiter, at) and at != len(text):
            raise RecordRefused(f"the value goes on after its end, at character {at}")
        values.append(None if not is_quoted and written == options.null else special.sub(r"\1", written))
        if at == len(text):
            return values
        at += 1


# The two tiers.


def _misread(lines: Lines, options: CsvOptions) -> Mask:
    """Which records Arrow might read in another way."""
    dialect = _Dialect.of(options)
    # For Arrow a carriage return alone ends a line.
    misread = (
        lines.within(positions_of(b"\r", lines.block)) if b"\r" in lines.block else np.zeros(lines.count, np.bool_)
    )
    if BOM in lines.block:
        # At the start of what it parses, Arrow skips one; for us it is a part of every value but a file's first.
        marked = [at for at in np.flatnonzero(lines.firsts == BOM[0]) if lines.block.startswith(BOM, lines.starts[at])]
        misread[marked] = True
    if dialect.escape is not None and dialect.escape in lines.block:
        misread |= lines.within(positions_of(bytes([dialect.escape]), lines.block))
    if options.quote and options.quote.encode() in lines.block:
        misread |= _misquoted(lines, dialect, positions_of(options.quote.encode(), lines.block))
    return misread


def _misquoted(lines: Lines, dialect: _Dialect, quotes: Indices) -> Mask:
    firsts, ends = np.searchsorted(quotes, lines.starts), np.searchsorted(quotes, lines.ends)
    counts = ends - firsts
    record_of = np.repeat(np.arange(lines.count), counts)
    ordinals = np.arange(len(record_of)) - np.repeat(np.cumsum(counts) - counts, counts)
    inside = quotes[np.repeat(firsts, counts) + ordinals]
    in_place = dialect.in_place(
        lines.octets,
        inside,
        opens=ordinals % 2 == 0,
        at_start=inside == lines.starts[record_of],
        at_end=inside == lines.ends[record_of] - 1,
    )
    misquoted: Mask = counts % 2 == 1
    misquoted[record_of[~in_place]] = True
    return misquoted


@dataclass(frozen=True, kw_only=True)
class _Reader:
    lines: Lines
    columns: tuple[Column, ...]
    header: tuple[str, ...]
    options: CsvOptions
    unknown_fields: UnknownFields

    def read_many(self, group: Indices) -> Settled | None:
        block = self.lines.together(group)
        table = self._parse(block) if block.size <= _BLOCK_BYTES_MAX else None
        if table is None or table.num_rows != len(group):
            return None
        arrays = [
            pa.nulls(len(group), pa.string()) if at is None else one_array(table.column(str(at))) for at in self._places
        ]
        return settle(arrays, self.columns, count=len(group))

    def read_one(self, index: int) -> list[object]:
        self.lines.check_length(index)
        if self.refusal is not None:
            raise self.refusal
        values = split_record(self.lines.text(index), self.options)
        if len(values) != len(self.header):
            raise RecordRefused(f"{len(values)} values where {len(self.header)} were expected")
        texts = (None if at is None else values[at] for at in self._places)
        return [
            declared_value(column, partial(_value, text, column.type))
            for column, text in zip(self.columns, texts, strict=True)
        ]

    @cached_property
    def refusal(self) -> RecordRefused | None:
        """Why no record of this header can be loaded, if so."""
        for column in self.columns:
            if self.header.count(column.name) > 1:
                return RecordRefused("the header names the column twice", column=column.name)
        for name in self.undeclared:
            if self.unknown_fields is UnknownFields.FAIL:
                return RecordRefused(f"the field {name!r} is not declared", column=name)
            if self.unknown_fields is UnknownFields.ADD and not may_be_added(name):
                return RecordRefused(f"the field {name!r} cannot be the name of a column")
        return None

    @cached_property
    def undeclared(self) -> tuple[str, ...]:
        declared = {column.name for column in self.columns}
        return tuple(dict.fromkeys(name for name in self.header if name not in declared))

    @cached_property
    def _places(self) -> tuple[int | None, ...]:
        return tuple(self.header.index(column.name) if column.name in self.header else None for column in self.columns)

    def unknown(self, records: Records) -> tuple[Column, ...]:
        """All that is known of a field of CSV is that it is a text."""
        if self.unknown_fields is not UnknownFields.ADD or not records.rows.num_rows:
            return ()
        return tuple(Column(name=name, type=ColumnType(kind=Kind.TEXT)) for name in self.undeclared)

    def _parse(self, block: pa.Buffer) -> pa.Table | None:
        # Names may be empty or occur twice, places may not; and a list of no columns means all of them.
        read = [str(at) for at in self._places if at is not None] or ["0"]
        try:
            return pa_csv.read_csv(
                pa.BufferReader(block),
                read_options=pa_csv.ReadOptions(
                    use_threads=False,
                    block_size=block.size + 1,
                    column_names=[str(at) for at in range(len(self.header))],
                ),
                parse_options=self._parse_options(),
                convert_options=pa_csv.ConvertOptions(
                    column_types=dict.fromkeys(read, pa.string()),
                    include_columns=read,
                    null_values=[self.options.null],
                    strings_can_be_null=True,
                    quoted_strings_can_be_null=False,
                ),
            )
        except pa.ArrowException:
            return None

    def _parse_options(self) -> pa_csv.ParseOptions:
        return pa_csv.ParseOptions(
            delimiter=self.options.delimiter,
            quote_char=self.options.quote or False,
            double_quote=bool(self.options.quote) and _Dialect.of(self.options).doubles,
            newlines_in_values=self.options.multiline,
            ignore_empty_lines=True,
        )


def _value(text: str | None, column_type: ColumnType) -> object:
    return None if text is None else from_text(text, column_type)
