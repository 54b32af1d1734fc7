"""A session of a Spark Connect server, which all loads of its users share: their workers stay, and answer at once."""

import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import cast
from uuid import NAMESPACE_URL, uuid5

import pyarrow as pa
from pyspark.sql import SparkSession as Session
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from onceload_jobs.executor.spark import SPARK_ERRORS, message_of
from onceload_jobs.work.failures import SparkUnreachable
from onceload_jobs.work.spark.spark import Spark

_SETTINGS = {"spark.sql.session.timeZone": "UTC"}
#: About six seconds. By its own default, a client asks a server that is gone for ten minutes.
_ASKS_AGAIN = DefaultPolicy(max_retries=5, initial_backoff=100, backoff_multiplier=2.5, max_backoff=5000)
#: A session that the server has closed, because no load used it for long, cannot be opened again under its id.
_CLOSED = "SESSION_CLOSED"
# Otherwise it writes about forks.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


@contextmanager
def connected(pipeline: str, address: str, *, batch: str) -> Iterator[Spark]:
    """Use the session that all loads share at this address; it is not closed, and its workers stay."""
    # The error that follows says it.
    warnings.filterwarnings("ignore", r"\[RETRIES_EXCEEDED\]")
    for number in count():
        try:
            session = _session(address, number)
            break
        except SPARK_ERRORS as error:
            if _CLOSED not in str(error):
                raise SparkUnreachable(pipeline, without_secrets(address), message_of(error)) from error
    yield Spark(cast("Session", session), pipeline, batch=batch)


def _session(address: str, number: int) -> ConnectSession:
    session_id = uuid5(NAMESPACE_URL, f"onceload session {number}")
    base = address if "/;" in address else f"{address.removesuffix('/')}/"
    user = "" if ";user_id=" in base else ";user_id=onceload"
    session = ConnectSession.builder.remote(f"{base}{user};session_id={session_id}").create()
    session.client.set_retry_policies([_ASKS_AGAIN])
    for name, value in _SETTINGS.items():
        session.conf.set(name, value)
    return session


def without_secrets(address: str) -> str:
    """The server's address as a message shows it."""
    return address.partition(";")[0].removesuffix("/")


def worker_of(address: str) -> tuple[str, str]:
    """The versions of Python and of Onceload that run the tasks of a server; an error of Spark if none can."""
    with connected("doctor", address, batch="") as spark:
        row = spark.session.range(1).mapInArrow(_versions, "python string, onceload string").collect()[0]
    return row.python, row.onceload


def own_versions() -> tuple[str, str]:
    """The versions of this process."""
    found = ""
    with suppress(PackageNotFoundError):
        found = version("onceload")
    return platform.python_version(), found


def _versions(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        python, onceload = own_versions()
        yield pa.record_batch([pa.array([python]), pa.array([onceload])], names=["python", "onceload"])
