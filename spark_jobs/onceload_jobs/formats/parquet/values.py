"""Single values of Parquet that Arrow does not cast as Postgres would."""

import json
import math
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np

from onceload_jobs.formats.parquet.scalars import Real, UnreadableValue
from onceload_jobs.formats.records import ValueRefused
from onceload_jobs.formats.values import UNREADABLE, from_json, from_text, refuse_unreadable
from onceload_jobs.pipeline.columns import ColumnType, Kind


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
    written = _json_of(value)
    refuse_unreadable(written)
    return from_json(written, column_type)


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
        case bytes() if column_type:
            return _kept_bytes(value, column_type)
        case Real() if column_type is None or column_type.kind in FLOATS:
            return _json_inside(value)
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
        return _json_of_unreadable(f"\\x{value.hex()}")


def _json_of_unreadable(shown: str) -> str:
    """A form that no column accepts, now or when it is retried."""
    return f"{UNREADABLE}{json.dumps(shown, ensure_ascii=False)}}}"


def _json_of(value: object) -> str:
    """The value as JSON; bytes in the notation of Postgres."""
    write = next((write for types, write in _WRITTEN if isinstance(value, types)), None)
    return json.dumps(str(value), ensure_ascii=False) if write is None else write(value)


def _json_of_object(fields: dict[str, object]) -> str:
    written = (f"{json.dumps(name, ensure_ascii=False)}:{_json_inside(value)}" for name, value in fields.items())
    return f"{{{','.join(written)}}}"


def _json_inside(value: object) -> str:
    """Inside other values, a real has the digits of a double."""
    return _json_of(float(value) if isinstance(value, Real) else value)


_WRITTEN: tuple[tuple[tuple[type, ...], Callable[[Any], str]], ...] = (
    ((UnreadableValue,), _json_of_unreadable),
    ((Real,), lambda real: str(np.float32(real)).replace("inf", "Infinity").replace("nan", "NaN")),
    ((type(None), bool, float), json.dumps),
    # Python itself writes no integer of more than 4300 digits.
    ((int, Decimal), lambda number: f"{Decimal(number):f}"),
    ((bytes,), lambda octets: json.dumps(f"\\x{octets.hex()}")),
    ((date, time), lambda moment: json.dumps(moment.isoformat())),
    ((list, tuple), lambda values: f"[{','.join(map(_json_inside, values))}]"),
    ((dict,), _json_of_object),
)


FLOATS = (Kind.REAL, Kind.DOUBLE)
