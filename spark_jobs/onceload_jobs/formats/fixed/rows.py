"""Fixed width: each column has its place in the line, counted in characters.

Blanks around a value are not part of it. A line that ends before its last column may have been cut off, and its last
value would look like a whole one. So it is bad, unless the pipeline says that writers leave out blanks at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from onceload_jobs.formats.casts import CastColumns, cast_columns, mask_of
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.lines import Lines, bad_of_too_long, lines_of, not_utf8
from onceload_jobs.formats.records import Indices, RecordRefused, Records
from onceload_jobs.formats.tiers import declared_value, read_in_tiers
from onceload_jobs.formats.values import from_text
from onceload_jobs.pipeline.columns import Column, ColumnType
from onceload_jobs.pipeline.declared import FixedOptions, Place, ShortLines, UnknownFields

_BLANK = " "


def read_fixed(
    parts: Sequence[Part],
    columns: tuple[Column, ...],
    *,
    options: FixedOptions,
    unknown_fields: UnknownFields,
    record_bytes_max: int,
) -> Records:
    """Read the lines of all parts, except empty ones."""
    whole = [part for part in parts if not part.too_long]
    lines = lines_of(whole, blanks=b"", record_bytes_max=record_bytes_max)
    reader = _Reader(lines=lines, columns=columns, options=options, unknown_fields=unknown_fields)
    records = read_in_tiers(
        lines.origins(),
        columns,
        suspects=lines.too_long | not_utf8(lines),
        read_many=reader.read_many,
        read_one=reader.read_one,
    )
    return replace(records, bad=records.bad + bad_of_too_long(parts))


@dataclass(frozen=True, kw_only=True)
class _Reader:
    lines: Lines
    columns: tuple[Column, ...]
    options: FixedOptions
    unknown_fields: UnknownFields

    def read_many(self, group: Indices) -> CastColumns:
        readable = np.zeros(self.lines.count, np.bool_)
        texts = pa.array(self.lines.contents(group, without=readable), pa.binary()).cast(pa.string())
        doubted = np.zeros(len(group), np.bool_)
        if self.options.short_lines is ShortLines.QUARANTINE:
            doubted |= mask_of(pc.less(pc.utf8_length(texts), self.options.width))
        for first, end in self._gaps:
            doubted |= mask_of(pc.not_equal(pc.ascii_trim(pc.utf8_slice_codeunits(texts, first, end), _BLANK), ""))
        cast = cast_columns([self._values(texts, column) for column in self.columns], self.columns, count=len(group))
        return replace(cast, doubted=cast.doubted | doubted)

    def read_one(self, index: int) -> list[object]:
        self.lines.check_length(index)
        text = self.lines.text(index)
        if self.options.short_lines is ShortLines.QUARANTINE and len(text) < self.options.width:
            raise RecordRefused(
                f"the line has {len(text)} characters, but its last column ends at character {self.options.width}"
            )
        for first, end in self._gaps:
            if text[first:end].strip(_BLANK):
                shown = f"characters {first + 1} to {min(len(text), end or len(text))}"
                raise RecordRefused(f"{shown} belong to no column and are not blank")
        return [declared_value(column, partial(self._value, text, column)) for column in self.columns]

    def _values(self, texts: pa.Array, column: Column) -> pa.Array:
        place = self._places.get(column.name)
        if place is None:
            return pa.nulls(len(texts), pa.string())
        values = pc.ascii_trim(pc.utf8_slice_codeunits(texts, place.first, place.end), _BLANK)
        is_null = pc.equal(values, self.options.null)
        return pc.if_else(is_null, pa.scalar(None, pa.string()), values)

    def _value(self, text: str, column: Column) -> object:
        place = self._places.get(column.name)
        return None if place is None else _from_place(text, place, column.type, null=self.options.null)

    @cached_property
    def _places(self) -> dict[str, Place]:
        return {place.column: place for place in self.options.places}

    @cached_property
    def _gaps(self) -> list[tuple[int, int | None]]:
        """The characters that must be blank because they belong to no column."""
        if self.unknown_fields is not UnknownFields.FAIL:
            return []
        places = sorted(self.options.places, key=lambda place: place.first)
        ends = [0, *(place.end for place in places)]
        firsts = [*(place.first for place in places), None]
        return [(end, first) for end, first in zip(ends, firsts, strict=True) if first is None or end < first]


def _from_place(text: str, place: Place, column_type: ColumnType, *, null: str) -> object:
    value = text[place.first : place.end].strip(_BLANK)
    return None if value == null else from_text(value, column_type)
