"""The rows of a transform, with one table for each try of a task."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from secrets import token_hex

import pyarrow as pa
from sqlalchemy import Engine

from spark_jobs.batch.pieces import StagedPiece, insert_piece
from spark_jobs.batch.stage import Stage, still_there
from spark_jobs.write.sql import run


@dataclass(frozen=True)
class TransformedRows:
    """The rows that one try wrote for a partition."""

    partition: int
    token: str
    rows: int


def stage_transformed(
    engine: Engine, stage: Stage, tables: Iterable[pa.Table], *, partition: int
) -> TransformedRows | None:
    """Store the rows of one try in a table of its own, completely or not at all; None if there are none."""
    token, rows = token_hex(8), 0
    writer = replace(stage.writer, table=stage.transformed(token))
    with still_there(stage), engine.connect() as connection, connection.begin():
        for table in tables:
            if not rows:
                like = f"(LIKE {stage.rows} INCLUDING GENERATED INCLUDING CONSTRAINTS)"
                run(connection, f"CREATE UNLOGGED TABLE {writer.table} {like}")
            writer.copy(connection, table)
            rows += table.num_rows
    return TransformedRows(partition, token, rows) if rows else None


def accept(engine: Engine, stage: Stage, accepted: Iterable[TransformedRows]) -> None:
    """Count the rows of the tries that Spark reports as first, and of no others."""
    with still_there(stage), engine.connect() as connection, connection.begin():
        for each in accepted:
            piece = StagedPiece(
                delivery=-1 - each.partition,
                number=0,
                is_last=True,
                advances=(),
                rows=each.rows,
                quarantined=(),
                bytes=0,
                records=0,
            )
            # On a retry after a lost answer, it is already attached.
            if insert_piece(connection, stage, piece):
                run(connection, f"ALTER TABLE {stage.transformed(each.token)} INHERIT {stage.rows}")
