"""A load goes to a Spark cluster by its address alone. The rest is in test_cluster, which takes longer."""

import json

import pytest

from onceload import cluster
from tests.cluster.test_cluster import ended, stand, write_numbers
from tests.ports import free_port
from tests.servers import temporary_home
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def spark():
    with (
        temporary_home() as home,
        cluster.running(home, port=free_port(), ui_port=free_port(), workers=1) as spark,
    ):
        yield spark


@pytest.mark.smoke
def test_a_load_runs_on_a_cluster(spark, server_dsn, tmp_path):
    write_numbers(tmp_path / "a.jsonl", range(1000))
    made = stand(server_dsn, tmp_path, path=f"{tmp_path}/*.jsonl", SPARK_CONF_DIR=str(spark.conf))
    with made as here, ended(here.load("--master", spark.master)) as loading:
        said, why = loading.communicate(timeout=PATIENCE_S)

        assert loading.returncode == 0, why
        assert json.loads(said)["loaded"] == 1000
        assert here.ask("SELECT count(*), count(DISTINCT n) FROM numbers") == [(1000, 1000)]
