"""The rows of a transform, with files or a table of their own for each try of a task."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from secrets import token_hex

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine

from onceload_jobs.batch.pieces import StagedPiece, insert_piece, written_file
from onceload_jobs.batch.stage import Stage, still_there
from onceload_jobs.pipeline.columns import PRODUCER_ID
from onceload_jobs.write.sql import run


@dataclass(frozen=True, kw_only=True)
class MadeFile:
    """A file of made rows, and how many of them were made from each file of records; None: from no single file."""

    name: str
    rows_of: tuple[tuple[int | None, int], ...]

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.rows_of)


@dataclass(frozen=True, kw_only=True)
class TransformedRows:
    """The rows that one try wrote for a partition."""

    partition: int
    token: str
    #: The rows in the table of the try, which exists only if there are any.
    rows: int
    files: tuple[MadeFile, ...] = ()


def stage_transformed(
    engine: Engine, stage: Stage, tables: Iterable[pa.Table], *, partition: int
) -> TransformedRows | None:
    """Store the rows of one try in files or a table of its own, completely or not at all; None if there are none."""
    token, rows = token_hex(8), 0
    files: list[MadeFile] = []
    writer = replace(stage.writer, table=stage.transformed(token))
    with still_there(stage), engine.connect() as connection, connection.begin():
        for table in tables:
            if (name := written_file(stage, table, writer)) is not None:
                files.append(MadeFile(name=name, rows_of=_rows_of(table)))
                continue
            if not rows:
                like = f"(LIKE {stage.rows} INCLUDING GENERATED INCLUDING CONSTRAINTS)"
                run(connection, f"CREATE UNLOGGED TABLE {writer.table} {like}")
            writer.copy(connection, table)
            rows += table.num_rows
    is_empty = not rows and not files
    return None if is_empty else TransformedRows(partition=partition, token=token, rows=rows, files=tuple(files))


def _rows_of(table: pa.Table) -> tuple[tuple[int | None, int], ...]:
    if PRODUCER_ID not in table.column_names:
        return ((None, table.num_rows),)
    counted = pc.value_counts(table.column(PRODUCER_ID))
    return tuple(zip(counted.field("values").to_pylist(), counted.field("counts").to_pylist(), strict=True))


def accept(engine: Engine, stage: Stage, accepted: Iterable[TransformedRows]) -> None:
    """Count the rows of the tries that Spark reports as first, and of no others."""
    with still_there(stage), engine.connect() as connection, connection.begin():
        for each in accepted:
            # On a retry after a lost answer, all of them are already counted.
            if each.rows and _count(connection, stage, each, number=0, rows=each.rows):
                run(connection, f"ALTER TABLE {stage.transformed(each.token)} INHERIT {stage.rows}")
            for number, file in enumerate(each.files, 1):
                _count(connection, stage, each, number=number, rows=file.rows, file=file)


def _count(
    connection: Connection,
    stage: Stage,
    made: TransformedRows,
    *,
    number: int,
    rows: int,
    file: MadeFile | None = None,
) -> bool:
    piece = StagedPiece(
        delivery=-1 - made.partition,
        number=number,
        is_last=number == len(made.files),
        advances=(),
        rows=rows,
        quarantined=(),
        bytes=0,
        records=0,
        file=file.name if file else None,
        rows_of=file.rows_of if file else (),
    )
    return insert_piece(connection, stage, piece)
