"""Convert single values by the rules of their Postgres type, and give the reason for each refusal.

This is the slow tier of every format, and the reference for the fast one: both must give the same values.
Values are returned as Arrow stores them for the column's type: points in time as microseconds, days and times as
numbers. Accepted values are those of Postgres' own cast of the same text. A timestamptz without a zone is in UTC,
because the result must not depend on the zone of the session. Three forms are accepted that the cast refuses:
integers with a point or an exponent, base64, and JSON arrays. Many forms of the cast are refused: see docs/values.md.
"""

import base64
import binascii
import math
import re
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from onceload_jobs.formats.json_values import BLANK, EXPONENT_END, STRING, check_jsonb, end_of_value, string_of
from onceload_jobs.formats.records import ValueRefused
from onceload_jobs.pipeline.columns import PRECISION_MAX, ColumnType, Kind


def from_json(raw: str, column_type: ColumnType) -> object:
    """Convert the raw text of one valid JSON value."""
    if raw == "null":
        return None
    if column_type.is_array:
        return [from_json(element, column_type.element) for element in _json_elements(raw, column_type)]
    if column_type.kind is Kind.JSONB:
        check_jsonb(raw)
        return raw
    if raw[0] == '"':
        return from_text(string_of(raw), column_type)
    if raw[0] in "[{":
        raise ValueRefused(f"{'an array' if raw[0] == '[' else 'an object'} is not a valid {column_type}")
    if column_type.kind not in (_FLOATS if "N" in raw or "I" in raw else WRITTEN_BARE):
        raise _refused(raw, column_type)
    return from_text(raw, column_type)


def from_kept(raw: str, column_type: ColumnType) -> object:
    """Convert a value of a kept Parquet row, in which a JSON string is the text of a value of any type."""
    refuse_unreadable(raw)
    if raw[0] == '"':
        return from_text(string_of(raw), column_type)
    if column_type.is_array and raw != "null":
        return [from_kept(element, column_type.element) for element in _json_elements(raw, column_type)]
    return from_json(raw, column_type)


#: How a kept row begins a value that cannot be read, before the text for it. Even as JSON, no column accepts it.
UNREADABLE = '{"unreadable":NaN,"stored":'
_UNREADABLE = re.compile(rf"{re.escape(UNREADABLE)}({STRING})")


def refuse_unreadable(raw: str) -> None:
    """Refuse JSON with such a value in it; in a string, its quotes would be escaped."""
    if found := _UNREADABLE.search(raw) if UNREADABLE in raw else None:
        raise ValueRefused(f"{string_of(found[1])} cannot be read as a value")


def from_text(text: str, column_type: ColumnType) -> object:
    """Convert a text, which is never null: that of a JSON string or a CSV field."""
    if column_type.is_array:
        return _array(text, column_type)
    return _READERS[column_type.kind](text, column_type)


def _refused(text: str, column_type: ColumnType, why: str = "") -> ValueRefused:
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    return ValueRefused(f"{shown!r} is not a valid {column_type}{why and ': '}{why}")


#: The blanks that Postgres skips around a value.
_BLANKS = " \t\n\r\v\f"
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_NOT_FINITE = re.compile(r"[+-]?(?:nan|inf(?:inity)?)", re.IGNORECASE)
_NOT_ZERO = re.compile(r"[^eE]*[1-9]")
_TRUE = ("t", "true", "y", "yes", "on", "1")
_FALSE = ("f", "false", "n", "no", "off", "0")
_BOOLEANS = dict.fromkeys(_TRUE, True) | dict.fromkeys(_FALSE, False)
_BITS = {Kind.SMALLINT: 15, Kind.INTEGER: 31, Kind.BIGINT: 63}
#: The types with values for NaN and Infinity, which are not valid JSON.
_FLOATS = (Kind.REAL, Kind.DOUBLE)
_EXPONENT_DIGITS = 1000
_EXACT = Context(prec=PRECISION_MAX, traps=[])


def _text(text: str, column_type: ColumnType) -> str:
    if "\0" in text:
        raise ValueRefused(f"{column_type} cannot hold the NUL character")
    if column_type.length is not None and len(text) > column_type.length:
        raise ValueRefused(f"{len(text)} characters are too many for {column_type}")
    return text


def _boolean(text: str, column_type: ColumnType) -> bool:
    word = _BOOLEANS.get(text.strip(_BLANKS).lower())
    if word is None:
        raise _refused(text, column_type)
    return word


def _decimal(text: str, column_type: ColumnType) -> Decimal:
    written = text.strip(_BLANKS)
    if not _NUMBER.fullmatch(written):
        raise _refused(text, column_type)
    exponent = written.lower().partition("e")[2]
    # Only zeros have exponents that are as large.
    if len(exponent) > _EXPONENT_DIGITS or abs(int(exponent or "0")) >= EXPONENT_END:
        raise _refused(text, column_type, "its exponent is out of range")
    return Decimal(written)


def _integer(text: str, column_type: ColumnType) -> int:
    if _INTEGER.fullmatch(text):
        number = int(text)
    else:
        decimal = _decimal(text, column_type)
        # An exponent may stand for more digits than fit into memory.
        if decimal and (decimal.adjusted() > 19 or decimal != decimal.to_integral_value()):
            raise _refused(text, column_type, "out of range" if decimal.adjusted() > 19 else "it has a fraction")
        number = int(decimal) if decimal else 0
    bound = 1 << _BITS[column_type.kind]
    if not -bound <= number < bound:
        raise _refused(text, column_type, "out of range")
    return number


def _numeric(text: str, column_type: ColumnType) -> Decimal:
    number = _decimal(text, column_type)
    scale, precision = column_type.scale or 0, column_type.precision or PRECISION_MAX
    if not number:
        return Decimal(0)
    if number.adjusted() >= precision - scale:
        raise _refused(text, column_type, "too many digits before the point")
    exact = number.quantize(Decimal(1).scaleb(-scale), context=_EXACT)
    if exact != number:
        raise _refused(text, column_type, f"it would be rounded to {scale} digits after the point")
    return exact


def _floating(text: str, column_type: ColumnType) -> float:
    written = text.strip(_BLANKS)
    if _NOT_FINITE.fullmatch(written):
        return float(written)
    if not _NUMBER.fullmatch(written):
        raise _refused(text, column_type)
    # Rounding to double first would round twice.
    number = pa.scalar(written).cast(pa.float32()).as_py() if column_type.kind is Kind.REAL else float(written)
    if math.isinf(number) or (not number and _NOT_ZERO.match(written)):
        raise _refused(text, column_type, "out of range")
    return float(number)


_EPOCH = date(1970, 1, 1).toordinal()
_SECOND = 1_000_000
DAY_US = 86_400 * _SECOND
#: The first and last days and microseconds of the years 1 to 9999.
DAYS = (1 - _EPOCH, date.max.toordinal() - _EPOCH)
MICROSECONDS = (DAYS[0] * DAY_US, (DAYS[1] + 1) * DAY_US - 1)
_DATE_PATTERN = r"(?P<year>[0-9]{4})-(?P<month>[0-9]{2})-(?P<day>[0-9]{2})"
_SECONDS_PATTERN = r":(?P<second>[0-9]{2})(?:\.(?P<fraction>[0-9]+))?"
_ZONE_PATTERN = r"(?P<zone>[ ]?(?:[Zz]|(?P<sign>[+-])(?P<hours>[0-9]{2})(?::?(?P<minutes>[0-9]{2}))?))?"
_DATE = re.compile(_DATE_PATTERN)
_TIME = re.compile(rf"(?P<hour>[0-9]{{2}}):(?P<minute>[0-9]{{2}})(?:{_SECONDS_PATTERN})?{_ZONE_PATTERN}")
_TIMESTAMP = re.compile(
    rf"{_DATE_PATTERN}(?:[Tt ](?P<hour>[0-9]{{2}}):(?P<minute>[0-9]{{2}})(?:{_SECONDS_PATTERN})?{_ZONE_PATTERN})?"
)


def _parts(pattern: re.Pattern[str], text: str, column_type: ColumnType) -> re.Match[str]:
    found = pattern.fullmatch(text.strip(_BLANKS))
    if found is None:
        why = "infinity is not supported here" if "inf" in text.lower() else ""
        raise _refused(text, column_type, why)
    return found


def _date(text: str, column_type: ColumnType) -> int:
    return _days(_parts(_DATE, text, column_type), column_type)


def _days(parts: re.Match[str], column_type: ColumnType) -> int:
    try:
        return date(int(parts["year"]), int(parts["month"]), int(parts["day"])).toordinal() - _EPOCH
    except ValueError:
        raise _refused(parts[0], column_type, "there is no such day from year 1 to 9999") from None


def _time(text: str, column_type: ColumnType) -> int:
    parts = _parts(_TIME, text, column_type)
    _offset(parts, column_type)
    microseconds = _of_day(parts, column_type)
    if microseconds >= DAY_US:
        raise _refused(text, column_type, "it rounds to the end of the day")
    return microseconds


def _of_day(parts: re.Match[str], column_type: ColumnType) -> int:
    hour, minute, second = (int(parts[name] or 0) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 59:
        raise _refused(parts[0], column_type, "there is no such time of day")
    return ((hour * 60 + minute) * 60 + second) * _SECOND + _fraction(parts["fraction"] or "")


def _fraction(digits: str) -> int:
    if len(digits) <= 6:
        return int(digits.ljust(6, "0"))
    # Round bit for bit as Postgres does: through a double, and half to even.
    return round(float(f"0.{digits}") * 1_000_000)


def _timestamp(text: str, column_type: ColumnType) -> int:
    """The wall clock: the zone is ignored, as in Postgres."""
    parts = _parts(_TIMESTAMP, text, column_type)
    _offset(parts, column_type)
    return _in_range(_days(parts, column_type) * DAY_US + _of_day(parts, column_type), parts, column_type)


def _timestamptz(text: str, column_type: ColumnType) -> int:
    parts = _parts(_TIMESTAMP, text, column_type)
    wall_clock = _days(parts, column_type) * DAY_US + _of_day(parts, column_type)
    return _in_range(wall_clock - _offset(parts, column_type), parts, column_type)


def _offset(parts: re.Match[str], column_type: ColumnType) -> int:
    if not parts["sign"]:
        return 0
    hours, minutes = int(parts["hours"]), int(parts["minutes"] or 0)
    if hours > 15 or minutes > 59:
        raise _refused(parts[0], column_type, "zones end at 15:59")
    offset = (hours * 60 + minutes) * 60 * _SECOND
    return -offset if parts["sign"] == "-" else offset


def _in_range(microseconds: int, parts: re.Match[str], column_type: ColumnType) -> int:
    if not MICROSECONDS[0] <= microseconds <= MICROSECONDS[1]:
        raise _refused(parts[0], column_type, "only years 1 to 9999 are supported")
    return microseconds


_UUID = re.compile(r"(?:[0-9a-f]{4}-?){7}[0-9a-f]{4}", re.IGNORECASE)
#: Base64 has groups of four characters; these decode to other bytes as hex.
_HEX_OR_BASE64 = re.compile(r"(?:[0-9a-f]{4})+", re.IGNORECASE)


def _uuid(text: str, column_type: ColumnType) -> bytes:
    digits = text[1:-1] if text.startswith("{") and text.endswith("}") else text
    if not _UUID.fullmatch(digits):
        raise _refused(text, column_type)
    return bytes.fromhex(digits.replace("-", ""))


def _bytea(text: str, column_type: ColumnType) -> bytes:
    r"""Hex after `\x`, as Postgres writes it, or base64; text that could be both is refused."""
    if _HEX_OR_BASE64.fullmatch(text):
        raise _refused(text, column_type, r"it may be hex or base64; write the bytes as \x and their hex digits")
    try:
        return binascii.unhexlify(text[2:]) if text.startswith("\\x") else base64.b64decode(text, validate=True)
    except ValueError:
        raise _refused(text, column_type, r"it is neither hex after \x nor base64") from None


def _jsonb(text: str, column_type: ColumnType) -> str:
    written = text.strip(" \t\r\n")
    if end_of_value(written, 0) != len(written):
        raise _refused(text, column_type, "it continues after the end of the value")
    check_jsonb(written)
    return written


_ELEMENT = re.compile(
    r'[ \t\n\r\v\f]*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"[ \t\n\r\v\f]*+|(?P<bare>(?:[^"\\{},]|\\.)++))(?P<end>[,}])',
    re.DOTALL,
)
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)


def _array(text: str, column_type: ColumnType) -> list[object]:
    """Read a Postgres array literal, or a JSON array."""
    written = text.strip(_BLANKS)
    if written.startswith("["):
        if end_of_value(written, 0) != len(written):
            raise _refused(text, column_type)
        return [from_json(element, column_type.element) for element in _json_elements(written, column_type)]
    if not written.startswith("{"):
        raise _refused(text, column_type)
    return [
        None if element is None else from_text(element, column_type.element)
        for element in _literal_elements(written, column_type)
    ]


def _json_elements(raw: str, column_type: ColumnType) -> Iterator[str]:
    if raw[0] != "[":
        raise _refused(raw, column_type, "it is not a JSON array")
    at = _skip_blanks(raw, 1)
    while raw[at] != "]":
        end = end_of_value(raw, at)
        if raw[at] == "[" and column_type.kind is not Kind.JSONB:
            raise _refused(raw, column_type, "it has more than one dimension")
        yield raw[at:end]
        at = _skip_blanks(raw, end)
        if raw[at] == ",":
            at = _skip_blanks(raw, at + 1)


def _skip_blanks(raw: str, at: int) -> int:
    blanks: Any = BLANK.match(raw, at)  # It matches nothing at the least.
    return int(blanks.end())


def _literal_elements(written: str, column_type: ColumnType) -> Iterator[str | None]:
    if not written[1:-1].strip(_BLANKS) and written.endswith("}"):
        return
    at, end = 1, ","
    while end == ",":
        element = _ELEMENT.match(written, at)
        if element is None:
            raise _refused(written, column_type, "it is not an array literal of one dimension")
        at, end = element.end(), element["end"]
        text = element["quoted"] if element["bare"] is None else _without_blanks(element["bare"])
        if element["bare"] is not None and not text:
            raise _refused(written, column_type, "an element is missing")
        is_null = element["bare"] is not None and text.upper() == "NULL"
        yield None if is_null else _ESCAPED.sub(r"\1", text)
    if at != len(written):
        raise _refused(written, column_type, "it continues after its end")


def _without_blanks(bare: str) -> str:
    text = bare.strip(_BLANKS)
    # An escaped blank belongs to the element.
    is_escaped = (len(text) - len(text.rstrip("\\"))) % 2 == 1
    return bare.lstrip(_BLANKS)[: len(text) + 1] if is_escaped else text


#: The types whose values JSON may write without quotes.
WRITTEN_BARE = {Kind.TEXT, Kind.VARCHAR, Kind.BOOLEAN, *_BITS, *_FLOATS, Kind.NUMERIC}
_READERS: dict[Kind, Callable[[str, ColumnType], object]] = {
    Kind.TEXT: _text,
    Kind.VARCHAR: _text,
    Kind.BOOLEAN: _boolean,
    Kind.SMALLINT: _integer,
    Kind.INTEGER: _integer,
    Kind.BIGINT: _integer,
    Kind.REAL: _floating,
    Kind.DOUBLE: _floating,
    Kind.NUMERIC: _numeric,
    Kind.DATE: _date,
    Kind.TIME: _time,
    Kind.TIMESTAMP: _timestamp,
    Kind.TIMESTAMPTZ: _timestamptz,
    Kind.UUID: _uuid,
    Kind.JSONB: _jsonb,
    Kind.BYTEA: _bytea,
}
