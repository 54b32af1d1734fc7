"""Dirty lines of JSON: each tier alone against the slow one, which reads line by line."""

from contextlib import ExitStack
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dedup_core.names import ProducerId
from spark_jobs.formats import tiers
from spark_jobs.formats.chunks import Part
from spark_jobs.formats.jsonl import rows as jsonl
from spark_jobs.formats.jsonl.rows import read_jsonl
from spark_jobs.formats.records import Records
from spark_jobs.formats.values import from_json, from_kept
from spark_jobs.pipeline.columns import SEQUENCE, parse_column
from spark_jobs.pipeline.declared import UnknownFields
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


def read(raw: bytes, *, rule: UnknownFields, declared: dict[str, str], read_value=from_json, without=()) -> Records:
    with ExitStack() as stack:
        for tier in without:
            stack.enter_context(patch.object(jsonl._Reader, tier, lambda self, group: None))
        return read_jsonl(
            [Part(producer_id=ProducerId(1), first=0, end=len(raw), raw=raw)],
            tuple(parse_column(*each) for each in declared.items()),
            declared=list(declared),
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
@examples(60)
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
    raw = "\n".join(lines * 40).encode(errors="replace")
    slow = outcome(read(raw, rule=rule, declared=WITH_JSONB, without=SLOW))

    with patch.object(tiers, "_SLICED_TOGETHER_MAX", 150), patch.object(jsonl, "_SLICES_MAX", 1):
        assert outcome(read(raw, rule=rule, declared=WITH_JSONB)) == slow
