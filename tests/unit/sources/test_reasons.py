"""Reasons of bad records: those that differ in a value alone are of one kind."""

import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_core.names import ProducerId
from onceload_core.postgres.quarantine import kind_of
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, UnknownFields
from tests.unit.sources.row_groups import URL, row_groups_of

#: A column's type, two JSON values that it does not take, and what both reasons are without them.
OF_VALUES = [
    ("bigint", '"x"', '"y;1"', "… is not a valid bigint"),
    ("bigint", '"it\'s"', '"a \\"b\\" c"', "… is not a valid bigint"),
    ("bigint", '"it\'s \\"b\\""', '"x"', "… is not a valid bigint"),
    ("bigint", "1.5", "2.25", "… is not a valid bigint: it has a fraction"),
    ("bigint", "99999999999999999999", "88888888888888888888", "… is not a valid bigint: out of range"),
    ("numeric(12,2)", '"1;50"', '"12;50"', "… is not a valid numeric(12,2)"),
    (
        "numeric(12,2)",
        "1.005",
        "2.125",
        "… is not a valid numeric(12,2): it would be rounded to … digits after the point",
    ),
    ("numeric(12,2)", "99999999999", "1e30", "… is not a valid numeric(12,2): too many digits before the point"),
    ("varchar(3)", '"abcd"', '"abcde"', "… characters are too many for varchar(3)"),
    ("date", '"24/12/2026"', '"31/01/2027"', "… is not a valid date"),
    ("date", '"2026-02-30"', '"2026-04-31"', "… is not a valid date: there is no such day from year … to …"),
    ("jsonb", "1e999999", "2e888888", "… is out of the range of numbers in jsonb"),
    ("bigint[]", '["x"]', '["y"]', "… is not a valid bigint"),
]
#: Whole lines.
OF_LINES = [
    (b'{"x": 1,,}', b'{"x": 1, "yy": 2,,}', "invalid JSON at character …"),
    (b'{"x": 1} 2', b'{"x": 100} 2', "the line continues after its object, at character …"),
    (b'{"x": "\xff"}', b'{"x": "aaa\xff"}', "invalid UTF-8 at byte … of the record"),
    (b'{"x": "", "a": 1}', b'{"x": "", "b": 1}', "the field … is not declared"),
    (b'{"x": "' + b"z" * 300 + b'"}', b'{"x": "' + b"z" * 400 + b'"}', "… bytes are more than record_bytes_max"),
]


def part(raw: bytes) -> Part:
    return Part(producer_id=ProducerId(1), first=0, end=len(raw), raw=raw)


def kinds_of_json(raw: bytes, declared: str) -> list[str]:
    columns, fail = (parse_column("x", declared),), UnknownFields.FAIL
    names = [column.name for column in columns]
    records = read_jsonl([part(raw)], columns, declared=names, unknown_fields=fail, record_bytes_max=200)
    return [kind_of(each.reason) for each in records.bad]


@pytest.mark.parametrize(("declared", "one", "other", "kind"), OF_VALUES)
def test_refused_values_are_of_one_kind(declared, one, other, kind):
    assert kinds_of_json(f'{{"x": {one}}}\n{{"x": {other}}}\n'.encode(), declared) == [kind, kind]


@pytest.mark.parametrize(("one", "other", "kind"), OF_LINES)
def test_refused_lines_are_of_one_kind(one, other, kind):
    assert kinds_of_json(one + b"\n" + other + b"\n", "text") == [kind, kind]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (b"1,2,3\n1,2,3,4\n", "… values instead of …"),
        (b'1,a"\n1,aa"\n', "a stray quote in the value at character …"),
        (b'1,"a"a\n1,"aa"a\n', "the value continues after its end, at character …"),
        (b'1,"a\n11,"aa\n', "the quote at character … is never closed"),
    ],
)
def test_refused_lines_of_csv_are_of_one_kind(lines, kind):
    records = read_csv(
        [part(lines)],
        (parse_column("x", "bigint"), parse_column("y", "text")),
        header=("x", "y"),
        options=CsvOptions(header=False),
        unknown_fields=UnknownFields.IGNORE,
        record_bytes_max=200,
    )

    assert [kind_of(each.reason) for each in records.bad] == [kind, kind]


@pytest.mark.parametrize(
    ("declared", "values", "kind"),
    [
        ("real", pa.array([1e300, -2e300]), "… is not a valid real: out of range"),
        ("bigint", pa.array(["x", "y"]), "… is not a valid bigint"),
        ("text", pa.array([b"\xff", b"\xff\xfe"]), "… bytes that are not text are not a valid text"),
    ],
)
def test_refused_values_of_parquet_are_of_one_kind(declared, values, kind):
    file = io.BytesIO()
    pq.write_table(pa.table({"x": values}), file)
    (group,) = row_groups_of(file.getvalue())

    records = read_parquet(
        group,
        url=URL,
        columns=(parse_column("x", declared),),
        unknown_fields=UnknownFields.IGNORE,
    )

    assert [kind_of(each.reason) for each in records.bad] == [kind, kind]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (
            'the server refused it: invalid input syntax for type inet: "10.0.0.300"',
            "the server refused it: invalid input syntax for type inet: …",
        ),
        (
            'the server refused it: new row for relation "target" violates check constraint "target_check1"',
            'the server refused it: new row for relation "target" violates check constraint "target_check1"',
        ),
        (
            "the server refused it: value too long for type character varying(5)",
            "the server refused it: value too long for type character varying(5)",
        ),
        (
            "seq: -5 is not a sequence id (0 to 9223372036854775806)",
            "seq: … is not a sequence id (0 to 9223372036854775806)",
        ),
    ],
)
def test_names_of_the_server_and_the_pipeline_stay_in_a_reason(reason, kind):
    assert kind_of(reason) == kind
