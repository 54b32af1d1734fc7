"""Parts of Airflow that fork, started with the modules of tasks in memory."""

import pytest

from tests.dags.stand import Airflow

#: Starts the command, and says what its forks would have.
_START = """
import json, runpy, sys
sys.argv = ["airflow", "version"]
runpy.run_module("onceload_airflow.preloaded", run_name="__main__")
print(json.dumps([name in sys.modules for name in ("great_expectations", "onceload.runs", "onceload_airflow.ingest")]))
"""


@pytest.mark.long
def test_the_command_runs_with_the_modules_of_tasks_in_memory(tmp_path):
    done = Airflow(home=tmp_path, pipelines=tmp_path).python(_START)

    assert done.returncode == 0, done.stderr
    version, has_modules = done.stdout.splitlines()[-2:]
    assert version[0].isdigit()
    assert has_modules == "[true, true, true]"
    assert "great_expectations" not in done.stdout + done.stderr
