"""The rows that a transform made, each try in a table of its own."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from secrets import token_hex

import pyarrow as pa
from sqlalchemy import Engine

from spark_jobs.batch.parts import StagedPart, keep_part
from spark_jobs.batch.stage import Stage, still_there
from spark_jobs.write.sql import run


@dataclass(frozen=True)
class Made:
    """What one try at a partition of a transform's rows has written."""

    partition: int
    token: str
    rows: int


def stage_made(engine: Engine, stage: Stage, tables: Iterable[pa.Table], *, partition: int) -> Made | None:
    """Keep what one try makes, whole or not at all, in a table of its own; nothing if there is nothing."""
    token, rows = token_hex(8), 0
    writer = replace(stage.writer, table=stage.made(token))
    with still_there(stage), engine.connect() as connection, connection.begin():
        for table in tables:
            if not rows:
                like = f"(LIKE {stage.rows} INCLUDING GENERATED INCLUDING CONSTRAINTS)"
                run(connection, f"CREATE UNLOGGED TABLE {writer.table} {like}")
            writer.copy(connection, table)
            rows += table.num_rows
    return Made(partition, token, rows) if rows else None


def accept(engine: Engine, stage: Stage, made: Iterable[Made]) -> None:
    """Count what those tries made that Spark says came first, and nothing of any other."""
    with still_there(stage), engine.connect() as connection, connection.begin():
        for each in made:
            part = StagedPart(
                delivery=-1 - each.partition,
                number=0,
                is_last=True,
                advances=(),
                rows=each.rows,
                quarantined=(),
                bytes=0,
                records=0,
            )
            # Asked again after an answer that was lost, it is there already.
            if keep_part(connection, stage, part):
                run(connection, f"ALTER TABLE {stage.made(each.token)} INHERIT {stage.rows}")
