"""What every ledger promises of snapshots, in memory as in Postgres."""

from datetime import UTC, datetime, timedelta

import pytest

from onceload_core.errors import (
    NotFound,
    SnapshotRefused,
)
from onceload_core.names import Position
from onceload_core.pipeline import Pipeline, SnapshotPolicy
from onceload_core.replay import replay
from tests.contract.ledgers import EVERY_LEDGER, TEN, THIRTY, TWENTY, consumed_next

pytestmark = EVERY_LEDGER

FAR_AHEAD = datetime.now(UTC) + timedelta(days=365)


def test_a_snapshot_and_the_ledger_after_it_give_the_live_states(world):
    producer, other, session = world.producer("a"), world.producer("b"), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN))
    position = world.snapshots.take("events")
    world.ledger.commit(world.commit_of(session, producer, THIRTY))
    world.ledger.commit(world.commit_of(session, other, TWENTY))

    snapshot = world.snapshots.get("events")
    rebuilt = replay(snapshot.states, world.ledger.entries("events", after=snapshot.position))

    assert snapshot.position == position == 1
    assert rebuilt == dict(world.ledger.states("events").states)
    assert rebuilt == replay({}, world.ledger.entries("events", after=Position(0)))


def test_no_snapshot_is_taken_of_states_that_the_ledger_does_not_add_up_to(world):
    world.ledger.commit(world.commit_of(world.session(), world.producer(), TEN))
    world.damage_states()

    with pytest.raises(SnapshotRefused, match=r"differs from the ledger for a\.jsonl"):
        world.snapshots.take("events")
    with pytest.raises(NotFound):
        world.snapshots.get("events")


def test_snapshots_are_taken_when_due_and_only_the_newest_are_kept(world):
    world.ledger.declare(Pipeline(name="events", snapshot=SnapshotPolicy(every_commits=2, every_s=3600, kept=2)))
    producer, session, now = world.producer(), world.session(), datetime.now(UTC)
    assert world.snapshots.take_if_due("events", now=FAR_AHEAD) is None
    taken = []
    for _ in range(6):
        world.ledger.commit(world.commit_of(session, producer, consumed_next(world, session, producer)))
        taken.append(world.snapshots.take_if_due("events", now=now))

    assert taken == [None, 2, None, 4, None, 6]
    assert world.snapshots.take_if_due("events", now=FAR_AHEAD) is None
    assert world.snapshots.get("events", Position(4)).position == 4
    with pytest.raises(NotFound, match=r"snapshot not found: '2'.*Known: "):
        world.snapshots.get("events", Position(2))


def test_a_snapshot_is_taken_by_time_however_few_commits_there_were(world):
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN))

    assert world.snapshots.take_if_due("events", now=FAR_AHEAD) == 1
