"""Which type a column gets for the values of its sample, and what its comment says."""

import json

import pytest

from tests.unit.draft.drafts import columns_of, draft_of

UUID = "A0EEBC99-9c0b-4ef8-bb6d-6bb9bd380a11"
NINES = "9" * 20


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("1, -9223372036854775808, null", "bigint"),
        (f"1, {NINES}", "numeric(22,0)"),
        (NINES * 2, "text"),
        ("1, 2.5", "numeric(12,2)"),
        ("1.125", "numeric(13,3)"),
        ("12345678901.5", "numeric(15,2)"),
        ("0.30000000000000004", "numeric(31,21)"),
        (f"0.{'1' * 38}", "numeric(38,38)"),
        (f"1.{'1' * 38}", "text"),
        ("1.5, 1e-7", "double precision"),
        ("1, NaN, -Infinity", "double precision"),
        (f"1e-7, {NINES}", "numeric(29,7)"),
        ("1e99999", "text"),
        ("true, false", "boolean"),
        ('true, "yes"', "text"),
        ('"yes", "no"', "boolean"),
        ('"no"', "text"),
        ('"true"', "boolean"),
        ('"1", "2"', "text"),
        ('"1.50", "200.75"', "numeric(12,2)"),
        ('"1.5", "1.50"', "text"),
        ('"1.50", 1.5', "text"),
        ('"2024-02-29"', "date"),
        ('"2023-02-29"', "text"),
        ('"2024-02-29", "2024-02-29T10:00"', "timestamp"),
        ('"2024-02-29 10:00:00.5+02"', "timestamptz"),
        ('"2024-02-29", "2024-02-29T10:00:00Z", "2024-02-29T10:00"', "timestamptz"),
        ('"2024-02-29T10:00+16"', "text"),
        ('"2024-02-29T10:00Z", "infinity"', "text"),
        (f'"{UUID}"', "uuid"),
        (f'"{UUID.replace("-", "")}"', "text"),
        ("{}", "jsonb"),
        ('[1], {"a": 1}, "x", 5', "jsonb"),
        ('"{}"', "text"),
        ("null", "text"),
    ],
)
def test_the_type_of_json_values(tmp_path, values, expected):
    lines = "".join(f'{{"v": {value}}}\n' for value in json_values(values))

    assert columns_of(tmp_path / "v.jsonl", lines) == {"v": expected}


def json_values(values: str) -> list[str]:
    """The raw values of a list, without a comma in them at other places."""
    decoder, found, at = json.JSONDecoder(parse_float=str, parse_int=str), list[str](), 0
    while at < len(values):
        _, end = decoder.raw_decode(values, at)
        found.append(values[at:end])
        at = end + len(", ")
    return found


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1", " 22", ""], "bigint"),
        (["01", "2"], "text"),
        (["+1", "2"], "text"),
        (["1.5", ".25", "2"], "numeric(12,2)"),
        (["1,5", "2,25"], "text"),
        (["1e-05", "2.0E10"], "double precision"),
        (["1e5", "2e5"], "text"),
        (["1", "nan"], "double precision"),
        (["nan", "inf"], "text"),
        (["t", "f"], "boolean"),
        (["0", "1"], "bigint"),
        (['{"a": 1}', "[1]"], "jsonb"),
        (["{1}", "[1]"], "text"),
        (["2024-01-01", "2024-01-01 10:00"], "timestamp"),
    ],
)
def test_the_type_of_csv_values(tmp_path, values, expected):
    lines = "".join('x;"{}"\n'.format(value.replace('"', '""')) if value else "x;\n" for value in values)

    assert columns_of(tmp_path / "v.csv", f"name;v\n{lines}")["v"] == expected


@pytest.mark.parametrize(
    ("lines", "comment"),
    [
        ([{"v": 1}] * 9 + [{"v": "a"}], "# mixed: integers (9), texts (1). With bigint, 1 of 10 would go to"),
        ([{"v": 1}, {"v": "a"}], "# mixed: integers (1), texts (1)\n"),
        ([{"v": None, "n": 1}] * 19 + [{"v": 1, "n": 1}], "# almost always null: 19 of 20 records have no value\n"),
        ([{"v": None, "n": 1}], "# always null or absent, so its type cannot be guessed\n"),
        (
            [{"v": "2024-01-01T10:00"}],
            "# no value has a zone; if the times are in UTC, timestamptz is the better type\n",
        ),
        ([{"v": "2024-01-01T10:00Z"}, {"v": "2024-01-01"}], "# 1 of 2 values have no zone, and count as UTC\n"),
        ([{"v": "2024-01-01T10:00Z"}], "# likely the event time\n"),
        ([{"v": 1e-7}], "# a float: some numbers have an exponent, or are NaN or infinite\n"),
        ([{"v": 1 / 3}], "# up to 16 digits after the point: for measured values, double precision may be meant\n"),
        ([{"createdAt": 1704103872}], "# maybe a Unix time, which no date or time type accepts"),
        ([{"Vé": 1}], "# in SQL, write its name in double quotes\n"),
    ],
)
def test_a_comment_says_what_was_guessed(tmp_path, lines, comment):
    draft = draft_of(tmp_path / "v.jsonl", "".join(json.dumps(line) + "\n" for line in lines))

    assert comment in draft


@pytest.mark.parametrize(("count", "not_null"), [(99, ""), (100, " not null")])
def test_only_the_key_is_not_null_and_only_if_there_are_enough_records(tmp_path, count, not_null):
    lines = "".join(f'{{"name": "x", "orderId": {number}, "serial": {number}}}\n' for number in range(count))

    draft = draft_of(tmp_path / "orders.jsonl", lines)

    assert f'  orderId": bigint{not_null}\n'.replace("  o", '  "o') in draft
    assert draft.count("not null") == 2 * bool(not_null)
    assert '  # key: ["orderId"]\n' in draft
