"""Everything on one machine: an embedded Postgres, Airflow, a Spark that stays, and growing sample files.

    make run        or: onceload run

Airflow's own data is in a database of the same server. Everything is below the home folder, listens only on 127.0.0.1,
and ends with this process: a kernel lock on a file shows whether it runs, however it ended before.

A part or server that dies is restarted; the retry of a task that died with it fences what is left of the earlier try. A
part that hangs is restarted too: a scheduler that lost its database waits for its running tasks before it ends, and
these may wait for other tasks, which wait to be scheduled.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from urllib.request import urlopen

import psycopg2

from onceload import embedded, resident, schema
from onceload.parts import NotStarted, Parts
from onceload.samples import growing
from onceload.services import HOST, alone, check_port, free_port, secret_in, write_secret
from onceload.shipped import shipped
from onceload.stopping import asked_to_stop
from onceload.terminal import words
from onceload_core.errors import OnceloadError
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.connection import statements

SQL = statements("stack.sql", package=__package__)
_SAMPLE = "readings.yaml"
_USER = "admin"
_SPARK = "spark"
_NO_SPARK = "not installed (pip install 'onceload[spark]', and Java 17); loads run in processes of this machine"
_STARTS_IN_S = 180.0
#: A part without a heartbeat for this long counts as hung; this includes the time it needs to start.
_STALLS_AFTER_S = 120.0
_ASKS_EVERY_S = 5.0
#: The parts with heartbeats, and their names in Airflow's health report.
_BEATING = {"scheduler": "scheduler", "dag-processor": "dag_processor", "triggerer": "triggerer"}
#: The parts of Airflow in start order: each needs those before it.
_PARTS = ("api-server", "scheduler", "dag-processor", "triggerer")


@dataclass(frozen=True, kw_only=True)
class Running:
    """Addresses and logins of the running services."""

    address: str
    user: str
    password: str
    #: A new password is printed once; later it is only in the file.
    is_new: bool
    password_file: Path
    dsn: str
    #: The pages of Spark; None if it is not installed, so that loads run in processes of this machine.
    spark_ui: str | None


@contextmanager
def running(home: Path, *, port: int, pipelines: Path, samples: bool = True) -> Iterator[Running]:
    """Start everything, and stop everything when the block ends."""
    home = home.absolute()
    with ExitStack() as stack:
        stack.enter_context(alone(home, "onceload run"))
        check_port(port, "--port")
        dsn = stack.enter_context(embedded.running(home))
        _make_databases(dsn)
        airflow = home / "airflow"
        airflow.mkdir(exist_ok=True)
        # Logs contain values of records.
        airflow.chmod(0o700)
        password, is_new = _password(airflow / "passwords.json")
        environment = _environment(airflow, dsn, port=port, pipelines=pipelines.absolute(), home=home)
        _migrate(airflow, environment)
        spark, there = None, resident.running(home)
        if there is None and resident.can_start():
            spark = resident.Server(home, port=free_port(), ui_port=free_port())
        if (used := there or spark) is not None:
            environment["ONCELOAD_SPARK"] = used.remote
        parts = _Parts(home=home, airflow=airflow, environment=environment, port=port, spark=spark)
        stack.enter_context(parts.running())
        address = f"http://{HOST}:{port}"
        _wait_until_ready(address, parts)
        parts.are_ready.set()
        if samples:
            stack.enter_context(growing(home / "landing"))
        yield Running(
            address=address,
            user=_USER,
            password=password,
            is_new=is_new,
            password_file=airflow / "passwords.json",
            dsn=dsn,
            spark_ui=used.ui if used is not None else None,
        )


def run(home: Path, *, port: int, pipelines: Path) -> None:
    """Run until stopped, and print addresses and logins."""
    words("starting Postgres, Airflow and Spark; this takes about a minute")
    if not pipelines.exists():
        _make_sample(pipelines)
        words(f"pipelines: {pipelines} did not exist, and was created with a sample")
    samples = (pipelines / _SAMPLE).exists()
    with asked_to_stop() as stopped, running(home, port=port, pipelines=pipelines, samples=samples) as all_of_it:
        login = f"password {all_of_it.password}" if all_of_it.is_new else f"password in {all_of_it.password_file}"
        words(f"Airflow:   {all_of_it.address}  (user {all_of_it.user}, {login})")
        words(f"Console:   {all_of_it.address}/plugin/onceload")
        words(f"Spark:     {all_of_it.spark_ui or _NO_SPARK}")
        words(f"Postgres:  ONCELOAD_DSN='{all_of_it.dsn}'")
        if samples:
            words(f"samples:   {home / 'landing'} grows every second; {pipelines / _SAMPLE} loads it every minute")
        words("Ctrl-C stops everything")
        stopped.wait()
        words("stopping")


def _make_sample(pipelines: Path) -> None:
    for name in (_SAMPLE, f"quality/{_SAMPLE}"):
        (pipelines / name).parent.mkdir(parents=True)
        shutil.copyfile(shipped("pipelines") / name, pipelines / name)


def _make_databases(dsn: str) -> None:
    engine = connect(LedgerSettings(dsn=dsn))
    try:
        schema.upgrade(engine)
    finally:
        engine.dispose()
    with closing(psycopg2.connect(dsn)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(SQL["find_airflow"].text)
            if cursor.fetchone() is None:
                cursor.execute(SQL["create_airflow"].text)


def _password(file: Path) -> tuple[str, bool]:
    """Read or create Airflow's password, in a file that only its owner can read."""
    if file.exists():
        return str(json.loads(file.read_text(encoding="utf-8"))[_USER]), False
    password = secrets.token_urlsafe(12)
    write_secret(file, json.dumps({_USER: password}))
    return password, True


def _environment(airflow: Path, dsn: str, *, port: int, pipelines: Path, home: Path) -> dict[str, str]:
    metadata = dsn.replace("/postgres?", "/airflow?")
    bundle = {
        "name": "pipelines",
        "classpath": "onceload_airflow.bundle.PipelinesBundle",
        "kwargs": {"pipelines": str(pipelines)},
    }
    by_hand = {"name": "recovery", "classpath": "onceload_airflow.bundle.RecoveryBundle", "kwargs": {}}
    settings = {
        "AIRFLOW_HOME": str(airflow),
        "AIRFLOW__API__BASE_URL": f"http://{HOST}:{port}",
        "AIRFLOW__API_HOST": HOST,
        "AIRFLOW__API__SECRET_KEY": secret_in(airflow / "api.secret"),
        "AIRFLOW__API_AUTH__JWT_SECRET": secret_in(airflow / "jwt.secret"),
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(shipped("dags")),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{HOST}:{port}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        # Base64 of 32 bytes ends with one "=".
        "AIRFLOW__CORE__FERNET_KEY": secret_in(airflow / "fernet.secret") + "=",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "4",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(airflow / "passwords.json"),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{_USER}:admin",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle, by_hand]),
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(airflow / "bundles"),
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": metadata.replace("postgresql://", "postgresql+psycopg2://"),
        "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(airflow / "logs"),
        "AIRFLOW__SCHEDULER__ENABLE_HEALTH_CHECK": "False",
        # Up to this long passes before each task of a run.
        "AIRFLOW__SCHEDULER__SCHEDULER_IDLE_SLEEP_TIME": "0.25",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "ONCELOAD_DSN": dsn,
        "ONCELOAD_PIPELINES": str(pipelines),
        "ONCELOAD_HOME": str(home),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    return {**os.environ, **settings}


def _migrate(airflow: Path, environment: Mapping[str, str]) -> None:
    log = airflow / "migrate.log"
    with log.open("w") as output:
        command = [sys.executable, "-m", "airflow", "db", "migrate"]
        if subprocess.run(command, env=environment, stdout=output, stderr=output, check=False).returncode:
            raise NotStarted("Airflow's db migrate", str(log), "it could not create its database")


class _Parts(Parts):
    """The parts of Airflow, Spark, and the Postgres server that they need."""

    def __init__(
        self, *, home: Path, airflow: Path, environment: Mapping[str, str], port: int, spark: resident.Server | None
    ) -> None:
        commands = {part: [*_program(part), part, *_options(part, port=port)] for part in _PARTS}
        super().__init__(
            "Airflow's",
            {**({_SPARK: spark.command} if spark is not None else {}), **commands},
            logs=airflow,
            environment=environment,
        )
        self._home, self._address, self._spark = home, f"http://{HOST}:{port}", spark
        #: When each was last healthy, or was started.
        self._well_at: dict[str, float] = {}
        self._ask_at = 0.0

    def name_of(self, part: str) -> str:
        return "Spark" if part == _SPARK else super().name_of(part)

    def log_of(self, part: str) -> Path:
        return self._spark.log if part == _SPARK and self._spark is not None else super().log_of(part)

    def environment_of(self, part: str) -> Mapping[str, str]:
        return self._spark.environment if part == _SPARK and self._spark is not None else super().environment_of(part)

    def start(self, part: str) -> None:
        self._well_at[part] = time.monotonic()
        super().start(part)
        if part == _SPARK and self._spark is not None:
            self._spark.started_as(self.processes[part].pid)

    @property
    def is_spark_ready(self) -> bool:
        return self._spark is None or self._spark.answers()

    def look(self) -> None:
        if not embedded.is_running(self._home) and self.may_start("postgres"):
            words("Postgres has ended, and is restarted")
            # It keeps running, because this process uses it too.
            with suppress(OnceloadError), embedded.running(self._home):
                pass
        if time.monotonic() >= self._ask_at:
            self._well_at.update(dict.fromkeys(_well(self._address), time.monotonic()))
            self._ask_at = time.monotonic() + _ASKS_EVERY_S

    def fault_of(self, part: str) -> str | None:
        silent_s = time.monotonic() - self._well_at[part]
        is_silent = part != _SPARK and silent_s > _STALLS_AFTER_S
        stalls = f"has had no heartbeat for {silent_s:.0f} s" if is_silent else None
        return super().fault_of(part) or stalls


def _program(part: str) -> list[str]:
    is_forking = part in ("scheduler", "dag-processor")
    return [sys.executable, "-m", "onceload_airflow.preloaded" if is_forking else "airflow"]


def _options(part: str, *, port: int) -> list[str]:
    match part:
        case "api-server":
            return ["--host", HOST, "--port", str(port), "--workers", "1"]
        case "scheduler" | "triggerer":
            # Log servers would listen on the whole network; the API server reads the files itself.
            return ["--skip-serve-logs"]
        case _:
            return []


def _wait_until_ready(address: str, parts: _Parts) -> None:
    until = time.monotonic() + _STARTS_IN_S
    while time.monotonic() < until:
        parts.check()
        if _well(address) == set(_PARTS) and parts.is_spark_ready:
            return
        time.sleep(0.5)
    raise parts.not_started("api-server", f"it did not answer within {_STARTS_IN_S:g} s")


def _well(address: str) -> set[str]:
    """The healthy parts; none if the API server does not answer."""
    try:
        with urlopen(f"{address}/api/v2/monitor/health", timeout=5) as answer:  # noqa: S310 - our own address.
            health = json.load(answer)
        return {"api-server", *(part for part, name in _BEATING.items() if health[name]["status"] == "healthy")}
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        # A server that is killed while it answers sends half a document.
        return set()
