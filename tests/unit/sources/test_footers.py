"""Footers of Parquet files: what contradicts itself, or is encrypted, is refused before Arrow sees it."""

import io
from itertools import product

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.formats.parquet.footers import read_names, read_row_groups
from onceload_jobs.formats.parquet.row_groups import read_row_group
from onceload_jobs.formats.typed_files import check_columns
from onceload_jobs.pipeline.columns import Column, parse_column
from onceload_jobs.pipeline.declared import UnknownFields
from tests.unit.sources.row_groups import URL, row_groups_of

TABLE = pa.table(
    {
        "a": range(1000),
        "lists": [[1, 2], []] * 500,
        "structs": [{"x": 1, "y": [{"z": "text"}]}, None] * 500,
        "maps": pa.array([[("k", 1)]] * 1000, pa.map_(pa.string(), pa.int64())),
    }
)


def written(table: pa.Table = TABLE, **options) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def with_footer(content: bytes, changed: bytes) -> bytes:
    length = int.from_bytes(content[-8:-4], "little")
    return content[: -8 - length] + changed + len(changed).to_bytes(4, "little") + content[-4:]


def footer_of(content: bytes) -> bytes:
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


def zigzag(number: int) -> bytes:
    number, written = (number << 1) ^ (number >> 63), bytearray()
    while number > 127:
        written.append(number & 127 | 128)
        number >>= 7
    return bytes([*written, number])


def test_only_columns_of_the_file_itself_count_as_there():
    names = read_names(written(), url=URL)
    check_columns(URL, columns_of("a", "maps", "lists", "structs"), names=names, has_rows=True)

    for inner in ("x", "y", "z", "key", "element", "schema"):
        with pytest.raises(FileRefused, match=f"among them {inner}\\."):
            check_columns(URL, columns_of("a", inner), names=names, has_rows=True)


def columns_of(*names: str) -> tuple[Column, ...]:
    return tuple(parse_column(name, "text") for name in names)


@pytest.mark.parametrize("options", [{}, {"row_group_size": 7}, {"use_dictionary": False, "write_statistics": False}])
def test_row_groups_are_where_arrow_says(options):
    content = written(**options)

    metadata = pq.read_metadata(io.BytesIO(content))
    groups = read_row_groups(content, url=URL, size=len(content))
    for number, found in enumerate(groups):
        group = metadata.row_group(number)
        columns = [group.column(at) for at in range(group.num_columns)]
        starts = [min(filter(None, (each.dictionary_page_offset, each.data_page_offset))) for each in columns]
        ends = [start + each.total_compressed_size for start, each in zip(starts, columns, strict=True)]
        assert (found.number, found.end - found.first) == (number, group.num_rows)
        assert (found.first_byte, found.end_byte) == (min(starts), max(ends))
    assert groups[-1].end == metadata.num_rows == 1000


@pytest.mark.parametrize(
    ("writer", "omitted"),
    [("parquet-mr", 100), ("parquet-mr version 1.2.8", 100), ("parquet-mr version 1.2.9", 0), ("parquet-cpp", 0)],
)
def test_writers_that_leave_bytes_out_of_their_sizes_have_row_groups_that_reach_further(writer, omitted):
    """Arrow reads them so, and what it reads must be held and digested."""
    content = written(pa.table({"a": range(1000)}), row_group_size=500)
    created = pq.read_metadata(io.BytesIO(content)).created_by.encode()
    footer = footer_of(content).replace(
        len(created).to_bytes(1, "little") + created, len(writer).to_bytes(1, "little") + writer.encode()
    )
    old = with_footer(content, footer)

    held, plain = (read_row_groups(each, url=URL, size=len(each)) for each in (old, content))

    assert [each.end_byte for each in held] == [min(len(old), each.end_byte + omitted) for each in plain]
    assert [
        read_row_group(part, url=URL, names=["a"], unknown_fields=UnknownFields.IGNORE)[0].num_rows
        for part in row_groups_of(old)
    ] == [500, 500]


ONE_GROUP = written(pa.table({"a": range(1000)}), store_schema=False)


def with_counts(*, file: int = 1000, group: int = 1000, column: int = 1000) -> bytes:
    """The counts of rows and values are in the footer in this order."""
    before, *between, behind = footer_of(ONE_GROUP).split(b"\x16" + zigzag(1000))
    assert len(between) == 2
    counts = [b"\x16" + zigzag(count) for count in (file, column, group)]
    parts = [before, *(part for pair in zip(counts, [*between, behind], strict=True) for part in pair)]
    return with_footer(ONE_GROUP, b"".join(parts))


def test_counts_that_agree_are_believed():
    (part,) = row_groups_of(with_counts())

    assert (part.first, part.end) == (0, 1000)


@pytest.mark.parametrize(
    "counts",
    [
        {"group": 500},
        {"group": 0},
        {"group": 2000},
        {"group": -1},
        {"file": -1, "group": -1, "column": -1},
        {"file": 500, "group": 500},
        {"column": 0},
        {"column": 999},
        {"column": 1001},
        {"file": 2000, "group": 2000},
    ],
)
def test_counts_that_contradict_each_other_are_refused(counts):
    with pytest.raises(FileRefused, match="damaged or truncated: its footer contradicts itself"):
        row_groups_of(with_counts(**counts))


def test_a_row_group_without_columns_is_refused():
    empty = written(pa.table({"a": pa.array([], pa.int64())}), store_schema=False)
    # Rows of the file and, behind its row groups, one of no columns, no bytes and 1000 rows.
    group = b"\x19\x0c\x16\x00\x16" + zigzag(1000) + b"\x00"
    footer = footer_of(empty)
    at = footer.index(b"\x16\x00\x19")
    changed = footer[:at] + b"\x16" + zigzag(1000) + b"\x19\x1c" + group + b"\x00"

    with pytest.raises(FileRefused, match="damaged or truncated"):
        row_groups_of(with_footer(empty, changed))


@pytest.mark.parametrize("offset", [0, 3, -4, 2**40])
def test_pages_outside_of_the_file_are_refused(offset):
    content = written(pa.table({"a": range(1000)}), store_schema=False, use_dictionary=False, write_statistics=False)
    footer = footer_of(content)
    # Field 9 of the column; its pages start behind the magic bytes. The row group repeats it as a hint.
    assert footer.count(b"\x26" + zigzag(4)) == 2

    with pytest.raises(FileRefused, match="damaged or truncated"):
        row_groups_of(with_footer(content, footer.replace(b"\x26" + zigzag(4), b"\x26" + zigzag(offset), 1)))


def nested(structs: int) -> bytes:
    values = pa.array([1])
    for _ in range(structs):
        values = pa.StructArray.from_arrays([values], ["x"])
    return written(pa.table({"a": values}))


def test_a_schema_of_more_levels_than_arrow_reads_is_not_called_damaged():
    assert row_groups_of(nested(98))
    assert pq.read_table(io.BytesIO(nested(98))).num_rows == 1
    for structs in (99, 300):
        with pytest.raises(FileRefused, match="nested too deeply, in more than 100 levels, which is not supported"):
            row_groups_of(nested(structs))


def test_an_encrypted_footer_is_not_called_damaged():
    with pytest.raises(FileRefused, match="uses encryption, which is not supported"):
        row_groups_of(ONE_GROUP[:-4] + b"PARE")


@pytest.mark.parametrize("column", [b"\x5c\x00", b"\x68\x01x"])
def test_a_column_that_is_encrypted_is_reported_as_such(column):
    """Arrow ends the process when it is asked for one."""
    # Behind the facts of the column (a struct, field 3), which end with two stops, comes what says how it is encrypted.
    footer = footer_of(ONE_GROUP)
    at = footer.index(b"\x16" + zigzag(1000), footer.index(b"\x1c\x15"))
    end_of_facts = footer.index(b"\x00\x00\x16", at) + 1

    changed = footer[:end_of_facts] + column + footer[end_of_facts:]

    with pytest.raises(FileRefused, match="uses encryption, which is not supported"):
        row_groups_of(with_footer(ONE_GROUP, changed))


def test_any_bit_of_a_footer_may_be_wrong():
    """It is refused with a message or read correctly, never anything else."""
    footer = footer_of(ONE_GROUP)

    for at, bit in product(range(len(footer)), range(8)):
        changed = footer[:at] + bytes([footer[at] ^ (1 << bit)]) + footer[at + 1 :]
        try:
            parts = row_groups_of(with_footer(ONE_GROUP, changed))
        except FileRefused:
            continue
        assert sum(part.end - part.first for part in parts) == 1000


@pytest.mark.parametrize("footer", [b"\x19" * 5000, b"\x1c" * 5000, b"\x19\xfc" + b"\xff" * 20, b"\x0f", b""])
def test_a_footer_that_is_none_is_damaged(footer):
    with pytest.raises(FileRefused, match="damaged or truncated: its footer cannot be read"):
        row_groups_of(with_footer(ONE_GROUP, footer))
