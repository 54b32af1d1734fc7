"""The work of a session when Spark SQL makes the rows."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import pyarrow as pa
from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import DatabaseLost, RowsRefused, SettingRefused
from onceload_core.postgres.connection import translated
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.batch.pieces import StagedPiece, stage_proof
from onceload_jobs.batch.stage import Stage
from onceload_jobs.batch.transformed import TransformedRows, accept, stage_transformed
from onceload_jobs.files.notes import Note
from onceload_jobs.read.board_work import Delivery
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.new_content import NewContent, leave_out_consumed
from onceload_jobs.work.load_delivery import note_ignored, pieces_of, records_of, without_refused_files
from onceload_jobs.write.find_refused import is_of_rows, reason_of
from onceload_jobs.write.patience import Patience, until_answered


def read_delivery(job: Job, delivery: Delivery, notes: list[Note]) -> Iterator[pa.Table]:
    """Read one delivery for a transform: stage its proof, return its rows, and add unread files to `notes`."""
    refused: set[str] = set()
    for number, (parts, is_last) in enumerate(pieces_of(job, delivery, notes)):
        new_content = without_refused_files(partial(_new_content_of, job, notes), parts, refused=refused, notes=notes)
        proof = replace(StagedPiece.of(new_content, delivery=delivery.number, number=number, is_last=is_last), rows=0)
        patience = Patience()
        patience.until_answered(partial(_stage_proof, job, proof))
        yield new_content.rows


def _new_content_of(job: Job, notes: list[Note], parts: list[ReadPart]) -> NewContent:
    records, _ = records_of(job, parts, _stage_of(job).writer)
    note_ignored(records, notes)
    return leave_out_consumed(parts, records, consumed={})


def _stage_proof(job: Job, piece: StagedPiece) -> None:
    with translated(pipeline=job.declared.name, doing="staging rows"):
        stage_proof(engine_of(job), _stage_of(job), piece)


def _stage_of(job: Job) -> Stage:
    if job.stage is None:
        raise SettingRefused("publish", "direct", "staged, because a transform needs the whole batch")
    return job.stage


def stage_rows(job: Job, tables: Iterable[pa.Table], *, partition: int) -> TransformedRows | None:
    """Stage the rows that a transform makes in one partition; Spark returns them only once."""
    engine = engine_of(job)
    try:
        with translated(pipeline=job.declared.name, doing="staging rows"):
            return _stage_transformed(job, engine, tables, partition=partition)
    except DatabaseLost:
        # Spark retries a few times without delay, so wait until the server answers.
        until_answered(partial(_ping, job, engine))
        raise


def _stage_transformed(
    job: Job, engine: Engine, tables: Iterable[pa.Table], *, partition: int
) -> TransformedRows | None:
    stage = _stage_of(job)
    try:
        return stage_transformed(engine, stage, tables, partition=partition)
    except DBAPIError as error:
        if not is_of_rows(error):
            raise
        raise RowsRefused(job.declared.name, stage.target, reason_of(stage.writer, error)) from error


def _ping(job: Job, engine: Engine) -> None:
    with translated(pipeline=job.declared.name, doing="staging rows"), engine.connect():
        pass


def accept_rows(job: Job, transformed: Iterable[TransformedRows]) -> None:
    """Accept the rows of the tries that Spark reports as first."""
    until_answered(partial(_accept, job, tuple(transformed)))


def _accept(job: Job, transformed: tuple[TransformedRows, ...]) -> None:
    with translated(pipeline=job.declared.name, doing="counting staged rows"):
        accept(engine_of(job), _stage_of(job), transformed)
