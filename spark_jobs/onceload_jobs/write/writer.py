"""Write rows to a table."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa
from sqlalchemy import Connection

from onceload_core.errors import SettingRefused
from onceload_core.postgres.connection import statements
from onceload_jobs.pipeline.columns import ADDED_UP_TO, LINEAGE, Column
from onceload_jobs.pipeline.declared import Target
from onceload_jobs.write.binary_copy import copied_as, copy_encoded, encoded, needs_cast
from onceload_jobs.write.sql import Sql, filled, listed, quoted, run, table_name
from onceload_jobs.write.target import Closed, Written, columns_there, places_taken

SQL = statements("writer.sql", package=__package__)


class ColumnsDiffer(Exception):
    """The table has columns of other types than those that were read, or no room for more; nothing was written."""

    def __init__(self, found: tuple[Column, ...], *, is_full: bool) -> None:
        super().__init__(found)
        self.found = {column.name: column for column in found}
        self.is_full = is_full

    def __str__(self) -> str:
        if self.is_full:
            return "the target has no room for its new columns"
        there = ", ".join(f"{column.name} {column.type}" for column in self.found.values())
        return f"since it was staged, another load has added columns of other types to the target ({there})"

    def __reduce__(self) -> tuple[object, ...]:
        # It goes to workers with the part that they read again.
        return partial(ColumnsDiffer, is_full=self.is_full), (tuple(self.found.values()),)

    def after(self, before: "ColumnsDiffer | None") -> "ColumnsDiffer":
        """The same, with the columns that were found before."""
        if before is None:
            return self
        found = tuple((before.found | self.found).values())
        return ColumnsDiffer(found, is_full=self.is_full or before.is_full)

    def settled(self, added: tuple[Column, ...]) -> tuple[Column, ...]:
        """The columns for fields, with the types of the table; if the table is full, no new ones."""
        if self.is_full:
            return tuple(self.found[column.name] for column in added if column.name in self.found)
        return tuple(self.found.get(column.name, column) for column in added)


@dataclass(frozen=True, kw_only=True)
class Writer:
    """How rows are written to one table."""

    #: Quoted for SQL.
    table: str
    #: The table where its rows end up: itself, or the target of a stage.
    target: str
    columns: tuple[Column, ...]
    lineage: bool
    #: The table has the declared types, so values that travel in another type must be cast.
    needs_cast: bool
    #: The columns that the table may lack.
    added: tuple[Column, ...] = ()

    @classmethod
    def into_target(cls, target: Target, columns: tuple[Column, ...]) -> "Writer":
        table = table_name(target)
        return cls(table=table, target=table, columns=columns, lineage=target.lineage, needs_cast=needs_cast(columns))

    def adding(self, columns: tuple[Column, ...]) -> "Writer":
        """The same, with columns for undeclared fields; an existing column of the same type is used."""
        return replace(self, columns=self.columns + columns, added=columns)

    @property
    def names(self) -> list[str]:
        lineage = [field.name for field in LINEAGE] if self.lineage else []
        return [column.name for column in self.columns] + lineage

    def add_columns(self, connection: Connection) -> None:
        """Add missing columns: the table's types must match, because COPY sends no others."""
        if self.added and (lacking := self._lacking(connection)):
            added = (f"ADD COLUMN IF NOT EXISTS {quoted(column.name)} {column.type}" for column in lacking)
            run(connection, f"ALTER TABLE {self.table} {', '.join(added)}")
            # Another writer may have added them first, with other types.
            self._lacking(connection)

    def add_all(self, connection: Connection, added: Iterable[tuple[Column, ...]]) -> None:
        """Add the columns of several pieces. The first of a name decides about its type."""
        for columns in added:
            try:
                self.adding(columns).add_columns(connection)
            except ColumnsDiffer as differing:
                self.adding(differing.settled(columns)).add_columns(connection)

    def _lacking(self, connection: Connection) -> list[Column]:
        """The columns to add; raises if existing ones differ, or no room is left."""
        ours = columns_there(connection, self.table)
        there = ours if self.table == self.target else columns_there(connection, self.target) | ours
        found = tuple(there[column.name] for column in self.added if column.name in there)
        for column in found:
            if isinstance(column, Closed):
                expected = "a column that accepts the field (declare it under columns, or set unknown_fields: ignore)"
                raise SettingRefused(f"target {self.target}, column {column.name}", column.why, expected)
        open_ones = tuple(column for column in found if isinstance(column, Column))
        types = {column.name: column.type for column in open_ones}
        lacking = [column for column in self.added if column.name not in ours]
        new = sum(column.name not in there for column in lacking)
        places = (places_taken(connection, table) for table in {self.table, self.target})
        is_full = new > 0 and max(places) + new > ADDED_UP_TO
        if is_full or any(types.get(column.name, column.type) != column.type for column in self.added):
            raise ColumnsDiffer(open_ones, is_full=is_full)
        return lacking

    def counting(self, connection: Connection) -> Written:
        """Count what this transaction writes from now on."""
        return Written.counting(connection, self.table, columns=self.columns, lineage=self.lineage)

    def encoded(self, rows: pa.Table) -> Iterator[bytes]:
        """Rows as COPY takes them."""
        return encoded(rows, self.columns, names=self.names)

    def copy_encoded(self, connection: Connection, content: Iterator[bytes]) -> int:
        """Copy encoded rows, through a temporary table if the server has to cast; how many the server wrote."""
        if not self.needs_cast:
            return copy_encoded(connection, content, table=self.table, names=self.names)
        connection.execute(filled(SQL["create_arriving"], columns=copy_columns(self.columns, lineage=self.lineage)))
        copy_encoded(connection, content, table="arriving_rows", names=self.names)
        return self.insert_from(connection, "arriving_rows")

    def insert_from(self, connection: Connection, source: Sql) -> int:
        """Insert the rows of another table, and return how many the server wrote."""
        cast = cast_to_target(self.columns, lineage=self.lineage)
        insert = filled(SQL["insert"], table=self.table, names=listed(self.names), cast=cast, source=source)
        return connection.execute(insert).rowcount


def copy_columns(columns: Sequence[Column], *, lineage: bool) -> str:
    """The columns of the temporary table that rows are copied to."""
    columns_as_copied = [f"{quoted(column.name)} {copied_as(column)}" for column in columns]
    return ", ".join(columns_as_copied + [f"{field.name} bigint" for field in LINEAGE if lineage])


def cast_to_target(columns: Sequence[Column], *, lineage: bool) -> str:
    """The same columns, cast to the types of the target."""
    cast = [
        f"CAST({quoted(column.name)} AS {column.type})" if needs_cast([column]) else quoted(column.name)
        for column in columns
    ]
    return ", ".join(cast + [field.name for field in LINEAGE if lineage])
