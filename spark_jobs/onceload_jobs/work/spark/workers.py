"""What the Python workers of a Spark Connect server are, as `onceload doctor` asks."""

import platform
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

import pyarrow as pa

from onceload_jobs.work.spark.connect import connected


def worker_of(address: str) -> tuple[str, str]:
    """The versions of Python and of Onceload that run the tasks of a server; an error of Spark if none can."""
    with connected("doctor", address, batch="") as spark:
        row = spark.session.range(1).mapInArrow(_versions, "python string, onceload string").collect()[0]
    return row.python, row.onceload


def own() -> tuple[str, str]:
    """The versions of this process."""
    found = ""
    with suppress(PackageNotFoundError):
        found = version("onceload")
    return platform.python_version(), found


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        python, onceload = own()
        yield pa.record_batch([pa.array([python]), pa.array([onceload])], names=["python", "onceload"])
