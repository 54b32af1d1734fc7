"""Where the rows of a batch wait until all of them are there: two tables that live as long as the batch.

One holds rows, the other which pieces they came from. A piece and its rows are written in one transaction, while the
delivery is in the hand of whoever reads it. Whoever takes a delivery next deletes what an earlier try has staged of
it, so that all pieces of a delivery are of one try. Both tables are unlogged, so a crash of the server empties both,
and whoever publishes finds that the piece is gone which is there from the start.

A stage goes with the process that opened it, unless a claim names it: then the batch keeps it, for whoever publishes
it, and with it what that has to know. One that an audit refused is kept for a while as well, to be looked at.

Rows that a transform made are no piece that every try makes alike: each try has a table of its own, and Spark decides
whose counts. Those tables are joined to the first by inheritance.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import CallAgain
from dedup_core.postgres.connection import first_line, sqlstate, statements
from spark_jobs.pipeline.columns import LINEAGE, Column
from spark_jobs.pipeline.declared import Target
from spark_jobs.write.binary_copy import is_cast, travels_as
from spark_jobs.write.sql import quoted, run, table_name
from spark_jobs.write.target import columns_there
from spark_jobs.write.writer import Writer

SCHEMA = "onceload_stage"
SQL = statements("stage.sql", package=__package__)
_UNDEFINED_TABLE = "42P01"
#: The delivery of the piece that is there from the start; those that a transform made come behind it.
OPENED = -(2**31)


@dataclass(eq=False)
class StageLost(CallAgain):
    """The server crashed and emptied the stage, or ended the connection that held it: all has to be staged again."""

    stage: str

    def __str__(self) -> str:
        return (
            f"stage {self.stage} should hold all pieces of its batch until they are published, but the server lost it; "
            "nothing was committed: call again"
        )


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The two tables of one attempt at a batch, as SQL writes them."""

    name: str
    rows: str
    parts: str
    #: The table that its rows go to.
    target: str
    columns: tuple[Column, ...]
    #: Rows know which record they were made from; only a transform may lose that.
    lineage: bool

    @classmethod
    def called(cls, name: str, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> "Stage":
        return cls(
            name=name,
            rows=f"{SCHEMA}.{quoted(name + ' rows')}",
            parts=f"{SCHEMA}.{quoted(name + ' parts')}",
            target=table_name(target),
            columns=columns,
            lineage=lineage,
        )

    def beside(self, name: str) -> str:
        """Another table of the same stage, which goes with it."""
        return self.rows.removesuffix(' rows"') + f' {name}"'

    def made(self, token: str) -> str:
        """The table of one try to make rows, as SQL writes it."""
        return self.beside(f"made {token}")

    @property
    def writer(self) -> Writer:
        return Writer(table=self.rows, target=self.target, columns=self.columns, lineage=self.lineage, is_cast=False)


@contextmanager
def open_stage(engine: Engine, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> Iterator[Stage]:
    """Two empty tables for as long as the block runs; what processes left behind that were killed goes first."""
    # Of its own for each staging, so that a task of one that was given up finds no table to write to.
    name = token_hex(8)
    stage = Stage.called(name, columns, target, lineage=lineage)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        # Held by the connection, so that a stage whose owner is gone can be told from one in use.
        holder.execute(SQL["hold"], {"name": name})
        _sweep(holder)
        _create_rows(holder, stage, target)
        run(
            holder,
            f"CREATE UNLOGGED TABLE {stage.parts} (delivery integer, number integer, is_last boolean NOT NULL,"
            " rows bigint NOT NULL, bytes bigint NOT NULL, records bigint NOT NULL, proof text NOT NULL,"
            " PRIMARY KEY (delivery, number))",
        )
        run(holder, f"INSERT INTO {stage.parts} VALUES ({OPENED}, 0, true, 0, 0, 0, '')")
        try:
            yield stage
        finally:
            drop_stage(engine, name)
            with suppress(DBAPIError):
                holder.execute(SQL["let_go"], {"name": name})


def drop_stage(engine: Engine, name: str) -> None:
    """Drop a stage, unless somebody keeps it; whoever opens the next one sweeps what could not be dropped now."""
    with suppress(DBAPIError), engine.begin() as connection:
        for _, tables in connection.execute(SQL["stages"], {"name": name}).all():
            _drop(connection, tables)


def _drop(connection: Connection, tables: Iterable[str]) -> None:
    listed = ", ".join(f"{SCHEMA}.{quoted(table)}" for table in tables)
    run(connection, f"DROP TABLE IF EXISTS {listed} CASCADE")


def _create_rows(holder: Connection, stage: Stage, target: Target) -> None:
    """Like the target, so that what it would refuse is found row by row while there is time to quarantine it."""
    run(
        holder,
        f"CREATE UNLOGGED TABLE {stage.rows} (LIKE {table_name(target)} INCLUDING GENERATED INCLUDING CONSTRAINTS)",
    )
    staged = {*(column.name for column in stage.columns), *(field.name for field in LINEAGE)}
    there = columns_there(holder, stage.rows)
    changes = [f"DROP COLUMN {quoted(name)} CASCADE" for name in there if name not in staged]
    changes += [f"ADD COLUMN {field.name} bigint" for field in LINEAGE if field.name not in there]
    for column in stage.columns:
        if is_cast([column]):
            # Not cast yet, so that what is said of its values cannot be checked here.
            of_type = travels_as(column)
            changes += [f"DROP COLUMN {quoted(column.name)} CASCADE", f"ADD COLUMN {quoted(column.name)} {of_type}"]
    if changes:
        run(holder, f"ALTER TABLE {stage.rows} {', '.join(changes)}")


def sweep(engine: Engine) -> int:
    """Drop the stages that nobody holds or keeps: how many."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        return _sweep(holder)


def _sweep(holder: Connection) -> int:
    swept = 0
    for name, _ in holder.execute(SQL["stages"], {"name": None}).all():
        if holder.execute(SQL["try_hold"], {"name": name}).scalar_one():
            # Asked again, as whoever held it may have let go because it is kept now.
            for _, tables in holder.execute(SQL["stages"], {"name": name}).all():
                # A worker that has not noticed yet that this stage is given up may hold it: the next sweep drops it.
                with suppress(DBAPIError):
                    _drop(holder, tables)
                    swept += 1
            holder.execute(SQL["let_go"], {"name": name})
    return swept


@contextmanager
def still_there(stage: Stage) -> Iterator[None]:
    """Say of a stage that is gone that it is: another load has swept it, because nobody held it any more."""
    try:
        yield
    except DBAPIError as error:
        # The server says which table; another one that is missing has nothing to do with this.
        if sqlstate(error) != _UNDEFINED_TABLE or SCHEMA not in first_line(error):
            raise
        raise StageLost(stage.parts) from error
