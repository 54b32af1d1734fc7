"""Reads of the database for pages: short, and without effect."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import CallAgain
from onceload_core.postgres.connection import QUERY_CANCELED, sqlstate, statements, transaction
from onceload_core.postgres.pipeline_row import get_pipeline

SQL = statements("reading.sql", package=__package__)


@dataclass(eq=False)
class TookTooLong(CallAgain):
    """A page would have waited too long."""

    what: str
    limit_s: int

    def __str__(self) -> str:
        stopped = f"reading {self.what} was stopped (its limit is {self.limit_s} s)"
        return f"{stopped}. Nothing was changed. Retry when the database is less busy"


@contextmanager
def reading(
    engine: Engine, what: str, *, pipeline: str | None = None, limit_s: int = 10
) -> Iterator[tuple[Connection, int]]:
    """A transaction that only reads, and the id of the pipeline, or 0 for all. A query that takes long is canceled."""
    with transaction(engine, pipeline or "(any)", doing=f"reading {what}") as connection:
        connection.execute(SQL["only_read"])
        connection.execute(SQL["limit_time"], {"limit": f"{limit_s}s"})
        try:
            yield connection, get_pipeline(connection, pipeline).pipeline_id if pipeline is not None else 0
        except DBAPIError as error:
            if sqlstate(error) != QUERY_CANCELED:
                raise
            raise TookTooLong(what, limit_s) from error
