"""Dirty lines of JSON: each tier alone against the slow one, which reads line by line."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceload_core.names import ProducerId
from onceload_jobs.formats import tiers
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.jsonl import levels
from onceload_jobs.formats.jsonl import rows as jsonl
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.records import Records
from onceload_jobs.formats.values import from_json, from_kept
from onceload_jobs.pipeline.columns import SEQUENCE, Column, parse_column
from onceload_jobs.pipeline.declared import UnknownFields
from tests.laws import examples

DECLARED = {
    "id": "bigint",
    "t": "text",
    "v": "varchar(3)",
    "n": "numeric(12,2)",
    "d": "double precision",
    "at": "timestamptz",
    "local": "timestamp",
    "b": "boolean",
    "é": "bytea",
    "many": "bigint[]",
}
WITH_JSONB = DECLARED | {"x": "jsonb", "xs": "jsonb[]"}
#: Its name has no slices.
WITH_ODD_NAME = {"id": "bigint", "a:b": "text", 'a"': "text"}

#: Columns inside objects, also of one that is a column itself.
NESTED: dict[str, str | tuple[str, str]] = {
    "id": "bigint",
    "t": ("text", "x.t"),
    "n": ("numeric(12,2)", "x.y.n"),
    "at": ("timestamptz", "x.y.at"),
    "many": ("bigint[]", "z.id"),
    "renamed": ("boolean", "b"),
}
WITH_NESTED_JSONB = NESTED | {"y": ("jsonb", "x.y"), "x": "jsonb", "odd": ("text", 'z.a"')}

ESCAPES = ["\\u0000", "\\u00e9", "\\ud83d\\ude00", "\\ud800", "\\udc00", '\\"', "\\\\", "\\n", "\\/", "\\x", "\\u12"]
CHARACTERS = st.sampled_from(["a", "7", "é", "😀", ":", ",", "{", "]", " ", "\x7f", "\x01", "e1234", *ESCAPES])
STRINGS = st.lists(CHARACTERS, max_size=4).map(lambda found: f'"{"".join(found)}"')
MOMENTS = [
    "2024-01-01T10:00:00Z",
    "2024-01-01 10:00:00.5 +02",
    "2024-01-01T10:00",
    "2024-01-01",
    "2024-01-01t10:00:00.1234567z",
    "2024-01-01T10:00:00.99999949999999999-0530",
    "2024-01-01T10:00.5Z",
    "2024-01-01T10:00:00+16:00",
    "9999-12-31T23:59:59.9999999",
    "1969-12-31T23:59:59.9999995",
    " 2024-01-01T10:00:00 ",
    "01/02/2024",
    "infinity",
]
WRITTEN = ["7", "+7", " 7", "1.0", "yes", "0x1F", "nan", "", "null", "[1,2]", "{1,2}", "\\\\xdead", "3q0=", "abcd"]
TEXTS = st.sampled_from([*MOMENTS, *WRITTEN]).map('"{}"'.format)
NUMBERS = st.sampled_from(
    "0 -0 7 -12 1.0 1e+3 1.00 7.50 1.005 1e3 1E-2 1e400 1e-400 -0.0 01 1. +1 9223372036854775807 9223372036854775808"
    f" 1.0000000001 123456789012345678 {'1' * 40} 1.{'0' * 40} 0.1 12345678901234567.89 9007199254740993 1e131072"
    " 1e-99999999 NaN -Infinity Inf".split()
)
SCALARS = STRINGS | TEXTS | NUMBERS | st.sampled_from(["true", "false", "null", "tru", "nul", ""])
BLANKS = st.sampled_from(["", "", "", "", " ", "\t", "\r", "  ", "\x0b"])
NAMES = st.sampled_from(
    [*WITH_JSONB, "id", "t", "z", "y", "z:y", "a:b", 'a\\"', "\\u0074", "\\u003a", "\\ud800", "\\u0000", "", "xmin"]
)


def in_object(members: list[tuple[str, str, str, str]]) -> str:
    return "{" + ",".join(f'{blank}"{name}"{end}:{blank}{raw}{end}' for name, blank, raw, end in members) + "}"


def containers(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    lists = st.tuples(BLANKS, st.lists(inner, max_size=3)).map(lambda found: f"[{found[0]}{','.join(found[1])}]")
    return lists | st.lists(st.tuples(NAMES, BLANKS, inner, BLANKS), max_size=3).map(in_object)


DEEP = st.sampled_from([10, 999, 1000, 1001, 5000]).map(lambda depth: "[" * depth + "]" * depth)
VALUES = st.recursive(SCALARS, containers, max_leaves=6) | DEEP
OBJECTS = st.lists(st.tuples(NAMES, BLANKS, VALUES, BLANKS), max_size=6).map(in_object)
#: Lines that differ little from good ones, as dirty data does.
GOOD = {"id": "7", "t": '"a"', "n": "7.50", "at": '"2024-01-01T10:00:00Z"'}
NEARLY_GOOD = st.tuples(NAMES, VALUES).map(
    lambda found: in_object([(name, "", raw, "") for name, raw in [*GOOD.items(), found]])
)
ODD = st.sampled_from(
    ["", "{}", "[]", "null", '{"id":', "7}", "{}{}", "\ufeff{}", '\ufeff{"id":7}', '{"id":7}\r', "\r"]
)
LINES = st.lists(OBJECTS | NEARLY_GOOD | NEARLY_GOOD | ODD, max_size=10)
#: Objects in objects, of which one value or one field differs from a good one.
NESTED_GOOD = {
    ("x", "t"): '"a"',
    ("x", "y", "n"): "7.50",
    ("x", "y", "at"): '"2024-01-01"',
    ("z", "id"): "[1]",
    ("id",): "7",
}


def as_object(fields: list[tuple[tuple[str, ...], str]]) -> str:
    """The fields at these paths as one object; a name may come twice."""
    members = [f'"{path[0]}":{raw}' for path, raw in fields if len(path) == 1]
    for name in dict.fromkeys(path[0] for path, _ in fields if len(path) > 1):
        below = [(path[1:], raw) for path, raw in fields if len(path) > 1 and path[0] == name]
        members.append(f'"{name}":{as_object(below)}')
    return "{" + ",".join(members) + "}"


PATHS = st.sampled_from([*NESTED_GOOD, ("x",), ("x", "y"), ("x", "z"), ("z",), ("z", 'a\\"'), ("b",), ("x", "y", "w")])
NESTED_LINES = st.lists(
    st.tuples(st.lists(st.tuples(PATHS, VALUES | st.just("null")), max_size=2), st.sets(PATHS, max_size=2)).map(
        lambda found: as_object(
            [*((path, raw) for path, raw in NESTED_GOOD.items() if path not in found[1]), *found[0]]
        )
    )
    | NEARLY_GOOD
    | ODD,
    max_size=10,
)


#: Each column's type, and the path of its field if it has one.
Types = Mapping[str, str | tuple[str, str]]


def columns_of(declared: Types) -> tuple[Column, ...]:
    each = ((name, (found, "") if isinstance(found, str) else found) for name, found in declared.items())
    return tuple(
        replace(parse_column(name, of_type), path=tuple(path.split(".")) if path else ())
        for name, (of_type, path) in each
    )


def read(raw: bytes, *, rule: UnknownFields, declared: Types, read_value=from_json, without=()) -> Records:
    with ExitStack() as stack:
        for tier in without:
            stack.enter_context(patch.object(jsonl._Reader, tier, lambda self, group: None))
        return read_jsonl(
            [Part(producer_id=ProducerId(1), first=0, end=len(raw), raw=raw)],
            columns_of(declared),
            declared=list({column.steps[0]: None for column in columns_of(declared)}),
            unknown_fields=rule,
            record_bytes_max=2**20,
            read_value=read_value,
        )


def outcome(records: Records) -> object:
    """All of it; repr makes NaN equal to itself."""
    rows = records.rows.to_pylist()
    assert [row[SEQUENCE] for row in rows] == sorted(row[SEQUENCE] for row in rows)
    return repr(rows), sorted(records.bad, key=lambda bad: bad.sequence_id), records.unknown


SLOW = ("read_many", "read_sliced")


@pytest.mark.parametrize("read_value", [from_json, from_kept])
@pytest.mark.parametrize("declared", [DECLARED, WITH_JSONB, WITH_ODD_NAME], ids=["flat", "jsonb", "odd name"])
@pytest.mark.parametrize("rule", UnknownFields)
@examples(10)
@given(lines=LINES, encoding=st.sampled_from(["utf-8", "utf-8", "utf-8", "latin-1"]))
@example(lines=['{"id":1,"id":2}', '{"z":1,"z":2,"id":1}', '{"\\u003a":1,"id":1,"id":2}'], encoding="utf-8")
@example(
    lines=['{"id":1,"z":{"a":1},"z":2}', '{"z:y":1,"id":1}', '{"xmin":1,"id":1}', '{"é":1e+3,"id":1}'], encoding="utf-8"
)
@example(lines=['{"t":[1],"id":1}', '{"t":{},"id":1}', '{"t":"[","id":1}', '{"t":"é"}'], encoding="latin-1")
@example(lines=['{"t":"\\ud800","id":1}', '{"t":"\\u0000"}', '{"x":"\\u0000"}', '{"x":"\\ud800"}'], encoding="utf-8")
def test_every_tier_reads_dirty_lines_as_the_slow_one_does(rule, declared, read_value, lines, encoding):
    raw = "\n".join(lines).encode(encoding, errors="replace")

    slow = outcome(read(raw, rule=rule, declared=declared, read_value=read_value, without=SLOW))

    for without in ((), ("read_many",)):
        found = read(raw, rule=rule, declared=declared, read_value=read_value, without=without)
        assert outcome(found) == slow


@pytest.mark.parametrize("rule", UnknownFields)
@examples(20)
@given(lines=LINES)
@example(lines=['{"id":1,"z":1,"y":{"a":1}}', '{"id":1,"w":1,"w":2}', '{"id":1,"w":1,"id":2}'])
def test_lines_are_read_alike_among_many(rule, lines):
    """Enough of them for columns to be cast in several groups, with more undeclared fields than are taken apart."""
    raw = "\n".join(lines * 10).encode(errors="replace")
    slow = outcome(read(raw, rule=rule, declared=WITH_JSONB, without=SLOW))

    with patch.object(tiers, "_SLICED_TOGETHER_MAX", 40), patch.object(levels, "_SLICES_MAX", 1):
        assert outcome(read(raw, rule=rule, declared=WITH_JSONB)) == slow


@pytest.mark.parametrize("declared", [NESTED, WITH_NESTED_JSONB], ids=["nested", "with jsonb"])
@pytest.mark.parametrize("rule", UnknownFields)
@examples(20)
@given(lines=NESTED_LINES)
@example(lines=['{"x":null}', '{"x":{}}', '{"x":{"y":null,"t":"a"}}', '{"x":{"y":{}},"id":1}', '{"x":{"t":null}}'])
@example(lines=['{"x":1,"id":1}', '{"x":[{"t":"a"}],"id":1}', '{"x":{"y":"s"},"id":1}', '{"x":"{}","id":2}'])
@example(lines=['{"x":{"t":"a","t":"b"}}', '{"x":{"t":"a"},"x":{}}', '{"x":{"y":{},"y":null}}', '{"x":{"q":1,"q":2}}'])
@example(lines=['{"x":{"q":1,"t":"a"}}', '{"x":{"y":{"q":{"n":1},"n":2}}}', '{"renamed":true,"id":1}', '{"b":true}'])
def test_every_tier_reads_fields_in_objects_as_the_slow_one_does(rule, declared, lines):
    raw = "\n".join(lines).encode(errors="replace")

    slow = outcome(read(raw, rule=rule, declared=declared, without=SLOW))

    for without in ((), ("read_many",)):
        assert outcome(read(raw, rule=rule, declared=declared, without=without)) == slow


@pytest.mark.parametrize("rule", UnknownFields)
@examples(20)
@given(lines=NESTED_LINES)
def test_objects_are_read_alike_among_many(rule, lines):
    raw = "\n".join(lines * 10).encode(errors="replace")
    slow = outcome(read(raw, rule=rule, declared=NESTED, without=SLOW))

    with patch.object(tiers, "_SLICED_TOGETHER_MAX", 40), patch.object(levels, "_SLICES_MAX", 1):
        assert outcome(read(raw, rule=rule, declared=NESTED)) == slow


NESTED_LINE = '{"id":1,"x":{"t":"a","y":{"n":2,"w":3}},"b":true,"c":4}'


def value_of(line: str, *, rule: UnknownFields = UnknownFields.IGNORE, without=()) -> Any:
    records = read(line.encode(), rule=rule, declared=NESTED, without=without)
    return records.bad[0].reason if records.bad else records.rows.select(["t", "n", "renamed"]).to_pylist()[0]


@pytest.mark.parametrize("without", [(), ("read_many",), SLOW], ids=["fast", "sliced", "slow"])
@pytest.mark.parametrize(
    ("line", "found"),
    [
        (NESTED_LINE, {"t": "a", "n": Decimal("2.00"), "renamed": True}),
        ('{"x":null,"id":1}', {"t": None, "n": None, "renamed": None}),
        ('{"x":{"y":{}},"b":false}', {"t": None, "n": None, "renamed": False}),
        ('{"x":{"t":"a","y":[]}}', "an array at x.y, not an object"),
        ('{"x":7,"id":1}', "a single value at x, not an object"),
        ('{"x":{"t":"a","t":"a"},"id":1}', "the field occurs twice"),
        ('{"renamed":true}', "the record has none of the declared fields"),
    ],
)
def test_a_field_in_objects_is_null_without_them_and_quarantined_if_they_are_none(line, found, without):
    assert value_of(line, without=without) == found


@pytest.mark.parametrize("without", [(), ("read_many",), SLOW], ids=["fast", "sliced", "slow"])
def test_an_undeclared_field_in_an_object_is_refused_as_one_beside_it_is(without):
    line = NESTED_LINE.replace(',"c":4', "")

    assert value_of(line, rule=UnknownFields.FAIL, without=without) == "the field 'x.y.w' is not declared"
    assert value_of(line.replace(',"w":3', ""), rule=UnknownFields.FAIL, without=without)["t"] == "a"
