"""CSV: records are lines, unless newlines inside quotes belong to the value.

A quote opens a value only at its start, and closes it only at its end. Any other quote is stray and makes its own
record bad, but no other record. Only this module decides where records end. Arrow gets only records with all quotes in
valid places, so that it must find the same records.
An empty line is not a record, as in every line format; in a file of one column, null therefore needs another text.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.casts import CastColumns, cast_columns, one_array
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv.dialect import Dialect, record_ends, split_record
from onceload_jobs.formats.lines import BOM, Lines, bad_of_too_long, lines_of, not_utf8, positions_of
from onceload_jobs.formats.records import Indices, Mask, RecordRefused, Records
from onceload_jobs.formats.tiers import declared_value, may_be_added, read_in_tiers
from onceload_jobs.formats.values import from_text
from onceload_jobs.pipeline.columns import Column, ColumnType, Kind
from onceload_jobs.pipeline.declared import CsvOptions, UnknownFields

_BLOCK_BYTES_MAX = 2**30


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
    ends = record_ends(options)
    lines = lines_of(whole, blanks=b"", record_bytes_max=record_bytes_max, record_ends=ends)
    if options.header:
        lines = lines.only(lines.sequence_ids != 0)
    reader = _Reader(lines=lines, columns=columns, header=header, options=options, unknown_fields=unknown_fields)
    suspects = lines.too_long | not_utf8(lines) | _misread(lines, options) | (reader.refusal is not None)
    records = read_in_tiers(
        lines.origins(), columns, suspects=suspects, read_many=reader.read_many, read_one=reader.read_one
    )
    ignored = dict.fromkeys(reader.undeclared if unknown_fields is UnknownFields.IGNORE else (), lines.count)
    return replace(
        records,
        bad=records.bad + bad_of_too_long(parts),
        unknown=reader.unknown(records),
        ignored=Ignored.of(ignored, records=lines.count),
    )


def _misread(lines: Lines, options: CsvOptions) -> Mask:
    """The records that Arrow might read differently."""
    dialect = Dialect.of(options)
    quotes = positions_of(options.quote.encode(), lines.block) if options.quote else np.zeros(0, np.int64)
    misread = _misquoted(lines, dialect, quotes) if len(quotes) else np.zeros(lines.count, np.bool_)
    if lines.count and b"\r" in lines.block:
        misread |= _with_bare_returns(lines, quotes)
    if BOM in lines.block:
        # Arrow skips a byte order mark at the start of each block; here it is part of every value but a file's first.
        marked = [at for at in np.flatnonzero(lines.firsts == BOM[0]) if lines.block.startswith(BOM, lines.starts[at])]
        misread[marked] = True
    if dialect.escape is not None and dialect.escape in lines.block:
        misread |= lines.within(positions_of(bytes([dialect.escape]), lines.block))
    return misread


def _with_bare_returns(lines: Lines, quotes: Indices) -> Mask:
    """The records with a carriage return outside of quotes, where Arrow ends a line."""
    returns = positions_of(b"\r", lines.block)
    starts = lines.starts[np.maximum(np.searchsorted(lines.starts, returns, "right") - 1, 0)]
    is_quoted = (np.searchsorted(quotes, returns) - np.searchsorted(quotes, starts)) % 2 == 1
    return lines.within(returns[~is_quoted])


def _misquoted(lines: Lines, dialect: Dialect, quotes: Indices) -> Mask:
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

    def read_many(self, group: Indices) -> CastColumns | None:
        block, refused = self.lines.together(group), list[int]()
        table = self._parse(block, refused) if block.size <= _BLOCK_BYTES_MAX else None
        if table is None or table.num_rows == 0 or table.num_rows + len(refused) != len(group):
            return None
        arrays = [
            pa.nulls(table.num_rows, pa.string()) if at is None else one_array(table.column(str(at)))
            for at in self._places
        ]
        cast = cast_columns(arrays, self.columns, count=table.num_rows)
        return _among_refused(cast, refused) if refused else cast

    def read_one(self, index: int) -> list[object]:
        self.lines.check_length(index)
        if self.refusal is not None:
            raise self.refusal
        values = split_record(self.lines.text(index), self.options)
        if len(values) != len(self.header):
            raise RecordRefused(f"{len(values)} values instead of {len(self.header)}")
        texts = (None if at is None else values[at] for at in self._places)
        return [
            declared_value(column, partial(_value, text, column.type))
            for column, text in zip(self.columns, texts, strict=True)
        ]

    @cached_property
    def refusal(self) -> RecordRefused | None:
        """Why no record with this header can be loaded, or None."""
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
        """The type of an undeclared CSV field is always text."""
        if self.unknown_fields is not UnknownFields.ADD or not records.rows.num_rows:
            return ()
        return tuple(Column(name=name, type=ColumnType(kind=Kind.TEXT)) for name in self.undeclared)

    def _parse(self, block: pa.Buffer, refused: list[int]) -> pa.Table | None:
        """The records of a block but for those with too few or too many values, of which it notes the positions."""

        def skip(row: pa_csv.InvalidRow) -> str:
            refused.append(row.number - 1)
            return "skip"

        # Names may be empty or repeated, positions not; an empty list of columns would mean all.
        read = [str(at) for at in self._places if at is not None] or ["0"]
        try:
            return pa_csv.read_csv(
                pa.BufferReader(block),
                read_options=pa_csv.ReadOptions(
                    use_threads=False,
                    block_size=block.size + 1,
                    column_names=[str(at) for at in range(len(self.header))],
                ),
                parse_options=self._parse_options(skip),
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

    def _parse_options(self, skip: Callable[[pa_csv.InvalidRow], str]) -> pa_csv.ParseOptions:
        return pa_csv.ParseOptions(
            delimiter=self.options.delimiter,
            quote_char=self.options.quote or False,
            double_quote=bool(self.options.quote) and Dialect.of(self.options).doubles,
            newlines_in_values=self.options.multiline,
            ignore_empty_lines=True,
            invalid_row_handler=skip,
        )


def _among_refused(cast: CastColumns, refused: list[int]) -> CastColumns:
    """Add the records that were refused, with the values of others, as doubted ones."""
    doubted = np.zeros(len(cast.doubted) + len(refused), np.bool_)
    doubted[refused] = True
    places = np.maximum(np.cumsum(~doubted) - 1, 0)
    return CastColumns(rows=cast.rows.take(places), doubted=doubted | cast.doubted[places])


def _value(text: str | None, column_type: ColumnType) -> object:
    return None if text is None else from_text(text, column_type)
