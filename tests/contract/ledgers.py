"""What the tests of every ledger share."""

import pytest

from onceload_core.names import Batch, ProducerId
from onceload_core.ports import CommitStep, Session
from onceload_core.spans import SpanSet
from tests.contract.conftest import World

#: Each test is of every ledger.
EVERY_LEDGER = [
    pytest.mark.parametrize(
        ("kind", "postgres_version"),
        [
            pytest.param("memory", None, id="memory"),
            pytest.param("postgres", 16, id="postgres16"),
            pytest.param("postgres", 18, id="postgres"),
        ],
        indirect=["postgres_version"],
        scope="session",
    )
]
BATCH = Batch("batch")
#: A settlement advances no producer, records no business id and acks no claim.
SETTLING = [
    CommitStep.BEGUN,
    CommitStep.ROWS_WRITTEN,
    CommitStep.POSITION_TAKEN,
    CommitStep.QUARANTINE_RECORDED,
    CommitStep.ENTRY_RECORDED,
    CommitStep.COMMITTED,
]

TEN, TWENTY, THIRTY = SpanSet.of((0, 10)), SpanSet.of((10, 20)), SpanSet.of((20, 30))


def consumed_of(world: World, session: Session, producer_id: ProducerId) -> SpanSet:
    return world.ledger.know(session, [producer_id])[producer_id].state.consumed


def consumed_next(world: World, session: Session, producer_id: ProducerId) -> SpanSet:
    end = consumed_of(world, session, producer_id).end
    return SpanSet.of((end, end + 10))
