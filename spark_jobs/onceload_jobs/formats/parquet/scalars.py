"""Single values of Arrow as those of Python.

Arrow's own conversion shows a time outside of a day as another time of the day, cuts nanoseconds off, and fails where
Python has no such day. What it alters is never converted here: it stands for itself, as it is stored.
"""

from collections.abc import Callable
from datetime import date, datetime
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from onceload_jobs.formats.plain_values import half_even
from onceload_jobs.formats.values import DAY_US

_Read: TypeAlias = Callable[[Any], object]


class UnreadableValue(str):
    """Stands for a value that Python cannot hold, such as invalid UTF-8."""

    __slots__ = ()


class Real(float):
    """A 32-bit float, which is written with fewer digits than the same number as a double."""

    __slots__ = ()


def as_python(scalar: pa.Scalar) -> object:
    """The value, or how it is stored if Python has no such value, at any depth."""
    return reader_of(scalar.type)(scalar)


def reader_of(arrow: pa.DataType) -> _Read:
    """The same for many values of a type."""
    read = _reader_inside(arrow)

    def carefully(scalar: pa.Scalar) -> object:
        return read(scalar) if scalar.is_valid else None

    def quickly(scalar: pa.Scalar) -> object:
        try:
            return scalar.as_py()
        except (OverflowError, ValueError):
            return carefully(scalar)

    return quickly if _is_exact(arrow) else carefully


def _is_exact(arrow: pa.DataType) -> bool:
    """Whether Arrow converts values of a type, and those inside them, without altering any; it may fail."""
    if pa.types.is_nested(arrow):
        return not pa.types.is_union(arrow) and all(_is_exact(arrow.field(at).type) for at in range(arrow.num_fields))
    return any(holds(arrow) for holds in _EXACT)


_EXACT = (
    pa.types.is_null,
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_float64,
    pa.types.is_decimal,
    pa.types.is_string,
    pa.types.is_binary,
    pa.types.is_date32,
)


def _reader_inside(arrow: pa.DataType) -> _Read:
    if pa.types.is_struct(arrow):
        return _struct_reader(arrow)
    if pa.types.is_map(arrow):
        key, item = reader_of(arrow.key_type), reader_of(arrow.item_type)
        return lambda scalar: [(key(each[0]), item(each[1])) for each in scalar.values]
    if pa.types.is_nested(arrow) and not pa.types.is_union(arrow) and not pa.types.is_run_end_encoded(arrow):
        element = reader_of(arrow.value_type)
        return lambda scalar: [element(each) for each in scalar.values]
    return _one


def _struct_reader(arrow: pa.DataType) -> _Read:
    try:
        names = arrow.names
    except UnicodeDecodeError:
        return lambda _: UnreadableValue("a struct with a field whose name is not UTF-8")
    if len(set(names)) < len(names):
        shown = ", ".join(map(repr, names))
        return lambda _: UnreadableValue(f"a struct with several fields of the same name ({shown})")
    fields = [(name, at, reader_of(arrow.field(at).type)) for at, name in enumerate(names)]
    return lambda scalar: {name: read(scalar[at]) for name, at, read in fields}


def _one(scalar: pa.Scalar) -> object:
    return _READ.get(type(scalar), _as_arrow_does)(scalar)


def _as_arrow_does(scalar: pa.Scalar) -> object:
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        # Arrow can format every value that it holds.
        written = pa.array([scalar], scalar.type).to_string().split()
        return UnreadableValue(" ".join(written[1:-1]))


def _text(scalar: pa.Scalar) -> str:
    try:
        return str(scalar.as_py())
    except UnicodeDecodeError:
        return UnreadableValue(repr(scalar.as_buffer().to_pybytes()))


def _time(scalar: pa.Scalar) -> object:
    stored, unit = scalar.value, scalar.type.unit
    microseconds = int(half_even(np.array([stored]))[0]) if unit == "ns" else stored * _MICROSECONDS[unit]
    if stored < 0 or microseconds >= DAY_US:
        return UnreadableValue(f"{stored} {_UNITS[unit]} after midnight")
    return pa.scalar(microseconds, pa.time64("us")).as_py()


def _timestamp(scalar: pa.Scalar) -> object:
    stored, unit, zone = scalar.value, scalar.type.unit, scalar.type.tz
    try:
        if unit != "ns":
            return scalar.as_py()
        microseconds, rest = divmod(stored, 1000)
        moment: datetime = pa.scalar(microseconds, pa.timestamp("us", zone)).as_py()
    except (OverflowError, ValueError):
        return UnreadableValue(f"{np.datetime64(stored, unit)} ({stored} {_UNITS[unit]} since 1970)")
    return _with_nanoseconds(moment, rest) if rest else moment


def _with_nanoseconds(moment: datetime, rest: int) -> str:
    """A text, as Python has no such times."""
    clock = moment.replace(tzinfo=None).isoformat(timespec="microseconds")
    zone = moment.isoformat(timespec="microseconds").removeprefix(clock)
    return f"{clock}{rest:03d}{zone}"


def _date(scalar: pa.Scalar) -> date | UnreadableValue:
    try:
        found: date = scalar.as_py()
    except (OverflowError, ValueError):
        return UnreadableValue(f"{np.datetime64(scalar.value, 'D')} ({scalar.value} days since 1970)")
    return found


def _inside(scalar: pa.Scalar) -> object:
    return None if scalar.value is None else as_python(scalar.value)


_MICROSECONDS = {"s": 1_000_000, "ms": 1000, "us": 1}
_UNITS = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
_READ: dict[type, _Read] = {
    pa.StringScalar: _text,
    pa.LargeStringScalar: _text,
    pa.StringViewScalar: _text,
    pa.FloatScalar: lambda scalar: Real(scalar.as_py()),
    pa.Time32Scalar: _time,
    pa.Time64Scalar: _time,
    pa.TimestampScalar: _timestamp,
    pa.Date32Scalar: _date,
    pa.DictionaryScalar: _inside,
    pa.UnionScalar: _inside,
    pa.RunEndEncodedScalar: _inside,
}
