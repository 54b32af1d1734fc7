"""What every ledger promises of quarantined records that are retried or discarded, in memory as in Postgres."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.errors import (
    AlreadyConsumed,
    SessionFenced,
    SettingRefused,
)
from onceload_core.names import Position, ProducerId
from onceload_core.pipeline import Pipeline
from onceload_core.ports import (
    Advance,
    Commit,
    CommitStep,
    MadeOfRecords,
    QuarantinedRecord,
    Session,
    Settlement,
)
from onceload_core.postgres.quarantine import digest_of
from onceload_core.replay import Condition, Counts, EntryKind, replay
from onceload_core.spans import SpanSet
from tests.contract.conftest import Crash, World, crashing_at
from tests.contract.ledgers import BATCH, EVERY_LEDGER, SETTLING, TEN

pytestmark = EVERY_LEDGER


def quarantined_by(world: World, session: Session, producer_id: ProducerId) -> None:
    """Ten consumed, of which 3 and 7 are in quarantine."""
    bad = tuple(
        QuarantinedRecord(producer_id=producer_id, sequence_id=each, raw=b"{", reason="no object") for each in (3, 7)
    )
    rows = [(producer_id, each) for each in range(10) if each not in (3, 7)]
    commit = world.commit_of(
        session, producer_id, TEN, fingerprint=None, quarantined=bad, counts=Counts(loaded=8, quarantined=2)
    )
    world.ledger.commit(replace(commit, write_rows=world.write(rows)))


def settlement_of(
    world: World,
    session: Session,
    producer_id: ProducerId,
    *ids: int,
    kind: EntryKind = EntryKind.RETRY,
    digest: str | None = None,
) -> Settlement[Any]:
    records = {(producer_id, each): digest for each in ids}
    rows = tuple(records) if kind is EntryKind.RETRY else ()
    return Settlement(kind=kind, session=session, batch=BATCH, records=records, write_rows=world.write(rows))


def test_a_quarantined_record_is_settled_once_and_all_of_a_settlement_or_none(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)

    position = world.ledger.settle(settlement_of(world, session, producer, 3))
    for again in ((3,), (7, 3)):
        with pytest.raises(AlreadyConsumed, match="quarantined record"):
            world.ledger.settle(settlement_of(world, session, producer, *again))

    assert position == 2
    assert world.rows() == [(producer, each) for each in range(10) if each != 7]
    assert world.ledger.settle(settlement_of(world, session, producer, 7)) == 3
    assert world.rows() == [(producer, each) for each in range(10)]


def test_a_record_that_is_not_in_quarantine_cannot_be_settled(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)

    with pytest.raises(AlreadyConsumed):
        world.ledger.settle(settlement_of(world, session, producer, 4))

    assert len(world.rows()) == 8


def test_a_record_with_other_bytes_than_were_read_is_not_settled(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)

    with pytest.raises(AlreadyConsumed, match="quarantined record"):
        world.ledger.settle(settlement_of(world, session, producer, 3, digest=digest_of(b"[")))

    assert world.ledger.settle(settlement_of(world, session, producer, 3, digest=digest_of(b"{"))) == 2
    assert world.rows() == [(producer, each) for each in range(10) if each != 7]


@pytest.mark.parametrize("step", SETTLING)
def test_a_settlement_that_crashes_anywhere_and_is_tried_again_takes_effect_once(world, step):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    settlement = settlement_of(world, session, producer, 3, 7)
    with pytest.raises(Crash):
        world.make_ledger(reached=crashing_at(step)).settle(settlement)

    with suppress(AlreadyConsumed):
        world.ledger.settle(settlement)

    assert world.rows() == [(producer, each) for each in range(10)]
    assert [entry.position for entry in world.ledger.entries("events", after=Position(0))] == [1, 2]


def test_an_entry_that_settles_the_quarantine_is_in_the_ledger_and_changes_no_state(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    before = world.ledger.states("events").states

    world.ledger.settle(settlement_of(world, session, producer, 3))
    world.ledger.settle(settlement_of(world, session, producer, 7, kind=EntryKind.DISCARD))

    load, retry, discard = world.ledger.entries("events", after=Position(0))
    assert (retry.kind, retry.counts) == (EntryKind.RETRY, Counts(loaded=1))
    assert (discard.kind, discard.counts) == (EntryKind.DISCARD, Counts(filtered=1))
    assert [(each.producer, each.spans, each.rows) for each in (*retry.receipts, *discard.receipts)] == [
        ("a.jsonl", SpanSet.of((3, 4)), 1),
        ("a.jsonl", SpanSet.of((7, 8)), 0),
    ]
    assert world.ledger.states("events").states == before == replay({}, [load, retry, discard])


def with_a_load(
    world: World, session: Session, producer_id: ProducerId, *ids: int
) -> tuple[Settlement[Any], ProducerId]:
    """Records of a file that name another producer, and have its ids: 103 and 107."""
    named = world.producer("sender")
    rows = [(named, 100 + each) for each in ids]
    advance = Advance(producer_id=named, spans=SpanSet.of_ids([place for _, place in rows]), rows=len(rows))
    load = Commit(
        session=session,
        batch=BATCH,
        advances=(advance,),
        write_rows=world.write(rows),
        counts=Counts(loaded=len(rows)),
    )
    settlement = settlement_of(world, session, producer_id, *ids)
    none = MadeOfRecords(rows=0, rows_of={})
    return replace(settlement, load=load, made=none, write_rows=world.write([])), named


@pytest.mark.parametrize("step", [*CommitStep])
def test_records_that_name_their_producer_are_loaded_and_settled_together_or_neither(world, step):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    settlement, named = with_a_load(world, session, producer, 3, 7)
    with suppress(Crash):
        world.make_ledger(reached=crashing_at(step)).settle(settlement)

    with suppress(AlreadyConsumed):
        world.ledger.settle(settlement)

    assert world.rows() == sorted(
        [*((producer, each) for each in range(10) if each not in (3, 7)), (named, 103), (named, 107)]
    )
    _, load, retry = world.ledger.entries("events", after=Position(0))
    assert [(each.kind, each.counts.loaded) for each in (load, retry)] == [(EntryKind.LOAD, 2), (EntryKind.RETRY, 0)]
    assert [(each.spans, each.rows) for each in retry.receipts] == [(SpanSet.of((3, 4), (7, 8)), 0)]
    entries = world.ledger.entries("events", after=Position(0))
    assert world.ledger.states("events").states == replay({}, entries)


def test_ids_that_are_loaded_already_settle_nothing(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    settlement, _ = with_a_load(world, session, producer, 3)
    world.ledger.settle(settlement)
    again, _ = with_a_load(world, session, producer, 3)
    other = replace(again, records={(producer, 7): None})

    with pytest.raises(AlreadyConsumed, match="sender"):
        world.ledger.settle(other)

    assert len(world.rows()) == 9
    assert world.ledger.settle(settlement_of(world, session, producer, 7)) == 4


def test_a_retry_may_make_any_number_of_rows_of_its_records(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    made = MadeOfRecords(rows=3, rows_of={producer: 3}, filtered=1)
    rows = world.write([(producer, 3), (producer, 30), (producer, 31)])

    world.ledger.settle(replace(settlement_of(world, session, producer, 3, 7), made=made, write_rows=rows))

    *_, retry = world.ledger.entries("events", after=Position(0))
    assert (retry.counts, retry.receipts[0].rows) == (Counts(loaded=3, filtered=1), 3)


def test_an_earlier_life_of_a_session_settles_nothing(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    world.session()

    with pytest.raises(SessionFenced):
        world.ledger.settle(settlement_of(world, session, producer, 3))

    assert len(world.rows()) == 8


def test_records_of_a_forgotten_producer_in_quarantine_can_still_be_settled(world):
    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    world.age_producers()
    assert world.ledger.forget_idle("events") == ("a.jsonl",)

    world.ledger.settle(settlement_of(world, session, producer, 3))

    *_, retry = world.ledger.entries("events", after=Position(0))
    assert [receipt.producer for receipt in retry.receipts] == ["a.jsonl"]
    assert world.ledger.states("events").states == {}


def test_nothing_of_a_replaced_generation_is_retried_but_it_may_be_discarded(world):
    producer, session = world.producer(), world.session()
    quarantined_by(world, session, producer)
    gone = Advance(producer_id=producer, spans=SpanSet(), condition=Condition.REPLACED)
    world.ledger.commit(Commit(session=session, batch=BATCH, advances=(gone,), write_rows=world.write([])))

    with pytest.raises(AlreadyConsumed):
        world.ledger.settle(settlement_of(world, session, producer, 3))

    assert world.ledger.settle(settlement_of(world, session, producer, 3, kind=EntryKind.DISCARD)) == 3


@pytest.mark.parametrize("wrong", [{"kind": EntryKind.LOAD}, {"records": {}}])
def test_a_settlement_that_cannot_be_meant_is_refused_before_anything_happens(world, wrong):
    meant = settlement_of(world, world.session(), world.producer(), 3)

    with pytest.raises(SettingRefused):
        replace(meant, **wrong)
