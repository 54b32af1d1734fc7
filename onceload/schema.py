"""The schema: made and changed by migrations alone, and refused where it does not fit this code."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, text

from dedup_core.errors import SchemaRefused
from dedup_core.postgres.connection import translated

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
#: Two commands that bring the schema up to date at once must not run the same migration.
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtextextended('onceload.migrations', 0))")

#: Who may neither make roles nor give away rights goes on doing everything alone.
_MAY_GRANT = text("""
    SELECT CASE WHEN to_regrole('onceload_owner') IS NULL THEN rolsuper OR rolcreaterole
                ELSE pg_has_role(current_user, 'onceload_owner', 'USAGE') END
       AND (rolsuper OR rolcreaterole OR num_nulls(to_regrole('onceload_loader'), to_regrole('onceload_reader')) = 0)
       AND pg_has_role(current_user, relowner, 'USAGE')
      FROM pg_roles, pg_class
     WHERE rolname = current_user AND pg_class.oid = CAST('onceload.schema_version' AS regclass)""")
_HAS_ROLES = text("""
    SELECT coalesce(has_table_privilege(to_regrole('onceload_loader'), 'onceload.ledger', 'INSERT'), false)""")

_THEIRS = "rename that schema, or give Onceload a database of its own in ONCELOAD_DSN"
_TABLES = text("""
    SELECT relname AS name, EXISTS (
           SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'version_num') AS is_ours
      FROM pg_class
     WHERE relnamespace = to_regnamespace('onceload') AND relkind IN ('r', 'p', 'v', 'm', 'f')
     ORDER BY relname""")


def head() -> str:
    """The revision that this code is written for."""
    return max(_known())


def upgrade(engine: Engine) -> tuple[str | None, str]:
    """Bring the schema to this code's revision, in one transaction; answers with the revisions before and after."""
    with _transaction(engine, doing="changing the schema") as connection:
        connection.execute(_ONE_AT_A_TIME)
        before = _found(connection)
        if before is not None and before not in _known():
            raise _newer(before)
        if not connection.execute(text("SELECT to_regnamespace('onceload')")).scalar_one():
            # An administrator may have made it for a user who may make no schemas.
            connection.execute(text("CREATE SCHEMA onceload"))
        _migrate(connection)
        if connection.execute(_MAY_GRANT).scalar_one():
            roles = (MIGRATIONS / "roles.sql").read_text(encoding="utf-8")
            connection.execution_options(no_parameters=True).exec_driver_sql(roles)
    return before, head()


@contextmanager
def _transaction(engine: Engine, *, doing: str) -> Iterator[Connection]:
    """Of somebody who may be a superuser: nothing that others have made in this database is called by him."""
    with translated(pipeline="(any)", doing=doing), engine.begin() as connection:
        connection.execute(text("SET LOCAL search_path = pg_catalog, pg_temp"))
        yield connection


def has_roles(engine: Engine) -> bool:
    """Whether there are roles to be granted to those who load and those who look."""
    with _transaction(engine, doing="looking for roles") as connection:
        return bool(connection.execute(_HAS_ROLES).scalar_one())


def make_if_missing(engine: Engine) -> None:
    """A database of our own needs no first step; one that is there already is brought up to date only when asked."""
    with _transaction(engine, doing="looking at the schema") as connection:
        found = _found(connection)
    if found is None:
        upgrade(engine)


def check(engine: Engine) -> None:
    """Raise unless the schema is just the one that this code is written for."""
    with _transaction(engine, doing="looking at the schema") as connection:
        found = _found(connection)
    if found == head():
        return
    if found is None:
        raise SchemaRefused(f"revision {head()}", "not there yet", "run `onceload init`")
    if found in _known():
        raise SchemaRefused(
            f"revision {head()}", f"older, revision {found}", "run `onceload init` to bring it up to date"
        )
    raise _newer(found)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS))
    command.upgrade(config, "head")


def _newer(found: str) -> SchemaRefused:
    expected = f"revision {head()}"
    if not found.isdigit():
        return SchemaRefused(expected, f"at {found!r}, which no release of Onceload made", _THEIRS)
    fix = "install the Onceload release that made it, or a later one"
    return SchemaRefused(expected, f"newer than this code, revision {found}", fix)


def _known() -> set[str]:
    """Files are named by their revision, so that looking at them needs no Alembic, which is slow to import."""
    return {path.name.split("_", 1)[0] for path in (MIGRATIONS / "versions").glob("*.py")}


def _found(connection: Connection) -> str | None:
    """The revision that the database is at; somebody else's schema of the same name is refused."""
    tables = {row.name: row.is_ours for row in connection.execute(_TABLES)}
    if tables.pop("schema_version", False):
        revision = connection.execute(text("SELECT version_num FROM onceload.schema_version")).scalar_one_or_none()
        if revision or not tables:
            return revision
    if tables:
        found = f"somebody else's (it holds {', '.join(tables)})"
        raise SchemaRefused("made by `onceload init`", found, _THEIRS)
    return None
