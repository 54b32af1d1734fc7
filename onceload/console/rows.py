"""Rows of a target: which record of which file each came from."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from onceload.console.reading import reading
from onceload.lag import Described
from onceload_core.errors import SettingRefused
from onceload_core.postgres.connection import Record, statements
from onceload_core.spans import Span
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.write.sql import filled, quoted, table_name
from onceload_jobs.write.target import columns_there

SQL = statements("rows.sql", package=__package__)
_ROWS_MAX = 20
#: How many rows, and characters of each, are shown beside a part of a file.
LINES_MAX, _TEXT_MAX = 5, 400
#: These rows are only a help, so a large table without an index is not read to its end.
_ROWS_S = 3


@dataclass(frozen=True, kw_only=True)
class Search:
    """The columns that can be searched, and the rows that have the value."""

    columns: tuple[str, ...]
    rows: Sequence[Record] = ()
    are_cut: bool = False


def loaded_from(engine: Engine, described: Described, producer_id: int, parts: Sequence[Span]) -> list[list[str]]:
    """The first rows that were loaded from each part of a file, as JSON."""
    table = table_name(described.declared.target)
    what, pipeline = f"rows of {table} by {PRODUCER_ID}", described.declared.name
    with reading(engine, what, pipeline=pipeline, limit_s=_ROWS_S) as (connection, _):
        there = tuple(columns_there(connection, table))
        _check_lineage("the rows of this file", table, there)
        columns = ", ".join(f"there.{quoted(name)}" for name in there if name not in (PRODUCER_ID, SEQUENCE))
        statement = filled(SQL["loaded_from"], table=table, columns=columns)
        of = {"producer_id": producer_id, "text_max": _TEXT_MAX + 1, "at_most": LINES_MAX}
        found = [connection.execute(statement, of | {"first": part.first, "end": part.end}).scalars() for part in parts]
        return [[row if len(row) <= _TEXT_MAX else f"{row[:_TEXT_MAX]}…" for row in rows] for rows in found]


def search(engine: Engine, described: Described, *, column: str, value: str) -> Search:
    """Find rows by a value; without a column, only list the columns."""
    table = table_name(described.declared.target)
    with reading(engine, f"rows of {table}", pipeline=described.declared.name) as (connection, _):
        there = tuple(columns_there(connection, table))
        columns = tuple(name for name in there if name not in (PRODUCER_ID, SEQUENCE))
        if not column:
            return Search(columns=columns)
        if column not in columns:
            raise SettingRefused("column", column, f"a column of {table}: {', '.join(columns) or 'it has none'}")
        _check_lineage("this search", table, there)
        statement = filled(SQL["rows_with"], table=table, column=quoted(column))
        rows = connection.execute(statement, {"value": value, "at_most": _ROWS_MAX + 1}).all()
    return Search(columns=columns, rows=rows[:_ROWS_MAX], are_cut=len(rows) > _ROWS_MAX)


def _check_lineage(about: str, table: str, columns: Sequence[str]) -> None:
    if not {PRODUCER_ID, SEQUENCE} <= set(columns):
        found = f"{table}, whose rows do not name the file that they came from" if columns else f"no table {table}"
        raise SettingRefused(about, found, f"a table with {PRODUCER_ID} and {SEQUENCE}")
