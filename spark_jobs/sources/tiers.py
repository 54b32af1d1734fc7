"""Two tiers of reading: whole columns at once where Arrow reads them right, and record by record where in doubt.

The fast tier may refuse whatever it likes, but what it accepts is what the slow tier would have read: so a record
gives the same row, or the same bad record, whatever its neighbours are. What the fast tier cannot read together is cut
into smaller and smaller groups, and what it doubts is left to the slow tier alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from decimal import Decimal
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from dedup_core.names import ProducerId
from spark_jobs.columns import PRECISION_MAX, RESERVED, Column, ColumnType, Kind, arrow_schema, arrow_type
from spark_jobs.sources.pieces import KEPT_BYTES
from spark_jobs.sources.records import LINEAGE, BadRecord, Part, Records
from spark_jobs.sources.values import DAYS, MICROSECONDS, ValueRefused, from_text

Indices = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

#: A group of at most so many records is not cut again: its records are read one by one.
_TOGETHER_MIN = 64
#: What is read together still fits in the processor's cache when it is cast.
_TOGETHER_MAX = 32_768
_CUT_INTO = 16


class RecordRefused(Exception):
    """A record that cannot be a row; the text says why."""

    def __init__(self, reason: str, *, column: str | None = None) -> None:
        super().__init__(reason)
        self.column = column


def declared_value(column: Column, read: Callable[[], object]) -> object:
    """A value of one record as its column declares it."""
    try:
        value = read()
    except ValueRefused as refused:
        raise RecordRefused(str(refused), column=column.name) from None
    if value is None and column.not_null:
        raise RecordRefused("null, but declared not null", column=column.name)
    return value


#: Postgres cuts longer names.
_NAME_BYTES_MAX = 63


def may_be_added(name: str) -> bool:
    """Whether a field's name can be that of a column."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return False
    return 0 < length <= _NAME_BYTES_MAX and "\0" not in name and name not in RESERVED


@dataclass(frozen=True, kw_only=True)
class Origins:
    """Where each record comes from, by the record's index."""

    producer_ids: Indices
    sequence_ids: Indices
    raw: Callable[[int], bytes]


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Columns in their Arrow types, and which of their rows the slow tier must decide."""

    rows: pa.Table
    doubted: Mask


def read_in_tiers(
    origins: Origins,
    columns: tuple[Column, ...],
    *,
    suspects: Mask,
    read_many: Callable[[Indices], Settled | None],
    read_one: Callable[[int], Sequence[object]],
) -> Records:
    """Read all records; `suspects` never reach the fast tier."""
    groups, doubted = _groups(np.flatnonzero(~suspects), of=_TOGETHER_MAX), [np.flatnonzero(suspects)]
    tables, indices = list[pa.Table](), list[Indices]()
    while groups:
        group = groups.pop()
        settled = read_many(group) if len(group) else None
        if settled is not None:
            sure = ~settled.doubted
            tables.append(settled.rows if sure.all() else settled.rows.filter(pa.array(sure)))
            indices.append(group[sure])
            doubted.append(group[settled.doubted])
        elif len(group) <= _TOGETHER_MIN:
            doubted.append(group)
        else:
            groups += _groups(group, of=max(_TOGETHER_MIN, -(-len(group) // _CUT_INTO)))
    slow, slow_indices, bad = _read_one_by_one(origins, columns, np.sort(np.concatenate(doubted)), read_one)
    return Records(rows=_in_order([*tables, slow], np.concatenate([*indices, slow_indices]), origins), bad=bad)


def _groups(indices: Indices, *, of: int) -> list[Indices]:
    """As many records each, the last ones first: the first are taken from the end."""
    return [indices[at : at + of] for at in range(0, len(indices), of)][::-1]


def _read_one_by_one(
    origins: Origins, columns: tuple[Column, ...], indices: Indices, read_one: Callable[[int], Sequence[object]]
) -> tuple[pa.Table, Indices, tuple[BadRecord, ...]]:
    rows, kept, bad = list[Sequence[object]](), list[int](), list[BadRecord]()
    for index in indices.tolist():
        try:
            rows.append(read_one(index))
            kept.append(index)
        except RecordRefused as refused:
            bad.append(
                BadRecord(
                    producer_id=ProducerId(int(origins.producer_ids[index])),
                    sequence_id=int(origins.sequence_ids[index]),
                    raw=origins.raw(index),
                    reason=str(refused),
                    column=refused.column,
                )
            )
    schema = arrow_schema(columns)
    arrays = [pa.array([row[at] for row in rows], field.type) for at, field in enumerate(schema)]
    return pa.Table.from_arrays(arrays, schema=schema), np.array(kept, np.int64), tuple(bad)


def _in_order(tables: list[pa.Table], indices: Indices, origins: Origins) -> pa.Table:
    filled = [table for table in tables if table.num_rows]
    rows = pa.concat_tables(filled) if filled else tables[-1]
    if len(indices) > 1 and (np.diff(indices) < 0).any():
        order = np.argsort(indices)
        indices, rows = indices[order], rows.take(pa.array(order))
    for field, ids in zip(LINEAGE, (origins.producer_ids, origins.sequence_ids), strict=True):
        rows = rows.append_column(field, pa.array(ids[indices], pa.int64()))
    return rows


# The records of text formats: lines, mostly.


@dataclass(frozen=True, kw_only=True)
class Lines:
    """The records of some parts, which lie in one block of bytes; blank ones are left out."""

    block: bytes
    record_bytes_max: int
    #: Each record with all its bytes but the newline …
    raw_starts: Indices
    raw_ends: Indices
    #: … and without a byte order mark and the blanks around it.
    starts: Indices
    ends: Indices
    producer_ids: Indices
    sequence_ids: Indices

    @property
    def count(self) -> int:
        return len(self.starts)

    @cached_property
    def too_long(self) -> Mask:
        """Which records are beyond record_bytes_max, with their newlines."""
        if len(self.block) < self.record_bytes_max:
            return np.zeros(self.count, np.bool_)
        too_long: Mask = self.raw_ends - self.raw_starts >= self.record_bytes_max
        return too_long

    def check_length(self, index: int) -> None:
        if self.too_long[index]:
            raise RecordRefused(_too_long(int(self.raw_ends[index] - self.raw_starts[index]) + 1))

    @property
    def octets(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.block, np.uint8)

    @cached_property
    def firsts(self) -> npt.NDArray[np.uint8]:
        """The byte that each record starts with."""
        return self.octets[self.starts]

    @cached_property
    def lasts(self) -> npt.NDArray[np.uint8]:
        return self.octets[self.ends - 1]

    def only(self, kept: Mask) -> "Lines":
        count = int(np.count_nonzero(kept))
        if count == self.count:
            return self
        # Mostly it is the block's end alone that goes, and then nothing need be copied.
        chosen = slice(count) if kept[:count].all() else kept
        arrays = {
            each.name: getattr(self, each.name)[chosen] for each in fields(self) if each.name not in _OF_ALL_LINES
        }
        return replace(self, **arrays)

    def raw(self, index: int) -> bytes:
        raw = self.block[self.raw_starts[index] : self.raw_ends[index]]
        return raw[:KEPT_BYTES] if self.too_long[index] else raw

    def content(self, index: int) -> bytes:
        return self.block[self.starts[index] : self.ends[index]]

    def text(self, index: int) -> str:
        try:
            return self.content(index).decode()
        except UnicodeDecodeError as error:
            at = int(self.starts[index] - self.raw_starts[index]) + error.start
            raise RecordRefused(f"no valid UTF-8 at byte {at} of the record") from None

    def together(self, group: Indices) -> pa.Buffer:
        """The bytes of a group of records, without a copy if nothing else lies between them."""
        first, end = int(self.starts[group[0]]), int(self.raw_ends[group[-1]]) + 1
        # At the end of all bytes, Arrow takes an empty last value for a quoted one if the value before it was quoted;
        # so there is always a newline.
        if group[-1] - group[0] + 1 == len(group) and end <= len(self.block):
            return pa.py_buffer(self.block).slice(first, end - first)
        return pa.py_buffer(b"".join(self.content(index) + b"\n" for index in group.tolist()))

    def origins(self) -> Origins:
        return Origins(producer_ids=self.producer_ids, sequence_ids=self.sequence_ids, raw=self.raw)

    def within(self, octet_positions: Indices) -> Mask:
        """Which records hold one of these positions of the block."""
        found = np.zeros(self.count, np.bool_)
        at = np.searchsorted(self.starts, octet_positions, "right") - 1
        inside = (at >= 0) & (octet_positions < self.ends[at]) if self.count else np.zeros(len(at), np.bool_)
        found[at[inside]] = True
        return found


_OF_ALL_LINES = {"block", "record_bytes_max"}


def lines_of(
    parts: Sequence[Part],
    *,
    blanks: bytes,
    record_bytes_max: int,
    record_ends: Callable[[Part], Indices] | None = None,
) -> Lines:
    """Join parts, because thousands of small ones cost little only together, and find their records.

    A record ends at every newline, unless `record_ends` says where in a part.
    """
    block = parts[0].raw if len(parts) == 1 else b"\n".join(part.raw for part in parts)
    part_starts = np.cumsum([0, *(len(part.raw) + 1 for part in parts)])
    newlines = positions_of(b"\n", block) if record_ends is None else _found_by(record_ends, parts, part_starts)
    starts = np.concatenate([[0], newlines + 1])
    counts = np.diff(np.searchsorted(starts, part_starts))
    # What starts behind the last part is nothing at all.
    starts, ends = starts[: counts.sum()], np.append(newlines, len(block))[: counts.sum()]
    shifts = np.array([part.first for part in parts], np.int64) - part_starts[:-1]
    found = Lines(
        block=block,
        record_bytes_max=record_bytes_max,
        raw_starts=starts,
        raw_ends=ends,
        starts=starts,
        ends=ends,
        sequence_ids=starts + np.repeat(shifts, counts),
        producer_ids=np.repeat(np.array([part.producer_id for part in parts], np.int64), counts),
    )
    return _trimmed(found.only(starts < ends), blanks)


def _found_by(record_ends: Callable[[Part], Indices], parts: Sequence[Part], part_starts: Indices) -> Indices:
    """The newlines that end records, and the one behind each part."""
    within = (
        np.append(record_ends(part), len(part.raw)) + start
        for part, start in zip(parts, part_starts.tolist(), strict=False)
    )
    return np.concatenate([np.zeros(0, np.int64), *within])


def positions_of(octet: bytes, block: bytes) -> Indices:
    """Where a byte occurs."""
    octets = np.frombuffer(block, np.uint8)
    # A slab and what is computed of it fit in the processor's cache.
    slabs = range(0, len(octets), _SLAB_BYTES)
    found = (np.flatnonzero(octets[at : at + _SLAB_BYTES] == octet[0]) + at for at in slabs)
    return np.concatenate([np.zeros(0, np.int64), *found])


_SLAB_BYTES = 2**19
BOM = b"\xef\xbb\xbf"


def _trimmed(lines: Lines, blanks: bytes) -> Lines:
    """Leave out the blanks around lines, and then the blank lines."""
    marked = [at for at in np.flatnonzero(lines.sequence_ids == 0) if lines.block.startswith(BOM, lines.starts[at])]
    is_blank = np.zeros(256, np.bool_)
    is_blank[list(blanks)] = True
    returns = lines.lasts == ord("\r")
    ends = lines.ends - returns if returns.any() else lines.ends.copy()
    padded = is_blank[lines.firsts] | is_blank[lines.octets[ends - 1] if returns.any() else lines.lasts]
    padded[marked] = True
    if not padded.any() and not returns.any():
        return lines
    # A carriage return goes from all lines at once, more blanks from each line that has them.
    starts = lines.starts.copy()
    for at in np.flatnonzero(padded & (starts < ends)).tolist():
        line = lines.block[starts[at] : ends[at]].removeprefix(BOM if at in marked else b"")
        starts[at] = ends[at] - len(line.lstrip(blanks))
        ends[at] = starts[at] + len(line.strip(blanks))
    return replace(lines, starts=starts, ends=ends).only(starts < ends)


def bad_of_too_long(parts: Sequence[Part]) -> tuple[BadRecord, ...]:
    return tuple(
        BadRecord(
            producer_id=part.producer_id,
            sequence_id=part.first,
            raw=part.raw.removesuffix(b"\n"),
            reason=_too_long(part.end - part.first),
        )
        for part in parts
        if part.too_long
    )


def _too_long(size: int) -> str:
    kept = "; only the beginning is kept" if size > KEPT_BYTES else ""
    return f"{size} bytes are more than record_bytes_max{kept}"


def not_utf8(lines: Lines) -> Mask:
    """Which records are no valid UTF-8."""
    broken = np.zeros(lines.count, np.bool_)
    if lines.block.isascii() or _is_utf8(lines.block):
        return broken
    for index in np.flatnonzero(lines.within(np.flatnonzero(lines.octets >= 0x80))).tolist():
        try:
            lines.content(index).decode()
        except UnicodeDecodeError:
            broken[index] = True
    return broken


def _is_utf8(block: bytes) -> bool:
    offsets = pa.py_buffer(np.array([0, len(block)], np.int64))
    try:
        pa.Array.from_buffers(pa.large_binary(), 1, [None, offsets, pa.py_buffer(block)]).cast(pa.large_string())
    except pa.ArrowInvalid:
        return False
    return True


# From what was read to the declared types.


def settle(read: Sequence[pa.Array], columns: tuple[Column, ...], *, count: int) -> Settled:
    """Cast and check columns, in which texts may stand for values of every type."""
    doubted = np.zeros(count, np.bool_)
    arrays = []
    for array, column in zip(read, columns, strict=True):
        values, unread = _cast(array, column.type)
        doubted |= unread | breaks_contract(values, column)
        arrays.append(values)
    return Settled(rows=pa.Table.from_arrays(arrays, schema=arrow_schema(columns)), doubted=doubted)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """A column in one piece; most come in one already."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _cast(read: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    if pa.types.is_list(read.type):
        elements, refused = _cast(read.values, column_type.element)
        lists = pa.ListArray.from_arrays(read.offsets, elements, mask=read.is_null())
        return lists.cast(arrow_type(column_type)), rows_of(refused, read)
    if pa.types.is_floating(read.type):
        # A number beyond the range is read as infinity.
        return read, mask_of(pc.is_inf(read))
    if pa.types.is_string(read.type) and (column_type.is_array or not pa.types.is_string(arrow_type(column_type))):
        return cast_texts(read, column_type)
    if pa.types.is_string(read.type) and column_type.kind is Kind.JSONB:
        return cast_texts(read, column_type)
    return read, np.zeros(len(read), np.bool_)


def cast_texts(texts: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    """Cast all texts at once; if one of them does not take that, each by itself."""
    for cast in () if column_type.is_array else _CASTS.get(column_type.kind, ()):
        try:
            values = cast(texts, arrow_type(column_type))
        except pa.ArrowInvalid:
            continue
        if pa.types.is_floating(values.type) and mask_of(pc.invert(pc.is_finite(values))).any():
            break
        return values, np.zeros(len(texts), np.bool_)
    return _cast_one_by_one(texts, column_type)


def _cast_one_by_one(texts: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    refused = np.zeros(len(texts), np.bool_)
    values: list[object] = texts.to_pylist()
    for at, text in enumerate(values):
        if isinstance(text, str):
            try:
                values[at] = from_text(text, column_type)
            except ValueRefused:
                values[at], refused[at] = None, True
    return pa.array(values, arrow_type(column_type)), refused


def _simply(texts: pa.Array, target: pa.DataType) -> pa.Array:
    return texts.cast(target)


def _integers(texts: pa.Array, target: pa.DataType) -> pa.Array:
    # Arrow reads 0xff too, and takes it for -1 where it fills the type.
    octets = octets_of(texts)
    if (octets == ord("x")).any() or (octets == ord("X")).any():
        raise pa.ArrowInvalid("hexadecimal digits")
    return texts.cast(target)


def _without_zone(texts: pa.Array, target: pa.DataType) -> pa.Array:
    return texts.cast(pa.timestamp("us")).cast(target)


def _times(texts: pa.Array, target: pa.DataType) -> pa.Array:
    # An hour alone is a time for Arrow only.
    if (pc.min(pc.binary_length(texts)).as_py() or 0) < len("00:00"):
        raise pa.ArrowInvalid("hours alone")
    return pc.binary_join_element_wise("1970-01-01T", texts, "").cast(pa.timestamp("us")).cast(target)


_UUID_PATTERN = "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"
_NO_UUID = "00000000-0000-0000-0000-000000000000"


def _uuids(texts: pa.Array, target: pa.DataType) -> pa.Array:
    filled = texts.fill_null(_NO_UUID)
    if not pc.all(pc.match_substring_regex(filled, _UUID_PATTERN)).as_py():
        raise pa.ArrowInvalid("written in another way")
    digits = octets_of(pc.replace_substring(filled, "-", "")).tobytes()
    values = pa.Array.from_buffers(target, len(texts), [None, pa.py_buffer(bytes.fromhex(digits.decode()))])
    return pc.if_else(texts.is_null(), pa.scalar(None, target), values)


_CASTS: dict[Kind, tuple[Callable[[pa.Array, pa.DataType], pa.Array], ...]] = {
    Kind.BOOLEAN: (_simply,),
    Kind.SMALLINT: (_integers,),
    Kind.INTEGER: (_integers,),
    Kind.BIGINT: (_integers,),
    Kind.REAL: (_simply,),
    Kind.DOUBLE: (_simply,),
    Kind.NUMERIC: (_simply,),
    Kind.DATE: (_simply,),
    Kind.TIME: (_times,),
    Kind.TIMESTAMP: (_simply,),
    Kind.TIMESTAMPTZ: (_simply, _without_zone),
    Kind.UUID: (_uuids,),
}


# What every value must keep to, however it was read: one bad value makes the server refuse a whole COPY.


def breaks_contract(values: pa.Array, column: Column) -> Mask:
    """Which rows hold a value that the column does not take."""
    broken = mask_of(values.is_null()) if column.not_null and values.null_count else np.zeros(len(values), np.bool_)
    if pa.types.is_list(values.type):
        return broken | rows_of(_breaks_type(values.values, column.type.element), values)
    return broken | _breaks_type(values, column.type)


def _breaks_type(values: pa.Array, column_type: ColumnType) -> Mask:
    fine = np.zeros(len(values), np.bool_)
    match column_type.kind:
        case Kind.TEXT | Kind.VARCHAR | Kind.JSONB:
            return _breaks_text(values, column_type.length)
        case Kind.NUMERIC:
            return _beyond_precision(values, column_type)
        case Kind.DATE:
            return _outside(values.cast(pa.int32()), DAYS)
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _outside(values.cast(pa.int64()), MICROSECONDS)
        case _:
            return fine


def _breaks_text(texts: pa.Array, length: int | None) -> Mask:
    broken = np.zeros(len(texts), np.bool_)
    octets = octets_of(texts)
    if len(octets) and not octets.min():
        broken |= mask_of(pc.match_substring(texts, "\0"))
    if length is not None and len(octets) and pc.max(pc.binary_length(texts)).as_py() > length:
        broken |= mask_of(pc.greater(pc.utf8_length(texts), length))
    return broken


def _beyond_precision(values: pa.Array, column_type: ColumnType) -> Mask:
    limit = Decimal(10) ** ((column_type.precision or PRECISION_MAX) - (column_type.scale or 0))
    extremes = pc.min_max(values).as_py()
    if all(extreme is None or abs(extreme) < limit for extreme in extremes.values()):
        return np.zeros(len(values), np.bool_)
    return np.array([value is not None and abs(value) >= limit for value in values.to_pylist()], np.bool_)


def _outside(numbers: pa.Array, bounds: tuple[int, int]) -> Mask:
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is None or (bounds[0] <= extremes["min"] and extremes["max"] <= bounds[1]):
        return np.zeros(len(numbers), np.bool_)
    return mask_of(pc.or_(pc.less(numbers, bounds[0]), pc.greater(numbers, bounds[1])))


def octets_of(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all texts, one after the other."""
    _, offsets, octets = texts.buffers()
    if octets is None or not len(texts):
        return np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)
    return np.frombuffer(octets, np.uint8)[bounds[texts.offset] : bounds[texts.offset + len(texts)]]


def mask_of(booleans: pa.Array) -> Mask:
    """Null is not true."""
    return np.asarray(pc.fill_null(booleans, fill_value=False).to_numpy(zero_copy_only=False), np.bool_)


def rows_of(elements: Mask, lists: pa.Array) -> Mask:
    rows = np.zeros(len(lists), np.bool_)
    if elements.any():
        rows[pc.list_parent_indices(lists).to_numpy()[elements]] = True
    return rows
