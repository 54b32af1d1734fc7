"""Sessions do not import pandas, although pyarrow would."""

import subprocess
import sys


def test_values_need_no_pandas_in_a_session_and_a_frame_still_gets_it():
    program = """
import sys
import onceload_jobs.work.local.preloaded
import pyarrow as pa

values = pa.table({"n": [1, 2]})
assert "pandas" not in sys.modules
frame = values.to_pandas()
assert pa.array(frame["n"]).to_pylist() == [1, 2]
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True, timeout=60)
