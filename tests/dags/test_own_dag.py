"""The DAGs that the how-to shows are found by Airflow, and the one with the operators loads."""

import re
import shutil

import pytest

from tests.dags.stand import ROOT, Airflow
from tests.dags.test_runs import states
from tests.servers import execute

pytestmark = pytest.mark.long
PAGE = ROOT / "docs" / "how-to" / "airflow.md"
PIPELINE = """\
pipeline: orders
source: {{path: "{folder}/*.jsonl", format: jsonl}}
columns: {{total: bigint}}
target: {{table: public.orders}}
"""


@pytest.fixture
def airflow(tmp_path, dsn, airflow_database):
    home, pipelines, dags, landing = (tmp_path / name for name in ("airflow", "pipelines", "dags", "landing"))
    for folder in (home, pipelines, dags, landing):
        folder.mkdir()
    (pipelines / "orders.yaml").write_text(PIPELINE.format(folder=landing))
    (landing / "a.jsonl").write_text("".join(f'{{"total": {number}}}\n' for number in range(3)))
    for number, block in enumerate(re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE.read_text("utf-8"))):
        (dags / f"dag_{number}.py").write_text(block.replace("/srv/pipelines", str(pipelines)))
    shutil.copy(airflow_database, home)
    return Airflow(home=home, pipelines=pipelines, dsn=dsn, by_hand=dags)


def test_the_dags_of_the_how_to_are_found(airflow):
    found = airflow.parsed()

    assert found["errors"] == {}
    assert set(found["dags"]) == {"after", "ingest__orders", "on_news", "shop"}
    assert {name: task["then"] for name, task in found["dags"]["shop"]["tasks"].items()} == {
        "wait": ["plan"],
        "plan": ["load"],
        "load": ["report"],
        "report": ["count"],
        "count": [],
    }


def test_the_dag_of_the_how_to_loads_and_reads(airflow, dsn):
    done = airflow.call("dags", "test", "shop")

    assert states(airflow) == [dict.fromkeys(("wait", "plan", "load", "report", "count"), "success")], done.stdout
    assert execute(dsn, "SELECT total FROM orders ORDER BY total") == [(0,), (1,), (2,)]
    assert execute(dsn, "SELECT loaded, dag_id FROM onceload.ledger") == [(3, "shop")]
