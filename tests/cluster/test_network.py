"""A cluster whose machines share no folder, and whose network is slow and breaks: a load fails in words or finishes.

The master with a server of Spark Connect, two workers and the driver are machines of their own. Files are in an object
store, and rows wait there, or come with the results of tasks.
"""

import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

import pytest

from onceload import cluster
from onceload.parts import Parts
from tests.cluster.network import Machine, Switch, machines, needs_networks
from tests.cluster.test_cluster import Stand, ended, stand, write_numbers
from tests.object_store import ObjectStore, object_store
from tests.servers import execute, temporary_home
from tests.spark_pages import jobs_of
from tests.tcp_server import tcp_server
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.long(minutes=8), needs_networks]

ROWS = 400_000
PASSWORD, SECRET, TOKEN = "a-password-of-a-test", "a-secret-of-a-test", "a-token-of-a-test"
#: Room for two executors of the server of Spark Connect and two of a load: if one worker is cut off, Spark gives all of
#: them to the other, and keeps them there. With less room, a load would wait for cores that the server does not return.
ROOM = ["--cores", "4", "--memory", "4g"]
#: Spark notices within half a minute that an executor is gone, where two minutes are usual.
CONF = f"""\
spark.authenticate true
spark.authenticate.secret {SECRET}
spark.master.rest.enabled false
spark.network.timeout 30s
spark.network.timeoutInterval 5s
spark.executor.heartbeatInterval 5s
spark.rpc.askTimeout 120s
# As many for the server of Spark Connect as for a load in a session of its own.
spark.cores.max 2
spark.ui.port 4040
"""
CONNECT = "org.apache.spark.sql.connect.service.SparkConnectServer"


@dataclass(frozen=True, kw_only=True)
class Site:
    """The machines, and what runs on them."""

    switch: Switch
    master: Machine
    workers: list[Machine]
    driver: Machine
    server: str
    store: ObjectStore
    #: What processes of the driver's machine have.
    environment: dict[str, str]

    def driver_of(self, session: str) -> dict[str, str]:
        """The settings that lead a load into a session of its own, or into that of the server."""
        connect = f"sc://{self.master.address}:15002/;authorization=Bearer%20{TOKEN}"
        return {"ONCELOAD_SPARK": connect} if session == "connect" else {}

    def pages_of(self, session: str) -> str:
        return f"http://{(self.master if session == 'connect' else self.driver).address}:4040"

    def is_under_way(self, session: str) -> bool:
        """Whether some tasks of a load have ended, and others have not."""
        with suppress(OSError, ValueError):
            return any(
                job["status"] == "RUNNING" and job["numCompletedTasks"] > 1 and "numbers" in job.get("description", "")
                for job in jobs_of(self.pages_of(session))
            )
        return False

    def wait_until_whole(self) -> None:
        pages = f"http://{self.master.address}:8081/json/"
        until(lambda: cluster._alive(pages) == 2, "the master knows both workers", every_s=0.5)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    write_numbers(path := tmp_path_factory.mktemp("files") / "numbers.jsonl", range(ROWS))
    with ExitStack() as stack:
        home = stack.enter_context(temporary_home())
        switch, (master, *workers, driver) = stack.enter_context(machines(4))
        server = stack.enter_context(tcp_server(home, address=switch.here))
        execute(server, f"CREATE ROLE loads LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        store = stack.enter_context(object_store(home / "store.log", host=switch.here))
        for bucket in ("landing", "waiting"):
            store.files().mkdir(bucket)
        store.files().put(str(path), "landing/numbers.jsonl")
        (home / "driver").mkdir()
        (home / "conf").mkdir()
        (home / "conf" / "spark-defaults.conf").write_text(CONF)
        ours = {"PYSPARK_PYTHON": sys.executable, "SPARK_CONF_DIR": str(home / "conf")}
        stack.enter_context(_spark_on(home, master, workers, environment={**os.environ, **ours}))
        its_own = {**ours, **store.environment, "TMPDIR": str(home / "driver")}
        yield Site(
            switch=switch,
            master=master,
            workers=workers,
            driver=driver,
            server=server,
            store=store,
            environment=its_own,
        )


@contextmanager
def _spark_on(home, master, workers, *, environment):
    """A master and a server of Spark Connect on one machine; the workers do not see the driver's folder for rows."""
    address, pages = f"spark://{master.address}:7077", f"http://{master.address}"
    of_worker = [cluster._spark_class(), cluster._WORKER, *ROOM, "--webui-port", "0"]
    of_workers = {
        f"worker-{number}": worker.runs(
            [*of_worker, "--host", worker.address, "--work-dir", f"{home}/{number}", address], without=home / "driver"
        )
        for number, worker in enumerate(workers)
    }
    submit = cluster._spark_class().replace("spark-class", "spark-submit")
    binding = f"spark.connect.grpc.binding.address={master.address}"
    connect = [submit, "--master", address, "--conf", binding, "--class", CONNECT, "spark-internal"]
    parts = Parts(
        "Spark's",
        {
            "master": master.runs(cluster._master(master.address, 7077, 8081)),
            **of_workers,
            "connect": master.runs(connect),
        },
        logs=home,
        environment={**environment, "SPARK_CONNECT_AUTHENTICATE_TOKEN": TOKEN},
    )

    def answers():
        parts.check()
        with suppress(OSError, ValueError):
            return jobs_of(f"{pages}:4040") is not None
        return False

    with parts.running():
        cluster._wait_until_ready(f"{pages}:8081/json/", parts, workers=len(workers))
        until(answers, "the server of Spark Connect answers", every_s=0.5)
        yield


@pytest.fixture(params=["classic", "connect"])
def session(request):
    return request.param


@contextmanager
def stand_of(site, folder, **environment):
    """A database on this machine, and a pipeline that reads the store."""
    path = "s3://landing/numbers.jsonl"
    made = stand(site.server, folder, path=path, chunk_bytes=2**18, publish="staged", **site.store.environment)
    with made as here:
        database = here.dsn.rpartition("/")[2].partition("?")[0]
        there = f"postgresql://loads:{PASSWORD}@{site.switch.here}:5432/{database}?tcp_user_timeout=15000"
        yield here, {**os.environ, **site.environment, **environment, "ONCELOAD_DSN": there}


def load_from(machine, here, environment, *options):
    command = [sys.executable, "-m", "onceload", "load", str(here.file), "--json", *options]
    return subprocess.Popen(
        machine.runs(command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def check_whole(here: Stand) -> None:
    assert here.ask("SELECT count(*), count(DISTINCT n), min(n), max(n) FROM numbers") == [(ROWS, ROWS, 0, ROWS - 1)]
    verified = [sys.executable, "-m", "onceload", "verify", str(here.file)]
    env = {**os.environ, **here.environment, "ONCELOAD_DSN": here.dsn}
    done = subprocess.run(verified, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def engines_of(here: Stand) -> list[str]:
    return [engine for (engine,) in here.ask("SELECT DISTINCT split_part(engine, ' ', 1) FROM onceload.ledger")]


def check_words(loading: "subprocess.Popen[str]", why: str) -> None:
    """It ended well, or it says that the next load loads the rest."""
    assert loading.returncode in (0, 1), why
    assert "Traceback" not in why
    assert loading.returncode == 0 or "again" in why.splitlines()[-1]


def load_until_done(site, here, environment, *options):
    """The same command, as often as its exit code asks for it."""
    for _ in range(5):
        with ended(load_from(site.driver, here, environment, *options)) as loading:
            _, why = loading.communicate(timeout=PATIENCE_S)
        check_words(loading, why)
        if loading.returncode == 0:
            return
    raise AssertionError(why)


@pytest.mark.parametrize("stage", ["s3://waiting/rows", ""], ids=["store", "results"])
def test_a_worker_that_is_cut_off_in_a_slow_network_loses_nothing_and_repeats_nothing(site, tmp_path, session, stage):
    site.wait_until_whole()
    options = ["--master", f"spark://{site.master.address}:7077"] if session == "classic" else []
    with stand_of(site, tmp_path, **site.driver_of(session), ONCELOAD_STAGE=stage) as (here, environment):
        for worker in site.workers:
            worker.slow_down()
        with ended(load_from(site.driver, here, environment, *options)) as loading:
            until(lambda: site.is_under_way(session) or loading.poll() is not None, "some tasks have ended")
            assert loading.poll() is None, loading.communicate()
            site.workers[0].cut()
            try:
                _, why = loading.communicate(timeout=PATIENCE_S)
            finally:
                site.workers[0].reconnect()
        check_words(loading, why)

        load_until_done(site, here, environment, *options)

        check_whole(here)
        assert engines_of(here) == ["spark"]
        assert site.store.files().find("waiting") == []


def test_a_driver_that_is_cut_off_and_comes_back_repeats_nothing_of_the_load_that_took_over(site, tmp_path, session):
    site.wait_until_whole()
    options = ["--master", f"spark://{site.master.address}:7077"] if session == "classic" else []
    with stand_of(site, tmp_path, **site.driver_of(session)) as (here, environment):
        with ended(load_from(site.driver, here, environment, *options)) as loading:
            until(lambda: site.is_under_way(session) or loading.poll() is not None, "some tasks have ended")
            assert loading.poll() is None, loading.communicate()
            site.driver.cut()
            try:
                with ended(here.load("--engine", "local")) as other:
                    _, of_other = other.communicate(timeout=PATIENCE_S)
            finally:
                site.driver.reconnect()
            _, why = loading.communicate(timeout=PATIENCE_S)
        assert other.returncode == 0, of_other
        check_words(loading, why)

        load_until_done(site, here, environment, *options)

        check_whole(here)
        assert engines_of(here) == ["local"]
