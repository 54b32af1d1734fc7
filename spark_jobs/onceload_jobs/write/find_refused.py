"""Find the single rows that the server refuses."""

import pyarrow as pa
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload_core.postgres.connection import first_line, sqlstate
from onceload_jobs.write.writer import Writer

#: Reasons to refuse a row: its values, a duplicate key, a constraint, a trigger, a server limit.
ROW_REFUSED = ("21", "22", "23", "P0", "54")
#: Check what the commit would check last.
CHECK_NOW = "SET CONSTRAINTS ALL IMMEDIATE"
#: The data of COPY is not in its format: we encoded it wrongly, or a file of it is cut.
ENCODED_WRONGLY = "22P04"


def offer_rows(connection: Connection, writer: Writer, rows: pa.Table, *, at_most: int | None = None) -> dict[int, str]:
    """Write rows, and find those that the table refuses, by number, with the server's reason.

    The search ends when there are more than `at_most`.
    """
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
        writer.copy_encoded(connection, writer.encoded(rows))
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
