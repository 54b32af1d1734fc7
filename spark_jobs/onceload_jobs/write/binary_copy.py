"""Copy Arrow rows into Postgres with binary COPY.

With text, Postgres would spend half of a load on parsing. A column travels in a type that binary COPY accepts; a few
array types that the encoder labels wrongly travel as arrays of text, and the server casts them.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from io import BytesIO, RawIOBase
from typing import Any, cast
from uuid import UUID

import pgpq
import psycopg2.extensions
import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from onceload_jobs.pipeline.columns import Column, ColumnType, Kind
from onceload_jobs.write.sql import quoted

#: A batch is still in the processor's cache when it is sent.
_BATCH_ROWS = 4096
_TEXT_ARRAY = ColumnType(kind=Kind.TEXT, is_array=True)
#: The encoder writes these elements with the id of another type, which the server refuses.
_MISNAMED = frozenset({Kind.VARCHAR, Kind.TIMESTAMPTZ, Kind.UUID, Kind.JSONB})


def copied_as(column: Column) -> ColumnType:
    """The type that the values of a column are copied as."""
    return _TEXT_ARRAY if column.type.is_array and column.type.kind in _MISNAMED else column.type


def needs_cast(columns: Sequence[Column]) -> bool:
    """Whether a column does not travel in its own type, so that the server has to cast it."""
    return any(copied_as(column) != column.type for column in columns)


def _encoded(rows: pa.Table, columns: Sequence[Column]) -> Iterator[bytes]:
    """Encode rows in the binary COPY format; columns beyond the declared ones are not converted."""
    copy_columns = rows
    for column in columns:
        at = rows.schema.get_field_index(column.name)
        copy_columns = copy_columns.set_column(at, column.name, _as_copied(rows.column(at), column))
    # The encoder finds fields by name, and names may be anything; COPY ignores them.
    copy_columns = copy_columns.rename_columns([f"c{number}" for number in range(copy_columns.num_columns)])
    encoder = pgpq.ArrowToPostgresBinaryEncoder(copy_columns.schema)
    yield encoder.write_header()
    for batch in copy_columns.to_batches(max_chunksize=_BATCH_ROWS):
        yield encoder.write_batch(batch)
    yield encoder.finish()


class Reader(RawIOBase):
    """The input of COPY: the next rows are encoded while the server processes the last ones."""

    def __init__(self, encoded: Iterator[bytes]) -> None:
        super().__init__()
        #: The errors that ended the reading early.
        self.failures: list[BaseException] = []
        chunks = _chunks(encoded, self.failures)
        next(chunks)
        self.read = chunks.send  # type: ignore[assignment,method-assign]


def _chunks(encoded: Iterator[bytes], failures: list[BaseException]) -> Generator[bytes, int, None]:
    """Each requested chunk, and nothing at the end; the driver drops exceptions, so they are kept here.

    A generator also catches what a signal handler raises, because it continues inside the try. A function would not.
    """
    try:
        yield b""
        for chunk in encoded:
            # An empty chunk would count as the end.
            if chunk:
                yield chunk
        yield b""
    except GeneratorExit:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised again where the driver returns.
        failures.append(error)
        # The driver sends this text to the server's log, where no values belong.
        raise InterruptedError("the rows could not be encoded") from None


def copy_in(
    connection: Connection, rows: pa.Table, *, table: str, names: Sequence[str], columns: Sequence[Column]
) -> int:
    """Write rows, and return how many the server wrote: a trigger may discard some.

    The table's name is quoted, the columns' names are not.
    """
    return copy_encoded(connection, _encoded(rows, columns), table=table, names=names)


def encoded(rows: pa.Table, columns: Sequence[Column], *, names: Sequence[str]) -> Iterator[bytes]:
    """The columns with these names as COPY takes them."""
    return _encoded(rows.select(names), columns)


def copy_encoded(connection: Connection, encoded: Iterator[bytes], *, table: str, names: Sequence[str]) -> int:
    """Write rows that are encoded already, and return how many the server wrote."""
    driver = cast(psycopg2.extensions.connection, connection.connection.dbapi_connection)
    listed = ", ".join(map(quoted, names))
    statement = f"COPY {table} ({listed}) FROM STDIN (FORMAT binary)"
    reader = Reader(encoded)
    try:
        with driver.cursor() as cursor:
            cursor.copy_expert(statement, reader)
            return cursor.rowcount
    except psycopg2.Error as error:
        known = _as_known(connection, driver, statement, error)
        if reader.failures:
            raise reader.failures[0] from None
        raise known from error


def copy_out(connection: Connection, query: str) -> bytes:
    """The rows of a query, as COPY writes them."""
    driver = cast(psycopg2.extensions.connection, connection.connection.dbapi_connection)
    statement, content = f"COPY ({query}) TO STDOUT (FORMAT binary)", BytesIO()
    try:
        with driver.cursor() as cursor:
            cursor.copy_expert(statement, content)
    except psycopg2.Error as error:
        raise _as_known(connection, driver, statement, error) from error
    return content.getvalue()


def _as_known(
    connection: Connection, driver: psycopg2.extensions.connection, statement: str, error: psycopg2.Error
) -> Exception:
    """The driver's error in the form that the core knows."""
    if driver.closed:
        connection.invalidate()
    return DBAPIError.instance(statement, None, error, psycopg2.Error, hide_parameters=True)


def _as_copied(values: pa.ChunkedArray, column: Column) -> pa.ChunkedArray:
    column_type = column.type
    if column_type.kind is Kind.JSONB and not column_type.is_array:
        # The binary form of jsonb is a version number and its text.
        return pc.binary_join_element_wise(b"\x01", values.cast(pa.binary()), b"")
    if copied_as(column) == column_type:
        return values
    return pa.chunked_array([_texts(chunk, column_type) for chunk in values.chunks], type=pa.list_(pa.string()))


def _texts(lists: pa.ListArray, column_type: ColumnType) -> pa.Array:
    """Arrays of text that the server can cast; they are rare, so speed does not matter."""
    write: Callable[[Any], str] = _WRITTEN.get(column_type.kind, str)
    return pa.array(
        [
            None if each is None else [None if value is None else write(value) for value in each]
            for each in lists.to_pylist()
        ],
        type=pa.list_(pa.string()),
    )


_WRITTEN: dict[Kind, Callable[[Any], str]] = {
    Kind.UUID: lambda value: str(UUID(bytes=value)),
    Kind.TIMESTAMPTZ: lambda value: str(value.isoformat()),
}
