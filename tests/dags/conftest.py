"""What tests of one process of Airflow share."""

from pathlib import Path

import pytest

from tests.dags.stand import Airflow


@pytest.fixture(scope="session")
def airflow_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Airflow's own database with nothing in it, to be copied: making one takes longer than most tests."""
    home = tmp_path_factory.mktemp("airflow")
    migrated = Airflow(home=home, pipelines=home).call("db", "migrate")
    assert migrated.returncode == 0, migrated.stderr
    return home / "airflow.db"
