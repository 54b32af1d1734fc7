"""A load starts the process that its workers are forked from before it imports what takes long."""

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("arguments", "environment", "starts"),
    [
        (["load", "events.yaml"], {}, True),
        (["stage", "events.yaml"], {"ONCELOAD_SPARK": ""}, True),
        (["load", "events.yaml"], {"ONCELOAD_SPARK": "sc://localhost"}, False),
        (["load", "events.yaml", "--engine=spark"], {}, False),
        (["load", "events.yaml", "--log-format", "json"], {}, False),
        (["load", "--help"], {}, False),
        (["status"], {}, False),
        ([], {}, False),
    ],
)
def test_only_a_load_by_local_processes_begins_early(arguments, environment, starts):
    program = f"""
import sys
import psutil
from onceload import cli

def has_begun():
    return any("forkserver" in " ".join(each.cmdline()) for each in psutil.Process().children())

cli.begin_early({arguments!r}, {environment!r})
assert has_begun() is {starts}
assert not {{"sqlalchemy", "pyarrow", "numpy"}} & sys.modules.keys()
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
