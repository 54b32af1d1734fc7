"""Single values of Parquet that Arrow does not cast as Postgres would."""

import json
import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from onceload_jobs.formats.records import ValueRefused
from onceload_jobs.formats.values import from_json, from_text
from onceload_jobs.pipeline.columns import ColumnType, Kind

_DAY_US = 86_400 * 10**6


class UnreadableValue(str):
    """Stands for a value that Python cannot hold, such as invalid UTF-8."""

    __slots__ = ()


def as_python(scalar: pa.Scalar) -> object:
    if isinstance(scalar, pa.UnionScalar):
        return None if scalar.value is None else as_python(scalar.value)
    if pa.types.is_time64(scalar.type) and scalar.value is not None and not 0 <= scalar.value < _DAY_US:
        # Python would show another time of the day.
        return UnreadableValue(f"{scalar.value} microseconds after midnight")
    try:
        value = scalar.as_py()
    except UnicodeDecodeError:
        return UnreadableValue(repr(scalar.as_buffer().to_pybytes()) if pa.types.is_string(scalar.type) else "no UTF-8")
    except (OverflowError, ValueError):
        # Arrow can format every value that it holds.
        written = pa.array([scalar], scalar.type).to_string().split()
        return UnreadableValue(" ".join(written[1:-1]))
    return _Real(value) if value is not None and pa.types.is_float32(scalar.type) else value


class _Real(float):
    """A 32-bit float, which is written with fewer digits than the same number as a double."""

    __slots__ = ()


def converted(value: object, column_type: ColumnType) -> object:
    """Convert one value of any Parquet type to its column's type."""
    if isinstance(value, UnreadableValue):
        raise ValueRefused(f"{value} cannot be read as a value")
    match value:
        case None:
            return None
        case list() if column_type.is_array:
            return [converted(element, column_type.element) for element in value]
        case bytes():
            return _from_bytes(value, column_type)
        case float() if column_type.kind in FLOATS and not column_type.is_array:
            return _from_float(value, column_type)
        case _:
            return _from_written(value, column_type)


def _from_written(value: object, column_type: ColumnType) -> object:
    if isinstance(value, str):
        return from_text(value, column_type)
    if isinstance(value, datetime) and column_type.kind is Kind.DATE and value.time() == time():
        return from_text(value.date().isoformat(), column_type)
    return from_json(_json_of(value), column_type)


def _from_bytes(value: bytes, column_type: ColumnType) -> object:
    if column_type == _BYTEA or (column_type == _UUID and len(value) == 16):
        return value
    try:
        return from_text(value.decode(), column_type)
    except UnicodeDecodeError:
        raise ValueRefused(f"{len(value)} bytes that are not text are not a valid {column_type}") from None


def _from_float(value: float, column_type: ColumnType) -> float:
    if column_type.kind is Kind.REAL and math.isfinite(value) and value and not _REAL_MIN < abs(value) <= _REAL_MAX:
        raise ValueRefused(f"{value} is not a valid {column_type}: out of range")
    return value


#: The first double that rounds to infinity as a real is half a step beyond the largest real.
_REAL_MAX = math.nextafter(float(np.finfo(np.float32).max) + 2.0**103, 0)
#: Up to half of the smallest real, a double rounds to zero.
_REAL_MIN = 2.0**-150


def kept_form(value: object, column_type: ColumnType | None) -> str:
    """Format the value as JSON that `from_kept` reads as `converted` reads it; without a column, as plain JSON."""
    match value:
        case list() if column_type and column_type.is_array:
            return f"[{','.join(kept_form(element, column_type.element) for element in value)}]"
        case UnreadableValue():
            return _kept_unreadable(value, column_type)
        case bytes() if column_type:
            return _kept_bytes(value, column_type)
        case datetime() if column_type and column_type.kind is Kind.DATE and value.time() == time():
            return _json_of(value.date())
    written = _json_of(value)
    is_value = column_type == _JSONB and not isinstance(value, str) and written[0] == '"'
    return json.dumps(written) if is_value else written


_BYTEA, _JSONB, _UUID = (ColumnType(kind=kind) for kind in (Kind.BYTEA, Kind.JSONB, Kind.UUID))


def _kept_bytes(value: bytes, column_type: ColumnType) -> str:
    if column_type == _BYTEA:
        return _json_of(value)
    if column_type == _UUID and len(value) == 16:
        return json.dumps(str(UUID(bytes=value)))
    try:
        return json.dumps(value.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return _kept_unreadable(f"\\x{value.hex()}", column_type)


def _kept_unreadable(shown: str, column_type: ColumnType | None) -> str:
    """A form that no column of the type accepts: text that is not JSON, or else an object."""
    text = json.dumps(f"unreadable: {shown}", ensure_ascii=False)
    return text if column_type == _JSONB else f'{{"unreadable":{text}}}'


def _json_of(value: object) -> str:
    """The value as JSON; bytes in the notation of Postgres."""
    write = next((write for types, write in _WRITTEN if isinstance(value, types)), None)
    return json.dumps(str(value), ensure_ascii=False) if write is None else write(value)


def _json_of_object(fields: dict[str, object]) -> str:
    written = (f"{json.dumps(name, ensure_ascii=False)}:{_json_of(value)}" for name, value in fields.items())
    return f"{{{','.join(written)}}}"


_WRITTEN: tuple[tuple[tuple[type, ...], Callable[[Any], str]], ...] = (
    ((_Real,), lambda real: str(np.float32(real)).replace("inf", "Infinity").replace("nan", "NaN")),
    ((type(None), bool, float), json.dumps),
    # Python itself writes no integer of more than 4300 digits.
    ((int, Decimal), lambda number: f"{Decimal(number):f}"),
    ((bytes,), lambda octets: json.dumps(f"\\x{octets.hex()}")),
    ((date, time), lambda moment: json.dumps(moment.isoformat())),
    ((list, tuple), lambda values: f"[{','.join(map(_json_of, values))}]"),
    ((dict,), _json_of_object),
)


FLOATS = (Kind.REAL, Kind.DOUBLE)
