"""Airflow in processes of its own: a home, the bundle of a folder of pipelines, and a database for its metadata."""

import json
import os
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from onceload.airflow_api import AirflowApi
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
#: What names a Spark to load tasks.
SPARK = {"AIRFLOW_CONN_ONCELOAD_SPARK": json.dumps({"conn_type": "spark", "host": "local[2]"})}
#: What a process says that parses all DAGs of the bundle.
_PARSE = """
import json, socket, sys
from pathlib import Path

def refuse(*_):
    raise AssertionError("a DAG asked the network while it was parsed")

from airflow.dag_processing.dagbag import DagBag
from onceload_airflow.bundle import PipelinesBundle

socket.socket.connect = socket.create_connection = refuse
bundle = PipelinesBundle(name="pipelines", pipelines=sys.argv[1])
bundle.initialize()
bag = DagBag(bundle.path, bundle_path=bundle.path, bundle_name="pipelines")
by_hand = Path(sys.argv[2])
for file in sorted(by_hand.glob("*.py")):
    bag.process_file(str(file))
print(json.dumps({
    "errors": bag.import_errors,
    "heavy": [name for name in ("pyspark", "great_expectations") if name in sys.modules],
    "dags": {
        dag.dag_id: {
            "doc": dag.doc_md, "tags": sorted(dag.tags), "schedule": str(dag.schedule), "catchup": dag.catchup,
            "params": {name: [dag.params.get_param(name).schema, dag.params.get_param(name).description]
                       for name in dag.params},
            "tasks": {task.task_id: {"doc": task.doc_md, "owner": task.owner, "retries": task.retries,
                                     "then": sorted(task.downstream_task_ids)} for task in dag.tasks},
        }
        for dag in bag.dags.values()
    },
}, default=str))
"""


@dataclass(frozen=True)
class Airflow:
    """One home of Airflow's."""

    home: Path
    pipelines: Path
    dsn: str | None = None
    by_hand: Path = ROOT / "dags"

    @property
    def environment(self) -> dict[str, str]:
        by_hand = {
            "name": "dags",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(self.by_hand)},
        }
        bundle = {
            "name": "pipelines",
            "classpath": "onceload_airflow.bundle.PipelinesBundle",
            "kwargs": {"pipelines": str(self.pipelines)},
        }
        settings = {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps([bundle, by_hand]),
            "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(self.home / "bundles"),
            "AIRFLOW__LOGGING__BASE_LOG_FOLDER": str(self.home / "logs"),
            "ONCELOAD_HOME": str(self.home / "onceload"),
            "PYTHONPATH": os.pathsep.join(str(ROOT / each) for each in ("", "dedup_core", "plugins", "spark_jobs")),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONWARNINGS": "ignore",
        }
        settings["ONCELOAD_PIPELINES"] = str(self.pipelines)
        return {**os.environ, **settings, **({"ONCELOAD_DSN": self.dsn} if self.dsn else {})}

    def parsed(self) -> Any:
        """All DAGs and errors, as a process without the network sees them."""
        done = self._run([sys.executable, "-c", _PARSE, str(self.pipelines), str(self.by_hand)])
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def call(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """`airflow` with these arguments."""
        return self._run([str(Path(sys.executable).with_name("airflow")), *arguments], **environment)

    def python(self, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A program of our own, as it would run inside."""
        return self._run([sys.executable, "-c", program], **environment)

    def _run(self, command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            env={**self.environment, **environment},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )


def check_success(api: AirflowApi, dag_id: str, run_id: str) -> None:
    """All tasks of a run have ended well; of one that has not, its logs say why."""
    states = api.ended(dag_id, run_id)
    run = f"/api/v2/dags/{dag_id}/dagRuns/{run_id}/taskInstances"
    logs = [
        api.ask(f"{run}/{each['task_id']}/logs/{each['try_number']}?full_content=true&map_index={each['map_index']}")
        for each in api.ask(run)["task_instances"]
        if each["state"] == "failed"
    ]
    assert set(states.values()) == {"success"}, (states, logs)


def processes_of(home: Path) -> list[psutil.Process]:
    """All processes that belong to the stack of this home."""
    there = psutil.process_iter(["environ", "cmdline"])
    return [each for each in there if (each.info["environ"] or {}).get("ONCELOAD_HOME") == str(home)]


def scheduler_of(home: Path) -> psutil.Process:
    """The one that was started first, and not what it has made of itself."""
    there = {each.pid: each for each in processes_of(home) if "scheduler" in (each.info["cmdline"] or [])}
    (found,) = (each for each in there.values() if each.ppid() not in there)
    return found


def end(pid: int) -> None:
    """A process and whatever it has started, at once."""
    process = psutil.Process(pid)
    there = [*process.children(recursive=True), process]
    for each in there:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(there, timeout=PATIENCE_S)
