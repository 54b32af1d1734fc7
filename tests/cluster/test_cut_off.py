"""A worker that is cut off from Postgres and comes back: its load ends in words, and the next loads the rest once."""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from onceload import cluster
from onceload.parts import Parts
from onceload_core.errors import ExitCode
from tests.cluster.test_cluster import ended, stand, write_numbers
from tests.ports import free_port
from tests.servers import execute, temporary_home
from tests.tcp_server import tcp_server
from tests.waiting import PATIENCE_S

ROWS = 1_000_000
PASSWORD = "a-password-of-a-test"

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(
        os.geteuid() != 0 or shutil.which("ip") is None, reason="only root may make networks, by the command ip"
    ),
]


#: A pair of machines of each run of this test has networks of its own, of those that lead nowhere else (RFC 3927).
NETWORK = f"169.254.{os.getpid() % 254 + 1}"


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Machine:
    """Another machine, as far as the network is concerned: one cable to Spark's master, and one to Postgres."""

    name: str
    spark: str
    spark_there: str
    postgres: str
    _cable: str

    @property
    def call(self):
        """What a command has to be called by to run there."""
        return [shutil.which("ip"), "netns", "exec", self.name]

    def cut(self):
        """All packets between it and Postgres get lost, and neither side gets an error."""
        ip("link", "set", self._cable, "down")

    def reconnect(self):
        ip("link", "set", self._cable, "up")


@contextmanager
def another_machine():
    name = f"oc{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        # A /30 for each cable.
        for number, cable in enumerate(("s", "p")):
            here, there = f"{name}{cable}", f"{name}{cable}t"
            ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
            ip("address", "add", f"{NETWORK}.{4 * number + 1}/30", "dev", here)
            ip("-n", name, "address", "add", f"{NETWORK}.{4 * number + 2}/30", "dev", there)
            ip("link", "set", here, "up")
            ip("-n", name, "link", "set", there, "up")
        yield Machine(name, f"{NETWORK}.1", f"{NETWORK}.2", f"{NETWORK}.5", f"{name}p")
    finally:
        # Its cables go with it.
        ip("netns", "delete", name)


@contextmanager
def spark_on_both(home, machine):
    """A master and a worker here, a worker there."""
    port, ui_port = free_port(), free_port()
    conf = home / "conf"
    conf.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"spark.driver.host {machine.spark}\nspark.driver.bindAddress {machine.spark}\nspark.ui.enabled false\n"
        "spark.authenticate true\nspark.authenticate.secret a-secret-of-a-test\nspark.master.rest.enabled false\n"
    )
    address = f"spark://{machine.spark}:{port}"
    commands = {
        "master": cluster._master(machine.spark, port, ui_port),
        "here": cluster._worker(home / "here", machine.spark, address),
        "there": [*machine.call, *cluster._worker(home / "there", machine.spark_there, address)],
    }
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    parts = Parts("Spark's", commands, logs=home, environment={**environment, "SPARK_CONF_DIR": str(conf)})
    with parts.running():
        cluster._wait_until_ready(f"http://127.0.0.1:{ui_port}/json/", parts, workers=2)
        yield address, conf


def test_a_load_whose_worker_is_cut_off_from_postgres_ends_in_words_and_the_next_one_repeats_nothing(tmp_path):
    write_numbers(tmp_path / "numbers.jsonl", range(ROWS))
    with (
        another_machine() as machine,
        temporary_home() as home,
        tcp_server(home, address=machine.postgres) as server,
        spark_on_both(home, machine) as (master, conf),
        stand(server, tmp_path, path=tmp_path / "numbers.jsonl", chunk_bytes=2**18) as here,
    ):
        execute(server, f"CREATE ROLE loads LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        database = here.dsn.rpartition("/")[2].partition("?")[0]
        # It notices within seconds, where three minutes are usual.
        there = f"postgresql://loads:{PASSWORD}@{machine.postgres}:5432/{database}?tcp_user_timeout=15000"
        here.environment |= {"SPARK_CONF_DIR": str(conf)}
        admin, here.dsn = here.dsn, there
        loading = here.load("--master", master)
        with ended(loading):
            here.dsn = admin
            # Its connections show which of the tasks are there.
            its_own = f"SELECT count(*) FROM pg_stat_activity WHERE client_addr = '{NETWORK}.6'"
            here.until(its_own, bool, loading)
            here.until("SELECT count(*) FROM onceload.ledger", lambda found: found >= 8, loading)
            machine.cut()
            _, why = loading.communicate(timeout=PATIENCE_S)
        machine.reconnect()
        here.dsn = there
        with ended(here.load("--master", master)) as again:
            _, why_again = again.communicate(timeout=PATIENCE_S)
        here.dsn = admin

        assert loading.returncode == ExitCode.CALL_AGAIN, why
        assert "the database" in why
        assert again.returncode == 0, why_again
        assert here.ask("SELECT count(*), count(DISTINCT n), max(n) FROM numbers") == [(ROWS, ROWS, ROWS - 1)]
        verified = [sys.executable, "-m", "onceload", "verify", str(here.file)]
        env = {**os.environ, "ONCELOAD_DSN": here.dsn}
        assert subprocess.run(verified, env=env, capture_output=True, check=False).returncode == 0
