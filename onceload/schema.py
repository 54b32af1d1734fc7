"""The schema: created and changed only by migrations, and refused if it does not fit this code.

Beside its revision it stores `compatible_from`, the oldest revision whose code runs on it. A migration that only adds
leaves it unchanged, so that code of the previous release keeps running. A migration that removes something raises it,
one release after the code that needed it. Code that does not fit writes nothing and retries: an upgrade is in progress.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError

from onceload.shipped import shipped
from onceload_core.commands import PIPELINE_FILE
from onceload_core.errors import PipelineBusy, SchemaRefused, UpgradeUnfinished
from onceload_core.events import event
from onceload_core.postgres.connection import QUERY_CANCELED, change, sqlstate, statements, transaction

SQL = statements("schema.sql", package=__package__)
MIGRATIONS = shipped("migrations")
#: How long an upgrade tries to lock all tables, between the transactions of loads and snapshots.
_PATIENCE_S = 600.0
_PAUSE_S = 1.0
#: Loads that need a table in the meantime wait behind us. This is shorter than Postgres's deadlock_timeout (1 s), so no
#: load fails with a deadlock.
_LOCK_TIMEOUT = text("SET LOCAL statement_timeout = '500ms'")
_NO_TIMEOUT = text("SET LOCAL statement_timeout = 0")
#: Safe for a superuser: nothing that other users created in this database is called.
_SAFE_PATH = text("SET LOCAL search_path = pg_catalog, pg_temp")

_BEFORE = (
    "it cannot be upgraded. Load all files into a new database: `onceload init`, then for the file of each pipeline "
    f"`onceload recover rebuild {PIPELINE_FILE}`"
)
_THEIRS = "rename that schema, or set ONCELOAD_DSN to another database"


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
            before, after = _upgrade(engine)
        except PipelineBusy:
            if time.monotonic() > give_up_at:
                raise
        else:
            if before != after:
                event("schema_migrated", revision=after, revision_was=before)
            return before, after
        time.sleep(_PAUSE_S)


def _upgrade(engine: Engine) -> tuple[str | None, str]:
    with change(engine, "(any)", doing="changing the schema", see="onceload doctor") as connection:
        connection.execute(_SAFE_PATH)
        connection.execute(SQL["one_at_a_time"])
        found = _found(connection)
        before = found.revision if found else None
        if found and found.revision > head():
            _refuse_misfit(found)
            return before, found.revision
        if found and found.revision < head():
            _lock_all(connection)
        if not connection.execute(SQL["find_schema"]).scalar_one():
            # An administrator may have created it for a user without the right to create schemas.
            connection.execute(SQL["create_schema"])
        _migrate(connection)
        if connection.execute(SQL["may_grant"]).scalar_one():
            roles = (MIGRATIONS / "roles.sql").read_text(encoding="utf-8")
            connection.execution_options(no_parameters=True).exec_driver_sql(roles)
    return before, head()


def _lock_all(connection: Connection) -> None:
    """Lock all tables at once, or none, so that no load is inside a transaction while they change."""
    connection.execute(_LOCK_TIMEOUT)
    try:
        connection.execute(SQL["lock_all"])
    except DBAPIError as error:
        if sqlstate(error) != QUERY_CANCELED:
            raise
        raise PipelineBusy("(any)", "a transaction that uses its tables") from error
    connection.execute(_NO_TIMEOUT)


@contextmanager
def _transaction(engine: Engine, *, doing: str) -> Iterator[Connection]:
    with transaction(engine, "(any)", doing=doing) as connection:
        connection.execute(_SAFE_PATH)
        yield connection


def has_roles(engine: Engine) -> bool:
    """Whether the loader and reader roles exist."""
    with _transaction(engine, doing="looking for roles") as connection:
        return bool(connection.execute(SQL["has_roles"]).scalar_one())


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
    tables = {row.name: row.is_ours for row in connection.execute(SQL["tables"])}
    if tables.pop("schema_version", False):
        version = connection.execute(SQL["version"]).scalar_one_or_none()
        if version or not tables:
            return _released(version) if version else None
    if tables:
        found = f"of another application (it contains {', '.join(tables)})"
        raise SchemaRefused("created by `onceload init`", found, _THEIRS)
    return None


def _released(version: Mapping[str, str]) -> _Version:
    revision, compatible_from = version["version_num"], version.get("compatible_from")
    if not revision.isdigit():
        raise SchemaRefused(f"revision {head()}", f"at {revision!r}, which no release of Onceload has", _THEIRS)
    if compatible_from is None:
        raise SchemaRefused(f"revision {head()}", f"at revision {revision} from before the first release", _BEFORE)
    return _Version(revision=revision, compatible_from=compatible_from)
