"""A Spark Connect server of this machine that stays: all loads share its session, and its workers answer at once.

    onceload spark start | stop | status

It listens on 127.0.0.1, and asks for a token that is below the home folder: its clients run code as its user.
"""

import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import psutil

from onceload.parts import NotStarted
from onceload.services import HOST, alone, check_port, write_secret

_STARTS_IN_S = 180.0
_ENDS_IN_S = 30.0
_LOOKS_EVERY_S = 0.2
_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
#: The daemon of its workers has imported what they need.
_DAEMON = "onceload_jobs.work.spark.daemon"
_LOGGING = "log4j2.properties"
_TURNS = "fairscheduler.xml"
#: If spark-submit finds them, it starts something else.
_REMOTES = frozenset({"SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_GATEWAY_PORT"})


@dataclass(frozen=True, kw_only=True)
class Resident:
    """A server that was started, and how to reach it."""

    pid: int
    #: Another process may have its number by now.
    created: float
    #: Without the token.
    address: str
    token: str
    #: The pages that show its jobs.
    ui: str
    version: str

    @property
    def remote(self) -> str:
        """The address for a client."""
        return f"{self.address}/;token={self.token}"


class Server:
    """A server below a home folder, and how it is started."""

    def __init__(self, home: Path, *, port: int, ui_port: int) -> None:
        import pyspark

        self._folder, self._port, self._ui_port = _folder(home), port, ui_port
        self._token = secrets.token_urlsafe(32)
        self._spark = Path(pyspark.__file__).parent
        self._folder.mkdir(parents=True, exist_ok=True)
        # Logs may contain values of records.
        self._folder.chmod(0o700)
        write_secret(self._conf, "".join(f"{name} {value}\n" for name, value in self._settings().items()))

    @property
    def _conf(self) -> Path:
        return self._folder / "server.conf"

    @property
    def log(self) -> Path:
        return self._folder / "server.log"

    @property
    def remote(self) -> str:
        """The address for a client."""
        return f"{self._address}/;token={self._token}"

    @property
    def _address(self) -> str:
        # Its own credentials of a local client are for this name only.
        return f"sc://localhost:{self._port}"

    @property
    def ui(self) -> str:
        """The pages that show its jobs."""
        return f"http://{HOST}:{self._ui_port}"

    @property
    def command(self) -> list[str]:
        program = str(self._spark / "bin" / "spark-submit")
        # Its class is in the jars of Spark.
        its_class = ["--class", _CLASS, "spark-internal"]
        return [program, "--properties-file", str(self._conf), "--name", "onceload", *its_class]

    @property
    def environment(self) -> Mapping[str, str]:
        """Only its user can read it, but all can read the arguments of a process."""
        ours = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": self._token, "SPARK_LOCAL_IP": HOST}
        ours["PYSPARK_PYTHON"] = sys.executable
        return {**{name: value for name, value in os.environ.items() if name not in _REMOTES}, **ours}

    def _settings(self) -> Mapping[str, str]:
        import onceload_jobs

        ours = Path(onceload_jobs.__file__).parent
        logging = (ours / _LOGGING).as_uri()
        return {
            "spark.master": "local[*,4]",
            "spark.connect.grpc.binding.address": HOST,
            "spark.connect.grpc.binding.port": str(self._port),
            # All loads share one session, and it stays.
            "spark.connect.session.manager.defaultSessionTimeout": "-1",
            "spark.driver.bindAddress": HOST,
            "spark.driver.host": HOST,
            "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging} -XX:+UseParallelGC",
            "spark.python.daemon.module": _DAEMON,
            # The tasks of loads that run at once take turns.
            "spark.scheduler.mode": "FAIR",
            "spark.scheduler.allocation.file": (ours / _TURNS).as_uri(),
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "true",
            # Other users of this machine may look.
            "spark.ui.killEnabled": "false",
            "spark.ui.port": str(self._ui_port),
        }

    def answers(self) -> bool:
        with closing(socket.socket()) as probe:
            return probe.connect_ex((HOST, self._port)) == 0

    def started_as(self, pid: int) -> Resident:
        """Write down that it is this process, so that loads and commands find it."""
        started = Resident(
            pid=pid,
            created=psutil.Process(pid).create_time(),
            address=self._address,
            token=self._token,
            ui=self.ui,
            version=version("pyspark"),
        )
        write_secret(_file(self._folder), json.dumps(asdict(started)))
        return started


def can_start() -> bool:
    """Whether Spark and Java are installed."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if os.environ.get("JAVA_HOME") else which("java")
    return find_spec("pyspark") is not None and java is not None and Path(java).exists()


def start(home: Path, *, port: int, ui_port: int) -> Resident:
    """The running server below this home folder, or a new one, which runs on after this process."""
    with alone(_folder(home), "onceload spark start"):
        if (there := running(home)) is not None:
            return there
        for each, option in ((port, "--port"), (ui_port, "--ui-port")):
            check_port(each, option)
        server = Server(home, port=port, ui_port=ui_port)
        pid = _spawn(server)
        _wait_until_it_answers(server, pid)
        return server.started_as(pid)


def running(home: Path) -> Resident | None:
    """The server below this home folder, if it runs."""
    with suppress(OSError, ValueError, TypeError):
        found = Resident(**json.loads(_file(_folder(home)).read_text()))
        if _process(found) is not None:
            return found
    return None


def stop(home: Path) -> Resident | None:
    """Stop the server and its workers; return it if it ran."""
    folder = _folder(home)
    if not folder.exists():
        return None
    with alone(folder, "onceload spark stop"):
        found = running(home)
        if found is not None and (process := _process(found)) is not None:
            _end([process, *process.children(recursive=True)])
        _file(folder).unlink(missing_ok=True)
        return found


def _folder(home: Path) -> Path:
    return home.absolute() / "spark"


def _file(folder: Path) -> Path:
    return folder / "server.json"


def _process(server: Resident) -> psutil.Process | None:
    with suppress(psutil.NoSuchProcess):
        process = psutil.Process(server.pid)
        if process.create_time() == server.created and process.status() != psutil.STATUS_ZOMBIE:
            return process
    return None


def _spawn(server: Server) -> int:
    """Start it in a session of its own, so that Ctrl-C in this terminal does not reach it."""
    with server.log.open("ab") as log:
        actions = (
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log.fileno(), 1),
            (os.POSIX_SPAWN_DUP2, log.fileno(), 2),
        )
        command = server.command
        return os.posix_spawn(command[0], command, server.environment, file_actions=actions, setsid=True)


def _wait_until_it_answers(server: Server, pid: int) -> None:
    until = time.monotonic() + _STARTS_IN_S
    while time.monotonic() < until:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise NotStarted("Spark", str(server.log), f"it ended with exit code {os.waitstatus_to_exitcode(status)}")
        if server.answers():
            return
        time.sleep(_LOOKS_EVERY_S)
    _end([psutil.Process(pid)])
    raise NotStarted("Spark", str(server.log), f"it did not answer within {_STARTS_IN_S:g} s")


def _end(processes: list[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGTERM)
    _, left = psutil.wait_procs(processes, timeout=_ENDS_IN_S)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=_ENDS_IN_S)
