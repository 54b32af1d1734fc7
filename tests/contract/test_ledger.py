"""What every ledger promises, in memory as in Postgres."""

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from onceload_core.declaration import Declaration, DeclarationChanged, EditRefused
from onceload_core.errors import (
    AlreadyConsumed,
    ClaimedElsewhere,
    DeliveryTakenAway,
    LimitReached,
    NotAlone,
    NotFound,
    SessionFenced,
    SettingRefused,
    SnapshotRefused,
)
from onceload_core.guards import RowsDiffer
from onceload_core.names import Batch, Position, ProducerId, SessionName
from onceload_core.pipeline import Guarantee, Pipeline, SnapshotPolicy
from onceload_core.ports import Advance, Commit, CommitStep, Proof, QuarantinedRecord, Session, Settlement
from onceload_core.replay import Condition, Counts, EntryKind, Run, replay
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Verdict, judge
from tests.contract.conftest import Crash, World, crashing_at

pytestmark = [
    pytest.mark.parametrize(
        ("kind", "postgres_version"),
        [
            pytest.param("memory", None, id="memory"),
            pytest.param("postgres", 16, id="postgres16"),
            pytest.param("postgres", 18, id="postgres"),
        ],
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
FAR_AHEAD = datetime.now(UTC) + timedelta(days=365)
TEN, TWENTY, THIRTY = SpanSet.of((0, 10)), SpanSet.of((10, 20)), SpanSet.of((20, 30))


def consumed_of(world: World, session: Session, producer_id: ProducerId) -> SpanSet:
    return world.ledger.know(session, [producer_id])[producer_id].state.consumed


def test_rows_and_proof_take_effect_together(world):
    producer, session = world.producer(), world.session()

    position = world.ledger.commit(world.commit_of(session, producer, TEN))

    assert position == 1
    assert world.rows() == [(producer, each) for each in range(10)]
    assert consumed_of(world, session, producer) == TEN


def test_a_repeated_commit_is_refused_whole(world):
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN))

    with pytest.raises(AlreadyConsumed, match=r"a\.jsonl.*Nothing was written"):
        world.ledger.commit(world.commit_of(session, producer, TEN))

    assert len(world.rows()) == 10
    assert len(list(world.ledger.entries("events", after=Position(0)))) == 1


def test_the_outcome_of_a_batch_is_the_sum_of_its_commits(world):
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN, counts=Counts(loaded=10), bytes=100))
    other = replace(world.commit_of(session, producer, TWENTY, counts=Counts(loaded=10), bytes=7), batch=Batch("other"))
    world.ledger.commit(other)
    world.ledger.commit(world.commit_of(session, producer, THIRTY, counts=Counts(loaded=10, duplicate=1), bytes=50))

    whole = world.ledger.outcome_of("events", BATCH, after=Position(0))
    later = world.ledger.outcome_of("events", BATCH, after=Position(1))
    nothing = world.ledger.outcome_of("events", Batch("unheard of"), after=Position(0))

    assert (whole.position, whole.counts, whole.bytes) == (3, Counts(loaded=20, duplicate=1), 150)
    assert (later.position, later.counts, later.bytes) == (3, Counts(loaded=10, duplicate=1), 50)
    assert (nothing.position, nothing.counts, nothing.bytes) == (3, Counts(), 0)


@pytest.mark.parametrize("first", [0, 5, 9])
def test_a_commit_that_overlaps_by_as_little_as_one_id_is_refused_whole(world, first):
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN))

    with pytest.raises(AlreadyConsumed):
        world.ledger.commit(world.commit_of(session, producer, SpanSet.of((first, 20))))

    assert len(world.rows()) == 10


def test_a_commit_of_several_producers_is_refused_whole_for_one_of_them(world):
    one, other, session = world.producer("a"), world.producer("b"), world.session()
    world.ledger.commit(world.commit_of(session, other, TEN))
    both = Commit(
        session=session,
        batch=BATCH,
        advances=(Advance(producer_id=one, spans=TEN), Advance(producer_id=other, spans=TEN)),
        write_rows=world.write([(one, 0), (other, 0)]),
        counts=Counts(loaded=2),
    )

    with pytest.raises(AlreadyConsumed, match="at least a part of b"):
        world.ledger.commit(both)

    assert consumed_of(world, session, one) == SpanSet()
    assert len(world.rows()) == 10


@pytest.mark.parametrize("step", CommitStep)
def test_a_load_that_crashes_anywhere_and_is_retried_lands_each_row_once(world, step):
    """Reading may happen many times; committing happens once."""
    producer, session = world.producer(), world.session()
    ids = ("m1", "m2")
    with suppress(Crash):
        world.make_ledger(reached=crashing_at(step)).commit(world.commit_of(session, producer, TEN, message_ids=ids))

    known = world.ledger.know(session, [producer])[producer]
    new = judge(TEN, consumed=known.state.consumed, claimed=known.claimed).new
    if new:
        world.ledger.commit(world.commit_of(session, producer, new, message_ids=ids))

    assert world.rows() == [(producer, each) for each in range(10)]
    assert [entry.position for entry in world.ledger.entries("events", after=Position(0))] == [1]


def test_failure_in_the_middle_leaves_no_gap(world):
    """Pulsar's case: 10 land, 10 fail, 10 land; here the failed ones are still new, and land later."""
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN))
    with pytest.raises(Crash):
        world.make_ledger(reached=crashing_at(CommitStep.DELIVERY_ACKED)).commit(
            world.commit_of(session, producer, TWENTY)
        )
    world.ledger.commit(world.commit_of(session, producer, THIRTY))

    consumed = consumed_of(world, session, producer)
    assert consumed == SpanSet.of((0, 10), (20, 30))
    missing = judge(SpanSet.of((0, 30)), consumed=consumed, claimed=SpanSet()).new
    world.ledger.commit(world.commit_of(session, producer, missing))

    assert world.rows() == [(producer, each) for each in range(30)]
    assert consumed_of(world, session, producer) == SpanSet.of((0, 30))


def test_an_earlier_life_of_a_session_is_refused(world):
    producer, zombie = world.producer(), world.session("loader")
    successor = world.session("loader")
    assert successor.epoch > zombie.epoch

    with pytest.raises(SessionFenced, match=f"session loader is no longer in epoch {zombie.epoch}"):
        world.ledger.commit(world.commit_of(zombie, producer, TEN))

    world.ledger.commit(world.commit_of(successor, producer, TEN))
    assert len(world.rows()) == 10


def test_sessions_of_other_names_do_not_fence_each_other(world):
    producer, one, other = world.producer(), world.session("one"), world.session("other")

    world.ledger.commit(world.commit_of(one, producer, TEN))
    world.ledger.commit(world.commit_of(other, producer, TWENTY))

    assert len(world.rows()) == 20


def test_a_claim_makes_the_span_unknown_to_others_and_falls_back_when_released(world):
    """Pulsar: pushed is reset to persisted after a failed write."""
    producer, one, other = world.producer(), world.session("one"), world.session("other")
    claim = world.ledger.claim(one, {producer: TEN}, batch=BATCH, lease_s=60)

    held = world.ledger.know(other, [producer])[producer]
    mine = world.ledger.know(one, [producer])[producer]
    assert judge(TEN, consumed=held.state.consumed, claimed=held.claimed).verdict is Verdict.UNKNOWN
    assert judge(TEN, consumed=mine.state.consumed, claimed=mine.claimed).verdict is Verdict.NEW
    with pytest.raises(ClaimedElsewhere, match=r"a\.jsonl \{\[4,10\)\}"):
        world.ledger.claim(other, {producer: SpanSet.of((4, 20))}, batch=BATCH, lease_s=60)

    world.ledger.release(claim)
    free = world.ledger.know(other, [producer])[producer]
    assert judge(TEN, consumed=free.state.consumed, claimed=free.claimed).verdict is Verdict.NEW


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


def declared(terms=None, *, rest="", **limits):
    """A pipeline whose file says this much."""
    return Pipeline(name="events", declaration=Declaration(terms=terms or {}, rest={"columns": rest}), **limits)


def test_the_same_declaration_is_one_version_and_another_is_the_next(world):
    first = world.ledger.declare(declared(rest="a"))
    again = world.ledger.declare(declared(rest="a", islands_max=3))
    second = world.ledger.declare(declared(rest="b"))
    third = world.ledger.declare(declared(rest="a"))

    assert (again - first, second - first, third - first) == (0, 1, 2)
    assert world.ledger.find_version(declared(rest="a")) == third
    assert world.ledger.find_version(declared(rest="b")) is None
    assert world.ledger.find_version(Pipeline(name="unknown")) is None


def test_nothing_that_was_begun_under_an_earlier_version_takes_effect(world):
    world.ledger.declare(declared(rest="a"))
    producer, session = world.producer(), world.session()
    claim = world.ledger.claim(session, {producer: TEN}, batch=BATCH, lease_s=60)
    in_force = world.ledger.declare(declared(rest="b"))

    for late in (
        lambda: world.ledger.commit(world.commit_of(session, producer, TEN)),
        lambda: world.ledger.commit(world.commit_of(session, producer, TEN, claim=claim)),
        lambda: world.ledger.claim(session, {producer: TWENTY}, batch=BATCH, lease_s=60),
        lambda: world.ledger.open_session("events", SessionName("late"), version=session.version),
        lambda: world.ledger.declare(declared(rest="b"), version=session.version),
    ):
        with pytest.raises(DeclarationChanged, match=rf"version {session.version}, and version {in_force} is in force"):
            late()

    assert world.rows() == []
    assert world.ledger.outlook("events").claimed == frozenset()
    world.ledger.commit(world.commit_of(world.session(), producer, TEN))


@pytest.mark.parametrize("key", ["source.root", "source.format", "source.options", "producer", "target.table"])
def test_the_terms_of_a_pipeline_change_only_while_nothing_is_consumed(world, key):
    world.ledger.declare(declared({key: "public.a"}))
    producer = world.producer()
    world.ledger.declare(declared({key: "public.b"}))
    # One that leaves it out leaves it as it is.
    version = world.ledger.declare(declared())
    # The table has to be there: one that is gone was renamed.
    world.make_table("public.b")
    world.ledger.commit(world.commit_of(world.session(), producer, TEN))

    edited = declared({key: "public.c"}, moved_from="elsewhere")
    for refused in (world.ledger.declare, world.ledger.find_version):
        with pytest.raises(EditRefused, match=rf"{key} was changed from public\.b to public\.c.*Nothing was changed"):
            refused(edited)

    assert world.ledger.declare(declared()) == version


def test_a_folder_that_was_moved_keeps_its_names(world):
    world.ledger.declare(declared({"source.root": "in"}))
    world.ledger.commit(world.commit_of(world.session(), world.producer(), TEN))

    world.ledger.declare(declared({"source.root": "out"}, moved_from="in"))
    world.ledger.declare(declared({"source.root": "out"}, moved_from="in"))

    with pytest.raises(EditRefused, match="from out to in"):
        world.ledger.declare(declared({"source.root": "in"}))


def test_business_ids_go_on_with_the_same_columns_or_begin_again(world):
    with_ids = {"message_keep_days": 2}
    world.ledger.declare(declared({"message_id": "order_id text"}, **with_ids))
    world.ledger.declare(declared({"message_id": "event_id text"}, **with_ids))
    commit = world.commit_of(world.session(), world.producer(), TEN, message_ids=("m",))
    world.ledger.commit(commit)

    with pytest.raises(EditRefused, match=r"message_id was changed.*remove message_id, load once"):
        world.ledger.declare(declared({"message_id": "order_id text"}, **with_ids))

    # Ids that are taken out for a while are within their window when the same ones are declared again.
    world.ledger.declare(declared({"message_id": ""}))
    world.ledger.declare(declared({"message_id": "event_id text"}, **with_ids))
    repeated = world.commit_of(world.session(), world.producer(), TWENTY, message_ids=("m",))
    with pytest.raises(AlreadyConsumed, match="1 business ids"):
        world.ledger.commit(repeated)

    world.ledger.declare(declared({"message_id": ""}))
    world.ledger.declare(declared({"message_id": "order_id text"}, **with_ids))
    world.ledger.commit(replace(repeated, session=world.session()))


def test_the_proof_of_a_producer_is_all_that_its_loads_read(world):
    producer, session = world.producer(), world.session()
    first, second = (
        Advance(producer_id=producer, spans=TEN, rows=3, records=4, digest=b"one"),
        Advance(producer_id=producer, spans=TWENTY, rows=5, records=5, digest=b"two"),
    )
    for advance in (first, second):
        world.ledger.commit(replace(world.commit_of(session, producer, TEN), advances=(advance,)))

    assert world.ledger.proof_of("events", producer) == Proof(records=9, digests=b"onetwo")


@pytest.mark.parametrize("guarantee", Guarantee)
def test_nothing_more_is_loaded_of_a_replaced_generation(world, guarantee):
    """Its rows are gone, and a run that has read more of it is late."""
    world.ledger.declare(Pipeline(name="events", guarantee=guarantee))
    old, slow, session = world.producer(), world.session("slow"), world.session()
    world.ledger.commit(world.commit_of(slow, old, TEN))
    claim = world.ledger.claim(slow, {old: TWENTY}, batch=BATCH, lease_s=60)
    new = world.producer(generation=2)
    advances = (
        Advance(producer_id=new, spans=TEN, rows=10),
        Advance(producer_id=old, spans=SpanSet(), condition=Condition.REPLACED),
    )
    world.ledger.commit(replace(world.commit_of(session, new, TEN), advances=advances))

    for late in (
        world.commit_of(slow, old, TWENTY, claim=claim),
        replace(
            world.commit_of(slow, old, TWENTY),
            advances=(Advance(producer_id=old, spans=SpanSet(), condition=Condition.SEALED),),
            counts=Counts(),
            write_rows=world.write([]),
        ),
    ):
        with pytest.raises(AlreadyConsumed, match=r"a\.jsonl"):
            world.ledger.commit(late)

    assert world.ledger.know(session, [old])[old].state.condition is Condition.REPLACED


def test_a_producer_is_kept_while_a_session_claims_even_an_empty_part_of_it(world):
    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    producer, session = world.producer(), world.session()
    world.ledger.claim(session, {producer: SpanSet()}, batch=BATCH, lease_s=60)
    world.age_producers()

    assert world.ledger.forget_idle("events") == ()
    assert world.ledger.outlook("events").claimed == {"a.jsonl"}


def test_a_sealed_file_in_which_nothing_new_is_found_stays_sealed(world):
    """Its last line may have no newline, so that it must not go on there."""
    producer, session = world.producer(), world.session()
    sealed = Advance(producer_id=producer, spans=TEN, condition=Condition.SEALED)
    looked_again = Advance(producer_id=producer, spans=SpanSet(), condition=Condition.OPEN, fingerprint=b"x", size=9)
    for advance in (sealed, looked_again):
        world.ledger.commit(Commit(session=session, batch=BATCH, advances=(advance,), write_rows=world.write([])))

    state = world.ledger.states("events").states[producer]
    assert (state.condition, state.fingerprint, state.size) == (Condition.SEALED, b"x", 9)


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


def test_a_business_id_takes_effect_once_in_its_window(world):
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN, message_ids=("order-1", "order-2")))

    with pytest.raises(AlreadyConsumed, match="1 business ids"):
        world.ledger.commit(world.commit_of(session, producer, TWENTY, message_ids=("order-2", "order-3")))
    world.ledger.commit(world.commit_of(session, producer, TWENTY, message_ids=("order-3", "a\x00b\ud800")))

    assert len(world.rows()) == 20


def test_a_record_is_quarantined_in_the_commit_that_consumes_it_and_once(world):
    producer, session = world.producer(), world.session()
    bad = QuarantinedRecord(
        producer_id=producer, sequence_id=3, raw=b'\x00"\\\xff', reason='no "date", \\ {,}\x00', column="ts"
    )
    commit = world.commit_of(session, producer, TEN, quarantined=(bad,), counts=Counts(loaded=10, quarantined=1))
    world.ledger.commit(commit)

    with pytest.raises(AlreadyConsumed):
        world.ledger.commit(commit)
    world.ledger.declare(Pipeline(name="events", guarantee=Guarantee.AT_LEAST_ONCE))
    world.ledger.commit(replace(commit, session=world.session()))

    assert len(world.rows()) == 20


@pytest.mark.parametrize("sequence_id", [10, 2**40])
def test_a_quarantined_record_must_be_one_that_the_commit_consumes(world, sequence_id):
    producer, session = world.producer(), world.session()
    stray = QuarantinedRecord(producer_id=producer, sequence_id=sequence_id, raw=b"", reason="no date")

    with pytest.raises(SettingRefused, match="which the commit does not consume"):
        world.commit_of(session, producer, TEN, quarantined=(stray,), counts=Counts(quarantined=1))


def test_the_counts_of_a_commit_must_be_those_of_its_parts(world):
    producer, session = world.producer(), world.session()
    bad = QuarantinedRecord(producer_id=producer, sequence_id=3, raw=b"", reason="no date")

    with pytest.raises(SettingRefused, match="0 counted and 1 given"):
        world.commit_of(session, producer, TEN, quarantined=(bad,))
    with pytest.raises(SettingRefused, match="none below zero"):
        Counts(loaded=-1)
    with pytest.raises(SettingRefused, match="keep its beginning"):
        QuarantinedRecord(producer_id=producer, sequence_id=3, raw=bytes(2**28 + 1), reason="long")


def test_a_claim_of_another_pipeline_cannot_be_acked(world):
    world.ledger.declare(Pipeline(name="others"))
    producer, session = world.producer(), world.session()
    other = world.ledger.register("others", [("b", 1)])["b", 1]
    its_session = world.ledger.open_session("others", session.name)
    claim = world.ledger.claim(its_session, {other: TEN}, batch=BATCH, lease_s=60)

    with pytest.raises(DeliveryTakenAway):
        world.ledger.commit(world.commit_of(session, producer, TEN, claim=claim))

    assert world.rows() == []


def test_rows_of_no_span_are_refused_before_anything_happens(world):
    """Nothing would tell that they are there, and the next run would write them again."""
    producer, session = world.producer(), world.session()

    with pytest.raises(SettingRefused, match="5 rows without spans"):
        Advance(producer_id=producer, spans=SpanSet(), rows=5)
    with pytest.raises(SettingRefused, match="7 rows without spans"):
        Commit(session=session, batch=BATCH, advances=(), write_rows=world.write([]), counts=Counts(loaded=7))


@pytest.mark.parametrize("written", [9, 11, 0])
def test_rows_that_the_database_did_not_write_are_not_recorded_as_loaded(world, written):
    producer, session = world.producer(), world.session()
    commit = world.commit_of(session, producer, TEN)
    rows = [(producer, each) for each in range(written)]

    with pytest.raises(RowsDiffer, match=f"wrote {written} rows instead of 10. The commit was rolled back"):
        world.ledger.commit(replace(commit, write_rows=world.write(rows)))

    assert world.rows() == []
    assert world.ledger.position("events") == 0
    assert consumed_of(world, session, producer) == SpanSet()
    world.ledger.commit(commit)
    assert len(world.rows()) == 10


@pytest.mark.parametrize("name", ["", "a\x00b", "\udcff", "x" * 2001])
def test_names_that_the_database_could_not_hold_are_refused(world, name):
    producer, session = world.producer(), world.session()

    with pytest.raises(SettingRefused, match="bytes of UTF-8 without a NUL"):
        world.ledger.register("events", [(name, 1)])
    with pytest.raises(SettingRefused, match="bytes of UTF-8 without a NUL"):
        world.ledger.open_session("events", SessionName(name))
    with pytest.raises(SettingRefused, match="bytes of UTF-8 without a NUL"):
        replace(world.commit_of(session, producer, TEN), batch=Batch(name))


@pytest.mark.parametrize("generation", [0, -1, 2**31])
def test_generations_that_the_database_could_not_hold_are_refused(world, generation):
    with pytest.raises(SettingRefused, match=f"Expected 1 to {2**31 - 1}"):
        world.ledger.register("events", [("a", generation)])


def test_an_advance_without_spans_notes_what_was_seen_and_consumes_nothing(world):
    producer, other, session = world.producer("a"), world.producer("b"), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN))
    for seen in (producer, other):
        note = Advance(producer_id=seen, spans=SpanSet(), condition=Condition.SEALED, size=3)
        world.ledger.commit(Commit(session=session, batch=BATCH, advances=(note,), write_rows=world.write([])))

    states = world.ledger.states("events").states
    assert list(states) == [producer]
    assert (states[producer].condition, states[producer].consumed) == (Condition.SEALED, TEN)
    assert replay({}, world.ledger.entries("events", after=Position(0))) == states


def test_the_ledger_says_all_that_was_committed(world):
    producer, session = world.producer(), world.session()
    counts = Counts(loaded=10, duplicate=1, quarantined=2, filtered=3)
    run = Run(dag_id="ingest__events", run_id="manual__1", try_number=2)
    bad = tuple(QuarantinedRecord(producer_id=producer, sequence_id=each, raw=b"", reason="no date") for each in (3, 4))
    world.ledger.commit(world.commit_of(session, producer, TEN, counts=counts, bytes=99, run=run, quarantined=bad))

    (entry,) = world.ledger.entries("events", after=Position(0))

    assert (entry.kind, entry.position, entry.batch) == (EntryKind.LOAD, 1, "batch")
    assert (entry.counts, entry.bytes, entry.run) == (counts, 99, run)
    assert (entry.session, entry.epoch) == ("loader", session.epoch)
    (receipt,) = entry.receipts
    assert (receipt.producer, receipt.generation, receipt.spans, receipt.rows) == ("a.jsonl", 1, TEN, 10)
    assert (receipt.fingerprint, receipt.size, receipt.condition) == (b"\x00\xff", 9, Condition.OPEN)


def test_positions_are_gapless_through_refusals(world):
    producer, session = world.producer(), world.session()
    for _ in range(3):
        world.ledger.commit(world.commit_of(session, producer, consumed_next(world, session, producer)))
        with suppress(AlreadyConsumed):
            world.ledger.commit(world.commit_of(session, producer, TEN))

    assert [entry.position for entry in world.ledger.entries("events", after=Position(0))] == [1, 2, 3]
    assert [entry.position for entry in world.ledger.entries("events", after=Position(2))] == [3]


def consumed_next(world: World, session: Session, producer_id: ProducerId) -> SpanSet:
    end = consumed_of(world, session, producer_id).end
    return SpanSet.of((end, end + 10))


def test_with_the_guarantee_switched_off_repeats_are_loaded_and_still_written_down(world):
    world.ledger.declare(Pipeline(name="events", guarantee=Guarantee.AT_LEAST_ONCE))
    producer, session = world.producer(), world.session()
    for _ in range(2):
        world.ledger.commit(world.commit_of(session, producer, TEN, message_ids=("m",)))

    assert len(world.rows()) == 20
    world.ledger.declare(Pipeline(name="events", guarantee=Guarantee.EXACTLY_ONCE))
    with pytest.raises(AlreadyConsumed):
        world.ledger.commit(world.commit_of(world.session(), producer, TEN))


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


def test_idle_producers_are_forgotten_only_where_that_is_declared(world):
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN, fingerprint=None))

    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    assert world.ledger.forget_idle("events") == ()
    world.age_producers()
    world.ledger.declare(Pipeline(name="events"))
    assert world.ledger.forget_idle("events") == ()
    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    assert world.ledger.forget_idle("events") == ("a.jsonl",)

    assert world.ledger.know(session, [producer]) == {}
    assert replay({}, world.ledger.entries("events", after=Position(0))) == {}
    assert world.ledger.states("events").states == {}


def test_a_file_is_never_forgotten_because_it_may_still_be_there(world):
    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN, fingerprint=b"its first bytes"))
    world.age_producers()

    assert world.ledger.forget_idle("events") == ()
    assert world.ledger.know(session, [producer])[producer].state.consumed == TEN


def test_a_producer_that_a_live_worker_claims_is_never_forgotten(world):
    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, TEN, fingerprint=None))
    world.ledger.claim(session, {producer: TWENTY}, batch=BATCH, lease_s=3600)
    world.age_producers()

    assert world.ledger.forget_idle("events") == ()


def test_a_commit_for_a_forgotten_producer_is_refused(world):
    world.ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    producer, session = world.producer(), world.session()
    world.age_producers()
    world.ledger.forget_idle("events")

    with pytest.raises(AlreadyConsumed, match="a forgotten producer"):
        world.ledger.commit(world.commit_of(session, producer, TEN))

    assert world.rows() == []


def test_more_producers_than_declared_are_refused_whole(world):
    world.ledger.declare(Pipeline(name="events", producers_max=2))
    world.producer("a")

    with pytest.raises(LimitReached, match="producers_max allows 2, and this load would need 3"):
        world.ledger.register("events", [("a", 1), ("b", 1), ("c", 1)])

    assert len(world.ledger.register("events", [("a", 1), ("b", 1)])) == 2


def test_more_islands_than_declared_are_refused_whole(world):
    world.ledger.declare(Pipeline(name="events", islands_max=2))
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, SpanSet.of((0, 1), (2, 3))))

    with pytest.raises(LimitReached, match="islands_max allows 2, and this load would need 3"):
        world.ledger.commit(world.commit_of(session, producer, SpanSet.of((4, 5))))
    world.ledger.commit(world.commit_of(session, producer, SpanSet.of((1, 2))))

    assert consumed_of(world, session, producer) == SpanSet.of((0, 3))


def test_registering_again_gives_the_same_ids_and_generations_are_producers_of_their_own(world):
    names = [("a", 1), ('b "\\', 1), ("a", 2), ("ä,{}\t", 1)]
    first = world.ledger.register("events", names)

    assert world.ledger.register("events", names) == first
    assert len(set(first.values())) == 4


def test_an_unknown_pipeline_is_refused_by_name(world):
    with pytest.raises(NotFound, match=r"pipeline not found: 'evnets'.*Known: events"):
        world.ledger.open_session("evnets", SessionName("s"))


def test_one_producer_twice_in_a_commit_is_refused_before_anything_happens(world):
    producer, session = world.producer(), world.session()
    twice = (Advance(producer_id=producer, spans=TEN), Advance(producer_id=producer, spans=TWENTY))

    with pytest.raises(SettingRefused, match="each of them once"):
        Commit(session=session, batch=BATCH, advances=twice, write_rows=world.write([]))


def test_the_last_sequence_id_of_int8_is_consumed_like_any_other(world):
    producer, session = world.producer(), world.session()
    last = SpanSet.of((2**63 - 2, 2**63 - 1))
    world.ledger.commit(
        Commit(
            session=session,
            batch=BATCH,
            advances=(Advance(producer_id=producer, spans=last),),
            write_rows=world.write([]),
        )
    )

    assert consumed_of(world, session, producer) == last


def test_a_name_is_found_in_its_latest_generation_with_all_that_is_claimed_of_it(world):
    first, second, session = world.producer("a"), world.producer("a", 2), world.session()
    world.ledger.commit(world.commit_of(session, first, TEN))
    only_registered = world.ledger.find("events", ["a", "never seen"])
    world.ledger.commit(world.commit_of(session, second, TEN))
    world.ledger.claim(session, {second: TWENTY}, batch=BATCH, lease_s=60)

    found = world.ledger.find("events", ["a"])

    # A registered generation of which nothing was loaded is not a life of a file.
    assert [key for key, _ in only_registered.values()] == [first]
    producer_id, knowledge = found["a"]
    assert (producer_id, knowledge.state.generation, knowledge.state.consumed) == (second, 2, TEN)
    assert knowledge.claimed == TWENTY
    with pytest.raises(NotFound):
        world.ledger.find("nobody's", ["a"])


def _noting(world, session, **advance):
    advances = (Advance(spans=SpanSet(), fingerprint=b"f", **advance),)
    commit = world.commit_of(session, advance["producer_id"], TEN)
    return replace(commit, advances=advances, counts=Counts(), write_rows=lambda _: 0)


def test_a_copy_is_found_with_the_producer_whose_content_it_holds(world):
    its, copy, session = world.producer("a"), world.producer("b"), world.session()
    world.ledger.commit(_noting(world, session, producer_id=copy, copy_of=its))
    before = world.ledger.find("events", ["b"])["b"][1]
    world.ledger.commit(world.commit_of(session, its, TEN))

    found = world.ledger.find("events", ["b"])["b"][1]

    # A producer that consumed nothing has no copy.
    assert (before.shared, before.state.fingerprint) == (None, None)
    assert found.shared is not None
    assert (found.shared[0], found.shared[1].consumed) == (its, TEN)
    assert (found.state.consumed, found.state.fingerprint) == (SpanSet(), b"f")


def test_a_producer_that_has_consumed_something_is_not_a_copy_and_cannot_pass_on_its_name(world):
    its, other, session = world.producer("a"), world.producer("b"), world.session()
    for producer in (its, other):
        world.ledger.commit(world.commit_of(session, producer, TEN))

    for advance in ({"producer_id": other, "copy_of": its}, {"producer_id": its, "takes_name_of": other}):
        with pytest.raises(AlreadyConsumed):
            world.ledger.commit(_noting(world, session, **advance))
    with pytest.raises(SettingRefused, match="its producer consumes them"):
        Advance(producer_id=other, spans=TEN, copy_of=its)


def test_a_copy_that_consumes_something_is_none_any_more(world):
    its, copy, session = world.producer("a"), world.producer("b"), world.session()
    world.ledger.commit(world.commit_of(session, its, TEN))
    world.ledger.commit(_noting(world, session, producer_id=copy, copy_of=its))
    world.ledger.commit(world.commit_of(session, copy, TWENTY))

    found = world.ledger.find("events", ["b"])["b"][1]

    assert (found.shared, found.state.consumed) == (None, TWENTY)


def test_a_producer_goes_on_under_another_name_and_the_old_one_stays_as_its_copy(world):
    its, other, session = world.producer("a"), world.producer("b", 3), world.session()
    world.ledger.commit(world.commit_of(session, its, TEN))

    world.ledger.commit(_noting(world, session, producer_id=its, takes_name_of=other))

    found = world.ledger.find("events", ["a", "b"])
    assert (found["b"][0], found["b"][1].state.generation, found["b"][1].state.consumed) == (its, 3, TEN)
    assert (found["a"][0], found["a"][1].state.consumed) == (other, SpanSet())
    assert found["a"][1].shared == (its, found["b"][1].state)
    # The ledger has the same.
    replayed = replay({}, world.ledger.entries("events", after=Position(0)))
    assert replayed == world.ledger.states("events").states


def test_the_proof_up_to_a_place_is_what_was_read_before_it(world):
    producer, session = world.producer(), world.session()
    for spans, digest in ((TEN, b"one"), (TWENTY, b"two")):
        advance = Advance(producer_id=producer, spans=spans, records=4, digest=digest)
        world.ledger.commit(replace(world.commit_of(session, producer, TEN), advances=(advance,)))

    assert world.ledger.proof_of("events", producer, end=10) == Proof(records=4, digests=b"one")


def test_the_note_of_a_file_is_the_one_of_its_furthest_commit(world):
    producer, session = world.producer(), world.session()
    for number, spans in enumerate([TWENTY, TEN, THIRTY]):
        advance = Advance(producer_id=producer, spans=spans, fingerprint=bytes([number]), size=number)
        world.ledger.commit(Commit(session=session, batch=BATCH, advances=(advance,), write_rows=world.write([])))
        noted = world.ledger.states("events")
        assert noted.states[producer].fingerprint == bytes([{0: 0, 1: 0, 2: 2}[number]])
        assert replay({}, world.ledger.entries("events", after=Position(0))) == noted.states


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
    world: World, session: Session, producer_id: ProducerId, *ids: int, kind: EntryKind = EntryKind.RETRY
) -> Settlement[Any]:
    records = tuple((producer_id, each) for each in ids)
    rows = records if kind is EntryKind.RETRY else ()
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


@pytest.mark.parametrize(
    "wrong", [{"kind": EntryKind.LOAD}, {"records": ()}, {"records": ((ProducerId(1), 3), (ProducerId(1), 3))}]
)
def test_a_settlement_that_cannot_be_meant_is_refused_before_anything_happens(world, wrong):
    meant = settlement_of(world, world.session(), world.producer(), 3)

    with pytest.raises(SettingRefused):
        replace(meant, **wrong)
