"""A claim that is taken away between the rows and the COMMIT: on each road, the rows of the other load are the only."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from onceload_core.errors import AskTheLedger, CallAgain, OnceloadError
from onceload_core.names import Position
from onceload_core.pipeline import Guarantee
from onceload_core.ports import Commit
from onceload_core.postgres import PostgresLedger
from onceload_jobs.load.road import Road
from onceload_jobs.pipeline.declared import Publish, TransformEngine
from tests.loads.conftest import Loads, line, through_a_table
from tests.servers import execute

OURS, OTHERS = "ours", "others"


ROADS = [
    pytest.param(Publish.DIRECT, Road.DIRECT, id="direct"),
    pytest.param(Publish.STAGED, Road.BATCH, id="batch"),
    pytest.param(Publish.STAGED, Road.TABLE, id="through a table"),
]


def forgotten(loads: Loads) -> None:
    execute(loads.admin_dsn, "DELETE FROM onceload.delivery")


def expired(loads: Loads) -> None:
    """The lease of the claim has passed, and another batch loads the same files."""
    execute(loads.admin_dsn, "UPDATE onceload.delivery SET deadline_at = clock_timestamp() - interval '1 hour'")
    assert loads.load(batch=OTHERS).loaded == 14


def fenced(loads: Loads) -> None:
    """A later run of the same batch takes over."""
    assert loads.load(batch=OURS).loaded == 14


@pytest.mark.parametrize("guarantee", Guarantee)
@pytest.mark.parametrize("taken_away", [forgotten, expired, fenced])
@pytest.mark.parametrize(("publish", "road"), ROADS)
def test_a_load_whose_claim_is_taken_away_before_its_commit_repeats_and_loses_nothing(
    loads, monkeypatch, road, taken_away, guarantee
):
    with_guarantee = replace(loads.declared.pipeline, guarantee=guarantee)
    loads.declared = replace(loads.declared, pipeline=with_guarantee)
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=60))
    if road is Road.TABLE:
        loads.declared = through_a_table(loads.declared)
    for first in (0, 10):
        loads.write(f"{first}.jsonl", "".join(map(line, range(first, first + 7))))
    refused = _taking_away(loads, monkeypatch, taken_away)

    _load_and_repeat(loads)

    assert refused
    assert loads.rows() == [*range(7), *range(10, 17)]


@pytest.mark.parametrize(("publish", "road"), ROADS[1:])
def test_rows_that_another_load_has_committed_are_not_refused_because_each_may_be_there_once(loads, monkeypatch, road):
    """The target refuses them before the ledger does."""
    unique = "(id bigint UNIQUE, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)"
    execute(loads.admin_dsn, f"CREATE TABLE target {unique}; GRANT ALL ON target TO onceload_loader")
    if road is Road.TABLE:
        made = {"transform": "SELECT * FROM records", "transform_engine": TransformEngine.POSTGRES}
        loads.declared = replace(loads.declared, **made)
    for first in (0, 10):
        loads.write(f"{first}.jsonl", "".join(map(line, range(first, first + 7))))
    _taking_away(loads, monkeypatch, expired)

    _load_and_repeat(loads)

    assert loads.rows() == [*range(7), *range(10, 17)]
    assert loads.ask("SELECT count(*) FROM onceload.quarantine") == [(0,)]


def _load_and_repeat(loads: Loads) -> None:
    with suppress(CallAgain, AskTheLedger):
        # Where another load was faster, this one plans again and finds nothing new.
        assert loads.load(batch=OURS).loaded == 0
    loads.load()


def _taking_away(loads: Loads, monkeypatch: pytest.MonkeyPatch, taken_away: Callable[[Loads], None]) -> list[str]:
    """Take the claim away before the first commit; the errors of commits come into the list."""
    commit, refused = PostgresLedger.commit, []
    is_taken: list[bool] = []

    def committing(ledger: PostgresLedger, offered: Commit[Connection], **begun: Any) -> Position:
        if not is_taken:
            is_taken.append(True)
            with monkeypatch.context() as original:
                original.setattr(PostgresLedger, "commit", commit)
                taken_away(loads)
        try:
            return commit(ledger, offered, **begun)
        except OnceloadError as error:
            refused.append(type(error).__name__)
            raise

    monkeypatch.setattr(PostgresLedger, "commit", committing)
    return refused
