"""Whether a commit is still in the transaction that it began: rows and proof take effect together, or not at all."""

from contextlib import suppress
from dataclasses import dataclass
from typing import cast

import psycopg2.extensions
from psycopg2.extensions import TRANSACTION_STATUS_INTRANS
from sqlalchemy import Connection

from onceload_core.errors import NeedsAPerson
from onceload_core.postgres.connection import execute_prepared, statements

SQL = statements("ledger.sql")


@dataclass(eq=False)
class TransactionEnded(NeedsAPerson):
    pipeline: str
    batch: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}, batch {self.batch}: write_rows ended the transaction of the commit. Nothing "
            "was recorded as consumed, so rows that write_rows committed itself have no receipt. Delete these rows "
            "from the target, and leave COMMIT and ROLLBACK to the ledger."
        )


def get_transaction_id(connection: Connection) -> str:
    return str(execute_prepared(connection, SQL["transaction_id"], {}).scalar_one())


def check_transaction_is_open(connection: Connection, pipeline: str, batch: str) -> None:
    """Refuse a write_rows that ended the transaction; whether it began another is seen with the position."""
    driver = cast(psycopg2.extensions.connection, connection.connection.dbapi_connection)
    if not (connection.in_transaction() and driver.info.transaction_status == TRANSACTION_STATUS_INTRANS):
        raise ended(connection, pipeline, batch)


def has_committed(connection: Connection, transaction_id: str) -> bool:
    """Whether a transaction has committed already, asked after a failed statement."""
    driver = cast(psycopg2.extensions.connection, connection.connection.dbapi_connection)
    with suppress(psycopg2.Error):
        driver.rollback()
        with driver.cursor() as cursor:
            cursor.execute("SELECT pg_xact_status(CAST(%s AS xid8))", (transaction_id,))
            return cursor.fetchone() == ("committed",)
    return False


def ended(connection: Connection, pipeline: str, batch: str) -> TransactionEnded:
    # A connection in this state must not return to the pool.
    connection.invalidate()
    return TransactionEnded(pipeline, batch)
