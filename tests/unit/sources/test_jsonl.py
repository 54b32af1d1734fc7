"""Lines of JSON: the fast tier against the slow one, and both against any neighbours."""

import json
from itertools import pairwise
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import KEPT_BYTES, Part
from onceload_jobs.formats.jsonl import rows as jsonl
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import SEQUENCE, parse_column
from onceload_jobs.pipeline.declared import UnknownFields
from tests.laws import examples

DECLARED = {
    "t": "text",
    "v": "varchar(3)",
    "i": "integer",
    "d": "double precision",
    "r": "real",
    "n": "numeric(12,2)",
    "b": "boolean",
    "day": "date",
    "at": "timestamptz",
    "local": "timestamp",
    "clock": "time",
    "u": "uuid",
    "raw": "bytea",
    "many": "bigint[]",
    "floats": "double precision[]",
    "words": "date[]",
}


def columns(**declared: str):
    return tuple(parse_column(name, type_) for name, type_ in (declared or DECLARED).items())


def part(raw: bytes, *, first: int = 0, producer_id: int = 1) -> Part:
    return Part(producer_id=ProducerId(producer_id), first=first, end=first + len(raw), raw=raw)


def read(
    *parts: Part,
    unknown_fields: UnknownFields = UnknownFields.IGNORE,
    declared=None,
    record_bytes_max: int = 2**20,
    added: dict[str, str] | None = None,
) -> Records:
    return read_jsonl(
        parts,
        columns(**(declared or {}), **(added or {})),
        declared=list(declared or DECLARED),
        unknown_fields=unknown_fields,
        record_bytes_max=record_bytes_max,
    )


def by_sequence_id(records: Records) -> dict[int, object]:
    """What became of each record; repr makes NaN equal to itself."""
    rows = {row[SEQUENCE]: repr(row) for row in records.rows.to_pylist()}
    return rows | {bad.sequence_id: bad for bad in records.bad}


def slowly(raw: bytes, *, first: int = 0, **kwargs) -> Records:
    with patch.multiple(jsonl._Reader, read_many=nothing, read_sliced=nothing):
        return read(part(raw, first=first), **kwargs)


def nothing(self, group) -> None:
    """Read no group together."""


VALUES = {
    "t": ['"a"', '""', '"\\u00e9"', '"\\u0000"', '"\\ud800"', "1", "1.50", "true", "{}", "NaN", '"}{"', '"\x7f"'],
    "v": ['"abc"', '"äöü"', '"abcd"', '"äöüß"', "12345", '"😀😀😀"'],
    "i": ["1", "-0", "1.0", "1e3", "2147483648", '"7"', '" 7"', "1.5", "true", "00", "NaN"],
    "d": [
        "1",
        "-0.0",
        "1e308",
        "1e309",
        "NaN",
        "-Infinity",
        "Inf",
        '"NaN"',
        '"1"',
        "1e-999",
        "0e-999",
        f"-0.{'0' * 330}1",
    ],
    "r": [
        "1.1",
        "1e39",
        "3.4028235677973366e38",
        "3.4028235e38",
        "NaN",
        "0.1",
        '"1.5"',
        "1e-45",
        "7e-46",
        f"0.{'0' * 25}1e-21",
    ],
    "n": ["1", "1.1", "1.1000", "1.105", "12345678901.5", '"3.5"', "1e3", "1e40", "NaN", "-0", "0e-9", '""', '"+.5"'],
    "b": ["true", "false", '"yes"', "1", "2", '"T"'],
    "day": ['"2024-02-29"', '"2023-02-29"', '"0000-01-01"', '"2024-1-1"', "5", '"infinity"', '" 2024-02-29"'],
    "at": [
        '"2024-01-01T10:00:00Z"',
        '"2024-01-01 10:00:00.123456"',
        '"2024-01-01T10:00:00.1234567Z"',
        '"2024-01-01"',
        '"2024-01-01T10"',
        '"2024-01-01T10+05"',
        '"2024-01-01T10:00+15:59"',
        '"2024-01-01T10:00+16:00"',
        '"2024-01-01T10:00:00.5-2359"',
        '"2024-01-01T10:00+20"',
        '"9999-12-31T23:59:59-05:00"',
        '"0001-01-01T00:00:00+05"',
        '"0000-05-05"',
        "5",
        '"2024-01-01T10:00:00z"',
        '"1969-12-31T23:59:59.999999"',
    ],
    "local": ['"2024-01-01T10:00:00"', '"2024-01-01T10:00:00+05:00"', '"2024-01-01T10:00:00Z"', '"0000-01-01"'],
    "clock": ['"10:00"', '"10:00:00.5"', '"10"', '"24:00:00"', '"10:00:00+02"', '""'],
    "u": ['"a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"', '"a0eebc999c0b4ef8bb6d6bb9bd380a11"', '"no"'],
    "raw": ['"\\\\xdead"', '"3q0="', '"deadbeef"', '"?"', "5"],
    "many": ["[1,null,2]", "[]", "[1.0]", "[[1]]", '["5"]', "1", '"{1,2}"', "{}"],
    "floats": ["[1.5,NaN]", "[1,1e-400]", "[]"],
    "words": ['["2024-01-01",null]', '["x"]', "[]", '["0000-01-01"]'],
    "other": ["1", "[[[]]]", '"\\ud800"', "Inf", "1e999", '{"t":1}', "null"],
}

FIELDS = st.sampled_from(list(VALUES)).flatmap(
    lambda name: st.tuples(st.just(name), st.sampled_from([*VALUES[name], "null"]))
)
OBJECTS = st.lists(FIELDS, max_size=4).map(lambda found: "{" + ",".join(f'"{name}":{raw}' for name, raw in found) + "}")
ODD_LINES = st.sampled_from(
    [
        "",
        " ",
        "\r",
        "null",
        "1",
        "[]",
        '{"t":',
        "1}",
        "{}{}",
        "{}null{}",
        "{} {}",
        "{",
        "}",
        '{"t":"a"}x',
        "\x0b",
        "{}\r",
        ' {"i": 1} ',
        '{"t":"a",}',
        '{"t":"a" "i":1}',
        '{"\\u0074":"a"}',
        '{"i":1,"i":2}',
        '{"t" : "a"\t}',
        '{"":1}',
        "\ufeff{}",
    ]
)
LINES = st.lists(OBJECTS | ODD_LINES, max_size=12).map(lambda lines: [line.encode() for line in lines])


@pytest.mark.parametrize(("name", "raw"), [(name, raw) for name, values in VALUES.items() for raw in [*values, "null"]])
def test_both_tiers_read_a_value_alike(name, raw):
    line = f'{{"{name}":{raw}}}\n'.encode()

    assert by_sequence_id(read(part(line))) == by_sequence_id(slowly(line))


@pytest.mark.parametrize("declared", [DECLARED, DECLARED | {"other": "jsonb"}], ids=["flat", "jsonb"])
@pytest.mark.parametrize("rule", UnknownFields)
@examples(30)
@given(lines=LINES)
@example(lines=[b'{"t":', b"1}", b"{}{}"])
@example(lines=[b"null"])
@example(lines=[b"{}null{}", b"{}"])
def test_a_line_is_read_alike_whatever_its_neighbours_are(declared, rule, lines):
    together = read(part(b"\n".join(lines)), declared=declared, unknown_fields=rule)

    alone: dict[int, object] = {}
    unknown, first = set[str](), 0
    for line in lines:
        records = slowly(line, first=first, declared=declared, unknown_fields=rule)
        alone |= by_sequence_id(records)
        unknown |= {column.name for column in records.unknown}
        first += len(line) + 1
    assert by_sequence_id(together) == alone
    assert {column.name for column in together.unknown} == unknown


@examples(100)
@given(lines=LINES, cuts=st.sets(st.integers(0, 12)))
def test_parts_may_be_cut_anywhere_between_lines(lines, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut < len(lines)), len(lines)]
    parts, first = [], 0
    for start, end in pairwise(edges):
        raw = b"".join(line + b"\n" for line in lines[start:end])
        parts.append(part(raw, first=first))
        first += len(raw)

    assert by_sequence_id(read(*parts)) == by_sequence_id(read(part(b"".join(each.raw for each in parts))))


@examples(150)
@given(
    raw=st.binary(max_size=200)
    | st.lists(st.sampled_from([b"{", b"}", b'"t":', b"1", b"\n", b",", b"\xff"])).map(b"".join)
)
def test_any_bytes_are_rows_bad_records_or_blank(raw):
    records = read(part(raw, first=1000))

    expected = [line for line in raw.split(b"\n") if line.strip(b" \t\r")]
    assert records.count == len(expected)
    assert all(bad.raw in expected and bad.reason for bad in records.bad)


@examples(100)
@given(lines=LINES, at=st.integers(0, 500), octet=st.integers(0, 255))
def test_one_changed_byte_changes_nothing_but_its_own_line(lines, at, octet):
    raw = bytearray(b"".join(line + b"\n" for line in lines))
    before = by_sequence_id(read(part(bytes(raw))))
    if not raw or raw[at % len(raw)] == ord("\n") or octet == ord("\n"):
        return
    at %= len(raw)
    line_start = raw.rfind(b"\n", 0, at) + 1
    raw[at] = octet
    after = by_sequence_id(read(part(bytes(raw))))

    before.pop(line_start, None)
    after.pop(line_start, None)
    assert before == after


def test_sequence_ids_are_offsets_in_the_stream():
    records = read(part(b'{"i":1}\r\n\n  {"i":2}\n{"i":3}', first=100), part(b'{"i":4}\n', first=7, producer_id=2))

    assert records.rows.select(["i", "_producer_id", "_sequence"]).to_pydict() == {
        "i": [1, 2, 3, 4],
        "_producer_id": [1, 1, 1, 2],
        "_sequence": [100, 110, 120, 7],
    }


def test_a_byte_order_mark_is_tolerated_only_where_a_stream_starts():
    mark = b"\xef\xbb\xbf"

    assert read(part(mark + b'{"i":1}\n')).rows.num_rows == 1
    assert read(part(mark + b"\n")).count == 0
    assert read(part(mark)).count == 0
    assert len(read(part(mark + b'{"i":1}\n', first=5)).bad) == 1


def test_bad_lines_stand_alone_among_many():
    lines = [b'{"i":%d}' % number for number in range(2000)]
    for at in (0, 777, 1999):
        lines[at] = b'{"i":"x"}'
    lines[1000] = b"{"

    records = read(part(b"\n".join(lines)))

    assert records.rows.num_rows == 1996
    assert [bad.raw for bad in records.bad] == [b'{"i":"x"}', b'{"i":"x"}', b"{", b'{"i":"x"}']
    assert [bad.column for bad in records.bad] == ["i", "i", None, "i"]
    assert records.rows.column(SEQUENCE).to_pylist() == sorted(records.rows.column(SEQUENCE).to_pylist())


def test_nothing_is_read_from_nothing():
    assert read().count == 0
    assert read(part(b"")).count == 0
    assert read(part(b"\n \n")).count == 0


@pytest.mark.parametrize("count", [1, 200])
def test_every_record_beyond_record_bytes_max_is_bad_and_its_neighbours_are_not(count):
    short, long = b'{"t":"' + b"x" * 90 + b'"}', b'{"t":"' + b"x" * 91 + b'"}'
    raw = (short + b"\n" + long + b"\r\n") * count

    records = read(part(raw), record_bytes_max=len(short) + 1)

    assert (records.rows.num_rows, len(records.bad)) == (count, count)
    assert {each.raw for each in records.bad} == {long + b"\r"}
    assert {each.reason for each in records.bad} == {f"{len(long) + 2} bytes are more than record_bytes_max"}
    assert read(part(raw), record_bytes_max=len(long) + 2).rows.num_rows == 2 * count


def test_only_the_beginning_of_a_record_beyond_all_measure_is_kept():
    (bad,) = read(part(b"x" * (KEPT_BYTES + 1) + b"\n"), record_bytes_max=KEPT_BYTES).bad

    assert bad.raw == b"x" * KEPT_BYTES
    assert bad.reason.endswith("only the beginning is kept")


def test_a_record_that_is_too_long_is_bad():
    long = Part(producer_id=ProducerId(1), first=0, end=100, raw=b'{"t":', too_long=True)

    records = read(long, part(b'{"i":1}\n', first=100))

    assert (records.rows.num_rows, records.bad[0].sequence_id, records.bad[0].raw) == (1, 0, b'{"t":')


def test_null_and_missing_are_bad_where_not_null_is_declared():
    records = read(part(b'{"a":null}\n{}\n{"a":1}\n{"a":"x"}'), declared={"a": "integer not null"})

    assert records.rows.num_rows == 1
    assert [bad.column for bad in records.bad] == ["a", None, "a"]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize("declared", [{"i": "integer", "t": "text"}, {"i": "integer", "x": "jsonb"}, {"x": "jsonb"}])
@pytest.mark.parametrize("rule", UnknownFields)
def test_a_line_with_none_of_the_declared_fields_is_bad_alone(rule, declared, count):
    """A column that was added for another record does not make it good."""
    name = next(iter(declared))
    lines = [f'{{"{name}":1}}', "{}", '{"uid":1}', '{"z":1}', '{"z":1,"uid":[{"i":1}]}', f'{{"{name}":null}}']
    raw = "".join(f"{line}\n" for line in lines * count).encode()
    added = {"z": "bigint"} if rule is UnknownFields.ADD else {}

    records = read(part(raw), unknown_fields=rule, declared=declared, added=added)

    assert (records.rows.num_rows, records.rows.column(name).null_count, records.unknown) == (2 * count, count, ())
    assert {(bad.reason, bad.column) for bad in records.bad} == {("the record has none of the declared fields", None)}
    assert by_sequence_id(records) == by_sequence_id(slowly(raw, unknown_fields=rule, declared=declared, added=added))


@pytest.mark.parametrize("count", [1, 100])
def test_jsonb_keeps_its_text_digit_by_digit(count):
    line = b'{"x": {"a":1.10, "b":[1e2]} ,"i":1}\n'

    records = read(part(line * count), declared={"x": "jsonb not null", "i": "integer", "y": "jsonb"})

    assert records.rows.column("x").to_pylist() == ['{"a":1.10, "b":[1e2]}'] * count
    assert records.rows.column("y").null_count == count


def test_jsonb_that_postgres_refuses_is_bad_alone():
    lines = [b'{"x":1}', b'{"x":"\\u0000"}', b'{"x":[NaN]}', b'{"x":1,"x":2}', b'{"x":null}', b'{"x":[]}']

    records = read(part(b"\n".join(lines)), declared={"x": "jsonb not null"})

    assert records.rows.column("x").to_pylist() == ["1", "[]"]
    assert len(records.bad) == 4


def test_undeclared_fields_fail_where_the_pipeline_refuses_them():
    records = read(part(b'{"i":1}\n{"i":2,"z":null}\n'), unknown_fields=UnknownFields.FAIL)

    assert records.rows.num_rows == 1
    assert (records.bad[0].column, records.bad[0].reason) == ("z", "the field 'z' is not declared")


def test_undeclared_fields_are_offered_with_a_type_that_takes_all_their_values():
    lines = [
        {"i": 1, "s": "x", "whole": 1, "f": 1, "yes": True, "o": {}, "mix": 1, "nothing": None, "id": 2**63},
        {"i": 2, "s": "2024-01-01", "whole": 2**62, "f": 1.5, "yes": None, "o": [1], "mix": "a", "id": 1},
        {"i": "bad", "only_here": 1},
    ]

    records = read(part("\n".join(map(json.dumps, lines)).encode()), unknown_fields=UnknownFields.ADD)

    assert {column.name: str(column.type) for column in records.unknown} == {
        "s": "text",
        "whole": "bigint",
        "f": "double precision",
        "yes": "boolean",
        "o": "jsonb",
        "mix": "text",
        "id": "text",
    }
    assert (records.rows.num_rows, len(records.bad)) == (2, 1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["9007199254740993", "1.5"], "text"),
        (["9007199254740992", "1.5"], "double precision"),
        (["12345678901234567.89"], "text"),
        (["1e400"], "text"),
        (["0.1", "1e300", "NaN", "-Infinity"], "double precision"),
        (["NaN"], "double precision"),
        (["NaN", "{}"], "jsonb"),
        (["NaN", '"a"'], "text"),
        (["18446744073709551615"], "text"),
    ],
)
def test_no_digit_of_an_undeclared_number_is_lost(values, expected):
    lines = "\n".join(f'{{"i":1,"z":{value}}}' for value in values)

    records = read(part(lines.encode()), unknown_fields=UnknownFields.ADD)

    assert [str(column.type) for column in records.unknown] == [expected]


@pytest.mark.parametrize(("declared", "count"), [("double precision", 1), ("jsonb", 0), ("text", 0)])
def test_a_column_that_was_added_takes_nan_as_a_declared_one_does(declared, count):
    records = read(part(b'{"z":NaN}\n'), declared={"z": declared}, unknown_fields=UnknownFields.ADD)

    assert (records.rows.num_rows, len(records.bad)) == (count, 1 - count)


@pytest.mark.parametrize("name", ["", "_sequence", "ctid", "tableoid", "xmin", "a" * 64, "\\u0000", "\\ud800"])
def test_a_field_that_no_column_can_be_named_after_is_bad_instead_of_added(name):
    records = read(part(f'{{"{name}":1}}'.encode()), unknown_fields=UnknownFields.ADD)

    assert (len(records.bad), records.unknown) == (1, ())


def test_times_in_nanoseconds_are_rounded_in_whole_columns_too():
    line = b'{"at":"2024-01-01T10:00:00.123456789Z","i":1}\n'

    records = read(part(line * 2000))

    assert {str(at) for at in records.rows.column("at").to_pylist()} == {"2024-01-01 10:00:00.123457+00:00"}
    assert by_sequence_id(read(part(line)))[0] == by_sequence_id(read(part(line * 2000)))[0]
