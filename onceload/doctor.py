"""Checks of what Onceload needs on a machine, and of what an Airflow finds of it, each with its fix."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from sqlalchemy import Engine, text

from onceload import schema
from onceload.engines import where_to_work
from onceload.extras import check_installed
from onceload.settings import Settings
from onceload_core.errors import OnceloadError, SchemaRefused, SettingRefused, UpgradeUnfinished
from onceload_core.postgres.connection import statements
from onceload_jobs.work.failures import SparkUnreachable
from onceload_jobs.write.sql import quoted

SQL = statements("doctor.sql", package=__package__)
_DISK_FREE_MIN = 1 << 30
_CLOCK_SKEW_MAX_S = 5.0
_POSTGRES_MIN = 14


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that Onceload needs."""

    name: str
    healthy: bool
    expected: str
    found: str
    fix: str


def examine(settings: Settings, *, open_database: Callable[..., AbstractContextManager[Engine]]) -> list[Check]:
    """Run all checks; one that fails does not stop the others."""
    spark = [_java(os.environ), _pyspark(), *_connect(settings)] if find_spec("pyspark") is not None else []
    there = [_disk(settings.home), *_stage(settings)]
    return [_python(), *spark, *there, *check_database(settings, open_database)]


def _python() -> Check:
    return Check(
        name="python",
        healthy=(3, 11) <= sys.version_info < (3, 14),
        expected="Python 3.11, 3.12 or 3.13",
        found=sys.version.split()[0],
        fix="install one of them, and Onceload with it (in a checkout: `make setup PYTHON=python3.12`)",
    )


def _java(environment: Mapping[str, str]) -> Check:
    home = environment.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    found = _java_version(java) if java else "none"
    release = re.match(r"\d+", found)
    return Check(
        name="java",
        healthy=release is not None and int(release.group()) >= 17,
        expected="Java 17 or newer with the module jdk.incubator.vector (Spark needs it)",
        found=found,
        fix="install it (Debian: apt-get install openjdk-17-jre-headless), or set JAVA_HOME to its folder",
    )


def _java_version(java: str) -> str:
    try:
        version = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
        modules = subprocess.run(
            [java, "--list-modules"], capture_output=True, text=True, timeout=30, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return f"{java}, which does not run ({error})"
    number = re.search(r'version "([^"]+)"', version)
    if number is None or "jdk.incubator.vector" not in modules:
        return f"{java} without the module jdk.incubator.vector"
    return number.group(1)


def _pyspark() -> Check:
    """Both have the same files, and the one that was installed last has overwritten some of the other."""
    found = [name for name in ("pyspark", "pyspark-client", "pyspark-connect") if _version_of(name)]
    return Check(
        name="pyspark",
        healthy=len(found) == 1,
        expected="one of pyspark and pyspark-client",
        found=", ".join(f"{name} {_version_of(name)}" for name in found) or "files without a package",
        fix="remove all of them (`pip uninstall pyspark pyspark-client pyspark-connect`), and install one again",
    )


def _version_of(package: str) -> str:
    with suppress(PackageNotFoundError):
        return version(package)
    return ""


def _connect(settings: Settings) -> Iterator[Check]:
    """The server that ONCELOAD_SPARK names, and its workers."""
    if settings.spark is None:
        return
    from onceload_jobs.executor.spark import SPARK_ERRORS, message_of
    from onceload_jobs.work.spark.connect import own_versions, worker_of

    where = where_to_work(settings)
    ours = own_versions()
    fix = "install this release of Onceload, for the same Python, where its workers run, and restart the server"
    try:
        found = worker_of(where["remote"])
        said = f"Python {found[0]} with Onceload {found[1] or 'of unknown version'}"
    except SparkUnreachable as error:
        found, said, fix = ("", ""), f"none: {error.reason}", "start it, or correct ONCELOAD_SPARK"
    except SPARK_ERRORS as error:
        found, said = ("", ""), f"workers that run no task: {message_of(error)}"
    yield Check(
        name="spark",
        healthy=_minor(found[0]) == _minor(ours[0]) and found[1] == ours[1],
        expected=f"a server whose workers have Python {_minor(ours[0])} and Onceload {ours[1]}",
        found=said,
        fix=fix,
    )


def _minor(release: str) -> str:
    return ".".join(release.split(".")[:2])


def _disk(home: Path) -> Check:
    folder = next(each for each in (home, *home.absolute().parents) if each.exists())
    free, writable = shutil.disk_usage(folder).free, os.access(folder, os.W_OK)
    return Check(
        name="disk",
        healthy=writable and free >= _DISK_FREE_MIN,
        expected=f"a writable folder with {_DISK_FREE_MIN >> 20:,} MiB free",
        found=f"{folder}: {free >> 20:,} MiB free, {'writable' if writable else 'not writable'}",
        fix="free disk space, or set ONCELOAD_HOME to another folder",
    )


def _stage(settings: Settings) -> Iterator[Check]:
    """Open a folder where ONCELOAD_STAGE points, as a load does, and remove it again."""
    if settings.stage is None:
        return
    from onceload_jobs.batch.stage_folder import NoRoom, open_folder

    try:
        with open_folder(settings.stage) as folder:
            healthy, found = folder.is_here(), settings.stage
    except NoRoom as error:
        healthy, found = False, f"{settings.stage}: {error.reason}"
    except SettingRefused as error:
        healthy, found = False, f"{settings.stage}: {error.found}"
    yield Check(
        name="stage",
        healthy=healthy,
        expected="a place where rows can be written, read, listed and deleted",
        found=found,
        fix="create it, give loads and their workers these rights there, or correct ONCELOAD_STAGE",
    )


def examine_airflow() -> list[Check]:
    """What the Airflow of this environment finds of Onceload, asked in a process of its own."""
    check_installed("airflow", needed_by="--airflow")
    command = [sys.executable, "-m", "onceload_airflow.doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        fix = f"run `{' '.join(command)}` to see all of it; `airflow version` has to work first"
        return [Check(name="airflow", healthy=False, expected="an Airflow that starts", found=said, fix=fix)]
    return [Check(**each) for each in json.loads(lines[-1])]


def check_database(settings: Settings, open_database: Callable[..., AbstractContextManager[Engine]]) -> Iterator[Check]:
    try:
        with open_database(settings, schema_checked=False) as engine:
            yield _server(engine)
            yield _clock(engine)
            yield (known := _schema(engine))
            if known.healthy:
                yield _rights(engine)
    except OnceloadError as error:
        yield Check(name="database", healthy=False, expected="a reachable database", found="none", fix=str(error))


def _server(engine: Engine) -> Check:
    with engine.begin() as connection:
        version = str(connection.execute(text("SHOW server_version")).scalar_one())
    return Check(
        name="database",
        healthy=int(version.split(".", 1)[0]) >= _POSTGRES_MIN,
        expected=f"Postgres {_POSTGRES_MIN} or newer",
        found=f"Postgres {version}",
        fix="set ONCELOAD_DSN to a newer server",
    )


def _clock(engine: Engine) -> Check:
    with engine.begin() as connection:
        there: datetime = connection.execute(SQL["clock"]).scalar_one()
    skew_s = abs((datetime.now(UTC) - there).total_seconds())
    return Check(
        name="clock",
        healthy=skew_s <= _CLOCK_SKEW_MAX_S,
        expected=f"at most {_CLOCK_SKEW_MAX_S:.0f} s between this clock and the database's",
        found=f"{skew_s:.1f} s",
        fix="synchronize both with NTP; leases and windows use the database's clock",
    )


def _schema(engine: Engine) -> Check:
    try:
        found = f"revision {schema.check(engine)}"
    except OnceloadError as error:
        found = error.found if isinstance(error, SchemaRefused | UpgradeUnfinished) else "unreadable"
        return Check(name="schema", healthy=False, expected=f"revision {schema.head()}", found=found, fix=str(error))
    return Check(name="schema", healthy=True, expected=found, found=found, fix="")


def _rights(engine: Engine) -> Check:
    with engine.begin() as connection:
        user, missing = connection.execute(SQL["rights"]).one()
    return Check(
        name="rights",
        healthy=not missing,
        expected="the rights of onceload_loader",
        found=f"{user} lacks {', '.join(missing)}" if missing else f"those of a loader, as {user}",
        fix=f"run `GRANT onceload_loader TO {quoted(user)}` as an administrator (docs/how-to/roles.md)",
    )
