"""What every test may ask for: a server for the session, and a fresh database for itself."""

import gc
import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings

from onceload import schema
from onceload.embedded import PostgresVersion
from onceload_core.postgres import LedgerSettings, connect
from tests.logged import Logged
from tests.servers import execute, temporary_database, temporary_server
from tests.share import Share, sort_for_turn

VERSIONS: tuple[PostgresVersion, ...] = (16, 18)

# `--hypothesis-profile full` tries ten times as many examples of each law.
settings.register_profile("ci", max_examples=100, deadline=None, print_blob=True)
settings.register_profile("full", settings.get_profile("ci"), max_examples=1_000)
settings.load_profile("ci")


def pytest_configure() -> None:
    # A shell starts what runs in its background with Ctrl-C ignored, and all that a test starts would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # No server outlives a test that runs on a terminal.
    os.environ["ONCELOAD_EMBEDDED_KEEP"] = "0s"


def pytest_unconfigure() -> None:
    # At exit, py4j logs that it closes its connection, to a stream that is closed by then.
    logging.getLogger("py4j.clientserver").disabled = True


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pictures", type=Path, help="write the pictures of the console for the docs into this folder")
    parser.addoption("--minutes-max", type=float, help="begin no test after so many minutes, and list those left out")
    parser.addoption("--turn", type=int, help="a time in seconds, as of a commit: each four hours have a turn")


def pytest_sessionstart(session: pytest.Session) -> None:
    if (minutes := session.config.getoption("--minutes-max")) is not None:
        session.config.pluginmanager.register(Share(minutes_max=minutes))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What rests on the server's own behaviour is tried on every version that ships with us."""
    if "postgres_version" in metafunc.fixturenames and metafunc.definition.get_closest_marker("every_postgres"):
        versions = [
            pytest.param(each, id=f"postgres{each}", marks=[] if each == VERSIONS[-1] else pytest.mark.long)
            for each in VERSIONS
        ]
        metafunc.parametrize("postgres_version", versions, indirect=True, scope="session")


def pytest_collection_finish() -> None:
    """Modules and tests stay in memory. Without this, each search for garbage goes through them again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest tests come first, so that none is left for the end, and those with Spark next, in one process.

    With `--turn`, the files begin at a place of that turn instead: a share of them is another one in each turn.
    Each process begins with its own part of the list. One that has nothing left takes from the end of another's part.
    """
    if (turn := config.getoption("--turn")) is None:
        items.sort(key=_rank)
    else:
        sort_for_turn(items, turn)


def _rank(item: pytest.Item) -> int:
    if long := item.get_closest_marker("long"):
        return -int(long.kwargs.get("minutes", 0))
    if item.get_closest_marker("smoke"):
        return 0
    return 1 if "tasks" in getattr(item, "fixturenames", ()) else 2


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    """The events that this process logs, at any level."""
    caplog.set_level(logging.DEBUG, logger="onceload")
    return Logged(caplog)


@pytest.fixture(scope="session")
def postgres_version(request: pytest.FixtureRequest) -> PostgresVersion:
    """The newest, unless the test asks for another: what rests on it is then made again."""
    return cast("PostgresVersion", getattr(request, "param", None) or VERSIONS[-1])


@pytest.fixture(scope="session")
def servers() -> Iterator[Callable[[PostgresVersion], str]]:
    """A server of each version, started when a test first asks for it."""
    with ExitStack() as running:
        yield cache(lambda version: running.enter_context(temporary_server(version)))


@pytest.fixture(scope="session")
def templates() -> Iterator[Callable[[str], str]]:
    """The name of a database of a server that has our schema, made when a test first asks for it."""
    with ExitStack() as kept:

        def make(server_dsn: str) -> str:
            dsn = kept.enter_context(temporary_database(server_dsn))
            engine = connect(LedgerSettings(dsn=dsn))
            schema.upgrade(engine)
            engine.dispose()
            return str(execute(dsn, "SELECT current_database()")[0][0])

        yield cache(make)


@pytest.fixture(scope="session")
def server_dsn(servers: Callable[[PostgresVersion], str], postgres_version: PostgresVersion) -> str:
    return servers(postgres_version)


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """The address of a database without our schema."""
    with temporary_database(server_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def template(templates: Callable[[str], str], server_dsn: str) -> str:
    """The name of a database that has our schema: copying it takes a third of the time of the migrations."""
    return templates(server_dsn)


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """The address of a database with our schema and nothing in it."""
    with temporary_database(server_dsn, template=template) as dsn:
        yield dsn


@pytest.fixture
def heeded_hangup() -> Iterator[None]:
    """What `nohup` starts ignores SIGHUP, and so would whatever a test starts."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
