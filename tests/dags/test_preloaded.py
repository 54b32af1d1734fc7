"""Parts of Airflow that fork, started with the modules of tasks in memory."""

import pytest

from tests.dags.stand import Airflow

#: Starts the command, and says what its forks would have.
_START = """
import contextlib, json, runpy, sys
sys.argv = ["airflow", "{part}", "--help"]
with contextlib.suppress(SystemExit):
    runpy.run_module("onceload_airflow.preloaded", run_name="__main__")
print(json.dumps([name in sys.modules for name in ("great_expectations", "onceload.runs", "onceload_airflow.ingest")]))
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ("part", "has"), [("scheduler", "[true, true, true]"), ("dag-processor", "[false, false, true]")]
)
def test_the_command_runs_with_the_modules_in_memory_that_its_forks_need(part, has, tmp_path):
    done = Airflow(home=tmp_path, pipelines=tmp_path).python(_START.replace("{part}", part))

    assert done.returncode == 0, done.stderr
    assert f"airflow {part}" in done.stdout
    assert done.stdout.splitlines()[-1] == has
    assert "great_expectations" not in done.stdout + done.stderr
