"""Alerts by mail, with Airflow's own notifier and a mail server."""

import shutil

import pytest

from tests.dags.mailbox import mailbox, text_of
from tests.dags.stand import Airflow
from tests.servers import execute
from tests.waiting import PATIENCE_S

SECRET = "very-secret-9317"
PIPELINE = """\
pipeline: readings
source: {{path: "{folder}/*.jsonl", format: jsonl}}
columns: {{n: bigint not null}}
target: {{table: public.readings}}
"""
#: As the DAGs of pipelines, without the waits between tries.
DAG = """\
from airflow.sdk import DAG
from onceload_airflow.alerts import tell_failure
from onceload_airflow.operators import Plan

with DAG("mine", default_args={{"on_failure_callback": tell_failure}}):
    Plan(task_id="plan", pipeline_file={file!r})
"""


@pytest.fixture
def airflow(tmp_path, dsn, airflow_database):
    for name in ("pipelines", "landing", "own"):
        (tmp_path / name).mkdir()
    file = tmp_path / "pipelines" / "readings.yaml"
    file.write_text(PIPELINE.format(folder=tmp_path / "landing"))
    (tmp_path / "own" / "mine.py").write_text(DAG.format(file=str(file)))
    airflow = Airflow(home=tmp_path / "airflow", pipelines=tmp_path / "pipelines", by_hand=tmp_path / "own", dsn=dsn)
    airflow.home.mkdir()
    shutil.copy(airflow_database, airflow.home)
    return airflow


@pytest.mark.long
def test_a_mail_says_who_failed_where_and_what_to_do(airflow, tmp_path, dsn):
    with mailbox() as box:
        told = box.settings
        airflow.call("dags", "test", "mine", "2026-03-01", **told)

        assert box.mails.empty()

        (tmp_path / "pipelines" / "readings.yaml").write_text("pipeline: [<b>\n")
        airflow.call("dags", "test", "mine", "2026-03-02", **told)
        needs_a_person = box.mails.get(timeout=PATIENCE_S)

        (tmp_path / "pipelines" / "readings.yaml").write_text(PIPELINE.format(folder=tmp_path / "landing"))
        nobody = f"postgresql://me:{SECRET}@127.0.0.1:{box.port + 1}/none"
        airflow.call("dags", "test", "mine", "2026-03-03", **told, ONCELOAD_DSN=nobody)
        lost = box.mails.get(timeout=PATIENCE_S)

    assert needs_a_person["To"] == "data@example.org"
    assert needs_a_person["Subject"] == "mine: plan needs a person"
    words = text_of(needs_a_person)
    assert "readings.yaml:1" in words
    assert "fix the cause, then clear the task" in words
    assert lost["Subject"] == "mine: plan failed at try 1, and may recover by itself"
    assert "wait for the next run, which retries" in text_of(lost)
    assert "/dags/mine/runs/" in text_of(lost)
    assert SECRET not in text_of(lost)
    # Nothing was loaded, and looking alone makes nothing known.
    assert execute(dsn, "SELECT position FROM onceload.pipeline") == []


@pytest.mark.long
def test_a_setting_that_is_wrong_is_found_when_dags_are_parsed(airflow, monkeypatch):
    monkeypatch.setenv("ONCELOAD_ALERTS", SECRET)

    (said,) = airflow.parsed()["errors"].values()

    assert "ONCELOAD_ALERTS" in said
    assert SECRET not in said
