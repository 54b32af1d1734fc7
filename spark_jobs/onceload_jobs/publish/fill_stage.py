"""Bring the rows of pieces into the tables of a stage."""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from sqlalchemy import Engine

from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job
from onceload_jobs.batch.piece import Piece, Pieces
from onceload_jobs.batch.stage import Stage, open_stage, still_there, sweep
from onceload_jobs.publish.copy_pieces import Copying
from onceload_jobs.publish.postgres_transform import create_records, make_rows
from onceload_jobs.write.patience import until_answered


def open_tables(engine: Engine, job: Job, staging: ExitStack) -> Stage:
    """Create the empty tables that a batch needs; they are dropped when `staging` is left, or by the next call."""
    declared = job.declared
    with translated(pipeline=declared.name, doing="dropping the stages of killed loads"):
        sweep(engine)
    with translated(pipeline=declared.name, doing="opening a stage"):
        stage = staging.enter_context(open_stage(engine, job.written, declared.target, lineage=job.has_lineage))
        if declared.is_made_by_postgres:
            create_records(engine, job, stage)
        if job.records_have_own_ids:
            with still_there(stage), engine.begin() as connection:
                stage.id_tables(declared).create(connection)
    return stage


def copy_to(engine: Engine, job: Job, stage: Stage, pieces: Pieces) -> Sequence[Piece]:
    """Copy all pieces, and return them as they were copied."""
    into = stage.of_records(job.columns) if job.declared.is_made_by_postgres else stage
    copying = Copying(job=job, pieces=pieces, writer=into.writer, ids=stage.id_tables(job.declared))
    with translated(pipeline=job.declared.name, doing="staging rows"):
        copying.copy_to_stage(engine, stage)
    return copying.copied


def with_made_rows(engine: Engine, job: Job, stage: Stage, pieces: Sequence[Piece]) -> Sequence[Piece]:
    """The pieces, with the rows that Postgres makes of their records."""
    if not job.declared.is_made_by_postgres:
        return pieces
    return until_answered(partial(make_rows, engine, job, stage, pieces))
