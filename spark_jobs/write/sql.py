"""SQL text: quoting names, and running generated statements."""

from typing import Any

from sqlalchemy import Connection, CursorResult

from spark_jobs.pipeline.declared import Target


def run(connection: Connection, statement: str) -> CursorResult[*tuple[Any, ...]]:
    """Run a complete statement: a percent sign or a colon in a name has no special meaning."""
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def literal(value: str) -> str:
    """Quote a text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Quote any name."""
    return '"' + name.replace('"', '""') + '"'


def table_name(target: Target) -> str:
    """The quoted name of the table."""
    return f"{quoted(target.schema)}.{quoted(target.table)}"
