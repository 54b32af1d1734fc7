"""A session of Spark in this process, with a JVM of its own: for one machine, or for a master of a cluster.

It is started with our Python and options. Ctrl-C waits until its JVM can be stopped.
"""

import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from onceload_core.errors import SettingRefused
from onceload_jobs.executor.spark import message_of
from onceload_jobs.work.failures import FAILURES_MAX, SparkRefused, TasksFailed
from onceload_jobs.work.spark.spark import Spark

_STOPPED = "Spark stopped (see the lines above). The master of a cluster might be unreachable, or use another secret"
#: Set by spark-submit for the program that it runs.
_LAUNCHED = "PYSPARK_GATEWAY_PORT"
_LOGGING = Path(__file__).parents[2] / "log4j2.properties"
_OPTIONS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Pauses of the JVM do not matter, so use the collector with the least work.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()} -XX:+UseParallelGC",
}
_LOCAL_OPTIONS = {
    "spark.ui.enabled": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
#: What Spark raises about an option.
_REFUSALS = frozenset(
    {
        "java.lang.IllegalArgumentException",
        "java.lang.NumberFormatException",
        "org.apache.spark.SparkIllegalArgumentException",
        "org.apache.spark.SparkNumberFormatException",
    }
)


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
        if running := _running_spark(master, options):
            yield cls(running, name, batch=batch)
            return
        try:
            context = start_spark(name, master, options, tries=tries)
        except (PySparkException, Py4JError, OSError) as error:
            reason = message_of(error).rstrip(".")
            if _is_refusal(error):
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


def _running_spark(master: str | None, options: Mapping[str, str]) -> SparkContext | None:
    """The Spark that the program which calls us has started, as there is only one in a process."""
    context = SparkContext._active_spark_context  # noqa: SLF001 - Python has no public API for this.
    if context is None:
        return None
    theirs = str(context.master)
    found = f"a session with master {theirs} that runs in this process"
    if theirs != master and not (master is None and theirs.startswith("local")):
        raise SettingRefused("Spark", found, f"master={theirs!r}, or a process without that session")
    if options:
        raise SettingRefused("Spark", found, "no spark_options (Spark takes them at its start)")
    return context


def start_spark(name: str, master: str | None, options: Mapping[str, str], *, tries: int) -> SparkContext:
    """Start Spark for one load; given options override ours."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # A delivery that kills its worker must use up its tries before Spark gives up its session.
    failures_max = FAILURES_MAX + tries
    ours = _OPTIONS | {"spark.task.maxFailures": str(failures_max)}
    if is_submitted := _LAUNCHED in os.environ:
        # The JVM knows the options that spark-submit was started with.
        with _signals_wait():
            SparkContext._ensure_initialized()  # noqa: SLF001 - a configuration without it knows nothing.
        master = master or SparkConf().get("spark.master")
    conf = SparkConf().setAppName(f"onceload {name}")
    ours |= {} if master and not master.startswith("local") else _LOCAL_OPTIONS
    if master is None or (is_submitted and master.startswith("local[") and "," not in master):
        # By default, the local scheduler gives up a task at its first failure.
        master = f"{(master or 'local[*]').removesuffix(']')},{failures_max}]"
    conf.setMaster(master).setAll(list((ours | dict(options)).items()))
    # All users of this machine can see the command line of the JVM.
    with _signals_wait():
        SparkContext._ensure_initialized(conf=conf)  # noqa: SLF001 - a context would start it with all that it is given.
    # Masters and workers read the cluster secret from the environment, a driver only from its settings.
    if secret := os.environ.get("_SPARK_AUTH_SECRET"):
        conf.set("spark.authenticate.secret", secret)
    context = SparkContext.getOrCreate(conf)
    context.setLogLevel("ERROR")
    return context


def _is_refusal(error: Exception) -> bool:
    """Whether Spark refuses its options or this Java, which the next try would meet too.

    A JVM that was killed, that cannot get its ports, or that no longer answers is none.
    """
    if isinstance(error, Py4JJavaError):
        with suppress(Py4JError, OSError):
            name, reason = str(error.java_exception.getClass().getName()), str(error.java_exception.getMessage())
            # The same exception also reports an application that a cluster has ended.
            return name in _REFUSALS or (name == "org.apache.spark.SparkException" and "aster URL" in reason)
        return False
    # From 128 on, a shell adds the number of the signal that killed its program.
    return 0 < _exit_code(error) < 128


def _exit_code(error: Exception) -> int:
    """The exit code of a JVM that ended at its start: negative if it was killed, 0 if it did not end."""
    # Python has no public API for this, and PySpark's error does not contain it.
    frames = traceback.walk_tb(error.__traceback__)
    found = (frame.f_locals.get("proc") for frame, _ in frames if frame.f_code.co_name == "launch_gateway")
    return next((process.returncode or 0 for process in found if process), 0)


@contextmanager
def _signals_wait() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP while the JVM starts: otherwise PySpark would leave it running."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: came.append(number))
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
