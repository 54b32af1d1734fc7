"""SQL text: quoting names, and running generated statements."""

import re
from typing import Any

from sqlalchemy import Connection, CursorResult, TextClause, text

from onceload_jobs.pipeline.declared import Target


def run(connection: Connection, statement: str) -> CursorResult[*tuple[Any, ...]]:
    """Run a complete statement: a percent sign or a colon in a name has no special meaning."""
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


_PLACE = re.compile(r"\{(\w+)\}")


def filled(statement: TextClause, **texts: str) -> TextClause:
    """Insert names and expressions, quoted for SQL, into the places of a statement, such as `{rows}`."""
    # All at once, so that braces in a name are not taken for a place, nor a colon for a parameter.
    return text(_PLACE.sub(lambda place: texts[place[1]].replace(":", "\\:"), statement.text))


def literal(value: str) -> str:
    """Quote a text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Quote any name."""
    return '"' + name.replace('"', '""') + '"'


def table_name(target: Target) -> str:
    """The quoted name of the table."""
    return f"{quoted(target.schema)}.{quoted(target.table)}"
