"""Why a file is or is not loaded."""

import json
from dataclasses import replace

import pytest

from onceload.cli import main
from onceload_core.errors import ExitCode
from onceload_core.names import Batch, SessionName
from onceload_core.spans import SpanSet
from onceload_jobs.pipeline.declared import OnRewrite
from tests.loads.conftest import line

pytestmark = pytest.mark.usually_staged

PIPELINE = """
pipeline: events
source: {path: ROOT/**/*.jsonl, format: jsonl}
columns: {id: bigint not null, amount: "numeric(12,2)", note: text}
target: {table: public.target}
"""


@pytest.fixture
def why(loads, tmp_path, capsys):
    """Ask for a file, as from a shell."""
    file = tmp_path / "events.yaml"
    file.write_text(PIPELINE.replace("ROOT", str(loads.folder)))

    def run(*arguments):
        code = main(["why", str(file), *arguments], {"ONCELOAD_DSN": loads.dsn})
        return code, *capsys.readouterr()

    return run


def document(asked):
    code, out, _ = asked
    return code, json.loads(out)


def test_a_file_that_is_in_says_which_commits_took_it(loads, why):
    path = loads.write("2026/a.jsonl", line(1) + "{broken\n")
    loads.load(batch="first")
    with path.open("a") as file:
        file.write(line(3))
    loads.load(batch="second")

    code, found = document(why("2026/a.jsonl", "--json"))

    assert (code, found["is_there"], found["next_load"]) == (ExitCode.DONE, True, "does nothing: all of it is loaded")
    commits = [(each["position"], each["batch"], each["rows"], each["bytes"]) for each in found["commits"]]
    assert commits == [(1, "first", 1, len(line(1)) + 8), (2, "second", 1, len(line(3)))]
    assert [(life["generation"], life["quarantined"]) for life in found["lives"]] == [(1, 1)]
    assert found["lives"][0]["consumed"] == str(SpanSet.of((0, path.stat().st_size)))


def test_people_get_a_table_and_sentences(loads, why):
    loads.write("a.jsonl", line(1))
    loads.load(batch="a-rather-long-name-of-a-batch-as-airflow-gives-them-to-its-runs")

    code, out, err = why("a.jsonl")

    assert code == ExitCode.DONE
    assert "a-rather-long-name-of-a-batch-as-airflow-gives-them-to-its-runs" in out
    assert "a.jsonl: generation 1 (open): {[0," in err
    assert "the next load does nothing: all of it is loaded" in err


def test_a_file_that_was_never_loaded_says_what_would_be_read(loads, why):
    loads.write("a.jsonl", line(1))

    code, _, err = why("a.jsonl")

    assert code == ExitCode.DONE
    assert "none of it was ever loaded" in err
    assert f"the next load reads [0,{len(line(1))}) as generation 1" in err


def test_a_path_that_leads_to_the_file_is_as_good_as_its_name(loads, why):
    path = loads.write("2026/a.jsonl", line(1))
    loads.load()

    assert document(why(str(path), "--json"))[1]["file"] == "2026/a.jsonl"


def test_a_name_that_begins_like_the_folder_is_taken_as_it_is(loads, why, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "events.yaml").write_text(PIPELINE.replace("ROOT", loads.folder.name))
    for name in ("a.jsonl", f"{loads.folder.name}/a.jsonl"):
        loads.write(name, line(1))

    assert document(why(f"{loads.folder.name}/a.jsonl", "--json"))[1]["file"] == f"{loads.folder.name}/a.jsonl"
    assert document(why("a.jsonl", "--json"))[1]["file"] == "a.jsonl"


def test_a_file_that_was_rewritten_needs_a_person(loads, why):
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    path.write_text(line(8))

    code, found = document(why("a.jsonl", "--json"))

    assert code == ExitCode.NEEDS_A_PERSON
    assert "does not read it: it is shorter" in found["next_load"]


def test_all_generations_are_printed_and_a_file_that_is_gone_stays_known(loads, why):
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    path.write_text(line(8))
    loads.load(on_rewrite=OnRewrite.NEW_GENERATION)
    path.unlink()

    code, found = document(why("a.jsonl", "--json"))

    assert (code, found["is_there"]) == (ExitCode.DONE, False)
    assert [each["generation"] for each in found["lives"]] == [1, 2]
    assert [each["generation"] for each in found["commits"]] == [1, 2]
    assert "no such file" in found["next_load"]


def test_a_live_worker_is_named(loads, why):
    loads.write("a.jsonl", line(1))
    ledger = loads.ledger
    ledger.declare(loads.declared.pipeline)
    producer_id = ledger.register("events", [("a.jsonl", 1)])["a.jsonl", 1]
    session = ledger.open_session("events", SessionName("loader-7"))
    ledger.claim(session, {producer_id: SpanSet.of((0, 1000))}, batch=Batch("now"), lease_s=60)

    _, found = document(why("a.jsonl", "--json"))

    assert [(each["session"], each["spans"]) for each in found["claims"]] == [("loader-7", "{[0,1000)}")]
    assert "another run is loading it" in found["next_load"]


def test_an_unknown_name_brings_those_that_may_have_been_meant(loads, why):
    loads.write("2026/events-a.jsonl", line(1))
    loads.write("2026/other.jsonl", line(1))

    for asked in ("events-a.jsonl", "2026/event-a.jsonl"):
        code, _, err = why(asked)
        assert code == ExitCode.WRONG_USE
        assert "2026/events-a.jsonl" in err


def test_a_name_that_cannot_be_read_says_why(loads, why):
    (loads.folder / "a.jsonl").symlink_to("/etc/hostname")

    code, _, err = why("a.jsonl")

    assert code == ExitCode.DONE
    assert "symbolic link" in err


def test_a_file_in_a_folder_that_cannot_be_listed_is_not_called_gone(closed, why):
    code, found = document(why("closed/a.jsonl", "--json"))

    assert code == ExitCode.DONE
    assert found["next_load"] == "does not read it: 'closed/': Permission denied"


def test_a_forgotten_file_is_still_reported(loads, why):
    loads.declared = replace(loads.declared, pipeline=replace(loads.declared.pipeline, forget_idle_after_s=60))
    loads.write("a.jsonl", line(1))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.producer SET advanced_at = advanced_at - interval '1 hour'")
        # As a version before this one forgot it.
        connection.exec_driver_sql("UPDATE onceload.producer SET fingerprint = NULL")
    assert loads.ledger.forget_idle("events") == ("a.jsonl",)

    _, found = document(why("a.jsonl", "--json"))

    assert [each["is_forgotten"] for each in found["lives"]] == [True]
    assert found["next_load"].startswith("reads [0,")
