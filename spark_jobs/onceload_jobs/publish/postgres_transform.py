"""The rows that Postgres makes of all staged records, with one query.

The records wait in a table of the stage. Once all of them are staged, one transaction makes the rows. So what is
audited is what is published, and a query with other results in each run loads one of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from secrets import token_hex

from sqlalchemy import Connection, Engine, TextClause
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import CallAgain, SettingRefused
from onceload_core.postgres.connection import column_of, first_line, sqlstate, statements, translated
from onceload_jobs.batch.job import Job, TransformRefused
from onceload_jobs.batch.made_columns import writing_columns
from onceload_jobs.batch.piece import Piece
from onceload_jobs.batch.stage import SCHEMA, Stage, check_there, still_there
from onceload_jobs.pipeline.columns import PRODUCER_ID, SEQUENCE, Column, parse_column
from onceload_jobs.publish.query_plans import check_reads_all
from onceload_jobs.publish.source import WORK_MEMORY, check_rows
from onceload_jobs.write.find_refused import ROW_REFUSED
from onceload_jobs.write.sql import filled, listed, quoted, run
from onceload_jobs.write.target import types_there
from onceload_jobs.write.writer import Writer, cast_to_target, copy_columns

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
MADE = -1


def with_made_columns(engine: Engine, job: Job) -> Job:
    """The job that writes the columns of its query; planning it reads no records."""
    name = f"{token_hex(8)} records"
    records = f"{SCHEMA}.{quoted(name)}"
    with translated(pipeline=job.declared.name, doing="planning the transform"), engine.connect() as connection:
        transaction = connection.begin()
        _create(connection, records, job)
        query = _query(job, records)
        with _refusing_the_query():
            _refuse_several(connection, query)
            explained = connection.execute(filled(SQL["explain"], query=query))
        plan = explained.scalar_one()[0]["Plan"]
        check_reads_all(plan, name)
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


def _made_of(connection: Connection, job: Job, records: str) -> dict[str, str]:
    """The columns that the query makes. Until the end of the transaction, none that it reads gets another type."""
    view = f"{SCHEMA}.{quoted(f'{token_hex(8)} made')}"
    with _refusing_the_query():
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


def create_records(engine: Engine, job: Job, stage: Stage) -> None:
    """Create the table of the records; it is dropped with the stage."""
    with still_there(stage), engine.begin() as connection:
        _create(connection, stage.of_records(job.columns).rows, job)


def _create(connection: Connection, records: str, job: Job) -> None:
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
    return (*(piece.proof for piece in pieces), Piece(number=MADE, rows=rows))


def _make_of_records(connection: Connection, job: Job, stage: Stage, count: int) -> int:
    run(connection, WORK_MEMORY)
    for name in _never_null(job):
        run(connection, f"ALTER TABLE {stage.rows} ALTER COLUMN {quoted(name)} SET NOT NULL")
    records = stage.of_records(job.columns).rows
    # Without statistics, the plan of a join or of groups would be a guess.
    run(connection, f"ANALYZE {records}")
    check_rows(connection, stage, records, rows=count)
    now = _columns(job, _made_of(connection, job, records))
    if [(each.name, each.type) for each in now] != [(each.name, each.type) for each in job.written]:
        # INSERT would round or cut values.
        raise QueryChanged(job.declared.name)
    # If this process is killed, its query ends too.
    run(connection, "SET LOCAL client_connection_check_interval = '10s'")
    with _refusing_rows(job):
        return _insert_made(connection, job, records, into=stage.writer)


def _insert_made(connection: Connection, job: Job, records: str, *, into: Writer) -> int:
    """Write the rows of the query to a table, and return how many the server wrote."""
    names = listed(into.names)
    insert = filled(SQL["insert_made"], table=into.table, names=names, query=_query(job, records, names))
    return connection.execute(insert).rowcount


def _never_null(job: Job) -> Iterator[str]:
    yield from (column.name for column in job.written if column.not_null)


def _query(job: Job, records: str, names: str = "*") -> TextClause:
    """The query of the pipeline file, over a table of records."""
    sql = (job.declared.transform or "").rstrip().removesuffix(";")
    cast = cast_to_target(job.columns, lineage=True)
    return filled(SQL["query"], cast=cast, records=records, names=names, sql=sql)


@contextmanager
def _refusing_the_query() -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if not sqlstate(error).startswith(_QUERY_REFUSED):
            raise
        found = "several statements" if sqlstate(error) == _SEVERAL else first_line(error)
        raise SettingRefused("transform", found, _EXPECTED) from error


@contextmanager
def _refusing_rows(job: Job) -> Iterator[None]:
    try:
        yield
    except DBAPIError as error:
        if not sqlstate(error).startswith(_QUERY_REFUSED):
            raise
        raise TransformRefused(job.declared.name, _why_refused(error)) from error


def _why_refused(error: DBAPIError) -> str:
    """The server's message, but for one that names a table of the stage."""
    if sqlstate(error) != _NULL:
        return first_line(error)
    return f"column {column_of(error)}: null, but declared not null or used by target.key"
