"""What every ledger promises of commits, in memory as in Postgres."""

from contextlib import suppress
from dataclasses import replace

import pytest

from onceload_core.errors import (
    AlreadyConsumed,
    LimitReached,
    SessionFenced,
    SettingRefused,
)
from onceload_core.guards import RowsDiffer
from onceload_core.names import Batch, Position
from onceload_core.pipeline import Guarantee, Pipeline
from onceload_core.ports import Advance, Commit, CommitStep, QuarantinedRecord
from onceload_core.replay import Condition, Counts, EntryKind, Run, replay
from onceload_core.spans import SpanSet
from onceload_core.verdicts import judge
from tests.contract.conftest import Crash, crashing_at
from tests.contract.ledgers import BATCH, EVERY_LEDGER, TEN, THIRTY, TWENTY, consumed_next, consumed_of

pytestmark = EVERY_LEDGER


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


def test_a_sealed_file_in_which_nothing_new_is_found_stays_sealed(world):
    """Its last line may have no newline, so that it must not go on there."""
    producer, session = world.producer(), world.session()
    sealed = Advance(producer_id=producer, spans=TEN, condition=Condition.SEALED)
    looked_again = Advance(producer_id=producer, spans=SpanSet(), condition=Condition.OPEN, fingerprint=b"x", size=9)
    for advance in (sealed, looked_again):
        world.ledger.commit(Commit(session=session, batch=BATCH, advances=(advance,), write_rows=world.write([])))

    state = world.ledger.states("events").states[producer]
    assert (state.condition, state.fingerprint, state.size) == (Condition.SEALED, b"x", 9)


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


def test_a_write_that_returns_no_number_is_refused_in_words(world):
    producer, session = world.producer(), world.session()
    commit = world.commit_of(session, producer, TEN)

    with pytest.raises(RowsDiffer, match=r"write_rows did not return the number of rows \(expected 10\)"):
        world.ledger.commit(replace(commit, write_rows=lambda transaction: print(commit.write_rows(transaction))))

    assert world.rows() == []
    assert world.ledger.position("events") == 0


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


def test_with_the_guarantee_switched_off_repeats_are_loaded_and_still_written_down(world):
    world.ledger.declare(Pipeline(name="events", guarantee=Guarantee.AT_LEAST_ONCE))
    producer, session = world.producer(), world.session()
    for _ in range(2):
        world.ledger.commit(world.commit_of(session, producer, TEN, message_ids=("m",)))

    assert len(world.rows()) == 20
    world.ledger.declare(Pipeline(name="events", guarantee=Guarantee.EXACTLY_ONCE))
    with pytest.raises(AlreadyConsumed):
        world.ledger.commit(world.commit_of(world.session(), producer, TEN))


def test_more_islands_than_declared_are_refused_whole(world):
    world.ledger.declare(Pipeline(name="events", islands_max=2))
    producer, session = world.producer(), world.session()
    world.ledger.commit(world.commit_of(session, producer, SpanSet.of((0, 1), (2, 3))))

    with pytest.raises(LimitReached, match="islands_max allows 2, and this load would need 3"):
        world.ledger.commit(world.commit_of(session, producer, SpanSet.of((4, 5))))
    world.ledger.commit(world.commit_of(session, producer, SpanSet.of((1, 2))))

    assert consumed_of(world, session, producer) == SpanSet.of((0, 3))


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
