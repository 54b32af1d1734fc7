"""New, duplicate or unknown: the laws, and Pulsar's own cases."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order, judge, passed_over, settled
from tests.unit.test_spans import ids, span_sets

NOTHING = SpanSet()


@given(offered=span_sets(), consumed=span_sets(), claimed=span_sets(), order=st.sampled_from(Order))
def test_the_three_answers_are_exactly_what_was_offered(offered, consumed, claimed, order):
    judgement = judge(offered, consumed=consumed, claimed=claimed, order=order)

    parts = [judgement.new, judgement.duplicate, judgement.unknown]
    assert sum(part.count for part in parts) == offered.count
    assert judgement.new | judgement.duplicate | judgement.unknown == offered


@given(offered=span_sets(), consumed=span_sets(), claimed=span_sets())
def test_in_any_order_each_id_is_judged_by_itself(offered, consumed, claimed):
    judgement = judge(offered, consumed=consumed, claimed=claimed, order=Order.ANY)

    assert ids(judgement.duplicate) == ids(offered) & ids(consumed)
    assert ids(judgement.unknown) == (ids(offered) & ids(claimed)) - ids(consumed)
    assert ids(judgement.new) == ids(offered) - ids(consumed) - ids(claimed)


@given(offered=span_sets(), consumed=span_sets(), claimed=span_sets())
def test_an_ordered_producer_never_goes_back_and_never_overtakes_itself(offered, consumed, claimed):
    judgement = judge(offered, consumed=consumed, claimed=claimed, order=Order.ORDERED)

    last = max(ids(consumed), default=-1)
    assert all(each > last for each in ids(judgement.new))
    assert all(each <= last for each in ids(judgement.duplicate))
    assert not (judgement.new and max(ids(claimed), default=-1) > last)


@given(offered=span_sets(), consumed=span_sets(), order=st.sampled_from(Order))
def test_new_spans_are_duplicates_once_they_are_settled(offered, consumed, order):
    new = judge(offered, consumed=consumed, claimed=NOTHING, order=order).new

    again = judge(offered, consumed=settled(consumed | new, order=order), claimed=NOTHING, order=order)

    assert again.duplicate == offered


@given(consumed=span_sets(), new=span_sets())
def test_the_state_of_an_ordered_producer_stays_one_span(consumed, new):
    assert len(settled(consumed | new, order=Order.ORDERED).spans) <= 1


def test_a_gap_is_never_forgiven_in_any_order():
    """In Pulsar's own failure test 10 to 19 are absent for good once 20 to 29 were persisted."""
    consumed = SpanSet.of((0, 10), (20, 30))

    assert judge(SpanSet.of((10, 20)), consumed=consumed, claimed=NOTHING).new == SpanSet.of((10, 20))


@given(offered=span_sets(), consumed=span_sets(), owed=span_sets())
def test_owed_ids_are_passed_over_exactly_if_a_higher_id_was_never_loaded(offered, consumed, owed):
    never_loaded = ids(offered) - ids(consumed) - ids(owed)

    found = passed_over(offered, consumed=consumed, owed=owed)

    left = ids(owed) - ids(consumed) - ids(offered)
    assert ids(found) == {each for each in left if each < max(never_loaded, default=-1)}


def test_pulsar_ranges_1_to_5_then_4_to_8():
    """The second range is cut: 4 and 5 wait for the claim, and are duplicates once it is consumed."""
    first, second = SpanSet.of((1, 6)), SpanSet.of((4, 9))

    while_loading = judge(second, consumed=NOTHING, claimed=first)
    after_commit = judge(second, consumed=first, claimed=NOTHING)
    after_failure = judge(second, consumed=NOTHING, claimed=NOTHING)

    assert (while_loading.unknown, while_loading.new) == (SpanSet.of((4, 6)), SpanSet.of((6, 9)))
    assert (after_commit.duplicate, after_commit.new) == (SpanSet.of((4, 6)), SpanSet.of((6, 9)))
    assert after_failure.new == second


@pytest.mark.parametrize(
    ("offered", "new"),
    [((0, 3), []), ((5, 9), []), ((9, 12), [(9, 12)]), ((8, 12), [(9, 12)])],
)
def test_pulsar_at_or_below_the_last_persisted_id_is_a_duplicate(offered, new):
    judgement = judge(SpanSet.of(offered), consumed=SpanSet.of((0, 2), (8, 9)), claimed=NOTHING, order=Order.ORDERED)

    assert judgement.new == SpanSet.of(*new)


def test_a_span_that_is_part_new_and_part_duplicate_is_cut_at_every_place():
    whole = SpanSet.of((0, 1024))
    for cut in range(1025):
        prefix = SpanSet.of((0, cut)) if cut else NOTHING

        judgement = judge(whole, consumed=prefix, claimed=NOTHING)

        assert (judgement.duplicate, judgement.new) == (prefix, whole - prefix)
