"""The rows that Postgres makes of all staged records, with one query.

The records wait in a table of the stage. Once all of them are staged, one transaction makes the rows. So what is
audited is what is published, and a query with other results in each run loads one of them.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import SettingRefused
from dedup_core.postgres.connection import first_line, sqlstate, translated
from spark_jobs.batch.job import Job, TransformRefused
from spark_jobs.batch.made_columns import writing_columns
from spark_jobs.batch.pieces import StagedPiece, check_kept, insert_piece, staged_pieces
from spark_jobs.batch.stage import SCHEMA, Stage, still_there
from spark_jobs.pipeline.columns import LINEAGE, PRODUCER_ID, SEQUENCE, Column
from spark_jobs.publish.source import WORK_MEMORY
from spark_jobs.write.find_refused import ROW_REFUSED
from spark_jobs.write.sql import quoted, run
from spark_jobs.write.target import Closed, columns_there
from spark_jobs.write.writer import cast_to_target, copy_columns

#: Besides rows: what a query cannot be, names, or has no right to read.
_QUERY_REFUSED = (*ROW_REFUSED, "0A", "42")
_EXPECTED = "a query of Postgres over the relation records"
#: The delivery of the one piece with the made rows.
_MADE = -1


def with_made_columns(engine: Engine, job: Job) -> Job:
    """The job that writes the columns of its query; planning it reads no records."""
    names = [f"{token_hex(8)} {each}" for each in ("records", "made")]
    records, made = (f"{SCHEMA}.{quoted(name)}" for name in names)
    with translated(pipeline=job.declared.name, doing="planning the transform"), engine.connect() as connection:
        transaction = connection.begin()
        _create(connection, records, job)
        query = _query(job, records)
        with _refusing_the_query():
            _check_reads_all(run(connection, f"EXPLAIN (FORMAT JSON) {query}").scalar_one()[0]["Plan"], names[0])
            run(connection, f"CREATE UNLOGGED TABLE {made} AS {query} WITH NO DATA")
        found = columns_there(connection, made)
        transaction.rollback()
    for name in (PRODUCER_ID, SEQUENCE):
        if name in found and str(getattr(found[name], "type", "")) != "bigint":
            raise SettingRefused("transform", f"{name} of another type", f"{name} as it is in records, a bigint")
    has_lineage = {PRODUCER_ID, SEQUENCE} <= found.keys()
    columns = [_open(column) for name, column in found.items() if name not in (PRODUCER_ID, SEQUENCE)]
    return writing_columns(job, columns, has_lineage=has_lineage)


def _open(column: Column | Closed) -> Column:
    if isinstance(column, Closed):
        expected = "a type that a pipeline file may declare, such as numeric(12,2) (use CAST in the SQL)"
        raise SettingRefused(f"transform: column {column.name}", column.why, expected)
    return column


def create_records(engine: Engine, job: Job, stage: Stage) -> None:
    """Create the table of the records; it is dropped with the stage."""
    with still_there(stage), engine.begin() as connection:
        _create(connection, stage.of_records(job.columns).rows, job)


def _create(connection: Connection, records: str, job: Job) -> None:
    run(connection, f"CREATE UNLOGGED TABLE {records} ({copy_columns(job.columns, lineage=True)})")


def make_rows(engine: Engine, job: Job, stage: Stage, pieces: Sequence[StagedPiece]) -> tuple[StagedPiece, ...]:
    """Make the rows of all staged records, and add the piece that counts them; once in a stage, even if repeated."""
    with translated(pipeline=job.declared.name, doing="transforming records"), still_there(stage):
        made = [piece for piece in staged_pieces(engine, stage) if piece.delivery == _MADE]
        if not made:
            with engine.begin() as connection:
                made = [_make(connection, job, stage, pieces)]
    return (*pieces, *made)


def _make(connection: Connection, job: Job, stage: Stage, pieces: Sequence[StagedPiece]) -> StagedPiece:
    check_kept(connection, stage, len(pieces))
    run(connection, WORK_MEMORY)
    for name in _never_null(job):
        run(connection, f"ALTER TABLE {stage.rows} ALTER COLUMN {quoted(name)} SET NOT NULL")
    # Without statistics, the plan of a join or of groups would be a guess.
    records = stage.of_records(job.columns).rows
    run(connection, f"ANALYZE {records}")
    names = ", ".join(map(quoted, stage.writer.names))
    with _refusing_rows(job):
        rows = run(connection, f"INSERT INTO {stage.rows} ({names}) {_query(job, records, names)}").rowcount
    piece = StagedPiece(
        delivery=_MADE, number=0, is_last=True, advances=(), rows=rows, quarantined=(), bytes=0, records=0
    )
    insert_piece(connection, stage, piece)
    return piece


def _never_null(job: Job) -> Iterator[str]:
    yield from (column.name for column in job.written if column.not_null)
    if job.records_have_own_ids:
        yield from (field.name for field in LINEAGE)


def _query(job: Job, records: str, names: str = "*") -> str:
    """The query of the pipeline file, over a table of records."""
    of_records = f"SELECT {cast_to_target(job.columns, lineage=True)} FROM {records}"
    # On lines of its own, because it may end with a comment.
    sql = (job.declared.transform or "").rstrip().removesuffix(";")
    return f"WITH records AS ({of_records}) SELECT {names} FROM (\n{sql}\n) AS made"


@contextmanager
def _refusing_the_query() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if not sqlstate(error).startswith(_QUERY_REFUSED):
            raise
        raise SettingRefused("transform", first_line(error), _EXPECTED) from error


@contextmanager
def _refusing_rows(job: Job) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if not sqlstate(error).startswith(_QUERY_REFUSED):
            raise
        raise TransformRefused(job.declared.name, first_line(error)) from error


def _check_reads_all(plan: Mapping[str, Any], records: str) -> None:
    """Refuse a query that leaves records out by chance or reads none: the ledger would count them as loaded."""
    nodes = list(_nodes(plan))
    reading = {records}
    while more := {_cte_of(node) for node in nodes if _reads(node, reading)} - reading - {""}:
        reading |= more
    if not _reads(plan, reading) or any(node["Node Type"] == "Limit" and _reads(node, reading) for node in nodes):
        found = "SQL that leaves records unread"
        expected = "a query that reads all records (no LIMIT, and no condition that is always false)"
        raise SettingRefused("transform", found, expected)


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for below in plan.get("Plans", ()):
        yield from _nodes(below)


def _reads(plan: Mapping[str, Any], reading: Set[str]) -> bool:
    """Whether a part of a plan reads some tables or named queries."""
    return any({node.get("Relation Name"), node.get("CTE Name")} & reading for node in _nodes(plan))


def _cte_of(node: Mapping[str, Any]) -> str:
    """The named query that a part of a plan computes, or nothing."""
    name = str(node.get("Subplan Name", ""))
    return name.removeprefix("CTE ") if name.startswith("CTE ") else ""
