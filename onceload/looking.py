"""Looking at rows: a connection that only reads, unless it is asked to write.

Values are read as Postgres writes them: a conversion to Python would refuse some of them (times after the year 9999)
and change others. Only JSON documents get numbers, booleans, lists and objects.
"""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg2.extensions import new_array_type, new_type, register_type, string_types
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload.databases import opened
from onceload_core.errors import NotFound
from onceload_core.postgres.connection import QUERY_CANCELED, sqlstate, statements, translated

SQL = statements("looking.sql", package=__package__)
#: Without an index, Postgres sorts the whole table to find its newest rows.
SORTING_TIMEOUT = "5s"
LINEAGE = ("_producer_id", "_sequence")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """The answer to one statement."""

    columns: tuple[str, ...]
    #: For each column, whether its values are numbers.
    are_numbers: tuple[bool, ...]
    rows: Sequence[Sequence[object]]
    #: What the server reports, such as `INSERT 0 3`.
    status: str


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    name: str
    type: str
    not_null: bool

    def __str__(self) -> str:
        return f"{self.name} {self.type}{' not null' if self.not_null else ''}"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A part of a table."""

    table: str
    columns: tuple[TableColumn, ...]
    found: Rows
    #: Whether the rows are the newest ones. Otherwise they come in the order in which they are stored.
    are_newest: bool


@contextmanager
def looking(dsn: str, *, writes: bool = False) -> Iterator[Connection]:
    """A connection that runs each statement in a transaction of its own."""
    with opened(dsn, schema_checked=False) as engine, engine.connect() as opened_connection:
        connection = opened_connection.execution_options(isolation_level="AUTOCOMMIT")
        if not writes:
            connection.execute(SQL["read_only"])
        try:
            yield connection
        finally:
            # A statement may have begun a transaction, which ends with the connection.
            connection.invalidate()


def ask(connection: Connection, statement: str, *, as_json: bool) -> Rows:
    """Run statements as they are written; the answer is that of the last one."""
    driver: Any = connection.connection.dbapi_connection
    for each in _FOR_JSON if as_json else (_AS_WRITTEN,):
        register_type(each, driver)
    result = connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    cursor: Any = result.context.cursor
    description = cursor.description or ()
    return Rows(
        columns=tuple(each.name for each in description),
        are_numbers=tuple(each.type_code in _NUMBERS for each in description),
        rows=[tuple(row) for row in result] if result.returns_rows else [],
        status=cursor.statusmessage or "",
    )


def show_rows(connection: Connection, name: str, *, limit: int, as_json: bool) -> Shown:
    """The newest rows of a table if it has lineage, else its first ones."""
    with translated(pipeline="(any)", doing=f"reading {name}"):
        table = connection.execute(SQL["find_table"], {"name": name}).one_or_none()
        if table is None:
            raise NotFound("table", name, tuple(connection.execute(SQL["tables"]).scalars()))
        columns = tuple(TableColumn(**row) for row in connection.execute(SQL["columns"], {"oid": table.oid}).mappings())
        select = f"SELECT * FROM {table.name}"  # noqa: S608 - Postgres has quoted the name.
        newest = None
        if {each.name for each in columns}.issuperset(LINEAGE):
            by_age = f"{select} ORDER BY _producer_id DESC, _sequence DESC LIMIT {limit}"
            newest = _sorted_in_time(connection, by_age, as_json=as_json)
        connection.execute(SQL["scan_from_the_start"])
        found = newest or ask(connection, f"{select} LIMIT {limit}", as_json=as_json)
    return Shown(table=table.name, columns=columns, found=found, are_newest=newest is not None)


def _sorted_in_time(connection: Connection, statement: str, *, as_json: bool) -> Rows | None:
    connection.execute(SQL["limited"], {"limit": SORTING_TIMEOUT})
    try:
        return ask(connection, statement, as_json=as_json)
    except DBAPIError as error:
        if sqlstate(error) != QUERY_CANCELED:
            raise
        return None
    finally:
        connection.execute(SQL["limited"], {"limit": "0"})


def _as_written(value: str | bytes | None, _cursor: object) -> str | bytes | None:
    return value


def _finite(value: str | bytes | None, _cursor: object) -> object:
    """JSON has no infinite numbers."""
    number = None if value is None else float(value)
    return value if number is not None and not math.isfinite(number) else number


def _document(value: str | bytes | None, _cursor: object) -> object:
    return None if value is None else json.loads(value)


_AS_WRITTEN = new_type(tuple(string_types), "AS_WRITTEN", _as_written)
#: smallint, integer, bigint, oid, real, double precision, numeric.
_NUMBERS = frozenset({21, 23, 20, 26, 700, 701, 1700})
#: bytea, date, time, timestamp, timestamptz, interval, timetz, numeric; and arrays of them.
_TEXTS = new_type((17, 1082, 1083, 1114, 1184, 1186, 1266, 1700), "TEXTS", _as_written)
_FLOATS = new_type((700, 701), "FLOATS", _finite)
_FOR_JSON = (
    _TEXTS,
    new_array_type((1001, 1182, 1183, 1115, 1185, 1187, 1270, 1231), "TEXTS_ARRAY", _TEXTS),
    _FLOATS,
    new_array_type((1021, 1022), "FLOATS_ARRAY", _FLOATS),
    new_type((114, 3802), "DOCUMENT", _document),
)
