"""The built wheel, installed with plain pip into empty environments.

A light core on each version of Python, all extras on the newest, and an Airflow that was there before.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.handbook import tutorial
from tests.ports import free_port
from tests.servers import execute
from tests.waiting import until

pytestmark = pytest.mark.long(minutes=5)

_ROOT = Path(__file__).resolve().parents[2]
_TOP = {"onceload", "onceload_airflow", "onceload_core", "onceload_jobs"}
#: The aim for a light install, without pip itself.
_CORE_MB_MAX = 350
_PIPELINE = """\
pipeline: {name}
source: {{path: "{path}", format: jsonl}}
columns: {{id: bigint not null}}
target: {{table: public.{name}}}
"""
_SUITE = "expectations: [{type: expect_column_values_to_not_be_null, kwargs: {column: id}}]"
_INSTALL = ("pip", "install", "--quiet", "--disable-pip-version-check")
#: The first release that is supported, with providers of its time. With the libraries of today, it runs no task.
_FIRST_AIRFLOW = (
    "apache-airflow==3.1.0",
    "apache-airflow-providers-common-compat==1.7.4",
    "apache-airflow-providers-postgres==6.3.0",
    "apache-airflow-providers-standard==1.9.0",
    "structlog==25.4.0",
)
_OLDEST_AIRFLOW = ("apache-airflow==3.1.*", "apache-airflow-providers-postgres")
_DAG_OF_OTHERS = """\
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG

with DAG("theirs"):
    EmptyOperator(task_id="nothing")
"""
_FRAMES = """
from datetime import date
from decimal import Decimal
import onceload, polars

columns = {"name": "text", "kind": "text", "tags": "text[]", "paid": "numeric(12,2)", "day": "date", "inside": "jsonb"}
frame = polars.DataFrame({
    "name": ["Ada", None],
    "kind": polars.Series(["x", "y"], dtype=polars.Categorical),
    "tags": [["a"], []],
    "paid": [Decimal("1.50"), None],
    "day": [date(2026, 1, 1), None],
    "inside": [{"n": 1}, {"n": 2}],
})
for name, rows in (("polars", frame), ("pandas", frame.to_pandas())):
    target = {"table": f"public.of_{name}"}
    pipeline = onceload.Pipeline.of({"pipeline": name, "columns": columns, "target": target})
    one, two = (pipeline.load_rows(rows, producer="us", first_id=0) for _ in range(2))
    print(name, one.loaded, one.quarantined, two.loaded, two.duplicates)
"""
_BUNDLES = {
    "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": """[
  {"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}},
  {"name": "pipelines", "classpath": "onceload_airflow.bundle.PipelinesBundle", "kwargs": {"pipelines": "pipelines"}},
  {"name": "recovery", "classpath": "onceload_airflow.bundle.RecoveryBundle", "kwargs": {}}
]"""
}


@pytest.fixture(scope="module")
def dist(tmp_path_factory):
    """What `make dist` builds; the environment is there already."""
    dist = tmp_path_factory.mktemp("dist")
    _run(["make", "--old-file=setup", "dist", f"DIST={dist}"], cwd=_ROOT)
    return dist


@pytest.fixture(scope="module")
def wheel(dist):
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    return _core_of(wheel, tmp_path_factory.mktemp("core"), sys.executable)


def _core_of(wheel, home, python):
    installed = Installed(_filled(home), python)
    installed.megabytes_before = _megabytes(installed.home / "env")
    # With its bytecode: it counts, too.
    installed.run(*_INSTALL, str(wheel))
    return installed


@pytest.fixture
def home(tmp_path):
    return _filled(tmp_path)


def _filled(tmp_path):
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.jsonl").write_text("".join(f'{{"id": {number}}}\n' for number in range(10)))
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "suite").mkdir()
    (tmp_path / "pipelines" / "suite" / "checked.yaml").write_text(_SUITE)
    local = f"{tmp_path}/landing/*.jsonl"
    paths = {
        "numbers": local,
        "stored": "s3://bucket/*.jsonl",
        "at_google": "gs://bucket/*.jsonl",
        "at_microsoft": "abfs://container@account.dfs.core.windows.net/*.jsonl",
        "checked": local,
    }
    (tmp_path / "packed").mkdir()
    (tmp_path / "packed" / "a.avro").write_bytes(b"Obj\x01" + b" " * 100)
    (tmp_path / "pipelines" / "packed.yaml").write_text(
        _PIPELINE.format(name="packed", path=f"{tmp_path}/packed/*.avro").replace("jsonl", "avro")
    )
    for name, path in paths.items():
        text = _PIPELINE.format(name=name, path=path) + (
            "quality: {suite: suite/checked.yaml}" if name == "checked" else ""
        )
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(text)
    return tmp_path


class Installed:
    """An environment of plain pip."""

    megabytes_before = 0

    def __init__(self, home: Path, python: str = sys.executable) -> None:
        self.home, self.bin = home, home / "env" / "bin"
        _run([python, "-m", "venv", home / "env"], env=_clean())

    def install(self, *wanted: str) -> None:
        """Python compiles what is imported of them. To compile all would take longer than to install it."""
        self.run(*_INSTALL, "--no-compile", *wanted)

    def frozen(self) -> set[str]:
        return set(self.run("pip", "freeze").stdout.splitlines())

    def run(self, *command: str, fails: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        path = f"{self.bin}{os.pathsep}{os.environ['PATH']}"
        clean = {**_clean(), "PATH": path, "ONCELOAD_HOME": str(self.home), **environment}
        done: subprocess.CompletedProcess[str] = _run(
            [self.bin / command[0], *command[1:]], cwd=self.home, env=clean, fails=fails
        )
        return done


def _clean():
    """Nothing of this checkout or its environment."""
    ours = ("ONCELOAD_", "PYTHON", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(ours)}


def _python(version: str) -> str:
    """One on the PATH, or one that pyenv has; a name on the PATH may lead to none."""
    of_pyenv = sorted(map(str, (Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python")))
    for python in filter(None, [shutil.which(f"python{version}"), *of_pyenv]):
        works = subprocess.run([python, "-c", "import ensurepip, venv"], env=_clean(), capture_output=True, check=False)
        if works.returncode == 0:
            return python
    pytest.skip(f"there is no Python {version} with venv here")


def _run(command, *, fails=0, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == fails, done.stdout + done.stderr
    return done


def test_the_wheel_has_only_our_names_at_its_top(wheel):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {name for name in names if not name.endswith(".dist-info")} == _TOP


def test_the_wheel_that_is_built_from_the_sdist_is_the_same(dist, wheel, tmp_path):
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "again"], cwd=source)

    (again,) = (tmp_path / "again").glob("*.whl")
    assert _content(again) == _content(wheel)


def test_dist_lists_the_locked_packages(dist):
    components = json.loads((dist / "onceload.cdx.json").read_text("utf-8"))["components"]

    assert {"apache-airflow", "pyarrow", "pyspark", "sqlalchemy"} <= {each["name"] for each in components}


def _content(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_core_alone_is_light_and_loads(core, dsn):
    _check_load(core, dsn)
    assert _megabytes(core.home / "env") - core.megabytes_before < _CORE_MB_MAX


@pytest.mark.parametrize("version", sorted({"3.11", "3.12", "3.13"} - {f"3.{sys.version_info.minor}"}))
def test_the_core_loads_on_each_python(version, wheel, tmp_path, dsn):
    _check_load(_core_of(wheel, tmp_path, _python(version)), dsn)


def _check_load(installed, dsn):
    load = installed.run("onceload", "load", "pipelines/numbers.yaml", ONCELOAD_DSN=dsn)
    installed.run("onceload", "verify", "--deep", "pipelines/numbers.yaml", ONCELOAD_DSN=dsn)

    assert "10 loaded" in load.stderr
    assert execute(dsn, "SELECT count(*), count(DISTINCT id) FROM numbers") == [(10, 10)]


@pytest.fixture(scope="module")
def fresh(wheel):
    """A folder with an environment that is made as the tutorial says, from the wheel; and the variables of its user."""
    path = os.environ["PATH"]
    with tutorial.open_folder() as folder:
        shutil.copy(wheel, folder)
        tutorial.install(folder, {**_clean(), "PATH": f"{sys.base_prefix}/bin:{path}"})
        yield folder, {**_clean(), "PATH": f"{folder}/onceload/bin:{path}"}


def test_the_wheel_and_the_tutorial_are_all_that_its_reader_needs(fresh):
    folder, environment = fresh

    tutorial.follow(folder, environment)


def test_each_command_prints_the_next_one_until_your_own_file_is_loaded(fresh):
    """They are five, with the one that installs."""
    folder, environment = fresh
    orders = folder / "mine" / "landing" / "orders"
    orders.mkdir(parents=True)
    (orders / "monday.jsonl").write_text('{"id": 1, "paid": 5.25}\n{"id": 2, "paid": 7}\n')

    shown = "onceload"
    for begins in ("onceload", "onceload draft ", "onceload load ", "onceload show "):
        (command,) = (f"{begins}{line.partition(begins)[2]}" for line in shown.splitlines() if begins in line)
        done = _run(["bash", "-c", command], fails=2 * (command == "onceload"), cwd=folder / "mine", env=environment)
        shown = done.stderr

    assert done.stdout == "id  paid\n 2  7.00\n 1  5.25\n"


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("load", "pipelines/numbers.yaml"), "embedded"),
        (("load", "pipelines/stored.yaml"), "s3"),
        (("load", "pipelines/at_google.yaml"), "gcs"),
        (("load", "pipelines/at_microsoft.yaml"), "azure"),
        (("load", "pipelines/numbers.yaml", "--engine", "spark"), "spark"),
        (("load", "pipelines/checked.yaml"), "quality"),
        (("load", "pipelines/packed.yaml"), "avro"),
        (("draft", "packed/*.avro"), "avro"),
        (("metrics",), "metrics"),
        (("ui",), "ui"),
        (("run",), "airflow"),
        (("cluster",), "spark"),
    ],
)
def test_an_error_names_the_missing_extra(core, dsn, command, extra):
    address = {} if extra in ("embedded", "airflow") else {"ONCELOAD_DSN": dsn}

    said = core.run("onceload", *command, fails=2, **address)

    assert f"pip install 'onceload[{extra}]'" in said.stderr


#: The first event of the trigger for new files.
_WATCH = """
import asyncio
from onceload_airflow.arrivals import Arrivals

async def watch():
    async for event in Arrivals(pipeline_file="pipelines/numbers.yaml").run():
        print(event.payload["files"], "file")
        return

asyncio.run(watch())
"""


@pytest.mark.parametrize("airflow", [_FIRST_AIRFLOW, _OLDEST_AIRFLOW], ids=["first", "oldest"])
def test_an_airflow_that_was_there_finds_everything_and_keeps_its_versions(wheel, home, dsn, airflow):
    installed = Installed(home)
    installed.install(*airflow)
    (home / "airflow" / "dags").mkdir(parents=True)
    (home / "airflow" / "dags" / "theirs.py").write_text(_DAG_OF_OTHERS)
    environment = _migrated(installed)
    before = installed.frozen()
    # Nothing asks pip to keep what is there.
    installed.install(f"{wheel}[airflow]")
    assert before - installed.frozen() == set()

    environment |= _BUNDLES
    address = dsn.replace("postgresql://", "onceload://")
    installed.run("airflow", "connections", "add", "onceload", "--conn-uri", address, **environment)
    installed.run("onceload", "init", ONCELOAD_DSN=dsn)
    installed.run("onceload", "doctor", "--airflow", **environment)
    if airflow is _FIRST_AIRFLOW:
        return
    installed.run("airflow", "dag-processor", "--num-runs", "1", **environment)
    found = installed.run("airflow", "dags", "list", "--output", "plain", **environment).stdout
    watched = installed.run("python", "-c", _WATCH, **environment, ONCELOAD_DSN=dsn).stdout
    for dag in ("ingest__numbers", "theirs"):
        installed.run("airflow", "dags", "test", dag, **environment)

    assert watched.splitlines()[-1] == "1 file"
    dags = {line.split()[0] for line in found.splitlines() if line}
    assert {"backfill", "ingest__numbers", "maintain", "recover", "snapshot", "theirs", "verify"} <= dags
    assert execute(dsn, "SELECT count(*), count(DISTINCT id) FROM numbers") == [(10, 10)]


@pytest.fixture(scope="module")
def with_all(wheel):
    with tutorial.open_folder() as folder:
        installed = Installed(_filled(folder), _python("3.13"))
        installed.install(f"{wheel}[all]")
        yield installed


def test_all_extras_on_the_newest_python_load_with_spark_and_the_newest_airflow_finds_everything(with_all, dsn):
    """The loads are into the embedded Postgres, and one of them is audited."""
    with_all.run("pip", "check")
    by_spark = with_all.run("onceload", "load", "pipelines/numbers.yaml", "--engine", "spark", "--json")
    audited = with_all.run("onceload", "load", "pipelines/checked.yaml", "--json")
    with_all.run("onceload", "verify", "--deep", "pipelines/checked.yaml")
    counted = with_all.run("onceload", "sql", "-c", "SELECT count(DISTINCT id) FROM numbers", "--csv").stdout
    with_all.run("onceload", "init", ONCELOAD_DSN=dsn)
    with_all.run("onceload", "doctor", "--airflow", **_migrated(with_all), **_BUNDLES, ONCELOAD_DSN=dsn)

    assert [json.loads(each.stdout)["loaded"] for each in (by_spark, audited)] == [10, 10]
    assert json.loads(by_spark.stdout)["engine"] == "spark"
    assert counted.split() == ["count", "10"]


def test_frames_of_polars_and_pandas_are_loaded_once(with_all, dsn):
    """Not stand-ins for them, as in the tests of load_rows: these frames have string views and categories."""
    with_all.install("polars")
    with_all.run("onceload", "init", ONCELOAD_DSN=dsn)

    counted = with_all.run("python", "-c", _FRAMES, ONCELOAD_DSN=dsn).stdout

    assert counted.split() == ["polars", "2", "0", "0", "2", "pandas", "2", "0", "0", "2"]
    for table in ("of_polars", "of_pandas"):
        assert execute(dsn, f"SELECT name, kind, tags, paid::text, day::text, inside FROM {table} ORDER BY name") == [
            ("Ada", "x", ["a"], "1.50", "2026-01-01", {"n": 1}),
            (None, "y", [], None, None, {"n": 2}),
        ]


def test_run_in_an_empty_folder_makes_a_sample_that_airflow_loads(with_all):
    folder = with_all.home / "empty"
    folder.mkdir()
    environment = {**_clean(), "ONCELOAD_HOME": str(folder / ".onceload")}
    command = [with_all.bin / "onceload", "run", "--port", str(free_port())]
    said = folder / "said"
    with (
        said.open("w") as out,
        subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=out) as everything,
    ):
        try:
            until(lambda: "Ctrl-C stops everything" in said.read_text(), "Airflow runs")
            dsn = said.read_text().partition("ONCELOAD_DSN='")[2].partition("'")[0]
            loaded = "SELECT count(*) FROM onceload.ledger WHERE loaded > 0"
            until(lambda: execute(dsn, loaded) != [(0,)], "rows are loaded", every_s=1)
        finally:
            everything.send_signal(signal.SIGINT)
    assert everything.returncode == 0, said.read_text()


def _migrated(installed):
    """The environment of an Airflow with a database of its own, and with its usual folder of DAGs alone."""
    home = installed.home
    environment = {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(home / "bundles"),
        "ONCELOAD_PIPELINES": str(home / "pipelines"),
    }
    installed.run("airflow", "db", "migrate", **environment)
    return environment


def _megabytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) // 2**20
