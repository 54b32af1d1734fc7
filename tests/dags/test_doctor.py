"""`onceload doctor --airflow` against Airflow itself: what it finds, what it does not, and what to do."""

import json
import shutil
import sys

import pytest
from sqlalchemy import make_url

from tests.dags.stand import Airflow
from tests.servers import execute

LIST = "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST"
#: A process of Airflow starts in each, more than once.
pytestmark = pytest.mark.long
USER = "doctors_airflow"
PIPELINE = """\
pipeline: readings
source: {path: "landing/*.jsonl", format: jsonl}
columns: {n: bigint}
target: {table: public.readings}
"""
ALL = (
    "airflow",
    "provider",
    "connection type",
    "plugin",
    "bundle of pipelines",
    "bundle of recovery",
    "ONCELOAD_PIPELINES",
    "DAGs of pipelines",
    "DAGs of recovery",
    "database",
    "clock",
    "schema",
    "rights",
)


@pytest.fixture
def airflow(tmp_path, airflow_database):
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "readings.yaml").write_text(PIPELINE)
    airflow = Airflow(home=tmp_path / "airflow", pipelines=pipelines)
    airflow.home.mkdir()
    shutil.copy(airflow_database, airflow.home)
    return airflow


def bundles(airflow, *, recovery="onceload_airflow.bundle.RecoveryBundle"):
    pipelines = {"pipelines": str(airflow.pipelines)}
    return json.dumps(
        [
            {"name": "pipelines", "classpath": "onceload_airflow.bundle.PipelinesBundle", "kwargs": pipelines},
            {"name": "recovery", "classpath": recovery, "kwargs": {}},
        ]
    )


def doctor(airflow, **environment):
    """The checks by name, the exit code, and what it said."""
    command = [sys.executable, "-m", "onceload", "doctor", "--airflow", "--json"]
    done = airflow._run(command, **{LIST: bundles(airflow), **environment})
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    return checks, done.returncode, done.stderr


def test_everything_is_found_with_the_connection_of_airflow(airflow, dsn):
    address = dsn.replace("postgresql://", "onceload://")
    made = airflow.call("connections", "add", "onceload", "--conn-uri", address)
    assert made.returncode == 0, made.stderr

    checks, exit_code, said = doctor(airflow, ONCELOAD_DSN="")

    assert exit_code == 0, said
    assert tuple(checks) == ALL
    assert (checks["DAGs of pipelines"]["found"], checks["DAGs of recovery"]["found"]) == ("1 of 1", "5 of 5")


def test_each_thing_that_is_missing_is_named_with_what_to_do(airflow):
    (airflow.pipelines / "broken.yaml").write_text(PIPELINE.replace("bigint", "bigit"))
    others = "airflow.dag_processing.bundles.local.LocalDagBundle"

    checks, exit_code, said = doctor(
        airflow, **{LIST: bundles(airflow, recovery=others)}, ONCELOAD_DSN="", ONCELOAD_PIPELINES=str(airflow.home)
    )

    wrong = [name for name, check in checks.items() if not check["healthy"]]
    assert exit_code == 2
    assert wrong == ["bundle of recovery", "ONCELOAD_PIPELINES", "DAGs of pipelines", "database"]
    assert '"classpath": "onceload_airflow.bundle.RecoveryBundle"' in said
    assert f"expected the folder of the pipeline files, {airflow.pipelines}, found {airflow.home};" in said
    assert "broken.yaml" in checks["DAGs of pipelines"]["fix"]
    assert "bigit" in checks["DAGs of pipelines"]["fix"]
    assert "airflow connections add onceload --conn-type onceload" in said


def test_a_list_of_bundles_that_airflow_cannot_read_is_one_finding(airflow, dsn):
    checks, exit_code, _ = doctor(
        airflow, **{LIST: '[{"name": "pipelines", "classpath": "no.such"}]'}, ONCELOAD_DSN=dsn
    )

    assert exit_code == 2
    assert not checks["bundles"]["healthy"]
    assert checks["rights"]["healthy"]


def test_a_user_without_the_role_of_a_loader_gets_the_grant_to_run(airflow, dsn):
    # Roles belong to the whole server, which the tests share.
    execute(dsn, f"CREATE ROLE {USER} LOGIN IN ROLE onceload_reader")
    nosy = make_url(dsn).set(username=USER).render_as_string(hide_password=False)

    checks, exit_code, said = doctor(airflow, ONCELOAD_DSN=nosy)

    assert exit_code == 2
    assert [name for name, check in checks.items() if not check["healthy"]] == ["rights"]
    assert "UPDATE ON onceload.producer" in checks["rights"]["found"]
    assert f'GRANT onceload_loader TO "{USER}"' in said

    execute(dsn, f"GRANT onceload_loader TO {USER}")
    assert doctor(airflow, ONCELOAD_DSN=nosy)[1] == 0


def test_an_airflow_that_does_not_start_is_reported(airflow, dsn):
    command = [sys.executable, "-m", "onceload", "doctor", "--airflow"]

    done = airflow._run(command, AIRFLOW__CORE__EXECUTOR="NoSuch", AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="no address")

    assert done.returncode == 2
    assert "expected an Airflow that starts" in done.stderr


def test_the_form_of_a_connection_names_its_fields(airflow):
    program = (
        "from airflow.api_fastapi.core_api.services.ui.connections import HookMetaService\n"
        "(form,) = (each for each in HookMetaService.hook_meta_data() if each.connection_type == 'onceload')\n"
        "print(form.hook_name, form.standard_fields.url_schema.title, form.standard_fields.host.placeholder)"
    )
    shown = airflow.python(program)

    assert (shown.returncode, shown.stdout) == (0, "Onceload Database db.example.org\n")
    assert shown.stderr == ""
