"""What each user may see and do on the console, by the rights in Airflow: with Airflow's own app and logins."""

import json

import pytest

from onceload import cli
from tests.dags.stand import Airflow
from tests.servers import execute

pytestmark = pytest.mark.long

_PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/{name}/*.jsonl", format: jsonl}}
columns: {{n: bigint not null}}
target: {{table: public.{name}}}
publish: direct
quality: {{quarantined_max: 100%}}
"""
#: A reader may read the logs of one DAG. An operator and a colleague may start it too, but not the DAG `backfill`.
_RIGHTS = """
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

MAY = {"reader": {"GET"}, "operator": {"GET", "POST"}, "colleague": {"GET", "POST"}}

class SomeRights(SimpleAuthManager):
    def is_authorized_dag(self, *, method, user, access_entity=None, details=None):
        return method in MAY.get(user.username, ()) and details is not None and details.id == "ingest__ours"
"""
#: Logs users in, and sends requests as each: (user, method, path, form). In a form, {user} stands for the token of that
#: user. In a path, {last} stands for the address of the last redirect.
_ASK = """
import json, os, re
from html import unescape
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.testclient import TestClient

client = TestClient(create_app("core"), follow_redirects=False)
tokens = {}

def send(user, method, path, form):
    headers = {}
    if user:
        jwt = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role="viewer"))
        headers = {"Authorization": f"Bearer {jwt}"}
    form = {name: value.format(**tokens) for name, value in form.items()}
    path = path.replace("{last}", tokens.get("last", ""))
    answer = client.request(method, "/onceload" + path, headers=headers, data=form or None)
    tokens["last"] = answer.headers.get("location", tokens.get("last", ""))
    for token in re.findall(r'name="token" value="(.*?)"', answer.text):
        tokens[user] = unescape(token)
    return answer.status_code, answer.headers.get("location", ""), answer.text

with client:
    print(json.dumps([send(*each) for each in json.loads(os.environ["REQUESTS"])]))
"""


@pytest.fixture
def airflow(tmp_path, dsn):
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.jsonl").write_text('{"n": 1}\n{"n": "x"}\n')
        file = tmp_path / "pipelines" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(_PIPELINE.format(name=name, folder=tmp_path))
        assert cli.main(["consume", str(file), "--session", "one"], {"ONCELOAD_DSN": dsn}) == 0
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "some_rights.py").write_text(_RIGHTS)
    airflow = Airflow(home=tmp_path / "airflow", pipelines=tmp_path / "pipelines", dsn=dsn)
    migrated = airflow.call("db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    return airflow


def answers(airflow, requests, **environment):
    done = airflow.python(
        _ASK,
        REQUESTS=json.dumps(requests),
        AIRFLOW__CORE__AUTH_MANAGER="some_rights.SomeRights",
        AIRFLOW__API_AUTH__JWT_SECRET="s" * 64,
        AIRFLOW__API__SECRET_KEY="k" * 64,
        PYTHONPATH=f"{airflow.pipelines.parent / 'modules'}:{airflow.environment['PYTHONPATH']}",
        **environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_rights_in_airflow_are_those_of_the_console(airflow, dsn):
    (ours, theirs) = (
        dict(zip(("record", "producer"), row, strict=True))
        for row in execute(dsn, "SELECT quarantine_id, producer_id FROM onceload.quarantine ORDER BY pipeline_id")
    )
    before = execute(dsn, "SELECT state, count(*) FROM onceload.quarantine GROUP BY state")
    asked = [
        (None, "GET", "/", {}),
        ("stranger", "GET", "/", {}),
        ("stranger", "GET", "/pipeline?pipeline=ours", {}),
        ("reader", "GET", "/", {}),
        ("reader", "GET", "/pipeline?pipeline=theirs", {}),
        ("reader", "GET", "/quarantine?pipeline=theirs", {}),
        ("reader", "GET", "/of/ingest__theirs/any", {}),
        ("reader", "GET", f"/row?pipeline=ours&producer_id={theirs['producer']}&sequence=0", {}),
        ("reader", "GET", f"/fix?pipeline=ours&id={ours['record']}", {}),
        ("operator", "GET", f"/fix?pipeline=ours&id={ours['record']}", {}),
        ("operator", "GET", f"/fix?pipeline=ours&id={theirs['record']}", {}),
        ("operator", "POST", "/discard?pipeline=theirs", {"id": str(theirs["record"]), "token": "{operator}"}),
        ("operator", "POST", "/discard?pipeline=ours", {"id": str(theirs["record"]), "token": "{operator}"}),
        ("operator", "POST", "/discard?pipeline=ours", {"id": str(ours["record"]), "token": "forged"}),
        ("colleague", "POST", "/discard?pipeline=ours", {"id": str(ours["record"]), "token": "{operator}"}),
        ("operator", "POST", "/load?pipeline=ours", {"token": "{operator}"}),
    ]

    found = answers(airflow, asked)

    codes = [code for code, _, _ in found]
    assert codes == [303, 200, 403, 200, 403, 403, 404, 404, 403, 200, 400, 403, 404, 403, 403, 403]
    assert "/auth/login" in found[0][1]
    seen = [("pipeline=ours" in text, "pipeline=theirs" in text) for _, _, text in found]
    assert (seen[1], seen[3]) == ((False, False), (True, False))
    assert "no right to start the DAG backfill" in found[-1][2]
    assert execute(dsn, "SELECT state, count(*) FROM onceload.quarantine GROUP BY state") == before


def test_a_form_outlives_a_login_and_its_answer_is_shown_to_its_user_alone(airflow, dsn):
    words = "'late' & <b>"
    asked = [
        ("operator", "GET", "/pause?pipeline=ours", {}),
        (None, "POST", "/pause?pipeline=ours", {"why": words, "token": "{operator}"}),
        ("operator", "POST", "/pause?pipeline=ours", {"why": words, "token": "{operator}"}),
        ("operator", "GET", "/{last}", {}),
        ("colleague", "GET", "/{last}", {}),
        ("operator", "GET", "/{last}0", {}),
        ("operator", "GET", "/{last}&pipeline=theirs", {}),
    ]

    found = answers(airflow, asked)

    assert [code for code, _, _ in found] == [200, 401, 303, 200, 403, 403, 403]
    expired = found[1][2]
    assert "/auth/login" in expired
    assert '<input type="hidden" name="why" value="&#39;late&#39; &amp; &lt;b&gt;">' in expired
    assert found[2][1].startswith("answer?")
    assert "paused" in found[3][2]
    assert execute(dsn, "SELECT name, pause_reason, paused_by FROM onceload.pipeline WHERE paused_at IS NOT NULL") == [
        ("ours", words, "operator")
    ]


def test_a_database_that_is_away_is_a_page_with_what_to_do(airflow):
    nowhere = "postgresql://postgres@127.0.0.1:1/none"

    ((code, _, text),) = answers(airflow, [("reader", "GET", "/", {})], ONCELOAD_DSN=nowhere)

    assert code == 503
    assert "Not possible right now" in text
    assert "onceload/console.css" in text or 'href="console.css"' in text
