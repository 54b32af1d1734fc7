"""The staging tables of a batch whose rows need SQL: unlogged tables that live as long as the batch.

One holds the rows, the other one row with the proof of the batch. Only the load writes to them. A crash of the server
empties both, which shows because the proof is gone.

A stage is dropped with the process that opened it, unless a claim names it. Then the batch keeps the stage for its
publisher, with the data that publishing needs. The ledger is authoritative: a process that publishes a second time
finds the claim gone and the batch in the ledger. If it finds neither, nothing is lost, because the next load plans the
same records again. The stage of a failed audit is also kept for a while, for inspection.

For a transform in Postgres, the records have a table of their own; the rows are made of all of them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from secrets import token_hex

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import CallAgain
from onceload_core.events import event
from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.connection import first_line, sqlstate, statements, transaction
from onceload_jobs.batch.job import Job, Replacement
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.used_ids import IdTables
from onceload_jobs.files.notes import Note
from onceload_jobs.pipeline.columns import LINEAGE, Column
from onceload_jobs.pipeline.declared import Declared, Target
from onceload_jobs.write.binary_copy import copied_as, needs_cast
from onceload_jobs.write.codec import decode, encode
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.sql import filled, quoted, run, table_name
from onceload_jobs.write.target import check_copy, columns_there
from onceload_jobs.write.writer import Writer

SCHEMA = "onceload_stage"
SQL = statements("stage.sql", package=__package__)
_UNDEFINED_TABLE = "42P01"


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
    #: The target table of the rows.
    target: str
    columns: tuple[Column, ...]
    #: Whether rows know their record; only a transform may drop that.
    lineage: bool

    @classmethod
    def called(cls, name: str, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> "Stage":
        return cls(
            name=name,
            rows=f"{SCHEMA}.{quoted(name + ' rows')}",
            target=table_name(target),
            columns=columns,
            lineage=lineage,
        )

    def beside(self, name: str) -> str:
        """Another table of the same stage, dropped with it."""
        return f"{SCHEMA}.{quoted(f'{self.name} {name}')}"

    @property
    def proof(self) -> str:
        return self.beside("proof")

    def id_tables(self, declared: Declared) -> IdTables:
        """The tables of what the rows use up."""
        return IdTables.of(declared, self.beside)

    def of_records(self, columns: tuple[Column, ...]) -> "Stage":
        """The same stage for the records of a transform, and not its rows."""
        return replace(self, rows=self.beside("records"), columns=columns, lineage=True)

    @property
    def writer(self) -> Writer:
        return Writer(table=self.rows, target=self.target, columns=self.columns, lineage=self.lineage, needs_cast=False)


@contextmanager
def open_stage(engine: Engine, columns: tuple[Column, ...], target: Target, *, lineage: bool) -> Iterator[Stage]:
    """Create two empty tables for the duration of the block."""
    name = token_hex(8)
    stage = Stage.called(name, columns, target, lineage=lineage)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        # The lock of this connection shows that the stage is in use; it ends with the process.
        holder.execute(SQL["hold"], {"name": name})
        _create_rows(holder, stage, target)
        holder.execute(filled(SQL["create_proof"], proof=stage.proof))
        try:
            yield stage
        finally:
            drop_stage(engine, name)
            with suppress(DBAPIError):
                holder.execute(SQL["release"], {"name": name})


def drop_stage(engine: Engine, name: str) -> None:
    """Drop a stage that no batch keeps; the next load or stage sweeps what cannot be dropped now."""
    with suppress(DBAPIError, CallAgain):
        with engine.begin() as connection:
            found = connection.execute(SQL["stages"], {"name": name}).one_or_none()
            if found is not None:
                _drop(connection, found.tables)
        if found is not None:
            event("stage_dropped", level=logging.DEBUG, stage=name)


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
    """Drop the stages that are neither held nor kept, as those of killed loads, and return how many."""
    swept = 0
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
        for name, _ in holder.execute(SQL["stages"], {"name": None}).all():
            if holder.execute(SQL["try_hold"], {"name": name}).scalar_one():
                # Look again, because its holder may have released it to be kept.
                for _, tables in holder.execute(SQL["stages"], {"name": name}).all():
                    # Another session may still lock it; then the next sweep drops it.
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
        raise StageLost(stage.name) from error


def check_there(connection: Connection, stage: Stage) -> None:
    """Refuse, inside the commit, a stage that a crash has emptied: a proof needs its rows."""
    with still_there(stage):
        if not connection.execute(filled(SQL["is_there"], proof=stage.proof)).scalar_one():
            raise StageLost(stage.name)


@dataclass(frozen=True, kw_only=True)
class SealedEnd:
    """Where a local file ended when its last line counted as sealed."""

    name: str
    url: str
    #: In its unpacked content.
    end: int
    #: The size of the file.
    size: int


@dataclass(frozen=True, kw_only=True)
class PublishInput:
    """What the planner of a batch leaves for the process that publishes it."""

    written: tuple[Column, ...]
    has_lineage: bool
    replaced: Mapping[ProducerId, Replacement]
    notes: tuple[Note, ...]
    sealed: tuple[SealedEnd, ...] = ()
    #: What ran the workers that staged it.
    engine: str | None = None
    spark_ui: str | None = None


def keep_batch(
    engine: Engine,
    job: Job,
    stage: Stage,
    claim: Claim,
    *,
    pieces: Sequence[Piece],
    notes: Sequence[Note],
    sealed: Sequence[SealedEnd],
) -> None:
    """Store what publishing needs, and keep the stage with the claim of the batch.

    It is in the stage itself, so that a crash that empties the stage removes it too.
    """
    publish_input = PublishInput(
        written=job.written,
        has_lineage=job.has_lineage,
        replaced=job.replaced,
        notes=tuple(notes),
        sealed=tuple(sealed),
        engine=job.engine,
        spark_ui=job.spark_ui,
    )
    batches = PostgresBatches(engine, job.declared.name)
    # Their rows are in the table of the stage.
    encoded = [encode(publish_input), *(encode(replace(each, file=None, blocks=())) for each in pieces)]
    write = filled(SQL["write_proof"], proof=stage.proof)

    def keep_now() -> None:
        with transaction(engine, job.declared.name, doing="keeping a batch") as connection, still_there(stage):
            for number, each in enumerate(encoded):
                if connection.execute(write, {"number": number, "encoded": each}).rowcount != 1:
                    raise StageLost(stage.name)
        batches.keep(claim, stage=stage.name)

    # Idempotent, because it is retried when an answer was lost.
    until_answered(keep_now)


def publish_input_of(engine: Engine, pipeline: str, stage: Stage) -> tuple[PublishInput, tuple[Piece, ...]]:
    """What publishing needs, and what the batch proves."""
    read = filled(SQL["read_proof"], proof=stage.proof)
    with transaction(engine, pipeline, doing="looking at a stage") as connection, still_there(stage):
        encoded = connection.execute(read).scalars().all()
    if not encoded or not encoded[0]:
        raise StageLost(stage.name)
    # Decoding many bad records takes long, and the server ends transactions that are idle for that time.
    publish_input, *pieces = encoded
    return decode(PublishInput, publish_input), tuple(decode(Piece, each) for each in pieces)
