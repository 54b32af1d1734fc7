"""The schema: created and changed only by migrations, and refused if it does not fit this code.

Beside its revision it stores `compatible_from`, the oldest revision whose code runs on it. A migration that only adds
leaves it unchanged, so that code of the previous release keeps running. A migration that removes something raises it,
one release after the code that needed it. Code that does not fit writes nothing and retries: an upgrade is in progress.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from dedup_core.errors import PipelineBusy, SchemaRefused, UpgradeUnfinished
from dedup_core.postgres.connection import QUERY_CANCELED, sqlstate, translated

MIGRATIONS = Path(__file__).resolve().parent.parent / "migrations"
#: How long an upgrade tries to lock all tables, between the transactions of loads and snapshots.
_PATIENCE_S = 600.0
_PAUSE_S = 1.0
#: Loads that need a table in the meantime wait behind us. This is shorter than Postgres's deadlock_timeout (1 s), so no
#: load fails with a deadlock.
_LOCK_TIMEOUT = text("SET LOCAL statement_timeout = '500ms'")
_NO_TIMEOUT = text("SET LOCAL statement_timeout = 0")
_LOCK_ALL = text("""
    DO $$ BEGIN
        EXECUTE (SELECT 'LOCK TABLE ' || string_agg(format('onceload.%I', relname), ', ') || ' IN ACCESS EXCLUSIVE MODE'
                   FROM pg_class
                  WHERE relnamespace = to_regnamespace('onceload') AND relkind IN ('r', 'p', 'v')
                    AND NOT relispartition);
    END $$""")
#: Two concurrent upgrades must not run the same migration.
_ONE_AT_A_TIME = text("SELECT pg_advisory_xact_lock(hashtextextended('onceload.migrations', 0))")

#: A user who can neither create roles nor grant rights keeps owning everything.
_MAY_GRANT = text("""
    SELECT CASE WHEN to_regrole('onceload_owner') IS NULL THEN rolsuper OR rolcreaterole
                ELSE pg_has_role(current_user, 'onceload_owner', 'USAGE') END
       AND (rolsuper OR rolcreaterole OR num_nulls(to_regrole('onceload_loader'), to_regrole('onceload_reader')) = 0)
       AND pg_has_role(current_user, relowner, 'USAGE')
      FROM pg_roles, pg_class
     WHERE rolname = current_user AND pg_class.oid = CAST('onceload.schema_version' AS regclass)""")
_HAS_ROLES = text("""
    SELECT coalesce(has_table_privilege(to_regrole('onceload_loader'), 'onceload.ledger', 'INSERT'), false)""")

_BEFORE = "it cannot be upgraded. Load all files into a new database: `onceload init`, then `onceload recover rebuild`"
_THEIRS = "rename that schema, or set ONCELOAD_DSN to another database"
_TABLES = text("""
    SELECT relname AS name, EXISTS (
           SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'version_num') AS is_ours
      FROM pg_class
     WHERE relnamespace = to_regnamespace('onceload') AND relkind IN ('r', 'p', 'v', 'm', 'f')
     ORDER BY relname""")
_VERSION = text("SELECT to_jsonb(schema_version) FROM onceload.schema_version")


@dataclass(frozen=True, kw_only=True)
class _Version:
    revision: str
    #: The oldest revision whose code runs on this one.
    compatible_from: str


def head() -> str:
    """The revision that this code is written for."""
    # The revision is read from file names, because Alembic is slow to import.
    return max(path.name.split("_", 1)[0] for path in (MIGRATIONS / "versions").glob("*.py"))


def upgrade(engine: Engine) -> tuple[str | None, str]:
    """Migrate the schema to this code's revision, in one transaction; return the revisions before and after."""
    give_up_at = time.monotonic() + _PATIENCE_S
    while True:
        try:
            return _upgrade(engine)
        except PipelineBusy:
            if time.monotonic() > give_up_at:
                raise
        time.sleep(_PAUSE_S)


def _upgrade(engine: Engine) -> tuple[str | None, str]:
    with _transaction(engine, doing="changing the schema") as connection:
        connection.execute(_ONE_AT_A_TIME)
        found = _found(connection)
        before = found.revision if found else None
        if found and found.revision > head():
            _refuse_misfit(found)
            return before, found.revision
        if found and found.revision < head():
            _lock_all(connection)
        if not connection.execute(text("SELECT to_regnamespace('onceload')")).scalar_one():
            # An administrator may have created it for a user without the right to create schemas.
            connection.execute(text("CREATE SCHEMA onceload"))
        _migrate(connection)
        if connection.execute(_MAY_GRANT).scalar_one():
            roles = (MIGRATIONS / "roles.sql").read_text(encoding="utf-8")
            connection.execution_options(no_parameters=True).exec_driver_sql(roles)
    return before, head()


def _lock_all(connection: Connection) -> None:
    """Lock all tables at once, or none, so that no load is inside a transaction while they change."""
    connection.execute(_LOCK_TIMEOUT)
    try:
        connection.execute(_LOCK_ALL)
    except DBAPIError as error:
        if sqlstate(error) != QUERY_CANCELED:
            raise
        raise PipelineBusy("(any)", "a transaction that uses its tables") from error
    connection.execute(_NO_TIMEOUT)


@contextmanager
def _transaction(engine: Engine, *, doing: str) -> Iterator[Connection]:
    """A transaction that is safe for a superuser: it calls nothing that other users created in this database."""
    with translated(pipeline="(any)", doing=doing), engine.begin() as connection:
        connection.execute(text("SET LOCAL search_path = pg_catalog, pg_temp"))
        yield connection


def has_roles(engine: Engine) -> bool:
    """Whether the loader and reader roles exist."""
    with _transaction(engine, doing="looking for roles") as connection:
        return bool(connection.execute(_HAS_ROLES).scalar_one())


def make_if_missing(engine: Engine) -> None:
    """Create the schema of an embedded database; an existing schema is upgraded only by `onceload init`."""
    with _transaction(engine, doing="looking at the schema") as connection:
        found = _found(connection)
    if found is None:
        upgrade(engine)


def check(engine: Engine) -> str:
    """Raise unless this code runs on the schema; return its revision."""
    try:
        with _transaction(engine, doing="looking at the schema") as connection:
            found = _found(connection)
    except PipelineBusy as error:
        # Only an upgrade locks the table of the revision.
        raise UpgradeUnfinished(head(), "being changed now", "Wait until `onceload init` has ended.") from error
    if found is None:
        raise SchemaRefused(f"revision {head()}", "missing", "run `onceload init`")
    _refuse_misfit(found)
    return found.revision


def _refuse_misfit(found: _Version) -> None:
    if found.revision < head():
        fix = "Run `onceload init` with this installation."
        raise UpgradeUnfinished(head(), f"at revision {found.revision}", fix)
    if found.compatible_from > head():
        fix = "Install the release that changed the schema, or a later one, and restart all processes."
        raise UpgradeUnfinished(head(), f"at revision {found.revision}", fix)


def _migrate(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config(attributes={"connection": connection})
    config.set_main_option("script_location", str(MIGRATIONS))
    command.upgrade(config, "head")


def _found(connection: Connection) -> _Version | None:
    """The version of the database; a schema of the same name that is not ours is refused."""
    tables = {row.name: row.is_ours for row in connection.execute(_TABLES)}
    if tables.pop("schema_version", False):
        version = connection.execute(_VERSION).scalar_one_or_none()
        if version or not tables:
            return _released(version) if version else None
    if tables:
        found = f"of another application (it contains {', '.join(tables)})"
        raise SchemaRefused("created by `onceload init`", found, _THEIRS)
    return None


def _released(version: Mapping[str, str]) -> _Version:
    revision, compatible_from = version["version_num"], version.get("compatible_from")
    if not revision.isdigit():
        raise SchemaRefused(f"revision {head()}", f"at {revision!r}, which is of no release of Onceload", _THEIRS)
    if compatible_from is None:
        raise SchemaRefused(f"revision {head()}", f"at revision {revision} from before the first release", _BEFORE)
    return _Version(revision=revision, compatible_from=compatible_from)
