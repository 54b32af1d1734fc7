"""The rows of a transform, with files or a table of their own for each try of a task."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from secrets import token_hex

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, Engine

from onceload_jobs.batch.pieces import MadeOf, StagedPiece, insert_piece, written_file
from onceload_jobs.batch.stage import Stage, StageLost, still_there
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE
from onceload_jobs.write.sql import run


@dataclass(frozen=True, kw_only=True)
class MadeFile:
    """A file of made rows, and the records that they name."""

    name: str
    rows: int
    made_of: tuple[MadeOf, ...]


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
                files.append(MadeFile(name=name, rows=table.num_rows, made_of=tuple(_made_of(table))))
                continue
            if not rows:
                like = f"(LIKE {stage.rows} INCLUDING GENERATED INCLUDING CONSTRAINTS)"
                run(connection, f"CREATE UNLOGGED TABLE {writer.table} {like}")
            if writer.copy(connection, table) != table.num_rows:
                raise StageLost(writer.table)
            rows += table.num_rows
    is_empty = not rows and not files
    return None if is_empty else TransformedRows(partition=partition, token=token, rows=rows, files=tuple(files))


def _made_of(table: pa.Table) -> Iterator[MadeOf]:
    if {PRODUCER_ID, SEQUENCE} <= set(table.column_names):
        named = table.filter(pc.field(PRODUCER_ID).is_valid())
        by_record = named.group_by([PRODUCER_ID, SEQUENCE]).aggregate([([], "count_all")])
        counts = [("count_all", "sum"), (SEQUENCE, "count"), (SEQUENCE, "min"), (SEQUENCE, "max")]
        for each in by_record.group_by(PRODUCER_ID).aggregate(counts).to_pylist():
            yield MadeOf(
                producer_id=each[PRODUCER_ID],
                rows=each["count_all_sum"],
                records=each[f"{SEQUENCE}_count"],
                first=each[f"{SEQUENCE}_min"] or 0,
                last=each[f"{SEQUENCE}_max"] or 0,
            )


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
        made_of=file.made_of if file else (),
    )
    return insert_piece(connection, stage, piece)
