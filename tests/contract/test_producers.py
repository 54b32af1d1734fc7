"""What every ledger promises of producers, in memory as in Postgres: names, generations, copies, and forgetting."""

from dataclasses import replace

import pytest

from onceload_core.errors import (
    AlreadyConsumed,
    LimitReached,
    NotFound,
    SettingRefused,
)
from onceload_core.names import Batch, Position, SessionName
from onceload_core.pipeline import Guarantee, Pipeline
from onceload_core.ports import Advance, Commit
from onceload_core.replay import Condition, Counts, Proof, replay
from onceload_core.spans import SpanSet
from tests.contract.ledgers import BATCH, EVERY_LEDGER, TEN, THIRTY, TWENTY

pytestmark = EVERY_LEDGER


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


def test_registering_again_gives_the_same_ids_and_generations_are_producers_of_their_own(world):
    names = [("a", 1), ('b "\\', 1), ("a", 2), ("ä,{}\t", 1)]
    first = world.ledger.register("events", names)

    assert world.ledger.register("events", names) == first
    assert len(set(first.values())) == 4


def test_an_unknown_pipeline_is_refused_by_name(world):
    with pytest.raises(NotFound, match=r"pipeline not found: 'evnets'.*Known: events"):
        world.ledger.open_session("evnets", SessionName("s"))


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
