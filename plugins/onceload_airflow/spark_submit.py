"""The command that starts a load in Spark, from the Airflow connection that names the Spark master.

Airflow's Spark provider is not used: it requires pyspark-client, which overwrites files of pyspark.
"""

import importlib.util
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from airflow.sdk import Connection

from onceload_core.errors import SettingRefused

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
#: An edited connection must not make a worker run another program.
_BINARIES = ("spark-submit", "spark2-submit", "spark3-submit")


def submit_command(
    connection: Connection, conf: Mapping[str, str], *, name: str, program: str, arguments: Sequence[str]
) -> list[str]:
    """The command for a program; the settings of a task replace those of the connection."""
    extra = {str(key): str(value) for key, value in connection.extra_dejson.items()}
    binary = _found(connection.conn_id, extra.pop(_BINARY, "spark-submit"))
    settings = {_setting(connection.conn_id, key): value for key, value in extra.items()} | {**conf}
    options = [option for key, value in settings.items() for option in ("--conf", f"{key}={value}")]
    return [binary, "--master", _master(connection), *options, "--name", name, program, *arguments]


def is_on_this_machine(connection: Connection) -> bool:
    """Whether all of Spark runs where it is submitted."""
    return _master(connection).startswith("local")


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
