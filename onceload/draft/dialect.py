"""Guess how CSV files are written: the readers of the product split a part of the file in each likely way."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, product

from onceload.draft.observe import Observed, lines_in, observe_csv, records_in
from onceload.draft.sample import Content, Sampled, is_utf8, not_utf8, parts_of
from onceload.draft.types import type_of
from onceload.draft.values import Written, of_csv
from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv.dialect import RecordEnds, split_record
from onceload_jobs.formats.csv.header import read_header
from onceload_jobs.formats.records import RecordRefused
from onceload_jobs.pipeline.columns import Kind
from onceload_jobs.pipeline.declared import CsvOptions

#: If two split all records alike, the first is taken: commas and bars are more often parts of values.
_DELIMITERS = ("\t", ";", "|", ",")
_LOOK_BYTES = 2**16
_RECORDS_MAX = 200
#: How many broken lines, and lines after each, are looked at for a value of several lines.
_BROKEN_LINES_MAX, _LINES_OF_A_VALUE_MAX = 20, 50
#: A sign that fewer records have is a part of texts, and no delimiter.
_SHARE_MIN = 0.75
#: Spellings of null. In a column of numbers or times, one of them cannot be a value.
_NULLS = ("\\N", "NULL", "null", "NA", "N/A", "n/a", "#N/A", "None", "none", "nil", "-", "?")
#: These are spellings of null in a column of texts too, if nothing else is null.
_SURE_NULLS = ("\\N", "NULL")
_NAME = re.compile(r"[^\W\d][\w .:/()%#&+-]*")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Options, and how well they fit."""

    options: CsvOptions
    #: How many fields most records have, and the share of the text in such records.
    width: int
    share: float
    #: Whether the first record is one of them.
    fits_first: bool
    rows: tuple[list[str | None], ...]

    @property
    def is_sure(self) -> bool:
        """Whether it splits all records into the same number of fields."""
        return self.width > 1 and self.share == 1

    @property
    def rank(self) -> tuple[bool, bool, float]:
        """A header is hardly ever broken, as other records are."""
        return self.width > 1 and self.share >= _SHARE_MIN, self.fits_first, self.share


def guess_dialect(content: Content) -> Dialect:
    raw = content.beginning[:_LOOK_BYTES]
    if not is_utf8(content.beginning.split(b"\n", 1)[0]):
        raise not_utf8(content.listed.url)
    is_cut = len(raw) < len(content.beginning) or not content.is_whole
    looked = _Looked(raw[: raw.rfind(b"\n") + 1] if is_cut and b"\n" in raw else raw)
    best = max((looked.split(CsvOptions(delimiter=each)) for each in _DELIMITERS), key=lambda each: each.rank)
    if not best.is_sure:
        best = max([best, *map(looked.split, _unusual(looked.raw))], key=lambda each: each.rank)
    if best.width == 1:
        # Any delimiter fits a file of one column.
        usual = looked.split(replace(best.options, delimiter=CsvOptions.delimiter))
        best = usual if usual.rank == best.rank else best
    return replace(best, options=replace(best.options, header=_has_header(best.rows)))


def _unusual(raw: bytes) -> Iterator[CsvOptions]:
    for delimiter in _DELIMITERS:
        quotes = [quote for quote in "\"'" if _quoted_values(delimiter, quote).search(raw)] or ['"', ""]
        for quote, multiline in product(quotes, (False, True)):
            if quote or not multiline:
                options = CsvOptions(delimiter=delimiter, quote=quote, multiline=multiline)
                yield options
                if quote and f"\\{quote}".encode() in raw:
                    yield replace(options, escape="\\")


def _quoted_values(delimiter: str, quote: str) -> re.Pattern[bytes]:
    edge, sign = re.escape(delimiter.encode()), quote.encode()
    inside = rb"(?:[^%b]|%b%b)*+" % (sign, sign, sign)
    return re.compile(rb"(?:^|%b)%b%b%b(?:%b|\r?$)" % (edge, sign, inside, sign, edge), re.MULTILINE)


class _Looked:
    """The beginning of a file, split in several ways."""

    def __init__(self, raw: bytes) -> None:
        self.raw = raw
        self._part = Part(producer_id=ProducerId(0), first=0, end=len(raw), raw=raw)
        self._size = sum(len(line) + 1 for line in lines_in([self._part], CsvOptions(header=False)))

    def split(self, options: CsvOptions) -> Dialect:
        lines = list(lines_in([self._part], replace(options, header=False)))
        records = [(line, row) for line in lines if (row := _find_fields(line, options)) is not None]
        sizes = Counter[int]()
        for line, row in records:
            sizes[len(row)] += len(line) + 1
        width = sizes.most_common(1)[0][0] if sizes else 1
        rows = [row for _, row in records if len(row) == width]
        return Dialect(
            options=options,
            width=width,
            share=min(1.0, sizes[width] / max(1, self._size)),
            fits_first=bool(rows) and rows[0] == _find_fields(lines[0], options),
            rows=tuple(rows[:_RECORDS_MAX]),
        )


def _find_fields(text: str, options: CsvOptions) -> list[str | None] | None:
    try:
        return split_record(text, options)
    except RecordRefused:
        return None


def _has_header(rows: Sequence[Sequence[str | None]]) -> bool:
    """Whether the first record names the columns: none of its values is typed, and none occurs below it."""
    first, below = rows[0] if rows else (), rows[1:]
    columns = [[row[at] for row in below if row[at]] for at in range(len(first))]
    # A column of row numbers often has no name.
    if not any(first) or not _ways(first) <= _NAMES or len(set(first)) < len(first) / 2:
        return False
    if any(name in column for name, column in zip(first, columns, strict=True)):
        return False
    is_above_typed = any(column and not _ways(column) & _NAMES for column in columns)
    return is_above_typed or all(_NAME.fullmatch(name or "") for name in first)


#: How the names of columns are written.
_NAMES = {Written.TEXT, Written.WORD}


def _ways(values: Sequence[str | None]) -> set[Written]:
    return {of_csv(value).written for value in values if value}


def sample_csv(content: Content, dialect: Dialect) -> Sampled:
    options, url = dialect.options, content.listed.url
    ends = RecordEnds(options, starts_file=True) if options.multiline else None
    parts = parts_of(content, last_end=ends.last_end if ends else None)
    if options.header:
        header = read_header(url, options, sealed=True) or ()
    else:
        header = tuple(f"column_{number}" for number in range(1, dialect.width + 1))
    parts = tuple(part for part in parts if not part.is_tail or _is_record(part, options, len(header)))
    return Sampled(listed=content.listed, parts=parts, is_whole=content.is_whole, header=header)


def has_quoted_newlines(files: Sequence[Sampled], options: CsvOptions) -> bool:
    """Whether a line that is not a record becomes one together with the lines after it."""
    for file in files:
        lines = list(lines_in(file.parts, options))
        broken = (at for at, line in enumerate(lines) if options.quote in line and _find_fields(line, options) is None)
        for at in islice(broken, _BROKEN_LINES_MAX):
            ends = range(at + 2, min(at + _LINES_OF_A_VALUE_MAX, len(lines)) + 1)
            joined = (_find_fields("\n".join(lines[at:end]), options) for end in ends)
            if any(row is not None and len(row) == len(file.header) for row in joined):
                return True
    return False


def _is_record(tail: Part, options: CsvOptions, width: int) -> bool:
    """Whether a last line without a newline is complete, as far as its fields show."""
    rows = records_in([tail], replace(options, header=False))
    return any(len(row) == width for row in rows)


def observe_with_null(files: Sequence[Sampled], options: CsvOptions) -> tuple[CsvOptions, Observed]:
    """Find the spelling of null with which the most columns have a type of their own."""
    best, options_of_best = observe_csv(files, options), options
    has_nulls = any(best.absent(seen) for seen in best.fields.values())
    for null in _NULLS:
        if not any(null in seen.distinct for seen in best.fields.values()):
            continue
        other = observe_csv(files, replace(options, null=null))
        gained = _typed(other) - _typed(best)
        if gained > 0 or (gained == 0 and null in _SURE_NULLS and not has_nulls):
            best, options_of_best, has_nulls = other, replace(options, null=null), True
    return options_of_best, best


def _typed(observed: Observed) -> int:
    types = (type_of(seen, is_json=False).kind for seen in observed.fields.values() if seen.kinds)
    return sum(kind is not Kind.TEXT for kind in types)
