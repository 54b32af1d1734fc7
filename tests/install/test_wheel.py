"""The built wheel, installed with plain pip into empty environments: a light core, and an Airflow that was there."""

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.servers import execute

pytestmark = pytest.mark.long

_ROOT = Path(__file__).resolve().parents[2]
_TOP = {"dedup_core", "onceload", "onceload_airflow", "spark_jobs"}
#: The aim for a light install, without pip itself.
_CORE_MB_MAX = 350
_PIPELINE = """\
pipeline: {name}
source: {{path: "{path}", format: jsonl}}
columns: {{id: bigint not null}}
target: {{table: public.{name}}}
"""
_SUITE = "expectations: [{type: expect_column_values_to_not_be_null, kwargs: {column: id}}]"
_OLDEST_AIRFLOW = "apache-airflow==3.1.*"
_BUNDLES = """[
  {"name": "dags-folder", "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle", "kwargs": {}},
  {"name": "pipelines", "classpath": "onceload_airflow.bundle.PipelinesBundle", "kwargs": {"pipelines": "pipelines"}},
  {"name": "recovery", "classpath": "onceload_airflow.bundle.RecoveryBundle", "kwargs": {}}
]"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    dist = tmp_path_factory.mktemp("dist")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", dist], cwd=_ROOT)
    (wheel,) = dist.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def core(wheel, tmp_path_factory):
    installed = Installed(_filled(tmp_path_factory.mktemp("core")))
    installed.megabytes_before = _megabytes(installed.home / "env")
    installed.install(str(wheel))
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
    for name, path in (("numbers", local), ("stored", "s3://bucket/*.jsonl"), ("checked", local)):
        text = _PIPELINE.format(name=name, path=path) + (
            "quality: {suite: suite/checked.yaml}" if name == "checked" else ""
        )
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(text)
    return tmp_path


class Installed:
    """An environment of plain pip."""

    megabytes_before = 0

    def __init__(self, home: Path) -> None:
        self.home, self.bin = home, home / "env" / "bin"
        venv.create(home / "env", with_pip=True)

    def install(self, *wanted: str) -> None:
        self.run("pip", "install", "--quiet", "--disable-pip-version-check", *wanted)

    def frozen(self) -> set[str]:
        return set(self.run("pip", "freeze").stdout.splitlines())

    def run(self, *command: str, fails: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
        # Nothing of this checkout or its environment.
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        clean |= {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}", "ONCELOAD_HOME": str(self.home), **environment}
        done: subprocess.CompletedProcess[str] = _run(
            [self.bin / command[0], *command[1:]], cwd=self.home, env=clean, fails=fails
        )
        return done


def _run(command, *, fails=0, **options):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == fails, done.stdout + done.stderr
    return done


def test_the_wheel_has_only_our_names_at_its_top(wheel):
    names = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}

    assert {name for name in names if not name.endswith(".dist-info")} == _TOP


def test_the_core_alone_is_light_and_loads(core, dsn):
    load = core.run("onceload", "load", "pipelines/numbers.yaml", ONCELOAD_DSN=dsn)
    core.run("onceload", "verify", "--deep", "pipelines/numbers.yaml", ONCELOAD_DSN=dsn)

    assert "10 loaded" in load.stderr
    assert execute(dsn, "SELECT count(*), count(DISTINCT id) FROM numbers") == [(10, 10)]
    assert _megabytes(core.home / "env") - core.megabytes_before < _CORE_MB_MAX


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("load", "pipelines/numbers.yaml"), "embedded"),
        (("load", "pipelines/stored.yaml"), "s3"),
        (("load", "pipelines/numbers.yaml", "--engine", "spark"), "spark"),
        (("load", "pipelines/checked.yaml"), "quality"),
        (("metrics",), "metrics"),
        (("run",), "airflow"),
        (("cluster",), "spark"),
    ],
)
def test_an_error_names_the_missing_extra(core, dsn, command, extra):
    address = {} if extra in ("embedded", "airflow") else {"ONCELOAD_DSN": dsn}

    said = core.run("onceload", *command, fails=2, **address)

    assert f"pip install 'onceload[{extra}]'" in said.stderr


def test_an_airflow_that_was_there_finds_everything_and_keeps_its_versions(wheel, home, dsn):
    installed = Installed(home)
    installed.install(_OLDEST_AIRFLOW, "apache-airflow-providers-postgres")
    before = installed.frozen()
    installed.install(f"{wheel}[airflow]", *before)
    assert {each for each in before if each not in installed.frozen()} == set()

    environment = {
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": _BUNDLES,
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(home / "bundles"),
        "ONCELOAD_DSN": dsn,
        "ONCELOAD_PIPELINES": str(home / "pipelines"),
    }
    installed.run("airflow", "db", "migrate", **environment)
    installed.run("airflow", "dag-processor", "--num-runs", "1", **environment)
    found = installed.run("airflow", "dags", "list", "--output", "plain", **environment).stdout
    providers = installed.run("airflow", "providers", "list", "--output", "plain", **environment).stdout
    plugins = installed.run("airflow", "plugins", "--output", "plain", **environment).stdout
    installed.run("airflow", "dags", "test", "ingest__numbers", **environment)

    dags = {line.split()[0] for line in found.splitlines() if line}
    assert {"backfill", "ingest__numbers", "maintain", "recover", "snapshot", "verify"} <= dags
    assert "onceload" in providers
    assert "onceload" in plugins
    assert execute(dsn, "SELECT count(*), count(DISTINCT id) FROM numbers") == [(10, 10)]


def _megabytes(folder: Path) -> int:
    return sum(path.lstat().st_blocks * 512 for path in folder.rglob("*")) // 2**20
