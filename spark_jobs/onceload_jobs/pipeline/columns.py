"""The contract of a pipeline's records: its columns and their Postgres types.

A column *travels* to the server in a type that binary COPY accepts. If that is not the declared type, the server casts
it.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

import pyarrow as pa

from onceload_core.errors import SettingRefused

PRODUCER_ID = "_producer_id"
SEQUENCE = "_sequence"
LINEAGE = (pa.field(PRODUCER_ID, pa.int64()), pa.field(SEQUENCE, pa.int64()))


class Kind(StrEnum):
    """The types of columns, by their Postgres names."""

    TEXT = "text"
    VARCHAR = "varchar"
    BOOLEAN = "boolean"
    SMALLINT = "smallint"
    INTEGER = "integer"
    BIGINT = "bigint"
    REAL = "real"
    DOUBLE = "double precision"
    NUMERIC = "numeric"
    DATE = "date"
    TIME = "time"
    TIMESTAMP = "timestamp"
    TIMESTAMPTZ = "timestamptz"
    UUID = "uuid"
    JSONB = "jsonb"
    BYTEA = "bytea"


INTEGERS = (Kind.SMALLINT, Kind.INTEGER, Kind.BIGINT)


@dataclass(frozen=True, kw_only=True)
class ColumnType:
    """A Postgres type with its length or precision, or an array of it."""

    kind: Kind
    #: The length of a varchar.
    length: int | None = None
    #: The precision and scale of a numeric.
    precision: int | None = None
    scale: int | None = None
    is_array: bool = False

    @property
    def element(self) -> "ColumnType":
        """The type of a single value."""
        return ColumnType(kind=self.kind, length=self.length, precision=self.precision, scale=self.scale)

    def __str__(self) -> str:
        measures = ""
        if self.length is not None:
            measures = f"({self.length})"
        elif self.precision is not None:
            measures = f"({self.precision},{self.scale})"
        return f"{self.kind}{measures}{'[]' if self.is_array else ''}"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One declared column."""

    name: str
    type: ColumnType
    not_null: bool = False
    #: The names of the objects that its field is inside, and of the field; empty: the field has its name.
    path: tuple[str, ...] = ()

    @property
    def steps(self) -> tuple[str, ...]:
        return self.path or (self.name,)


def written_path(steps: tuple[str, ...]) -> str:
    """A path as messages show it, and as it is declared."""
    return ".".join(f'"{step}"' if "." in step else step for step in steps)


#: Column names used by Onceload on the way to the target or in it, and the system columns of every table.
RESERVED: tuple[str, ...] = ("_producer_id", "_sequence", "_message", "_position", "_of_file", "_in_file")
RESERVED += ("tableoid", "xmin", "cmin", "xmax", "cmax", "ctid")
#: Undeclared fields get no columns beyond this number; Postgres allows 1 600, dropped ones included.
ADDED_UP_TO = 1500
#: Other names for types, besides Postgres' own.
_OTHER_NAMES = {
    "bool": Kind.BOOLEAN,
    "int2": Kind.SMALLINT,
    "int": Kind.INTEGER,
    "int4": Kind.INTEGER,
    "int8": Kind.BIGINT,
    "float4": Kind.REAL,
    "float8": Kind.DOUBLE,
    "decimal": Kind.NUMERIC,
    "character varying": Kind.VARCHAR,
    "time without time zone": Kind.TIME,
    "timestamp without time zone": Kind.TIMESTAMP,
    "timestamp with time zone": Kind.TIMESTAMPTZ,
}
_KINDS = {kind.value: kind for kind in Kind} | _OTHER_NAMES
_DECLARED = re.compile(
    r"(?P<name>[a-z][a-z0-9 ]*?)\s*(?:\(\s*(?P<first>\d+)\s*(?:,\s*(?P<second>\d+)\s*)?\))?\s*(?P<array>\[\])?"
)
#: The digits of an Arrow decimal of 128 bits.
PRECISION_MAX = 38
_LENGTH_MAX = 10_485_760


def parse_column(name: str, declared: str) -> Column:
    """Parse `numeric(12,2) not null`; an error names the valid types."""
    words = " ".join(declared.lower().split())
    not_null = words.endswith(" not null")
    return Column(name=name, type=parse_type(name, words.removesuffix(" not null")), not_null=not_null)


def parse_type(column: str, declared: str) -> ColumnType:
    match = _DECLARED.fullmatch(declared.strip().lower())
    kind = _KINDS.get(match["name"]) if match else None
    if match is None or kind is None:
        raise SettingRefused(
            f"column {column}", repr(declared), f"one of {', '.join(Kind)}, or an array of it (`text[]`)"
        )
    first, second = (int(number) if number else None for number in (match["first"], match["second"]))
    is_array = bool(match["array"])
    match kind, first, second:
        case Kind.NUMERIC, int(precision), scale if 1 <= precision <= PRECISION_MAX and (scale or 0) <= precision:
            return ColumnType(kind=kind, precision=precision, scale=scale or 0, is_array=is_array)
        case Kind.NUMERIC, _, _:
            expected = f"numeric(precision,scale) with 1 to {PRECISION_MAX} digits, scale of them after the point"
            raise SettingRefused(f"column {column}", repr(declared), expected)
        case Kind.VARCHAR, (None | int()) as length, None if length is None or 1 <= length <= _LENGTH_MAX:
            return ColumnType(kind=kind, length=length, is_array=is_array)
        case _, None, None:
            return ColumnType(kind=kind, is_array=is_array)
        case _:
            raise SettingRefused(f"column {column}", repr(declared), f"{kind} without this length or precision")


def arrow_type(column_type: ColumnType) -> pa.DataType:
    """The Arrow type of parsed values of a column."""
    if column_type.is_array:
        return pa.list_(_arrow_scalar(column_type))
    return _arrow_scalar(column_type)


def _arrow_scalar(column_type: ColumnType) -> pa.DataType:
    if column_type.kind is Kind.NUMERIC:
        return pa.decimal128(column_type.precision, column_type.scale)
    return _ARROW[column_type.kind]


_ARROW = {
    Kind.TEXT: pa.string(),
    Kind.VARCHAR: pa.string(),
    Kind.BOOLEAN: pa.bool_(),
    Kind.SMALLINT: pa.int16(),
    Kind.INTEGER: pa.int32(),
    Kind.BIGINT: pa.int64(),
    Kind.REAL: pa.float32(),
    Kind.DOUBLE: pa.float64(),
    Kind.DATE: pa.date32(),
    Kind.TIME: pa.time64("us"),
    Kind.TIMESTAMP: pa.timestamp("us"),
    Kind.TIMESTAMPTZ: pa.timestamp("us", "UTC"),
    # Its sixteen bytes.
    Kind.UUID: pa.binary(16),
    # Its text, unchanged.
    Kind.JSONB: pa.string(),
    Kind.BYTEA: pa.binary(),
}


def arrow_schema(columns: tuple[Column, ...]) -> pa.Schema:
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])
