"""A session of a Spark Connect server, which all loads of its users share: their workers stay, and answer at once."""

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import cast
from uuid import NAMESPACE_URL, uuid5

from pyspark.sql import SparkSession as Session
from pyspark.sql.connect.client.retries import DefaultPolicy
from pyspark.sql.connect.session import SparkSession as ConnectSession

from onceload_jobs.work.failures import SparkUnreachable
from onceload_jobs.work.spark.messages import SPARK_ERRORS, message_of
from onceload_jobs.work.spark.spark import Spark

_SETTINGS = {"spark.sql.session.timeZone": "UTC"}
#: About six seconds. By its own default, a client asks a server that is gone for ten minutes.
_ASKS_AGAIN = DefaultPolicy(max_retries=5, initial_backoff=100, backoff_multiplier=2.5, max_backoff=5000)
#: A session that the server has closed, because no load used it for long, cannot be opened again under its id.
_CLOSED = "SESSION_CLOSED"


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


# Otherwise it writes about forks.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


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
