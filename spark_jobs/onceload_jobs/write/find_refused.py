"""Find the single rows that the server refuses."""

import pyarrow as pa
from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import RowsRefused
from onceload_core.postgres.connection import first_line, sqlstate
from onceload_jobs.write.sql import run
from onceload_jobs.write.writer import ColumnsDiffer, Writer

#: Reasons to refuse a row: its values, a duplicate key, a constraint, a trigger, a server limit.
ROW_REFUSED = ("21", "22", "23", "P0", "54")
#: Check what the commit would check last.
CHECK_NOW = "SET CONSTRAINTS ALL IMMEDIATE"
#: The data of COPY is not in its format: we encoded it wrongly, or a file of it is cut.
ENCODED_WRONGLY = "22P04"


def refused_or_raise(
    engine: Engine, writer: Writer, rows: pa.Table, *, pipeline: str, cause: Exception, at_most: int | None = None
) -> dict[int, str]:
    """The rows because of which a write was refused; if there are none, the refusal is raised again.

    It is empty if another writer has just added columns: then the next try to write may succeed.
    """
    try:
        refused = refused_rows(engine, writer, rows, at_most=at_most)
    except ColumnsDiffer:
        # The next try to write finds them too.
        return {}
    if refused:
        return refused
    if isinstance(cause, DBAPIError) and is_of_rows(cause):
        # No single row is refused: it is a rule about all of them.
        raise RowsRefused(pipeline, writer.target, reason_of(writer, cause)) from cause
    raise cause


def refused_rows(engine: Engine, writer: Writer, rows: pa.Table, *, at_most: int | None = None) -> dict[int, str]:
    """The rows that the table refuses, by number, with the server's reason; nothing is written.

    The search ends when there are more than `at_most`.
    """
    with engine.connect() as connection, connection.begin() as transaction:
        run(connection, CHECK_NOW)
        refused = offer_rows(connection, writer, rows, at_most=at_most)
        transaction.rollback()
    return refused


def offer_rows(connection: Connection, writer: Writer, rows: pa.Table, *, at_most: int | None = None) -> dict[int, str]:
    """The same in a transaction of the caller, in which the accepted rows stay."""
    refused: dict[int, str] = {}
    writer.add_columns(connection)
    if rows.num_rows:
        _offer(connection, writer, rows, 0, refused, at_most=at_most)
    return refused


def _offer(
    connection: Connection, writer: Writer, rows: pa.Table, first: int, refused: dict[int, str], *, at_most: int | None
) -> None:
    """Halve a refused set until one row is left; accepted rows stay, so that conflicting rows are found too."""
    if at_most is not None and len(refused) > at_most:
        return
    savepoint = connection.begin_nested()
    try:
        writer.copy(connection, rows)
    except DBAPIError as error:
        if not is_of_rows(error):
            raise
        savepoint.rollback()
        if rows.num_rows == 1:
            refused[first] = f"the server refused it: {reason_of(writer, error)}"
            return
        middle = rows.num_rows // 2
        _offer(connection, writer, rows.slice(0, middle), first, refused, at_most=at_most)
        _offer(connection, writer, rows.slice(middle), first + middle, refused, at_most=at_most)
    else:
        savepoint.commit()


def reason_of(writer: Writer, error: DBAPIError) -> str:
    """The reason of the server. It names the table that was written to, which may be a stage of the target."""
    written, target = (table.split('"')[-2] for table in (writer.table, writer.target))
    return first_line(error).replace(f'"{written}"', f'"{target}"')


def is_of_rows(error: DBAPIError) -> bool:
    """Whether the error is about rows."""
    return sqlstate(error).startswith(ROW_REFUSED) and sqlstate(error) != ENCODED_WRONGLY
