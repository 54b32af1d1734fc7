"""A database that goes away and comes back while the console runs."""

import pytest
from fastapi.testclient import TestClient

from onceload import schema
from onceload.console.standalone import TokenAccess, make_standalone_app
from onceload.embedded import running
from onceload.settings import Settings
from onceload_core.postgres import LedgerSettings, connect
from tests.console.test_pages import words_of
from tests.servers import temporary_home


@pytest.mark.long
@pytest.mark.parametrize("path", ["/", "/pipeline?pipeline=well", "/discard?pipeline=well&id=1"])
def test_a_page_says_that_the_database_is_away_and_works_again_when_it_is_back(path):
    with temporary_home() as home:
        with running(home, version=18) as dsn:
            engine = connect(LedgerSettings(dsn=dsn))
            schema.upgrade(engine)
            access = TokenAccess(engine, Settings(dsn=dsn), folder=None, token="secret", writes=True)
            client = TestClient(make_standalone_app(access, hosts=["testserver"]))
            there = client.get("/?token=secret").status_code, client.get(path).status_code

        away = client.get(path)

        with running(home, version=18):
            back = client.get(path)
        engine.dispose()
    # There is no pipeline, but the database has answered.
    assert there == (200, 200 if path == "/" else 404)
    assert away.status_code == 503
    assert "Not possible right now" in words_of(away.text)
    assert "Retry" in words_of(away.text)
    assert back.status_code == there[1]
