"""Cast the values that were read to the declared types, a whole column at once.

A single value that breaks its contract makes the server refuse a whole COPY, so none may pass.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from onceload_jobs.formats.json_values import DEPTH_MAX, FRACTION_MAX, have_each_name_once
from onceload_jobs.formats.records import Indices, Mask, ValueRefused
from onceload_jobs.formats.values import DAY_US, DAYS, MICROSECONDS, from_text
from onceload_jobs.pipeline.columns import PRECISION_MAX, Column, ColumnType, Kind, arrow_schema, arrow_type

#: The digits of an Arrow decimal of 256 bits.
DIGITS_MAX = 76
#: Texts that cannot be cast together are cut into this many groups, unless they are so few.
_CUT_INTO = 16
_TOGETHER_MIN = 64
_FEW = 16
#: The number of JSON texts that are read together. Their objects fit into the processor's cache.
_READ_TOGETHER = 256


@dataclass(frozen=True, kw_only=True)
class CastColumns:
    """Columns in their Arrow types, and the rows that the slow tier must decide."""

    rows: pa.Table
    doubted: Mask


def cast_columns(read: Sequence[pa.Array], columns: tuple[Column, ...], *, count: int) -> CastColumns:
    """Cast and check columns; values of every type may arrive as text."""
    doubted = np.zeros(count, np.bool_)
    arrays = []
    for array, column in zip(read, columns, strict=True):
        values, unread = _cast(array, column.type)
        doubted |= unread | breaks_contract(values, column)
        arrays.append(values)
    return CastColumns(rows=pa.Table.from_arrays(arrays, schema=arrow_schema(columns)), doubted=doubted)


def one_array(column: pa.ChunkedArray) -> pa.Array:
    """Return a column in one piece; most columns already are."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])


def _cast(read: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    if pa.types.is_list(read.type):
        elements, refused = _cast(read.values, column_type.element)
        lists = pa.ListArray.from_arrays(read.offsets, elements, mask=read.is_null())
        return lists.cast(arrow_type(column_type)), rows_of(refused, read)
    if pa.types.is_decimal256(read.type):
        refused = _beyond_precision(read, column_type)
        kept = pc.if_else(pa.array(refused), pa.scalar(None, read.type), read) if refused.any() else read
        return kept.cast(arrow_type(column_type)), refused
    if pa.types.is_floating(read.type):
        # A number beyond the range is read as infinity.
        return read, mask_of(pc.is_inf(read))
    if pa.types.is_string(read.type) and (column_type.is_array or not pa.types.is_string(arrow_type(column_type))):
        return cast_texts(read, column_type)
    if pa.types.is_string(read.type) and column_type.kind is Kind.JSONB:
        return cast_texts(read, column_type)
    return read, np.zeros(len(read), np.bool_)


def cast_texts(texts: pa.Array, column_type: ColumnType) -> tuple[pa.Array, Mask]:
    """Cast all texts at once; where that fails, in smaller groups, and only unusual ones one by one."""
    values = _cast_at_once(texts, column_type)
    if values is not None:
        return values, np.zeros(len(texts), np.bool_)
    if column_type.is_array or column_type.kind not in _CASTS or len(texts) <= _TOGETHER_MIN:
        return _cast_one_by_one(texts, column_type)
    unusual = _unusual(texts, column_type.kind)
    if unusual.any():
        groups = [np.flatnonzero(~unusual), np.flatnonzero(unusual)]
        casts = [cast_texts(texts.take(groups[0]), column_type), _cast_one_by_one(texts.take(groups[1]), column_type)]
    else:
        groups = np.array_split(np.arange(len(texts)), min(_CUT_INTO, -(-len(texts) // _TOGETHER_MIN)))
        casts = [cast_texts(texts.take(group), column_type) for group in groups]
    order = np.argsort(np.concatenate(groups))
    values = pa.concat_arrays([values for values, _ in casts]).take(order)
    return values, np.concatenate([refused for _, refused in casts])[order]


def _cast_at_once(texts: pa.Array, column_type: ColumnType) -> pa.Array | None:
    for cast in () if column_type.is_array else _CASTS.get(column_type.kind, ()):
        try:
            # Where many cannot be cast, Arrow describes each of them, which takes long.
            cast(texts[:_FEW], arrow_type(column_type))
            values = cast(texts, arrow_type(column_type))
        except pa.ArrowInvalid:
            continue
        if not pa.types.is_floating(values.type) or not _may_be_out_of_range(texts, values):
            return values
    return None


def _unusual(texts: pa.Array, kind: Kind) -> Mask:
    if kind is Kind.JSONB:
        return _unlike_plain_jsonb(texts)
    return mask_of(pc.invert(pc.match_substring_regex(texts, _USUAL[kind])))


def _unlike_plain_jsonb(texts: pa.Array) -> Mask:
    """The JSON texts that jsonb might refuse: with NUL, numbers out of range, or very deep nesting."""
    unlike = pc.match_substring_regex(texts, _SUSPECT_JSON)
    lengths = pc.binary_length(texts)
    if (pc.max(lengths).as_py() or 0) > DEPTH_MAX:
        depths = pc.add(pc.count_substring(texts, "["), pc.count_substring(texts, "{"))
        unlike = pc.or_(unlike, pc.or_(pc.greater(lengths, FRACTION_MAX), pc.greater(depths, DEPTH_MAX)))
    return mask_of(unlike)


_SUSPECT_JSON = r"\\u0000|[0-9][eE][+-]?[0-9]{4}"


def _jsonbs(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Strict JSON without anything that jsonb may refuse."""
    if _unlike_plain_jsonb(texts).any():
        raise pa.ArrowInvalid("jsonb might refuse it")
    for at in range(0, len(texts), _READ_TOGETHER):
        if not have_each_name_once(texts[at : at + _READ_TOGETHER].drop_null().to_pylist()):
            raise pa.ArrowInvalid("not strict JSON, or a name twice in one object")
    return pc.ascii_trim(texts, " \t\r\n").cast(target)


def _may_be_out_of_range(texts: pa.Array, floats: pa.Array) -> bool:
    """Whether a value overflowed to infinity, or underflowed to zero."""
    zeros = texts.filter(pc.equal(floats, 0))
    return bool(
        mask_of(pc.invert(pc.is_finite(floats))).any() or mask_of(pc.match_substring_regex(zeros, "^[^eE]*[1-9]")).any()
    )


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
    # Arrow also reads 0xff, and takes it for -1 where it fills the type.
    octets = octets_of(texts)
    if (octets == ord("x")).any() or (octets == ord("X")).any():
        raise pa.ArrowInvalid("hexadecimal digits")
    return texts.cast(target)


def _whole_numbers(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Integers of which some are written with a point, as in 1.0."""
    return numerics(texts, _WITH_FRACTION).cast(target)


_WITH_FRACTION = pa.decimal128(PRECISION_MAX, 9)


def numerics(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast texts without an exponent that are short enough for Arrow, which overflows silently."""
    octets = octets_of(texts)
    longest = pc.max(pc.binary_length(texts)).as_py() or 0
    if longest > DIGITS_MAX - target.scale or (octets == ord("e")).any() or (octets == ord("E")).any():
        raise pa.ArrowInvalid("too many digits, or an exponent")
    if longest <= PRECISION_MAX - target.scale:
        return texts.cast(target)
    return texts.cast(pa.decimal256(DIGITS_MAX, target.scale)).cast(target)


def _moments(texts: pa.Array, target: pa.DataType) -> pa.Array:
    if _have_times_of_arrow(texts):
        raise pa.ArrowInvalid("hours alone, or zones beyond 15:59")
    return texts.cast(target)


def _without_zone(texts: pa.Array, target: pa.DataType) -> pa.Array:
    return _moments(texts, pa.timestamp("us")).cast(target)


def _by_parts(texts: pa.Array, target: pa.DataType) -> pa.Array:
    """Moments of which some have no zone, a blank before it, or fractions finer than a microsecond."""
    parts = pc.extract_regex(texts, _MOMENT)
    if parts.null_count > texts.null_count:
        raise pa.ArrowInvalid("written in another way")
    day, clock, second, fraction, zone = parts.flatten()
    clock = pc.binary_join_element_wise(_filled(clock, "00:00"), second, "")
    wall_clock = pc.binary_join_element_wise(day, clock, "T")
    in_utc = _moments(pc.binary_join_element_wise(wall_clock, _filled(pc.ascii_upper(zone), "Z"), ""), _UTC)
    seconds = in_utc if target.tz else wall_clock.cast(pa.timestamp("us"))
    # Round bit for bit as Postgres does: through a double, and half to even.
    parsed = pc.binary_join_element_wise("0.", fraction, "0", "").cast(pa.float64())
    rounded = pc.round(pc.multiply(parsed, 1_000_000.0)).cast(pa.int64())
    return pc.add(seconds.cast(pa.int64()), rounded).cast(target)


def _filled(texts: pa.Array, text: str) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), text, texts)


_UTC = pa.timestamp("us", "UTC")
_BLANKS_PATTERN = r"[ \t\n\r\v\f]*"
_MOMENT = (
    rf"^{_BLANKS_PATTERN}(?P<day>[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}})"
    r"(?:[Tt ](?P<clock>[0-9]{2}:[0-9]{2})(?:(?P<second>:[0-9]{2})(?:\.(?P<fraction>[0-9]+))?)?"
    rf"(?: ?(?P<zone>[Zz]|[+-][0-9]{{2}}(?::?[0-9]{{2}})?))?)?{_BLANKS_PATTERN}$"
)


def _have_times_of_arrow(texts: pa.Array) -> bool:
    """Whether a text has an hour without minutes, or a zone up to 23:59, which only Arrow accepts."""
    octets, offsets = octets_of(texts), _offsets_of(texts)
    starts, ends = offsets[:-1], offsets[1:]
    has_time = ends - starts > len("2024-01-01")
    starts, ends = starts[has_time], ends[has_time]
    behind_hours = np.minimum(starts + len("2024-01-01T00"), len(octets) - 1)
    return bool((octets[behind_hours] != ord(":")).any()) or any(
        _far_zones(octets, ends - len(zone)).any() for zone in ("+00", "+0000", "+00:00")
    )


def _far_zones(octets: npt.NDArray[np.uint8], at: Indices) -> Mask:
    sign, tens, ones = octets[at], octets[at + 1], octets[at + 2]
    is_far = (tens > ord("1")) | ((tens == ord("1")) & (ones > ord("5")))
    far: Mask = ((sign == ord("+")) | (sign == ord("-"))) & is_far
    return far


def _times(texts: pa.Array, target: pa.DataType) -> pa.Array:
    # Only Arrow accepts an hour alone as a time.
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


_NUMBER = rf"^{_BLANKS_PATTERN}[+-]?[0-9.]+{_BLANKS_PATTERN}$"
#: What texts look like that can be cast together.
_USUAL = {
    Kind.BOOLEAN: "^(true|false)$",
    Kind.SMALLINT: _NUMBER,
    Kind.INTEGER: _NUMBER,
    Kind.BIGINT: _NUMBER,
    Kind.REAL: _NUMBER,
    Kind.DOUBLE: _NUMBER,
    Kind.NUMERIC: _NUMBER,
    Kind.DATE: "^[0-9]{4}-[0-9]{2}-[0-9]{2}$",
    Kind.TIME: "^[0-9]{2}:[0-9]{2}",
    Kind.TIMESTAMP: _MOMENT,
    Kind.TIMESTAMPTZ: _MOMENT,
    Kind.UUID: _UUID_PATTERN,
}
_CASTS: dict[Kind, tuple[Callable[[pa.Array, pa.DataType], pa.Array], ...]] = {
    Kind.BOOLEAN: (_simply,),
    Kind.SMALLINT: (_integers, _whole_numbers),
    Kind.INTEGER: (_integers, _whole_numbers),
    Kind.BIGINT: (_integers, _whole_numbers),
    Kind.REAL: (_simply,),
    Kind.DOUBLE: (_simply,),
    Kind.NUMERIC: (numerics,),
    Kind.DATE: (_simply,),
    Kind.TIME: (_times,),
    Kind.TIMESTAMP: (_moments, _by_parts),
    Kind.TIMESTAMPTZ: (_moments, _without_zone, _by_parts),
    Kind.UUID: (_uuids,),
    Kind.JSONB: (_jsonbs,),
}


def breaks_contract(values: pa.Array, column: Column) -> Mask:
    """The rows with a value that the column does not accept."""
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
        case Kind.TIME:
            return _outside(values.cast(pa.int64()), (0, DAY_US - 1))
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            return _outside(values.cast(pa.int64()), MICROSECONDS)
        case _:
            return fine


def _breaks_text(texts: pa.Array, length: int | None) -> Mask:
    broken = np.zeros(len(texts), np.bool_)
    octets = octets_of(texts)
    if len(octets) and np.min(octets) == 0:
        broken |= mask_of(pc.match_substring(texts, "\0"))
    if length is not None and len(octets) and pc.max(pc.binary_length(texts)).as_py() > length:
        broken |= mask_of(pc.greater(pc.utf8_length(texts), length))
    return broken


def _beyond_precision(values: pa.Array, column_type: ColumnType) -> Mask:
    limit = Decimal(10) ** ((column_type.precision or PRECISION_MAX) - (column_type.scale or 0))
    extremes = pc.min_max(values).as_py()
    if all(extreme is None or extreme.copy_abs() < limit for extreme in extremes.values()):
        return np.zeros(len(values), np.bool_)
    return np.array([value is not None and value.copy_abs() >= limit for value in values.to_pylist()], np.bool_)


def _outside(numbers: pa.Array, bounds: tuple[int, int]) -> Mask:
    extremes = pc.min_max(numbers).as_py()
    if extremes["min"] is None or (bounds[0] <= extremes["min"] and extremes["max"] <= bounds[1]):
        return np.zeros(len(numbers), np.bool_)
    return mask_of(pc.or_(pc.less(numbers, bounds[0]), pc.greater(numbers, bounds[1])))


def octets_of(texts: pa.Array) -> npt.NDArray[np.uint8]:
    """The bytes of all texts in sequence."""
    _, offsets, octets = texts.buffers()
    if octets is None or not len(texts):
        return np.zeros(0, np.uint8)
    bounds = np.frombuffer(offsets, np.int32)
    return np.frombuffer(octets, np.uint8)[bounds[texts.offset] : bounds[texts.offset + len(texts)]]


def _offsets_of(texts: pa.Array) -> Indices:
    """The offset of each text in these bytes, and the end of the last one."""
    if not len(texts):
        return np.zeros(1, np.int64)
    bounds = np.frombuffer(texts.buffers()[1], np.int32)[texts.offset : texts.offset + len(texts) + 1]
    offsets: Indices = bounds.astype(np.int64) - int(bounds[0])
    return offsets


def mask_of(booleans: pa.Array) -> Mask:
    """Convert to a mask in which null counts as false."""
    return np.asarray(pc.fill_null(booleans, fill_value=False).to_numpy(zero_copy_only=False), np.bool_)


def rows_of(elements: Mask, lists: pa.Array) -> Mask:
    rows = np.zeros(len(lists), np.bool_)
    if elements.any():
        rows[pc.list_parent_indices(lists).to_numpy()[elements]] = True
    return rows
