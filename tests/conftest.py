"""What every test may ask for: a server for the session, and a fresh database for itself."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from dedup_core.postgres import LedgerSettings, connect
from onceload import schema
from onceload.embedded import PostgresVersion
from tests.servers import execute, temporary_database, temporary_server

VERSIONS: tuple[PostgresVersion, ...] = (16, 18)

# `--hypothesis-profile full` tries ten times as many examples of each law.
settings.register_profile("ci", max_examples=100, deadline=None, print_blob=True)
settings.register_profile("full", settings.get_profile("ci"), max_examples=1_000)
settings.load_profile("ci")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """What rests on the server's own behaviour is tried on every version that ships with us."""
    if "postgres_version" in metafunc.fixturenames and metafunc.definition.get_closest_marker("every_postgres"):
        metafunc.parametrize(
            "postgres_version", VERSIONS, scope="session", ids=[f"postgres{each}" for each in VERSIONS]
        )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests are started first, whatever the order of the rest: the others are done beside them."""
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)


@pytest.fixture(scope="session")
def postgres_version() -> PostgresVersion:
    return 18


@pytest.fixture(scope="session")
def server_dsn(postgres_version: PostgresVersion) -> Iterator[str]:
    with temporary_server(postgres_version) as dsn:
        yield dsn


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """The address of a database without our schema."""
    with temporary_database(server_dsn) as dsn:
        yield dsn


@pytest.fixture(scope="session")
def template(server_dsn: str) -> Iterator[str]:
    """The name of a database that has our schema: copying it takes a third of the time of the migrations."""
    with temporary_database(server_dsn) as dsn:
        engine = connect(LedgerSettings(dsn=dsn))
        schema.upgrade(engine)
        engine.dispose()
        yield str(execute(dsn, "SELECT current_database()")[0][0])


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """The address of a database with our schema and nothing in it."""
    with temporary_database(server_dsn, template=template) as dsn:
        yield dsn
