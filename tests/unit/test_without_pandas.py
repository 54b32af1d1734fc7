"""Local sessions do not import pandas, although pyarrow would."""

import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S


@pytest.mark.parametrize(("first", "there"), [("keep_pandas_out()", False), ("", True)], ids=["without", "with"])
def test_values_need_no_pandas(first, there):
    program = f"""
import sys
import numpy as np
import pyarrow as pa
from onceload_jobs.executor.local import keep_pandas_out

{first}
assert pa.array([1, None]).to_pylist() == [1, None]
assert pa.array(np.arange(2)).to_pylist() == [0, 1]
assert ("pandas" in sys.modules) is {there}
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=PATIENCE_S)


def test_other_processes_of_the_fork_server_still_know_the_nulls_of_pandas():
    """The program that calls a load may use the same fork server for processes of its own."""
    program = """
import multiprocessing
from onceload_jobs.executor.local import import_early

VALUES = "__import__('pyarrow').array(__import__('pandas').Series([1.0, float('nan')])).to_pylist()"
if __name__ == "__main__":
    import_early()
    with multiprocessing.get_context("forkserver").Pool(1) as pool:
        assert pool.apply(eval, (VALUES,)) == [1.0, None]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
