"""The table that rows go to: made if it is missing, checked if it is there."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, Engine, text

from dedup_core.errors import SettingRefused
from dedup_core.postgres.connection import translated
from spark_jobs.columns import Column, parse_column
from spark_jobs.copy import quoted, run
from spark_jobs.declared import Declared, Target, Write
from spark_jobs.sources.records import PRODUCER_ID, SEQUENCE

_COLUMNS = text(
    "SELECT attname AS name, format_type(atttypid, atttypmod) AS type, attnotnull AS is_not_null,"
    "       atthasdef OR attidentity <> '' OR attgenerated <> '' AS is_filled"
    "  FROM pg_attribute WHERE attrelid = to_regclass(:table) AND attnum > 0 AND NOT attisdropped"
)
_KEYS = text(
    "SELECT array_agg(CAST(attname AS text)) AS names"
    "  FROM pg_index JOIN pg_attribute ON attrelid = indrelid AND attnum = ANY(indkey)"
    " WHERE indrelid = to_regclass(:table) AND indisunique AND indpred IS NULL AND indisvalid"
    " GROUP BY indexrelid"
)
#: Two loads may find it missing at the same time; the second waits, and finds it.
_LOCK = text("SELECT pg_advisory_xact_lock(hashtextextended('onceload.target ' || :table, 0))")


def table_name(target: Target) -> str:
    """The table as SQL writes it."""
    return f"{quoted(target.schema)}.{quoted(target.table)}"


def ensure_target(engine: Engine, declared: Declared, *, columns: Sequence[Column]) -> None:
    """Make the table, or refuse one that could not hold the rows as they are declared."""
    target, table = declared.target, table_name(declared.target)
    with translated(pipeline=declared.name, doing=f"looking at {table}"), engine.begin() as connection:
        connection.execute(_LOCK, {"table": table})
        there = {row.name: row for row in connection.execute(_COLUMNS, {"table": table})}
        if not there:
            _create(connection, target, columns)
            return
        wanted = _types(columns, lineage=target.lineage)
        _check_columns(table, wanted, {name: str(row.type) for name, row in there.items()})
        unfilled = [name for name, row in there.items() if row.is_not_null and not row.is_filled and name not in wanted]
        if unfilled:
            found = f"{', '.join(unfilled)}, which may not be null and which nobody fills"
            raise SettingRefused(f"target {table}", found, "only columns that are declared, nullable or have a default")
        if target.write is Write.MERGE:
            _check_key(connection, target)


def undeclared_columns(connection: Connection, table: str, *, known: Sequence[str]) -> tuple[Column, ...]:
    """The columns that a table got for fields which nobody declared; those that fill themselves are none of them."""
    rows = connection.execute(_COLUMNS, {"table": table})
    names = {*known, PRODUCER_ID, SEQUENCE}
    return tuple(
        parse_column(row.name, _SHORT_NAMES.get(row.type, row.type))
        for row in rows
        if row.name not in names and not row.is_filled and _SHORT_NAMES.get(row.type, row.type) in _ADDED_TYPES
    )


def _types(columns: Sequence[Column], *, lineage: bool) -> dict[str, str]:
    types = {column.name: str(column.type) for column in columns}
    return types | {PRODUCER_ID: "bigint", SEQUENCE: "bigint"} if lineage else types


def _create(connection: Connection, target: Target, columns: Sequence[Column]) -> None:
    not_null = {column.name for column in columns if column.not_null}
    lines = [
        f"{quoted(name)} {of_type}{' NOT NULL' if name in not_null else ''}"
        for name, of_type in _types(columns, lineage=target.lineage).items()
    ]
    if target.write is Write.MERGE:
        lines.append(f"PRIMARY KEY ({', '.join(map(quoted, target.key))})")
    run(connection, f"CREATE SCHEMA IF NOT EXISTS {quoted(target.schema)}")
    run(connection, f"CREATE TABLE {table_name(target)} ({', '.join(lines)})")


#: How Postgres writes types that have a shorter name.
_LONG_NAMES = {
    "varchar": "character varying",
    "timestamptz": "timestamp with time zone",
    "timestamp": "timestamp without time zone",
    "time": "time without time zone",
}


_SHORT_NAMES = {long: short for short, long in _LONG_NAMES.items()}
#: What a field that nobody declared may become.
_ADDED_TYPES = ("text", "boolean", "bigint", "double precision", "jsonb")


def _as_postgres_writes(declared: str) -> str:
    name, bracket, rest = declared.partition("(") if "(" in declared else declared.partition("[")
    return _LONG_NAMES.get(name, name) + bracket + rest


def _check_columns(table: str, wanted: Mapping[str, str], there: Mapping[str, str]) -> None:
    faults = [
        f"{name} is {there[name]} instead of {of_type}" if name in there else f"there is no {name}"
        for name, of_type in wanted.items()
        if there.get(name) != _as_postgres_writes(of_type)
    ]
    if faults:
        expected = "the columns that the pipeline declares (and _producer_id, _sequence: see target.lineage)"
        raise SettingRefused(f"target {table}", "; ".join(faults[:5]), expected)


def _check_key(connection: Connection, target: Target) -> None:
    keys = [frozenset(row.names) for row in connection.execute(_KEYS, {"table": table_name(target)})]
    if frozenset(target.key) not in keys:
        expected = f"a unique index on its key ({', '.join(target.key)})"
        raise SettingRefused(f"target {table_name(target)}", "none on just these columns", expected)
