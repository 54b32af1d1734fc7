"""Metrics for monitoring: they agree with the ledger, and need only a reader's rights."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from onceload import cli
from onceload_core.postgres import LedgerSettings, PostgresSnapshots, connect
from tests.ports import free_port
from tests.servers import as_member, execute
from tests.waiting import PATIENCE_S, until

MONITORING = Path(__file__).resolve().parents[2] / "monitoring"
PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/{name}/{{{{ ds }}}}/*.jsonl", format: jsonl}}
columns: {{n: bigint not null}}
target: {{table: public.{name}}}
publish: direct
quality: {{quarantined_max: 50%}}
"""


def call(dsn, *command):
    return cli.main(command, {**os.environ, "ONCELOAD_DSN": dsn})


@pytest.fixture
def folder(dsn, tmp_path):
    """Two pipelines, one of which has loaded one day of two; all of it with no more rights than are needed."""
    engine = connect(LedgerSettings(dsn=dsn))
    execute(dsn, "GRANT CREATE ON SCHEMA public TO onceload_loader")
    (tmp_path / "pipelines").mkdir()
    for name in ("events", "empty"):
        (tmp_path / name / "2026-01-01").mkdir(parents=True)
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(PIPELINE.format(name=name, folder=tmp_path))
    (tmp_path / "events" / "2026-01-01" / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n{"n": "x"}\n')
    consume(dsn, tmp_path)
    PostgresSnapshots(engine).take("events")
    engine.dispose()
    (tmp_path / "events" / "2026-01-02").mkdir()
    (tmp_path / "events" / "2026-01-02" / "b.jsonl").write_text('{"n": 3}\n')
    return tmp_path


def consume(dsn, folder, day="2026-01-01"):
    loader = as_member(dsn, "onceload_loader")
    file = str(folder / "pipelines" / "events.yaml")
    assert call(loader, "consume", file, "--session", "one", "--set", f"ds={day}") in (0, 4)


def figures(text):
    """Every sample by its name and its labels."""
    families = text_string_to_metric_families(text)
    return {
        (each.name.removeprefix("onceload_"), *sorted(each.labels.values())): each.value
        for family in families
        for each in family.samples
    }


def test_they_say_what_the_ledger_says(folder, dsn, capsys):
    capsys.readouterr()

    assert call(as_member(dsn, "onceload_reader"), "metrics", "--pipelines", str(folder / "pipelines")) == 0

    found = figures(capsys.readouterr().out)
    ages = {name for name in found if name[0].endswith(("age_seconds", "waiting_seconds"))}
    assert {name: value for name, value in found.items() if name not in ages and value} == {
        ("up",): 1,
        ("position", "events"): 1,
        ("commits_total", "events", "load"): 1,
        ("records_total", "events", "loaded"): 2,
        ("records_total", "events", "quarantined"): 1,
        ("bytes_total", "events"): 29,
        ("quarantined_records", "events"): 1,
        ("producers", "events"): 1,
        ("producers_max", "events"): found["producers_max", "events"],
        ("lag_files", "events"): 1,
        ("lag_bytes", "events"): 9,
        ("lag_known", "events"): 1,
        ("lag_known", "empty"): 1,
        ("state", "events", "fine"): 1,
        ("state", "empty", "new"): 1,
    }
    assert ages == {(f"{what}_age_seconds", "events") for what in ("last_commit", "snapshot", "lag")} | {
        ("lag_age_seconds", "empty"),
        ("waiting_seconds", "empty"),
        ("waiting_seconds", "events"),
    }
    assert all(0 <= found[name] < PATIENCE_S for name in ages)


def test_an_unreadable_pipeline_is_reported_and_hides_no_other(folder, dsn, capsys):
    (folder / "pipelines" / "broken.yaml").write_text("pipeline: broken\n")
    shutil.rmtree(folder / "empty")
    capsys.readouterr()

    assert call(dsn, "metrics", "--pipelines", str(folder / "pipelines")) == 0

    said = capsys.readouterr()
    known = {name[1]: value for name, value in figures(said.out).items() if name[0] == "lag_known"}
    assert known == {"events": 1, "empty": 0, str(folder / "pipelines" / "broken.yaml"): 0}
    assert "the lag of empty is unknown" in said.err


def test_an_expired_claim_and_a_dead_letter_are_not_open_work(folder, dsn, capsys):
    execute(
        dsn,
        "INSERT INTO onceload.delivery (pipeline_id, batch, state, session_id, epoch, deadline_at, work, offered_at)"
        " SELECT pipeline_id, 'b', kind.state, session_id, 1, now() - interval '1 day', kind.work, now() - kind.age"
        " FROM onceload.session, (VALUES ('held', NULL, interval '9 days'), ('dead', '{}', interval '8 days'),"
        " ('held', '{}', interval '7 days')) AS kind (state, work, age)",
    )
    capsys.readouterr()

    assert call(dsn, "metrics") == 0

    age_s = figures(capsys.readouterr().out)["oldest_claim_age_seconds", "events"]
    assert age_s == pytest.approx(7 * 86400, abs=PATIENCE_S)


def test_they_are_served_through_a_database_that_goes_away_until_they_are_stopped(folder, dsn):
    port = free_port()

    def ask():
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            return figures(answer.read().decode())

    def shown(is_so):
        """The metrics, if they are as wanted."""
        with suppress(URLError, ConnectionError):
            return found if is_so(found := ask()) else None

    command = [sys.executable, "-m", "onceload", "metrics", "--port", str(port), "--look-every", "1"]
    served = subprocess.Popen(
        [*command, "--pipelines", str(folder / "pipelines")],
        env={**os.environ, "ONCELOAD_DSN": as_member(dsn, "onceload_reader")},
        stderr=subprocess.PIPE,
    )
    with served:
        try:
            before = until(partial(shown, lambda found: ("lag_files", "events") in found))
            consume(dsn, folder, day="2026-01-02")
            after = until(partial(shown, lambda found: found["lag_files", "events"] == 0))
            database = dsn.rpartition("/")[2].partition("?")[0]
            server = dsn.replace(f"/{database}?", "/postgres?")
            execute(server, f"ALTER DATABASE {database} ALLOW_CONNECTIONS false")
            execute(server, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'")
            away = ask()
            execute(server, f"ALTER DATABASE {database} ALLOW_CONNECTIONS true")
            back = ask()
        finally:
            served.send_signal(signal.SIGTERM)
        said = served.communicate(timeout=PATIENCE_S)[1].decode()

    counted = ("records_total", "events", "loaded")
    assert (before[counted], after[counted], back[counted]) == (2, 3, 3)
    assert (away["up",], back["up",]) == (0, 1)
    assert counted not in away
    assert served.returncode == 0
    assert f"metrics are served at http://127.0.0.1:{port}/metrics" in said


def test_a_port_that_is_taken_is_refused(folder, dsn, capsys):
    with closing(socket.socket()) as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()

        code = call(dsn, "metrics", "--port", str(taken.getsockname()[1]))

    assert code == 2
    assert "Expected a free port, such as --port 9188" in capsys.readouterr().err


def expressions():
    rules = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])
    board = json.loads((MONITORING / "grafana.json").read_text())
    yield from (target["expr"] for panel in board["panels"] for target in panel["targets"])


def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist(folder, dsn, capsys):
    capsys.readouterr()
    call(dsn, "metrics", "--pipelines", str(folder / "pipelines"))
    there = set(re.findall(r"^# TYPE (onceload_\w+)", capsys.readouterr().out, re.MULTILINE))

    board = (MONITORING / "grafana.json").read_text()
    asked = {name for each in (*expressions(), board) for name in re.findall(r"\bonceload_\w+", each)}

    assert len(there) > 15
    assert asked == there
