"""A database that is restored to an earlier time lost rows and state together, and gets both back."""

import shutil
import subprocess
from dataclasses import replace

import pytest

from onceload import schema
from onceload.embedded import running
from onceload_core.errors import SettingRefused
from onceload_core.names import Position
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.replay import replay
from tests.loads.conftest import Loads, declared_for, line
from tests.servers import execute, temporary_home


def test_a_restored_database_is_made_whole_by_the_next_load(tmp_path):
    with temporary_home() as home:
        with running(home) as dsn:
            loads = opened(tmp_path, dsn)
            loads.write("a.jsonl", "".join(line(number) for number in range(100)))
            loads.load()
            loads.engine.dispose()
        backup = tmp_path / "backup"
        subprocess.run(["cp", "-a", str(home), str(backup)], check=True)
        with running(home) as dsn:
            loads = opened(tmp_path, dsn)
            with (loads.folder / "a.jsonl").open("a") as file:
                file.write("".join(line(number) for number in range(100, 150)))
            loads.write("b.jsonl", "".join(line(number) for number in range(150, 200)) + "{bad\n")
            assert loads.load().position == 2
            loads.engine.dispose()
        shutil.rmtree(home)
        subprocess.run(["cp", "-a", str(backup), str(home)], check=True)
        with running(home) as dsn:
            loads = opened(tmp_path, dsn)
            lost = len(loads.rows())

            report = loads.load()

            assert (lost, report.loaded, report.quarantined, report.position) == (100, 100, 1, 2)
            assert loads.rows() == list(range(200))
            entries = loads.ledger.entries("events", after=Position(0))
            assert replay({}, entries) == loads.ledger.states("events").states
            assert loads.load().loaded == 0
            loads.engine.dispose()


def test_rows_whose_receipts_are_lost_are_not_loaded_again(loads):
    loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    lose_the_ledger(loads)

    for _ in range(2):
        with pytest.raises(SettingRefused, match="no record of these loads") as refused:
            loads.load()
    assert loads.rows() == [1, 2]

    # Each way that the message names leads on.
    execute(loads.admin_dsn, str(refused.value).rpartition("run `")[2].partition("`")[0])
    assert loads.load().loaded == 2
    lose_the_ledger(loads)
    execute(loads.admin_dsn, "TRUNCATE target")
    assert loads.load().loaded == 2
    assert loads.rows() == [1, 2]


def test_another_pipeline_may_load_into_a_table_with_loaded_rows(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.other", line(2))
    other = replace(loads.declared.pipeline, name="other")
    source = replace(loads.declared.source, path=str(loads.folder / "*.other"))

    assert loads.load(pipeline=other, source=source).loaded == 1
    assert loads.rows() == [1, 2]


def test_another_pipeline_may_load_into_a_table_that_was_renamed_since_it_was_loaded(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.other", line(2))
    execute(loads.admin_dsn, "ALTER TABLE target RENAME TO renamed")
    other = replace(loads.declared.pipeline, name="other")
    source = replace(loads.declared.source, path=str(loads.folder / "*.other"))
    target = replace(loads.declared.target, table="renamed")

    assert loads.load(pipeline=other, source=source, target=target).loaded == 1


def lose_the_ledger(loads):
    """As if only the tables of users were restored."""
    loads.engine.dispose()
    execute(loads.admin_dsn, "DROP SCHEMA onceload CASCADE")
    engine = connect(LedgerSettings(dsn=loads.admin_dsn))
    schema.upgrade(engine)
    engine.dispose()


def opened(folder, dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    schema.upgrade(engine)
    (folder / "landing").mkdir(exist_ok=True)
    return Loads(
        folder=folder / "landing", engine=engine, dsn=dsn, admin_dsn=dsn, declared=declared_for(folder / "landing")
    )
