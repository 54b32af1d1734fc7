"""How long Airflow's DAG processor takes for the DAGs of many pipeline files."""

import json
import os
import subprocess
import sys
from pathlib import Path

from bench.measured import Measured

_ROOT = Path(__file__).resolve().parents[1]
_PIPELINES = 100
_PIPELINE = """\
pipeline: p{number}
source:
  path: landing/p{number}/{{{{ ds }}}}/*.jsonl
  format: jsonl
columns:
{columns}
target: {{table: public.p{number}}}
quality: {{quarantined_max: 1%}}
schedule: "*/5 * * * *"
"""
_COLUMNS = "\n".join(f"  column_{number}: bigint" for number in range(20))
#: What Airflow itself has imported is not ours to answer for.
_PARSE = """
import json, sys, time
from airflow.dag_processing.dagbag import DagBag
import airflow.sdk, airflow.providers.standard.operators.python
started = time.perf_counter()
from onceload_airflow.bundle import PipelinesBundle
import onceload_airflow.ingest
imported = time.perf_counter()
bundle = PipelinesBundle(name="pipelines", pipelines=sys.argv[1])
bundle.initialize()
bag = DagBag(bundle.path, bundle_path=bundle.path, bundle_name="pipelines")
parsed = time.perf_counter()
assert len(bag.dags) == int(sys.argv[2]) and not bag.import_errors, bag.import_errors
print(json.dumps([imported - started, parsed - imported]))
"""


def measure(home: Path, *, repetitions: int) -> dict[str, Measured]:
    pipelines = home / "pipelines"
    pipelines.mkdir()
    for number in range(_PIPELINES):
        (pipelines / f"p{number}.yaml").write_text(_PIPELINE.format(number=number, columns=_COLUMNS))
    found = [_parse(home, pipelines) for _ in range(repetitions)]
    return {
        "importing what the DAGs need, once a process": Measured(tuple(imported for imported, _ in found)),
        f"a DAG for each of {_PIPELINES} pipeline files": Measured(tuple(parsed for _, parsed in found)),
    }


def _parse(home: Path, pipelines: Path) -> tuple[float, float]:
    environment = {
        **os.environ,
        "AIRFLOW_HOME": str(home / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH": str(home / "bundles"),
        "PYTHONPATH": os.pathsep.join(str(_ROOT / each) for each in ("", "dedup_core", "plugins", "spark_jobs")),
    }
    command = [sys.executable, "-W", "ignore", "-c", _PARSE, str(pipelines), str(_PIPELINES)]
    done = subprocess.run(command, env=environment, cwd=_ROOT, capture_output=True, text=True, check=True, timeout=300)
    imported, parsed = json.loads(done.stdout.splitlines()[-1])
    return float(imported), float(parsed)
