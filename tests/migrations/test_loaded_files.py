"""An upgrade of a database whose pipelines have loaded files before it could say which."""

import json
from dataclasses import replace

import pytest
from sqlalchemy import text

from onceload import schema
from onceload_core.declaration import LoadedByAnother
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_jobs.files.addresses import address_of
from onceload_jobs.pipeline.declared import Identity
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from tests.loads.conftest import declared_for
from tests.migrations import only_the_first

PIPELINE = text(
    "INSERT INTO onceload.pipeline (name, position, version, producers_max, islands_max, message_keep_days,"
    " snapshot_every_commits, snapshot_every_s, snapshots_kept) VALUES (:name, 3, 1, 9, 9, 0, 9, 9, 9)"
    " RETURNING pipeline_id"
)
DECLARATION = text(
    "INSERT INTO onceload.declaration (pipeline_id, version, terms, rest)"
    " VALUES (:id, 1, CAST(:terms AS jsonb), CAST(:rest AS jsonb))"
)
PRODUCERS = text(
    "INSERT INTO onceload.producer (pipeline_id, name, consumed, fingerprint, copy_of) VALUES"
    " (:id, 'a.jsonl', '{[0,9)}', 'f', NULL), (:id, 'b.jsonl', '{}', 'f', 1), (:id, 'empty.jsonl', '{}', 'f', NULL),"
    " (:id, 'device=1', '{[0,9)}', NULL, NULL)"
)


@pytest.fixture
def upgraded(empty_dsn, tmp_path, monkeypatch):
    """Upgrade a database of the first release that has loaded with this declaration."""
    engine = connect(LedgerSettings(dsn=empty_dsn))

    def upgrade(declared):
        pipeline = pipeline_with_declaration(declared)
        with monkeypatch.context() as first_release:
            first_release.setattr(schema, "MIGRATIONS", only_the_first(tmp_path / "migrations"))
            schema.upgrade(engine)
        with engine.begin() as connection:
            connection.execute(text("CREATE TABLE public.target ()"))
            made = connection.execute(PIPELINE, {"name": pipeline.name}).scalar_one()
            texts = {"terms": json.dumps(pipeline.declaration.terms), "rest": json.dumps(pipeline.declaration.rest)}
            connection.execute(DECLARATION, {"id": made, **texts})
            connection.execute(PRODUCERS, {"id": made})
        with monkeypatch.context() as elsewhere:
            elsewhere.chdir("/")
            schema.upgrade(engine)
        return engine

    yield upgrade
    engine.dispose()


@pytest.mark.parametrize("identity", Identity)
@pytest.mark.parametrize(
    "path",
    [
        "/data/in/*.jsonl",
        "in/day*/x.jsonl",
        "*.jsonl",
        "file:///data/in/a.jsonl",
        "link/*.jsonl",
        "s3a://ann:secret@bucket/in/{{ ds }}/*.jsonl",
    ],
)
def test_files_that_were_loaded_before_belong_to_their_pipeline(upgraded, tmp_path, monkeypatch, identity, path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    declared = declared_for(tmp_path)
    root, rest, _ = path.partition("/{{ ds }}")
    placed = {"root": root, "pattern": path} if rest else {}
    filled = path.replace("{{ ds }}", "2026")
    source = replace(declared.source, path=filled, identity=identity, **placed)
    declared = replace(declared, source=source)

    engine = upgraded(declared)

    other = pipeline_with_declaration(replace(declared, pipeline=replace(declared.pipeline, name="other")))
    assert not rest or other.folder == address_of(root) == "s3://bucket/in/"
    ledger = PostgresLedger(engine)
    with pytest.raises(LoadedByAnother, match=r"a\.jsonl and another file"):
        ledger.refuse_files_of_others(other, ["a.jsonl", "b.jsonl", "empty.jsonl", "device=1", "new.jsonl"])
    # Files of other names are free.
    ledger.refuse_files_of_others(other, ["empty.jsonl", "device=1", "new.jsonl"])
    # Its own load has nothing against them, and adds what the release before has loaded meanwhile.
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{[0,5)}' WHERE name = 'empty.jsonl'"))
    ledger.declare(pipeline_with_declaration(declared))
    ledger.refuse_files_of_others(pipeline_with_declaration(declared), ["a.jsonl"])
    with pytest.raises(LoadedByAnother, match=r"empty\.jsonl"):
        ledger.refuse_files_of_others(other, ["empty.jsonl"])


@pytest.mark.parametrize("identity", Identity)
def test_files_of_an_absolute_path_are_found_however_it_is_spelt(upgraded, tmp_path, identity):
    declared = declared_for(tmp_path)
    paths = [f"{tmp_path}/in/*.jsonl", f"{tmp_path}/./in/../in/a*.jsonl"]
    first, second = (replace(declared, source=replace(declared.source, path=each, identity=identity)) for each in paths)

    ledger = PostgresLedger(upgraded(first))

    other = pipeline_with_declaration(replace(second, pipeline=replace(second.pipeline, name="other")))
    with pytest.raises(LoadedByAnother, match=r"in/a\.jsonl into"):
        ledger.refuse_files_of_others(other, ["a.jsonl"])


def test_a_relative_folder_is_not_that_of_the_upgrade(upgraded, tmp_path):
    """Another pipeline may load files of the same names from there."""
    declared = declared_for(tmp_path)
    relative = replace(declared, source=replace(declared.source, path="in/*.jsonl"))

    ledger = PostgresLedger(upgraded(relative))

    other = replace(declared, source=replace(declared.source, path="/in/*.jsonl"))
    there = pipeline_with_declaration(replace(other, pipeline=replace(other.pipeline, name="other")))
    ledger.refuse_files_of_others(there, ["a.jsonl"])
