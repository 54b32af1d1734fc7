"""The pages of the console, on a database that real loads have filled."""

import re
import threading
from html import unescape

import pytest
from fastapi.testclient import TestClient

from onceload.console import watching
from onceload.console.standalone import make_standalone_app
from onceload.lag import Behind
from onceload.pipeline_file import read_pipeline
from onceload.quarantine_file import read_fixed_records
from onceload_core.names import Position
from onceload_core.postgres import PostgresSnapshots
from onceload_jobs.recover.rewind import rewind
from tests.console.conftest import MARKUP, day_of
from tests.waiting import until


def words_of(html: str) -> str:
    """The text of a page, as a browser shows it."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html[html.index("<main") :])).split())


def rows_of(html: str) -> list[list[str]]:
    """The cells of all tables of a page."""
    lines = re.findall(r"<tr.*?</tr>", html, flags=re.DOTALL)
    cells = [re.findall(r"<t[hd].*?</t[hd]>", line, flags=re.DOTALL) for line in lines]
    return [[" ".join(unescape(re.sub(r"<[^>]*>", " ", cell)).split()) for cell in some] for some in cells]


@pytest.fixture
def show(pages):
    def get(path: str, *, status: int = 200) -> str:
        response = pages.get(path)
        assert response.status_code == status, response.text
        return str(response.text)

    return get


def test_the_overview_has_every_pipeline_and_the_worst_comes_first(show):
    lines = {row[0]: row for row in rows_of(show("/"))[1:]}

    assert list(lines) == ["poison", "rewritten", "late", "well", "new"]
    assert lines["poison"][1].startswith(
        "needs a person 1 file cannot be loaded; 1 dead letter Next: run onceload plan "
    )
    assert lines["rewritten"][1].startswith("needs a person 1 file cannot be loaded Next: ")
    assert lines["late"][1].startswith("late new records have been waiting for 2")
    assert lines["late"][3].startswith("1 file, 9 B waiting for 2")
    assert lines["well"][1] == "fine all files are loaded"
    assert lines["well"][4].endswith("3 rows")
    assert lines["well"][5] == "2 2 in the last 24 hours, 0 in the 24 hours before that"
    assert lines["new"][1] == "new nothing has been loaded yet"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("search=WEL", ["well"]),
        ("state=late", ["late"]),
        ("state=needs+a+person&search=e", ["rewritten"]),
        ("state=nonsense", ["poison", "rewritten", "late", "well", "new"]),
        ("search=none", []),
        ("page=2", ["poison", "rewritten", "late", "well", "new"]),
    ],
)
def test_the_overview_shows_what_is_asked_for(show, query, names):
    assert [row[0] for row in rows_of(show(f"/?{query}"))[1:]] == names


def test_a_timeline_has_the_commits_and_leads_to_their_runs(show, day):
    html = show("/pipeline?pipeline=well")
    rows = rows_of(html)[1:]

    assert [(row[0], row[2], row[4], row[6]) for row in rows] == [("2", "load", "1", "1"), ("1", "load", "2", "1")]
    batch = day.ask("SELECT batch FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id) WHERE name = 'well'")
    for (each,) in batch:
        assert f"run?pipeline=well&amp;batch={each}" in html
        assert each in words_of(show(f"/run?pipeline=well&batch={each}"))


def test_a_file_has_its_spans_its_receipts_and_what_is_wrong_with_it(show):
    loaded = show("/file?pipeline=well&name=a.jsonl")
    rewritten = words_of(show("/file?pipeline=rewritten&name=a.jsonl"))
    dead = show("/file?pipeline=poison&name=a.jsonl")

    assert 'class="quarantined"' in loaded
    assert [row[0] for row in rows_of(loaded)[1:]] == ["1"]
    assert "no longer starts with" in rewritten or "no longer begins with" in rewritten
    assert '<rect class="dead"' in dead


def test_files_are_found_by_a_part_of_their_name(show):
    assert [row[0] for row in rows_of(show("/files?pipeline=well&search=b.j"))[1:]] == ["b.jsonl"]
    assert [row[0] for row in rows_of(show("/files?pipeline=well&after=a.jsonl"))[1:]] == ["b.jsonl"]
    after = show("/files?pipeline=well&after=a.jsonl&after_generation=0")
    assert [row[0] for row in rows_of(after)[1:]] == ["a.jsonl", "b.jsonl"]


def test_new_files_are_listed_with_the_reason(show):
    new, *loaded = rows_of(show("/files?pipeline=late"))[1:]

    assert (new[0], new[1], new[2], new[3]) == ("b.jsonl", "new", "0", "9 B")
    assert [row[0] for row in loaded[1:]] == ["a.jsonl"]
    assert "Not loaded yet" not in show("/files?pipeline=well")
    assert "Not loaded yet" not in show("/files?pipeline=late&search=a.j")
    assert "1 file cannot be loaded" in words_of(show("/files?pipeline=rewritten"))


def test_a_pipeline_without_commits_shows_its_new_files_on_every_page_that_leads_to_it(
    server_dsn, template, tmp_path, monkeypatch
):
    monkeypatch.setattr(watching, "_FIRST_S", 60.0)
    with day_of(server_dsn, template, tmp_path) as day:
        app = make_standalone_app(day.access(writes=False), hosts=["testserver"])
        with TestClient(app) as pages:
            # The first request already knows the pipeline by its file.
            assert pages.get("/pipeline?pipeline=new&token=secret").status_code == 200
            until(lambda: "no file matches it" in pages.get("/files?pipeline=new").text)
            assert "Not loaded yet" not in pages.get("/files?pipeline=new").text
        day.write("new/a.jsonl", '{"n": 1}\n{"n":')
        with TestClient(make_standalone_app(day.access(writes=False), hosts=["testserver"])) as pages:
            pages.get("/?token=secret")
            until(lambda: "a.jsonl" in pages.get("/files?pipeline=new").text)
            for page in ("pipeline", "files", "attention"):
                html = pages.get(f"/{page}?pipeline=new").text
                ((name, why, *_),) = rows_of(html)[1:]
                assert name == "a.jsonl"
                assert why.startswith("new; ")
                (address,) = re.findall(r'href="(file\?.*?)"', html)
            assert "Nothing of this file has been loaded" in pages.get(f"/{unescape(address)}").text
            assert pages.get("/file?pipeline=new&name=none").status_code == 404


def test_the_totals_of_a_run_leave_out_what_a_rewind_rolled_back(server_dsn, template, tmp_path):
    with day_of(server_dsn, template, tmp_path) as day:
        day.write("well/c.jsonl", "".join(f'{{"n": {n}}}\n' for n in range(10, 200)))
        day.load("well")
        commits = day.ask(
            "SELECT ledger.position, loaded, batch FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id)"
            " WHERE name = 'well' AND ledger.position > 2 ORDER BY ledger.position"
        )
        (first, loaded, batch), *others = commits
        assert others
        assert {each[2] for each in others} == {batch}
        rewind(read_pipeline(day.folder / "pipelines" / "well.yaml"), day.engine, to=Position(first), dry_run=False)
        with TestClient(make_standalone_app(day.access(writes=False), hosts=["testserver"])) as pages:
            words = words_of(pages.get("/run", params={"pipeline": "well", "batch": batch, "token": "secret"}).text)

    assert "rolled back by a rewind. The totals do not include" in words
    assert f"Loaded {loaded} Duplicates" in words


def test_a_row_leads_to_its_record_in_its_file(show, day):
    ((producer, sequence),) = day.ask("SELECT _producer_id, _sequence FROM well WHERE n = 3")

    words = words_of(show(f"/row?pipeline=well&producer_id={producer}&sequence={sequence}"))

    assert "a.jsonl" in words
    assert "the commit at position 1" in words
    assert f'{{"n": 3, "note": "{MARKUP}"}}' in words


def test_rows_are_found_by_a_value_and_lead_to_the_line_of_their_file(show):
    html = show("/row?pipeline=well&column=n&value=3")

    (address,) = re.findall(r'<li><a href="(row\?.*?)">record', html)
    assert re.search(r"Line 3\b", words_of(show(f"/{unescape(address)}")))
    assert "No row has this value" in words_of(show("/row?pipeline=well&column=n&value=5"))
    assert "one that fits its column" in words_of(show("/row?pipeline=well&column=n&value=x", status=400))
    assert "a column of" in words_of(show('/row?pipeline=well&column=n"&value=x', status=400))


def test_a_rewritten_file_is_shown_beside_what_was_loaded_of_it_with_the_choices(show):
    assert "rewritten?pipeline=rewritten&amp;name=a.jsonl" in show("/attention?pipeline=rewritten")

    html = show("/rewritten?pipeline=rewritten&name=a.jsonl")

    (part,) = [row for row in rows_of(html) if row[0].startswith("[")]
    assert (part[0], part[3]) == ("[0, 18)", "2")
    assert part[4] == "other bytes"
    loaded, now = [
        unescape(each).splitlines() for each in re.findall(r'<pre tabindex="0">(.*?)</pre>', html, re.DOTALL)
    ][:2]
    assert loaded == ['{"n":1,"note":null}', '{"n":2,"note":null}']
    assert now == ['{"n": 7}', '{"n": 8}']
    choices = {row[0]: (row[1], row[2]) for row in rows_of(html)[-3:]}
    assert list(choices) == ["Stop", "New generation", "Replace"]
    assert choices["Stop"][0].startswith("The 2 rows stay")
    assert "This is what happens now" in choices["Stop"][1]
    assert "Records that are in both are loaded twice" in choices["New generation"][0]
    assert "This pipeline cannot do it" in choices["Replace"][1]
    assert 'SELECT * FROM "public"."rewritten" WHERE _producer_id =' in unescape(html)


def test_a_rewritten_file_whose_table_is_gone_is_still_compared(server_dsn, template, tmp_path):
    with day_of(server_dsn, template, tmp_path) as day:
        day.ask("DROP TABLE rewritten; SELECT 1")
        with TestClient(make_standalone_app(day.access(writes=False), hosts=["testserver"])) as pages:
            words = words_of(pages.get("/rewritten?pipeline=rewritten&name=a.jsonl&token=secret").text)

    assert 'other bytes, which begin with {"n": 7}' in words
    assert "The loaded rows are not shown: the rows of this file: " in words


def test_a_file_that_has_not_changed_is_the_same_part_by_part(show):
    html = show("/rewritten?pipeline=well&name=a.jsonl")

    assert [row[4] for row in rows_of(html) if row[0].startswith("[")] == ["the same bytes"]


def test_a_pipeline_shows_its_throughput_its_quarantine_and_the_wait_of_its_files(show):
    html = show("/pipeline?pipeline=late")

    assert [unescape(each) for each in re.findall("<figcaption>(.*?)</figcaption>", html)] == [
        "Rows per hour (highest: 1)",
        "Quarantined records per hour (highest: 0)",
        "Longest wait of a new file, by hour (highest: 2.0 h)",
    ]
    assert re.search(r"<rect [^>]*><title>[0-9-]+ [0-9]+:00: 1 row</title></rect>", html)


def test_a_snapshot_says_how_long_a_recovery_from_it_takes(server_dsn, template, tmp_path):
    with day_of(server_dsn, template, tmp_path) as day:
        PostgresSnapshots(day.engine).take("well")
        with TestClient(make_standalone_app(day.access(writes=False), hosts=["testserver"])) as client:
            client.get("/?token=secret")
            words = words_of(client.get("/snapshots?pipeline=well").text)
    assert "replays 0 commits. On two processors, this takes about 1" in words


def test_lineage_leads_from_the_files_to_the_table(show, day):
    words = words_of(show("/declaration?pipeline=well"))

    assert f"{day.folder}/well/*.jsonl" in words
    assert "public.well" in words


def test_no_name_leads_out_of_the_folder(server_dsn, template, tmp_path):
    with day_of(server_dsn, template, tmp_path) as day:
        (tmp_path / "secret.jsonl").write_text("a secret\n")
        ((producer,),) = day.ask(
            "UPDATE onceload.producer SET name = '../secret.jsonl' WHERE name = 'b.jsonl' AND"
            " pipeline_id = (SELECT pipeline_id FROM onceload.pipeline WHERE name = 'well')"
            " RETURNING producer_id"
        )
        with TestClient(make_standalone_app(day.access(writes=False), hosts=["testserver"])) as client:
            client.get("/?token=secret")
            words = words_of(client.get(f"/row?pipeline=well&producer_id={producer}&sequence=0").text)
        assert "../secret.jsonl" in words
        assert "a secret" not in words


def test_the_quarantine_marks_the_value_that_is_wrong(show):
    html = show("/quarantine?pipeline=well")

    assert [(row[0], row[1]) for row in rows_of(html)[1:]] == [("2", "n")]
    assert "<mark>y</mark>" in html
    assert unescape(re.findall("<mark>(.*?)</mark>", html)[1]) == f"x{MARKUP}"
    assert "Record 2" not in words_of(show("/quarantine?pipeline=well&file=a.jsonl"))


def test_a_download_is_the_file_that_a_retry_takes(pages, tmp_path):
    (kind,) = re.findall(r'<th scope="row"><a href="quarantine(\?.*?)">', pages.get("/quarantine?pipeline=well").text)
    response = pages.get(f"/download{unescape(kind)}")
    (tmp_path / "quarantine.jsonl").write_bytes(response.content)

    records = read_fixed_records(tmp_path / "quarantine.jsonl", pipeline="well")

    assert [record.raw for record in records.values()] == [f'{{"n": "x{MARKUP}"}}'.encode(), b'{"n": "y"}']
    assert response.headers["Content-Disposition"] == 'attachment; filename="quarantine.jsonl"'
    assert len(pages.get("/download?pipeline=well&file=b.jsonl").content.splitlines()) == 1


def test_what_needs_a_person_says_why(show):
    rewritten, poison = words_of(show("/attention?pipeline=rewritten")), words_of(show("/attention?pipeline=poison"))

    assert "1 file cannot be loaded (checked" in rewritten
    assert "a.jsonl" in rewritten
    assert "ValueError: poison" in poison or "poison" in poison
    assert "2 attempts" in poison


@pytest.mark.parametrize("page", ["quality", "snapshots", "declaration", "row"])
def test_every_other_page_of_a_pipeline_answers(show, page):
    assert "well" in words_of(show(f"/{page}?pipeline=well"))


def test_nothing_of_a_record_is_markup(pages):
    for path in ("/", "/quarantine?pipeline=well", "/file?pipeline=well&name=a.jsonl"):
        assert MARKUP not in pages.get(path).text
    injected = pages.get("/run", params={"pipeline": "well", "batch": MARKUP})
    assert injected.status_code == 200
    assert MARKUP not in injected.text


def test_no_page_may_run_or_load_what_is_from_elsewhere(pages):
    response = pages.get("/pipeline?pipeline=well")

    assert response.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'self';")
    assert response.headers["Cache-Control"] == "no-store"
    assert not re.search(r"(src|href)=\"https?://", response.text)
    assert "style=" not in response.text
    for name in ("console.css", "frame.js", "icon.svg"):
        assert pages.get(f"/{name}").status_code == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/pipeline?pipeline=none", 404),
        ("/file?pipeline=well&name=none", 404),
        ("/row?pipeline=well&producer_id=999999&sequence=1", 404),
        ("/row?pipeline=late&producer_id=1&sequence=1", 404),
        ("/row?pipeline=well&producer_id=x&sequence=1", 400),
        ("/file?pipeline=well", 400),
        ("/file?pipeline=well&name=%00", 400),
        ("/nothing", 404),
        ("/quarantine?pipeline=well&kind=%00", 400),
    ],
)
def test_an_error_is_a_page(show, path, status):
    html = show(path, status=status)

    assert '<a href="./">All loads</a>' in html
    assert "console.css" in html


def test_without_the_token_there_is_nothing_to_see(pages):
    pages.cookies.clear()
    try:
        for path in ("/", "/pipeline?pipeline=well", "/?token=wrong", "/row?pipeline=well"):
            response = pages.get(path)
            assert response.status_code == 401
            assert "its token" in response.text
            assert "well" not in response.text
        assert pages.get("/", headers={"Host": "elsewhere.example"}).status_code == 400
    finally:
        pages.get("/?token=secret")


@pytest.fixture
def listed(monkeypatch) -> list[Behind]:
    """An entry for each listing."""
    listed: list[Behind] = []
    measure = Behind.measure

    def measuring(behind, failed):
        listed.append(behind)
        measure(behind, failed)

    monkeypatch.setattr(Behind, "measure", measuring)
    return listed


def test_without_requests_files_are_listed_seldom_and_at_once_for_the_next_request(day, monkeypatch, listed):
    monkeypatch.setattr(watching, "_IDLE_S", 0.0)
    monkeypatch.setattr(watching, "_EVERY_S", 3600.0)
    watch = watching.Watch(day.access(writes=False))
    try:
        watch.now()
        until(lambda: listed)
        until(lambda: watch.now() and len(listed) > 1)
        monkeypatch.setattr(watching, "_IDLE_EVERY_S", 0.01)
        watch.now()
        before = len(listed)
        until(lambda: len(listed) > before + 2)
    finally:
        watch.stop()


def test_nothing_is_listed_any_more_after_the_console_has_ended(day, monkeypatch, listed):
    monkeypatch.setattr(watching, "_EVERY_S", 0.01)
    before = set(threading.enumerate())

    with TestClient(make_standalone_app(day.access(writes=False), hosts=["testserver"])) as client:
        client.get("/?token=secret")
        until(lambda: len(listed) > 1)

    def left():
        return [each for each in set(threading.enumerate()) - before if each.name == "onceload console"]

    until(lambda: not left())
