"""The command line as its users meet it: a process, its two streams, its exit code."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest
from sqlalchemy import text

from onceload import cli, schema
from onceload.commands import loads
from onceload.outcome import Outcome, find_outcome
from onceload.snapshot_file import read_snapshot
from onceload_core.errors import ExitCode
from onceload_core.names import Batch, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.spans import SpanSet
from tests.waiting import until

COMMANDS = [
    ["init"],
    ["doctor"],
    ["draft"],
    ["status"],
    ["producers"],
    ["ledger"],
    ["sessions"],
    ["snapshot", "take"],
    ["snapshot", "list"],
    ["snapshot", "export"],
    ["recover", "state"],
    ["recover", "rewind"],
    ["recover", "rebuild"],
    ["validate"],
    ["plan"],
    ["load"],
    ["schema"],
    ["show"],
    ["sql"],
    ["stage"],
    ["audit"],
    ["publish"],
    ["audits"],
    ["run"],
    ["maintain"],
    ["verify"],
    ["why"],
    ["quarantine", "list"],
    ["quarantine", "show"],
    ["quarantine", "export"],
    ["quarantine", "retry"],
    ["quarantine", "discard"],
]
LONG = "landing/events/2026/11/21/a-very-long-name-of-a-file-from-a-device-that-nobody-wanted-to-shorten.jsonl.gz"


def onceload(*arguments, **environment):
    """Run one command in this process, which saves the imports: its exit code and what it wrote."""
    with (
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()) as err,
        patch.dict(os.environ, environment),
    ):
        try:
            code = int(cli.main(arguments, os.environ))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def in_a_process(*arguments, **environment):
    """Run one command as users do."""
    return subprocess.run(
        [sys.executable, "-m", "onceload", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def engine(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    yield engine
    engine.dispose()


@pytest.fixture
def loaded(engine):
    """One pipeline with two commits of a file with a long name."""
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    producer_id = ledger.register("events", [(LONG, 1), ("\x1b[31mred\n", 1)])[LONG, 1]
    session = ledger.open_session("events", SessionName("loader"))
    for first in (0, 1000):
        advance = Advance(producer_id=producer_id, spans=SpanSet.of((first, first + 500)), rows=5)
        ledger.commit(Commit(session=session, batch=Batch("b"), advances=(advance,), write_rows=lambda _: 0))
    return engine


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_that_teaches_by_example(command):
    done = onceload(*command, "--help")

    assert done.returncode == 0
    assert f"example: onceload {' '.join(command)}" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_the_overview_names_every_command_and_the_exit_codes():
    done = onceload("--help")

    assert all(command[0] in done.stdout for command in COMMANDS)
    assert "Exit codes: 0 done" in done.stdout
    assert 'eval "$(register-python-argcomplete onceload)"' in done.stdout


def test_the_overview_is_that_of_the_commands_and_imports_no_driver():
    whole = cli.build_parser()
    program = "import sys; from onceload import cli; cli.build_parser('').format_help(); print(*sys.modules)"

    imported = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout

    assert cli.build_parser("").format_help() == whole.format_help()
    assert not {"sqlalchemy", "psycopg2", "pyarrow", "alembic"} & set(imported.split())


def test_the_versions_that_a_bug_report_needs_are_printed():
    done = onceload("--version")

    ours, parts = done.stdout.splitlines()
    assert (done.returncode, ours) == (0, f"onceload {version('onceload')}")
    assert re.fullmatch(r"Python 3\.\d+\.\d+, libpq \d+\.\d+, pyarrow \d+\.\d+\.\d+", parts)


@pytest.mark.parametrize(
    "wrong",
    [
        [],
        ["lode"],
        ["status", "--limit", "0"],
        ["status", "--limit", "x"],
        ["status", "--limit", "99999999999999999999"],
        ["snapshot"],
        ["snapshot", "export"],
    ],
)
def test_wrong_usage_ends_with_2_and_the_usage(wrong):
    done = in_a_process(*wrong)

    assert done.returncode == 2
    assert done.stderr.startswith("usage: onceload")


def test_each_thing_that_is_wrong_with_a_pipeline_file_has_a_line(tmp_path):
    (tmp_path / "p.yaml").write_text("pipeline: p\nquality: {suite: a.yaml}\n")

    done = onceload("validate", str(tmp_path / "p.yaml"))

    assert done.returncode == 2
    assert f"\n{tmp_path}/p.yaml:2: quality.suite: {tmp_path}/a.yaml:1: the file cannot be read" in done.stderr


def test_a_command_writes_how_it_ended_into_the_file_that_it_is_given(empty_dsn, tmp_path):
    file = tmp_path / "outcome.json"
    told = {"ONCELOAD_DSN": empty_dsn, "ONCELOAD_OUTCOME_FILE": str(file)}

    refused = onceload("status", **told)
    message = refused.stderr.strip().removeprefix("onceload: ")
    assert find_outcome(file) == Outcome(exit_code=ExitCode.WRONG_USE, error="SchemaRefused", message=message)

    onceload("init", **told)
    assert find_outcome(file) == Outcome(exit_code=ExitCode.DONE)
    assert [each.name for each in tmp_path.iterdir()] == ["outcome.json"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.usefixtures("heeded_ctrl_c")
def test_a_load_that_is_stopped_while_spark_starts_leaves_no_jvm_behind(dsn, tmp_path, number):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "p.yaml").write_text(
        f"pipeline: p\nsource: {{path: '{tmp_path}/*.jsonl', format: jsonl}}\ncolumns: {{n: bigint}}\n"
        "target: {table: public.p}\n"
    )
    said = tmp_path / "said"
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "onceload", "load", "--engine", "spark", str(tmp_path / "p.yaml")],
            env={**os.environ, "ONCELOAD_DSN": dsn},
            stderr=stderr,
        ) as load,
    ):
        until(lambda: "java" in names_of(load.pid), "Spark starts")
        load.send_signal(number)
        code = load.wait(60)

    try:
        until(lambda: not left_with(dsn), "no process of the load is left", timeout_s=30)
    finally:
        for each in left_with(dsn):
            each.kill()
    assert code == 1
    assert "onceload: interrupted." in said.read_text()


@pytest.fixture
def heeded_ctrl_c():
    """A shell starts what runs in the background with Ctrl-C ignored, and so would be whatever that starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def names_of(pid):
    """The names of the processes below one."""
    with suppress(psutil.NoSuchProcess):
        return [each.name() for each in psutil.Process(pid).children(recursive=True)]
    return []


def left_with(dsn):
    """The processes that were started for this test; Spark's launcher and its JVM are two, one after the other."""
    found = []
    for each in psutil.process_iter():
        with suppress(psutil.Error):
            if each.environ().get("ONCELOAD_DSN") == dsn:
                found.append(each)
    return found


def test_events_are_json_if_that_is_asked_for(dsn, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1}\n')
    (tmp_path / "p.yaml").write_text(
        f"pipeline: p\nsource: {{path: '{tmp_path}/*.jsonl', format: jsonl}}\ncolumns: {{n: bigint}}\n"
        "target: {table: public.p}\npublish: direct\n"
    )
    environment = {"ONCELOAD_DSN": dsn, "ONCELOAD_LOG": "debug"}

    done = in_a_process("consume", str(tmp_path / "p.yaml"), "--session", "s", "--log-format", "json", **environment)

    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    (committed,) = [each for each in events if each.get("event") == "chunk_committed"]
    assert (committed["level"], committed["pipeline"], committed["position"], committed["rows"]) == ("info", "p", 1, 1)
    levels = {each["event"]: each["level"] for each in events if "event" in each}
    assert levels == {
        **dict.fromkeys(("load_started", "chunk_committed", "load_ended"), "info"),
        **dict.fromkeys(("session_opened", "work_planned", "delivery_taken", "committed"), "debug"),
    }


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        (["lode"], "onceload: error: argument COMMAND: unknown: 'lode'; did you mean load?"),
        (["quarantine", "lst"], "onceload quarantine: error: argument COMMAND: unknown: 'lst'; did you mean list?"),
        (["load", "--batc", "x", "f"], "onceload load: error: unknown option --batc; did you mean --batch?"),
        (["load", "--batc=x", "f"], "onceload load: error: unknown option --batc; did you mean --batch?"),
        (
            ["init", "--zzz"],
            "error: unknown option --zzz; known: -h, --help, --json, --log-format, --debug",
        ),
        (["status", "more"], "onceload status: error: unexpected: more"),
        (
            ["status", "--limit", "x"],
            "onceload status: error: argument --limit: expected 1 to 9223372036854775806, found 'x'",
        ),
        (["quarantine", "list", "--state", "hled"], "argument --state: unknown: 'hled'; did you mean held?"),
    ],
)
def test_a_word_that_is_not_known_is_refused_with_the_nearest_one(capsys, wrong, expected):
    with pytest.raises(SystemExit) as ended:
        cli.main(wrong, {})

    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("onceload qu", ["quarantine "]),
        ("onceload quarantine list --sta", ["--state "]),
        ("onceload quarantine list --state ", ["held", "retried", "discarded", "any"]),
    ],
)
def test_the_shell_completes_what_is_typed(tmp_path, typed, offered):
    asked = {"_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "COMP_LINE": typed, "COMP_POINT": str(len(typed))}

    done = in_a_process(**asked, _ARGCOMPLETE_STDOUT_FILENAME=str(tmp_path / "offered"))

    assert (done.returncode, done.stdout) == (0, "")
    assert (tmp_path / "offered").read_text().split("\n") == offered


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_with_the_line_of_the_docs():
    page = (Path(__file__).resolve().parents[2] / "docs/how-to/completion.md").read_text("utf-8")
    (line,) = {each.strip("` ") for each in re.findall(r"`eval .*?`", page)}
    tab = (
        "COMP_WORDS=(onceload qu) COMP_CWORD=1 COMP_LINE='onceload qu' COMP_POINT=11 COMP_TYPE=9\n"
        "$(complete -p onceload | sed 's/.*-F \\([^ ]*\\).*/\\1/') onceload qu onceload\n"
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"

    done = subprocess.run(
        ["bash", "--norc", "-c", f"{line}\n{tab}"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["quarantine"], done.stderr


def test_a_log_level_that_is_none_is_refused(dsn):
    done = in_a_process("status", ONCELOAD_DSN=dsn, ONCELOAD_LOG="loud")

    assert done.returncode == 2
    assert done.stderr == (
        "onceload: ONCELOAD_LOG: found 'loud'. Nothing was changed. Expected one of debug, info, warning.\n"
    )


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


SAMPLE = str(Path(__file__).parents[2] / "pipelines" / "events.yaml")
#: What a command cannot do without.
NEEDED = {
    "export": ["events.snapshot"],
    "show": ["1"],
    "discard": ["--id", "1"],
    "why": [SAMPLE, "2026-11-20.jsonl"],
    **{name: [SAMPLE, "--batch", "one"] for name in ("audit", "publish")},
    **{name: [SAMPLE] for name in ("stage", "plan", "load", "verify", "rewind", "rebuild", "retry")},
}


def file_for(command, tmp_path):
    needed = NEEDED.get(command[-1], [])
    return [str(tmp_path / each) if each.endswith(".snapshot") else each for each in needed]


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


def on_a_terminal(*arguments, **environment):
    """What a command writes to a terminal: a pseudo terminal that the process takes for its own."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "onceload", *arguments]
    subprocess.run(command, env={**os.environ, **environment}, stdout=theirs, timeout=120, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    return shown


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
    assert "Run `onceload audit` first" in too_early.stderr
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
    done = in_a_process("status", ONCELOAD_DSN=dsn)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "nothing to show: no pipeline yet\n")


def test_an_unknown_pipeline_ends_with_2_and_the_ones_there_are(loaded, dsn):
    done = onceload("ledger", "--pipeline", "evnets", "--json", ONCELOAD_DSN=dsn)

    assert done.returncode == 2
    assert json.loads(done.stdout)["error"] == "NotFound"
    assert "pipeline not found: 'evnets'. Nothing was changed. Known: events." in done.stderr


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


def test_doctor_checks_everything_and_prints_how_to_fix_it(empty_dsn):
    before = onceload("doctor", "--json", ONCELOAD_DSN=empty_dsn)
    onceload("init", ONCELOAD_DSN=empty_dsn)
    after = onceload("doctor", "--json", ONCELOAD_DSN=empty_dsn)

    assert before.returncode == 2
    assert "Run `onceload init`" in before.stderr
    assert [check["name"] for check in json.loads(after.stdout)["checks"]] == [
        "python", "java", "disk", "database", "clock", "schema", "rights",
    ]  # fmt: skip
    assert after.returncode == 0, after.stderr


def test_doctor_goes_on_without_java_and_without_a_database(tmp_path):
    done = onceload("doctor", "--json", JAVA_HOME=str(tmp_path), ONCELOAD_DSN="postgresql://127.0.0.1:1/x")

    checks = {check["name"]: check["healthy"] for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 2
    assert checks == {"python": True, "java": False, "disk": True, "database": False}
    assert "openjdk-17" in done.stderr


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
        timeout=120,
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
        timeout=120,
        check=True,
    )
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)

    assert "lines written: 2 of 2" in shown


def fail(error):
    def run(arguments, settings):
        raise error

    return run


@pytest.mark.parametrize(("option", "environment"), [(["--debug"], {}), ([], {"ONCELOAD_LOG": "debug"})])
@pytest.mark.parametrize("error", [KeyError("a secret row"), MemoryError(), AssertionError("a secret row")])
def test_an_unexpected_error_is_one_sentence_and_a_traceback_only_if_asked_for(
    monkeypatch, capsys, error, option, environment
):
    monkeypatch.setattr(loads, "validate", fail(error))

    code = cli.main(["validate", "events.yaml"], {})
    told = capsys.readouterr().err
    cli.main(["validate", "events.yaml", *option], environment)
    told_all = capsys.readouterr().err

    assert code == 1
    assert f"an unexpected {type(error).__name__} stopped this command. This is a bug in Onceload" in told
    assert "secret" not in told
    assert "Traceback" not in told
    assert "Traceback" in told_all


def test_an_interrupt_is_one_sentence_for_programs_too(monkeypatch, capsys):
    monkeypatch.setattr(loads, "validate", fail(KeyboardInterrupt()))

    code = cli.main(["validate", "--json", "events.yaml"], {})

    assert code == 1
    assert json.loads(capsys.readouterr().out)["error"] == "KeyboardInterrupt"


@pytest.mark.parametrize(("log", "is_told"), [("", False), ("debug", True)])
def test_error_logs_of_libraries_are_shown_only_if_asked_for(log, is_told):
    talking = "[logging.warning('a warning'), logging.error('lost', exc_info=ValueError('it went dead'))]"
    program = f"import logging, onceload.__main__ as it; it.cli.main = lambda *_: {talking} and 0; it.main()"
    environment = {**os.environ, "ONCELOAD_LOG": log}

    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert "a warning" in done.stderr
    assert ("it went dead" in done.stderr) is is_told
