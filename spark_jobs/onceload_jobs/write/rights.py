"""The rights that a load needs on its target; a refusal has the GRANT to run."""

from sqlalchemy import Connection, Engine

from onceload_core.errors import SettingRefused
from onceload_core.postgres.connection import array, statements, transaction
from onceload_jobs.pipeline.declared import Declared, OnRewrite, Target, Write
from onceload_jobs.write.sql import quoted, table_name

SQL = statements("rights.sql", package=__package__)


def check_schema(engine: Engine, declared: Declared) -> None:
    """Refuse a schema in which the loader cannot even look for the table."""
    with transaction(engine, declared.name, doing="looking at the target's schema") as connection:
        _refuse_schema(connection, declared.target, right="USAGE")


def refuse_full_schema(connection: Connection, target: Target) -> None:
    """Refuse an existing schema in which the loader cannot create the table."""
    _refuse_schema(connection, target, right="CREATE")


def _refuse_schema(connection: Connection, target: Target, *, right: str) -> None:
    binds = {"schema": target.schema, "right": right}
    if (user := connection.execute(SQL["of_schema"], binds).scalar()) is not None:
        grant = f"GRANT USAGE, CREATE ON SCHEMA {quoted(target.schema)} TO {quoted(user)}"
        found = f"schema {target.schema}, on which {user} lacks the right {right}"
        expected = f"that right. Run `{grant}`, or set another user in ONCELOAD_DSN (docs/how-to/roles.md)"
        raise SettingRefused("target.table", found, expected)


def refuse_lacking_rights(connection: Connection, declared: Declared, *, replaces: bool) -> None:
    """Refuse a table that the loader cannot write to as the pipeline needs."""
    replaces = replaces or declared.on_rewrite is OnRewrite.REPLACE
    table, needed = table_name(declared.target), _needed(declared, replaces=replaces)
    lacking = connection.execute(SQL["of_table"], {"table": table, "rights": array(needed)}).one()
    if lacking.rights:
        grant = f"GRANT {', '.join(needed)} ON {table} TO {quoted(lacking.user)}"
        found = f"a table on which {lacking.user} lacks the right {', '.join(lacking.rights)}"
        raise SettingRefused(f"target {table}", found, f"that right. Run `{grant}`")


def _needed(declared: Declared, *, replaces: bool) -> tuple[str, ...]:
    merges = declared.target.write is Write.MERGE
    needed = {
        # A staging table is made like the target.
        "SELECT": merges or replaces or not declared.is_direct,
        "INSERT": True,
        "UPDATE": merges,
        "DELETE": replaces or declared.target.deleted is not None,
    }
    return tuple(right for right, is_needed in needed.items() if is_needed)
