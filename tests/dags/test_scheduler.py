"""Airflow's own scheduler, API server, DAG processor and triggerer run a pipeline, asked by its REST API."""

import ipaddress
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlencode, urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest
from playwright.sync_api import Page

from onceload import cli, stack
from onceload.airflow_api import AirflowApi
from onceload_core.errors import ExitCode, SettingRefused
from onceload_jobs.read import new_content as loading
from tests.console.browser import CHROMIUM, Watched, chromium, follow
from tests.dags.mailbox import mailbox, text_of
from tests.dags.stand import end, processes_of, scheduler_of
from tests.ports import free_port
from tests.servers import execute, temporary_home
from tests.spark_pages import jobs_of
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.long(minutes=5)

PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/{name}/*.jsonl", format: jsonl}}
columns: {{n: bigint not null}}
target: {{table: public.{name}}}
quality: {{suite: suite.yaml}}
"""
SUITE = """\
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: n, min_value: 0}
"""
SECRET = "very-secret-8812"
NAMES = ("readings", "others", "seen", "shown", "told", "desk", "looked_at", "pair_one", "pair_two")
ARRIVING = PIPELINE + "schedule: on_arrival\n"
#: A delivery that fails once is a dead letter.
UNDELIVERED = """\
pipeline: undelivered
source: {{path: "{folder}/undelivered/*.jsonl", format: jsonl}}
columns: {{n: bigint not null}}
target: {{table: public.undelivered}}
publish: direct
delivery: {{deliveries_max: 1}}
"""
#: DAGs of a user's own.
WAITING = """\
from airflow.sdk import DAG, Asset
from airflow.providers.standard.operators.empty import EmptyOperator
from onceload_airflow.operators import WaitForFiles

with DAG("patient"):
    WaitForFiles(task_id="wait", pipeline_file={file!r}, poke_interval=1)

with DAG("after", schedule=[Asset(name="public.readings", uri="onceload://tables/public.readings")]):
    EmptyOperator(task_id="then")

with DAG("impatient"):
    WaitForFiles(task_id="wait", pipeline_file={file!r}, poke_interval=1, timeout=1)
"""
DAG = "/api/v2/dags/ingest__readings"
#: The pages of the console about a pipeline, and about a file.
PAGES = (
    *("pipeline", "files", "quarantine", "attention", "quality", "snapshots", "row", "declaration", "load", "verify"),
    *("snapshot", "pause"),
)
OF_FILE = ("file?pipeline=looked_at&name=", "rewritten?pipeline=looked_at&name=", "replace?pipeline=looked_at&file=")


class Api(AirflowApi):
    """Airflow as a program sees it, and as a browser."""

    @classmethod
    def of(cls, running: stack.Running) -> "Api":
        return cls(running.address, running.user, running.password, patience_s=PATIENCE_S)

    def page(self, address: str) -> tuple[str, Any]:
        """As a browser gets it, which sends its cookie."""
        with urlopen(Request(address, headers={"Cookie": f"_token={self.token}"}), timeout=PATIENCE_S) as answer:
            return answer.read().decode(), answer.headers


@pytest.fixture(scope="module")
def landing():
    with temporary_home() as home:
        (home / "pipelines").mkdir()
        for name in NAMES:
            (home / "landing" / name).mkdir(parents=True)
            (home / "pipelines" / f"{name}.yaml").write_text(PIPELINE.format(name=name, folder=home / "landing"))
        (home / "landing" / "arriving").mkdir()
        arriving = home / "pipelines" / "arriving.yaml"
        arriving.write_text(ARRIVING.format(name="arriving", folder=home / "landing"))
        (home / "landing" / "undelivered").mkdir()
        undelivered = home / "pipelines" / "undelivered.yaml"
        undelivered.write_text(UNDELIVERED.format(folder=home / "landing"))
        (home / "pipelines" / "suite.yaml").write_text(SUITE)
        # Beside those that are made for the pipelines.
        own = home / "airflow" / "bundles" / "pipelines" / "own.py"
        own.parent.mkdir(parents=True)
        own.write_text(WAITING.format(file=str(home / "pipelines" / "others.yaml")))
        yield home / "landing"


@pytest.fixture(scope="module")
def box():
    with mailbox() as box:
        yield box


@pytest.fixture(scope="module")
def figures():
    """A socket that gets what Airflow sends to StatsD."""
    with socket.socket(type=socket.SOCK_DGRAM) as listening:
        # Until a test reads it, it keeps what all runs send.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        listening.bind(("127.0.0.1", 0))
        listening.settimeout(PATIENCE_S)
        yield listening


@pytest.fixture(scope="module")
def running(landing, box, figures):
    metrics = {
        "STATSD_ON": "True",
        "STATSD_HOST": "127.0.0.1",
        "STATSD_PORT": str(figures.getsockname()[1]),
        "STATSD_INFLUXDB_ENABLED": "True",
        "METRICS_ALLOW_LIST": "onceload",
    }
    with pytest.MonkeyPatch.context() as patched:
        for name, value in box.settings.items():
            patched.setenv(name, value)
        for name, value in metrics.items():
            patched.setenv(f"AIRFLOW__METRICS__{name}", value)
        # Tasks that start Spark take longer.
        patched.setenv("ONCELOAD_LATE_AFTER_S", "2")
        yield from all_of_it(landing)


def all_of_it(landing):
    port = free_port()
    before = {each.pid for each in psutil.process_iter()}
    with (
        with_a_connection(),
        stack.running(landing.parent, port=port, pipelines=landing.parent / "pipelines", samples=False) as running,
    ):
        yield running
        assert processes_of(landing.parent)
        with pytest.raises(SettingRefused, match="another one running below"):
            stack.running(landing.parent, port=port, pipelines=landing, samples=False).__enter__()
    # Nothing of it is left.
    assert [each for each in processes_of(landing.parent) if each.pid not in before] == []
    # Neither log nor database holds it: what tasks were given, said, rendered and handed on.
    files = (path for path in landing.parent.rglob("*") if path.is_file())
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


@contextmanager
def with_a_connection() -> Iterator[None]:
    """The database is asked for by a connection, as in an Airflow of one's own; this server takes any password."""
    migrate = stack._migrate

    def and_add(folder: Path, environment: dict[str, str]) -> None:
        migrate(folder, environment)
        (socket_folder,) = parse_qs(urlsplit(environment.pop("ONCELOAD_DSN")).query)["host"]
        said = {"conn_type": "postgres", "host": socket_folder, "schema": "postgres"}
        connection = json.dumps({**said, "login": "postgres", "password": SECRET})
        command = [sys.executable, "-m", "airflow", "connections", "add", "onceload", "--conn-json", connection]
        subprocess.run(command, env=environment, check=True, capture_output=True)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(stack, "_migrate", and_add)
        yield


def test_runs_load_what_is_new_once_skip_when_nothing_is_and_stop_at_a_failed_audit(running, landing, figures):
    api = Api.of(running)
    (landing / "readings" / "a.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    api.until_it_knows("ingest__readings", "after")

    first = api.run("ingest__readings", "first")
    again = api.run("ingest__readings", "again")
    (landing / "readings" / "b.jsonl").write_text('{"n": 3}\n{"n": -4}\n')
    failed = api.run("ingest__readings", "bad")
    (landing / "readings" / "b.jsonl").write_text('{"n": 3}\n{"n": 40}\n')
    mended = api.run("ingest__readings", "mended")

    assert set(first.values()) == {"success"}
    assert again == {"plan": "success", **dict.fromkeys(("load", "audit", "publish", "report"), "skipped")}
    assert (failed["load"], failed["audit"], failed["publish"]) == ("success", "failed", "upstream_failed")
    assert set(mended.values()) == {"success"}
    assert execute(running.dsn, "SELECT n FROM readings ORDER BY n") == [(1,), (2,), (3,), (40,)]
    assert execute(
        running.dsn, "SELECT run_id, loaded FROM onceload.ledger WHERE dag_id = 'ingest__readings' ORDER BY position"
    ) == [
        ("first", 2),
        ("mended", 2),
    ]
    events = [each["extra"] for each in api.ask("/api/v2/assets/events")["asset_events"]]
    assert [extra["loaded"] for extra in events if extra.get("pipeline") == "readings"] == [2, 2]
    assert heard(figures, "readings", loads=2) == {"loaded": 4, "duplicates": 0, "quarantined": 0, "position": 2}
    # The DAG that depends on the table has run after each of them.
    api.until("/api/v2/dags/after/dagRuns", lambda runs: runs["total_entries"] == 2)


def heard(figures, pipeline, *, loads):
    """The metrics of a pipeline that StatsD got from a number of runs that loaded something."""
    found: dict[str, int] = dict.fromkeys(("loaded", "duplicates", "quarantined", "position"), 0)
    while loads:
        said = re.fullmatch(r"airflow\.onceload\.(\w+),pipeline=(\w+):(\d+)\|(c|g)", figures.recv(1500).decode())
        assert said
        name, of_pipeline, value, kind = said.groups()
        if of_pipeline == pipeline and name in found:
            found[name] = int(value) + (found[name] if kind == "c" else 0)
            loads -= name == "position"
    return found


def test_a_run_by_hand_takes_params(running, landing):
    api = Api.of(running)
    api.until_it_knows("ingest__others", "snapshot", "maintain", "verify")
    (landing / "others" / "c.jsonl").write_text('{"n": 5}\n')
    assert set(api.run("ingest__others", "before").values()) == {"success"}

    snapshot = api.run("snapshot", "now", pipeline="others")
    upkeep = api.run("maintain", "now")
    whole = api.run("verify", "whole", pipeline="others", deep=True)
    execute(running.dsn, "DELETE FROM others")
    damaged = api.run("verify", "damaged", pipeline="others")

    assert (snapshot, upkeep) == ({"snapshot": "success"}, {"maintain": "success"})
    assert (whole, damaged) == ({"verify": "success"}, {"verify": "failed"})
    of_others = "FROM onceload.{} JOIN onceload.pipeline USING (pipeline_id) WHERE name = 'others'"
    snapshots, now = (
        execute(running.dsn, f"SELECT max({table}.position) " + of_others.format(table))
        for table in ("snapshot", "ledger")
    )
    assert snapshots == now


def test_a_part_that_dies_is_started_again_without_what_it_has_left_behind(running, landing, capsys):
    api = Api.of(running)
    api.until_it_knows("ingest__others")
    died = scheduler_of(landing.parent)
    of_it = died.children(recursive=True)
    assert of_it

    died.kill()
    restarted = "Airflow's scheduler has ended (exit code -9), and is restarted"
    until(lambda: restarted in capsys.readouterr().err, "the scheduler is restarted")
    (landing / "others" / "d.jsonl").write_text('{"n": 6}\n')
    loaded = api.run("ingest__others", "after")

    assert set(loaded.values()) == {"success"}
    assert [each for each in of_it if each.is_running()] == []


def test_two_schedulers_at_once_load_each_row_once(running, landing):
    api = Api.of(running)
    pairs = [name for name in NAMES if name.startswith("pair")]
    api.until_it_knows(*(f"ingest__{name}" for name in pairs))
    metadata = running.dsn.replace("/postgres?", "/airflow?")
    first = scheduler_of(landing.parent)
    ((newest,),) = execute(metadata, "SELECT max(id) FROM job WHERE job_type = 'SchedulerJob'")
    asked = f"SELECT DISTINCT queued_by_job_id FROM task_instance WHERE queued_by_job_id >= {newest}"
    ends, rounds = time.monotonic() + PATIENCE_S, 0
    with subprocess.Popen(first.cmdline(), env=first.environ(), stdout=subprocess.DEVNULL) as second:
        try:
            while len(execute(metadata, asked)) < 2:
                assert time.monotonic() < ends, "one of them does nothing"
                rounds += 1
                for name in pairs:
                    (landing / name / f"{rounds}.jsonl").write_text(f'{{"n": {rounds}}}\n')
                    api.start(f"ingest__{name}", f"both-{rounds}")
                for name in pairs:
                    assert set(api.ended(f"ingest__{name}", f"both-{rounds}").values()) == {"success"}
        finally:
            second.terminate()
            try:
                second.wait(timeout=PATIENCE_S)
            except subprocess.TimeoutExpired:
                end(second.pid)
                raise

    for name in pairs:
        assert execute(running.dsn, f"SELECT n FROM {name} ORDER BY n") == [(n,) for n in range(1, rounds + 1)]


def test_files_that_arrive_are_loaded_by_a_run_of_their_own(running, landing, tmp_path):
    api = Api.of(running)
    api.until_it_knows("ingest__arriving")

    def arrives(content, *states):
        (tmp_path / "new").write_text(content)
        shutil.move(tmp_path / "new", landing / "arriving" / f"{len(states) // 2}.jsonl")
        path = "/api/v2/dags/ingest__arriving/dagRuns?order_by=run_after"
        runs = api.until(path, lambda found: [each["state"] for each in found["dag_runs"]] == list(states))
        assert {(each["run_type"], each["logical_date"]) for each in runs["dag_runs"]} == {("asset_triggered", None)}

    arrives('{"n": 1}\n', "success")
    arrives('{"n": -2}\n', "success", "failed")
    arrives('{"n": 2}\n', "success", "failed", "success")

    assert execute(running.dsn, "SELECT n FROM arriving ORDER BY n") == [(1,), (2,)]
    (news,) = api.ask("/api/v2/assets?name_pattern=news of arriving".replace(" ", "%20"))["assets"]
    events = api.ask(f"/api/v2/assets/events?asset_id={news['id']}")["asset_events"]
    assert [each["extra"]["payload"]["files"] for each in events] == [1, 1, 1]


def test_a_task_waits_for_what_is_new_without_a_worker_until_its_time_is_over(running, landing):
    api = Api.of(running)
    api.until_it_knows("patient", "impatient")
    assert api.run("impatient", "now") == {"wait": "failed"}
    api.start("patient", "now")
    task = "/api/v2/dags/patient/dagRuns/now/taskInstances/wait"
    api.until(task, lambda found: found["state"] == "deferred")

    (landing / "others" / "awaited.jsonl").write_text('{"n": 7}\n')

    api.until(task, lambda found: found["state"] == "success")
    assert api.ask(f"{task}/xcomEntries/return_value?deserialize=true")["value"] == {"files": 1, "bytes": 9}


def test_mails_report_what_failed_and_what_is_late(running, landing, box):
    api = Api.of(running)
    api.until_it_knows("ingest__told")
    (landing / "told" / "a.jsonl").write_text('{"n": -4}\n')

    api.run("ingest__told", "bad")

    wanted = {"ingest__told: audit needs a person", "ingest__told: a run is late"}
    told: dict[str, str] = {}
    while not wanted <= set(told):
        mail = box.mails.get(timeout=PATIENCE_S)
        told[mail["Subject"]] = text_of(mail)
    assert "a.jsonl 0: -4" in told["ingest__told: audit needs a person"]
    assert "Run bad of ingest__told" in told["ingest__told: a run is late"]


def test_buttons_lead_to_what_was_audited_and_committed_and_to_nothing_else(running, landing):
    api = Api.of(running)
    api.until_it_knows("ingest__shown")
    (landing / "shown" / "a.jsonl").write_text('{"n": 1}\n')
    api.run("ingest__shown", "good")
    (landing / "shown" / "b.jsonl").write_text('{"n": -4}\n')
    api.run("ingest__shown", "blocked")
    links = {
        (run, task): api.ask(f"/api/v2/dags/ingest__shown/dagRuns/{run}/taskInstances/{task}/links")["extra_links"]
        for run, task in (("good", "load"), ("good", "publish"), ("blocked", "audit"))
    }

    ledger, headers = api.page(links["good", "publish"]["Ledger position"])
    audit, _ = api.page(links["blocked", "audit"]["Data Docs"])
    injected, _ = api.page(f"{running.address}/onceload/run?pipeline=shown&batch=%3Cscript%3E")

    assert re.search(r">a\.jsonl</a></th><td class=\"number\">1</td><td>\{\[0,9\)\}</td>", ledger)
    assert f"{running.address}/dags/ingest__shown/runs/good" in ledger
    assert links["good", "load"]["Spark"] == running.spark_ui
    assert f'<a class="outside" href="{running.spark_ui}">spark (ONCELOAD_SPARK sc://localhost:' in ledger
    assert "shown good" in {job.get("description") for job in jobs_of(running.spark_ui)}
    assert headers["Content-Security-Policy"].startswith("default-src 'none';")
    assert "<td>b.jsonl 0: -4</td>" in audit
    assert "&lt;script&gt;" in injected
    assert "<script>" not in injected
    of_run, _ = api.page(f"{running.address}/onceload/of/ingest__shown/good")
    assert of_run == ledger
    with pytest.raises(OSError, match="404"):
        api.page(f"{running.address}/onceload/run?pipeline=none&batch=blocked")
    with pytest.raises(OSError, match="404"):
        api.page(f"{running.address}/onceload/of/backfill")


@pytest.mark.parametrize("path", ["", "/", "/run?pipeline=shown&batch=bad", "/of/ingest__shown/good"])
def test_a_page_of_the_console_leads_to_the_login(running, path):
    with urlopen(f"{running.address}/onceload{path}", timeout=PATIENCE_S) as answer:
        assert urlsplit(answer.url).path == "/auth/login"
        assert "shown" not in answer.read().decode()


@pytest.mark.parametrize(("path", "code"), [(DAG, "401"), ("/onceload/openapi.json", "404"), ("/onceload/docs", "404")])
def test_a_user_who_has_not_logged_in_sees_nothing(running, path, code):
    with pytest.raises(OSError, match=code), urlopen(running.address + path, timeout=PATIENCE_S):
        pass


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no Chromium")
    with chromium() as browser:
        yield browser


@contextmanager
def logged_in(running, browser, *, width: int = 1280, dark: bool = False) -> Iterator[Watched]:
    with Watched.opened(browser, width=width, dark=dark) as watched:
        page = watched.page
        page.goto(f"{running.address}/onceload/")
        # The console leads to Airflow's login, and from there back.
        page.get_by_label("Username").fill(running.user)
        page.get_by_label("Password").fill(running.password)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("**/onceload/**")
        yield watched


def test_the_console_in_airflows_page_fixes_a_record_and_approves_a_rewind(running, landing, browser):
    api = Api.of(running)
    api.until_it_knows("ingest__seen", "recover")
    (landing / "seen" / "a.jsonl").write_text('{"n": 1}\n')
    api.run("ingest__seen", "first")
    (landing / "seen" / "b.jsonl").write_text('{"n": 2}\n{"n": "x"}\n')
    api.run("ingest__seen", "second")

    with logged_in(running, browser) as watched:
        page = watched.page
        page.goto(f"{running.address}/")
        page.get_by_role("link", name="Onceload").click()
        console = page.frame_locator("iframe")
        console.get_by_role("link", name="seen", exact=True).click()
        console.get_by_role("link", name="Quarantine").click()
        console.get_by_role("link", name="Fix").click()
        console.get_by_label("The record").fill('{"n": 3}')
        console.get_by_role("button", name="Load the fixed record").click()
        console.get_by_text("1 record loaded").wait_for()
        assert rows_of(running.dsn, "seen") == [1, 2, 3]

        console.get_by_role("link", name="Timeline").click()
        console.locator("tr", has_text="first").get_by_role("link", name=re.compile("Rewind to position")).click()
        console.get_by_text("would be rolled back").wait_for()
        console.get_by_role("button", name="Rewind").click()
        # Airflow's page itself changes, and not the one in the frame.
        console.get_by_role("link", name="The run of the DAG recover").click()
        page.wait_for_url("**/dags/recover/runs/**")
        run_id = unquote(urlsplit(page.url).path.split("/runs/")[1].split("/")[0])
        api.asked("recover", run_id, "approve")
        page.goto(f"{running.address}/dags/recover/runs/{quote(run_id)}/tasks/approve/required_actions")
        page.get_by_role("button", name="Approve").click()
        states = api.ended("recover", run_id)

    assert states["apply"] == "success"
    assert rows_of(running.dsn, "seen") == [1, 2]
    assert execute(running.dsn, "SELECT session FROM onceload.ledger WHERE kind = 'retry'")[0][0].endswith("by admin")


@dataclass(frozen=True)
class Desk:
    """The actions of one pipeline on the console in Airflow."""

    page: Page
    address: str
    api: Api
    pipeline: str

    def choose(self, action: str, button: str, **query: str) -> None:
        self.page.goto(f"{self.address}/onceload/{action}?{urlencode({'pipeline': self.pipeline, **query})}")
        follow(self.page, "button", button)

    def ended(self, dag_id: str) -> dict[str, str]:
        address = self.page.get_by_role("link", name=f"The run of the DAG {dag_id}").get_attribute("href")
        return self.api.ended(dag_id, unquote(str(address).split("/runs/")[1]))


def test_every_action_of_the_console_in_airflow_does_what_it_says(running, landing, browser):
    api = Api.of(running)
    api.until_it_knows("ingest__desk", "backfill", "verify", "snapshot")
    file = landing / "desk" / "a.jsonl"
    file.write_text('{"n": 1}\n{"n": "x"}\n{"n": "y"}\n')

    with logged_in(running, browser) as watched:
        page, desk = watched.page, Desk(page=watched.page, address=running.address, api=api, pipeline="desk")

        # A pipeline without a commit is known by its file.
        page.goto(f"{running.address}/onceload/of/ingest__desk")
        page.get_by_text("nothing has been loaded yet").wait_for()
        desk.choose("load", "Load")
        assert desk.ended("backfill")["load"] == "success"
        assert rows_of(running.dsn, "desk") == [1]

        ((x, y),) = execute(
            running.dsn,
            "SELECT min(quarantine_id), max(quarantine_id) FROM onceload.quarantine"
            " JOIN onceload.pipeline USING (pipeline_id) WHERE name = 'desk'",
        )
        desk.choose("retry", "Retry", id=str(x))
        page.get_by_text("1 record still in quarantine").wait_for()
        desk.choose("discard", "Discard", id=str(y))
        page.get_by_text("1 record discarded by").wait_for()

        page.goto(f"{running.address}/onceload/pause?pipeline=desk")
        page.get_by_label("Reason").fill("the numbers are checked")
        follow(page, "button", "Pause")
        page.goto(f"{running.address}/onceload/load?pipeline=desk")
        page.get_by_text("This action is not possible now").wait_for()
        desk.choose("resume", "Resume")

        desk.choose("verify", "Verify")
        assert "failed" not in desk.ended("verify").values()
        desk.choose("snapshot", "Take a snapshot")
        assert "failed" not in desk.ended("snapshot").values()

        file.write_text('{"n": 7}\n{"n": 8}\n')
        desk.choose("replace", "Replace", file="a.jsonl")
        assert desk.ended("backfill")["load"] == "success"

    assert rows_of(running.dsn, "desk") == [7, 8]
    assert watched.errors == []
    assert watched.hosts == {"127.0.0.1"}


def test_a_dead_letter_is_redelivered_and_another_is_abandoned_in_airflow(running, landing, browser):
    api = Api.of(running)
    api.until_it_knows("ingest__undelivered", "backfill")

    with logged_in(running, browser) as watched:
        page = watched.page
        desk = Desk(page=page, address=running.address, api=api, pipeline="undelivered")
        for number, (button, words) in enumerate(
            [("Redeliver", "was redelivered. The next load retries it"), ("Abandon", "was abandoned. The next load")]
        ):
            (landing / "undelivered" / f"{number}.jsonl").write_text(f'{{"n": {number}}}\n')
            make_dead_letter(running, landing)
            page.goto(f"{running.address}/onceload/attention?pipeline=undelivered")
            follow(page, "link", button)
            assert watched.violations() == []
            follow(page, "button", button)
            page.get_by_text(words).wait_for()

            desk.choose("load", "Load")

            assert desk.ended("backfill")["load"] == "success"
            assert rows_of(running.dsn, "undelivered") == list(range(number + 1))
        assert watched.errors == []


def make_dead_letter(running, landing):
    """Run a load in this process. Its only attempt to read the file fails."""

    def fail(chunk: object, source: object) -> Iterator[object]:
        raise ValueError("poison")

    file = landing.parent / "pipelines" / "undelivered.yaml"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "read_parts", fail)
        code = cli.main(["consume", str(file), "--session", "one"], {**os.environ, "ONCELOAD_DSN": running.dsn})
    assert code == ExitCode.NEEDS_A_PERSON


@pytest.fixture(scope="module")
def looked_at(running, landing):
    """A pipeline with a loaded file and a quarantined record."""
    api = Api.of(running)
    api.until_it_knows("ingest__looked_at")
    (landing / "looked_at" / "a.jsonl").write_text('{"n": 11}\n{"n": "x"}\n')
    assert "failed" not in api.run("ingest__looked_at", "first").values()
    ((record,),) = execute(
        running.dsn,
        "SELECT quarantine_id FROM onceload.quarantine JOIN onceload.pipeline USING (pipeline_id)"
        " WHERE name = 'looked_at'",
    )
    return int(record)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_every_page_of_the_console_in_airflow_is_easy_to_use(running, browser, looked_at, width, dark):
    of_record = {"fix": f"id={looked_at}", "retry": f"id={looked_at}", "discard": f"id={looked_at}"}
    of_more = {**of_record, "run": "batch=first", "rewind": "position=0"}
    paths = (
        "",
        *(f"{page}?pipeline=looked_at" for page in PAGES),
        *(f"{page}a.jsonl" for page in OF_FILE),
        *(f"{page}?pipeline=looked_at&{more}" for page, more in of_more.items()),
    )

    with logged_in(running, browser, width=width, dark=dark) as watched:
        for path in paths:
            response = watched.page.goto(f"{running.address}/onceload/{path}")
            assert response is not None
            assert response.status == 200, path
            assert watched.violations() == [], path
            assert not watched.is_too_wide(), path
        assert watched.errors == []
        watched.page.goto(f"{running.address}/onceload/file?pipeline=looked_at&name=none")
        assert watched.violations() == []

    assert len(watched.errors) == 1
    assert watched.hosts == {"127.0.0.1"}


def rows_of(dsn: str, table: str) -> list[int]:
    return [n for (n,) in execute(dsn, f"SELECT n FROM public.{table} ORDER BY n")]


def test_everything_listens_on_this_machine_alone(running):
    ours = {each.pid for each in psutil.Process().children(recursive=True)}
    listening = {
        str(getattr(ipaddress.ip_address(each.laddr.ip), "ipv4_mapped", None) or each.laddr.ip)
        for each in psutil.net_connections(kind="inet")
        if each.laddr and each.pid in ours and each.status == psutil.CONN_LISTEN
    }

    # Where a machine has IPv6, Java listens on an address of it that stands for this one.
    assert listening == {"127.0.0.1"}


def test_only_its_owner_can_read_the_password_file(running):
    assert oct(running.password_file.stat().st_mode & 0o777) == "0o600"
    # Logs show values of records.
    assert oct(running.password_file.parent.stat().st_mode & 0o777) == "0o700"
