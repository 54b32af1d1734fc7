"""How a load gets to Spark, from the Airflow connection that names it: over Spark Connect, or by spark-submit.

Airflow's Spark provider is not used: it requires pyspark-client, which overwrites files of pyspark.
"""

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import quote

from airflow.providers.standard.hooks.subprocess import SubprocessHook
from airflow.sdk import Connection

import onceload
import onceload_jobs
from onceload.outcome import OUTCOME_FILE, Outcome, find_outcome
from onceload.settings import SPARK
from onceload_airflow.failures import unreported_failure
from onceload_airflow.versions import AirflowException, AirflowNotFoundException, find_connection
from onceload_core.errors import ExitCode, SettingRefused

SPARK_CONNECTION = "onceload_spark"

_PROGRAM = str(Path(onceload.__file__).with_name("__main__.py"))

#: Extras of the connection that have another name in Spark.
_SETTINGS = {
    "queue": "spark.yarn.queue",
    "namespace": "spark.kubernetes.namespace",
    "principal": "spark.kerberos.principal",
    "keytab": "spark.kerberos.keytab",
    "deploy-mode": "spark.submit.deployMode",
}
#: Types whose host may be the address of the master.
_WHOLE = ("spark", "generic")
_BINARY = "spark-binary"
#: The type that Airflow's Spark provider gives to a Spark Connect server, and the port that it has by default.
_CONNECT, _CONNECT_PORT = "spark_connect", 15002
#: An edited connection must not make a worker run another program.
_BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a load runs, and why, in words."""

    words: str
    #: The connection of a master, to which it is submitted.
    master: Connection | None = None
    #: The address of a Spark Connect server that a connection names; it may contain a token.
    server: str | None = field(default=None, repr=False)


def where_of(engine: str, conn_id: str) -> Where:
    """As with the database, the environment comes before the connection, unless the task names one."""
    is_named = conn_id != SPARK_CONNECTION
    if engine == "local":
        return Where(words="in processes of this worker (engine local)")
    if (address := os.environ.get(SPARK)) and not is_named:
        return Where(words=f"on the Spark at {address.partition(';')[0]} ({SPARK})")
    try:
        connection = find_connection(conn_id)
    except AirflowNotFoundException as error:
        if not is_named:
            return Where(words=f"on this worker, because neither {SPARK} nor connection {conn_id} names a Spark")
        # Retried, because Airflow gives the same error when it cannot look it up at the moment.
        raise AirflowException(
            f"connection {conn_id} (Spark) was not found in Airflow. Nothing was started. Create it: airflow "
            f"connections add {conn_id} --conn-type spark --conn-host 'local[*]'"
        ) from error
    if connection.conn_type == _CONNECT:
        return Where(words=f"on the Spark of connection {conn_id}", server=_connect_address(connection))
    return Where(words=f"by spark-submit to connection {conn_id}", master=connection)


def _connect_address(connection: Connection) -> str:
    """The address of a Spark Connect server, with its secrets."""
    host = (connection.host or "localhost").removeprefix("sc://").rstrip("/")
    values = {"user_id": connection.login, "token": connection.password}
    if str(connection.extra_dejson.get("use_ssl", "")).lower() == "true":
        values["use_ssl"] = "true"
    options = "".join(f";{name}={quote(value)}" for name, value in values.items() if value)
    return f"sc://{host}:{connection.port or _CONNECT_PORT}/{options}"


def run_submitted(
    connection: Connection,
    conf: Mapping[str, str],
    *,
    name: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
) -> Outcome:
    """Submit a command of Onceload, and read its result from its own file: Spark reports it only inside a sentence."""
    command = submit_command(connection, {**_own_conf(), **conf}, name=name, program=_PROGRAM, arguments=arguments)
    executors = os.environ.get("PYSPARK_PYTHON", sys.executable)
    python = {"PYSPARK_DRIVER_PYTHON": sys.executable, "PYSPARK_PYTHON": executors}
    with TemporaryDirectory(prefix="onceload-") as folder:
        file = Path(folder) / "outcome.json"
        # Passed only by inheritance: other ways end in arguments, and the address may contain a password.
        inherited = {**os.environ, **python, **environment, OUTCOME_FILE: str(file)}
        ended = SubprocessHook().run_command(command, env=inherited, cwd=str(Path.cwd()))
        outcome = find_outcome(file)
    if ended.exit_code == ExitCode.DONE:
        # A driver on another machine has no such file.
        return outcome or Outcome(exit_code=ExitCode.DONE)
    if outcome is None or outcome.exit_code is ExitCode.DONE:
        raise unreported_failure(exit_code=ended.exit_code, last_line=ended.output)
    return outcome


def _own_conf() -> Mapping[str, str]:
    quiet = Path(onceload_jobs.__path__[0], "log4j2.properties")
    return {
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={quiet.as_uri()} -XX:+UseParallelGC",
        "spark.ui.enabled": "false",
    }


def submit_command(
    connection: Connection, conf: Mapping[str, str], *, name: str, program: str, arguments: Sequence[str]
) -> list[str]:
    """The command for a program; the settings of a task replace those of the connection."""
    extra = {str(key): str(value) for key, value in connection.extra_dejson.items()}
    binary = _found(connection.conn_id, extra.pop(_BINARY, "spark-submit"))
    settings = {_setting(connection.conn_id, key): value for key, value in extra.items()} | {**conf}
    options = [option for key, value in settings.items() for option in ("--conf", f"{key}={value}")]
    return [binary, "--master", _master(connection), *options, "--name", name, program, *arguments]


def _master(connection: Connection) -> str:
    """A form has the whole address as the host; a URI such as spark://host:7077 has been taken apart."""
    host = connection.host or "yarn"
    is_whole = connection.conn_type in _WHOLE and ("://" in host or not connection.port)
    address = host if is_whole or host == "yarn" else f"{connection.conn_type}://{host}"
    return f"{address}:{connection.port}" if connection.port else address


def _setting(conn_id: str, key: str) -> str:
    if key in _SETTINGS or key.startswith("spark."):
        return _SETTINGS.get(key, key)
    expected = f"settings of Spark (spark.…), {', '.join(_SETTINGS)} or {_BINARY}"
    raise SettingRefused(f"connection {conn_id}, extra", key, expected)


def _found(conn_id: str, binary: str) -> str:
    """A program on the PATH, or the one that comes with pyspark: the PATH of a worker may lack its environment."""
    package = importlib.util.find_spec("pyspark")
    own = Path(package.origin).parent / "bin" if package and package.origin else Path()
    if binary not in _BINARIES:
        raise SettingRefused(f"connection {conn_id}, extra {_BINARY}", binary, f"one of {', '.join(_BINARIES)}")
    if path := shutil.which(binary) or shutil.which(binary, path=str(own)):
        return path
    raise SettingRefused(binary, "no such program on the PATH", "Spark on the worker: pip install 'onceload[spark]'")
