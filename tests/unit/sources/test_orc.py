"""ORC: times of any day, and footers that contradict themselves."""

import json
import shutil
import signal
import sys
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from pyarrow import orc

from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.footers import ORC, fields_of, footer_bytes, orc_postscript, written
from onceload_jobs.formats import plain_values
from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.orc import arrow, stripes
from onceload_jobs.formats.orc.footers import (
    file_of_stripe,
    has_julian_days,
    not_packed,
    number_of,
    read_row_groups,
    stripe_of,
)
from onceload_jobs.formats.orc.rows import read_orc
from onceload_jobs.formats.orc.stripes import footer_of_stripe
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, UnknownFields
from tests.typed_files import content_of, parts_of
from tests.unit.sources.typed import read_groups, values_of

URL = "landing/a.orc"
PLAIN = {"compression": "UNCOMPRESSED"}


def wall_clock(year: int, month: int, day: int, *of_day: int) -> datetime:
    return datetime(year, month, day, tzinfo=UTC).replace(tzinfo=None) + timedelta(
        **dict(zip(("hours", "minutes", "seconds", "microseconds"), of_day, strict=False))
    )


def file_of(tmp_path, table, **options):
    path = tmp_path / "a.orc"
    path.write_bytes(content_of(table, Format.ORC, **options))
    return path


DAYS = [
    wall_clock(1, 1, 1),
    wall_clock(1677, 9, 21, 0, 12, 43, 145224),
    wall_clock(1969, 12, 31, 23, 59, 59, 999999),
    wall_clock(1970, 1, 1),
    None,
    wall_clock(2014, 12, 31, 23, 59, 59, 1),
    wall_clock(2262, 4, 11, 23, 47, 16, 854776),
    wall_clock(9999, 12, 31, 23, 59, 59, 999999),
]


@pytest.mark.parametrize("compression", ["UNCOMPRESSED", "ZLIB", "SNAPPY", "ZSTD", "LZ4"])
def test_times_that_nanoseconds_do_not_reach_are_exact(tmp_path, compression):
    """Arrow reads them as nanoseconds, which overflow without a word."""
    path = file_of(tmp_path, pa.table({"a": pa.array(DAYS, pa.timestamp("us"))}), rows=3, compression=compression)

    assert values_of(path, Format.ORC, "timestamp") == DAYS


def in_zone(tmp_path, table, zone, **options):
    """A file of a writer in this time zone."""
    path = file_of(tmp_path, table, **options)
    (part,) = parts_of(path, Format.ORC)
    assert part.row_group is not None
    packed = number_of(fields_of(stripe_of(part.row_group)), 4)
    fields = footer_of_stripe(part.row_group, part.raw, url=URL).message
    kept = b"".join(written(field, value) for field, values in fields.items() for value in values if field != 3)
    footer = not_packed(part.row_group.footer, kept + (written(3, zone.encode()) if zone else b""))
    stripe = stripe_of(part.row_group) + written(4, len(footer))
    path.write_bytes(file_of_stripe(part.row_group, part.raw[: len(part.raw) - packed] + footer, stripe))
    return path


def test_a_block_that_unpacks_to_more_than_a_footer_may_have_is_refused_early():
    """Each byte of it stands for 255 more."""
    with pytest.raises(ValueError, match="a block has more than"):
        stripes._lz4(b"\x1fa\x01\x00" + b"\xff" * 2**23)


def test_a_block_that_says_it_is_larger_than_a_footer_may_be_takes_no_memory():
    with pytest.raises(ValueError, match="a block has more than"):
        stripes._unpacked(b"\x0c\0\0" + b"\xff\xff\xff\xff\x0fa", stripes._Codec.SNAPPY)


@pytest.mark.parametrize(
    ("zone", "compression"),
    [
        ("Asia/Kolkata", "UNCOMPRESSED"),
        ("America/Los_Angeles", "ZLIB"),
        ("Europe/Berlin", "SNAPPY"),
        ("GMT", "ZSTD"),
        ("Europe/Berlin", "LZ4"),
    ],
)
def test_the_clock_of_a_writer_in_another_zone_is_read_as_arrow_reads_it(tmp_path, zone, compression):
    """As far as Arrow reads it."""
    stored = pa.array(range(-50 * 365 * 86_400, 90 * 365 * 86_400, 7_654_321)).cast(pa.timestamp("s"))
    table = pa.table({"a": stored, "b": stored.cast(pa.timestamp("s", "UTC"))})
    path = in_zone(tmp_path, table, zone, compression=compression)
    expected = orc.ORCFile(path).read().cast(pa.schema([("a", pa.timestamp("us")), ("b", pa.timestamp("us", "UTC"))]))

    (records,) = read_groups(path, Format.ORC, a="timestamp", b="timestamptz")

    assert records.rows.select(["a", "b"]).equals(expected)
    assert zone == "GMT" or expected.column("a") != table.column("a").cast(pa.timestamp("us"))


def test_times_before_a_zone_had_an_official_time_are_not_called_damaged(tmp_path):
    day = [wall_clock(1, 1, 1)]
    table = pa.table({"a": pa.array(day, pa.timestamp("us"))})

    assert values_of(in_zone(tmp_path, table, "GMT"), Format.ORC, "timestamp") == day
    path = in_zone(tmp_path, table, "Europe/Berlin")
    with pytest.raises(FileRefused, match=r"times before the time zone 'Europe/Berlin' was defined.*not supported"):
        read_groups(path, Format.ORC, a="timestamp")


def test_times_without_the_time_zone_of_their_writer_are_refused_but_moments_are_read(tmp_path):
    stored = pa.array([1_000_000], pa.timestamp("us"))
    path = in_zone(tmp_path, pa.table({"a": stored, "b": stored.cast(pa.timestamp("us", "UTC"))}), "")

    assert read_groups(path, Format.ORC, b="timestamptz")[0].rows["b"].cast(pa.int64()).to_pylist() == [1_000_000]
    with pytest.raises(FileRefused, match=r"did not store its time zone.*not supported"):
        read_groups(path, Format.ORC, a="timestamp")


def test_a_time_zone_that_is_unknown_is_not_called_damaged(tmp_path):
    path = file_of(tmp_path, pa.table({"a": pa.array([0], pa.timestamp("s"))}), compression="UNCOMPRESSED")
    path.write_bytes(path.read_bytes().replace(b"\x1a\x03GMT", b"\x1a\x03XYZ"))

    with pytest.raises(FileRefused, match=r"unknown time zone 'XYZ'.*not supported"):
        read_groups(path, Format.ORC, a="timestamp")


def test_a_time_zone_that_only_python_knows_is_not_called_damaged(tmp_path):
    path = in_zone(tmp_path, pa.table({"a": pa.array([10**9], pa.timestamp("s"))}), "Factory")

    with pytest.raises(FileRefused, match=r"'Factory'.*not supported"):
        read_groups(path, Format.ORC, a="timestamp")


def test_times_inside_other_values_are_exact(tmp_path):
    times = pa.array(DAYS, pa.timestamp("us", "UTC"))
    offsets = pa.array([0, 3, 8], pa.int32())
    structs = pa.StructArray.from_arrays([times, pa.array(range(8))], ["at", "n"])
    table = pa.table(
        {
            "list": pa.ListArray.from_arrays(offsets, times),
            "map": pa.MapArray.from_arrays(offsets, pa.array(list("abcdefgh")), structs),
        }
    )

    (records,) = read_groups(file_of(tmp_path, table), Format.ORC, list="timestamptz[]", map="jsonb")

    expected = [day and day.replace(tzinfo=UTC) for day in DAYS]
    assert records.rows.column("list").to_pylist() == [expected[:3], expected[3:]]
    texts = [[pair[1]["at"] for pair in json.loads(each)] for each in records.rows.column("map").to_pylist()]
    assert [each for some in texts for each in some] == [each and each.isoformat() for each in expected]


def test_nanoseconds_are_rounded_half_to_even(tmp_path):
    stored = pa.array([500, 1500, 1501, -500, -1500, 2**62 + 1, None]).cast(pa.timestamp("ns"))

    rounded = values_of(file_of(tmp_path, pa.table({"a": stored})), Format.ORC, "timestamp")

    assert pa.array(rounded, pa.timestamp("us")).cast(pa.int64()).to_pylist() == [
        0, 2, 2, 0, -2, (2**62 + 1 + 500) // 1000, None,
    ]  # fmt: skip


@pytest.mark.parametrize("order", [["a", "a.b", "a.c"], ["a.b", "a.c", "a"]])
def test_a_name_with_a_dot_is_not_a_name_inside_of_another_column(tmp_path, order):
    table = pa.table({"a": [{"b": 1, "c": 5}], "a.b": [2], "a.c": ["x"]}).select(order)
    path = file_of(tmp_path, table)

    (records,) = read_groups(path, Format.ORC, **dict[str, Any]({"a.b": "bigint"}))
    assert records.rows.column("a.b").to_pylist() == [2]
    (records,) = read_groups(path, Format.ORC, **dict[str, Any]({"a": "jsonb", "a.c": "text"}))
    assert records.rows.select(["a", "a.c"]).to_pylist() == [{"a": '{"b":1,"c":5}', "a.c": "x"}]


def test_two_columns_of_one_name_are_refused_where_they_are_asked_for(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    path = file_of(tmp_path, table)

    with pytest.raises(FileRefused, match="several columns called 'a'"):
        read_groups(path, Format.ORC, a="bigint")
    (records,) = read_groups(path, Format.ORC, b="bigint")
    assert records.rows.column("b").to_pylist() == [3]


def test_a_union_is_refused_where_it_is_asked_for(tmp_path):
    union = pa.UnionArray.from_sparse(pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["x", "y"])], ["n", "t"])
    path = file_of(tmp_path, pa.table({"a": union, "b": [1, 2]}))

    with pytest.raises(FileRefused, match="it uses a union in the column 'a', which is not supported"):
        read_groups(path, Format.ORC, a="text", b="bigint")
    assert read_groups(path, Format.ORC, b="bigint")[0].rows.num_rows == 2


def test_rows_that_take_few_bytes_cannot_fill_the_memory(tmp_path):
    path = file_of(tmp_path, pa.table({"a": pa.nulls(100_000, pa.int64()), "b": [1] * 100_000}))

    with patch.object(plain_values, "UNFOLDED_BYTES_MAX", 10**6), pytest.raises(FileRefused, match="fit into memory"):
        read_groups(path, Format.ORC, b="bigint")
    assert len(path.read_bytes()) < 100_000


THREE = content_of(pa.table({"a": range(30)}), Format.ORC, rows=10, **PLAIN)


def with_footer(change: Callable[[bytes], bytes]) -> bytes:
    """The file with another footer, and the lengths that fit it."""
    postscript = orc_postscript(THREE)
    facts = fields_of(postscript)
    length, rest = facts[1][-1], footer_bytes(THREE)
    assert isinstance(length, int)
    footer = change(THREE[len(THREE) - len(postscript) - 1 - length : len(THREE) - len(postscript) - 1])
    postscript += written(1, len(footer)) + written(5, 0) + written(8000, ORC)
    return THREE[: len(THREE) - rest] + footer + postscript + bytes([len(postscript)])


def changed_stripe(*more: tuple[int, int], number: int = 1) -> Callable[[bytes], bytes]:
    def change(footer: bytes) -> bytes:
        stripe = fields_of(footer)[3][number]
        assert isinstance(stripe, bytes)
        assert footer.count(written(3, stripe)) == 1
        return footer.replace(written(3, stripe), written(3, stripe + b"".join(written(*each) for each in more)))

    return change


def refused(content: bytes) -> str:
    with pytest.raises(FileRefused) as caught:
        read_row_groups(content, url=URL, size=len(content))
    return str(caught.value)


def test_an_unchanged_footer_is_accepted():
    content = with_footer(bytes)
    groups = read_row_groups(content, url=URL, size=len(content))

    assert [(group.first, group.end) for group in groups] == [(0, 10), (10, 20), (20, 30)]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ((5, 11), "its stripes have 31 rows, but its footer says 30"),
        ((5, 0), "its stripes have 20 rows"),
        ((1, 3), "overlaps another stripe"),
        ((1, 2**40), "outside the file"),
        ((3, 10**6), "outside the file"),
        ((5, 2**62), "more than there can be"),
    ],
)
def test_stripes_that_contradict_the_file_are_refused(more, why):
    assert f"contradicts itself: {why}" in refused(with_footer(changed_stripe(more))) or why in refused(
        with_footer(changed_stripe(more))
    )


def test_a_footer_that_would_take_long_to_read_is_refused():
    content = with_footer(lambda footer: footer + written(3, b"") * 2**18)

    assert "a footer with more than 262,144 entries, which is not supported" in refused(content)


def test_a_footer_that_would_fill_the_memory_is_refused():
    with patch.object(arrow, "_TAIL_BYTES_MAX", 100):
        kind, why = arrow._found(arrow._Ask.TAIL, [], with_footer(lambda footer: footer + written(999, b"x" * 100)))

    assert (kind, why[:9]) == ("unsupported", b"a footer ")


@pytest.mark.parametrize("field", [9, 11])
def test_a_footer_whose_facts_have_another_type_is_refused(field):
    content = with_footer(lambda footer: footer + written(field, b"abc"))

    assert "contradicts itself: a message in place of a number" in refused(content)


def test_an_encrypted_file_is_not_called_damaged():
    assert "it uses encryption, which is not supported" in refused(
        with_footer(lambda footer: footer + written(10, b""))
    )


def test_a_stripe_of_fewer_rows_than_the_footer_says_is_damaged(tmp_path):
    path = tmp_path / "a.orc"

    def change(footer: bytes) -> bytes:
        return changed_stripe((5, 13))(footer) + written(6, 33)

    path.write_bytes(with_footer(change))
    with pytest.raises(FileRefused, match="damaged or truncated"):
        read_groups(path, Format.ORC, a="bigint")


def test_any_bit_of_a_footer_may_be_wrong(tmp_path):
    """It is refused with a message or read correctly, never anything else."""
    path = tmp_path / "a.orc"
    length = footer_bytes(THREE)
    for at in range(len(THREE) - length, len(THREE)):
        path.write_bytes(THREE[:at] + bytes([THREE[at] ^ (1 << at % 8)]) + THREE[at + 1 :])
        try:
            groups = read_groups(path, Format.ORC, a="bigint")
        except FileRefused:
            continue
        assert sum(each.count for each in groups) == 30


@pytest.mark.parametrize("content", [b"", b"ORC", b"ORC" * 9, b"x" * 100, b"\x03ORC\x04", THREE[:-1], THREE + b"\n"])
def test_a_file_of_another_kind_is_refused(content):
    assert "damaged or truncated: it does not end with an ORC footer" in refused(content)


def test_a_stripe_without_its_file_is_a_fault_of_the_program(tmp_path):
    (part,) = parts_of(file_of(tmp_path, pa.table({"a": [1]})), Format.ORC)

    assert part.row_group is not None
    assert (part.first, part.end, part.row_group.first_byte) == (0, 1, 3)


#: Arrow 26 reads outside its memory when it reads this file.
DEADLY = bytes.fromhex(
    "4f52430a061204081450000a150a03000000120e081422080a0130120139183c500007010702303132333435363738393130"
    "3131313231333134313531363137313831390a060806100018080a060802100118170a060802100118040a0608011001181e"
    "1204080010001204080210001a03474d54080310751a0c0803101f1822203128140803220e080c1201011a01612000280030"
    "0022080807200028003000301440904e4801084e1000188080042202000c2818300682f403034f524308332800380082f403"
    "034f524324"
)


def test_a_file_that_ends_the_process_of_arrow_is_refused_and_the_next_is_read(tmp_path):
    path = tmp_path / "a.orc"
    path.write_bytes(DEADLY)

    with pytest.raises(FileRefused, match=r"damaged or truncated: Arrow crashed \(SIG\w+\) while it read"):
        read_groups(path, Format.ORC, a="jsonb")

    assert values_of(file_of(tmp_path, pa.table({"a": [5]})), Format.ORC, "bigint") == [5]


@pytest.mark.parametrize("signaled", [signal.SIGKILL, signal.SIGTERM])
def test_a_file_is_not_called_damaged_if_a_signal_ends_the_process_of_arrow(tmp_path, signaled):
    path = file_of(tmp_path, pa.table({"a": [5]}))
    assert values_of(path, Format.ORC, "bigint") == [5]
    process = arrow._reader._process
    assert process is not None
    process.send_signal(signaled)
    process.wait()

    with pytest.raises(Unreadable, match=rf"was killed \({signaled.name}\) while it read"):
        read_groups(path, Format.ORC, a="bigint")

    assert values_of(path, Format.ORC, "bigint") == [5]


def test_a_file_that_never_ends_in_arrow_is_refused_and_the_next_is_read(tmp_path):
    """As a damaged one may. The system ends a process at the next full second of its CPU time."""
    path = file_of(tmp_path, pa.table({"a": pa.repeat(pa.scalar([""] * 40), 2_000_000)}))
    with (
        patch.object(arrow, "_CPU_S_MAX", 0),
        patch.object(arrow._reader, "_process", None),
        pytest.raises(FileRefused, match=r"over 0 s of CPU time.*not supported"),
    ):
        read_groups(path, Format.ORC, a="text[]")

    assert values_of(file_of(tmp_path, pa.table({"a": [5]})), Format.ORC, "bigint") == [5]


def test_the_answer_to_an_interrupted_question_is_not_taken_for_a_later_one(tmp_path):
    path = file_of(tmp_path, pa.table({"a": [1, 2, 3]}))
    (part,) = parts_of(path, Format.ORC)
    columns = (parse_column("a", "bigint"),)
    with patch.object(arrow, "_read", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        read_orc(part, url=URL, columns=columns, unknown_fields=UnknownFields.IGNORE)

    assert values_of(file_of(tmp_path, pa.table({"a": [7, 8, 9]})), Format.ORC, "bigint") == [7, 8, 9]


def test_a_file_is_not_called_damaged_if_the_process_of_arrow_does_not_start(tmp_path):
    path = file_of(tmp_path, pa.table({"a": [5]}))
    with (
        patch.object(arrow._reader, "_process", None),
        patch.object(sys, "executable", shutil.which("false")),
        pytest.raises(Unreadable, match="did not start"),
    ):
        read_groups(path, Format.ORC, a="bigint")

    assert values_of(path, Format.ORC, "bigint") == [5]


@pytest.mark.parametrize(
    ("footer", "is_julian"),
    [(written(11, 1), True), (written(11, 2), False), (written(9, 1), False), (b"", True), (written(9, 4), True)],
)
def test_days_are_of_the_calendar_that_the_footer_names(footer, is_julian):
    assert has_julian_days(written(2, footer)) == is_julian


@pytest.mark.parametrize("of_type", [pa.date32(), pa.timestamp("us"), pa.list_(pa.date32())])
def test_a_file_with_days_of_the_julian_calendar_is_refused(tmp_path, of_type):
    def path(day):
        days = pa.array([day, day], pa.date32())
        values = pa.array([None, [day]], of_type) if pa.types.is_list(of_type) else days.cast(of_type)
        return file_of(tmp_path, pa.table({"a": values}))

    with patch("onceload_jobs.formats.orc.rows.has_julian_days", return_value=True):
        read_groups(path(date(1582, 10, 15)), Format.ORC, a="jsonb")
        with pytest.raises(FileRefused, match="days of the Julian calendar"):
            read_groups(path(date(1582, 10, 14)), Format.ORC, a="jsonb")


def test_a_stripe_that_has_rows_but_no_byte_is_damaged(tmp_path):
    path = file_of(tmp_path, pa.table({"a": [1, 2]}))
    with (
        patch("onceload_jobs.formats.orc.footers._range_of", return_value=(3, 3)),
        pytest.raises(FileRefused, match="a stripe of 2 rows has no bytes"),
    ):
        read_row_groups.__wrapped__(path.read_bytes(), url=URL, size=path.stat().st_size)
