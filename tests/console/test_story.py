"""A bad day, understood and solved on the pages alone: in Chromium, with real loads and a worker that is killed."""

import os
import signal
import subprocess
import sys

import pytest
from playwright.sync_api import Page

from onceload.console.standalone import TokenAccess, make_standalone_app
from onceload.lag import Behind
from onceload.settings import Settings
from onceload_core.postgres import LedgerSettings, connect
from tests.console.browser import CHROMIUM, Watched, chromium, press, served, type_into
from tests.console.conftest import Day
from tests.waiting import until

pytestmark = [pytest.mark.long(minutes=1), pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")]

_PIPELINE = """\
pipeline: {name}
source: {{path: "{folder}/{name}/*.jsonl", format: jsonl, chunk_bytes: {chunk_bytes}}}
columns: {{n: bigint not null}}
target: {{table: public.{name}}}
publish: {publish}
schedule: "*/5 * * * *"
quality: {{quarantined_max: 100%}}
"""
_LINES = 50_000


@pytest.fixture
def day(dsn, tmp_path):
    (tmp_path / "pipelines").mkdir()
    engine = connect(LedgerSettings(dsn=dsn))
    yield Day(folder=tmp_path, dsn=dsn, engine=engine)
    engine.dispose()


@pytest.fixture
def page(day, monkeypatch):
    """The console, which lists the files whenever it is asked for them."""
    access = TokenAccess(
        day.engine, Settings(dsn=day.dsn), folder=day.folder / "pipelines", token="secret", writes=True
    )
    behind = Behind(day.engine, day.folder / "pipelines")

    def now(_):
        behind.look()
        return behind

    monkeypatch.setattr("onceload.console.watching.Watch.now", now)
    app = make_standalone_app(access, hosts=["127.0.0.1"])
    with chromium() as browser, served(app) as address, Watched.opened(browser) as watched:
        watched.page.goto(f"{address}/?token=secret")
        yield watched.page
    assert watched.errors == []


def declare(day: Day, name: str, *, publish: str = "direct", chunk_bytes: int = 10_000) -> None:
    text = _PIPELINE.format(name=name, folder=day.folder, publish=publish, chunk_bytes=chunk_bytes)
    day.write(f"pipelines/{name}.yaml", text)


def state(page: Page, pipeline: str) -> str:
    page.get_by_role("link", name="Onceload").click()
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=pipeline)).inner_text()


def follow(page: Page, *names: str) -> None:
    for name in names:
        page.get_by_role("link", name=name, exact=True).first.click()


def job_done(page: Page) -> str:
    """The newest job, when it has ended."""
    follow(page, "Jobs")

    def ended() -> bool:
        page.reload()
        return ">running<" not in page.content()

    until(ended)
    return page.get_by_role("listitem").first.inner_text()


def rows(day: Day, table: str) -> list[int]:
    return [n for (n,) in day.ask(f"SELECT n FROM {table} ORDER BY n")]


def test_a_late_file_is_loaded(page, day):
    declare(day, "late")
    day.write("late/a.jsonl", '{"n": 1}\n')
    day.load("late")
    # A file that was modified before that load counts from then on.
    day.ask("UPDATE onceload.attempt SET looked_at = looked_at - interval '3 hours' WHERE pipeline = 'late'")
    day.write("late/b.jsonl", '{"n": 2}\n', age_s=7200)
    assert "late" in state(page, "late")
    assert "new records have been waiting for" in state(page, "late")

    follow(page, "late", "Load now")
    page.get_by_role("button", name="Load").click()

    assert "1 loaded" in job_done(page)
    assert "all files are loaded" in state(page, "late")
    assert rows(day, "late") == [1, 2]


def test_a_broken_record_is_fixed(page, day):
    declare(day, "broken")
    day.write("broken/a.jsonl", '{"n": 1}\n{"n": "2O"}\n')
    day.load("broken")
    assert "1 in the last 24 hours" in state(page, "broken")

    follow(page, "1")
    assert page.locator("mark").inner_text() == "2O"
    follow(page, "Fix")
    page.get_by_label("The record").fill('{"n": 20}')
    page.get_by_role("button", name="Load the fixed record").click()

    assert "1 record loaded" in page.get_by_role("status").inner_text()
    assert rows(day, "broken") == [1, 20]
    day.load("broken")
    assert rows(day, "broken") == [1, 20]


def test_a_broken_record_is_fixed_by_keyboard_alone(page, day):
    declare(day, "typed")
    day.write("typed/a.jsonl", '{"n": 1}\n{"n": "3O"}\n')
    day.load("typed")
    page.reload()

    press(page, "typed")
    press(page, "Quarantine")
    press(page, "Fix")
    type_into(page, "The record", '{"n": 30}')
    press(page, "Load the fixed record")

    assert "1 record loaded" in page.get_by_role("status").inner_text()
    assert rows(day, "typed") == [1, 30]


def test_a_rewritten_file_is_replaced(page, day):
    declare(day, "rewritten", publish="staged")
    day.write("rewritten/a.jsonl", '{"n": 1}\n{"n": 2}\n')
    subprocess.run(command(day, "rewritten"), env=environment(day), check=True)
    day.write("rewritten/a.jsonl", '{"n": 7}\n{"n": 8}\n{"n": 9}\n')
    assert "1 file cannot be loaded" in state(page, "rewritten")

    follow(page, "rewritten", "Needs a person", "Compare it with what was loaded, and choose", "Replace its rows")
    page.get_by_role("button", name="Replace").click()

    assert "3 loaded" in job_done(page)
    assert "all files are loaded" in state(page, "rewritten")
    assert rows(day, "rewritten") == [7, 8, 9]


def test_a_load_whose_worker_was_killed_is_finished(page, day):
    declare(day, "killed")
    day.write("killed/a.jsonl", "".join(f'{{"n": {n}}}\n' for n in range(_LINES)))
    process = subprocess.Popen(command(day, "killed"), env=environment(day), start_new_session=True)
    until(lambda: day.ask("SELECT 1 FROM onceload.ledger"))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    loaded = rows(day, "killed")
    assert 0 < len(loaded) < _LINES
    # As at once, however slow this is.
    day.ask("UPDATE onceload.session SET lease_until = clock_timestamp() + interval '1 minute' RETURNING 1")
    assert "loading" in state(page, "killed")
    # As an hour later.
    for table, column in (("session", "lease_until"), ("delivery", "deadline_at"), ("attempt", "begun_at")):
        day.ask(f"UPDATE onceload.{table} SET {column} = {column} - interval '1 hour' RETURNING 1")
    assert "has not ended, and no session works on it" in state(page, "killed")

    follow(page, "killed", "Load now")
    page.get_by_role("button", name="Load").click()

    assert f"{_LINES - len(loaded):,} loaded" in job_done(page)
    assert "all files are loaded" in state(page, "killed")
    assert rows(day, "killed") == list(range(_LINES))


def command(day: Day, name: str) -> list[str]:
    file = day.folder / "pipelines" / f"{name}.yaml"
    return [sys.executable, "-m", "onceload", "load", str(file), "--engine", "local"]


def environment(day: Day) -> dict[str, str]:
    return {**os.environ, "ONCELOAD_DSN": day.dsn}
