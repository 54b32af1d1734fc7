"""Records that a program gives as mappings, read one by one with the values that Parquet would hold."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date, time
from decimal import Decimal
from functools import partial
from uuid import UUID

import numpy as np
import pyarrow as pa

from onceload_core.names import ProducerId
from onceload_jobs.files.notes import Ignored
from onceload_jobs.formats.parquet.scalars import UnreadableValue, as_python
from onceload_jobs.formats.parquet.values import converted, kept_form
from onceload_jobs.formats.records import Origins, RecordRefused, Records, ValueRefused
from onceload_jobs.formats.tiers import declared_value, read_in_tiers
from onceload_jobs.pipeline.columns import Column, ColumnType
from onceload_jobs.pipeline.declared import UnknownFields

_DEPTH_MAX = 100


def read_mappings(
    rows: Sequence[Mapping[str, object]],
    *,
    producer_id: ProducerId,
    columns: tuple[Column, ...],
    unknown_fields: UnknownFields,
) -> Records:
    """Read records; they are numbered from 0. A column without a key is null."""
    types = {column.name: column.type for column in columns}

    def read_one(index: int) -> list[object]:
        row = rows[index]
        if unknown_fields is not UnknownFields.IGNORE and (
            name := next((each for each in row if each not in types), None)
        ):
            raise RecordRefused(f"the field {name!r:.80} is not declared", column=f"{name!s:.80}")
        return [declared_value(column, partial(_value, row.get(column.name), column.type)) for column in columns]

    origins = Origins(
        producer_ids=np.full(len(rows), producer_id, np.int64),
        sequence_ids=np.arange(len(rows)),
        raw=lambda index: _kept(rows[index], types),
    )
    suspects = np.ones(len(rows), np.bool_)
    records = read_in_tiers(origins, columns, suspects=suspects, read_many=lambda _: None, read_one=read_one)
    return replace(records, ignored=_undeclared_in(rows, types)) if unknown_fields is UnknownFields.IGNORE else records


def _undeclared_in(rows: Sequence[Mapping[str, object]], types: Mapping[str, ColumnType]) -> Ignored:
    found = Counter(f"{name!s:.80}" for row in rows for name in row if name not in types)
    return Ignored.of(found, records=len(rows))


def _value(value: object, column_type: ColumnType) -> object:
    return converted(_plain(value), column_type)


def _plain(value: object, *, depth: int = 0) -> object:
    """The same value in a type that Parquet has; others have no text that could be meant."""
    if isinstance(value, np.generic):
        value = _of_numpy(value)
    if depth > _DEPTH_MAX:
        raise ValueRefused(f"it has more than {_DEPTH_MAX} levels")
    match value:
        case None | bool() | int() | float() | Decimal() | date() | time() | bytes():
            return value
        case str():
            return _text(value)
        case UUID():
            return str(value)
        case bytearray() | memoryview():
            return bytes(value)
        case list() | tuple():
            return [_plain(each, depth=depth + 1) for each in value]
        case Mapping():
            return {_name(name): _plain(each, depth=depth + 1) for name, each in value.items()}
        case _:
            raise ValueRefused(f"a value of type {type(value).__name__} cannot be loaded")


def _of_numpy(value: np.generic) -> object:
    """The value as Arrow takes it: a real with its own digits, a time with its unit."""
    try:
        found = as_python(pa.scalar(value))
    except pa.ArrowException:
        found = UnreadableValue(value)
    if isinstance(found, UnreadableValue):
        raise ValueRefused(f"a value of type {type(value).__name__} cannot be loaded")
    return found


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ValueRefused(f"the key {name!r:.80} is not a text")
    return _text(name)


def _text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueRefused(f"{text!r:.80} is not valid Unicode") from None
    # A class made of str, such as an enum, is written as its value.
    return str.__str__(text)


def _kept(row: Mapping[str, object], types: Mapping[str, ColumnType]) -> bytes:
    """The record as a line of JSON, from which it can be retried."""
    written = (f"{json.dumps(str(name))}:{_kept_value(value, types.get(name))}" for name, value in row.items())
    return f"{{{','.join(written)}}}".encode(errors="backslashreplace")


def _kept_value(value: object, column_type: ColumnType | None) -> str:
    try:
        return kept_form(_plain(value), column_type)
    except ValueRefused:
        return json.dumps({"unreadable": _shown(value)})


def _shown(value: object) -> str:
    try:
        return repr(value)
    except ValueError:
        # An integer in it has more digits than Python writes.
        return f"a value of type {type(value).__name__}"
