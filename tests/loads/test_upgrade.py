"""An upgrade while loads run: the code of the release before goes on, on the schema of the next one."""

import json
import os
import subprocess
import sys

import pytest

from onceload import schema
from onceload_core.postgres import LedgerSettings, connect
from onceload_jobs.pipeline.declared import Publish
from tests.loads.conftest import line
from tests.migrations import NEXT, THIS, with_migration
from tests.servers import as_member
from tests.waiting import PATIENCE_S

ROWS, CHUNK_BYTES = 4_000, 500
PIPELINE = """
pipeline: events
source: {path: "ROOT/*.jsonl", format: jsonl, chunk_bytes: CHUNK_BYTES}
columns: {id: bigint not null, amount: "numeric(12,2)", note: text}
target: {table: public.target}
publish: direct
"""
GAINED = """
ALTER TABLE onceload.ledger ADD COLUMN remark text NOT NULL DEFAULT '';
ALTER TABLE onceload.producer ADD COLUMN remark text;
CREATE TABLE onceload.later ()
"""


@pytest.fixture
def publish():
    """Each chunk is a commit."""
    return Publish.DIRECT


@pytest.fixture
def consume(loads, tmp_path):
    """Start a session of this release, in a process of its own."""
    file = tmp_path / "events.yaml"
    file.write_text(PIPELINE.replace("ROOT", str(loads.folder)).replace("CHUNK_BYTES", str(CHUNK_BYTES)))
    processes = []

    def start(name):
        process = subprocess.Popen(
            [sys.executable, "-m", "onceload", "consume", str(file), "--session", name, "--json"],
            env={**os.environ, "ONCELOAD_DSN": loads.dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def upgraded_to_the_next_release(loads, tmp_path, monkeypatch):
    owner = connect(LedgerSettings(dsn=as_member(loads.admin_dsn, "onceload_owner")))
    with monkeypatch.context() as next_release:
        next_release.setattr(schema, "MIGRATIONS", with_migration(tmp_path / "migrations", GAINED))
        revisions = schema.upgrade(owner)
    owner.dispose()
    return revisions


@pytest.mark.long
def test_loads_of_the_release_before_go_on_through_an_upgrade_and_after_it(loads, consume, tmp_path, monkeypatch):
    loads.write("a.jsonl", "".join(map(line, range(ROWS))))
    begun = consume("begun")
    while loads.ask("SELECT count(*) >= 5 FROM onceload.ledger") == [(False,)]:
        assert begun.poll() is None, begun.communicate()

    revisions = upgraded_to_the_next_release(loads, tmp_path, monkeypatch)
    later = consume("later")
    (loaded_by_then,) = loads.ask("SELECT count(*) FROM onceload.ledger WHERE session = 'begun'")

    ended = [(process.communicate(timeout=PATIENCE_S), process.returncode) for process in (begun, later)]
    assert [code for _, code in ended] == [0, 0], ended
    assert revisions == (THIS, NEXT)
    assert loads.ask("SELECT count(*) FROM onceload.ledger WHERE session = 'begun'") > [loaded_by_then]
    assert sum(json.loads(said)["loaded"] for (said, _), _ in ended) == ROWS
    assert loads.rows() == list(range(ROWS))
