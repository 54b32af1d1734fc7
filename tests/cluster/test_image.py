"""The image, built without Docker, and the commands of the compose file in it, loading exactly once on its cluster."""

import json
import os
import re
import shutil
import subprocess
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import psycopg2
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from onceload.airflow_api import AirflowApi
from onceload.embedded import binaries
from onceload.parts import NotStarted, Parts
from onceload_jobs.work.failures import SparkUnreachable
from onceload_jobs.work.spark.connect import worker_of
from tests.cluster import image as images
from tests.cluster.compose import ROOT, SECRETS, Here, binds, made_up, services
from tests.dags.stand import check_success
from tests.servers import execute, temporary_home
from tests.spark_pages import jobs_of
from tests.tcp_server import address_of_our_own, tcp_server
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long(minutes=6)

#: Without the cache of packages and the tools that build.
IMAGE_MB_MAX = 1200
#: Any user may write there, in any Debian.
FOR_ALL = {"/tmp", "/var/tmp", "/run/lock"}
#: Those that run for as long as all of it does, in the order in which they are started.
LASTING = (
    "spark-master",
    "spark-worker-1",
    "spark-worker-2",
    "spark-connect",
    "airflow-api-server",
    "airflow-scheduler",
    "airflow-dag-processor",
    "airflow-triggerer",
    "onceload-metrics",
)
PIPELINE = """\
pipeline: {name}
source: {{path: "/landing/*.jsonl", format: jsonl, chunk_bytes: 65536}}
columns: {{n: bigint not null}}
target: {{table: public.{name}}}
"""
#: One by our code alone, one by Spark SQL too.
PIPELINES = {"numbers": "", "squares": "transform: SELECT n * n AS n FROM records\n"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The image, or why it cannot be built here."""
    if reason := images.why_not():
        yield reason
        return
    folder = tmp_path_factory.mktemp("image")
    yield images.build(folder)
    assert str(folder) not in Path("/proc/self/mounts").read_text("utf-8")
    # Several GB.
    shutil.rmtree(folder)


@pytest.fixture
def image(built):
    if isinstance(built, str):
        pytest.skip(built)
    return built


def test_it_is_small(image):
    assert image.megabytes < IMAGE_MB_MAX


def test_it_says_what_is_in_it(image):
    said = (image.root / "opt/onceload/sbom.cdx.json").read_text("utf-8")
    asked = "import importlib.metadata as m; print(*(f'{d.name}=={d.version}' for d in m.distributions()))"
    installed = {re.sub(r"[-_.]+", "-", each).lower() for each in image.run("python", "-c", asked).split()}

    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(said) is None
    listed = [(each["purl"][:8], f"{each['name']}=={each['version']}") for each in json.loads(said)["components"]]
    of_python = {re.sub(r"[-_.]+", "-", each).lower() for kind, each in listed if kind == "pkg:pypi"}
    of_debian = {each for kind, each in listed if kind == "pkg:deb/"}
    assert installed - of_python == {"onceload==0-1-0"}
    # Some are for other versions of Python, or for other machines.
    assert len(of_python - installed) < 15
    assert of_debian == {*image.run("dpkg-query", "--show", "--showformat", "${Package}==${Version} ").split()}


def test_its_user_can_write_to_its_home_alone(image):
    # Folders that it cannot read are errors of find.
    found = image.run("sh", "-c", "find / -xdev -writable -not -type l -not -path '/proc/*' || true").split()

    assert image.home in found
    # What the services of other tests have left is below one of them too.
    below = tuple(f"{folder}/" for folder in (image.home, *FOR_ALL))
    assert [each for each in found if not f"{each}/".startswith(below)] == []


def test_its_checks_pass_but_for_the_database(image):
    done = subprocess.run(
        image.inside(["onceload", "doctor", "--json"], environment={"ONCELOAD_DSN": "postgresql://127.0.0.1:1/none"}),
        capture_output=True,
        text=True,
        check=False,
    )

    checks = {each["name"]: each["healthy"] for each in json.loads(done.stdout)["checks"]}
    assert checks == {"python": True, "java": True, "pyspark": True, "disk": True, "database": False}


@pytest.fixture(scope="module")
def at_work(built):
    """All services but Postgres as the file says, as processes at an address of their own; Postgres is the embedded.

    Their files are those of the image. Where it cannot be built, they are those of this machine.
    """
    with temporary_home() as home:
        for folder in ("pipelines", "landing", "lasting", "logs"):
            (home / folder).mkdir()
        given = made_up(PIPELINES=str(home / "pipelines"), LANDING=str(home / "landing"))
        found = services(given)
        here = _beside(found, home) if isinstance(built, str) else _inside(built, found, home)
        landing = here.folders.get("/landing", "/landing")
        for name, transform in PIPELINES.items():
            text = PIPELINE.format(name=name).replace("/landing", landing) + transform
            (home / "pipelines" / f"{name}.yaml").write_text(text)
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
                        is_up = partial(is_well, here, name, parts)
                        until(is_up, f"{name} is well", every_s=0.5)
                    except NotStarted as error:
                        raise AssertionError(Path(error.log).read_text()[-2000:]) from error
                yield here, home, admin.replace("/postgres?", "/warehouse?"), given
        check_no_secrets(home, given)


def _inside(image, found, home):
    bound = {name: binds(service, name, image, home / "lasting") for name, service in found.items()}
    for each in (bind for name in ("migrate", *LASTING) for bind in bound[name]):
        image.make_place(each)
    return Here(services=found, addresses={name: address_of_our_own() for name in found}, image=image, binds=bound)


def _beside(found, home):
    # What its files say, at places of this test.
    shutil.copytree(ROOT / "compose", home / "compose")
    (home / "lasting" / "stage").mkdir()
    conf = home / "compose" / "spark" / "spark-defaults.conf"
    conf.write_text(conf.read_text().replace("/var/lib/onceload", str(home / "lasting")))
    return Here(
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
    environment["PATH"] = f"{binaries(18)}:{os.environ['PATH']}"
    subprocess.run(["bash", str(ROOT / "compose" / "databases.sh")], env=environment, check=True, capture_output=True)


def is_well(here, name, parts):
    parts.check()
    return here.is_well(name)


def test_the_commands_of_the_compose_file_load_exactly_once_on_its_cluster(at_work):
    here, home, warehouse, given = at_work
    address, password = f"http://{here.addresses['airflow-api-server']}:8080", given["AIRFLOW_PASSWORD"]
    api = AirflowApi(address, "admin", password, patience_s=PATIENCE_S)
    (home / "landing" / "a.jsonl").write_text("".join(f'{{"n": {n}}}\n' for n in range(20_000)))
    api.until_it_knows(*(f"ingest__{name}" for name in PIPELINES), "maintain")

    for name in PIPELINES:
        api.start(f"ingest__{name}", "first")
    for name in PIPELINES:
        check_success(api, f"ingest__{name}", "first")
        assert execute(warehouse, f"SELECT count(*), count(DISTINCT n) FROM {name}") == [(20_000, 20_000)]
    again = api.run("ingest__numbers", "again")

    assert again["load"] == "skipped"
    engine = f"spark (ONCELOAD_SPARK sc://{here.addresses['spark-connect']}:15002)"
    link = here.environment("airflow-scheduler")["ONCELOAD_SPARK_UI"]
    assert execute(warehouse, "SELECT DISTINCT engine, spark_ui FROM onceload.ledger") == [(engine, link)]
    jobs = [str(job.get("description")) for job in jobs_of(f"http://{here.addresses['spark-connect']}:4040")]
    assert all(any(name in job for job in jobs) for name in PIPELINES)
    with pytest.raises(SparkUnreachable, match="Invalid authentication token"):
        worker_of(f"sc://{here.addresses['spark-connect']}:15002/;authorization=Bearer%20wrong")
    # Its executors had the rows, and not the driver's own machine.
    worked = [*(home / "lasting").glob("**/work/app-*/*/stderr")]
    assert worked
    assert any("Executor: Running task" in log.read_text() for log in worked)
    with urlopen(f"http://{here.addresses['onceload-metrics']}:9188/metrics", timeout=PATIENCE_S) as answer:
        metrics = answer.read().decode()
    assert 'onceload_records_total{outcome="loaded",pipeline="numbers"} 20000.0' in metrics
    loader = f"postgresql://loader:{given['LOADER_PASSWORD']}@{here.addresses['postgres']}:5432/warehouse"
    with pytest.raises(psycopg2.errors.InsufficientPrivilege):
        execute(loader, "UPDATE onceload.ledger SET loaded = 0")
