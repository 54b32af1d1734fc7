# ruff: noqa: INP001 - it is found by its folder being on the path.
"""On the path of a process, this lets it write down what it asks of the ledger, and the answers."""

import os
import sys

if "ONCELOAD_HISTORY" in os.environ and not sys.flags.safe_path:
    from tests.loads.recording import record

    record(os.environ["ONCELOAD_HISTORY"])
