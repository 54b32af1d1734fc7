"""Commands whose output is lost: its reader has gone, the disk is full, or the streams are closed."""

import os
import subprocess
import sys

import pytest
from sqlalchemy import text

from onceload.outcome import find_outcome
from onceload_core.errors import ExitCode
from tests.integration.shell import onceload
from tests.waiting import PATIENCE_S

FULL = "the output could not be written ([Errno 28] No space left on device). Committed work is kept."


@pytest.fixture
def gone():
    """A pipe whose reader has gone."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        yield pipe


@pytest.fixture
def file(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    (tmp_path / "p.yaml").write_text(
        f"pipeline: p\nsource: {{path: '{tmp_path}/*.jsonl', format: jsonl}}\ncolumns: {{n: bigint}}\n"
        "target: {table: public.p}\n"
    )
    return str(tmp_path / "p.yaml")


def run(*arguments, stdout=None, stderr=None, redirected="", **environment):
    """Run one command in a process, through a shell that may redirect its streams."""
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "onceload", *arguments],
        env={**os.environ, **environment},
        stdout=stdout,
        stderr=stderr,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


def rows(engine):
    with engine.connect() as connection:
        return connection.execute(text("SELECT array_agg(n ORDER BY n) FROM p")).scalar_one()


def test_the_end_of_a_command_does_not_depend_on_the_reader_of_its_output(engine, dsn, file, gone, tmp_path):
    outcome = tmp_path / "outcome.json"
    unreachable = "postgresql://postgres@127.0.0.1:1/postgres"

    def ended(*arguments, dsn=dsn):
        done = run(*arguments, stdout=gone, stderr=gone, ONCELOAD_DSN=dsn, ONCELOAD_OUTCOME_FILE=str(outcome))
        found = find_outcome(outcome)
        assert found is not None
        assert found.exit_code == done.returncode
        return done.returncode

    assert ended("load", file) == ExitCode.DONE
    assert rows(engine) == [1, 2]
    with engine.begin() as connection:
        connection.execute(text("DELETE FROM p WHERE n = 1"))
    for form in ([], ["--json"]):
        assert ended("ledger", *form) == ExitCode.DONE
        assert ended("verify", file, *form) == ExitCode.NEEDS_A_PERSON
        assert ended("status", "--pipeline", "other", *form) == ExitCode.WRONG_USE
        assert ended("status", *form, dsn=unreachable) == ExitCode.CALL_AGAIN


def test_a_result_that_a_full_disk_did_not_take_is_asked_for_again(engine, dsn, file):
    done = run("load", file, "--json", redirected=">/dev/full", stderr=subprocess.PIPE, ONCELOAD_DSN=dsn)

    assert done.returncode == ExitCode.CALL_AGAIN
    assert FULL in done.stderr
    assert "OSError" not in done.stderr
    assert rows(engine) == [1, 2]


@pytest.mark.parametrize("asked", [["status", "--limit", "x"], ["status", "--pipeline", "other", "--json"]])
def test_a_failed_command_keeps_its_exit_code_on_a_full_disk(loaded, dsn, asked):
    done = run(*asked, redirected=">/dev/full 2>/dev/full", ONCELOAD_DSN=dsn)

    assert done.returncode == ExitCode.WRONG_USE


@pytest.mark.parametrize("closed", ["2>&-", ">&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_needs_neither_output(engine, dsn, file, closed):
    loaded = run("load", file, redirected=closed, ONCELOAD_DSN=dsn)
    refused = run("status", "--pipeline", "other", redirected=closed, ONCELOAD_DSN=dsn)

    assert (loaded.returncode, refused.returncode) == (ExitCode.DONE, ExitCode.WRONG_USE)
    assert rows(engine) == [1, 2]
    assert onceload("verify", file, ONCELOAD_DSN=dsn).returncode == ExitCode.DONE
