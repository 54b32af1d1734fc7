"""Looking at rows: `onceload show` and `onceload sql`."""

import json
import os
import subprocess
import sys

import pytest

from onceload import cli, looking, psql
from tests.integration.shell import on_a_terminal, onceload
from tests.servers import execute, temporary_home

ODD = """
CREATE TABLE odd (
    "n ""n" bigint, t timestamptz, far timestamp, f float8, d date[], b bytea, j jsonb, price numeric(5,2), x text
);
INSERT INTO odd VALUES
    (1, '2026-11-27 07:00:01.5+00', 'infinity', 'NaN', '{2026-01-01,infinity}', '\\x00ff', '{"a": [1.10]}', 1.50,
     E'red\\x1b[31m\\nx'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, '');
"""


@pytest.fixture
def events(dsn):
    """A table as a load leaves it: two files, of which the second is the newer one."""
    execute(dsn, "CREATE TABLE events (n bigint NOT NULL, _producer_id bigint, _sequence bigint)")
    execute(dsn, "INSERT INTO events SELECT n, n % 2, n * 10 FROM generate_series(1, 6) AS n")
    return dsn


def looked(dsn, capsys, *arguments):
    code = cli.main(arguments, {"ONCELOAD_DSN": dsn})
    return code, *capsys.readouterr()


def test_a_table_is_shown_with_its_columns_and_its_newest_rows_first(events, capsys):
    code, out, err = looked(events, capsys, "show", "events", "--limit", "4", "--csv")

    assert (code, out.splitlines()) == (0, ["n,_producer_id,_sequence", "5,1,50", "3,1,30", "1,1,10", "6,0,60"])
    assert err == (
        "public.events: n bigint not null, _producer_id bigint, _sequence bigint\n"
        "only the newest 4 rows are shown; use --limit to see more\n"
    )


def test_a_table_of_people_leaves_out_the_lineage(events, capsys):
    _, out, err = looked(events, capsys, "show", "events", "--limit", "1")

    assert out == "n\n5\n"
    assert "_producer_id bigint, _sequence bigint" in err


def test_the_target_of_a_pipeline_file_is_shown(dsn, tmp_path, capsys):
    execute(dsn, 'CREATE TABLE "My Table" (n bigint)')
    (tmp_path / "p.yaml").write_text(
        "pipeline: p\nsource: {path: 'in/{{ ds }}/*.jsonl', format: jsonl}\ncolumns: {n: bigint}\n"
        "target: {table: '\"My Table\"'}\n"
    )

    code, out, err = looked(dsn, capsys, "show", str(tmp_path / "p.yaml"), "--set", "ds=x", "--json")

    column = {"name": "n", "type": "bigint", "not_null": False}
    assert code == 0
    assert json.loads(out) == {
        "table": 'public."My Table"', "columns": [column], "rows": [], "newest_first": False
    }  # fmt: skip
    assert "it has no rows yet" in err


def test_a_table_too_large_to_sort_is_shown_in_the_order_in_which_it_is_stored(events, capsys, monkeypatch):
    execute(events, "INSERT INTO events SELECT n, n, n FROM generate_series(1, 300000) AS n")
    # The next scan of a table that is larger than a quarter of the buffers would begin where this one has stopped.
    execute(events, "SELECT n FROM events OFFSET 200000 LIMIT 1")
    monkeypatch.setattr(looking, "SORTING_TIMEOUT", "1ms")

    code, out, err = looked(events, capsys, "show", "events", "--limit", "1", "--csv")

    assert (code, out) == (0, "n,_producer_id,_sequence\n1,1,10\n")
    assert "only the first row is shown" in err


def test_a_table_that_is_not_there_is_refused_with_those_that_are(events, capsys):
    code, _, err = looked(events, capsys, "show", "evnets")

    assert code == 2
    assert "table not found: 'evnets'. Nothing was changed. Known: public.events." in err


def test_values_are_shown_as_postgres_writes_them_and_cannot_control_the_terminal(dsn):
    execute(dsn, ODD)

    head, first, second = on_a_terminal("show", "odd", ONCELOAD_DSN=dsn, COLUMNS="200").splitlines()

    assert head.split() == ["n", '"n', "t", "far", "f", "d", "b", "j", "price", "x"]
    assert " 2026-11-27 07:00:01.5+00  infinity   NaN  {2026-01-01,infinity}  \\x00ff  " in first
    assert first.endswith('{"a": [1.10]}   1.50  red\ufffd[31m\ufffdx')
    assert second.split() == ["NULL"] * 8


def test_json_and_csv_hold_every_value(dsn, capsys):
    execute(dsn, ODD)

    _, as_json, _ = looked(dsn, capsys, "sql", "-c", "SELECT * FROM odd", "--json")
    _, as_csv, _ = looked(dsn, capsys, "sql", "-c", "SELECT price, x FROM odd", "--csv")

    assert json.loads(as_json)["rows"][0] == {
        'n "n': 1, "t": "2026-11-27 07:00:01.5+00", "far": "infinity", "f": "NaN", "d": ["2026-01-01", "infinity"],
        "b": "\\x00ff", "j": {"a": [1.1]}, "price": "1.50", "x": "red\x1b[31m\nx",
    }  # fmt: skip
    assert as_csv == 'price,x\n1.50,"red\x1b[31m\nx"\n,""\n'


@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM onceload.ledger",
        "COMMIT; DELETE FROM events",
        "BEGIN; DELETE FROM events; COMMIT",
        "SELECT 1; DROP TABLE events",
        "WITH gone AS (DELETE FROM events RETURNING n) SELECT * FROM gone",
    ],
)
def test_looking_changes_nothing_unless_that_is_asked_for(events, capsys, change):
    code, _, err = looked(events, capsys, "sql", "-c", change)

    assert code == 2
    assert "in a read-only transaction). Nothing was changed. Expected statements that only read, or --write." in err
    assert execute(events, "SELECT count(*) FROM events") == [(6,)]


def test_a_change_that_is_asked_for_is_made(events, capsys):
    code, out, err = looked(events, capsys, "sql", "--write", "-c", "DELETE FROM events WHERE n > 4")

    assert (code, out, err) == (0, "", "DELETE 2\n")
    assert execute(events, "SELECT count(*) FROM events") == [(4,)]


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ("SELECT nn FROM x", 'relation "x" does not exist. Uncommitted work was rolled back'),
        (
            "SELECT sequence FROM events",
            'column "sequence" does not exist. Uncommitted work was rolled back. Perhaps you meant',
        ),
        (" ", "onceload sql: found no statement. Nothing was changed. Expected SQL in -c, or on stdin."),
        ("SELECT 1 AS a, 2 AS a", "--json: found two columns named 'a'. Nothing was changed. Expected different names"),
    ],
)
def test_a_statement_that_cannot_be_run_is_one_sentence(events, capsys, wrong, expected):
    code, _, err = looked(events, capsys, "sql", "--json", "-c", wrong)

    assert code == 2
    assert expected in err


def test_statements_are_read_from_stdin(events):
    command = [sys.executable, "-m", "onceload", "sql"]

    done = subprocess.run(
        command, input="SELECT 'a%' AS a;\n", env={**os.environ, "ONCELOAD_DSN": events},
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert done.stdout == "a\na%\n"


def test_without_psql_a_prompt_of_our_own_goes_on_after_an_error(events, capsys, monkeypatch):
    typed = iter(["SELECT", " max(n) FROM events;", "DELETE FROM events;", "SELECT x;", "", r"\q"])
    monkeypatch.setattr(psql, "find_psql", lambda *_, **__: None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("builtins.input", lambda _: next(typed))

    code, out, err = looked(events, capsys, "sql")

    assert (code, out.split()) == (0, ["max", "6"])
    assert "each transaction is read-only" in err
    assert "cannot execute DELETE" in err
    assert 'column "x" does not exist' in err


def test_psql_gets_a_password_in_its_environment_and_reads_only(tmp_path):
    stand_in = tmp_path / "psql"
    stand_in.write_text('#!/bin/sh\necho "$@"\necho "$PGPASSWORD $PGOPTIONS"\n')
    stand_in.chmod(0o755)
    program = f"""if True:
        from pathlib import Path
        from onceload.psql import run_psql
        run_psql(Path({str(stand_in)!r}), "postgresql://me:hunter2@h/d?options=-c%20a.b%3D1", writes=False)
    """

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    arguments, environment = done.stdout.splitlines()
    assert "hunter2" not in arguments
    assert environment == "hunter2 -c a.b=1 -c default_transaction_read_only=on"
    assert psql.find_psql("postgresql://me@h/d?sslpassword=hunter2", is_embedded=False) is None


def test_psql_refuses_changes(events):
    found = psql.find_psql(events, is_embedded=True)
    program = f"""if True:
        from pathlib import Path
        from onceload.psql import run_psql
        run_psql(Path({str(found)!r}), {events!r}, writes=False)
    """

    done = subprocess.run(
        [sys.executable, "-c", program], input="DELETE FROM events;\nSELECT count(*) FROM events;\n",
        capture_output=True, text=True, check=True,
    )  # fmt: skip

    assert "cannot execute DELETE in a read-only transaction" in done.stderr
    assert " 6\n" in done.stdout


@pytest.mark.long
def test_on_the_embedded_database_each_command_may_be_the_first_and_a_load_names_the_next(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    file = tmp_path / "p.yaml"
    file.write_text(
        f"pipeline: p\nsource: {{path: '{tmp_path}/{{{{ ds }}}}.jsonl', format: jsonl}}\ncolumns: {{n: bigint}}\n"
        "target: {table: public.p}\n"
    )
    with temporary_home() as home:
        here = {"ONCELOAD_HOME": str(home), "ONCELOAD_DSN": ""}
        plan, load, again = (onceload(each, str(file), "--set", "ds=a", **here) for each in ("plan", "load", "load"))
        next_command = load.stderr.splitlines()[-1].removeprefix("Look at the rows: onceload ").split()
        shown = onceload(*next_command, **here)

    assert [line.split() for line in plan.stdout.splitlines()] == [
        ["file", "from", "byte", "to", "byte", "why"],
        ["a.jsonl", "0", "9", "new"],
    ]
    assert next_command == ["show", str(file), "--set", "ds=a"]
    assert "Look at" not in again.stderr
    assert [line.split()[0] for line in shown.stdout.splitlines()] == ["n", "1"]
