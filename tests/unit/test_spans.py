"""Span sets against a naive set of numbers, and at the edges of int8."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceload_core.spans import SEQUENCE_END, NotASpan, Span, SpanSet


@st.composite
def span_sets(draw, largest: int = 60):
    """Span sets over few ids, so that they overlap, touch and nest often."""
    bounds = draw(st.lists(st.tuples(st.integers(0, largest), st.integers(1, 12)), max_size=8))
    return SpanSet.of(*((first, first + length) for first, length in bounds))


def ids(spans: SpanSet) -> set[int]:
    """The naive set that a span set stands for."""
    return {each for span in spans for each in range(span.first, span.end)}


@given(left=span_sets(), right=span_sets())
def test_the_algebra_is_that_of_sets(left, right):
    assert ids(left | right) == ids(left) | ids(right)
    assert ids(left & right) == ids(left) & ids(right)
    assert ids(left - right) == ids(left) - ids(right)
    assert left.overlaps(right) == bool(ids(left) & ids(right))
    assert left.covers(right) == (ids(left) >= ids(right))
    assert left.count == len(ids(left))
    assert bool(left) == bool(ids(left))


@given(spans=span_sets(), probe=st.integers(0, 80))
@example(spans=SpanSet.of((0, 5)), probe=5)
def test_an_id_is_in_a_set_as_it_is_in_the_naive_one(spans, probe):
    assert (probe in spans) == (probe in ids(spans))


@given(spans=span_sets())
def test_spans_are_kept_sorted_apart_and_never_touching(spans):
    assert all(left.end < right.first for left, right in zip(spans.spans, spans.spans[1:], strict=False))


@given(left=span_sets(), right=span_sets())
def test_equal_sets_are_equal_values_with_equal_text(left, right):
    assert (left == right) == (ids(left) == ids(right)) == (str(left) == str(right))


@given(spans=span_sets())
def test_text_reads_back_as_the_same_set(spans):
    assert SpanSet.parse(str(spans)) == spans


def test_the_last_sequence_id_can_be_consumed_at_the_very_end_of_int8():
    last = SpanSet.of((SEQUENCE_END - 1, SEQUENCE_END))

    assert SEQUENCE_END - 1 in last
    assert SpanSet.of((0, SEQUENCE_END)) - last == SpanSet.of((0, SEQUENCE_END - 1))
    assert SpanSet.of((0, SEQUENCE_END)).count == SEQUENCE_END


@pytest.mark.parametrize(
    ("first", "end"), [(-1, 5), (5, 5), (5, 4), (0, SEQUENCE_END + 1), (SEQUENCE_END, SEQUENCE_END + 1)]
)
def test_a_span_outside_its_bounds_is_refused_with_what_was_expected(first, end):
    with pytest.raises(NotASpan, match=f"Expected 0 <= first < end <= {SEQUENCE_END}"):
        Span(first, end)


@pytest.mark.parametrize(
    "text", ["", "{", "[0,5)", "{[0,5]}", "{[0,5),}", "{[5,0)}", "{[-1,5)}", "{(,5)}", "{[0,5)}x", "x"]
)
def test_text_that_is_not_a_multirange_of_sequence_ids_is_refused(text):
    with pytest.raises(NotASpan):
        SpanSet.parse(text)
