"""The oldest Spark 4: loads in a session of its own, and over Spark Connect with nothing of Spark but the client."""

import json
from pathlib import Path

import pytest

from tests.install.test_wheel import Installed
from tests.ports import free_port
from tests.servers import execute

pytestmark = pytest.mark.long(minutes=5)

ROOT = Path(__file__).resolve().parents[2]
OLDEST = "4.0.0"
PIPELINE = """\
pipeline: {name}
source: {{path: "landing/*.jsonl", format: jsonl}}
columns: {{id: bigint not null, at: timestamp, since: timestamptz, tags: "text[]"}}
target: {{table: public.{name}}}
transform: SELECT * FROM records
"""
RECORD = '{{"id": {0}, "at": "2026-01-01T00:00:0{0}", "since": "2026-01-01T00:00:0{0}Z", "tags": ["a", null]}}\n'
#: Times as texts: a timestamp that became one with a zone would show it.
ROWS = "SELECT id, at::text, since AT TIME ZONE 'UTC' = at, tags FROM {} ORDER BY id"


@pytest.fixture
def server(tmp_path):
    return installed(tmp_path / "server", f"pyspark[connect]=={OLDEST}")


@pytest.fixture
def client(tmp_path):
    return installed(tmp_path / "client", f"pyspark-client=={OLDEST}")


def installed(home, spark):
    (home / "landing").mkdir(parents=True)
    (home / "landing" / "a.jsonl").write_text("".join(map(RECORD.format, range(10))))
    for name in ("in_session", "over_connect"):
        (home / f"{name}.yaml").write_text(PIPELINE.format(name=name))
    made = Installed(home)
    made.install(str(ROOT), spark)
    return made


def test_it_makes_the_same_rows_in_its_own_session_and_for_a_client_without_it(server, client, dsn):
    ports = ("--port", str(free_port()), "--ui-port", str(free_port()))

    server.run("onceload", "load", "in_session.yaml", ONCELOAD_DSN=dsn)
    remote = json.loads(server.run("onceload", "spark", "start", "--json", *ports).stdout)["remote"]
    try:
        client.run("onceload", "load", "over_connect.yaml", ONCELOAD_DSN=dsn, ONCELOAD_SPARK=remote, JAVA_HOME="")
    finally:
        server.run("onceload", "spark", "stop")

    assert [each for each in client.frozen() if each.startswith(("py4j", "pyspark"))] == [f"pyspark-client=={OLDEST}"]
    rows = [(n, f"2026-01-01 00:00:0{n}", True, ["a", None]) for n in range(10)]
    assert execute(dsn, ROWS.format("in_session")) == rows
    assert execute(dsn, ROWS.format("over_connect")) == rows
