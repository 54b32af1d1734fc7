"""How values of an Avro schema are read: exactly as they are stored, into Arrow.

fastavro reads only bytes, numbers and records here. Given the file's own schema, it would stop at the first text that
is not UTF-8, drop the second of two equal map keys, fail on days after 9999, and not report which type of a union a
value has. So it gets a schema of the same bytes: text as bytes, a map as a list of its entries, and each type of a
union as a record.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import lru_cache, partial
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
from fastavro import parse_schema

from onceload_jobs.formats.avro.blocks import damaged, unsupported
from onceload_jobs.formats.avro.memory import Held, of_record, of_union
from onceload_jobs.formats.plain_values import plain

_ToArrow = Callable[[list[Any]], pa.Array]
#: More types than a table can have columns, and fewer than fit into memory.
_TYPES_MAX = 20_000
_DECIMAL128_MAX, _DECIMAL256_MAX = 38, 76
#: A numeric of Postgres can be declared with as many.
_DIGITS_MAX = 1000


@dataclass(frozen=True, kw_only=True)
class AvroType:
    #: The schema with which fastavro reads the same bytes.
    read_as: Any
    #: Makes an array of the values that fastavro returned.
    to_arrow: _ToArrow
    held: Held
    is_nullable: bool = False


@dataclass(frozen=True, kw_only=True)
class Field:
    name: str
    #: Its name in the records that fastavro returns.
    key: str
    type: AvroType


@dataclass(frozen=True, kw_only=True)
class Schema:
    fields: tuple[Field, ...]
    #: A list of the records of a file, for fastavro.
    of_records: Any
    #: What a record takes.
    held: Held

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.fields)


class _Unsupported(ValueError):
    """A schema that is valid, but not supported."""


@lru_cache(maxsize=4)
def schema_of(raw: bytes, *, url: str) -> Schema:
    """The columns of a file, from the schema in its header."""
    try:
        return _schema(json.loads(raw))
    except _Unsupported as error:
        raise unsupported(url, str(error)) from error
    except RecursionError as error:
        raise unsupported(url, "a schema that is nested too deeply") from error
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise damaged(url, f"the schema in its header cannot be read ({error})") from error


def _schema(schema: Any) -> Schema:  # noqa: ANN401 - any JSON.
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise _Unsupported("a top-level type that is not a record")
    types = _Types()
    record = types.of(schema, "")
    of_records = parse_schema({"type": "array", "items": record.read_as})
    return Schema(fields=types.fields[record.read_as["name"]], of_records=of_records, held=record.held)


@dataclass
class _Types:
    """Makes a type of each part of a schema. The names of types are not needed, except to find them."""

    fields: dict[str, tuple[Field, ...]] = field(default_factory=dict)
    _named: dict[str, tuple[dict[str, Any], str]] = field(default_factory=dict)
    _open: set[str] = field(default_factory=set)
    _numbers: Iterator[int] = field(default_factory=count)
    _parts: Iterator[int] = field(default_factory=count)

    def of(self, schema: Any, namespace: str) -> AvroType:  # noqa: ANN401 - any JSON.
        if next(self._parts) == _TYPES_MAX:
            raise _Unsupported(f"a schema of more than {_TYPES_MAX:,} types")
        if isinstance(schema, list):
            return self._union([(each, self.of(each, namespace)) for each in schema])
        kind, facts = (schema, {}) if isinstance(schema, str) else (schema["type"], schema)
        if not isinstance(kind, str):
            return self.of(kind, namespace)
        return self._of_kind(kind, facts, namespace)

    def _of_kind(self, kind: str, schema: dict[str, Any], namespace: str) -> AvroType:
        match kind:
            case "array":
                return _list_of(self.of(schema["items"], namespace))
            case "map":
                return _map_of(self.of(schema["values"], namespace), name=self._new_name())
            case "record" | "enum" | "fixed":
                name = _full_name(schema["name"], schema.get("namespace", namespace))
                self._named[name] = (schema, name)
            case _ if kind in _PRIMITIVES:
                return _primitive(kind, schema)
            case _:
                name = _full_name(kind, namespace)
        return self._named_type(*self._named[name])

    def _named_type(self, schema: dict[str, Any], full_name: str) -> AvroType:
        if schema["type"] == "enum":
            return _enum(schema["symbols"])
        if schema["type"] == "fixed":
            return _fixed(schema, name=self._new_name())
        if full_name in self._open:
            raise _Unsupported(f"the recursive type {full_name!r}")
        self._open.add(full_name)
        namespace = full_name.rpartition(".")[0]
        found = [(each["name"], self.of(each["type"], namespace)) for each in schema["fields"]]
        self._open.remove(full_name)
        fields = tuple(Field(name=name, key=f"f{at}", type=of_type) for at, (name, of_type) in enumerate(found))
        name = self._new_name()
        self.fields[name] = fields
        return _record(fields, name=name)

    def _union(self, branches: Sequence[tuple[object, AvroType]]) -> AvroType:
        others = [of_type for schema, of_type in branches if not _is_null(schema)]
        is_nullable = len(others) < len(branches)
        if len(others) == 1:
            read_as = [of_type.read_as for _, of_type in branches]
            held = of_union([others[0].held])
            return AvroType(read_as=read_as, to_arrow=others[0].to_arrow, held=held, is_nullable=is_nullable)
        named = [(f"b{at}", schema, of_type) for at, (schema, of_type) in enumerate(branches)]
        return AvroType(
            read_as=[
                "null" if _is_null(schema) else _record_as(self._new_name(), {name: of_type.read_as})
                for name, schema, of_type in named
            ],
            to_arrow=_to_union({name: of_type.to_arrow for name, schema, of_type in named if not _is_null(schema)}),
            held=of_union(of_record([of_type.held]) for of_type in others),
            is_nullable=is_nullable,
        )

    def _new_name(self) -> str:
        return f"t{next(self._numbers)}"


def _full_name(name: str, namespace: str) -> str:
    return name if "." in name or not namespace else f"{namespace}.{name}"


def _is_null(schema: object) -> bool:
    return schema == "null" or (isinstance(schema, dict) and schema.get("type") == "null")


def _record_as(name: str, fields: Mapping[str, object]) -> dict[str, object]:
    named = [{"name": each, "type": of_type} for each, of_type in fields.items()]
    return {"type": "record", "name": name, "fields": named}


def _integers(stored: pa.DataType, target: pa.DataType) -> _ToArrow:
    return lambda values: plain(pa.array(values, stored).cast(target))


_PRIMITIVES: Mapping[str, tuple[str, _ToArrow]] = {
    "null": ("null", lambda values: pa.nulls(len(values))),
    "boolean": ("boolean", lambda values: pa.array(values, pa.bool_())),
    "int": ("int", lambda values: pa.array(values, pa.int32())),
    "long": ("long", lambda values: pa.array(values, pa.int64())),
    "float": ("float", lambda values: pa.array(values, pa.float32())),
    "double": ("double", lambda values: pa.array(values, pa.float64())),
    "bytes": ("bytes", lambda values: pa.array(values, pa.binary())),
    # Text that is not UTF-8 is a fault of its value only.
    "string": ("bytes", lambda values: pa.array(values, pa.binary()).view(pa.string())),
}
_LOGICAL: Mapping[tuple[str, str], _ToArrow] = {
    ("int", "date"): _integers(pa.int32(), pa.date32()),
    ("int", "time-millis"): _integers(pa.int32(), pa.time32("ms")),
    ("long", "time-micros"): _integers(pa.int64(), pa.time64("us")),
    **{
        ("long", f"{prefix}timestamp-{name}"): _integers(pa.int64(), pa.timestamp(unit, zone))
        for prefix, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}


def _primitive(kind: str, schema: Mapping[str, Any]) -> AvroType:
    read_as, to_arrow = _PRIMITIVES[kind]
    to_arrow = _LOGICAL.get((kind, str(schema.get("logicalType"))), to_arrow)
    if kind == "bytes":
        to_arrow = _to_decimals(schema) or to_arrow
    return AvroType(read_as=read_as, to_arrow=to_arrow, held=_HELD.get(kind, _SCALAR), is_nullable=kind == "null")


#: Objects of Python, and of bytes also the decimal that is made of them.
_SCALAR, _OCTETS = Held(each=32), Held(each=200, times=4)
_HELD = {
    "null": Held(each=0, least=0),
    "float": Held(each=24, least=4),
    "double": Held(each=24, least=8),
    "bytes": _OCTETS,
    "string": Held(each=40, times=3),
}


def _to_decimals(schema: Mapping[str, Any]) -> _ToArrow | None:
    """None for other bytes; as Avro specifies, a logical type that is not valid is ignored."""
    precision, scale = schema.get("precision"), schema.get("scale", 0)
    if schema.get("logicalType") != "decimal" or not isinstance(precision, int) or not isinstance(scale, int):
        return None
    if not 0 <= scale <= precision or not precision:
        return None
    if precision > _DIGITS_MAX:
        raise _Unsupported(f"a decimal of more than {_DIGITS_MAX:,} digits")
    if precision > _DECIMAL256_MAX:
        return lambda values: pa.array(
            [None if each is None else f"{_decimal(each, scale):f}" for each in values], pa.string()
        )
    of_size = pa.decimal128 if precision <= _DECIMAL128_MAX else pa.decimal256
    return partial(_decimals, of_type=of_size(precision, scale))


def _decimals(values: list[bytes | None], *, of_type: pa.Decimal128Type | pa.Decimal256Type) -> pa.Array:
    decimals = [None if each is None else _decimal(each, of_type.scale) for each in values]
    try:
        return pa.array(decimals, of_type)
    except pa.ArrowInvalid:
        # Some writers do not check the precision that they declare. The column of the table decides what fits.
        return pa.array(decimals, pa.decimal256(_DECIMAL256_MAX, of_type.scale))


def _decimal(octets: bytes, scale: int) -> Decimal:
    if not octets:
        raise ValueError("a decimal without a byte")
    return Decimal(int.from_bytes(octets, "big", signed=True)).scaleb(-scale, _EXACT)


_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def _enum(symbols: Sequence[str]) -> AvroType:
    def to_arrow(values: list[int | None]) -> pa.Array:
        if any(each is not None and not 0 <= each < len(symbols) for each in values):
            raise ValueError("an enum value is not one of its symbols")
        return pa.array([None if each is None else symbols[each] for each in values], pa.string())

    return AvroType(read_as="int", to_arrow=to_arrow, held=_SCALAR)


def _fixed(schema: Mapping[str, Any], *, name: str) -> AvroType:
    size = int(schema["size"])
    arrow = pa.binary(size) if size > 0 else pa.binary()
    return AvroType(
        read_as={"type": "fixed", "name": name, "size": size},
        to_arrow=_to_decimals(schema) or (lambda values: pa.array(values, arrow)),
        held=replace(_OCTETS, least=size),
    )


def _list_of(items: AvroType) -> AvroType:
    if not items.held.least:
        raise _Unsupported("an array of values without a byte")

    def to_arrow(values: list[list[Any] | None]) -> pa.Array:
        elements = items.to_arrow([each for value in values for each in value or ()])
        return pa.ListArray.from_arrays(_offsets(values), elements, mask=_nulls(values))

    read_as = {"type": "array", "items": items.read_as}
    return AvroType(read_as=read_as, to_arrow=to_arrow, held=items.held.as_items)


def _map_of(items: AvroType, *, name: str) -> AvroType:
    text, held_text = _PRIMITIVES["string"], _HELD["string"]

    def to_arrow(values: list[list[dict[str, Any]] | None]) -> pa.Array:
        entries = [each for value in values for each in value or ()]
        keys, held = text[1]([each["key"] for each in entries]), items.to_arrow([each["value"] for each in entries])
        return pa.MapArray.from_arrays(_offsets(values), keys, held, mask=_nulls(values))

    entry = _record_as(name, {"key": text[0], "value": items.read_as})
    held = of_record([held_text, items.held]).as_items
    return AvroType(read_as={"type": "array", "items": entry}, to_arrow=to_arrow, held=held)


def _record(fields: Sequence[Field], *, name: str) -> AvroType:
    def to_arrow(values: list[dict[str, Any] | None]) -> pa.Array:
        if not fields:
            return pa.array(values, pa.struct([]))
        arrays = [each.type.to_arrow([None if v is None else v[each.key] for v in values]) for each in fields]
        return pa.StructArray.from_arrays(arrays, [each.name for each in fields], mask=_nulls(values))

    read_as = _record_as(name, {each.key: each.type.read_as for each in fields})
    return AvroType(read_as=read_as, to_arrow=to_arrow, held=of_record(each.type.held for each in fields))


def _to_union(branches: Mapping[str, _ToArrow]) -> _ToArrow:
    """Arrow's unions have no nulls but in one of their types."""
    numbers = {name: number for number, name in enumerate(branches, start=1)}

    def to_arrow(values: list[dict[str, Any] | None]) -> pa.Array:
        held: list[list[Any]] = [[] for _ in range(len(branches) + 1)]
        types, offsets = np.zeros(len(values), np.int8), np.zeros(len(values), np.int32)
        for at, value in enumerate(values):
            name, of_branch = next(iter(value.items())) if value else (None, None)
            types[at] = numbers[name] if name else 0
            offsets[at] = len(held[types[at]])
            held[types[at]].append(of_branch)
        children = [
            to_array(each) for to_array, each in zip((_PRIMITIVES["null"][1], *branches.values()), held, strict=True)
        ]
        return pa.UnionArray.from_dense(pa.array(types), pa.array(offsets), children)

    return to_arrow


def _offsets(values: Sequence[Sequence[Any] | None]) -> pa.Array:
    return pa.array(np.cumsum([0, *(len(each or ()) for each in values)]), pa.int32())


def _nulls(values: Sequence[object]) -> pa.Array:
    return pa.array([each is None for each in values], pa.bool_())
