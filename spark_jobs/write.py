"""Rows into a table, and which of them it does not take."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from dedup_core.postgres.connection import first_line, sqlstate
from spark_jobs.columns import Column
from spark_jobs.copy import copy_in, is_cast, quoted, run, travels_as
from spark_jobs.declared import Target
from spark_jobs.sources.records import LINEAGE
from spark_jobs.target import table_name

#: What a row may be refused for: its values, a constraint, a trigger's own word, a limit of the server's.
_ROW_REFUSED = ("22", "23", "P0", "54")


@dataclass(frozen=True, kw_only=True)
class Writer:
    """How rows get into one table."""

    #: As SQL writes it.
    table: str
    columns: tuple[Column, ...]
    lineage: bool
    #: The table's columns have the declared types, so that what travels in another has to be cast.
    is_cast: bool
    #: Of the columns, those that the table may not have yet.
    added: tuple[Column, ...] = ()

    @classmethod
    def into_target(cls, target: Target, columns: tuple[Column, ...]) -> "Writer":
        return cls(table=table_name(target), columns=columns, lineage=target.lineage, is_cast=is_cast(columns))

    def adding(self, columns: tuple[Column, ...]) -> "Writer":
        """The same, with columns for fields that nobody declared; one that came meanwhile is as good."""
        return replace(self, columns=self.columns + columns, added=columns)

    @property
    def names(self) -> list[str]:
        lineage = [field.name for field in LINEAGE] if self.lineage else []
        return [column.name for column in self.columns] + lineage

    def add_columns(self, connection: Connection) -> None:
        for column in self.added:
            run(connection, f"ALTER TABLE {self.table} ADD COLUMN IF NOT EXISTS {quoted(column.name)} {column.type}")

    def write(self, connection: Connection, rows: pa.Table) -> None:
        """Copy straight in, or through a table of this transaction where the server has to cast."""
        self.add_columns(connection)
        if not rows.num_rows:
            return
        rows = rows.select(self.names)
        if not self.is_cast:
            copy_in(connection, rows, table=self.table, names=self.names, columns=self.columns)
            return
        run(
            connection,
            f"CREATE TEMPORARY TABLE IF NOT EXISTS travelling ({travelling(self.columns, lineage=self.lineage)})"
            " ON COMMIT DROP; TRUNCATE travelling",
        )
        copy_in(connection, rows, table="travelling", names=self.names, columns=self.columns)
        listed = ", ".join(map(quoted, self.names))
        run(
            connection,
            f"INSERT INTO {self.table} ({listed}) SELECT {arrived(self.columns, lineage=self.lineage)} FROM travelling",
        )


def travelling(columns: Sequence[Column], *, lineage: bool) -> str:
    """The columns of a table that rows are copied into on their way."""
    listed = [f"{quoted(column.name)} {travels_as(column)}" for column in columns]
    return ", ".join(listed + [f"{field.name} bigint" for field in LINEAGE if lineage])


def arrived(columns: Sequence[Column], *, lineage: bool) -> str:
    """The same columns as the target has them."""
    listed = [
        f"CAST({quoted(column.name)} AS {column.type})" if is_cast([column]) else quoted(column.name)
        for column in columns
    ]
    return ", ".join(listed + [field.name for field in LINEAGE if lineage])


def refused_rows(engine: Engine, writer: Writer, rows: pa.Table) -> dict[int, str]:
    """The rows that the table does not take, by number, with the server's reason; nothing is written."""
    refused: dict[int, str] = {}
    with engine.connect() as connection, connection.begin() as transaction:
        run(connection, "SET CONSTRAINTS ALL IMMEDIATE")
        _offer(connection, writer, rows, 0, refused)
        transaction.rollback()
    return refused


def _offer(connection: Connection, writer: Writer, rows: pa.Table, first: int, refused: dict[int, str]) -> None:
    """Halve what is refused until it is one row; what passes stays, so that rows which clash are found too."""
    savepoint = connection.begin_nested()
    try:
        writer.write(connection, rows)
    except DBAPIError as error:
        if not sqlstate(error).startswith(_ROW_REFUSED):
            raise
        savepoint.rollback()
        if rows.num_rows == 1:
            refused[first] = f"the server refused it: {first_line(error)}"
            return
        middle = rows.num_rows // 2
        _offer(connection, writer, rows.slice(0, middle), first, refused)
        _offer(connection, writer, rows.slice(middle), first + middle, refused)
    else:
        savepoint.commit()
