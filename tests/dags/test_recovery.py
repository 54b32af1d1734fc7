"""Backfill and recovery as people start them, with a real scheduler: by its REST API and CLI, and by counting rows."""

import subprocess
import sys
from contextlib import closing, contextmanager
from urllib.parse import quote

import psycopg2
import pytest

from onceload import stack
from onceload.airflow_api import AirflowApi
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.pausing import pause, resume
from tests.dags.stand import check_success, scheduler_of
from tests.ports import free_port
from tests.servers import execute, temporary_home
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.long(minutes=5)

PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/{name}/{below}*.jsonl", format: jsonl, sealed: always}}
columns: {{n: bigint not null}}
target: {{table: public.{name}}}
{schedule}"""
YEARLY = 'schedule: "@yearly"\n'
#: By name: what is below its folder, and when it runs.
PIPELINES = {
    "days": ("{{ ds }}/", YEARLY),
    "rows": ("", YEARLY),
    "tables": ("", YEARLY),
    "paused": ("", YEARLY),
    "halted": ("", YEARLY),
    "fresh": ("", ""),
    "clock": ("", YEARLY),
}


@pytest.fixture(scope="module")
def landing():
    with temporary_home() as home:
        (home / "pipelines").mkdir()
        for name, (below, schedule) in PIPELINES.items():
            (home / "landing" / name).mkdir(parents=True)
            content = PIPELINE.format(name=name, folder=home / "landing", below=below, schedule=schedule)
            (home / "pipelines" / f"{name}.yaml").write_text(content)
        write(home / "landing", "clock/a.jsonl", 12)
        yield home / "landing"


@pytest.fixture(scope="module")
def running(landing):
    with stack.running(
        landing.parent, port=free_port(), pipelines=landing.parent / "pipelines", samples=False
    ) as running:
        yield running


@pytest.fixture(scope="module")
def api(running):
    api = AirflowApi(running.address, running.user, running.password, patience_s=PATIENCE_S)
    api.until_it_knows("backfill", "recover", *(f"ingest__{name}" for name in PIPELINES))
    # Each has its run by the clock at once; it would load what a test has written for a run of its own.
    for name, (_, schedule) in PIPELINES.items():
        if schedule:
            api.until(f"/api/v2/dags/ingest__{name}/dagRuns?run_type=scheduled", have_ended)
    return api


def have_ended(found):
    return found["dag_runs"] and all(run["state"] in ("success", "failed") for run in found["dag_runs"])


def write(landing, path, *numbers):
    file = landing / path
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(f'{{"n": {number}}}\n' for number in numbers))


def rows(running, table):
    return [n for (n,) in execute(running.dsn, f"SELECT n FROM {table} ORDER BY n")]


def commits(running, pipeline):
    statement = f"SELECT position FROM onceload.pipeline WHERE name = '{pipeline}'"
    return max((position for (position,) in execute(running.dsn, statement)), default=0)


def test_a_range_of_days_is_loaded_once_however_often_it_is_asked_for_and_replaced_when_it_is_to_be(
    running, landing, api
):
    for day in (1, 2, 3):
        write(landing, f"days/2026-03-0{day}/a.jsonl", 10 * day, 10 * day + 1)
    asked = {"pipeline": "days", "first_day": "2026-03-01", "last_day": "2026-03-02"}

    before = commits(running, "days")
    first = api.run("backfill", "first", **asked)
    again = api.run("backfill", "again", **asked)

    assert (first, again) == ({"choose": "success", "load": "success"},) * 2
    assert [n for n in rows(running, "days") if n < 100] == [10, 11, 20, 21]
    assert commits(running, "days") == before + 2
    of_again = api.ask(f"/api/v2/dags/ingest__days/dagRuns/{quote('again__backfill__2026-03-02')}/taskInstances")
    assert {each["task_id"]: each["state"] for each in of_again["task_instances"]}["load"] == "skipped"

    write(landing, "days/2026-03-02/a.jsonl", 200, 201, 202)
    api.run("backfill", "anew", **{**asked, "first_day": "2026-03-02", "mode": "replace"})

    assert [n for n in rows(running, "days") if n < 100 or n >= 200] == [10, 11, 200, 201, 202]
    assert commits(running, "days") == before + 3


def test_a_backfill_fails_if_the_run_that_it_started_is_deleted_and_loads_once_it_is_cleared(running, landing, api):
    child = f"/api/v2/dags/ingest__tables/dagRuns/{quote('deleted__backfill')}"
    write(landing, "tables/before.jsonl", 70)
    api.run("ingest__tables", "before")
    write(landing, "tables/deleted.jsonl", 71)
    with at_work(running, api, "tables"):
        api.start("backfill", "deleted", pipeline="tables")
        api.until(child, lambda found: found["state"] == "queued")
        api.until_noticed("backfill", "deleted", "load/0", "deferred")
        api.ask(child, method="DELETE")
        ended = api.ended("backfill", "deleted")

    assert ended == {"choose": "success", "load": "failed"}
    api.clear("backfill", "deleted", "load")
    check_success(api, "backfill", "deleted")
    assert rows(running, "tables").count(71) == 1


@contextmanager
def at_work(running, api, name):
    """A run of the pipeline that cannot end, because its load waits for a lock: further runs are queued."""
    with closing(psycopg2.connect(running.dsn)) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT FROM onceload.pipeline WHERE name = '{name}' FOR UPDATE")
        api.start(f"ingest__{name}", "at-work")
        api.until(f"/api/v2/dags/ingest__{name}/dagRuns/at-work", lambda found: found["state"] == "running")
        yield


def test_days_that_no_path_asks_for_and_days_that_are_missing_are_refused(running, api):
    assert api.run("backfill", "no-days", pipeline="days")["choose"] == "failed"
    of_rows = {"pipeline": "rows", "first_day": "2026-03-01", "last_day": "2026-03-03"}
    assert api.run("backfill", "days", **of_rows)["choose"] == "failed"


def test_a_pipeline_whose_runs_would_wait_is_refused_before_anything_is_rolled_back(running, landing, api):
    write(landing, "paused/a.jsonl", 1)
    api.run("ingest__paused", "before")
    api.ask("/api/v2/dags/ingest__paused", {"is_paused": True}, method="PATCH")

    backfill = api.run("backfill", "paused", pipeline="paused")
    rewind = api.run("recover", "paused", pipeline="paused", what="rewind", position=0)

    assert (backfill["choose"], rewind["look"]) == ("failed", "failed")
    assert rows(running, "paused") == [1]


def test_nothing_is_rolled_back_or_loaded_again_while_the_pipeline_itself_is_paused(running, landing, api):
    write(landing, "halted/a.jsonl", 1)
    api.run("ingest__halted", "before")
    engine = connect(LedgerSettings(dsn=running.dsn))
    pause(engine, "halted", by="ann", why="a repair")

    backfill = api.run("backfill", "halted", pipeline="halted", mode="replace")
    rewind = api.run("recover", "halted", pipeline="halted", what="rewind", position=0)
    skipped = api.run("ingest__halted", "during")
    resume(engine, "halted", by="ann")
    engine.dispose()

    assert (backfill["choose"], rewind["look"]) == ("failed", "failed")
    assert skipped == {"plan": "success", "load": "skipped", "report": "skipped"}
    assert (rows(running, "halted"), commits(running, "halted")) == ([1], 1)


def test_airflows_own_backfill_loads_what_is_missing_and_doing_it_again_is_harmless(running, landing, api):
    scheduler = scheduler_of(landing.parent)
    command = [sys.executable, "-m", "airflow", "backfill", "create", "--dag-id", "ingest__days"]
    command += ["--from-date", "2026-01-01", "--to-date", "2026-01-02", "--reprocess-behavior", "completed"]
    write(landing, "days/2026-01-01/a.jsonl", 101)
    cli = [call(command, scheduler)]
    wait_for_backfills(api)
    cli.append(call(command, scheduler))
    wait_for_backfills(api)
    write(landing, "days/2025-01-01/a.jsonl", 102)
    asked = {
        "dag_id": "ingest__days",
        "from_date": "2025-01-01T00:00:00Z",
        "to_date": "2025-01-02T00:00:00Z",
        "reprocess_behavior": "completed",
        "run_backwards": False,
        "max_active_runs": 1,
    }
    before = commits(running, "days")
    api.ask("/api/v2/backfills", asked)
    wait_for_backfills(api)

    assert [each.returncode for each in cli] == [0, 0], cli
    assert [n for n in rows(running, "days") if 100 < n < 110] == [101, 102]
    assert commits(running, "days") == before + 1


def call(command, scheduler):
    """As the scheduler's own user would."""
    return subprocess.run(
        command, env=scheduler.environ(), capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )


def wait_for_backfills(api):
    api.until(
        "/api/v2/backfills?dag_id=ingest__days",
        lambda found: found["backfills"] and all(each["completed_at"] for each in found["backfills"]),
    )


def test_a_run_may_be_given_the_files_to_load(running, landing, api):
    write(landing, "tables/a.jsonl", 1)
    write(landing, "tables/b.jsonl", 2)

    api.run("ingest__tables", "one", files=["b.*"])

    assert {1, 2}.intersection(rows(running, "tables")) == {2}


def test_a_recovery_says_what_would_go_waits_for_approval_and_loads_it_again(running, landing, api):
    for number in (1, 2):
        write(landing, f"rows/{number}.jsonl", number)
        api.run("ingest__rows", f"load-{number}")
    execute(running.dsn, "UPDATE rows SET n = -2 WHERE n = 2")
    asked = {"pipeline": "rows", "what": "rewind", "position": commits(running, "rows") - 1}

    rejected = recover(api, "rejected", "Reject", **asked)
    unchanged = rows(running, "rows")
    recover(api, "approved", "Approve", **asked)

    assert rejected == dict.fromkeys(rejected, "skipped") | {"look": "success", "approve": "success"}
    assert unchanged[:2] == [-2, 1]
    check_success(api, "recover", "approved")
    assert rows(running, "rows")[:2] == [1, 2]
    assert kinds(running, "rows")[-3:] == ["load", "rewind", "load"]

    # An approval is for one rewind.
    write(landing, "rows/later.jsonl", 55)
    api.start("ingest__rows", "later")
    check_success(api, "ingest__rows", "later")
    api.clear("recover", "approved", "apply")
    check_success(api, "recover", "approved")
    assert kinds(running, "rows")[-4:] == ["load", "rewind", "load", "load"]
    assert 55 in rows(running, "rows")


def test_a_damaged_state_is_repaired_without_asking_a_sound_one_is_left_alone_and_neither_is_rebuilt(
    running, landing, api
):
    write(landing, "rows/state.jsonl", 77)
    api.run("ingest__rows", "before")
    asked = {"pipeline": "rows", "what": "state", "position": 0}
    sound = api.run("recover", "sound", **asked)
    execute(running.dsn, "UPDATE onceload.producer SET consumed = '{}' WHERE name = 'state.jsonl'")

    damaged = api.run("recover", "damaged", **asked)
    api.run("ingest__rows", "after")
    rebuilt = api.run("recover", "rebuild", pipeline="rows", what="rebuild")

    assert sound == dict.fromkeys(sound, "skipped") | {"look": "success"}
    assert (damaged["look"], damaged["apply"], damaged["verify"], damaged["conclude"]) == ("success",) * 4
    assert rows(running, "rows").count(77) == 1
    assert rebuilt["look"] == "failed"


def test_in_a_database_that_has_nothing_of_it_a_pipeline_is_rebuilt_and_verified(running, landing, api):
    write(landing, "fresh/a.jsonl", 9)

    done = api.run("recover", "fresh", pipeline="fresh", what="rebuild")

    assert done == dict.fromkeys(done, "success") | {"reload": "skipped"}
    assert rows(running, "fresh") == [9]


def test_a_run_by_the_clock_loads_what_is_there(running, api):
    path = "/api/v2/dags/ingest__clock/dagRuns"
    (run,) = api.until(path, lambda found: [each["state"] for each in found["dag_runs"]] == ["success"])["dag_runs"]

    assert run["run_type"] == "scheduled"
    assert rows(running, "clock") == [12]


def kinds(running, pipeline):
    statement = "SELECT kind FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id)"
    found = execute(running.dsn, f"{statement} WHERE name = '{pipeline}' ORDER BY ledger.position")
    return [kind for (kind,) in found]


def recover(api, run_id, answer, **params):
    """Run a recovery, and answer what it asks."""
    api.start("recover", run_id, **params)
    assert "1 commit of 1 producer would be rolled back" in api.asked("recover", run_id, "approve")
    api.answer("recover", run_id, "approve", answer)
    return api.ended("recover", run_id)
