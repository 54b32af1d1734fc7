"""The rows that Postgres makes of all staged records, with one query.

The records wait in a table of the stage. Once all of them are staged, one transaction makes the rows. So what is
audited is what is published, and a query with other results in each run loads one of them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex
from typing import Any

from sqlalchemy import Connection, Engine, TextClause
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import CallAgain, OnceloadError, SettingRefused
from onceload_core.postgres.connection import column_of, first_line, sqlstate, statements, translated
from onceload_jobs.batch.job import Job, TransformRefused, writing_columns
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage import SCHEMA, Stage, StageLost, check_there, still_there
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, parse_column
from onceload_jobs.write.find_refused import ROW_REFUSED
from onceload_jobs.write.sql import filled, listed, quoted, run
from onceload_jobs.write.target import types_there
from onceload_jobs.write.writer import cast_to_target, copy_columns

SQL = statements("postgres_transform.sql", package=__package__)
#: Besides rows: what a query cannot be, names, or has no right to read.
_QUERY_REFUSED = (*ROW_REFUSED, "0A", "2F", "38", "39", "3F", "42", "55000", "HV")
_EXPECTED = "one query of Postgres over the relation records, without a semicolon"
#: A null in a column of the stage that must not have any.
_NULL = "23502"
#: A cursor of more than one query.
_SEVERAL = "42P11"
#: What Postgres calls a column without a name.
_UNNAMED = "?column?"
#: The number of the one piece with the made rows.
_MADE = -1
#: For sorts and joins of whole batches.
WORK_MEMORY = "SET LOCAL work_mem = '256MB'"


def with_made_columns(engine: Engine, job: Job) -> Job:
    """The job that writes the columns of its query; planning it reads no records."""
    name = f"{token_hex(8)} records"
    records = f"{SCHEMA}.{quoted(name)}"
    with translated(pipeline=job.declared.name, doing="planning the transform"), engine.connect() as connection:
        transaction = connection.begin()
        create_records(connection, records, job)
        query = _query(job, records)
        with _refusing(_query_refused):
            _refuse_several(connection, query)
            explained = connection.execute(filled(SQL["explain"], query=query))
        _check_reads_all(explained.scalar_one()[0]["Plan"], name)
        made = _made_of(connection, job, records)
        transaction.rollback()
    for lineage in (PRODUCER_ID, SEQUENCE):
        if made.get(lineage, "bigint") != "bigint":
            raise SettingRefused("transform", f"{lineage} of another type", f"{lineage} as it is in records, a bigint")
    columns = _columns(job, made)
    if not columns:
        raise SettingRefused("transform", "no column", "at least one column besides _producer_id and _sequence")
    has_lineage = {PRODUCER_ID, SEQUENCE} <= made.keys()
    return writing_columns(job, columns, has_lineage=has_lineage)


def _refuse_several(connection: Connection, query: TextClause) -> None:
    """Let the server parse the query as a value, before any statement contains its text: it may be several statements.

    Only the server knows which semicolon ends a statement, and which is inside a text, a name or a comment.
    """
    as_sent = query.text.replace("\\:", ":")
    connection.execute(SQL["give_query"], {"query": as_sent})
    connection.execute(SQL["open_query"])


def _check_reads_all(plan: Mapping[str, Any], records: str) -> None:
    """Refuse a query that leaves records out by chance or reads none: the ledger would count them as loaded."""
    nodes = list(_nodes(plan))
    reading = {records}
    while more := {_cte_of(node) for node in nodes if _reads(node, reading)} - reading - {""}:
        reading |= more
    if not _reads(plan, reading) or any(node["Node Type"] == "Limit" and _reads(node, reading) for node in nodes):
        found = "SQL that leaves records unread"
        expected = (
            "a query that reads all records (no LIMIT, no DISTINCT of one value, no condition that is always false)"
        )
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


def _made_of(connection: Connection, job: Job, records: str) -> dict[str, str]:
    """The columns that the query makes. Until the end of the transaction, none that it reads gets another type."""
    view = f"{SCHEMA}.{quoted(f'{token_hex(8)} made')}"
    with _refusing(_query_refused):
        connection.execute(filled(SQL["create_made"], view=view, query=_query(job, records)))
    made = types_there(connection, view)
    run(connection, f"DROP VIEW {view}")
    return made


def _columns(job: Job, made: Mapping[str, str]) -> tuple[Column, ...]:
    return tuple(_column(job, *each) for each in made.items() if each[0] not in (PRODUCER_ID, SEQUENCE))


def _column(job: Job, name: str, of_type: str) -> Column:
    """A made column. One that is declared not null must not be null in the target either."""
    if name == _UNNAMED:
        raise SettingRefused("transform", "a column without a name", "a name for each column (AS name)")
    try:
        column = parse_column(name, of_type)
    except SettingRefused:
        expected = "a type that a pipeline file may declare, such as numeric(12,2) (use CAST in the SQL)"
        raise SettingRefused(f"transform: column {name}", of_type, expected) from None
    return replace(column, not_null=any(each.not_null for each in job.columns if each.name == name))


@dataclass(eq=False)
class QueryChanged(CallAgain):
    """The rows of the query have other columns or types than when the load began."""

    pipeline: str

    def __str__(self) -> str:
        return (
            f"pipeline {self.pipeline}: the columns that the transform makes have changed since the load began, "
            "because a table that its query reads was altered. Nothing of the batch was loaded. Run the load "
            "again. If the target does not fit the columns any more, it says what to change."
        )


def create_records(connection: Connection, records: str, job: Job) -> None:
    """Create the table of the records; that of a stage is dropped with it."""
    columns = copy_columns(job.columns, lineage=True)
    connection.execute(filled(SQL["create_records"], records=records, columns=columns))


def make_rows(engine: Engine, job: Job, stage: Stage, pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Make the rows of all staged records; returns what the pieces prove, and the piece that counts the made rows.

    A try whose answer was lost may have made them: their table is emptied first.
    """
    records = sum(piece.rows for piece in pieces)
    doing = translated(pipeline=job.declared.name, doing="transforming records")
    with doing, still_there(stage), engine.begin() as connection:
        check_there(connection, stage)
        run(connection, f"TRUNCATE {stage.rows}")
        rows = _make_of_records(connection, job, stage, records) if records else 0
    return (*(piece.proof for piece in pieces), Piece(number=_MADE, rows=rows))


def _make_of_records(connection: Connection, job: Job, stage: Stage, count: int) -> int:
    """Write the rows of the query to the stage, and return how many the server wrote."""
    run(connection, WORK_MEMORY)
    for name in (column.name for column in job.written if column.not_null):
        run(connection, f"ALTER TABLE {stage.rows} ALTER COLUMN {quoted(name)} SET NOT NULL")
    records = stage.of_records(job.columns).rows
    # Without statistics, the plan of a join or of groups would be a guess.
    run(connection, f"ANALYZE {records}")
    if connection.execute(filled(SQL["count_records"], records=records)).scalar_one() != count:
        raise StageLost(stage.name)
    now = _columns(job, _made_of(connection, job, records))
    if [(each.name, each.type) for each in now] != [(each.name, each.type) for each in job.written]:
        # INSERT would round or cut values.
        raise QueryChanged(job.declared.name)
    # If this process is killed, its query ends too.
    run(connection, "SET LOCAL client_connection_check_interval = '10s'")
    names = listed(stage.writer.names)
    insert = filled(SQL["insert_made"], table=stage.rows, names=names, query=_query(job, records, names))
    with _refusing(partial(_rows_refused, job)):
        return connection.execute(insert).rowcount


def _query(job: Job, records: str, names: str = "*") -> TextClause:
    """The query of the pipeline file, over a table of records."""
    sql = (job.declared.transform or "").rstrip().removesuffix(";")
    cast = cast_to_target(job.columns, lineage=True)
    return filled(SQL["query"], cast=cast, records=records, names=names, sql=sql)


@contextmanager
def _refusing(refusal: Callable[[DBAPIError], OnceloadError]) -> Iterator[None]:
    """Translate the server's refusal of the query, or of the rows that it makes."""
    try:
        yield
    except DBAPIError as error:
        if not sqlstate(error).startswith(_QUERY_REFUSED):
            raise
        raise refusal(error) from error


def _query_refused(error: DBAPIError) -> SettingRefused:
    found = "several statements" if sqlstate(error) == _SEVERAL else first_line(error)
    return SettingRefused("transform", found, _EXPECTED)


def _rows_refused(job: Job, error: DBAPIError) -> TransformRefused:
    reason = first_line(error)
    if sqlstate(error) == _NULL:
        # The message names a table of the stage.
        reason = f"column {column_of(error)}: null, but declared not null or used by target.key"
    return TransformRefused(job.declared.name, reason)
