"""A load that ends with a snapshot of states which were damaged before."""

from dataclasses import replace

import pytest

from onceload_core.errors import ExitCode
from onceload_core.pipeline import Pipeline, SnapshotPolicy
from onceload_core.postgres import PostgresSnapshots, recover_state
from onceload_jobs.files.notes import code_of
from onceload_jobs.pipeline.declared import Publish
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import line
from tests.servers import execute


@pytest.fixture
def publish():
    return Publish.DIRECT


def test_a_load_on_damaged_states_stays_loaded_and_needs_a_person(loads):
    loads.declared = replace(loads.declared, pipeline=Pipeline(name="events", snapshot=SnapshotPolicy(every_commits=1)))
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.jsonl", line(2))
    loads.load()
    execute(loads.admin_dsn, "UPDATE onceload.producer SET condition = 'sealed' WHERE name = 'a.jsonl'")
    loads.write("c.jsonl", line(3))

    report = loads.load()

    assert (report.loaded, loads.rows()) == (1, [1, 2, 3])
    (note,) = [note for note in report.notes if note.name == "snapshot"]
    assert "differs from the ledger for a.jsonl" in note.reason
    assert code_of(report.notes) is ExitCode.NEEDS_A_PERSON
    assert [each.position for each in PostgresSnapshots(loads.engine).list("events")] == [2, 1]

    recover_state(loads.engine, "events", dry_run=False)
    loads.write("d.jsonl", line(4))
    again = loads.load()

    assert (again.loaded, again.notes) == (1, ())
    assert [each.position for each in PostgresSnapshots(loads.engine).list("events")] == [4]
    assert verify(loads.declared, loads.engine).differing == 0


def test_a_load_without_news_takes_a_snapshot_that_is_due_by_time(loads):
    loads.declared = replace(loads.declared, pipeline=Pipeline(name="events", snapshot=SnapshotPolicy(every_commits=1)))
    loads.write("a.jsonl", line(1))
    loads.load()
    by_time = SnapshotPolicy(every_commits=1_000, every_s=3_600)
    loads.declared = replace(loads.declared, pipeline=Pipeline(name="events", snapshot=by_time))
    loads.write("b.jsonl", line(2))
    loads.load()
    assert [each.position for each in PostgresSnapshots(loads.engine).list("events")] == [1]

    execute(loads.admin_dsn, "UPDATE onceload.snapshot SET taken_at = taken_at - interval '1 day'")
    loads.load()

    assert [each.position for each in PostgresSnapshots(loads.engine).list("events")] == [2, 1]
