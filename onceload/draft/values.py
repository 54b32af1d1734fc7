"""How single values are written. The readers of the product decide which of these forms they accept."""

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache

from onceload_jobs.formats.json_values import string_of
from onceload_jobs.formats.records import ValueRefused
from onceload_jobs.formats.values import from_text
from onceload_jobs.pipeline.columns import ColumnType, Kind


class Written(Enum):
    """The ways to write a value; the value of each is its plural in comments."""

    BOOLEAN = "booleans"
    INTEGER = "integers"
    #: An integer beyond a bigint.
    LARGE_INTEGER = "integers too large for bigint"
    DECIMAL = "decimals"
    EXPONENT = "numbers with an exponent"
    NOT_FINITE = "NaN or infinite numbers"
    OBJECT = "objects"
    ARRAY = "arrays"
    UUID = "UUIDs"
    DATE = "dates"
    TIMESTAMP = "timestamps without a zone"
    TIMESTAMPTZ = "timestamps with a zone"
    #: A word that a boolean column accepts.
    WORD = "words such as true or no"
    #: A decimal in quotes: in JSON and Parquet, its writer meant a text.
    QUOTED_DECIMAL = "decimals in quotes"
    #: A decimal of CSV with a comma instead of a point.
    COMMA_DECIMAL = "decimals with a comma"
    TEXT = "texts"
    #: A value of Parquet, which has a type of its own.
    STORED = "typed values"
    #: No column accepts it.
    UNFIT = "values that Postgres cannot store"


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """One value as it is written."""

    written: Written
    #: How many digits a number has before and after its point.
    whole: int = 0
    fraction: int = 0
    #: Whether a double keeps all of its digits.
    is_double: bool = True


_CACHED = 2**16
_BIGINT, _DOUBLE, _DATE, _TIMESTAMP, _TIMESTAMPTZ = (
    ColumnType(kind=kind) for kind in (Kind.BIGINT, Kind.DOUBLE, Kind.DATE, Kind.TIMESTAMP, Kind.TIMESTAMPTZ)
)
#: No leading zero and no plus sign, which a number would lose.
_WHOLE = r"-?(?P<whole>0|[1-9][0-9]*)"
_NUMBER = re.compile(rf"{_WHOLE}(?:\.(?P<fraction>[0-9]+))?(?P<exponent>[eE][+-]?[0-9]+)?")
_CSV_NUMBER = re.compile(rf"(?:{_WHOLE}|-?(?=\.))(?:\.(?P<fraction>[0-9]+))?(?P<exponent>[eE][+-]?[0-9]+)?")
_COMMA_DECIMAL = re.compile(r"-?(?:[0-9]+|[0-9]{1,3}(?:\.[0-9]{3})+),[0-9]+")
_QUOTED_DECIMAL = re.compile(rf"{_WHOLE}\.(?P<fraction>[0-9]+)")
_LIKE_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_ZONE = re.compile(r"(?:[Zz]|[+-][0-9]{2}(?::?[0-9]{2})?)$")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
#: Pairs of words for a boolean.
BOOLEAN_WORDS = (frozenset({"true", "false"}), frozenset({"t", "f"}), frozenset({"yes", "no"}), frozenset({"y", "n"}))
_WORDS = frozenset().union(*BOOLEAN_WORDS)
_NOT_FINITE = frozenset({"nan", "inf", "infinity"})
#: Digits that every double keeps.
_DOUBLE_DIGITS = 15
_BIGINT_DIGITS = 19
#: More digits than any numeric has.
_BEYOND = 10**6
_UNFIT = Value(written=Written.UNFIT)


@lru_cache(_CACHED)
def of_json(raw: str) -> Value:
    """A raw value of JSON that is not null."""
    if raw[0] == '"':
        return _json_string(raw)
    if raw[0] in "{[":
        return _nested(raw)
    if raw[0] in "tf":
        return Value(written=Written.BOOLEAN)
    found = _NUMBER.fullmatch(raw)
    return Value(written=Written.NOT_FINITE) if found is None else _number(raw, found)


def _json_string(raw: str) -> Value:
    try:
        return of_string(string_of(raw))
    except ValueRefused:
        return _UNFIT


@lru_cache(_CACHED)
def of_string(text: str) -> Value:
    """A string of JSON, Parquet, ORC or Avro."""
    if found := _QUOTED_DECIMAL.fullmatch(text):
        return Value(written=Written.QUOTED_DECIMAL, whole=_whole_digits(found), fraction=len(found["fraction"]))
    return _plain(text)


@lru_cache(_CACHED)
def of_csv(text: str) -> Value:
    """A field of CSV, which may be a value of any type."""
    bare = text.strip(" ")
    if bare[:1] in {"{", "["}:
        value = _nested(bare)
        return _plain(text) if value is _UNFIT else value
    if bare.lstrip("+-").lower() in _NOT_FINITE:
        return Value(written=Written.NOT_FINITE)
    if _COMMA_DECIMAL.fullmatch(bare):
        return Value(written=Written.COMMA_DECIMAL)
    found = _CSV_NUMBER.fullmatch(bare)
    return _plain(text) if found is None or _may_be_a_code(found) else _number(bare, found)


def _may_be_a_code(found: re.Match[str]) -> bool:
    """Whether an exponent has neither a point before it nor a sign, as in 12e4."""
    return bool(found["exponent"]) and not found["fraction"] and found["exponent"][1].isdigit()


def _plain(text: str) -> Value:
    bare = text.strip(" ")
    if "\0" in text:
        return _UNFIT
    if _LIKE_DATE.match(bare):
        return Value(written=_written_moment(bare))
    if _UUID.fullmatch(text):
        return Value(written=Written.UUID)
    return Value(written=Written.WORD if bare.lower() in _WORDS else Written.TEXT)


def _written_moment(text: str) -> Written:
    if _accepts(_DATE, text):
        return Written.DATE
    if _ZONE.search(text, len("2024-01-01T")):
        return Written.TIMESTAMPTZ if _accepts(_TIMESTAMPTZ, text) else Written.TEXT
    return Written.TIMESTAMP if _accepts(_TIMESTAMP, text) else Written.TEXT


def _nested(raw: str) -> Value:
    try:
        from_text(raw, ColumnType(kind=Kind.JSONB))
    except ValueRefused:
        return _UNFIT
    return Value(written=Written.OBJECT if raw[0] == "{" else Written.ARRAY)


def _number(text: str, found: re.Match[str]) -> Value:
    whole, fraction = _whole_digits(found), len(found["fraction"] or "")
    is_double = whole + fraction <= _DOUBLE_DIGITS or _is_double(text)
    if found["exponent"]:
        return _number_with_exponent(text)
    if found["fraction"]:
        return Value(written=Written.DECIMAL, whole=whole, fraction=fraction, is_double=is_double)
    is_large = whole > _BIGINT_DIGITS or not _accepts(_BIGINT, text)
    return Value(written=Written.LARGE_INTEGER if is_large else Written.INTEGER, whole=whole, is_double=is_double)


def _number_with_exponent(text: str) -> Value:
    try:
        number = Decimal(text)
    except ArithmeticError:
        return Value(written=Written.EXPONENT, whole=_BEYOND, is_double=False)
    whole, fraction = max(0, number.adjusted() + 1), max(0, -int(number.as_tuple().exponent))
    return Value(written=Written.EXPONENT, whole=whole, fraction=fraction, is_double=_is_double(text))


def _whole_digits(found: re.Match[str]) -> int:
    return len((found["whole"] or "").lstrip("0"))


def _is_double(text: str) -> bool:
    return _accepts(_DOUBLE, text) and Decimal(text) == Decimal(repr(float(text)))


def _accepts(column_type: ColumnType, text: str) -> bool:
    try:
        from_text(text, column_type)
    except ValueRefused:
        return False
    return True
