"""Span sets against the multiranges of Postgres, on random inputs."""

import psycopg2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceload_core.spans import SEQUENCE_END, SpanSet
from tests.unit.test_spans import span_sets

pytestmark = pytest.mark.every_postgres

ALGEBRA = """
SELECT CAST(l + r AS text), CAST(l * r AS text), CAST(l - r AS text), l && r, l @> r, l = r, coalesce(upper(l), 0)
  FROM (SELECT CAST(%s AS int8multirange) AS l, CAST(%s AS int8multirange) AS r) AS pair
"""


@pytest.fixture
def cursor(dsn):
    connection = psycopg2.connect(dsn)
    yield connection.cursor()
    connection.close()


@st.composite
def far_span_sets(draw):
    """Span sets that also reach the far end of int8."""
    near, far = draw(span_sets()), draw(span_sets(largest=40))
    top = SEQUENCE_END - 60
    return near | SpanSet.of(*((span.first + top, min(span.end + top, SEQUENCE_END)) for span in far))


@given(left=far_span_sets(), right=far_span_sets())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_algebra_is_that_of_int8multirange(cursor, left, right):
    cursor.execute(ALGEBRA, (str(left), str(right)))
    union, common, difference, overlap, covers, same, end = cursor.fetchone()

    assert union == str(left | right)
    assert common == str(left & right)
    assert difference == str(left - right)
    assert overlap == left.overlaps(right)
    assert covers == left.covers(right)
    assert same == (left == right)
    assert end == left.end
