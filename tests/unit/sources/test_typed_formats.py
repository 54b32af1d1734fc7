"""ORC and Avro: the same values as Parquet, and what is damaged is refused in words."""

import random
from datetime import date, time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.columns import SEQUENCE, parse_column
from onceload_jobs.pipeline.declared import Format, UnknownFields
from tests.laws import examples
from tests.typed_files import OTHER_FORMATS, content_of
from tests.unit.sources.typed import read_file, read_groups

INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(max_size=6) | st.sampled_from(["1", "1.10", "2024-02-29", "true", "a\0", '{"a":1}', "NaN", ""])
#: From the year 1 to 9999, and a little beyond; also what overflows as nanoseconds.
MOMENTS = st.integers(-62_135_600_000_000_000, 253_402_400_000_000_000) | st.sampled_from([0, -1, 2**63 // 1000 + 7])
NANOSECONDS = INT64 | st.integers(-5000, 5000)


VALUES = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-128, 127),
    pa.int32(): INT32,
    pa.int64(): INT64,
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats() | st.sampled_from([1.0, 1.1, 1e39, 1e-46]),
    pa.string(): TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.decimal128(12, 3): st.decimals(-(10**8), 10**8, places=3),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.date32(): st.integers(-719_200, 2_932_900) | st.sampled_from([10_000_000, -(2**31)]),
    pa.timestamp("us"): MOMENTS,
    pa.timestamp("us", "UTC"): MOMENTS,
    pa.timestamp("ns"): NANOSECONDS,
    pa.list_(pa.int64()): st.lists(st.none() | INT64, max_size=3),
    pa.list_(pa.string()): st.lists(st.none() | TEXTS, max_size=3),
    pa.list_(pa.timestamp("us")): st.lists(st.none() | MOMENTS, max_size=3),
    pa.struct([("x", pa.int64()), ("y", pa.string())]): st.fixed_dictionaries({"x": st.none() | INT64, "y": TEXTS}),
    pa.struct([("at", pa.timestamp("us", "UTC"))]): st.fixed_dictionaries({"at": st.none() | MOMENTS}),
    pa.map_(pa.string(), pa.int64()): st.dictionaries(st.sampled_from("abc"), INT64, max_size=3).map(
        lambda found: list(found.items())
    ),
}
#: What only Avro has.
OF_AVRO = {
    pa.time32("ms"): st.integers(0, 86_399_999),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.timestamp("ms"): st.integers(-62_135_600_000_000, 253_402_400_000_000),
    pa.timestamp("ns", "UTC"): NANOSECONDS,
    pa.decimal256(60, 10): st.decimals(-(10**30), 10**30, places=10),
    pa.binary(16): st.binary(min_size=16, max_size=16),
}
TYPES = ["text", "varchar(2)", "boolean", "smallint", "bigint", "real", "double precision", "numeric(7,2)", "date"]
TYPES += ["time", "timestamp", "timestamptz", "uuid", "jsonb", "bytea", "text[]", "bigint[]", "timestamp[]", "jsonb[]"]


def as_stored(values: list[object], arrow: pa.DataType) -> pa.Array:
    """Numbers as times of any day, which Python does not have."""
    if pa.types.is_list(arrow) and pa.types.is_timestamp(arrow.value_type):
        return pa.array(values, pa.list_(pa.int64())).cast(arrow)
    if pa.types.is_struct(arrow) and pa.types.is_timestamp(arrow.field(0).type):
        return pa.array(values, pa.struct([("at", pa.int64())])).cast(arrow)
    if pa.types.is_temporal(arrow):
        return pa.array(values, pa.int32() if arrow.bit_width == 32 else pa.int64()).cast(arrow)
    return pa.array(values, arrow)


@st.composite
def tables(draw: st.DrawFn, of_format: Format) -> tuple[pa.Table, dict[str, str]]:
    """A table, and the types that are declared for some of its columns."""
    known = VALUES if of_format is Format.ORC else VALUES | OF_AVRO
    types = draw(st.lists(st.sampled_from(list(known)), min_size=1, max_size=4))
    count = draw(st.integers(1, 6))
    columns = [draw(st.lists(st.none() | known[each], min_size=count, max_size=count)) for each in types]
    names = [f"c{at}" for at in range(len(types))]
    arrays = [as_stored(values, each) for values, each in zip(columns, types, strict=True)]
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    return pa.table(arrays, names), {name: draw(st.sampled_from(TYPES)) for name in chosen}


@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_any_table_means_the_same_as_in_parquet(of_format, tmp_path):
    @settings(examples(40), suppress_health_check=[HealthCheck.too_slow])
    @given(drawn=tables(of_format), rows=st.sampled_from([None, 2]), unknown=st.sampled_from(UnknownFields))
    def law(drawn, rows, unknown):
        table, declared = drawn
        parquet, other = tmp_path / "a.parquet", tmp_path / "a.other"
        parquet.write_bytes(content_of(table, Format.PARQUET, rows=rows))
        other.write_bytes(content_of(table, of_format, rows=rows))

        expected = read_file(parquet, Format.PARQUET, unknown_fields=unknown, **declared)

        assert read_file(other, of_format, unknown_fields=unknown, **declared) == expected
        assert len(expected) == table.num_rows

    law()


TABLE = pa.table(
    {
        "a": range(1000),
        "text": [f"text {number % 17}" for number in range(1000)],
        "lists": [[1, 2], []] * 500,
        "at": pa.array(range(1000), pa.int64()).cast(pa.timestamp("us")),
        "amount": pa.array([Decimal("1.10"), None] * 500, pa.decimal128(12, 2)),
        "structs": [{"x": 1, "y": [{"z": "text"}]}, None] * 500,
        "maps": pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int64())),
    }
)
DECLARED: dict[str, Any] = {
    "a": "bigint",
    "text": "text",
    "lists": "bigint[]",
    "at": "timestamp",
    "amount": "numeric(12,2)",
}
DECLARED |= {"structs": "jsonb", "maps": "jsonb"}


@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_a_file_that_is_cut_anywhere_is_refused_before_any_of_it_is_read(of_format, tmp_path):
    path, whole = tmp_path / "a", content_of(TABLE, of_format, rows=300)

    for size in [*range(0, len(whole), 97), len(whole) - 1]:
        path.write_bytes(whole[:size])
        if of_format is Format.AVRO and size_of_whole_blocks(whole, size) == size:
            continue
        with pytest.raises(FileRefused, match="damaged or truncated"):
            read_whole_file(of_format, str(path), size=size)


def size_of_whole_blocks(whole: bytes, size: int) -> int:
    """Where the last block ends, with the mark that each of them has."""
    return whole.rfind(whole[-16:], 0, size) + 16


def damages(content: bytes, *, seed: int, count: int):
    """The content with a flipped bit, other bytes in the middle, or a part that is missing or there twice."""
    rng = random.Random(seed)
    for _ in range(count):
        at, size = rng.randrange(len(content)), rng.choice([1, 1, 2, 8, 64])
        kind = rng.randrange(4)
        if kind == 0:
            yield content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
        elif kind == 1:
            yield content[:at] + rng.randbytes(size) + content[at + size :]
        elif kind == 2:
            yield content[:at] + content[at + size :]
        else:
            yield content[:at] + content[at : at + size] + content[at:]


@pytest.mark.parametrize("codec", [0, 1, 2, 3])
@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_any_bytes_of_a_file_may_be_wrong(of_format, codec, tmp_path):
    """It is refused with a message or read correctly, never anything else."""
    options: dict[Format, list[dict[str, Any]]] = {
        Format.ORC: [{"compression": each} for each in ("UNCOMPRESSED", "ZLIB", "ZSTD", "LZ4")],
        Format.AVRO: [{"codec": each} for each in ("null", "deflate", "bzip2", "xz")],
    }
    whole = content_of(TABLE.slice(0, 200), of_format, rows=100, **options[of_format][codec])
    try_damages(of_format, whole, tmp_path, seed=codec, count=40)


@pytest.mark.long
@pytest.mark.parametrize("codec", ["UNCOMPRESSED", "ZLIB", "SNAPPY", "ZSTD", "LZ4", "null", "deflate"])
def test_any_bytes_of_many_files_may_be_wrong(codec, tmp_path):
    of_format = Format.ORC if codec.isupper() else Format.AVRO
    options: dict[str, Any] = {"compression": codec} if of_format is Format.ORC else {"codec": codec}
    whole = content_of(TABLE.slice(0, 200), of_format, rows=100, **options)
    try_damages(of_format, whole, tmp_path, seed=random.randrange(2**32), count=400)


def try_damages(of_format, whole, folder, *, seed, count):
    for number, damaged in enumerate(damages(whole, seed=seed, count=count)):
        path = folder / f"{number % 7}"
        path.write_bytes(damaged)
        try:
            groups = read_groups(path, of_format, **DECLARED)
        except FileRefused:
            continue
        ids = [each for records in groups for each in records.rows.column(SEQUENCE).to_pylist()]
        bad = [each.sequence_id for records in groups for each in records.bad]
        assert sorted([*ids, *bad]) == list(range(len(ids) + len(bad)))


@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_a_text_that_is_not_utf8_quarantines_only_its_own_record(of_format, tmp_path):
    path = tmp_path / "a"
    content = content_of(pa.table({"a": ["x" * 7, "y" * 7]}), of_format, **without_codec(of_format))
    assert content.count(b"x" * 7) >= 1
    path.write_bytes(content.replace(b"x" * 7, b"\xff" * 7))

    (records,) = read_groups(path, of_format, a="text")

    assert records.rows.column("a").to_pylist() == ["y" * 7]
    assert [(bad.sequence_id, bad.column) for bad in records.bad] == [(0, "a")]


def without_codec(of_format: Format) -> dict[str, Any]:
    return {"compression": "UNCOMPRESSED"} if of_format is Format.ORC else {"codec": "null"}


@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_undeclared_columns_follow_the_rule_of_the_pipeline(of_format, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content_of(TABLE.slice(0, 2), of_format))

    ignored, failed, added = (
        read_groups(path, of_format, a="integer", unknown_fields=rule)[0] for rule in UnknownFields
    )

    assert (ignored.rows.num_rows, failed.bad[0].column, added.rows.num_rows) == (2, "text", 2)
    assert dict(ignored.ignored.fields) == dict.fromkeys(TABLE.column_names[1:], 2)
    assert {column.name: str(column.type) for column in added.unknown} == {
        "text": "text",
        "lists": "jsonb",
        "at": "timestamp",
        "amount": "numeric(12,2)",
        "structs": "jsonb",
        "maps": "jsonb",
    }


@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_a_file_that_lacks_a_column_is_refused(of_format, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content_of(TABLE, of_format))
    for inner in ("x", "z", "key", "k", "row"):
        with pytest.raises(FileRefused, match=f"among them {inner}\\."):
            read_whole_file(of_format, str(path), size=path.stat().st_size, columns=(parse_column(inner, "text"),))


@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_groups_are_spans_of_row_numbers_wherever_they_end(of_format, tmp_path):
    path = tmp_path / "a"
    ids = pa.table({"a": range(100_000), "text": ["x" * 20] * 100_000})
    path.write_bytes(content_of(ids, of_format, rows=10_000, **without_codec(of_format)))

    groups = read_groups(path, of_format, a="bigint")

    assert len(groups) >= 5
    assert [each for records in groups for each in records.rows.column("a").to_pylist()] == list(range(100_000))
    assert [each for records in groups for each in records.rows.column(SEQUENCE).to_pylist()] == list(range(100_000))


@pytest.mark.parametrize("of_format", OTHER_FORMATS)
def test_a_file_without_rows_has_no_groups(of_format, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content_of(TABLE.slice(0, 0), of_format))

    assert read_groups(path, of_format, **DECLARED) == []


def test_times_of_day_and_days_are_exact_in_avro(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(content_of(pa.table({"a": [time(10, 11, 12, 13)], "b": [date(1, 1, 1)]}), Format.AVRO))

    (records,) = read_groups(path, Format.AVRO, a="time", b="date")

    assert records.rows.select(["a", "b"]).to_pylist() == [{"a": time(10, 11, 12, 13), "b": date(1, 1, 1)}]
