"""Parquet: row numbers as sequence ids, and the other formats' rules for what is not of the declared type."""

import io
import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_jobs.formats import plain_values
from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.parquet import rows as parquet
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import SEQUENCE, arrow_schema, parse_column
from onceload_jobs.pipeline.declared import UnknownFields
from tests.unit.sources.row_groups import URL, row_groups_of


def wall_clock(*parts: int) -> datetime:
    year, month, day, *of_day = parts
    hour, minute, second, microsecond = (*of_day, 0, 0, 0, 0)[:4]
    return datetime(year, month, day, hour, minute, second, microsecond, tzinfo=UTC).replace(tzinfo=None)


def columns(**declared: str):
    return tuple(parse_column(name, type_) for name, type_ in declared.items())


def file_of(table: pa.Table, **kwargs) -> io.BytesIO:
    sink = io.BytesIO()
    pq.write_table(table, sink, **kwargs)
    return sink


def read(
    source: io.BytesIO, *, group: int = 0, unknown_fields: UnknownFields = UnknownFields.IGNORE, **declared: str
) -> Records:
    return read_parquet(
        row_groups_of(source.getvalue())[group], url=URL, columns=columns(**declared), unknown_fields=unknown_fields
    )


def unfolding_at_most(size: int):
    return patch.object(plain_values, "UNFOLDED_BYTES_MAX", size)


def slowly(source: io.BytesIO, **kwargs) -> Records:
    with patch.object(parquet._Reader, "read_many", lambda self, group: None):
        return read(source, **kwargs)


def by_sequence_id(records: Records) -> dict[int, object]:
    rows = {row[SEQUENCE]: repr(row) for row in records.rows.to_pylist()}
    return rows | {bad.sequence_id: bad for bad in records.bad}


STORED = {
    "int": pa.array([1, -1, None, 2**40, 40_000]),
    "uint64": pa.array([0, 2**64 - 1], pa.uint64()),
    "double": pa.array(
        [1.0, 1.1, 1e39, float("nan"), float("inf"), None, 0.1 + 0.2, 1e20, 1e-45, -1e-46, 2.0**-150, 0.0]
    ),
    "float": pa.array([1.0, 1.1, float("inf"), 3e38], pa.float32()),
    "large double": pa.array([2.0**60, 1.0, None]),
    "large float": pa.array([84_481_208.0, -16_777_216.0], pa.float32()),
    "half": pa.array([1.0, 0.1, 1e-3], pa.float16()),
    "bool": pa.array([True, False, None]),
    "decimal": pa.array([Decimal("1.10"), Decimal("12345.678"), Decimal("1.105"), None], pa.decimal128(20, 3)),
    "wide": pa.array([Decimal(10) ** 50, Decimal("1.50")], pa.decimal256(60, 2)),
    "text": pa.array(["1", "x", "a\0", "", None, "2024-01-01", "true", '{"a":1.10}', "{a}", "äöü"]),
    "large": pa.array(["1", "x", None], pa.large_string()),
    "dictionary": pa.array(["1", "x", "1", None]).dictionary_encode(),
    "bytes": pa.array([b"\xff", b"1", None, b"0123456789abcdef"]),
    "uuid": pa.array([b"0123456789abcdef", None], pa.binary(16)),
    "date": pa.array([date(2024, 1, 1), date(1, 1, 1), None]),
    "time": pa.array([time(10, 11, 12), None], pa.time32("ms")),
    "time_ns": pa.array([500, 1500, 2501, None], pa.int64()).cast(pa.time64("ns")),
    "naive": pa.array([wall_clock(2024, 1, 1), wall_clock(2024, 1, 1, 10), None], pa.timestamp("ms")),
    "ns": pa.array([500, 1500, -500, 10**18, None], pa.int64()).cast(pa.timestamp("ns", "UTC")),
    "zoned": pa.array([datetime(2024, 1, 1, 10, tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
    "far": pa.array([2**62, -(2**62), 0], pa.int64()).cast(pa.timestamp("us", "UTC")),
    "never": pa.array([2**63 - 1, -(2**63) + 1, 0, None], pa.int64()).cast(pa.timestamp("ms")),
    "nevers": pa.array([[0, 2**63 - 1], [0], None], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("ms", "UTC"))),
    "distant": pa.array([10_000_000, -(2**31), 0, None], pa.int32()).cast(pa.date32()),
    "distants": pa.array([[0, 2**62], [0], None], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us"))),
    "distant in a struct": pa.StructArray.from_arrays(
        [pa.array([10_000_000, 0], pa.int32()).cast(pa.date32()), pa.array(["a", "b"])], names=["day", "text"]
    ),
    "distant in a map": pa.array([[("a", 2**62)], [("a", 0)]], pa.map_(pa.string(), pa.int64())).cast(
        pa.map_(pa.string(), pa.timestamp("us"))
    ),
    "ints": pa.array([[1, None], [], None, [2**40]], pa.list_(pa.int64())),
    "texts": pa.array([["1"], ["a\0"], ["x", None]], pa.large_list(pa.string())),
    "nested": pa.array([[[1]], None], pa.list_(pa.list_(pa.int64()))),
    "struct": pa.array([{"a": 1.5, "b": [b"\x01"]}, None]),
    "map": pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
    "null": pa.nulls(2),
}
TYPES = ["text", "varchar(2)", "boolean", "smallint", "bigint", "real", "double precision", "numeric(7,2)", "date"]
TYPES += [
    "time",
    "timestamp",
    "timestamptz",
    "uuid",
    "jsonb",
    "bytea",
    "text[]",
    "bigint[]",
    "jsonb[]",
    "bytea[]",
    "uuid[]",
]


@pytest.mark.parametrize("declared", TYPES)
@pytest.mark.parametrize("stored", STORED)
def test_a_value_is_read_alike_by_both_tiers_and_alone(stored, declared):
    array = STORED[stored]
    source = file_of(pa.table({"a": array}))

    together = read(source, a=declared)

    assert by_sequence_id(together) == by_sequence_id(slowly(source, a=declared))
    apart = file_of(pa.table({"a": array}), row_group_size=1)
    alone = [by_sequence_id(read(apart, a=declared, group=at)) for at in range(len(array))]
    assert by_sequence_id(together) == {key: value for each in alone for key, value in each.items()}
    assert together.count == len(array)
    assert together.rows.schema.remove(2).remove(1) == arrow_schema(columns(a=declared))
    together.rows.validate(full=True)


@pytest.mark.parametrize(
    ("stored", "declared", "expected"),
    [
        (pa.array([1.1], pa.float32()), "numeric(5,2)", Decimal("1.10")),
        (pa.array([1.1]), "text", "1.1"),
        (pa.array([1500], pa.int64()).cast(pa.timestamp("ns")), "timestamp", wall_clock(1970, 1, 1, 0, 0, 0, 2)),
        (pa.array([wall_clock(2024, 1, 1)], pa.timestamp("s")), "date", date(2024, 1, 1)),
        (pa.array([wall_clock(2024, 1, 1)], pa.timestamp("s")), "timestamptz", datetime(2024, 1, 1, tzinfo=UTC)),
        (STORED["zoned"][:1], "timestamp", wall_clock(2024, 1, 1, 11)),
        (pa.array(["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]), "uuid", bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11")),
        (pa.array([{"a": Decimal("1.10")}]), "jsonb", '{"a":1.10}'),
        (pa.array([b"text"]), "text", "text"),
        (pa.array([[1]]), "text[]", ["1"]),
    ],
)
def test_a_stored_value_becomes_one_of_the_declared_type(stored, declared, expected):
    records = read(file_of(pa.table({"a": stored})), a=declared)

    assert records.rows.column("a").to_pylist() == [expected]


def test_int96_reaches_years_that_nanoseconds_do_not():
    moment = wall_clock(9999, 1, 1)
    source = file_of(pa.table({"a": pa.array([moment], pa.timestamp("us"))}), use_deprecated_int96_timestamps=True)

    assert read(source, a="timestamp").rows.column("a").to_pylist() == [moment]


NUMBERS = pa.table({"a": list(range(100)), "b": ["x"] * 100})


def test_row_groups_are_spans_of_row_numbers():
    source = file_of(NUMBERS, row_group_size=30)

    spans = [(part.first, part.end) for part in row_groups_of(source.getvalue())]

    assert spans == [(0, 30), (30, 60), (60, 90), (90, 100)]
    assert row_groups_of(file_of(NUMBERS.slice(0, 0)).getvalue()) == []
    for group, (first, end) in enumerate(spans):
        records = read(source, group=group, a="integer")
        assert records.rows.column("a").to_pylist() == list(range(100))[first:end]
        assert records.rows.column(SEQUENCE).to_pylist() == list(range(first, end))


def test_a_bad_record_is_kept_as_json():
    source = file_of(pa.table({"a": ["x", "1"], "b": [b"\xff", b"a"], "c": [Decimal("1.10"), None]}))

    records = read(source, a="integer not null", b="bytea", c="numeric(5,2)", d="text")

    assert (records.bad[0].sequence_id, records.bad[0].column) == (0, "a")
    assert json.loads(records.bad[0].raw, parse_float=str) == {"a": "x", "b": "\\xff", "c": "1.10"}
    assert records.rows.column("d").to_pylist() == [None]


@pytest.mark.parametrize(
    ("stored", "declared"),
    [
        ("distant", "date"),
        ("never", "timestamp"),
        ("never", "text"),
        ("nevers", "timestamptz[]"),
        ("distants", "timestamp[]"),
        ("distant in a struct", "jsonb"),
        ("distant in a map", "jsonb"),
    ],
)
def test_a_time_beyond_all_calendars_is_bad_alone(stored, declared):
    array = STORED[stored]

    records = read(file_of(pa.table({"a": array, "b": [1] * len(array)})), a=declared, b="integer")

    bad = [each.sequence_id for each in records.bad]
    assert bad == ([0, 1] if stored in ("distant", "never") else [0])
    assert records.rows.num_rows == len(array) - len(bad)
    assert all("cannot be read" in each.reason and json.loads(each.raw)["b"] == 1 for each in records.bad)


def test_a_time_beyond_all_calendars_in_an_undeclared_column_is_not_a_fault_of_the_file():
    source = file_of(pa.table({"a": [1, 2, 3, 4], "z": STORED["never"]}))

    assert read(source, a="integer").rows.num_rows == 4
    assert len(read(source, a="integer", unknown_fields=UnknownFields.FAIL).bad) == 4
    assert read(source, a="integer", unknown_fields=UnknownFields.ADD).count == 4


def test_bytes_that_are_not_a_whole_parquet_file_are_refused_in_words():
    whole = file_of(pa.table({"a": list(range(10_000))})).getvalue()
    for broken in (b"", b"PAR1", b"x" * 100, b"PAR1" * 3, whole[:-100], whole[:100] + bytes(1000) + whole[1100:]):
        with pytest.raises(FileRefused, match=r"a\.parquet was refused: it is damaged"):
            read(io.BytesIO(broken), a="bigint")


def test_a_few_bytes_cannot_unfold_to_fill_the_memory():
    rows = 5_000
    alike = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 20_000]))
    source = file_of(pa.table({"a": alike.cast(pa.dictionary(pa.int32(), pa.string()))}), store_schema=False)

    with unfolding_at_most(50 * 2**20), pytest.raises(FileRefused, match="fit into memory"):
        read(source, a="text")

    assert len(source.getvalue()) < 100_000
    assert read(source, a="text").rows.num_rows == rows


@pytest.mark.parametrize("values", ["text", "bytes", "list", "struct", "map"])
def test_a_dictionary_cannot_unfold_to_fill_the_memory(values):
    rows, long = 3000, b"x" * 1000 if values == "bytes" else "x" * 1000
    alike = pa.array([long] * rows).dictionary_encode()
    each = pa.array(range(rows + 1), pa.int32())
    if values == "list":
        alike = pa.ListArray.from_arrays(each, alike)
    elif values == "struct":
        alike = pa.StructArray.from_arrays([alike], ["s"])
    elif values == "map":
        alike = pa.MapArray.from_arrays(each, pa.array(["k"] * rows), alike)
    source = file_of(pa.table({"a": alike}))
    declared = {"text": "text", "bytes": "bytea", "list": "text[]"}.get(values, "jsonb")

    with unfolding_at_most(2 * 10**6), pytest.raises(FileRefused, match="fit into memory"):
        read(source, a=declared)

    assert len(source.getvalue()) < 10_000
    with unfolding_at_most(4 * 10**6):
        assert read(source, a=declared).rows.num_rows == rows


def test_a_dictionary_that_all_rows_share_counts_by_what_it_means():
    texts = pa.array([f"{number:0100}" for number in range(1000)])
    alike = pa.DictionaryArray.from_arrays(pa.array([0, 999] * 50_000, pa.int32()), texts)

    with unfolding_at_most(12 * 10**6):
        assert read(file_of(pa.table({"a": alike})), a="text").rows.num_rows == 100_000


def test_rows_that_take_no_bytes_cannot_fill_the_memory():
    source = file_of(pa.table({"a": pa.nulls(100_000, pa.int64())}))

    with unfolding_at_most(10**6), pytest.raises(FileRefused, match="fit into memory"):
        read(source, b="text")


@pytest.mark.parametrize("is_list", [False, True])
def test_int96_is_rounded_as_nanoseconds_are(is_list):
    stored = pa.array([1500, 2500, -1500, 2**62, None]).cast(pa.timestamp("ns"))
    if is_list:
        stored = pa.ListArray.from_arrays(pa.array([0, 2, 2, 5], pa.int32()), stored)
    declared = "timestamp[]" if is_list else "timestamp"
    as_int96 = file_of(pa.table({"a": stored}), use_deprecated_int96_timestamps=True)

    rows = read(as_int96, a=declared).rows

    assert rows == read(file_of(pa.table({"a": stored})), a=declared).rows
    assert rows.column("a").cast(pa.list_(pa.int64()) if is_list else pa.int64())[0].as_py() in (2, [2, 2])


def test_int96_beyond_all_calendars_is_bad_alone():
    """A day that is too far away for microseconds, and by chance looks like a near one when they overflow."""
    whole = file_of(
        pa.table({"a": pa.array([0, 86_400], pa.int64()).cast(pa.timestamp("s"))}),
        use_deprecated_int96_timestamps=True,
        use_dictionary=False,
        compression="none",
        write_statistics=False,
        store_schema=False,
    ).getvalue()
    first_day, next_day = ((2_440_588 + day).to_bytes(4, "little") for day in (0, 1))
    assert whole.count(bytes(8) + first_day + bytes(8) + next_day) == 1

    far = whole.replace(bytes(8) + first_day, bytes(8) + (213_503_982 + 2_440_588).to_bytes(4, "little"))

    records = read(io.BytesIO(far), a="timestamp")
    assert [bad.sequence_id for bad in records.bad] == [0]
    assert records.rows.column("a").to_pylist() == [wall_clock(1970, 1, 2)]


def test_a_page_whose_checksum_is_wrong_is_damaged():
    whole = file_of(
        pa.table({"a": list(range(1000))}), compression="none", use_dictionary=False, write_page_checksum=True
    ).getvalue()
    number = (500).to_bytes(8, "little")
    assert whole.count(number) == 1

    with pytest.raises(FileRefused, match=r"damaged or truncated: .*CRC"):
        read(io.BytesIO(whole.replace(number, (501).to_bytes(8, "little"))), a="bigint")


def test_pages_of_fewer_rows_than_the_footer_says_are_damaged():
    """The count of a data page: field 1 of its header, which is field 5 of the page's."""
    whole = file_of(pa.table({"a": list(range(1000))}), use_dictionary=False, compression="none").getvalue()
    thousand, half = b"\x2c\x15\xd0\x0f", b"\x2c\x15\xe8\x07"
    assert whole.count(thousand) == 1

    with pytest.raises(FileRefused, match="a row group holds 500 rows, but its footer says 1000"):
        read(io.BytesIO(whole.replace(thousand, half)), a="bigint")


def test_a_column_that_is_not_wanted_may_be_damaged():
    table = pa.table({"a": list(range(1000)), "b": ["x" * 10] * 1000})
    options = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    whole = file_of(table, **options, write_page_checksum=True).getvalue()
    broken = io.BytesIO(whole.replace(b"x" * 10, b"x" * 9 + b"y", 1))

    assert read(broken, a="bigint").rows.num_rows == 1000
    with pytest.raises(FileRefused, match="damaged"):
        read(broken, a="bigint", unknown_fields=UnknownFields.FAIL)


def test_two_columns_of_one_name_are_refused_where_they_are_asked_for():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])

    with pytest.raises(FileRefused, match="several columns called 'a'"):
        read(file_of(table), a="bigint")
    with pytest.raises(FileRefused, match="several columns called 'a'"):
        read(file_of(table), b="bigint", unknown_fields=UnknownFields.ADD)
    assert read(file_of(table), b="bigint").rows.column("b").to_pylist() == [3]


def test_a_text_that_is_not_utf8_is_bad_alone():
    broken = pa.array([b"\xff", b"a"]).view(pa.string())

    records = read(file_of(pa.table({"a": broken})), a="text")

    assert records.rows.column("a").to_pylist() == ["a"]
    assert records.bad[0].column == "a"


def test_columns_that_the_file_lacks_are_null():
    records = read(file_of(NUMBERS), z="text")

    assert records.rows.column("z").null_count == records.rows.num_rows == 100
    assert len(read(file_of(NUMBERS), z="text not null").bad) == 100


def test_undeclared_columns_follow_the_pipelines_rule():
    source = file_of(
        pa.table(
            {
                "a": [1],
                "d": pa.array([1], pa.decimal128(9, 2)),
                "at": pa.array([1], pa.timestamp("ns", "UTC")),
                "o": [{"x": 1}],
                "u": pa.array([1], pa.uint64()),
                "none": pa.nulls(1, pa.string()),
            }
        )
    )

    ignored, failed, added = (read(source, a="integer", unknown_fields=rule) for rule in UnknownFields)

    assert (ignored.rows.num_rows, failed.bad[0].column, added.rows.num_rows) == (1, "d", 1)
    assert {column.name: str(column.type) for column in added.unknown} == {
        "d": "numeric(9,2)",
        "at": "timestamptz",
        "o": "jsonb",
        "u": "numeric(20,0)",
    }


def test_a_time_in_milliseconds_beyond_all_microseconds_is_bad_alone():
    """Some batches of a column have such times, and others have none."""
    numbers = [0] * 10_000
    numbers[9_000] = 2**62
    stored = pa.array(numbers, pa.int64()).cast(pa.timestamp("ms", "UTC"))

    records = read(file_of(pa.table({"a": stored})), a="timestamptz")

    (bad,) = records.bad
    assert (records.rows.num_rows, bad.sequence_id) == (9_999, 9_000)
    assert f"({2**62} milliseconds since 1970) cannot be read as a value" in bad.reason


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        (pa.array([1_608_804_000_000_000_000], pa.int64()).cast(pa.timestamp("us")), "52950-12-20T16:00:00.000000 ("),
        (pa.array([2**31 - 1], pa.int32()).cast(pa.date32()), "5881580-07-11 (2147483647 days since 1970)"),
        (pa.array([b"\xff"]).view(pa.string()), r"b'\xff' cannot be read"),
    ],
    ids=["year", "day", "text"],
)
def test_a_value_inside_another_that_cannot_be_read_is_named_as_it_is_stored(stored, why):
    for inside in (pa.StructArray.from_arrays([stored], ["x"]), pa.ListArray.from_arrays(pa.array([0, 1]), stored)):
        (bad,) = read(file_of(pa.table({"a": inside})), a="jsonb").bad

        assert bad.reason.startswith(why)


def test_a_struct_with_two_fields_of_one_name_is_bad():
    stored = pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], ["x", "x"])

    (bad,) = read(file_of(pa.table({"a": stored})), a="jsonb").bad

    assert "several fields of the same name ('x', 'x')" in bad.reason


def test_reals_of_an_array_are_read_by_their_own_digits_beside_a_bad_value_too():
    reals = pa.array([[0.1], [0.1]], pa.list_(pa.float32()))

    records = slowly(file_of(pa.table({"a": reals})), a="numeric(12,2)[]")

    assert records.rows.column("a").to_pylist() == [[Decimal("0.10")]] * 2
