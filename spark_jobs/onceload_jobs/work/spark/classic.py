"""A session of Spark in this process, with a JVM of its own: for one machine, or for a master of a cluster."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onceload_jobs.work.failures import SparkRefused, TasksFailed
from onceload_jobs.work.spark.messages import message_of
from onceload_jobs.work.spark.spark import Spark
from onceload_jobs.work.spark.start import is_refusal, running_spark, start_spark

_STOPPED = "Spark stopped (see the lines above). The master of a cluster might be unreachable, or use another secret"


class ClassicSpark(Spark):
    def __init__(self, context: SparkContext, pipeline: str, *, batch: str) -> None:
        super().__init__(SparkSession(context), pipeline, batch=batch)
        self._context = context

    @classmethod
    @contextmanager
    def started(
        cls, name: str, master: str | None, options: Mapping[str, str], *, batch: str = "", tries: int = 0
    ) -> "Iterator[ClassicSpark]":
        """Start Spark for one load; it retries a task at least as often as a delivery that kills it.

        A Spark that runs in this process already is used as it is, and not stopped.
        """
        if running := running_spark(master, options):
            yield cls(running, name, batch=batch)
            return
        try:
            context = start_spark(name, master, options, tries=tries)
        except (PySparkException, Py4JError, OSError) as error:
            reason = message_of(error).rstrip(".")
            if is_refusal(error):
                raise SparkRefused(name, reason) from error
            raise TasksFailed(name, f"Spark did not start: {reason}") from error
        try:
            yield cls._of_started(context, name, batch=batch)
        finally:
            # If Spark itself died, there is nothing to stop.
            with suppress(Py4JError, OSError):
                context.stop()

    @classmethod
    def _of_started(cls, context: SparkContext, name: str, *, batch: str) -> "ClassicSpark":
        try:
            return cls(context, name, batch=batch)
        except (PySparkException, Py4JError) as error:
            reason = _STOPPED if _is_stopped(context) else message_of(error).rstrip(".")
            raise TasksFailed(name, f"Spark did not start: {reason}") from error

    @property
    def ui(self) -> str | None:
        return self._context.uiWebUrl

    def why(self, error: Exception) -> str:
        """A stopped context fails at the next call, with an error about that call only."""
        return f"Spark did not run all tasks: {_STOPPED}" if _is_stopped(self._context) else super().why(error)


def _is_stopped(context: SparkContext) -> bool:
    """Whether the JVM still answers, but its Spark is stopped."""
    try:
        _ = context.defaultParallelism
    except (PySparkException, Py4JJavaError):
        return True
    except (Py4JError, OSError):
        return False
    return False
