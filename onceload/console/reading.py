"""Reads of the database for pages: short, and without effect."""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine

from onceload_core.postgres.commit import get_pipeline
from onceload_core.postgres.connection import statements, transaction

SQL = statements("reading.sql", package=__package__)


@contextmanager
def reading(engine: Engine, what: str, *, pipeline: str | None = None) -> Iterator[tuple[Connection, int]]:
    """A transaction that only reads, and the id of the pipeline, or 0 for all. A query that takes long is canceled."""
    with transaction(engine, pipeline or "(any)", doing=f"reading {what}") as connection:
        connection.execute(SQL["only_read"])
        yield connection, get_pipeline(connection, pipeline).pipeline_id if pipeline is not None else 0
