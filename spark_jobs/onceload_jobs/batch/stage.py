"""The staging tables of a batch: unlogged tables that live as long as the batch.

One holds the rows, the other the pieces that they came from. A piece and its rows are written in one transaction while
the delivery is held. The next holder of a delivery first deletes what earlier tries staged of it, so that all pieces
of a delivery come from one try. A crash of the server empties both tables. The publisher detects this because the
piece that exists from the start is missing.

A stage is dropped with the process that opened it, unless a claim names it. Then the batch keeps the stage for its
publisher, with the data that publishing needs. The stage of a failed audit is also kept for a while, for inspection.

A transform in Spark may make different rows in each try, so each try has a table of its own, and Spark decides which
one counts. These tables are attached to the first one by inheritance. For a transform in Postgres, pieces are of
records, which have a table of their own; the rows are made of all of them.
"""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from secrets import token_hex

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import CallAgain
from onceload_core.events import event
from onceload_core.postgres.connection import first_line, sqlstate, statements
from onceload_jobs.pipeline.columns import LINEAGE, Column
from onceload_jobs.pipeline.declared import RecordProducer, Target
from onceload_jobs.write.binary_copy import copied_as, needs_cast
from onceload_jobs.write.sql import filled, quoted, run, table_name
from onceload_jobs.write.target import check_copy, columns_there
from onceload_jobs.write.writer import Writer

SCHEMA = "onceload_stage"
SQL = statements("stage.sql", package=__package__)
_UNDEFINED_TABLE = "42P01"
#: The delivery of the piece that exists from the start; rows of a transform use the numbers after it.
OPENED = -(2**31)


@dataclass(eq=False)
class StageLost(CallAgain):
    """The server crashed and emptied the stage, or closed its connection: the batch must be staged again."""

    stage: str

    def __str__(self) -> str:
        return (
            f"the server lost stage {self.stage}, which held the rows of an unpublished batch. Nothing was committed. "
            "Retry."
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The two tables of one attempt at a batch, quoted for SQL."""

    name: str
    rows: str
    pieces: str
    #: The target table of the rows.
    target: str
    columns: tuple[Column, ...]
    #: Whether rows know their record; only a transform may drop that.
    lineage: bool
    #: A folder for the rows of pieces, if they need no table.
    spool: str | None = None
    #: The columns in those files, which are those of the target.
    in_files: tuple[str, ...] = ()
    #: Those files have records that name this producer, and all columns of the stage, in Arrow's format.
    producer: RecordProducer | None = None

    @classmethod
    def called(cls, name: str, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> "Stage":
        return cls(
            name=name,
            rows=f"{SCHEMA}.{quoted(name + ' rows')}",
            pieces=f"{SCHEMA}.{quoted(name + ' pieces')}",
            target=table_name(target),
            columns=columns,
            lineage=lineage,
        )

    def beside(self, name: str) -> str:
        """Another table of the same stage, dropped with it."""
        return self.rows.removesuffix(' rows"') + f' {name}"'

    def of_records(self, columns: tuple[Column, ...]) -> "Stage":
        """The same stage for sessions that stage the records of a transform, and not its rows."""
        return replace(self, rows=self.beside("records"), columns=columns, lineage=True)

    def transformed(self, token: str) -> str:
        """The table of one try to transform records, quoted for SQL."""
        return self.beside(f"transformed {token}")

    @property
    def writer(self) -> Writer:
        return Writer(table=self.rows, target=self.target, columns=self.columns, lineage=self.lineage, needs_cast=False)


@contextmanager
def open_stage(engine: Engine, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> Iterator[Stage]:
    """Create two empty tables for the duration of the block, after dropping those of killed processes."""
    # Each staging has its own name, so that a task of an abandoned one finds no table to write to.
    name = token_hex(8)
    stage = Stage.called(name, columns, target, lineage=lineage)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        # The lock of this connection shows that the stage is in use; it ends with the process.
        holder.execute(SQL["hold"], {"name": name})
        _sweep(holder)
        _create_rows(holder, stage, target)
        holder.execute(filled(SQL["create_pieces"], pieces=stage.pieces))
        holder.execute(filled(SQL["add_opened"], pieces=stage.pieces, opened=str(OPENED)))
        try:
            yield stage
        finally:
            drop_stage(engine, name)
            with suppress(DBAPIError):
                holder.execute(SQL["release"], {"name": name})


def drop_stage(engine: Engine, name: str) -> None:
    """Drop a stage that no batch keeps; the next stage sweeps what cannot be dropped now."""
    with suppress(DBAPIError, CallAgain):
        with engine.begin() as connection:
            found = connection.execute(SQL["stages"], {"name": name}).all()
            for _, tables in found:
                _drop(connection, tables)
        for stage, _ in found:
            event("stage_dropped", level=logging.DEBUG, stage=stage)


def _drop(connection: Connection, tables: Iterable[str]) -> None:
    listed = ", ".join(f"{SCHEMA}.{quoted(table)}" for table in tables)
    run(connection, f"DROP TABLE IF EXISTS {listed} CASCADE")


def _create_rows(holder: Connection, stage: Stage, target: Target) -> None:
    """Create the rows like the target, so that rows it would refuse are found in time to quarantine them."""
    holder.execute(filled(SQL["create_rows"], rows=stage.rows, target=table_name(target)))
    check_copy(holder, target, stage.rows, columns=stage.columns)
    staged = {*(column.name for column in stage.columns), *(field.name for field in LINEAGE)}
    there = columns_there(holder, stage.rows)
    changes = [f"DROP COLUMN {quoted(name)} CASCADE" for name in there if name not in staged]
    changes += [f"ADD COLUMN {field.name} bigint" for field in LINEAGE if field.name not in there]
    for column in stage.columns:
        if needs_cast([column]):
            # These values are not cast yet, so constraints on them cannot be checked here.
            of_type = copied_as(column)
            changes += [f"DROP COLUMN {quoted(column.name)} CASCADE", f"ADD COLUMN {quoted(column.name)} {of_type}"]
    if changes:
        run(holder, f"ALTER TABLE {stage.rows} {', '.join(changes)}")


def sweep(engine: Engine) -> int:
    """Drop the stages that are neither held nor kept, and return how many."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        return _sweep(holder)


def _sweep(holder: Connection) -> int:
    swept = 0
    for name, _ in holder.execute(SQL["stages"], {"name": None}).all():
        if holder.execute(SQL["try_hold"], {"name": name}).scalar_one():
            # Look again, because its holder may have released it to be kept.
            for _, tables in holder.execute(SQL["stages"], {"name": name}).all():
                # A worker of the abandoned stage may still lock it; then the next sweep drops it.
                with suppress(DBAPIError):
                    _drop(holder, tables)
                    swept += 1
                    event("stage_swept", stage=name)
            holder.execute(SQL["release"], {"name": name})
    return swept


@contextmanager
def still_there(stage: Stage) -> Iterator[None]:
    """Raise StageLost if another load swept the stage, because no process held it any more."""
    try:
        yield
    except DBAPIError as error:
        # Only a missing table of a stage counts; any other missing table is another error.
        if sqlstate(error) != _UNDEFINED_TABLE or SCHEMA not in first_line(error):
            raise
        raise StageLost(stage.pieces) from error
