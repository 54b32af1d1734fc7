"""Avro: each type of its schemas, and blocks that are damaged or not supported."""

import bz2
import json
import lzma
import struct
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from unittest.mock import patch

import pyarrow as pa
import pytest
import zstandard

from onceload.extras import advice_for
from onceload_jobs.formats import plain_values
from onceload_jobs.formats.avro import rows
from onceload_jobs.formats.avro.blocks import header_of
from onceload_jobs.formats.avro.rows import read_avro, read_group
from onceload_jobs.formats.avro.schemas import schema_of
from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, UnknownFields
from tests.typed_files import avro_of, content_of, parts_of
from tests.unit.sources.typed import read_groups, values_of

TEXT = (parse_column("a", "text"),)


def record(*fields: tuple[str, object], named: str = "inner") -> dict[str, object]:
    return {"type": "record", "name": named, "fields": [{"name": name, "type": of_type} for name, of_type in fields]}


def file_of(tmp_path, of_type, *values, codec="null"):
    path = tmp_path / "a.avro"
    path.write_bytes(avro_of(record(("a", of_type), named="row"), [{"a": value} for value in values], codec=codec))
    return path


def read(tmp_path, of_type, *values, declared):
    return values_of(file_of(tmp_path, of_type, *values), Format.AVRO, declared)


def logical(kind: str, name: str, **more: object) -> dict[str, object]:
    return {"type": kind, "logicalType": name, **more}


FIXED: dict[str, object] = {"type": "fixed", "name": "f", "size": 3}
CENTS = logical("bytes", "decimal", precision=9, scale=2)
NANOSECONDS = logical("long", "timestamp-nanos")


def naive(microsecond: int) -> datetime:
    return datetime(1970, 1, 1, 0, 0, 0, microsecond, tzinfo=UTC).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("of_type", "stored", "declared", "expected"),
    [
        ("null", None, "text", None),
        ("boolean", True, "boolean", True),
        ("int", -(2**31), "bigint", -(2**31)),
        ("long", 2**63 - 1, "bigint", 2**63 - 1),
        ("float", 0.10000000149011612, "numeric(5,2)", Decimal("0.10")),
        ("double", 1.1, "text", "1.1"),
        ("string", "äöü", "text", "äöü"),
        ("string", "5", "integer", 5),
        ("bytes", b"\xff\0", "bytea", b"\xff\0"),
        ({"type": "string", "avro.java.string": "String"}, "x", "text", "x"),
        (["null", "int"], None, "integer", None),
        (["int", "null"], 5, "integer", 5),
        (FIXED, b"abc", "bytea", b"abc"),
        (FIXED, b"abc", "text", "abc"),
        ({"type": "enum", "name": "e", "symbols": ["RED", "BLUE"]}, "BLUE", "text", "BLUE"),
        (CENTS, Decimal("-1.10"), "numeric(9,2)", Decimal("-1.10")),
        (CENTS, Decimal("-1.10"), "text", "-1.10"),
        (FIXED | logical("fixed", "decimal", precision=6, scale=1), Decimal("1.5"), "numeric(9,2)", Decimal("1.50")),
        (logical("bytes", "decimal", precision=70, scale=0), Decimal(10) ** 60, "text", f"1{'0' * 60}"),
        (logical("bytes", "decimal", precision=90, scale=1), Decimal(1), "numeric(9,2)", Decimal("1.00")),
        (logical("bytes", "decimal"), b"5", "text", "5"),
        (logical("int", "date"), date(2024, 2, 29), "date", date(2024, 2, 29)),
        (logical("int", "time-millis"), 36_672_013, "time", time(10, 11, 12, 13_000)),
        (logical("long", "time-micros"), 36_672_000_013, "time", time(10, 11, 12, 13)),
        (logical("long", "timestamp-millis"), -1, "timestamptz", datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC)),
        (logical("long", "timestamp-micros"), 1, "timestamptz", datetime(1970, 1, 1, 0, 0, 0, 1, UTC)),
        (logical("long", "timestamp-nanos"), 1500, "timestamptz", datetime(1970, 1, 1, 0, 0, 0, 2, UTC)),
        (logical("long", "timestamp-nanos"), 500, "timestamptz", datetime(1970, 1, 1, tzinfo=UTC)),
        (logical("long", "local-timestamp-millis"), 1, "timestamp", naive(1000)),
        (logical("long", "local-timestamp-micros"), 1, "timestamp", naive(1)),
        (logical("long", "local-timestamp-nanos"), 2500, "timestamp", naive(2)),
        (logical("int", "timestamp-micros"), 5, "integer", 5),
        (logical("string", "unheard-of"), "x", "text", "x"),
        (
            logical("string", "uuid"),
            "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11",
            "uuid",
            bytes.fromhex("a0eebc999c0b4ef8bb6d6bb9bd380a11"),
        ),
        (
            {"type": "fixed", "name": "u", "size": 16, "logicalType": "uuid"},
            bytes(range(16)),
            "uuid",
            bytes(range(16)),
        ),
        ({"type": "array", "items": ["null", "int"]}, [1, None], "bigint[]", [1, None]),
        ({"type": "array", "items": ["null", "int"]}, [1, None], "jsonb", "[1,null]"),
        ({"type": "map", "values": CENTS}, {"k": Decimal("1.10")}, "jsonb", '[["k",1.10]]'),
        (["null", record(("x", "int"))], {"x": 1}, "jsonb", '{"x":1}'),
        (["null", record(("x", "int"))], None, "jsonb", None),
        (record(("at", NANOSECONDS)), {"at": 1500}, "jsonb", '{"at":"1970-01-01T00:00:00.000002+00:00"}'),
        (record(), {}, "jsonb", "{}"),
    ],
)  # fmt: skip
def test_a_value_of_each_type_is_read_as_it_is(tmp_path, of_type, stored, declared, expected):
    assert read(tmp_path, of_type, stored, stored, declared=declared) == [expected] * 2


def test_each_value_of_a_union_is_read_as_what_it_is(tmp_path):
    union = ["null", "int", "double", "string", CENTS, {"type": "array", "items": ["int", "string"]}]
    values = [5, 1.5, "x", None, [1, "y"], Decimal("1.10")]

    path = file_of(tmp_path, union, *values)
    (records,) = read_groups(path, Format.AVRO, a="text")

    assert records.rows.column("a").to_pylist() == ["5", "1.5", "x", None, "1.10"]
    assert [(bad.sequence_id, json.loads(bad.raw)) for bad in records.bad] == [(4, {"a": [1, "y"]})]


def test_a_value_of_a_union_that_does_not_fit_quarantines_only_its_own_record(tmp_path):
    path = file_of(tmp_path, ["null", "long", "string", "float"], 1, "2", "x", None, 0.10000000149011612)

    (records,) = read_groups(path, Format.AVRO, a="numeric(5,2)")

    assert records.rows.column("a").to_pylist() == [Decimal("1.00"), Decimal("2.00"), None, Decimal("0.10")]
    assert [(bad.sequence_id, json.loads(bad.raw)) for bad in records.bad] == [(2, {"a": "x"})]


def test_unions_in_many_rows_are_added_as_jsonb_and_taken_apart(tmp_path):
    """More rows than are cast together."""
    values = [each for number in range(20_000) for each in (number, f'"{number}"')]
    path = file_of(tmp_path, ["int", "string"], *values)

    (records,) = read_groups(path, Format.AVRO, b="text", unknown_fields=UnknownFields.ADD)

    assert [(each.name, str(each.type)) for each in records.unknown] == [("a", "jsonb")]
    assert values_of(path, Format.AVRO, "jsonb") == [str(value) for value in values]


def test_types_are_found_by_their_names_in_their_namespaces(tmp_path):
    inner = {"type": "record", "name": "inner", "fields": [{"name": "n", "type": "int"}]}
    schema = {
        "type": "record",
        "name": "row",
        "namespace": "of.rows",
        "fields": [
            {"name": "a", "type": inner},
            {"name": "b", "type": "inner"},
            {"name": "c", "type": ["null", "of.rows.inner"]},
        ],
    }
    path = tmp_path / "a.avro"
    path.write_bytes(avro_of(schema, [{"a": {"n": 1}, "b": {"n": 2}, "c": {"n": 3}}]))

    (records,) = read_groups(path, Format.AVRO, a="jsonb", b="jsonb", c="jsonb")

    assert records.rows.select(["a", "b", "c"]).to_pylist() == [{"a": '{"n":1}', "b": '{"n":2}', "c": '{"n":3}'}]


def test_a_logical_type_that_is_not_valid_is_ignored(tmp_path):
    path = file_of(tmp_path, CENTS, Decimal("0.65"))
    content = path.read_bytes()
    assert content.count(b'"precision": 9') == 1
    path.write_bytes(content.replace(b'"precision": 9', b'"precision": 0'))

    assert values_of(path, Format.AVRO, "text") == ["A"]


def test_a_decimal_of_more_digits_than_its_schema_says_is_loaded_if_it_fits_into_its_column(tmp_path):
    """Some writers do not check it."""
    path = file_of(tmp_path, CENTS, Decimal("0.65"), Decimal("1234567.89"), Decimal("-1.00"))
    path.write_bytes(path.read_bytes().replace(b'"precision": 9', b'"precision": 3'))

    (records,) = read_groups(path, Format.AVRO, a="numeric(5,2)")

    assert records.rows.column("a").to_pylist() == [Decimal("0.65"), Decimal("-1.00")]
    assert [bad.sequence_id for bad in records.bad] == [1]
    assert values_of(path, Format.AVRO, "jsonb") == ["0.65", "1234567.89", "-1.00"]


@pytest.mark.parametrize(
    ("count", "why"), [(0, "a block without rows has"), (2**62, "more than there can be"), (-1, "is negative")]
)
def test_a_block_whose_count_cannot_be_is_refused_before_any_row_has_a_number(tmp_path, count, why):
    path = file_of(tmp_path, "string", "x" * 100)
    content = path.read_bytes()
    head = content.rindex(b"x" * 100) - 5
    zigzag, varint = (count << 1) ^ (count >> 63), b""
    while zigzag > 127:
        varint, zigzag = varint + bytes([zigzag & 127 | 128]), zigzag >> 7
    path.write_bytes(content[:head] + varint + bytes([zigzag]) + content[head + 1 :])

    with pytest.raises(FileRefused, match=why):
        read_whole_file(Format.AVRO, str(path), size=path.stat().st_size)


def test_a_day_beyond_all_calendars_quarantines_only_its_own_record(tmp_path):
    path = file_of(tmp_path, logical("int", "date"), 0, 2**31 - 1)

    (records,) = read_groups(path, Format.AVRO, a="date")

    assert records.rows.column("a").to_pylist() == [date(1970, 1, 1)]
    assert [bad.sequence_id for bad in records.bad] == [1]


@pytest.mark.parametrize("codec", ["null", "deflate", "zstandard", "bzip2", "xz", "snappy"])
def test_each_codec_is_unpacked(tmp_path, codec):
    path = file_of(tmp_path, "string", *["x" * 50] * 100)
    if codec == "snappy":
        path.write_bytes(as_snappy(path.read_bytes()))
    elif codec != "null":
        path.write_bytes(with_codec(path.read_bytes(), codec))

    assert values_of(path, Format.AVRO, "text") == ["x" * 50] * 100
    assert codec == "null" or len(path.read_bytes()) < 2000


def blocks_apart(content: bytes) -> tuple[bytes, int, bytes]:
    """The header, the rows and the data of a file of one block."""
    mark = content[-16:]
    header, data, _ = content.split(mark)
    (count, at), (size, start) = varint(data, 0), varint(data, varint(data, 0)[1])
    assert at < start
    assert len(data) - start == size
    return header + mark, count, data[start:]


def varint(octets: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (octets[at] & 127) << shift
        at, shift = at + 1, shift + 7
        if octets[at - 1] < 128:
            return (value >> 1) ^ -(value & 1), at


def zigzag(number: int) -> bytes:
    number, octets = (number << 1) ^ (number >> 63), bytearray()
    while number > 127:
        octets.append(number & 127 | 128)
        number >>= 7
    return bytes([*octets, number])


def joined(header: bytes, count: int, data: bytes, size: int | None = None) -> bytes:
    return header + zigzag(count) + zigzag(len(data) if size is None else size) + data + header[-16:]


def with_codec(content: bytes, codec: str, data: bytes | None = None) -> bytes:
    header, count, raw = blocks_apart(content)
    data = PACKS.get(codec, bytes)(raw) if data is None else data
    assert header.count(b"\x08null") == 1
    return joined(header.replace(b"\x08null", zigzag(len(codec)) + codec.encode()), count, data)


def deflated(raw: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(raw) + packer.flush()


PACKS: dict[str, Callable[[bytes], bytes]] = {
    "deflate": deflated,
    "zstandard": zstandard.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}


def as_snappy(content: bytes, *, checksum: int = 0) -> bytes:
    _, _, raw = blocks_apart(content)
    packed = pa.compress(raw, codec="snappy", asbytes=True) + struct.pack(">I", zlib.crc32(raw) ^ checksum)
    return with_codec(content, "snappy", packed)


def test_a_codec_that_is_not_supported_is_named(tmp_path):
    path = file_of(tmp_path, "string", "x")
    path.write_bytes(with_codec(path.read_bytes(), "lzo9"))

    with pytest.raises(FileRefused, match="it uses the codec 'lzo9', which is not supported"):
        read_groups(path, Format.AVRO, a="text")


def test_a_block_with_a_wrong_snappy_checksum_is_refused(tmp_path):
    path = file_of(tmp_path, "string", "x")
    path.write_bytes(as_snappy(path.read_bytes(), checksum=1))

    with pytest.raises(FileRefused, match="the checksum of a block is wrong"):
        read_groups(path, Format.AVRO, a="text")


def with_other_end(content):
    """The marker is random, so a fixed byte would sometimes change nothing."""
    return content[:-1] + bytes([content[-1] ^ 1])


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda header, count, data: joined(header, count + 1, data), "damaged or truncated"),
        (lambda header, count, data: joined(header, count - 1, data), "damaged or truncated"),
        (lambda header, count, data: joined(header, count, data + b"\0"), "a block holds more than its records"),
        (lambda header, count, data: joined(header, -1, data), "is negative"),
        (lambda header, count, data: joined(header, count, data, size=-1), "is negative"),
        (lambda header, count, data: joined(header, count, data, size=2**40), "in the middle of a block"),
        (lambda header, count, data: with_other_end(joined(header, count, data)), "not followed by the sync marker"),
        (lambda header, count, data: joined(header, count, data)[:-1], "in the middle of a block"),
        (lambda header, count, data: joined(header, count, data) + b"\x02", "in the middle of a block"),
        (lambda header, _count, _data: header[:-20], "in the middle of a block"),
        (lambda header, count, data: b"obj\x01" + joined(header, count, data)[4:], "does not begin like an Avro file"),
        (lambda header, count, data: joined(header.replace(b"avro.schema", b"avro.scheme"), count, data), "no schema"),
        (lambda header, count, data: joined(header.replace(b'"record"', b'"racord"'), count, data), "not a record"),
        (lambda header, count, data: joined(header.replace(b'"string"', b'"strong"'), count, data), "cannot be read"),
        (lambda header, count, data: joined(header.replace(b'"string"', b'"string,'), count, data), "cannot be read"),
    ],
)
def test_a_file_that_is_damaged_is_refused_in_words(tmp_path, damage, why):
    path = file_of(tmp_path, "string", "x", "y")
    path.write_bytes(damage(*blocks_apart(path.read_bytes())))

    with pytest.raises(FileRefused, match=why):
        read_groups(path, Format.AVRO, a="text")


@pytest.mark.parametrize("lacks", ["mark", "block"])
def test_blocks_of_another_file_are_not_taken(tmp_path, lacks):
    """The bytes of a group are checked again, because another file may have taken its place since it was planned."""
    path = tmp_path / "a.avro"
    path.write_bytes(avro_of(record(("a", "string")), [{"a": "x"}, {"a": "y"}], rows=1, codec="null"))
    (part,) = parts_of(path, Format.AVRO)

    # The marker is random, so its last byte is changed, whatever it is.
    raw = part.raw[:-1] + bytes([part.raw[-1] ^ 1]) if lacks == "mark" else part.raw[: len(part.raw) // 2]
    with pytest.raises(FileRefused, match="sync marker of the file" if lacks == "mark" else "is 1 instead of 2"):
        read_avro(replace(part, raw=raw), url=str(path), columns=TEXT, unknown_fields=UnknownFields.IGNORE)


@pytest.mark.parametrize("codec", ["deflate", "zstandard", "bzip2", "xz", "snappy"])
def test_a_few_bytes_cannot_unfold_to_fill_the_memory(tmp_path, codec):
    path = file_of(tmp_path, "string", "x" * 10**6)
    content = path.read_bytes()
    path.write_bytes(as_snappy(content) if codec == "snappy" else with_codec(content, codec))

    with patch.object(plain_values, "UNFOLDED_BYTES_MAX", 10**6), pytest.raises(FileRefused, match="fit into memory"):
        read_groups(path, Format.AVRO, a="text")
    assert values_of(path, Format.AVRO, "text") == ["x" * 10**6]


def test_rows_that_take_no_bytes_cannot_fill_the_memory(tmp_path):
    path = file_of(tmp_path, "null", *[None] * 1000)
    header, _, data = blocks_apart(path.read_bytes())
    path.write_bytes(joined(header, 2**40, data))

    with pytest.raises(FileRefused, match="fit into memory"):
        read_groups(path, Format.AVRO, a="text")


ALMOST_EMPTY: dict[str, tuple[object, Callable[[int], object]]] = {
    "records": ({"type": "array", "items": record(("x", "int"))}, lambda count: [{"x": 1}] * count),
    "wide": (
        {"type": "array", "items": record(*((f"x{at}", ["null", "string"]) for at in range(23)))},
        lambda count: [{}] * (count // 23),
    ),
    "integers": ({"type": "array", "items": "long"}, lambda count: [1000] * count),
    "doubles": ({"type": "array", "items": "double"}, lambda count: [0.5] * count),
    "texts": ({"type": "array", "items": "string"}, lambda count: ["ab"] * count),
    "unions": ({"type": "array", "items": ["null", "int", "string"]}, lambda count: [1] * count),
    "lists": ({"type": "array", "items": {"type": "array", "items": "int"}}, lambda count: [[]] * count),
    "map": ({"type": "map", "values": "int"}, lambda count: {f"k{at}": 1 for at in range(count)}),
    "decimals": ({"type": "array", "items": CENTS}, lambda count: [Decimal("0.05")] * count),
}


@pytest.mark.parametrize("case", ALMOST_EMPTY)
def test_values_take_no_more_memory_than_is_planned_for(tmp_path, case):
    of_type, values = ALMOST_EMPTY[case]
    path = file_of(tmp_path, of_type, values(50_000))
    (part,) = parts_of(path, Format.AVRO)
    assert part.row_group is not None
    schema = schema_of(header_of(part.row_group.footer).schema, url=str(path))
    planned = schema.held.bytes_of(1, len(part.raw))

    def read():
        return read_group(part, url=str(path), names=["a"], unknown_fields=UnknownFields.IGNORE)

    read()
    tracemalloc.start()
    read()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert planned / 10 < most < planned
    with patch.object(plain_values, "UNFOLDED_BYTES_MAX", 0.9 * planned), pytest.raises(FileRefused, match="memory"):
        read()


def test_blocks_are_converted_together_as_far_as_they_fit_into_memory(tmp_path):
    path = tmp_path / "a.avro"
    values = [Decimal(number) for number in range(20)]
    schema = record(("a", CENTS | {"precision": 20}))
    content = avro_of(schema, [{"a": each} for each in values], rows=3)
    # From the fourth block on, values have more digits than the schema allows.
    path.write_bytes(content.replace(b'"precision": 20', b'"precision":  3'))
    (part,) = parts_of(path, Format.AVRO)
    assert part.row_group is not None
    read_as = schema_of(header_of(part.row_group.footer).schema, url="")

    with patch.object(rows, "_HELD_BYTES", 4_000):
        assert [len(each) for each in rows._records(part.raw, part.row_group, read_as, url="")] == [6, 6, 6, 2]
        assert values_of(path, Format.AVRO, "numeric(9,2)") == values


def test_a_schema_that_contains_itself_is_refused(tmp_path):
    path = file_of(tmp_path, ["null", "row"], None)

    with pytest.raises(FileRefused, match="the recursive type 'row', which is not supported"):
        read_groups(path, Format.AVRO, a="text")


def test_a_schema_that_unfolds_without_end_is_refused(tmp_path):
    fields: list[tuple[str, object]] = [("a", "int")]
    of_type: object = record(("x", "int")) | {"name": "t0"}
    for number in range(1, 30):
        doubled = [{"name": "x", "type": of_type}, {"name": "y", "type": f"t{number - 1}"}]
        of_type = {"type": "record", "name": f"t{number}", "fields": doubled}
    path = tmp_path / "a.avro"
    content = avro_of(record(*fields, ("b", ["null", of_type])), [{"a": 1, "b": None}])
    path.write_bytes(content)

    with pytest.raises(FileRefused, match="a schema of more than 20,000 types"):
        read_groups(path, Format.AVRO, a="int")


def test_an_error_names_the_extra_of_a_missing_library(tmp_path):
    path = file_of(tmp_path, "string", "x")
    gone = {name: None for name in sys.modules if name.split(".")[0] == "fastavro"}
    avro = [name for name in sys.modules if name.startswith("onceload_jobs.formats.avro.")]
    with patch.dict(sys.modules, gone):
        for name in avro:
            del sys.modules[name]
        with pytest.raises(ImportError) as caught, patch("onceload.extras.find_spec", return_value=None):
            parts_of(path, Format.AVRO)
    with patch("onceload.extras.find_spec", return_value=None):
        assert advice_for(caught.value) == "fastavro is not installed. Install it: pip install 'onceload[avro]'"


def test_a_written_table_reads_back_unchanged(tmp_path):
    table = pa.table({"a": ["x", None]})
    path = tmp_path / "a.avro"
    path.write_bytes(content_of(table, Format.AVRO))

    assert values_of(path, Format.AVRO, "text") == ["x", None]


def test_records_without_a_field_lack_the_declared_columns(tmp_path):
    path = tmp_path / "a.avro"
    path.write_bytes(avro_of(record(named="row"), [{}, {}]))

    with pytest.raises(FileRefused, match="the declared columns in its schema, among them a"):
        read_whole_file(Format.AVRO, str(path), size=path.stat().st_size, columns=TEXT)


@pytest.mark.parametrize("items", ["null", record(named="nothing"), {"type": "fixed", "name": "none", "size": 0}])
def test_an_array_of_values_that_take_no_byte_is_refused(tmp_path, items):
    with pytest.raises(FileRefused, match="an array of values without a byte"):
        read_groups(file_of(tmp_path, {"type": "array", "items": items}, []), Format.AVRO, a="jsonb")


def test_a_decimal_of_too_many_digits_is_refused(tmp_path):
    digits = logical("bytes", "decimal", precision=1001, scale=1001)

    with pytest.raises(FileRefused, match="a decimal of more than 1,000 digits"):
        read_groups(file_of(tmp_path, digits, Decimal(0)), Format.AVRO, a="text")


@pytest.mark.parametrize("milliseconds", [-1, 86_400_000, 90_000_000])
def test_a_time_outside_of_the_day_is_not_another_time(tmp_path, milliseconds):
    (records,) = read_groups(file_of(tmp_path, logical("int", "time-millis"), milliseconds), Format.AVRO, a="text")

    (bad,) = records.bad
    assert f"{milliseconds} milliseconds after midnight cannot be read as a value" in bad.reason
