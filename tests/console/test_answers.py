"""The answers of actions: pages that a reload, or an address that someone else wrote, cannot misuse."""

from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from fastapi.testclient import TestClient

from onceload.console.standalone import make_standalone_app
from tests.console.conftest import day_of
from tests.console.test_actions import form_of


@pytest.fixture
def console(server_dsn, template, tmp_path):
    with (
        day_of(server_dsn, template, tmp_path) as day,
        TestClient(make_standalone_app(day.access(writes=True), hosts=["testserver"])) as client,
    ):
        client.get("/?token=secret")
        yield client


def test_a_reload_of_an_answer_sends_nothing_again_and_no_other_answer_is_shown(console):
    form = form_of(console.get("/pause?pipeline=well").text) | {"why": "a \u201cquoted\u201d & <b>reason</b>"}

    answer = console.post("/pause?pipeline=well", data=form)

    assert (answer.status_code, answer.request.method, len(answer.history)) == (200, "GET", 1)
    assert console.get(str(answer.url)).text == answer.text
    given = {name: value for name, (value,) in parse_qs(urlsplit(str(answer.url)).query).items()}
    for changed in (
        {"said": given["said"].replace("paused", "deleted")},
        {"pipeline": "late"},
        {"seal": "0" * 64},
        {"seal": form["token"]},
    ):
        refused = console.get("/answer?" + urlencode(given | changed))
        assert refused.status_code == 403, changed
        assert "deleted" not in refused.text
