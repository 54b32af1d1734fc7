"""Numbers of any length and exponent: exactly the one that was written, or a bad record, whatever the format."""

import io
from decimal import Context, Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import Part
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.jsonl.rows import read_jsonl
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, UnknownFields
from tests.laws import examples
from tests.unit.sources.row_groups import URL, row_groups_of

TYPES = ["numeric(12,2)", "numeric(19,4)", "numeric(38,0)", "numeric(38,10)", "numeric(38,18)", "numeric(38,38)"]
EXACT = Context(prec=2000)

DIGITS = st.text("0123456789", min_size=1, max_size=45) | st.text("09", min_size=70, max_size=300)
WHOLES = DIGITS.map(lambda digits: digits.lstrip("0") or "0")
EXPONENTS = st.integers(-120, 120) | st.sampled_from([-(2**31) - 1, 1 - 2**31, -99_999_999, 99_999_999])
NUMBERS = st.builds(
    "{}{}{}{}".format,
    st.sampled_from(["", "-"]),
    WHOLES,
    st.just("") | DIGITS.map(".{}".format),
    st.just("") | st.builds("{}{}".format, st.sampled_from("eE"), EXPONENTS),
)
LISTS = st.lists(NUMBERS, min_size=1, max_size=8)


def part(text: str) -> Part:
    raw = text.encode()
    return Part(producer_id=ProducerId(1), first=0, end=len(raw), raw=raw)


def of_json(lines: list[str], declared: str) -> Records:
    columns = (parse_column("a", declared),)
    return read_jsonl(
        [part("\n".join(lines))],
        columns,
        declared=["a"],
        unknown_fields=UnknownFields.IGNORE,
        record_bytes_max=2**20,
    )


def of_csv(numbers: list[str], declared: str) -> Records:
    return read_csv(
        [part("\n".join(numbers))],
        (parse_column("a", declared),),
        header=("a",),
        options=CsvOptions(header=False),
        unknown_fields=UnknownFields.IGNORE,
        record_bytes_max=2**20,
    )


def of_parquet(array: pa.Array, declared: str) -> Records:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": array}), sink)
    (row_group,) = row_groups_of(sink.getvalue())
    return read_parquet(
        row_group,
        url=URL,
        columns=(parse_column("a", declared),),
        unknown_fields=UnknownFields.IGNORE,
    )


def fits(written: str, declared: str) -> bool:
    """Whether the type holds just this number, worked out without any of the code under test."""
    digits, _, exponent = written.lower().partition("e")
    if abs(int(exponent or 0)) >= 2**30 - 1:
        # Postgres does not even read a zero with it.
        return False
    if abs(int(exponent or 0)) > 1000:
        return not Decimal(digits)
    column_type = parse_column("a", declared).type
    scale = column_type.scale or 0
    shifted = Decimal(written).scaleb(scale, context=EXACT)
    return shifted == shifted.to_integral_value() and shifted.copy_abs() < Decimal(10) ** (column_type.precision or 0)


def expected_of(numbers: list[str], declared: str) -> list[Decimal]:
    return [
        Decimal(0) if not Decimal(each.lower().partition("e")[0]) else Decimal(each)
        for each in numbers
        if fits(each, declared)
    ]


def check(records: Records, numbers: list[str], declared: str) -> None:
    assert records.rows.column("a").to_pylist() == expected_of(numbers, declared)
    assert records.count == len(numbers)


@pytest.mark.parametrize("declared", TYPES)
@examples(30)
@given(numbers=LISTS)
@example(numbers=["123456789012345678901234567890"])
@example(numbers=["115792089237316195423570985008687907853269984665640564039457584007913129639935"])
@example(numbers=["340282366920938463463374607431768211956"])
@example(numbers=["1e-41", "2.5"])
@example(numbers=["1e-99999999"])
@example(numbers=["3.4e38"])
@example(numbers=["123.45" + 39 * "0"])
def test_a_number_is_read_exactly_or_not_at_all(declared, numbers):
    check(of_json([f'{{"a":{number}}}' for number in numbers], declared), numbers, declared)
    check(of_json([f'{{"a":"{number}"}}' for number in numbers], declared), numbers, declared)
    check(of_csv(numbers, declared), numbers, declared)
    check(of_parquet(pa.array(numbers), declared), numbers, declared)
    lists = of_json([f'{{"a":[1,{number}]}}' for number in numbers], f"{declared}[]")
    if fits("1", declared):
        assert [each[1] for each in lists.rows.column("a").to_pylist()] == expected_of(numbers, declared)


@pytest.mark.parametrize("declared", TYPES)
@examples(50)
@given(st.data())
def test_a_stored_decimal_is_taken_exactly_or_not_at_all(declared, data):
    precision = data.draw(st.integers(1, 76))
    scale = data.draw(st.integers(0, precision))
    integers = data.draw(st.lists(st.integers(1 - 10**precision, 10**precision - 1), min_size=1, max_size=8))
    numbers = [Decimal(each).scaleb(-scale, context=EXACT) for each in integers]
    stored = pa.decimal128(precision, scale) if precision <= 38 else pa.decimal256(precision, scale)

    records = of_parquet(pa.array(numbers, stored), declared)

    check(records, [f"{number:f}" for number in numbers], declared)


@pytest.mark.parametrize("hidden", ["1\\u0065-99999999", "1e\\u002d99999999", "\\u0031e-99999999", "1e-\\u00399999999"])
def test_no_escape_hides_an_exponent(hidden):
    records = of_json([f'{{"a":"{hidden}"}}', '{"a":"1.50"}'], "numeric(12,2)")

    assert (records.rows.column("a").to_pylist(), len(records.bad)) == ([Decimal("1.50")], 1)


@pytest.mark.parametrize("begins", range(2**16 - 4, 2**16 + 3))
def test_an_exponent_is_found_wherever_it_begins(begins):
    """The text is looked through in slabs of 64 KiB, and a number may begin in one and end in the next."""
    line = '{"a":"1e-41"}'
    padded = '{"a":"2"}'.ljust(begins - line.index("1") - 1)

    records = of_json([padded, line], "numeric(12,2)")

    assert (records.rows.column("a").to_pylist(), len(records.bad)) == ([Decimal(2)], 1)
