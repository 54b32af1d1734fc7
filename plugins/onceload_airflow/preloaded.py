"""Start a part of Airflow that forks: a scheduler forks a process for each task, a DAG processor one for each file.

    python -m onceload_airflow.preloaded scheduler        (arguments: those of `airflow`)

Each of them would spend seconds on the same imports, which are done once here, before the first fork.
"""

import importlib
import sys

from airflow.__main__ import main

_OF_FILES = ("onceload_airflow.ingest",)
_OF_TASKS = (*_OF_FILES, "onceload.runs", "onceload_airflow.lineage", "onceload_jobs.quality.library")

if __name__ == "__main__":
    for name in _OF_FILES if "dag-processor" in sys.argv else _OF_TASKS:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as missing:
            # It comes with an extra.
            if missing.name != "great_expectations":
                raise
    main()  # type: ignore[no-untyped-call] # Airflow's own.
