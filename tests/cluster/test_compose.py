"""The compose file: docker-compose accepts it, and its commands, run as processes, load exactly once on its cluster."""

import os
import secrets
import shutil
import subprocess
import time
from base64 import urlsafe_b64encode
from pathlib import Path
from urllib.request import urlopen

import psycopg2
import pytest

from onceload.airflow_api import AirflowApi
from onceload.embedded import binaries
from onceload.parts import NotStarted, Parts
from tests.cluster.compose import EXAMPLE, FILE, ROOT, Here, asked_for, services, settings
from tests.dags.stand import check_success
from tests.servers import execute, temporary_home
from tests.tcp_server import address_of_our_own, tcp_server

PATIENCE_S = 300
SECRETS = (
    "POSTGRES_PASSWORD",
    "AIRFLOW_DB_PASSWORD",
    "LOADER_PASSWORD",
    "READER_PASSWORD",
    "AIRFLOW_PASSWORD",
    "AIRFLOW_SECRET",
    "AIRFLOW_JWT_SECRET",
    "SPARK_SECRET",
    "AIRFLOW_FERNET_KEY",
)
#: Those that run for as long as all of it does, in the order in which they are started.
LASTING = (
    "spark-master",
    "spark-worker-1",
    "spark-worker-2",
    "airflow-api-server",
    "airflow-scheduler",
    "airflow-dag-processor",
    "airflow-triggerer",
    "onceload-metrics",
)
PIPELINE = """\
pipeline: numbers
source: {path: "/landing/*.jsonl", format: jsonl, chunk_bytes: 65536}
columns: {n: bigint not null}
target: {table: public.numbers}
# Without it, a load as small as this one would not go to the cluster.
transform: SELECT n FROM records
"""


@pytest.fixture(scope="module")
def given():
    made = {name: secrets.token_hex(16) for name in (*SECRETS, "AWS_SECRET_ACCESS_KEY")}
    made["AIRFLOW_FERNET_KEY"] = urlsafe_b64encode(secrets.token_bytes(32)).decode()
    small = {"SPARK_WORKER_CORES": "1", "SPARK_WORKER_MEMORY": "1g"}
    return settings(**made, AWS_ACCESS_KEY_ID="key", **small)


def test_every_setting_is_explained_and_every_explained_one_is_asked_for():
    explained = {line.partition("=")[0] for line in EXAMPLE.read_text().splitlines() if line and line[0] != "#"}

    assert explained == asked_for()


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_starts_without(secret, given):
    with pytest.raises(AssertionError, match=f"{secret}: set it in"):
        services({**given, secret: ""})


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_docker_compose_accepts_the_file(given, tmp_path):
    file = tmp_path / "env"
    file.write_text("".join(f"{name}={value}\n" for name, value in given.items()))

    done = subprocess.run(
        ["docker-compose", "--env-file", str(file), "--file", str(FILE), "config", "--services"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert {*done.stdout.split()} == services(given).keys()


def test_every_service_has_bounds_a_health_check_and_nothing_open_to_others(given):
    for name, service in services(given).items():
        assert service["mem_limit"], name
        assert service["cpus"], name
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped")
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert "healthcheck" in service or name == "migrate"


def test_the_image_is_of_a_user_without_rights_and_takes_what_runs_alone():
    image = (ROOT / "Dockerfile").read_text()

    stages = [line for line in image.splitlines() if line.startswith("FROM")]
    assert len(stages) == 2
    assert all("@sha256:" in stage for stage in stages)
    assert image.index("USER onceload") < image.index("CMD")
    assert "--require-hashes" in image
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert "!tests" not in ignored


@pytest.fixture(scope="module")
def at_work(given):
    """All services but Postgres as the file says, as processes at an address of their own; Postgres is the embedded."""
    found = services(given)
    with temporary_home() as home:
        for folder in ("pipelines", "landing", "lasting", "logs"):
            (home / folder).mkdir()
        (home / "pipelines" / "numbers.yaml").write_text(PIPELINE.replace("/landing", f"{home}/landing"))
        # What its files say, at places of this test.
        shutil.copytree(ROOT / "compose", home / "compose")
        conf = home / "compose" / "spark" / "spark-defaults.conf"
        conf.write_text(conf.read_text().replace("/var/lib/onceload", str(home / "lasting")))
        here = Here(
            services=found,
            addresses={name: address_of_our_own() for name in found},
            folders={
                "/opt/onceload/compose": str(home / "compose"),
                "/var/lib/onceload": str(home / "lasting"),
                "/opt/onceload": str(ROOT),
                "/pipelines": str(home / "pipelines"),
                "/landing": str(home / "landing"),
            },
        )
        with tcp_server(home, address=here.addresses["postgres"]) as admin:
            prepare(admin, here, given)
            migrated = subprocess.run(here.command("migrate"), cwd=ROOT, capture_output=True, text=True, check=False)
            assert migrated.returncode == 0, migrated.stderr[-2000:]
            parts = Parts(
                "The file's",
                {name: here.command(name) for name in LASTING},
                logs=home / "logs",
                environment=dict(os.environ),
            )
            with parts.running():
                for name in LASTING:
                    try:
                        until(lambda name=name: here.is_well(name), parts)
                    except NotStarted as error:
                        raise AssertionError(Path(error.log).read_text()[-2000:]) from error
                yield here, home, admin.replace("/postgres?", "/warehouse?")
        check_no_secrets(home, given)


def check_no_secrets(home, given):
    """In no log of what has run, and in nothing that Spark keeps."""
    files = [path for folder in ("logs", "lasting") for path in (home / folder).rglob("*") if path.is_file()]
    kept = [path for path in files if path.name != "passwords.json"]

    assert [path for path in kept if path.name == "stderr"]
    for name in (*SECRETS, "AWS_SECRET_ACCESS_KEY"):
        assert [path for path in kept if given[name].encode() in path.read_bytes()] == [], name


def prepare(admin, here, given):
    """What the image of Postgres does when its data folder is made."""
    (socket,) = {part.partition("=")[2] for part in admin.partition("?")[2].split("&") if part.startswith("host=")}
    execute(admin, f"ALTER ROLE postgres PASSWORD '{given['POSTGRES_PASSWORD']}'")
    environment = here.environment("postgres") | {"PGHOST": socket.replace("%2F", "/")}
    environment["PATH"] = f"{binaries(18)}:{environment['PATH']}"
    subprocess.run(["bash", str(ROOT / "compose" / "databases.sh")], env=environment, check=True, capture_output=True)


def until(is_so, parts=None):
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if parts is not None:
            parts.check()
        assert time.monotonic() < deadline
        time.sleep(0.5)


@pytest.mark.long
def test_its_commands_run_as_processes_load_exactly_once_on_its_cluster(at_work, given):
    here, home, warehouse = at_work
    address, password = f"http://{here.addresses['airflow-api-server']}:8080", given["AIRFLOW_PASSWORD"]
    api = AirflowApi(address, "admin", password, patience_s=PATIENCE_S)
    (home / "landing" / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(20_000)))
    api.until_it_knows("ingest__numbers", "maintain")

    api.start("ingest__numbers", "first")
    check_success(api, "ingest__numbers", "first")
    again = api.run("ingest__numbers", "again")

    assert again["load"] == "skipped"
    assert execute(warehouse, "SELECT count(*), count(DISTINCT n) FROM numbers") == [(20_000, 20_000)]
    # Its executors had the rows, and not the driver's own machine.
    worked = [each for n in (1, 2) for each in (home / "lasting" / "work").glob("app-*/*/stderr")]
    assert worked
    assert any("Executor: Running task" in log.read_text() for log in worked)
    with urlopen(f"http://{here.addresses['onceload-metrics']}:9188/metrics", timeout=30) as answer:
        metrics = answer.read().decode()
    assert 'onceload_records_total{outcome="loaded",pipeline="numbers"} 20000.0' in metrics
    loader = f"postgresql://loader:{given['LOADER_PASSWORD']}@{here.addresses['postgres']}:5432/warehouse"
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        execute(loader, "UPDATE onceload.ledger SET loaded = 0")
