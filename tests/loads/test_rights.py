"""A loader that lacks a right on its target gets the GRANT to run, and nothing is loaded."""

import re
from dataclasses import replace

import pytest

from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import OnRewrite, Publish, Target, Write
from onceload_jobs.plan.choice import Choice
from tests.loads.conftest import InThisProcess, Loads, line
from tests.servers import execute

PLAIN = "(id bigint PRIMARY KEY, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)"
MERGE = Target(schema="public", table="target", write=Write.MERGE, key=("id",))


def refused(loads: Loads, match: str) -> str:
    """The statement that the refusal gives."""
    with pytest.raises(SettingRefused, match=match) as refusal:
        loads.load()
    assert refusal.value.exit_code is ExitCode.WRONG_USE
    assert loads.ask("SELECT count(*) FROM onceload.ledger") == [(0,)]
    (statement,) = re.findall("that right. Run `(GRANT .*?)`", str(refusal.value))
    return str(statement)


def test_a_table_that_others_own_is_loaded_with_the_rights_of_the_statement(loads):
    execute(loads.admin_dsn, f"CREATE TABLE target {PLAIN}")
    loads.write("a.jsonl", line(1))

    needed = "INSERT" if loads.declared.is_direct else "SELECT, INSERT"

    statement = refused(loads, f"onceload_loader lacks the right {needed}")

    assert statement == f'GRANT {needed} ON "public"."target" TO "onceload_loader"'
    execute(loads.admin_dsn, statement)
    assert loads.load().loaded == 1
    assert execute(loads.admin_dsn, "SELECT id FROM target") == [(1,)]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_right_on_columns_is_a_right(loads):
    execute(loads.admin_dsn, f"CREATE TABLE target {PLAIN}")
    execute(loads.admin_dsn, "GRANT INSERT (id, amount, note, _producer_id, _sequence) ON target TO onceload_loader")
    loads.write("a.jsonl", line(1))

    assert loads.load().loaded == 1


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize(
    ("changes", "needed"),
    [
        ({"target": MERGE}, "SELECT, INSERT, UPDATE"),
        ({"on_rewrite": OnRewrite.REPLACE}, "SELECT, INSERT, DELETE"),
    ],
)
def test_what_deletes_or_updates_rows_needs_more_rights(loads, changes, needed):
    execute(loads.admin_dsn, f"CREATE TABLE target {PLAIN}")
    execute(loads.admin_dsn, "GRANT INSERT ON target TO onceload_loader")
    loads.write("a.jsonl", line(1))
    loads.declared = replace(loads.declared, **changes)

    statement = refused(loads, "lacks the right SELECT, (UPDATE|DELETE)")

    assert statement == f'GRANT {needed} ON "public"."target" TO "onceload_loader"'
    execute(loads.admin_dsn, statement)
    assert loads.load().loaded == 1


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_file_is_replaced_only_with_the_right_to_delete_its_rows(loads):
    execute(loads.admin_dsn, f"CREATE TABLE target {PLAIN}")
    execute(loads.admin_dsn, "GRANT SELECT, INSERT ON target TO onceload_loader")
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("a.jsonl", line(2))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, choice=Choice(replaces=True))

    with pytest.raises(SettingRefused, match="lacks the right DELETE") as refusal:
        load(loads.declared, settings, batch=new_batch(), executor=InThisProcess())

    statement = 'GRANT SELECT, INSERT, DELETE ON "public"."target" TO "onceload_loader"'
    assert statement in str(refusal.value)
    assert loads.rows() == [1]
    execute(loads.admin_dsn, statement)
    load(loads.declared, settings, batch=new_batch(), executor=InThisProcess())
    assert loads.rows() == [2]


@pytest.mark.parametrize(("granted", "lacking"), [("", "USAGE"), ("GRANT USAGE ON SCHEMA shut TO PUBLIC", "CREATE")])
def test_a_schema_that_is_shut_is_opened_by_the_statement(loads, granted, lacking):
    execute(loads.admin_dsn, "CREATE SCHEMA shut")
    if granted:
        execute(loads.admin_dsn, granted)
    loads.write("a.jsonl", line(1))
    loads.declared = replace(loads.declared, target=Target(schema="shut", table="target"))

    statement = refused(loads, f"schema shut, on which onceload_loader lacks the right {lacking}")

    assert statement == 'GRANT USAGE, CREATE ON SCHEMA "shut" TO "onceload_loader"'
    execute(loads.admin_dsn, statement)
    assert loads.load().loaded == 1
