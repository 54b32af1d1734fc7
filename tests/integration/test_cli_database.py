"""Commands and their database: the schema, wrong addresses, missing rights, and what doctor finds."""

import json

import pytest
from sqlalchemy import text

from onceload import schema
from onceload_core.pipeline import Pipeline
from onceload_core.postgres import PostgresLedger
from tests.integration.shell import COMMANDS, SAMPLE, onceload


def test_init_makes_the_schema_and_may_be_repeated(empty_dsn):
    first, second = (onceload("init", "--json", ONCELOAD_DSN=empty_dsn) for _ in range(2))

    assert (first.returncode, second.returncode) == (0, 0)
    now = {"revision": schema.head(), "has_roles": True}
    assert json.loads(first.stdout) == {"revision_before": None, **now}
    assert json.loads(second.stdout) == {"revision_before": schema.head(), **now}


@pytest.mark.parametrize(
    "command",
    [
        each
        for each in COMMANDS
        if each[0] not in ("init", "doctor", "draft", "validate", "run", "schema", "show", "sql")
    ],
    ids=" ".join,
)
def test_a_missing_schema_ends_with_2_and_the_command_that_makes_it(empty_dsn, tmp_path, command):
    done = onceload(*command, *file_for(command, tmp_path), ONCELOAD_DSN=empty_dsn)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert "Run `onceload init`" in done.stderr or "snapshot file" in done.stderr


#: What a command cannot do without.
NEEDED = {
    "export": ["events.snapshot"],
    "show": ["1"],
    "discard": ["--id", "1"],
    "why": [SAMPLE, "2026-11-20.jsonl"],
    "pause": ["events", "--why", "a repair"],
    "resume": ["events"],
    **{name: [SAMPLE, "--batch", "one"] for name in ("audit", "publish")},
    **{name: [SAMPLE] for name in ("stage", "plan", "load", "verify", "rewind", "rebuild", "retry")},
}


def file_for(command, tmp_path):
    needed = NEEDED.get(command[-1], [])
    return [str(tmp_path / each) if each.endswith(".snapshot") else each for each in needed]


def test_where_there_are_several_pipelines_one_must_be_named(loaded, dsn):
    PostgresLedger(loaded).declare(Pipeline(name="orders"))

    done = onceload("ledger", ONCELOAD_DSN=dsn)

    assert done.returncode == 2
    assert "--pipeline: found no name. Nothing was changed. Expected one of events, orders." in done.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        "mysql://me:hunter2@127.0.0.1/nowhere",
        "hunter2",
        "postgresql://me:hunter2@127.0.0.1:nonsense/x",
        "postgresql://me:pa%zzhunter2@127.0.0.1/x",
        "postgresql://me:a@hunter2@127.0.0.1/x",
        "postgresql://me@127.0.0.1/x?password=%zzhunter2",
    ],
)
def test_a_wrong_address_ends_with_2_says_how_to_fix_it_and_never_the_password(wrong):
    done = onceload("status", ONCELOAD_DSN=wrong)

    assert done.returncode == 2
    assert "ONCELOAD_DSN" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["status", "init", "doctor"])
@pytest.mark.parametrize("place", ["127.0.0.1:1", "host.invalid"])
def test_a_server_that_cannot_be_reached_may_be_called_again(command, place):
    done = onceload(command, ONCELOAD_DSN=f"postgresql://me:hunter2@{place}/nowhere")

    assert done.returncode == (2 if command == "doctor" else 1)
    assert "the database cannot be reached" in done.stderr
    assert "ONCELOAD_DSN" in done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_standby_may_be_promoted_when_the_call_is_made_again(loaded, dsn):
    with loaded.begin() as connection:
        name = connection.execute(text("SELECT current_database()")).scalar_one()
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))

    done = onceload("status", ONCELOAD_DSN=dsn)

    assert done.returncode == 1
    assert "session is read-only" in done.stderr


def test_a_user_without_rights_gets_an_error_that_names_them(loaded, dsn):
    with loaded.begin() as connection:
        connection.execute(text("DROP ROLE IF EXISTS onceload_nobody"))
        connection.execute(text("CREATE ROLE onceload_nobody LOGIN"))
    try:
        done = onceload("status", ONCELOAD_DSN=dsn, PGUSER="onceload_nobody", PGOPTIONS="-c role=onceload_nobody")
    finally:
        with loaded.begin() as connection:
            connection.execute(text("DROP ROLE onceload_nobody"))

    assert done.returncode == 2
    assert "permission denied" in done.stderr
    assert "grant" in done.stderr


def test_doctor_checks_everything_and_prints_how_to_fix_it(empty_dsn):
    before = onceload("doctor", "--json", ONCELOAD_DSN=empty_dsn)
    onceload("init", ONCELOAD_DSN=empty_dsn)
    after = onceload("doctor", "--json", ONCELOAD_DSN=empty_dsn)

    assert before.returncode == 2
    assert "Run `onceload init`" in before.stderr
    assert [check["name"] for check in json.loads(after.stdout)["checks"]] == [
        "python", "java", "pyspark", "disk", "database", "clock", "schema", "rights",
    ]  # fmt: skip
    assert after.returncode == 0, after.stderr


def test_doctor_goes_on_without_java_and_without_a_database(tmp_path):
    done = onceload("doctor", "--json", JAVA_HOME=str(tmp_path), ONCELOAD_DSN="postgresql://127.0.0.1:1/x")

    checks = {check["name"]: check["healthy"] for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 2
    assert checks == {"python": True, "java": False, "pyspark": True, "disk": True, "database": False}
    assert "openjdk-17" in done.stderr
