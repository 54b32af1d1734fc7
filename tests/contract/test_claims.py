"""What every ledger promises of claims, in memory as in Postgres."""

from dataclasses import replace

import pytest

from onceload_core.errors import (
    AlreadyConsumed,
    ClaimedElsewhere,
    DeliveryTakenAway,
    NotAlone,
    SessionFenced,
)
from onceload_core.names import ProducerId
from onceload_core.pipeline import Pipeline
from onceload_core.spans import SpanSet
from onceload_core.verdicts import judge
from tests.contract.ledgers import BATCH, EVERY_LEDGER, TEN, TWENTY

pytestmark = EVERY_LEDGER


def test_a_claim_makes_the_span_unknown_to_others_and_falls_back_when_released(world):
    """Pulsar: pushed is reset to persisted after a failed write."""
    producer, one, other = world.producer(), world.session("one"), world.session("other")
    claim = world.ledger.claim(one, {producer: TEN}, batch=BATCH, lease_s=60)

    held = world.ledger.know(other, [producer])[producer]
    mine = world.ledger.know(one, [producer])[producer]
    assert judge(TEN, consumed=held.state.consumed, claimed=held.claimed).unknown == TEN
    assert judge(TEN, consumed=mine.state.consumed, claimed=mine.claimed).new == TEN
    with pytest.raises(ClaimedElsewhere, match=r"a\.jsonl \{\[4,10\)\}"):
        world.ledger.claim(other, {producer: SpanSet.of((4, 20))}, batch=BATCH, lease_s=60)

    world.ledger.release(claim)
    free = world.ledger.know(other, [producer])[producer]
    assert judge(TEN, consumed=free.state.consumed, claimed=free.claimed).new == TEN


def test_spans_are_named_while_a_session_loads_them_and_not_after(world):
    producer, one = world.producer(), world.session("one")
    assert world.ledger.outlook("events").claimed == frozenset()

    claim = world.ledger.claim(one, {producer: TEN}, batch=BATCH, lease_s=60)
    assert world.ledger.outlook("events").claimed == {"a.jsonl"}

    world.ledger.release(claim)
    world.ledger.claim(one, {producer: TEN}, batch=BATCH, lease_s=60)
    world.session("one")
    assert world.ledger.outlook("events").claimed == frozenset()


def test_a_claim_may_ask_that_nothing_has_changed_since_it_was_planned(world):
    one, other = world.producer("a.jsonl"), world.producer("b.jsonl")
    alone, busy, outlook = world.session("alone"), world.session("busy"), world.ledger.outlook("events")
    claim = world.ledger.claim(alone, {one: TEN}, batch=BATCH, lease_s=60, unchanged=outlook)
    # Its own claims do not block it.
    world.ledger.claim(alone, {one: TWENTY}, batch=BATCH, lease_s=60, unchanged=outlook)

    with pytest.raises(NotAlone, match=r"another session has started to load a\.jsonl"):
        world.ledger.claim(busy, {other: TEN}, batch=BATCH, lease_s=60, unchanged=outlook)
    # Claims from before the plan are not a change.
    known = world.ledger.outlook("events")
    world.ledger.claim(busy, {other: TEN}, batch=BATCH, lease_s=60, unchanged=known)
    world.session("busy")
    world.ledger.commit(world.commit_of(alone, one, TEN, claim=claim))
    with pytest.raises(NotAlone, match=r"planned at position 0, and since then position 1 was committed"):
        world.ledger.claim(alone, {other: TEN}, batch=BATCH, lease_s=60, unchanged=outlook)
    world.ledger.claim(alone, {other: TEN}, batch=BATCH, lease_s=60, unchanged=world.ledger.outlook("events"))


def test_a_claim_may_ask_that_nothing_of_its_names_has_changed_in_any_generation(world):
    one, other, later = world.producer("a.jsonl"), world.producer("b.jsonl"), world.producer("a.jsonl", generation=2)
    alone, busy, outlook = world.session("alone"), world.session("busy"), world.ledger.outlook("events")
    asked = {"batch": BATCH, "lease_s": 60, "unchanged": outlook, "only_names": True}
    claim = world.ledger.claim(alone, {one: TEN}, **asked, names={one: "a.jsonl"})

    with pytest.raises(NotAlone, match=r"another session has started to load a\.jsonl"):
        world.ledger.claim(busy, {later: TEN}, **asked, names={later: "a.jsonl"})
    world.ledger.claim(busy, {other: TEN}, **asked, names={other: "b.jsonl"})
    world.ledger.commit(world.commit_of(alone, one, TEN, claim=claim))
    with pytest.raises(NotAlone, match=r"planned at position 0, and since then a\.jsonl was committed"):
        world.ledger.claim(alone, {later: TEN}, **asked, names={later: "a.jsonl"})
    world.ledger.claim(busy, {other: TWENTY}, **asked, names={other: "b.jsonl"})


def test_a_producer_is_kept_while_a_session_claims_even_an_empty_part_of_it(world):
    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    producer, session = world.producer(), world.session()
    world.ledger.claim(session, {producer: SpanSet()}, batch=BATCH, lease_s=60)
    world.age_producers()

    assert world.ledger.forget_idle("events") == ()
    assert world.ledger.outlook("events").claimed == {"a.jsonl"}


@pytest.mark.parametrize("name", ["b.jsonl", None])
def test_a_claim_with_the_name_of_another_producer_is_refused(world, name):
    """After a failover, another server may have given an id to another producer, or to none."""
    session, producer = world.session(), world.producer(name) if name else ProducerId(2**40)

    with pytest.raises(NotAlone, match=r"is no longer 'a\.jsonl'"):
        world.ledger.claim(session, {producer: TEN}, batch=BATCH, lease_s=60, names={producer: "a.jsonl"})

    other = world.producer("a.jsonl")
    world.ledger.claim(session, {other: TEN}, batch=BATCH, lease_s=60, names={other: "a.jsonl"})


def test_a_claim_is_acked_by_its_commit_and_by_no_second_one(world):
    producer, session = world.producer(), world.session()
    claim = world.ledger.claim(session, {producer: TEN}, batch=BATCH, lease_s=60)
    world.ledger.commit(world.commit_of(session, producer, TEN, claim=claim))

    with pytest.raises(DeliveryTakenAway):
        world.ledger.commit(world.commit_of(session, producer, TWENTY, claim=claim))

    assert len(world.rows()) == 10


def test_a_claim_is_acked_and_released_by_the_session_that_holds_it_alone(world):
    """Epochs count within a session, so that two sessions are often in the same one."""
    producer, holder, other = world.producer(), world.session("holder"), world.session("other")
    claim = world.ledger.claim(holder, {producer: TEN}, batch=BATCH, lease_s=60)

    with pytest.raises(DeliveryTakenAway):
        world.ledger.commit(world.commit_of(other, producer, TEN, claim=claim))
    world.ledger.release(replace(claim, session=other))
    world.ledger.commit(world.commit_of(holder, producer, TEN, claim=claim))

    assert len(world.rows()) == 10


def test_a_commit_that_does_not_end_its_claim_needs_it_as_well(world):
    producer, slow, quick = world.producer(), world.session("slow"), world.session("quick")
    claim = world.ledger.claim(slow, {producer: TWENTY}, batch=BATCH, lease_s=60)

    world.ledger.commit(replace(world.commit_of(slow, producer, SpanSet.of((0, 4)), claim=claim), is_last=False))
    world.end_claims()
    world.ledger.claim(quick, {producer: SpanSet.of((4, 20))}, batch=BATCH, lease_s=60)
    with pytest.raises(DeliveryTakenAway):
        world.ledger.commit(replace(world.commit_of(slow, producer, SpanSet.of((4, 8)), claim=claim), is_last=False))

    assert len(world.rows()) == 4


def test_a_claim_whose_deadline_passed_goes_to_who_asks_and_its_late_commit_is_refused(world):
    producer, slow, quick = world.producer(), world.session("slow"), world.session("quick")
    late = world.ledger.claim(slow, {producer: TEN}, batch=BATCH, lease_s=60)
    world.end_claims()

    assert world.ledger.know(quick, [producer])[producer].claimed == SpanSet()
    claim = world.ledger.claim(quick, {producer: TEN}, batch=BATCH, lease_s=60)
    with pytest.raises(DeliveryTakenAway):
        world.ledger.commit(world.commit_of(slow, producer, TEN, claim=late))
    world.ledger.commit(world.commit_of(quick, producer, TEN, claim=claim))

    assert len(world.rows()) == 10


def test_the_claims_of_an_earlier_life_are_free_at_once(world):
    producer, first = world.producer(), world.session("loader")
    world.ledger.claim(first, {producer: TEN}, batch=BATCH, lease_s=3600)
    world.session("loader")

    known = world.ledger.know(world.session("other"), [producer])[producer]

    assert known.claimed == SpanSet()


def test_consumed_spans_cannot_be_claimed(world):
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN))

    with pytest.raises(AlreadyConsumed):
        world.ledger.claim(session, {producer: SpanSet.of((9, 12))}, batch=BATCH, lease_s=60)


def test_an_earlier_life_can_claim_nothing(world):
    producer, zombie = world.producer(), world.session("loader")
    world.session("loader")

    with pytest.raises(SessionFenced):
        world.ledger.claim(zombie, {producer: TEN}, batch=BATCH, lease_s=60)


def test_a_claim_of_another_pipeline_cannot_be_acked(world):
    world.ledger.declare(Pipeline(name="others"))
    producer, session = world.producer(), world.session()
    other = world.ledger.register("others", [("b", 1)])["b", 1]
    its_session = world.ledger.open_session("others", session.name)
    claim = world.ledger.claim(its_session, {other: TEN}, batch=BATCH, lease_s=60)

    with pytest.raises(DeliveryTakenAway):
        world.ledger.commit(world.commit_of(session, producer, TEN, claim=claim))

    assert world.rows() == []


def test_a_renewed_claim_holds_and_an_expired_one_does_not_return(world):
    producer, session = world.producer(), world.session()
    world.ledger.claim(session, {producer: TEN}, batch=BATCH, lease_s=0.001)
    world.end_claims()
    held = world.ledger.claim(session, {producer: TWENTY}, batch=BATCH, lease_s=60)
    world.ledger.renew(session, lease_s=7200)

    claimed = world.ledger.find("events", ["a.jsonl"])["a.jsonl"][1].claimed

    assert claimed == TWENTY
    world.ledger.commit(world.commit_of(session, producer, TWENTY, claim=held))
    world.session()
    with pytest.raises(SessionFenced):
        world.ledger.renew(session, lease_s=60)
