"""What one value becomes, type by type; the refused ones say why."""

import json
from contextlib import suppress
from datetime import UTC, date, datetime, time
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_jobs.formats.json_values import end_of_value
from onceload_jobs.formats.records import ValueRefused
from onceload_jobs.formats.values import from_json, from_text
from onceload_jobs.pipeline.columns import arrow_type, parse_type


def wall_clock(*parts: int) -> datetime:
    year, month, day, *of_day = parts
    hour, minute, second, microsecond = (*of_day, 0, 0, 0, 0)[:4]
    return datetime(year, month, day, hour, minute, second, microsecond, tzinfo=UTC).replace(tzinfo=None)


def value(read, written: str, declared: str) -> object:
    """The value as Arrow gives it back."""
    column_type = parse_type("c", declared)
    return pa.array([read(written, column_type)], arrow_type(column_type))[0].as_py()


TAKEN = [
    ("text", '"a"', "a"),
    ("text", '"caf\\u00e9 \\ud83d\\ude00"', "café 😀"),
    ("text", "1.10", "1.10"),
    ("text", "true", "true"),
    ("varchar(3)", '"äöü"', "äöü"),
    ("boolean", "true", True),
    ("boolean", '" OFF "', False),
    ("boolean", "1", True),
    ("smallint", "-32768", -32768),
    ("integer", "1.0", 1),
    ("integer", "1e3", 1000),
    ("integer", '"42"', 42),
    ("integer", "0e999999", 0),
    ("bigint", "9223372036854775807", 2**63 - 1),
    ("bigint", '"+7"', 7),
    ("real", "1e-45", 2.0**-149),
    ("real", "0e-999", 0.0),
    ("double precision", "4.9e-324", 5e-324),
    ("double precision", '"-Infinity"', float("-inf")),
    ("double precision", "Infinity", float("inf")),
    ("double precision", "1e308", 1e308),
    ("numeric(12,2)", "1.1000", Decimal("1.10")),
    ("numeric(12,2)", '"1e3"', Decimal("1000.00")),
    ("numeric(12,2)", "0e99999", Decimal("0.00")),
    ("numeric(38,38)", "0.1", Decimal("0.1")),
    ("date", '"2024-02-29"', date(2024, 2, 29)),
    ("time", '"10:11:12.000001"', time(10, 11, 12, 1)),
    ("time", '"10:11"', time(10, 11)),
    ("timestamp", '"2024-01-01T10:00:00+05:00"', wall_clock(2024, 1, 1, 10)),
    ("timestamp", '"2024-01-01 10:00:00.0000005"', wall_clock(2024, 1, 1, 10)),
    ("timestamp", '"2024-01-01 10:00:00.0000015"', wall_clock(2024, 1, 1, 10, 0, 0, 2)),
    ("timestamptz", '"2024-01-01T10:00:00+05"', datetime(2024, 1, 1, 5, tzinfo=UTC)),
    ("timestamptz", '"2024-01-01T10:00:00+0530"', datetime(2024, 1, 1, 4, 30, tzinfo=UTC)),
    ("timestamptz", '"2024-01-01T10:00:00-05:30"', datetime(2024, 1, 1, 15, 30, tzinfo=UTC)),
    ("timestamptz", '"2024-01-01 10:00:00.9999999Z"', datetime(2024, 1, 1, 10, 0, 1, tzinfo=UTC)),
    ("timestamptz", '"2024-01-01"', datetime(2024, 1, 1, tzinfo=UTC)),
    ("uuid", '"{A0EEBC99-9c0b4ef8-bb6d6bb9bd380a11}"', bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11")),
    ("bytea", '"\\\\xDEad"', b"\xde\xad"),
    ("bytea", '"3q0="', b"\xde\xad"),
    ("bytea", '""', b""),
    ("jsonb", '{"a":1.10}', '{"a":1.10}'),
    ("jsonb", '"a"', '"a"'),
    ("jsonb", '[{"a":{"a":1}},{"a":":"}]', '[{"a":{"a":1}},{"a":":"}]'),
    ("jsonb", '{"a":1e400,"b":"\\u003a"}', '{"a":1e400,"b":"\\u003a"}'),
    ("jsonb", '["\\\\u0000"]', '["\\\\u0000"]'),
    ("text[]", '["a",null,1]', ["a", None, "1"]),
    ("bigint[]", "[]", []),
    ("jsonb[]", "[[1],{}]", ["[1]", "{}"]),
    ("text", "null", None),
    ("jsonb", "null", None),
]

REFUSED = [
    ("text", '"\\u0000"', "NUL"),
    ("text", '"\\ud800"', "surrogate"),
    ("text", "NaN", "'NaN' is not a valid text"),
    ("text", "-Infinity", "is not a valid text"),
    ("text", "{}", "an object is not a valid text"),
    ("text", "[]", "an array is not a valid text"),
    ("varchar(3)", '"abcd"', "4 characters"),
    ("boolean", "2", "'2' is not a valid boolean"),
    ("smallint", "32768", "out of range"),
    ("integer", "1.5", "fraction"),
    ("integer", "1e999999999", "out of range"),
    ("integer", "true", "is not a valid integer"),
    ("integer", '"0x1"', "is not a valid integer"),
    ("integer", '"1_0"', "is not a valid integer"),
    ("integer", '"\u0661"', "is not a valid integer"),
    ("integer", '""', "is not a valid integer"),
    ("bigint", "9223372036854775808", "out of range"),
    ("bigint", "1e99999999999999999999", "is not a valid bigint"),
    ("real", "1e39", "out of range"),
    ("real", "7e-46", "out of range"),
    ("double precision", "1e-400", "out of range"),
    ("double precision", '"-2e-324"', "out of range"),
    ("double precision", "1e400", "out of range"),
    ("double precision", '"nan(1)"', "is not a valid double"),
    ("numeric(12,2)", "1.105", "rounded"),
    ("numeric(12,2)", "12345678901.5", "too many digits"),
    ("numeric(12,2)", "NaN", "is not a valid numeric"),
    ("numeric(12,2)", '"Infinity"', "is not a valid numeric"),
    ("numeric(3,2)", "9.999", "rounded"),
    ("date", '"2023-02-29"', "no such day"),
    ("date", '"0000-01-01"', "no such day"),
    ("date", '"infinity"', "infinity"),
    ("date", "20240101", "is not a valid date"),
    ("time", '"24:00:00"', "no such time"),
    ("time", '"23:59:59.9999999"', "end of the day"),
    ("timestamp", '"2024-01-01T10:60:00"', "no such time"),
    ("timestamptz", '"-infinity"', "infinity"),
    ("timestamptz", '"9999-12-31T23:59:59-01:00"', "years 1 to 9999"),
    ("timestamptz", '"0001-01-01T00:00:00+01:00"', "years 1 to 9999"),
    ("timestamptz", '"2024-01-01T10:00:00+16:00"', "zones end at 15:59"),
    ("timestamptz", '"2024-01-01T10"', "is not a valid timestamptz"),
    ("timestamptz", '"2024-01-01T10:00:00,5Z"', "is not a valid timestamptz"),
    ("uuid", '" a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"', "is not a valid uuid"),
    ("uuid", '"a0eebc99"', "is not a valid uuid"),
    ("bytea", '"\\\\xabc"', "neither"),
    ("bytea", '"a b="', "neither"),
    ("bytea", '"\\\\xde ad"', "neither"),
    ("bytea", '"deadbeef"', r"'deadbeef' is not a valid bytea: it may be hex or base64; write the bytes as \\x"),
    ("bytea", "1234", "is not a valid bytea"),
    ("jsonb", '{"a":"\\u0000"}', "NUL"),
    ("jsonb", '["\\udead"]', "surrogate"),
    ("jsonb", "[NaN]", "NaN"),
    ("jsonb", '{"a":{"b":1,"b":1}}', "an object has the name 'b' twice"),
    ("jsonb", '[{"c":[]},{"b":{},"\\u0062":1}]', "an object has the name 'b' twice"),
    ("jsonb", '{"c":"\\u003a","a":1,"a":2}', "an object has the name 'a' twice"),
    ("jsonb", '{"a":NaN,"a":1}', "an object has the name 'a' twice"),
    ("jsonb", f'{"[" * 990}{{"a":1,"a":2}}{"]" * 990}', "an object has the name 'a' twice"),
    ("jsonb", "1e131072", "out of the range"),
    ("jsonb", "[1e-16384]", "out of the range"),
    ("jsonb", "9" * 140_000, "out of the range"),
    ("jsonb", "[" * 1100 + "]" * 1100, "levels"),
    ("text[]", '[["a"]]', "dimension"),
    ("text[]", '{"a":1}', "not a JSON array"),
    ("text[]", '"{a}"', "not a JSON array"),
]


@pytest.mark.parametrize(("declared", "written", "expected"), TAKEN)
def test_a_json_value_is_read_by_its_columns_type(declared, written, expected):
    assert value(from_json, written, declared) == expected


@pytest.mark.parametrize(("declared", "written", "why"), REFUSED)
def test_a_json_value_that_the_type_does_not_take_is_refused_with_a_reason(declared, written, why):
    with pytest.raises(ValueRefused, match=why):
        value(from_json, written, declared)


@pytest.mark.parametrize(
    ("declared", "text", "expected"),
    [
        ("text[]", '{a,"b c",NULL,"NULL","q\\"",  d }', ["a", "b c", None, "NULL", 'q"', "d"]),
        ("text[]", "{}", []),
        ("text[]", "{a\\ , b\\\\ }", ["a ", "b\\"]),
        ("bigint[]", "{1, 2,NULL}", [1, 2, None]),
        ("text[]", '["a", null]', ["a", None]),
        ("jsonb", ' {"a": 1.10} ', '{"a": 1.10}'),
        ("double precision", ".5", 0.5),
        ("integer", " 7 ", 7),
    ],
)
def test_a_text_is_read_by_its_columns_type(declared, text, expected):
    assert value(from_text, text, declared) == expected


@pytest.mark.parametrize(
    ("declared", "text"),
    [
        ("text[]", "{a"),
        ("text[]", "{a}b"),
        ("text[]", "{a,}"),
        ("text[]", "{{a}}"),
        ("text[]", '{a "b"}'),
        ("text[]", '["a"'),
        ("jsonb", "{a}"),
        ("jsonb", "1 2"),
        ("jsonb", ""),
        ("jsonb", "01"),
    ],
)
def test_a_text_that_the_type_does_not_take_is_refused(declared, text):
    with pytest.raises(ValueRefused):
        value(from_text, text, declared)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
)


@given(document=JSON, behind=st.sampled_from(["", ",", " }", "]"]))
def test_a_json_value_ends_where_it_was_written_to_its_end(document, behind):
    written = json.dumps(document)

    assert end_of_value(written + behind, 0) == len(written)


@pytest.mark.parametrize("declared", ["integer", "numeric(12,2)", "timestamptz", "uuid", "jsonb", "text[]", "time"])
@given(text=st.text(alphabet='0123456789-+:.TZeE{}[]", \\xabnul', max_size=30))
def test_any_text_is_a_value_or_refused(declared, text):
    with suppress(ValueRefused):
        value(from_text, text, declared)


def test_depth_does_not_fail_where_a_value_is_only_passed_over():
    written = "[" * 200_000 + "]" * 200_000

    assert end_of_value(written, 0) == len(written)
