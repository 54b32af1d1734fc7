"""The road of a batch through its stage table: one SQL statement publishes its rows, with all of its proofs."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection, Engine

from onceload_core.errors import AlreadyConsumed, RowsRefused
from onceload_core.guards import RowsDiffer
from onceload_core.names import ProducerId
from onceload_core.ports import Claim
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, Pieces
from onceload_jobs.batch.stage import Stage, StageLost, check_there, open_stage, still_there, sweep
from onceload_jobs.pipeline.declared import Write
from onceload_jobs.publish.batch_road import Copying
from onceload_jobs.publish.commits import (
    BatchTotals,
    check_pieces,
    made_in_table,
    publish_commit,
    records_named,
    refuse_repeats,
    refusing_rows,
    until_it_took_effect,
)
from onceload_jobs.publish.merge import merge_in, refuse_twice
from onceload_jobs.publish.postgres_transform import WORK_MEMORY, create_records, make_rows
from onceload_jobs.publish.replaced_rows import replace_rows
from onceload_jobs.write.patience import until_answered
from onceload_jobs.write.sql import run, table_name
from onceload_jobs.write.target import refuse_altered, undeclared_columns
from onceload_jobs.write.writer import Writer


def open_tables(engine: Engine, job: Job, staging: ExitStack) -> Stage:
    """Create the empty tables that a batch needs; they are dropped when `staging` is left, or by the next call."""
    declared = job.declared
    with translated(pipeline=declared.name, doing="dropping the stages of killed loads"):
        sweep(engine)
    with translated(pipeline=declared.name, doing="opening a stage"):
        stage = staging.enter_context(open_stage(engine, job.written, declared.target, lineage=job.has_lineage))
        if declared.is_made_by_postgres or job.records_have_own_ids:
            with still_there(stage), engine.begin() as connection:
                if declared.is_made_by_postgres:
                    create_records(connection, stage.of_records(job.columns).rows, job)
                stage.id_tables(declared).create(connection)
    return stage


def copy_to(engine: Engine, job: Job, stage: Stage, pieces: Pieces) -> Sequence[Piece]:
    """Copy all pieces into the stage, in a transaction of its own, and return them as they were copied."""
    into = stage.of_records(job.columns) if job.declared.is_made_by_postgres else stage
    copying = Copying(job=job, pieces=pieces, writer=into.writer, ids=stage.id_tables(job.declared))
    doing = translated(pipeline=job.declared.name, doing="staging rows")
    try:
        with doing, still_there(stage), engine.begin() as connection:
            check_there(connection, stage)
            # A try whose answer was lost may have filled it.
            for table in (into.rows, *copying.ids.all):
                run(connection, f"TRUNCATE {table}")
            return copying.copy_all(connection)
    except RowsDiffer as error:
        raise StageLost(stage.name) from error


def with_made_rows(engine: Engine, job: Job, stage: Stage, pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces, with the rows that Postgres makes of their records."""
    if not job.declared.is_made_by_postgres:
        return pieces
    return until_answered(partial(make_rows, engine, job, stage, pieces))


def publish(
    engine: Engine, ledger: PostgresLedger, job: Job, stage: Stage, pieces: Sequence[Piece], *, claim: Claim
) -> bool:
    """Commit the rows of a stage until it is certain that they took effect; whether this process saw it.

    ColumnsDiffer is raised if another run has added new columns of the batch with other types since it was staged.
    """
    totals = until_answered(partial(totals_of, engine, job, stage, pieces))
    if totals.is_empty:
        return False
    check_pieces(job.declared, pieces)

    def write() -> bool:
        try:
            commit_stage(ledger, job, stage, totals, claim=claim)
        except RowsRefused:
            refuse_repeats(ledger, job, totals.advances)
            _refuse_used_ids(engine, job, stage)
            raise
        return True

    return until_it_took_effect(ledger, job, write, last_totals=lambda: totals)


def _refuse_used_ids(engine: Engine, job: Job, stage: Stage) -> None:
    """The same for records that name themselves: another load may have brought them in another file."""
    pipeline = job.declared.name
    with translated(pipeline=pipeline, doing="looking for new records"), still_there(stage), engine.begin() as asking:
        if repeats := stage.id_tables(job.declared).count_repeats(asking, pipeline):
            raise AlreadyConsumed(pipeline, (f"{repeats} records",))


def totals_of(engine: Engine, job: Job, stage: Stage, pieces: Sequence[Piece]) -> BatchTotals:
    """With the rows that a transform made of each file, and the number of records without any."""
    totals = BatchTotals.of(job, pieces)
    if totals.is_empty or job.declared.transform is None:
        return totals
    if not job.has_lineage:
        return totals.with_made(job, pieces, ())
    with translated(pipeline=job.declared.name, doing="counting rows"), engine.begin() as connection:
        run(connection, WORK_MEMORY)
        if job.declared.producer is not None:
            named = records_named(connection, job, stage, rows=totals.rows)
            new = totals.records - totals.duplicates
            return replace(totals, filtered=0 if named is None else new - named)
        made_of = made_in_table(connection, job, stage, rows=totals.rows)
    return totals.with_made(job, pieces, made_of)


def commit_stage(
    ledger: PostgresLedger, job: Job, stage: Stage, totals: BatchTotals, *, claim: Claim | None = None
) -> None:
    """Try once to commit the rows of a stage."""
    write_rows = partial(_write_rows, job, stage, totals.replaced)
    publish_commit(ledger, job, totals, stage.id_tables(job.declared), write_rows=write_rows, claim=claim)


def _write_rows(job: Job, stage: Stage, replaced: Sequence[ProducerId], connection: Connection) -> int:
    """Write the rows of a stage to the target, in place of old ones, and return how many the server wrote."""
    declared, target = job.declared, job.declared.target
    check_there(connection, stage)
    run(connection, WORK_MEMORY)
    added = undeclared_columns(connection, stage.rows, known=[column.name for column in job.written])
    writer = Writer.into_target(target, job.written).adding(added)
    if added or replaced:
        # Both change the table before rows are written.
        refuse_altered(connection, table_name(target), columns=job.written, lineage=target.lineage)
    # The server's own message is still available here.
    with refusing_rows(job):
        writer.add_columns(connection)
        # A transform makes any number of rows of a record.
        recounted = None if declared.transform is None else stage.rows
        stage.id_tables(declared).offer(connection, recounted=recounted)
        return replace_rows(connection, job, replaced, partial(_append_or_merge, connection, job, stage, writer))


def _append_or_merge(connection: Connection, job: Job, stage: Stage, writer: Writer) -> int:
    match job.declared.target.write:
        case Write.APPEND:
            written = writer.counting(connection)
            return written.remaining(connection, writer.insert_from(connection, stage.rows))
        case Write.MERGE:
            if job.declared.transform is not None:
                refuse_twice(connection, job, stage.rows)
            return merge_in(connection, job.declared.target, stage.rows, writer.columns, is_late=job.is_late)
