"""Results of commands: tables, JSON, batches, snapshots and recoveries."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import text

from onceload.snapshot_file import read_snapshot
from onceload_core.names import Batch, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit
from onceload_core.postgres import PostgresLedger
from onceload_core.spans import SpanSet
from tests.integration.conftest import LONG
from tests.integration.shell import SAMPLE, in_a_process, on_a_terminal, onceload
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("view", ["status", "producers", "ledger", "sessions"])
def test_tables_fit_the_80_columns_of_a_terminal_and_json_holds_everything(loaded, dsn, view):
    table = on_a_terminal(view, ONCELOAD_DSN=dsn, COLUMNS="80")
    document = onceload(view, "--json", ONCELOAD_DSN=dsn)

    assert document.returncode == 0
    lines = table.splitlines()
    assert len(lines) >= 2
    assert max(map(len, lines)) <= 80
    assert "\x1b" not in table
    assert len(json.loads(document.stdout)[view]) == len(lines) - 1
    if view == "producers":
        assert {row["name"] for row in json.loads(document.stdout)[view]} == {LONG, "\x1b[31mred\n"}


@pytest.mark.parametrize("columns", [{}, {"COLUMNS": "80"}], ids=["COLUMNS unset", "COLUMNS set"])
def test_tables_in_a_pipe_show_long_names_whole(engine, dsn, tmp_path, monkeypatch, columns):
    monkeypatch.delenv("COLUMNS", raising=False)
    name = f"{'a-name-that-is-as-long-as-a-file-system-allows-' * 5}.jsonl"
    (tmp_path / name).write_text('{"n": 1}\n')
    (tmp_path / "p.yaml").write_text(
        f"pipeline: p\nsource: {{path: {tmp_path}/*.jsonl, format: jsonl}}\ncolumns: {{n: bigint}}\n"
        "target: {table: public.p}\n"
    )
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    advance = Advance(producer_id=ledger.register("events", [(name, 1)])[name, 1], spans=SpanSet.of((0, 5)), rows=5)
    session = ledger.open_session("events", SessionName(name))
    ledger.commit(Commit(session=session, batch=Batch(name), advances=(advance,), write_rows=lambda _: 0))

    for command in (["plan", str(tmp_path / "p.yaml")], ["producers"], ["ledger"], ["sessions"]):
        piped = onceload(*command, ONCELOAD_DSN=dsn, **columns)

        (line,) = piped.stdout.splitlines()[1:]
        assert name in line
        assert "…" not in piped.stdout


@pytest.mark.long
def test_a_batch_is_staged_audited_and_published_call_by_call(dsn, tmp_path):
    here = {"ONCELOAD_DSN": dsn, "ONCELOAD_HOME": str(tmp_path)}
    orders = str(Path(SAMPLE).with_name("orders.yaml"))

    staged = in_a_process("stage", orders, "--batch", "today", "--json", **here)
    too_early = in_a_process("publish", orders, "--batch", "today", **here)
    audited = in_a_process("audit", orders, "--batch", "today", "--json", **here)
    first, again = (in_a_process("publish", orders, "--batch", "today", "--json", **here) for _ in range(2))
    audits = in_a_process("audits", "--json", **here)

    assert [each.returncode for each in (staged, too_early, audited, first, again)] == [0, 2, 0, 0, 0]
    assert "First run `onceload audit" in too_early.stderr
    rows = json.loads(staged.stdout)["staged"]
    assert json.loads(audited.stdout)["rows"] == rows > 100
    assert [json.loads(each.stdout)["loaded"] for each in (first, again)] == [rows, rows]
    assert [row["success"] for row in json.loads(audits.stdout)["audits"]] == [True, True, True]
    assert (tmp_path / "quality" / "index.html").exists()
    draft = str(tmp_path / "draft.yaml")
    shown = in_a_process("audit", orders, "--suggest", **here)
    written, refused = (in_a_process("audit", orders, "--suggest", "--output", draft, **here) for _ in range(2))
    assert [each.returncode for each in (shown, written, refused)] == [0, 0, 2]
    assert shown.stdout == Path(draft).read_text()
    assert "which already exists" in refused.stderr
    (tmp_path / "orders.yaml").write_text(Path(orders).read_text().replace("quality/orders.yaml", "draft.yaml"))
    assert in_a_process("validate", str(tmp_path / "orders.yaml"), **here).returncode == 0


def test_a_load_that_cannot_be_audited_begins_nothing(dsn, monkeypatch):
    monkeypatch.setattr("onceload.extras.find_spec", lambda name: None if name == "great_expectations" else name)

    done = onceload("load", SAMPLE, ONCELOAD_DSN=dsn)

    assert done.returncode == 2
    assert "pip install 'onceload[quality]'" in done.stderr
    assert "nothing to show" in onceload("status", "--pipelines", "none", ONCELOAD_DSN=dsn).stderr


#: Python runs this when a process starts. It notes which processes import pandas.
NOTING_PANDAS = """
import multiprocessing, os, sys

class Noting:
    def find_spec(self, name, *_):
        if name == "pandas":
            with open(os.environ["NOTED"], "a") as file:
                print(multiprocessing.current_process().name, file=file)

sys.meta_path.insert(0, Noting())
"""


def test_the_sessions_of_a_load_do_not_import_pandas(dsn, tmp_path):
    noted = tmp_path / "noted"
    (tmp_path / "sitecustomize.py").write_text(NOTING_PANDAS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {"PYTHONPATH": path, "NOTED": str(noted), "ONCELOAD_DSN": dsn}
    # pyarrow imports it as soon as it converts a list.
    other = "import multiprocessing, pyarrow; multiprocessing.current_process().name = 'other'; pyarrow.array([1])"
    subprocess.run([sys.executable, "-c", other], env=os.environ | environment, check=True, timeout=PATIENCE_S)
    assert noted.read_text().splitlines() == ["other"]

    assert in_a_process("load", SAMPLE, "--engine", "local", **environment).returncode == 0

    assert not [name for name in noted.read_text().splitlines() if name.startswith("onceload ")]


@pytest.mark.parametrize("wrong", [[], ["--batch", "one", "--output", "x.yaml"]])
def test_an_audit_is_of_a_batch_and_only_a_draft_goes_to_a_file(dsn, wrong):
    done = onceload("audit", SAMPLE, *wrong, ONCELOAD_DSN=dsn)

    assert done.returncode == 2
    assert "Expected --batch NAME, or --suggest" in done.stderr


@pytest.mark.long
def test_a_batch_that_fails_its_audit_ends_with_4_and_the_rows_that_failed(dsn, tmp_path):
    here = {"ONCELOAD_DSN": dsn, "ONCELOAD_HOME": str(tmp_path)}
    (tmp_path / "suite.yaml").write_text(
        "expectations:\n  - type: expect_column_values_to_be_between\n    kwargs: {column: n, max_value: 10}\n"
    )
    (tmp_path / "p.yaml").write_text(
        f"pipeline: p\nsource: {{path: {tmp_path}/*.jsonl, format: jsonl}}\ncolumns: {{n: bigint}}\n"
        "target: {table: public.p}\nquality: {suite: suite.yaml, keep: 2h}\n"
    )
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n{"n": 11}\n')

    done = in_a_process("load", str(tmp_path / "p.yaml"), "--json", **here)

    assert done.returncode == 4
    assert json.loads(done.stdout)["error"] == "AuditFailed"
    assert "expect_column_values_to_be_between n: 1 of 2 are unexpected; such as a.jsonl 9: 11" in done.stderr
    assert "Nothing was published" in done.stderr
    assert " for 2 h" in done.stderr


def test_an_empty_answer_is_printed_in_words(dsn):
    done = in_a_process("status", "--pipelines", "none", ONCELOAD_DSN=dsn)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing to show: no pipeline yet\n")


def test_an_unknown_pipeline_ends_with_2_and_the_ones_there_are(loaded, dsn):
    done = onceload("ledger", "--pipeline", "evnets", "--json", ONCELOAD_DSN=dsn)

    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "NotFound"
    assert "pipeline not found: 'evnets'. Nothing was changed. Known: events." in done.stderr


def test_a_snapshot_is_taken_listed_and_written_to_a_file(loaded, dsn, tmp_path):
    file = tmp_path / "events.snapshot"

    taken = onceload("snapshot", "take", "--json", ONCELOAD_DSN=dsn)
    listed = onceload("snapshot", "list", "--json", ONCELOAD_DSN=dsn)
    exported = onceload("snapshot", "export", str(file), "--json", ONCELOAD_DSN=dsn)

    assert json.loads(taken.stdout) == {"pipeline": "events", "position": 2}
    assert [each["position"] for each in json.loads(listed.stdout)["snapshots"]] == [2]
    assert json.loads(exported.stdout)["producers"] == 1
    assert read_snapshot(file).position == 2


def test_a_recovery_may_start_from_a_snapshot(loaded, dsn):
    onceload("snapshot", "take", ONCELOAD_DSN=dsn)
    with loaded.begin() as connection:
        connection.execute(text("DELETE FROM onceload.producer"))

    recovered = onceload("recover", "state", "--position", "2", "--json", ONCELOAD_DSN=dsn)

    assert json.loads(recovered.stdout)["applied"] is True
    assert json.loads(recovered.stdout)["snapshot_position"] == 2
    assert "damage older than the snapshot was not checked" in recovered.stderr
    assert json.loads(onceload("producers", "--json", ONCELOAD_DSN=dsn).stdout)["producers"][0]["end"] == 1500


def test_a_damaged_snapshot_file_needs_a_person(empty_dsn, tmp_path):
    damaged = tmp_path / "events.snapshot"
    damaged.write_bytes(b"not what was written")
    onceload("init", ONCELOAD_DSN=empty_dsn)

    done = onceload("recover", "rebuild", SAMPLE, "--snapshot", str(damaged), ONCELOAD_DSN=empty_dsn)

    assert done.returncode == 4
    assert "Use another copy" in done.stderr


def test_a_table_that_is_cut_has_a_note(loaded, dsn):
    cut = onceload("ledger", "--limit", "1", ONCELOAD_DSN=dsn)
    whole = onceload("ledger", "--limit", "2", ONCELOAD_DSN=dsn)

    assert len(cut.stdout.splitlines()) == 2
    assert "only the first 1 are shown" in cut.stderr
    assert len(whole.stdout.splitlines()) == 3
    assert whole.stderr == ""


def test_a_recovery_shows_first_what_it_would_do(loaded, dsn):
    with loaded.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{}'"))

    dry = onceload("recover", "state", "--dry-run", ONCELOAD_DSN=dsn)
    wet = onceload("recover", "state", ONCELOAD_DSN=dsn)
    again = onceload("recover", "state", ONCELOAD_DSN=dsn)

    assert (dry.returncode, wet.returncode, again.returncode) == (4, 0, 0)
    assert "\ufffd" not in dry.stderr
    assert "Run again without --dry-run" in dry.stderr
    assert "1 producers differed and were repaired" in wet.stderr
    assert "nothing to do" in again.stderr


def test_a_recovery_while_another_runs_may_be_called_again(loaded, dsn):
    """The first holds its fence, as it does for as long as it works."""
    with loaded.connect() as other:
        other.execute(
            text(
                "SELECT pg_advisory_xact_lock(hashtextextended('onceload.recovery of pipeline ' || pipeline_id, 0))"
                " FROM onceload.pipeline"
            )
        )
        done = onceload("recover", "state", ONCELOAD_DSN=dsn)

    assert done.returncode == 1
    assert "already running" in done.stderr


def test_results_can_be_cut_short_by_their_reader(loaded, dsn):
    """`onceload ledger | head` ends without a traceback."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "onceload", "ledger"],
        env={**os.environ, "ONCELOAD_DSN": dsn},
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(write_end)

    assert (done.returncode, done.stderr) == (0, "")


def test_long_work_shows_on_a_terminal_how_far_it_is(loaded, dsn, tmp_path):
    """The terminal is a real one: a pseudo terminal that the process takes for its own."""
    ours, theirs = os.openpty()
    onceload("snapshot", "take", ONCELOAD_DSN=dsn)
    subprocess.run(
        [sys.executable, "-m", "onceload", "snapshot", "export", str(tmp_path / "events.snapshot")],
        env={**os.environ, "ONCELOAD_DSN": dsn},
        stderr=theirs,
        timeout=PATIENCE_S,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)

    assert "lines written: 2 of 2" in shown
