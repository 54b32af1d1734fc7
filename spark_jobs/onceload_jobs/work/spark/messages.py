"""Errors of Spark, in one line."""

import re
from contextlib import suppress

from pyspark.errors import PySparkException

try:
    from py4j.protocol import Py4JError
except ImportError:
    # A client of Spark Connect has no JVM.
    Py4JError = PySparkException
try:
    from grpc import RpcError  # type: ignore[import-untyped]
except ImportError:
    RpcError = PySparkException

#: What a session of Spark may raise.
SPARK_ERRORS: tuple[type[Exception], ...] = (PySparkException, Py4JError, RpcError, OSError)

#: What an error of gRPC says is in one of its lines, and the others are about the call.
_DETAILS = re.compile(r'^\s*details = "(.+)"$', re.MULTILINE)


def message_of(error: Exception) -> str:
    """The error in one line: from the task's own traceback, or from Spark."""
    text = ""
    # Spark's errors ask its JVM for their text, and that may be gone.
    with suppress(*SPARK_ERRORS):
        text = str(error)
    if details := _DETAILS.search(text):
        return details[1]
    _, is_ours, trace = text.rpartition("Traceback (most recent call last):")
    lines = [line for line in trace.splitlines() if line.strip()]
    if is_ours:
        # Indented lines are the traceback.
        lines = [line for line in lines if not line[0].isspace()]
    elif isinstance(error, Py4JError):
        # The first line only names the call.
        lines = lines[1:] or lines
    return lines[0].strip(" :;") if lines else type(error).__name__


def sql_state_of(error: Exception) -> str:
    """The SQLSTATE of an error of Spark SQL, or empty."""
    with suppress(*SPARK_ERRORS):
        if isinstance(error, PySparkException):
            return error.getSqlState() or ""
    return ""
