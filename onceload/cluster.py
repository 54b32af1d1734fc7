"""A Spark cluster on this machine: a master and workers, each a process of its own.

    make cluster        or: onceload cluster

Apart from the network it is like a cluster on many machines: loads need only the address of its master. Everything
listens on 127.0.0.1, and a process without the secret below the home folder is refused. A process that dies is
restarted; the master then recovers its applications and workers from a folder of its own.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

from onceload.parts import Parts
from onceload.services import HOST, alone, check_port, secret_in, write_secret
from onceload.stopping import asked_to_stop
from onceload.terminal import words

_STARTS_IN_S = 120.0
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"


@dataclass(frozen=True, kw_only=True)
class Running:
    """Addresses of a running cluster."""

    master: str
    #: The value of SPARK_CONF_DIR for processes that load there.
    conf: Path
    parts: Parts


@contextmanager
def running(home: Path, *, port: int, ui_port: int, workers: int) -> Iterator[Running]:
    """Start a cluster whose workers run one task at a time each, and stop it when the block ends."""
    folder = home.absolute() / "cluster"
    with alone(folder, "onceload cluster"):
        for each, option in ((port, "--port"), (ui_port, "--ui-port")):
            check_port(each, option)
        conf = _configured(folder)
        address = f"spark://{HOST}:{port}"
        parts = Parts(
            "Spark's",
            {
                "master": _master(HOST, port, ui_port),
                **{f"worker-{n + 1}": _worker(folder / f"worker-{n + 1}", HOST, address) for n in range(workers)},
            },
            logs=folder,
            environment=_environment(conf),
        )
        with parts.running():
            _wait_until_ready(f"http://{HOST}:{ui_port}/json/", parts, workers=workers)
            parts.are_ready.set()
            yield Running(master=address, conf=conf, parts=parts)


def run(home: Path, *, port: int, ui_port: int, workers: int) -> None:
    """Run until stopped, and print how to load there."""
    words("starting the Spark master and workers; this takes some seconds")
    with asked_to_stop() as stopped, running(home, port=port, ui_port=ui_port, workers=workers) as cluster:
        words(f"Spark:     {cluster.master}  ({workers} workers; web UI: http://{HOST}:{ui_port})")
        words(f"load:      SPARK_CONF_DIR={cluster.conf} onceload load FILE --master {cluster.master}")
        words(f"Airflow:   airflow connections add onceload_spark --conn-type spark --conn-host {cluster.master}")
        words("Ctrl-C stops everything")
        stopped.wait()
        words("stopping")


def _configured(folder: Path) -> Path:
    """Write the configuration of master, workers and drivers: a shared secret, and this machine alone."""
    conf = folder / "conf"
    conf.mkdir(mode=0o700, exist_ok=True)
    settings = {
        "spark.authenticate": "true",
        "spark.authenticate.secret": secret_in(folder / "secret"),
        "spark.deploy.recoveryDirectory": str(folder / "recovery"),
        "spark.deploy.recoveryMode": "FILESYSTEM",
        "spark.driver.bindAddress": HOST,
        "spark.driver.host": HOST,
        # The REST server would accept applications without the secret.
        "spark.master.rest.enabled": "false",
        "spark.ui.enabled": "false",
    }
    lines = "".join(f"{name} {value}\n" for name, value in settings.items())
    write_secret(conf / "spark-defaults.conf", lines)
    return conf


def _environment(conf: Path) -> Mapping[str, str]:
    # SPARK_LOCAL_IP also covers the web UIs.
    return {**os.environ, "SPARK_CONF_DIR": str(conf), "SPARK_LOCAL_IP": HOST}


def _spark_class() -> str:
    import pyspark

    return str(Path(pyspark.__file__).parent / "bin" / "spark-class")


def _master(host: str, port: int, ui_port: int) -> list[str]:
    return [_spark_class(), _MASTER, "--host", host, "--port", str(port), "--webui-port", str(ui_port)]


def _worker(folder: Path, host: str, master: str) -> list[str]:
    takes = ["--cores", "1", "--memory", "1g", "--work-dir", str(folder)]
    return [_spark_class(), _WORKER, "--host", host, "--webui-port", "0", *takes, master]


def _wait_until_ready(address: str, parts: Parts, *, workers: int) -> None:
    until = time.monotonic() + _STARTS_IN_S
    while time.monotonic() < until:
        parts.check()
        if _alive(address) == workers:
            return
        time.sleep(0.2)
    raise parts.not_started("master", f"its {workers} workers did not register within {_STARTS_IN_S:g} s")


def _alive(address: str) -> int:
    """The number of workers that the master knows."""
    try:
        with urlopen(address, timeout=5) as answer:  # noqa: S310 - our own address.
            return int(json.load(answer)["aliveworkers"])
    except (OSError, ValueError, KeyError):
        return 0
