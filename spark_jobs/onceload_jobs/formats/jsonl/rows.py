"""JSON lines: one object per line.

Arrow parses whole blocks. It reads a block as a stream of objects instead of lines: it counts `{}{}` as two rows,
joins an object over two lines, and fails on a leading `null`. Therefore only lines that start and end like an object
are passed to it, and the number of rows must match. Then every line was one object.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.casts import DIGITS_MAX, CastColumns, cast_columns, mask_of, one_array
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.jsonl.levels import Apart, Fields, Level, Splitter, levels_of, undeclared_in
from onceload_jobs.formats.jsonl.slices import RawValues
from onceload_jobs.formats.jsonl.texts import texts_of
from onceload_jobs.formats.jsonl.unknown import Unknown, kinds_of
from onceload_jobs.formats.lines import Lines, bad_of_too_long, lines_of, not_utf8
from onceload_jobs.formats.records import Indices, Mask, RecordRefused, Records, ValueRefused
from onceload_jobs.formats.tiers import declared_value, may_be_added, read_in_tiers
from onceload_jobs.formats.values import from_json
from onceload_jobs.pipeline.columns import ADDED_UP_TO, PRECISION_MAX, Column, ColumnType, Kind, arrow_type
from onceload_jobs.pipeline.declared import UnknownFields

_BLANKS = b" \t\r"
#: How much Arrow parses at once; its offsets end at twice this.
_BLOCK_BYTES_MAX = 2**30
#: In how many lines at once to look for fields that are ignored.
_LOOKED_AT = 256
#: Intermediate results of this many bytes fit into the processor's cache.
_SLAB_BYTES = 2**16
#: The types that Arrow reads from JSON directly; all others are read as text and cast.
_DIRECT = {
    Kind.TEXT,
    Kind.VARCHAR,
    Kind.BOOLEAN,
    Kind.SMALLINT,
    Kind.INTEGER,
    Kind.BIGINT,
    Kind.REAL,
    Kind.DOUBLE,
    Kind.NUMERIC,
}
#: The largest power of ten that Arrow uses to scale decimals of this many bits.
_POWERS = {128: 38, 256: 76}
#: How many zeros may follow the point, and how small an exponent may be, before Arrow may return zero.
_HALF_WAY = {Kind.REAL: 22, Kind.DOUBLE: 160}
_DIGITS = re.compile(rb"0*([0-9]{0,9})")
_ESCAPED = re.compile(rb"\\u00(?:3[0-9]|2[bdeBDE]|[46]5)")


def read_jsonl(
    parts: Sequence[Part],
    columns: tuple[Column, ...],
    *,
    declared: Collection[str],
    unknown_fields: UnknownFields,
    record_bytes_max: int,
    read_value: Callable[[str, ColumnType], object] = from_json,
) -> Records:
    """Read the lines of all parts, except blank ones; a record has at least one of the `declared` fields."""
    whole = [part for part in parts if not part.too_long]
    lines = lines_of(whole, blanks=_BLANKS, record_bytes_max=record_bytes_max)
    records = read_objects(lines, columns, declared=declared, unknown_fields=unknown_fields, read_value=read_value)
    return replace(records, bad=records.bad + bad_of_too_long(parts))


def read_objects(
    lines: Lines,
    columns: tuple[Column, ...],
    *,
    declared: Collection[str],
    unknown_fields: UnknownFields,
    read_value: Callable[[str, ColumnType], object] = from_json,
) -> Records:
    """Read records that should be one object each."""
    unreadable = lines.too_long | not_utf8(lines)
    reader = _Reader(
        lines=lines,
        unreadable=unreadable,
        columns=columns,
        declared=declared,
        unknown_fields=unknown_fields,
        read_value=read_value,
    )
    suspects = unreadable | _looks_unlike_an_object(lines)
    if fractions := [column.type.element for column in columns if column.type.kind in (Kind.NUMERIC, *_HALF_WAY)]:
        suspects |= _may_be_too_small(lines, fractions)
    records = read_in_tiers(
        lines.origins(),
        columns,
        suspects=suspects,
        read_many=reader.read_many,
        read_sliced=reader.read_sliced,
        read_one=reader.read_one,
    )
    return replace(records, unknown=reader.unknown.columns(), ignored=reader.ignored())


def _looks_unlike_an_object(lines: Lines) -> Mask:
    unlike: Mask = (lines.firsts != ord("{")) | (lines.lasts != ord("}"))
    return unlike


def _may_be_too_small(lines: Lines, types: Sequence[ColumnType]) -> Mask:
    """The lines with a number so small that Arrow returns zero, or reads beyond its table of powers of ten."""
    harmless = min(map(_harmless_exponent, types))
    exponents = _negative_exponents(lines.octets)
    # Most have too few digits for that, and need no closer check.
    last_digit = np.minimum(exponents + len(str(harmless)) - 1, len(lines.octets) - 1)
    long_ones = exponents[lines.octets[last_digit] - ord("0") < 10].tolist()
    far = [at for at in long_ones if _number_at(lines.block, at) > harmless]
    # No writer escapes the characters of numbers, but every reader accepts it.
    hidden = [found.start() for found in _ESCAPED.finditer(lines.block)] if b"\\" in lines.block else []
    zeros = {b"0" * _HALF_WAY[each.kind] for each in types if each.kind in _HALF_WAY}
    tiny = [found.start() for run in zeros if run in lines.block for found in re.finditer(run, lines.block)]
    return lines.within(np.array([*far, *hidden, *tiny], np.int64))


def _harmless_exponent(column_type: ColumnType) -> int:
    if column_type.kind is not Kind.NUMERIC:
        return _HALF_WAY[column_type.kind]
    decimal = _roomy(arrow_type(column_type))
    return _POWERS[decimal.bit_width] - int(decimal.precision - decimal.scale)


def _negative_exponents(octets: npt.NDArray[np.uint8]) -> Indices:
    """The positions of digits that may be an exponent: after a digit or point, an e and a minus."""
    found = [np.zeros(0, np.int64)]
    for at in range(0, len(octets), _SLAB_BYTES):
        slab = octets[at : at + _SLAB_BYTES + 2]
        # From the point to the nine is one range, except for the slash.
        likely = (slab[2:] == ord("-")) & ((slab[1:-1] | 0x20) == ord("e")) & (slab[:-2] - ord(".") < 12)
        # `any` is faster than `flatnonzero`, and usually there is no match.
        if likely.any():
            found.append(np.flatnonzero(likely) + at + 3)
    return np.concatenate(found)


def _number_at(block: bytes, at: int) -> int:
    digits = _DIGITS.match(block, at)
    return int(digits[1] or 0) if digits else 0


@dataclass(kw_only=True)
class _Reader:
    lines: Lines
    #: The lines that are too long or not UTF-8.
    unreadable: Mask
    columns: tuple[Column, ...]
    #: The fields of the columns that were not added for undeclared fields.
    declared: Collection[str]
    unknown_fields: UnknownFields
    read_value: Callable[[str, ColumnType], object]
    unknown: Unknown = field(default_factory=Unknown)
    #: Whether the lines that were read last had fields without a column: the next ones then probably have some too.
    has_unknown: bool = False
    #: The lines to look at for fields that are ignored, and whether there are some.
    noticed: Indices = field(default_factory=lambda: np.zeros(0, np.int64))
    is_sure: bool = False

    def read_many(self, group: Indices) -> CastColumns | None:
        if not self._is_for_arrow:
            return None
        block = self.lines.together(group)
        # Arrow is fastest if it has nothing to skip.
        cast = None if self.has_unknown else self._parsed(block, count=len(group), unexpected="error")
        if cast is None and self.unknown_fields is UnknownFields.IGNORE:
            cast = self._parsed(block, count=len(group), unexpected="ignore")
            self.has_unknown = cast is not None
            self._notice(group, is_sure=self.has_unknown)
        return cast

    def read_sliced(self, group: Indices) -> CastColumns | None:
        """The lines as raw values of their fields, which are cast like those of CSV."""
        if not self._top.have_slices or (self.lines.ends - self.lines.starts)[group].sum() > _BLOCK_BYTES_MAX:
            return None
        self._notice(group, is_sure=False)
        apart = self._splitter.apart(self.lines.contents(group, without=self.unreadable))
        doubted = ~apart.whole
        doubted |= ~np.any([apart.values[name].present for name in self.declared], axis=0)
        read = []
        for column in self.columns:
            array, unread = self._sliced_column(apart.at(column.steps), column.type)
            read.append(array)
            doubted |= unread
        cast = cast_columns(read, self.columns, count=len(group))
        return replace(cast, doubted=self._with_unknown(apart, doubted | cast.doubted))

    def ignored(self) -> Ignored:
        """Fields that are not loaded, from the first lines in which there are some."""
        if self.unknown_fields is not UnknownFields.IGNORE:
            return Ignored()
        for at in range(0, len(self.noticed) if self.is_sure else _LOOKED_AT, _LOOKED_AT):
            looked_at = self.lines.contents(self.noticed[at : at + _LOOKED_AT], without=self.unreadable)
            if found := undeclared_in(looked_at, self._top):
                return Ignored.of(found, records=at + len(looked_at))
        return Ignored()

    def _notice(self, group: Indices, *, is_sure: bool) -> None:
        """Lines that have fields without a column for sure, or may have some."""
        if is_sure > self.is_sure or not len(self.noticed):
            self.noticed, self.is_sure = group, is_sure

    def read_one(self, index: int) -> list[object]:
        self.lines.check_length(index)
        found = self._fields(index)
        row = [self._value(column, found) for column in self.columns]
        self._note_unknown(found)
        return row

    def _parsed(self, block: pa.Buffer, *, count: int, unexpected: str) -> CastColumns | None:
        """The lines as Arrow reads them; `unexpected` is what it does with fields without a column."""
        table = _parse(block, self._schema, unexpected=unexpected) if block.size <= _BLOCK_BYTES_MAX else None
        if table is None or table.num_rows != count:
            return None
        arrays = [_at(one_array(table.column(column.steps[0])), column.steps[1:]) for column in self.columns]
        cast = cast_columns(arrays, self.columns, count=count)
        return replace(cast, doubted=cast.doubted | self._without_value(cast))

    def _without_value(self, cast: CastColumns) -> Mask:
        """The lines in which each declared field is missing or null, which Arrow does not distinguish."""
        empty = np.ones(len(cast.doubted), np.bool_)
        for column in self.columns:
            if not empty.any():
                break
            if column.steps[0] in self.declared:
                empty &= mask_of(cast.rows.column(column.name).is_null())
        return empty

    @cached_property
    def _is_for_arrow(self) -> bool:
        """Whether no column needs raw JSON, which Arrow does not return, and each field has one type."""
        return not self._top.is_ambiguous and all(column.type.kind is not Kind.JSONB for column in self.columns)

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema(_arrow_fields(self._top))

    @cached_property
    def _top(self) -> Level:
        return levels_of(self.columns)

    @cached_property
    def _splitter(self) -> Splitter:
        ignores = self.unknown_fields is UnknownFields.IGNORE
        return Splitter(self._top, ignores=ignores, ignores_below=self.unknown_fields is not UnknownFields.FAIL)

    @cached_property
    def _names(self) -> frozenset[str]:
        """The fields of the records that are columns, or have columns inside."""
        return self._top.names

    def _may_be_added(self, name: str) -> bool:
        """Whether an undeclared field may get a column; a column of its name may be read from another path."""
        return may_be_added(name) and all(column.name != name for column in self.columns)

    def _sliced_column(self, raw: RawValues, column_type: ColumnType) -> tuple[pa.Array, Mask]:
        is_kept_jsonb = column_type.kind is Kind.JSONB and self.read_value is not from_json
        if not column_type.is_array and not is_kept_jsonb:
            return texts_of(raw, column_type)
        values, refused = list[object](), np.zeros(len(raw.nulls), np.bool_)
        for at, text in enumerate(raw.texts(raw.nulls).to_pylist()):
            try:
                values.append(None if text is None else self.read_value(text, column_type))
            except ValueRefused:
                values.append(None)
                refused[at] = True
        return pa.array(values, arrow_type(column_type)), refused

    def _with_unknown(self, apart: Apart, doubted: Mask) -> Mask:
        """Note the undeclared fields of the lines that are not doubted, or doubt these too."""
        if self.unknown_fields is UnknownFields.IGNORE:
            return doubted
        doubted = doubted.copy()
        unknown = {name: raw for name, raw in apart.values.items() if name not in self._names}
        for name, raw in unknown.items():
            if self.unknown_fields is UnknownFields.FAIL or not self._may_be_added(name):
                doubted |= raw.present
        kinds = {name: kinds_of(raw, ~doubted) for name, raw in unknown.items()}
        new = [name for name, found in kinds.items() if found and name not in self.unknown.kinds]
        if len(self.columns) + len(self.unknown.kinds) + len(new) > ADDED_UP_TO:
            return np.ones(len(doubted), np.bool_)
        self.unknown.add(kinds)
        return doubted

    def _fields(self, index: int) -> Fields:
        found = Fields.of(self.lines.text(index))
        if found.raw.keys().isdisjoint(self.declared):
            raise RecordRefused("the record has none of the declared fields")
        return found

    def _value(self, column: Column, found: Fields) -> object:
        return declared_value(column, lambda: self.read_value(found.value_of(column), column.type))

    def _note_unknown(self, found: Fields) -> None:
        if self.unknown_fields is UnknownFields.IGNORE:
            return
        unknown = {name: raw for name, raw in found.raw.items() if name not in self._names}
        if self.unknown_fields is UnknownFields.FAIL:
            for name in (*unknown, *found.undeclared_below(self._top)):
                raise RecordRefused(f"the field {name!r} is not declared", column=name)
        for name in unknown:
            if not self._may_be_added(name):
                raise RecordRefused(f"the field {name!r} cannot be the name of a column")
        new = [name for name, raw in unknown.items() if raw != "null" and name not in self.unknown.kinds]
        if new and len(self.columns) + len(self.unknown.kinds) + len(new) > ADDED_UP_TO:
            reason = f"a column for {new[0]!r} would give the table more than {ADDED_UP_TO} columns"
            raise RecordRefused(reason, column=new[0])
        self.unknown.see(unknown)


def _arrow_fields(level: Level) -> list[pa.Field]:
    fields = [pa.field(name, _read_type(column.type)) for name, column in level.columns.items()]
    return fields + [pa.field(name, pa.struct(_arrow_fields(below))) for name, below in level.objects.items()]


def _at(values: pa.Array, steps: tuple[str, ...]) -> pa.Array:
    """The values of a field inside objects; null where one of the objects is missing."""
    return pc.struct_field(values, list(steps)) if steps else values


def _read_type(column_type: ColumnType) -> pa.DataType:
    if column_type.is_array:
        return pa.list_(_read_type(column_type.element))
    if column_type.kind is Kind.NUMERIC:
        return _roomy(arrow_type(column_type))
    return arrow_type(column_type) if column_type.kind in _DIRECT else pa.string()


def _roomy(decimal: pa.DataType) -> pa.DataType:
    """A decimal with room for all digits that Arrow lets pass before the point, as it overflows silently."""
    if decimal.precision + decimal.scale <= PRECISION_MAX:
        return decimal
    return pa.decimal256(DIGITS_MAX - decimal.scale, decimal.scale)


def _parse(block: pa.Buffer, schema: pa.Schema, *, unexpected: str) -> pa.Table | None:
    try:
        return pj.read_json(
            pa.BufferReader(block),
            # The next chunk belongs to another task, so threads would only compete with it.
            read_options=pj.ReadOptions(use_threads=False, block_size=block.size + 1),
            parse_options=pj.ParseOptions(
                explicit_schema=schema, newlines_in_values=False, unexpected_field_behavior=unexpected
            ),
        )
    except pa.ArrowException:
        return None
