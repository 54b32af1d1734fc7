"""Temporary servers and databases for tests."""

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import psycopg2

from onceload import embedded
from onceload.embedded import PostgresVersion, running
from tests.segments import remove_segments

_IN_MEMORY = Path("/dev/shm")
_DEBIAN = Path("/usr/lib/postgresql")
#: The oldest Postgres that is supported.
_VERSION_MIN = 14
#: A container may have 64 MB there.
_MEMORY_BYTES_MIN = 4 * 2**30
#: Whenever a database is dropped, the server goes through all of its buffers.
_FAST = {"fsync": "off", "full_page_writes": "off", "shared_buffers": "16MB"}
#: Databases to drop, by server, oldest first, and how many of them stay. Postgres waits 100 ms for each whose last
#: connection has only just been closed.
_USED: dict[str, list[str]] = {}
_USED_MAX = 4


@contextmanager
def temporary_home(*, below: Path | None = None) -> Iterator[Path]:
    """A short-named folder, gone afterwards; the path of a socket must not be long."""
    home = Path(tempfile.mkdtemp(prefix="onceload-", dir=below))
    # Passable, as the server may run as another user; not readable by any.
    home.chmod(0o711)
    try:
        yield home
    finally:
        remove_segments(home)
        shutil.rmtree(home)


@contextmanager
def temporary_server(version: PostgresVersion) -> Iterator[str]:
    """A server of its own; yields the address of its first database.

    It does not wait for the disk, and uses memory instead of one if there is enough. A process that is killed loses
    nothing by that, and the power is not cut.
    """
    has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _MEMORY_BYTES_MIN
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home(below=_IN_MEMORY if has_room else None))
        with patch.dict(embedded._SETTINGS, _FAST):
            dsn = stack.enter_context(running(home, version=version))
        yield dsn


def version_with_icu() -> int | None:
    """The newest Postgres of Debian's packages here, which are built with ICU; ours has none."""
    versions = [int(found.parent.parent.name) for found in _DEBIAN.glob("[0-9]*/bin/postgres")]
    return max((each for each in versions if each >= _VERSION_MIN), default=None)


@contextmanager
def temporary_server_with_icu(version: int) -> Iterator[str]:
    """The same with a Postgres of Debian's packages."""
    of_version = embedded.binaries

    def binaries(asked: PostgresVersion) -> Path:
        return _DEBIAN / str(version) / "bin" if asked == version else of_version(asked)

    with patch.object(embedded, "binaries", binaries), temporary_server(cast("PostgresVersion", version)) as dsn:
        yield dsn


@contextmanager
def temporary_database(server_dsn: str, *, template: str | None = None) -> Iterator[str]:
    """A fresh database, empty or a copy of the template, dropped with its connections when others have been made."""
    name = f"test_{uuid.uuid4().hex}"
    with closing(psycopg2.connect(server_dsn)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        used = _USED.setdefault(server_dsn, [])
        while len(used) > _USED_MAX:
            cursor.execute(f"DROP DATABASE {used.pop(0)} WITH (FORCE)")
        cursor.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template} STRATEGY file_copy" if template else ""))
    try:
        yield server_dsn.replace("/postgres?", f"/{name}?")
    finally:
        _USED.setdefault(server_dsn, []).append(name)


def as_member(dsn: str, role: str) -> str:
    """The address of the same database for a user who has the rights of that role and no others."""
    user = f"a_{role}"
    if not execute(dsn, f"SELECT 1 FROM pg_roles WHERE rolname = '{user}'"):
        execute(dsn, f"CREATE ROLE {user} LOGIN IN ROLE {role}")
        # What it makes is the role's, whichever of its members made it.
        execute(dsn, f"ALTER ROLE {user} SET role = '{role}'")
    return of_member(dsn, role)


def of_member(dsn: str, role: str) -> str:
    """The same, where that user is there already."""
    return dsn.replace("://postgres@", f"://a_{role}@")


def execute(dsn: str, statement: str) -> list[tuple[Any, ...]]:
    """Run one statement in a connection and transaction of its own."""
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall() if cursor.description else []
