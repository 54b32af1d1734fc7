"""SQL text: quoting names, and running generated statements."""

import re
from collections.abc import Iterable
from typing import Any, TypeAlias

from sqlalchemy import Connection, CursorResult, TextClause, text

from onceload_jobs.pipeline.declared import Target

#: Names and expressions, quoted for SQL, or a part of a statement with its places filled.
Sql: TypeAlias = str | TextClause


def run(connection: Connection, statement: str) -> CursorResult[*tuple[Any, ...]]:
    """Run a complete statement: a percent sign or a colon in a name has no special meaning."""
    return connection.exec_driver_sql(statement, execution_options={"no_parameters": True})


_PLACE = re.compile(r"\{(\w+)\}")


def filled(statement: TextClause, **texts: Sql) -> TextClause:
    """Insert names, expressions and parts into the places of a statement or of a part of one, such as `{rows}`."""
    # All at once, so that braces in a name are not taken for a place.
    return text(_PLACE.sub(lambda place: _escaped(texts[place[1]]), statement.text))


def _escaped(sql: Sql) -> str:
    """A colon in a name must not be taken for a parameter, but a part may have parameters."""
    return sql.replace(":", "\\:") if isinstance(sql, str) else sql.text


def listed(names: Iterable[str]) -> str:
    """A list of quoted names."""
    return ", ".join(map(quoted, names))


def literal(value: str) -> str:
    """Quote a text as an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def quoted(name: str) -> str:
    """Quote any name."""
    return '"' + name.replace('"', '""') + '"'


def table_name(target: Target) -> str:
    """The quoted name of the table."""
    return f"{quoted(target.schema)}.{quoted(target.table)}"
