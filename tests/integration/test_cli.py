"""The command line, as a user calls it: help, usage, completion, stopping, errors."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import psutil
import pytest

from onceload import cli
from onceload.commands import loads
from onceload.outcome import Outcome, find_outcome
from onceload_core.errors import ExitCode
from tests.integration.shell import COMMANDS, in_a_process, onceload
from tests.waiting import PATIENCE_S, until


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


def test_without_a_command_the_overview_names_the_first_one_to_run():
    done = onceload()

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == onceload("--help").stdout
    assert "\n  onceload draft 'landing/orders/*.jsonl' > orders.yaml\n" in done.stderr


def test_the_overview_is_that_of_the_commands():
    assert cli.build_parser("").format_help() == cli.build_parser().format_help()


_LARGE = {"airflow", "fastavro", "fsspec", "great_expectations", "numpy", "pandas", "pyarrow", "pyspark"}
_OF_DATABASES = {"alembic", "psycopg2", "sqlalchemy"}


@pytest.mark.parametrize(("asked", "large"), [(["--help"], _LARGE | _OF_DATABASES), (["load", "--help"], _LARGE)])
def test_help_imports_no_large_library(asked, large):
    """Its time is that of its imports."""
    command = [sys.executable, "-X", "importtime", "-m", "onceload", *asked]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    modules = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.stdout.startswith("usage: onceload ")
    assert {"onceload", "onceload_core"} <= modules
    assert {each.partition(".")[0] for each in modules}.isdisjoint(large)


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
    done = onceload(*wrong)

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("heeded_hangup")
@pytest.mark.long
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
        code = load.wait(PATIENCE_S)

    try:
        until(lambda: not left_with(dsn), "no process of the load is left")
    finally:
        for each in left_with(dsn):
            each.kill()
    assert code == 1
    assert "onceload: interrupted." in said.read_text()


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
