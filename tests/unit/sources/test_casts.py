"""Whole columns of texts against the reader of single texts."""

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceload_jobs.formats.casts import breaks_contract, cast_texts
from onceload_jobs.formats.records import ValueRefused
from onceload_jobs.formats.values import from_text
from onceload_jobs.pipeline.columns import Column, arrow_type, parse_column
from tests.laws import examples


def pieces(*choices: str) -> st.SearchStrategy[str]:
    """Texts with one of the words of each choice; an underscore stands for a blank, a dash alone for nothing."""
    words = [[word.replace("_", " ") if word != "-" else "" for word in choice.split()] for choice in choices]
    return st.tuples(*map(st.sampled_from, words)).map("".join)


MOMENTS = pieces(
    "- - - _ \v",
    "2024-02-29 2024-01-01 1969-12-31 0001-01-01 9999-12-31 2023-02-29 2024-1-1 infinity",
    "T T _ t - __",
    "10:11 10:11 23:59 00:00 10 24:00 -",
    ":12 :12 :59 :60 -",
    "- - .5 .123456 .1234567 .0000005 .0000015 .99999949999999999 .",
    "- Z z _Z +02 +0230 -15:59 _+02 +16:00 -15:60 UTC __+02",
    "- - - _",
)
NUMBERS = pieces(
    "- - - + - _", "- 0 7 12 007 0x1F nan 9223372036854775807 9223372036854775808", "- - . .0 .50 .005 e2", "- _"
)
JSON = pieces(
    '{"a":1.5} [1,2] "x" null 7e9999 7e99999 NaN "\\u0000" "\\ud800" "\\u00e9" "NaN" {a} {"a":1,"a":2} _[_] -'
    ' {"a":1,"b":{"a":[]}} [{"a":{"b":1,"b":2}}] {"c":"\\u003a","a":1,"a":2} {"c":"::","a":"{}"} {"a":1e400}'
    ' {"a\\u0062":1,"ab":2} [1 2] 1,2 [{"a":1},{"a":2}]'
)
OF_KIND = {
    "timestamp": MOMENTS,
    "timestamptz": MOMENTS,
    "smallint": NUMBERS,
    "bigint": NUMBERS,
    "numeric(12,2)": NUMBERS,
    "double precision": NUMBERS,
    "real": NUMBERS,
    "boolean": pieces("true false TRUE yes 0 2 _true -"),
    "date": MOMENTS | pieces("2024-02-29 2023-02-29 _2024-01-01 20240101 -"),
    "time": pieces("10:11 10 10:11:12.5 10:11:12.1234567 24:00 10:11+02 _10:11 -"),
    "uuid": pieces("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11 a0eebc999c0b4ef8bb6d6bb9bd380a11 a0eebc99 -"),
    "bytea": pieces("\\xdead 3q0= deadbeef -"),
    "jsonb": JSON,
    "bigint[]": pieces("{1,2} [1,2] {a} {} -"),
}


def alone(text: str | None, column: Column) -> object:
    try:
        return None if text is None else from_text(text, column.type)
    except ValueRefused:
        return ValueRefused


@pytest.mark.parametrize("declared", OF_KIND)
@examples(30)
@given(data=st.data(), count=st.sampled_from([1, 30, 700]))
def test_texts_are_cast_together_as_each_alone(declared, data, count):
    column = parse_column("a", declared)
    texts = data.draw(st.lists(OF_KIND[declared] | st.none(), min_size=1, max_size=20))
    expected = [alone(text, column) for text in texts] * count

    values, refused = cast_texts(pa.array(texts * count, pa.string()), column.type)

    refused |= breaks_contract(values, column)
    kept = pa.array([value for value in expected if value is not ValueRefused], arrow_type(column.type))
    assert refused.tolist() == [value is ValueRefused for value in expected]
    assert repr(values.filter(pa.array(~refused)).to_pylist()) == repr(kept.to_pylist())


@given(depth=st.sampled_from([1, 999, 1000, 1001, 4000]))
@example(depth=1001)
def test_jsonb_is_as_deep_together_as_alone(depth):
    column = parse_column("a", "jsonb")
    texts = ["[" * depth + "]" * depth, "1"] * 100

    _, refused = cast_texts(pa.array(texts), column.type)

    assert refused.tolist() == [alone(text, column) is ValueRefused for text in texts]
