"""The actions of the console: each shows what it would do, and does it once, for who may."""

import re
import threading
from datetime import UTC, datetime
from html import unescape
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient

from onceload.console import running
from onceload.console.acting import ACTIONS
from onceload.console.actions import jobs
from onceload.console.standalone import TokenAccess, make_standalone_app
from onceload.pipeline import Pipeline
from onceload.pipeline_file import read_pipeline
from onceload.recoveries import rewind_in_words
from onceload_core.errors import SettingRefused
from onceload_core.names import Position
from onceload_jobs.recover.rewind import rewind
from tests.console.conftest import MARKUP, PIPELINE, day_of
from tests.console.test_pages import words_of
from tests.waiting import until


@pytest.fixture
def day(server_dsn, template, tmp_path):
    """A day of its own for each test, because it is changed."""
    with day_of(server_dsn, template, tmp_path) as day:
        yield day


@pytest.fixture
def console(day):
    with TestClient(make_standalone_app(day.access(writes=True), hosts=["testserver"])) as client:
        client.get("/?token=secret")
        until(lambda: "are being listed" not in client.get("/").text)
        yield client


OF_KIND = "pipeline=well&column=n&kind=%E2%80%A6%20is%20not%20a%20valid%20bigint"


def form_of(html: str) -> dict[str, str]:
    fields = re.findall(r'<input type="hidden" name="(.*?)" value="(.*?)">', html)
    return {unescape(name): unescape(value) for name, value in fields}


def confirm(console: TestClient, path: str, **filled: str) -> str:
    """Ask, fill the field in, and confirm, as a browser does."""
    question = console.get(path)
    assert question.status_code == 200, question.text
    (action,) = re.findall(r'<form class="question" method="post" action="(.*?)">', question.text)
    answer = console.post(f"/{unescape(action)}", data=form_of(question.text) | filled)
    assert answer.status_code == 200, answer.text
    return words_of(answer.text)


def rows(day, table="well"):
    return [n for (n,) in day.ask(f"SELECT n FROM {table} ORDER BY n")]


def quarantined(day, reason):
    ((number,),) = day.ask(f"SELECT quarantine_id FROM onceload.quarantine WHERE reason LIKE '%{reason}%'")
    return number


def test_a_fixed_record_is_loaded_once(console, day):
    path = f"/fix?pipeline=well&id={quarantined(day, 'y')}"
    assert "'y' is not a valid bigint" in words_of(console.get(path).text)

    answer = confirm(console, path, raw='{"n": 5}')

    assert "1 record loaded" in answer
    assert rows(day) == [1, 3, 4, 5]
    # The button Back of the browser, and the form again.
    assert console.post("/fix?pipeline=well", data={"raw": '{"n": 5}'}).status_code == 403
    assert console.get(path).status_code == 400
    assert rows(day) == [1, 3, 4, 5]
    assert day.ask("SELECT session FROM onceload.ledger WHERE kind = 'retry'")[0][0].split("/retry by ")[1]


def test_a_retried_record_counts_as_a_row_of_its_file(console, day):
    confirm(console, f"/fix?pipeline=well&id={quarantined(day, 'x')}", raw='{"n": 2}')

    assert "The 3 rows stay" in words_of(console.get("/rewritten?pipeline=well&name=a.jsonl").text)


def test_a_fix_that_is_still_wrong_stays_in_the_form_and_the_record_keeps_its_reason(console, day):
    number = quarantined(day, "y")
    reason = day.ask(f"SELECT column_name, reason FROM onceload.quarantine WHERE quarantine_id = {number}")

    answer = confirm(console, f"/fix?pipeline=well&id={number}", raw='{"n": "z"}')

    assert "Your record was not loaded because: n: 'z' is not a valid bigint. Nothing was changed." in answer
    assert rows(day) == [1, 3, 4]
    assert day.ask(f"SELECT column_name, reason FROM onceload.quarantine WHERE quarantine_id = {number}") == reason
    assert day.ask(f"SELECT state FROM onceload.quarantine WHERE quarantine_id = {number}") == [("held",)]


def test_a_fix_that_was_wrong_is_corrected_in_the_same_form(console, day):
    question = console.get(f"/fix?pipeline=well&id={quarantined(day, 'y')}")
    (action,) = re.findall(r'<form class="question" method="post" action="(.*?)">', question.text)

    again = console.post(f"/{unescape(action)}", data=form_of(question.text) | {"raw": '{"n": "z"}'})
    done = console.post(f"/{unescape(action)}", data=form_of(again.text) | {"raw": '{"n": 5}'})

    assert unescape(re.findall(r"<textarea[^>]*>\n(.*?)</textarea>", again.text, re.DOTALL)[0]) == '{"n": "z"}'
    assert "1 record loaded" in words_of(done.text)
    assert rows(day) == [1, 3, 4, 5]


def test_a_fix_of_other_bytes_than_the_form_showed_loads_nothing(console, day):
    """A database that was restored may hold another record under the same id."""
    number = quarantined(day, "y")
    question = console.get(f"/fix?pipeline=well&id={number}")
    day.ask(f"UPDATE onceload.quarantine SET raw = '{{}}' WHERE quarantine_id = {number} RETURNING 1")

    answer = console.post("/fix?pipeline=well", data=form_of(question.text) | {"raw": '{"n": 5}'})

    assert answer.status_code == 400
    assert f"record {number}: found a fix of other bytes" in words_of(answer.text)
    assert rows(day) == [1, 3, 4]


def test_a_huge_value_makes_no_huge_page_and_is_not_fixed_there(console, day):
    day.write("well/huge.jsonl", f'{{"n": "{"z" * 2_000_000}"}}\n')
    day.load("well")

    page = console.get("/quarantine?pipeline=well").text
    refused = console.get(f"/fix?pipeline=well&id={quarantined(day, 'zz')}")

    assert len(page) < 20_000
    assert "(2.0 MB in total)" in words_of(page)
    assert refused.status_code == 400
    assert "2,000,009 bytes that this page cannot show" in words_of(refused.text)


def test_records_of_a_reason_are_retried_with_the_pipeline_file_of_today(console, day):
    path = f"/retry?{OF_KIND}"
    assert "2 records in quarantine" in words_of(console.get(path).text)

    answer = confirm(console, path)

    assert "2 records still in quarantine" in answer


def test_discarded_records_are_never_loaded_and_the_ledger_names_the_user(console, day):
    number = quarantined(day, "y")

    answer = confirm(console, f"/discard?pipeline=well&id={number}")

    assert "1 record discarded" in answer
    assert day.ask(f"SELECT state FROM onceload.quarantine WHERE quarantine_id = {number}") == [("discarded",)]
    assert "discard by" in day.ask("SELECT session FROM onceload.ledger WHERE kind = 'discard'")[0][0]
    question = console.get(f"/discard?pipeline=well&id={number}").text
    assert "already" in question


def test_nothing_is_discarded_without_a_choice(console, day):
    response = console.get("/discard?pipeline=well")

    assert response.status_code == 400
    assert "no choice of records" in words_of(response.text)


def test_a_dead_letter_is_redelivered_and_loaded(console, day):
    ((number,),) = day.ask("SELECT delivery_id FROM onceload.delivery WHERE state = 'dead'")
    path = f"/redeliver?pipeline=poison&delivery={number}"
    assert "It covers {[0,9)} of a.jsonl" in words_of(console.get(path).text)

    assert "was redelivered" in confirm(console, path)

    day.load("poison")
    assert rows(day, "poison") == [1]


def test_a_dead_letter_is_abandoned_and_planned_again(console, day):
    ((number,),) = day.ask("SELECT delivery_id FROM onceload.delivery WHERE state = 'dead'")

    assert "was abandoned" in confirm(console, f"/abandon?pipeline=poison&delivery={number}")

    day.load("poison")
    assert rows(day, "poison") == [1]


def test_a_pause_stops_loads_until_the_resume(console, day):
    assert "is paused" in confirm(console, "/pause?pipeline=late", why="the file is wrong")

    assert "the file is wrong" in words_of(console.get("/").text)
    day.load("late", code=1)
    assert "is resumed" in confirm(console, "/resume?pipeline=late")
    day.load("late")
    assert rows(day, "late") == [1, 2]


def test_a_file_of_which_nothing_was_loaded_is_not_compared(day, request):
    day.write("rewritten/new\n.jsonl", '{"n": 1}\n')
    console = request.getfixturevalue("console")
    until(lambda: "Other files" in words_of(console.get("/attention?pipeline=rewritten").text))

    page = console.get("/attention?pipeline=rewritten").text

    assert "2 files cannot be loaded" in words_of(page)
    compared = re.findall('href="(rewritten[^"]*)"', page)
    assert [console.get(f"/{unescape(each)}").status_code for each in compared] == [200]


def job(console: TestClient) -> str:
    """The newest job, when it has ended."""
    until(lambda: ">running<" not in console.get("/jobs").text)
    return words_of(console.get("/jobs").text)


def test_a_load_is_started_and_its_result_is_shown(console, day):
    assert "was started" in confirm(console, "/load?pipeline=late")

    assert "done started" in job(console)
    assert "1 loaded, 0 duplicates" in job(console)
    assert rows(day, "late") == [1, 2]


def test_a_pipeline_that_was_never_loaded_is_loaded_from_its_page(console, day):
    day.write("new/a.jsonl", '{"n": 1}\n')
    assert "pipeline: new" in words_of(console.get("/pipeline?pipeline=new").text)

    confirm(console, "/load?pipeline=new")

    assert "1 loaded" in job(console)
    assert rows(day, "new") == [1]


@pytest.mark.parametrize(
    ("name", "day_of_file"),
    [("2026-03-01/a.jsonl", "2026-03-01"), ("a_20260302.jsonl", "2026-03-02"), ("2026-13-01.jsonl", None)],
)
def test_a_load_of_one_file_asks_for_the_day_in_its_name(day, monkeypatch, name, day_of_file):
    monkeypatch.setattr(TokenAccess, "loads_by_day", True)
    text = PIPELINE.format(name="daily", folder=day.folder).replace("*.jsonl", "{{ ds }}/*.jsonl")
    day.write("pipelines/daily.yaml", text)
    with TestClient(make_standalone_app(day.access(writes=True), hosts=["testserver"])) as client:
        client.get("/?token=secret")
        until(lambda: client.get("/load?pipeline=daily").status_code == 200)
        question = client.get("/load", params={"pipeline": "daily", "file": name}).text

    (value,) = re.findall(r'name="day" value="(.*?)"', question)
    assert value == (day_of_file or f"{datetime.now(UTC):%Y-%m-%d}")


def test_one_load_at_a_time_is_started(console, day, monkeypatch):
    load, gate = Pipeline.load, threading.Event()

    def begin_late(pipeline, **options):
        gate.wait()
        return load(pipeline, **options)

    monkeypatch.setattr(Pipeline, "load", begin_late)
    form = form_of(console.get("/load?pipeline=late").text)

    answers = [console.post("/load?pipeline=late", data=form) for _ in range(2)]
    gate.set()

    assert [answer.status_code for answer in answers] == [200, 400]
    assert "one at a time" in words_of(answers[1].text)
    assert "1 loaded" in job(console)


def test_a_job_that_could_not_be_started_can_be_started_again(console, day, monkeypatch):
    def no_thread(**_):
        raise RuntimeError("can't start new thread")

    form = form_of(console.get("/load?pipeline=late").text)
    with monkeypatch.context() as patch:
        patch.setattr(running, "threading", SimpleNamespace(Thread=no_thread))
        with pytest.raises(RuntimeError, match="start new thread"):
            console.post("/load?pipeline=late", data=form)

    assert console.post("/load?pipeline=late", data=form).status_code == 200
    assert "1 loaded" in job(console)


def test_a_rewind_shows_its_numbers_first_and_then_loads_again(console, day):
    path = "/rewind?pipeline=well&position=1"
    question = words_of(console.get(path).text)
    assert "1 commit of 1 producer would be rolled back, with 1 row, " in question
    assert "b.jsonl: 1 row" in question
    assert rows(day) == [1, 3, 4]
    day.write("well/b.jsonl", '{"n": 40}\n')

    confirm(console, path)

    assert "done started" in job(console)
    assert rows(day) == [1, 3, 40]


def test_very_many_commits_are_counted_only_if_the_user_asks_for_it(console, monkeypatch):
    monkeypatch.setattr(jobs, "_COUNTED_AT_ONCE", 1)
    first = console.get("/rewind?pipeline=well&position=0").text
    assert "The ledger has 2 entries after this position" in words_of(first)
    assert "<form" not in first
    (address,) = re.findall('href="(rewind[^"]*)"', first)

    counted = console.get(f"/{unescape(address)}").text

    assert "2 commits of 2 producers would be rolled back" in words_of(counted)
    assert form_of(counted)["seen"] == "2"


def test_during_a_pause_very_many_commits_are_not_offered_to_be_counted(console, monkeypatch):
    monkeypatch.setattr(jobs, "_COUNTED_AT_ONCE", 1)
    confirm(console, "/pause?pipeline=well", why="the file is wrong")

    question = console.get("/rewind?pipeline=well&position=0").text

    assert "the file is wrong" in words_of(question)
    assert "count=yes" not in question


def test_a_rewind_says_the_same_in_its_question_as_in_its_dry_run(console, day):
    declared = read_pipeline(day.folder / "pipelines" / "well.yaml")
    rewind(declared, day.engine, to=Position(1), dry_run=False)
    day.load("well")
    confirm(console, f"/fix?pipeline=well&id={quarantined(day, MARKUP)}", raw='{"n": 2}')
    ((last,),) = day.ask("SELECT max(position) FROM onceload.ledger")
    shown = []
    for to in range(last + 1):
        answer = console.get(f"/rewind?pipeline=well&position={to}")
        try:
            (words,) = rewind_in_words(rewind(declared, day.engine, to=Position(to), dry_run=True)).splitlines()
        except SettingRefused:
            assert answer.status_code == 400
        else:
            assert words in words_of(answer.text)
            shown.append(words)

    assert len(shown) > 3
    assert any("held in quarantine again" in words for words in shown)


def test_a_rewind_of_rows_that_differ_from_the_ledger_changes_nothing_and_reports_them(console, day):
    day.ask("DELETE FROM well WHERE n = 4 RETURNING n")

    confirm(console, "/rewind?pipeline=well&position=1")

    assert "b.jsonl (0 rows instead of 1)" in job(console)
    assert day.ask("SELECT max(position) FROM onceload.ledger") == [(2,)]


def test_a_rewritten_file_cannot_replace_rows_of_direct_loads(console, day):
    assert "cannot replace the rows of a file" in words_of(console.get("/replace?pipeline=rewritten&file=a.jsonl").text)


def test_a_rewind_of_another_position_than_was_shown_is_refused(console, day):
    question = console.get("/rewind?pipeline=well&position=1").text
    day.write("well/c.jsonl", '{"n": 6}\n')
    day.load("well")

    answer = console.post("/rewind?pipeline=well", data=form_of(question))

    assert answer.status_code == 400
    assert "position 3 now, and position 2 when you were asked" in words_of(answer.text)
    assert rows(day) == [1, 3, 4, 6]


def test_a_commit_after_the_confirmation_is_not_rolled_back(console, day, monkeypatch):
    rewind = Pipeline.recover_rewind

    def begin_late(pipeline, **options):
        day.write("well/c.jsonl", '{"n": 6}\n')
        pipeline.load()
        return rewind(pipeline, **options)

    monkeypatch.setattr(Pipeline, "recover_rewind", begin_late)

    confirm(console, "/rewind?pipeline=well&position=1")

    assert "something has committed since position 2" in job(console)
    assert rows(day) == [1, 3, 4, 6]


def test_records_that_came_after_the_question_are_not_discarded(console, day):
    question = console.get(f"/discard?{OF_KIND}").text
    assert "2 records in quarantine" in words_of(question)
    day.write("well/c.jsonl", '{"n": "late"}\n')
    day.load("well")

    console.post("/discard?pipeline=well", data=form_of(question))

    assert day.ask("SELECT state, count(*) FROM onceload.quarantine GROUP BY state ORDER BY state") == [
        ("discarded", 2),
        ("held", 1),
    ]


def test_a_replacement_without_a_file_is_not_one_of_all_files(console):
    token = form_of(console.get("/pause?pipeline=rewritten").text)["token"]

    answer = console.post("/replace?pipeline=rewritten", data={"token": token})

    assert answer.status_code == 400
    assert "no file" in words_of(answer.text)


def test_verify_and_snapshot_show_their_results(console, day):
    confirm(console, "/verify?pipeline=well")
    assert "no difference in 2 files and 3 rows" in job(console)
    confirm(console, "/snapshot?pipeline=well")
    assert "took a snapshot at position 2" in job(console)


REFUSED = (
    "/fix?pipeline=late&id={record}",
    "/redeliver?pipeline=well&delivery={letter}",
    "/abandon?pipeline=well&delivery={letter}",
    "/fix?pipeline=well&id=x",
    "/fix?pipeline=well&id=99999999999999999999",
    "/rewind?pipeline=well&position=-1",
    "/retry?pipeline=late&id={record}",
)


def test_ids_of_other_pipelines_and_no_ids_are_refused(console, day):
    ((letter,),) = day.ask("SELECT delivery_id FROM onceload.delivery WHERE state = 'dead'")
    before = day.ask("SELECT count(*) FROM onceload.ledger")

    for path in REFUSED:
        address = path.format(record=quarantined(day, "y"), letter=letter)
        asked = console.get(address)
        token = form_of(console.get(f"/pause?{urlsplit(address).query}").text)["token"]
        query = {name: values[0] for name, values in parse_qs(urlsplit(address).query).items()}
        done = console.post(address, data=query | {"token": token, "raw": '{"n": 1}'})
        assert asked.status_code in (400, 404), address
        assert done.status_code in (400, 404), address

    assert day.ask("SELECT count(*) FROM onceload.ledger") == before
    assert day.ask("SELECT count(*) FROM onceload.delivery WHERE state = 'dead'") == [(1,)]


def test_a_forged_form_changes_nothing(console):
    of_another = form_of(console.get("/pause?pipeline=late").text)["token"]
    for action in ACTIONS:
        for token in ({}, {"token": ""}, {"token": "0" * 64}, {"token": of_another}):
            form = {"id": "1", "position": "0", "why": "x"} | token
            response = console.post(f"/{action}?pipeline=well", data=form)
            assert response.status_code == 403, action
            assert "Nothing was changed" in response.text


def test_without_write_there_is_no_action(day):
    with TestClient(make_standalone_app(day.access(writes=False), hosts=["testserver"])) as console:
        console.get("/?token=secret")
        for action in ACTIONS:
            for answer in (console.get(f"/{action}?pipeline=well"), console.post(f"/{action}?pipeline=well")):
                assert answer.status_code == 403, action
                assert "--write" in answer.text
            assert f'"{action}?' not in console.get("/pipeline?pipeline=well").text


def test_a_form_without_end_is_refused(console):
    response = console.post("/pause?pipeline=well", content=b"why=" + b"x" * 2**21)

    assert response.status_code == 413
