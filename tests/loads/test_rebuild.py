"""A lost database is rebuilt from its files, and compared with a snapshot that outlived it."""

import gzip
import json
from contextlib import nullcontext
from dataclasses import replace

import pytest
from sqlalchemy import create_engine, text

from onceload.cli import main
from onceload.snapshot_file import read_snapshot, write_snapshot
from onceload_core.errors import (
    SettingRefused,
)
from onceload_core.postgres import LedgerSettings, PostgresSnapshots
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Identity, OnRewrite
from onceload_jobs.recover.rebuild import rebuild
from tests.loads.conftest import InThisProcess, line
from tests.loads.rewinding import pipeline_file
from tests.servers import temporary_database

pytestmark = pytest.mark.usually_staged


@pytest.fixture
def new_dsn(server_dsn, template):
    """A new database, in place of one that is gone."""
    with temporary_database(server_dsn, template=template) as dsn:
        yield dsn


@pytest.fixture
def exported(loads, tmp_path):
    """Two files and a growing third, known to a snapshot outside of the database."""
    for name, number in {"a": 1, "b": 2}.items():
        loads.write(f"{name}.jsonl", line(number) + "{broken\n")
        loads.load()
    PostgresSnapshots(loads.engine).take("events")
    path = tmp_path / "events.snapshot"
    write_snapshot(PostgresSnapshots(loads.engine).get("events"), path)
    return path


def rebuilt(loads, dsn, exported=None):
    snapshot = read_snapshot(exported) if exported else None
    settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
    return rebuild(loads.declared, settings, batch=new_batch(), snapshot=snapshot, executor=InThisProcess())


def test_a_database_that_is_gone_is_rebuilt_from_the_same_files(loads, exported, new_dsn, logged):
    done = rebuilt(loads, new_dsn, exported)

    assert (done.report.loaded, done.report.quarantined) == (2, 2)
    assert (done.comparison.same, done.comparison.ahead, done.comparison.different) == (2, (), ())
    assert logged.one("pipeline_rebuilt") == {
        "pipeline": "events", "batch": done.report.batch, "position": done.report.position, "rows": 2,
        "quarantined": 2, "snapshot_position": 2, "missing": 0,
    }  # fmt: skip


def test_files_that_have_grown_since_the_snapshot_are_ahead_of_it(loads, exported, new_dsn):
    with (loads.folder / "a.jsonl").open("a") as file:
        file.write(line(3))
    loads.write("c.jsonl", line(4))

    found = rebuilt(loads, new_dsn, exported).comparison

    assert (found.same, found.ahead, found.different) == (1, ("a.jsonl", "c.jsonl"), ())


def test_files_that_are_missing_or_cut_are_named(loads, exported, new_dsn):
    (loads.folder / "a.jsonl").unlink()
    loads.write("b.jsonl", line(2))

    found = rebuilt(loads, new_dsn, exported).comparison

    assert (found.same, found.ahead) == (0, ())
    assert [(each.producer, each.found) for each in found.different] == [
        ("a.jsonl", "nothing: no file contains it any more"),
        ("b.jsonl", f"{{[0,{len(line(2))})}}"),
    ]


def test_an_earlier_life_that_no_file_holds_is_named(loads, exported, new_dsn):
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.NEW_GENERATION)
    loads.write("a.jsonl", line(9))
    loads.load()
    PostgresSnapshots(loads.engine).take("events")
    write_snapshot(PostgresSnapshots(loads.engine).get("events"), exported)

    found = rebuilt(loads, new_dsn, exported).comparison

    assert found.same == 2
    assert [(each.producer, each.generation) for each in found.different] == [("a.jsonl", 1)]


def test_a_file_of_the_same_size_with_other_content_is_named(loads, exported, new_dsn):
    whole = (loads.folder / "a.jsonl").read_text()
    loads.write("a.jsonl", whole.replace("1.50", "9.50"))

    found = rebuilt(loads, new_dsn, exported).comparison

    assert found.same == 1
    assert [(each.producer, each.found) for each in found.different] == [
        ("a.jsonl", f"{{[0,{len(whole)})}} with other content")
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "packed.jsonl.gz"])
def test_a_longer_file_with_other_content_is_not_ahead(loads, new_dsn, tmp_path, name):
    def packed(content):
        return gzip.compress(content.encode()) if name.endswith("gz") else content

    loads.write(name, packed(line(1)))
    loads.load()
    PostgresSnapshots(loads.engine).take("events")
    write_snapshot(PostgresSnapshots(loads.engine).get("events"), tmp_path / "events.snapshot")
    loads.write(name, packed(line(7) + line(8)))

    found = rebuilt(loads, new_dsn, tmp_path / "events.snapshot").comparison

    assert (found.same, found.ahead) == (0, ())
    assert [(each.producer, each.found) for each in found.different] == [
        (name, f"{{[0,{2 * len(line(7))})}} with other content")
    ]


def test_files_that_are_known_by_their_content_may_have_other_names(loads, new_dsn, tmp_path):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    loads.write("a.jsonl", line(1))
    loads.write("copy.jsonl", line(2))
    loads.load()
    loads.write("b.jsonl", line(2))
    loads.load()
    loads.load()
    (loads.folder / "a.jsonl").rename(loads.folder / "a.1.jsonl")
    loads.load()
    PostgresSnapshots(loads.engine).take("events")
    path = tmp_path / "events.snapshot"
    write_snapshot(PostgresSnapshots(loads.engine).get("events"), path)

    done = rebuilt(loads, new_dsn, path)

    assert done.report.loaded == 2
    # Names of one content are one producer.
    assert (done.comparison.same, done.comparison.different) == (2, ())


def test_a_target_that_still_has_rows_is_not_loaded_over(loads, exported, new_dsn):
    engine = create_engine(new_dsn)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (id bigint)"))
        connection.execute(text("INSERT INTO target VALUES (1)"))
    engine.dispose()

    with pytest.raises(SettingRefused, match=r"found table .*target.* with rows.*Expected an empty target"):
        rebuilt(loads, new_dsn, exported)


def test_without_a_snapshot_nothing_is_compared(loads, exported, new_dsn):
    assert rebuilt(loads, new_dsn).comparison is None


def test_a_database_that_has_the_pipeline_is_not_rebuilt_over(loads, exported):
    with pytest.raises(SettingRefused, match="with 2 commits in this database"):
        rebuilt(loads, loads.dsn, exported)


def test_a_snapshot_of_another_pipeline_is_refused(loads, exported, new_dsn):
    loads.declared = replace(loads.declared, pipeline=replace(loads.declared.pipeline, name="others"))

    with pytest.raises(SettingRefused, match=r"found one of pipeline events.*Expected a snapshot of others"):
        rebuilt(loads, new_dsn, exported)


def test_the_command_line_says_that_a_rebuild_keeps_one_row_of_each_business_id(
    loads, new_dsn, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(
        "onceload_jobs.work.spark.classic.ClassicSpark.started", lambda *_, **__: nullcontext(InThisProcess())
    )
    file = pipeline_file(loads, tmp_path)
    staged = file.read_text().replace(f"publish: {loads.declared.publish}", "publish: staged")
    file.write_text(f"{staged}message_id: {{columns: [id], keep: 1d}}\n")
    loads.write("a.jsonl", line(1))
    loads.write("b.jsonl", line(1) + line(2))

    code = main(["recover", "rebuild", str(file)], {"ONCELOAD_DSN": new_dsn})

    messages = capsys.readouterr().err
    assert code == 0
    assert "2 loaded, 1 duplicates" in messages
    assert "records that repeat an id after its window are counted as duplicates" in messages


@pytest.mark.usefixtures("exported")
def test_the_command_line_names_what_a_rebuild_lacks(loads, new_dsn, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "onceload_jobs.work.spark.classic.ClassicSpark.started", lambda *_, **__: nullcontext(InThisProcess())
    )
    file, exported = pipeline_file(loads, tmp_path), tmp_path / "events.snapshot"
    (loads.folder / "a.jsonl").unlink()

    code = main(["recover", "rebuild", str(file), "--snapshot", str(exported), "--json"], {"ONCELOAD_DSN": new_dsn})

    printed = capsys.readouterr()
    assert code == 4
    assert json.loads(printed.out)["comparison"]["different"][0]["producer"] == "a.jsonl"
    assert "a.jsonl (generation 1): expected" in printed.err
    assert "1 producers are the same, 0 are ahead or new, 1 lack records or were rewritten" in printed.err
