"""SQL text: quoting, and running a statement that is made of names."""

from typing import Any

from sqlalchemy import Connection, CursorResult

from spark_jobs.pipeline.declared import Target


def run(connection: Connection, statement: str) -> CursorResult[*tuple[Any, ...]]:
    """Run a statement that is complete: a percent sign or a colon in a name stands for itself."""
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


def literal(value: str) -> str:
    """A text as SQL writes it."""
    return "'" + value.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Any name is just a name."""
    return '"' + name.replace('"', '""') + '"'


def table_name(target: Target) -> str:
    """The table as SQL writes it."""
    return f"{quoted(target.schema)}.{quoted(target.table)}"
