"""A kept batch whose stage the server has lost holds no file, and one that is kept says how to end that."""

import re
from dataclasses import replace

import pytest
from sqlalchemy import text

import onceload
from onceload.runs import look
from onceload.settings import Settings
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.upkeep import tidy
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.pipeline.declared import Identity, Publish
from tests.fault.server import crashable_server
from tests.integration.shell import onceload as command
from tests.loads.conftest import InThisProcess, line
from tests.servers import execute

PIPELINE = """\
pipeline: orders
source: {{path: "{folder}/*.jsonl", format: jsonl}}
columns: {{id: bigint not null}}
target: {{table: public.orders}}
"""


@pytest.fixture
def publish():
    return Publish.STAGED


def stage(loads, batch="one", **changes):
    how = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, publishes=False)
    return load(replace(loads.declared, **changes), how, batch=Batch(batch), executor=InThisProcess())


def lose(loads, batch="one", statement="TRUNCATE"):
    """What a crash leaves of unlogged tables, and what an administrator may do."""
    (named,) = loads.ask(f"SELECT stage FROM onceload.delivery WHERE stage IS NOT NULL AND batch = '{batch}'")
    tables = (f'onceload_stage."{named[0]} {each}"' for each in ("rows", "proof"))
    with loads.engine.begin() as connection:
        connection.execute(text(f"{statement} {', '.join(tables)}"))


@pytest.fixture
def server():
    with crashable_server() as server:
        yield server


def test_a_file_that_was_staged_before_the_server_was_killed_is_loaded_by_the_next_run(server, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    file = tmp_path / "orders.yaml"
    file.write_text(PIPELINE.format(folder=tmp_path))
    database = {"ONCELOAD_DSN": server.dsn()}
    assert command("init", **database).returncode == 0
    staged = command("stage", str(file), "--batch", "one", **database)
    before = command("plan", str(file), **database)

    server.crash()
    server.start()

    after = command("plan", str(file), **database)
    loaded = command("load", str(file), **database)
    late = command("publish", str(file), "--batch", "one", **database)
    assert [each.returncode for each in (staged, before, after, loaded, late)] == [0, 0, 0, 0, 1]
    assert "0 files to read" in before.stderr
    assert "1 file to read" in after.stderr
    assert "1 loaded" in loaded.stderr
    assert "batch one cannot be published: it is not staged" in late.stderr
    assert execute(server.dsn(), "SELECT id FROM orders") == [(1,)]


@pytest.mark.parametrize("lost", ["TRUNCATE", "DROP TABLE"])
@pytest.mark.parametrize("identity", Identity)
def test_a_stage_that_is_lost_holds_nothing(loads, lost, identity):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=identity))
    loads.write("a.jsonl", line(1))
    stage(loads)
    lose(loads, statement=lost)
    loads.write("b.jsonl", line(2))

    found = loads.look()
    report = loads.load()

    assert (found.files, found.is_busy) == (2, False)
    assert (report.loaded, report.notes) == (2, ())
    assert loads.rows() == [1, 2]
    assert loads.ask("SELECT count(*) FROM onceload.delivery") == [(0,)]


def test_upkeep_ends_the_claim_of_a_lost_stage_and_keeps_that_of_another(loads):
    for batch in ("one", "two"):
        loads.write(f"{batch}.jsonl", line(len(batch)))
        stage(loads, batch=batch)
    lose(loads, "one")

    tidy(loads.engine, "events")

    assert loads.ask("SELECT DISTINCT batch FROM onceload.delivery") == [("two",)]
    assert [note.name for note in loads.load().notes] == ["two.jsonl"]
    assert loads.rows() == [3]


@pytest.mark.parametrize("identity", Identity)
def test_a_file_of_a_kept_batch_names_the_batch_the_end_of_its_lease_and_the_commands(loads, identity):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=identity))
    loads.write("a.jsonl", line(1))
    stage(loads, batch="the first")
    loads.write("b.jsonl", line(2))

    planned = look(onceload.Pipeline(loads.declared, Settings(dsn=loads.dsn))).held
    note = loads.load().notes[0]

    said = (
        r"batch the first is staged but not published, and holds it until \d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ\. To publish "
        r"it now, run `onceload publish PIPELINE.yaml --batch='the first'` \(with a suite, first `onceload audit "
        r"PIPELINE.yaml --batch='the first'`\)\. To discard the staged rows instead, run `onceload publish "
        r"PIPELINE.yaml --batch='the first' --give-up`, and load again"
    )
    assert note.name == "a.jsonl"
    assert re.match(said, note.reason), note
    assert re.search(said, planned), planned
    assert loads.rows_or_none() == ([] if identity is Identity.CONTENT else [2])


@pytest.mark.parametrize("identity", Identity)
def test_no_load_waits_for_a_batch_that_a_person_may_have_to_publish(loads, identity):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=identity))
    loads.write("a.jsonl", line(1))
    stage(loads)
    loads.write("b.jsonl", line(2))
    patient = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=3_600)

    report = load(loads.declared, patient, batch=Batch("two"), executor=InThisProcess())

    assert {note.is_kept for note in report.notes} == {True}
    assert report.loaded == (0 if identity is Identity.CONTENT else 1)


def test_a_stage_prints_the_command_that_publishes_it_unless_a_task_of_airflow_does(dsn, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    file = tmp_path / "orders.yaml"
    file.write_text(PIPELINE.format(folder=tmp_path))
    run = {"AIRFLOW_CTX_DAG_ID": "d", "AIRFLOW_CTX_DAG_RUN_ID": "r", "AIRFLOW_CTX_TRY_NUMBER": "1"}

    by_hand = command("stage", str(file), "--batch=-one", ONCELOAD_DSN=dsn)
    by_airflow = command("stage", str(file), "--batch=-one", ONCELOAD_DSN=dsn, **run)

    advice = f"`onceload publish {file} --batch=-one` writes them to the target"
    assert [advice in each.stderr for each in (by_hand, by_airflow)] == [True, False]
    assert "1 rows are staged" in by_airflow.stderr
