"""The demo, as a user runs it: it checks each of its steps itself."""

import os
import subprocess
import sys

import pytest

from tests.servers import temporary_home


@pytest.mark.long(minutes=5)
def test_each_step_of_the_demo_holds():
    with temporary_home() as home:
        environment = {name: value for name, value in os.environ.items() if name != "ONCELOAD_DSN"}
        demo = [sys.executable, "-m", "onceload", "demo"]

        done = subprocess.run(
            demo, env={**environment, "ONCELOAD_HOME": str(home)}, capture_output=True, text=True, check=False
        )

    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert "its task is killed (SIGKILL) during the load; no row is loaded" in said
    assert "each is one row; none lost, none duplicated" in said
