"""CSV: one notion of where records end, and rows that depend on nothing but their record."""

import itertools
from contextlib import nullcontext
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from onceload_core.errors import ExitCode
from onceload_core.names import ProducerId
from onceload_jobs.formats.chunks import FileRefused, Part
from onceload_jobs.formats.csv import dialect
from onceload_jobs.formats.csv import rows as csv
from onceload_jobs.formats.csv.dialect import RecordEnds
from onceload_jobs.formats.csv.header import check_header, read_header, split_header
from onceload_jobs.formats.csv.rows import read_csv
from onceload_jobs.formats.records import Records
from onceload_jobs.pipeline.columns import SEQUENCE, parse_column
from onceload_jobs.pipeline.declared import CsvOptions, MissingColumns, UnknownFields
from tests.laws import examples

PLAIN = CsvOptions(header=False)
MULTILINE = CsvOptions(header=False, multiline=True)
ESCAPED = CsvOptions(header=False, multiline=True, escape="\\")
ESCAPED_LINES = CsvOptions(header=False, escape="\\")
UNQUOTED = CsvOptions(header=False, quote="", multiline=True, delimiter="\t")
ALL_OPTIONS = [PLAIN, MULTILINE, ESCAPED, ESCAPED_LINES, UNQUOTED]
HEADER = ("a", "b")
DECLARED = {"a": "text", "b": "text"}


def columns(**declared: str):
    return tuple(parse_column(name, type_) for name, type_ in declared.items())


def part(raw: bytes, *, first: int = 0) -> Part:
    return Part(producer_id=ProducerId(1), first=first, end=first + len(raw), raw=raw)


def read(
    *parts: Part,
    options=PLAIN,
    header=HEADER,
    unknown_fields: UnknownFields = UnknownFields.IGNORE,
    record_bytes_max: int = 2**20,
    **declared,
) -> Records:
    return read_csv(
        parts,
        columns(**(declared or DECLARED)),
        header=header,
        options=options,
        unknown_fields=unknown_fields,
        record_bytes_max=record_bytes_max,
    )


def by_sequence_id(records: Records) -> dict[int, object]:
    rows = {row[SEQUENCE]: repr(row) for row in records.rows.to_pylist()}
    return rows | {bad.sequence_id: bad for bad in records.bad}


def slowly(*parts: Part, **kwargs) -> Records:
    with patch.object(csv._Reader, "read_many", lambda self, group: None):
        return read(*parts, **kwargs)


def rows(raw: bytes, **kwargs) -> list[tuple[object, ...]]:
    records = read(part(raw), **kwargs)
    assert not records.bad, records.bad
    return [tuple(row.values())[:-2] for row in records.rows.to_pylist()]


SPECIAL = st.sampled_from(
    ["\ufeff", '"', '"', ",", ",", "\n", "\n", "\r", "\r\n", "\\", "a", "é", "\t", "\0", '""', '"a"', " "]
)
TEXTS = st.lists(SPECIAL, max_size=24).map("".join)
VALUES = st.lists(st.sampled_from(['"', ",", "\n", "\\", "a", "é", "\r\n", " "]), max_size=4).map("".join)
WELL_FORMED = st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=6)


def written(pairs, options: CsvOptions) -> bytes:
    """Every value in quotes, as any writer of the dialect would put it."""
    escape = options.escape or '"'

    def quoted(text: str) -> str:
        text = text.replace("\\", "\\\\") if options.escape else text
        return '"' + text.replace('"', escape + '"') + '"'

    return "".join(f"{quoted(a)},{quoted(b)}\n" for a, b in pairs).encode()


@pytest.mark.parametrize("options", ALL_OPTIONS)
@examples(60)
@given(text=TEXTS)
@example(text='"a\n"b",c\nd,e\n')
@example(text='a"b,c\n"x\ny",z\n')
@example(text="\ufeff\ufeff,\n\ufeffa,b")
def test_both_tiers_read_a_text_alike_and_count_every_record(options, text):
    raw = text.encode()

    records = read(part(raw), options=options)

    assert by_sequence_id(records) == by_sequence_id(slowly(part(raw), options=options))
    newlines = RecordEnds(options, starts_file=True).newlines(raw).tolist()
    edges = [-1, *newlines, len(raw)]
    lines = [raw[start + 1 : end] for start, end in itertools.pairwise(edges)]
    marks = [b"\xef\xbb\xbf", *[b""] * len(lines)]
    expected = [line for line, mark in zip(lines, marks, strict=False) if line.removesuffix(b"\r").removeprefix(mark)]
    assert records.count == len(expected)
    assert all(bad.raw in expected and bad.reason for bad in records.bad)


@pytest.mark.parametrize("options", ALL_OPTIONS)
@examples(40)
@given(text=TEXTS, size=st.integers(1, 30))
@example(text='"a""b"\n"\n', size=1)
@example(text='a"\n"b\n"', size=2)
@example(text='\ufeff"x\ny",1\n', size=1)
@example(text='\ufeff"x\ny",1\n', size=3)
def test_records_end_in_the_same_places_however_the_blocks_are_cut(options, text, size):
    raw = text.encode()
    ends = RecordEnds(options, starts_file=True)

    found = [at + newline for at in range(0, len(raw), size) for newline in ends.newlines(raw[at : at + size]).tolist()]

    assert found == RecordEnds(options, starts_file=True).newlines(raw).tolist()


def test_a_byte_order_mark_is_not_part_of_the_first_value():
    raw = b'\xef\xbb\xbf"x\ny",1\n"z",2\n'

    assert rows(raw, options=MULTILINE) == [("x\ny", "1"), ("z", "2")]
    assert RecordEnds(MULTILINE, starts_file=True).newlines(raw).tolist() == [10, 16]
    for size in range(1, len(raw)):
        edges = [each.first for each in chunked(raw, size, MULTILINE)]
        assert set(edges) <= {0, 11}, size


def test_bytes_that_only_begin_like_a_byte_order_mark_belong_to_the_first_value():
    for cut in range(1, 6):
        ends = RecordEnds(MULTILINE, starts_file=True)
        raw = b'\xef\xbb"x\ny,1\n'
        assert ends.newlines(raw[:cut]).tolist() + (ends.newlines(raw[cut:]) + cut).tolist() == [4, 8], cut


@pytest.mark.parametrize("options", ALL_OPTIONS)
@examples(40)
@given(text=TEXTS, sizes=st.tuples(st.integers(1, 30), st.integers(1, 5)))
@example(text='"a""\n",b\n', sizes=(4, 2))
@example(text='"a\\"\nb",c\n', sizes=(4, 4))
@example(text='x,"a""b\n', sizes=(5, 1))
@example(text='"a"\\,"x\ny"\n', sizes=(3, 3))
def test_records_end_in_the_same_places_however_the_slabs_are_cut(options, text, sizes):
    whole, in_slabs = RecordEnds(options, starts_file=True), RecordEnds(options, starts_file=True)
    with patch.object(RecordEnds, "_at_once", lambda self, block: None):
        expected = whole.newlines(text.encode()).tolist()

    large, small = max(sizes), min(sizes)
    with patch.multiple(dialect, _SLAB_BYTES=large, _SMALL_SLAB_BYTES=small):
        assert in_slabs.newlines(text.encode()).tolist() == expected
    assert in_slabs.open_quote == whole.open_quote


@pytest.mark.parametrize("options", ALL_OPTIONS)
@examples(30)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4))
@example(texts=["a,b", "a", "a,b,c"])
@example(texts=["\r\r", "a,b\rc,d"])
@example(texts=["a,b", 'a,"b\r"', 'a,"b\r\n"', 'a\r,"b"'])
def test_records_are_read_alike_among_many(options, texts):
    raw = "".join(f"{text}\n" for text in texts * 40).encode()

    assert by_sequence_id(read(part(raw), options=options)) == by_sequence_id(slowly(part(raw), options=options))


@pytest.mark.parametrize("options", [MULTILINE, ESCAPED])
@examples(60)
@given(text=TEXTS)
def test_counting_quotes_and_going_step_by_step_find_the_same_ends(options, text):
    with patch.object(RecordEnds, "_at_once", lambda self, block: None):
        expected = RecordEnds(options).newlines(text.encode()).tolist()

    assert RecordEnds(options).newlines(text.encode()).tolist() == expected


@pytest.mark.parametrize("options", ALL_OPTIONS)
@examples(40)
@given(text=TEXTS)
@example(text='"a\nb",c\nd,e\n"f\n')
def test_a_file_gives_the_same_records_for_every_chunk_size(options, text):
    raw = text.encode()
    whole = by_sequence_id(read(part(raw), options=options))

    for size in range(1, len(raw) + 1):
        assert by_sequence_id(read(*chunked(raw, size, options), options=options)) == whole, size


@pytest.mark.parametrize("options", [MULTILINE, ESCAPED])
@examples(60)
@given(text=TEXTS, size=st.integers(1, 30))
@example(text='a,"x""y', size=30)
@example(text='"""x', size=2)
@example(text='\ufeff"x', size=2)
@example(text='x,"a""', size=5)
def test_an_open_quote_is_found_wherever_the_blocks_are_cut(options, text, size):
    raw = text.encode()
    with patch.object(RecordEnds, "_at_once", lambda self, block: None):
        slow = RecordEnds(options, starts_file=True)
        slow.newlines(raw)
    ends = RecordEnds(options, starts_file=True)

    for at in range(0, len(raw), size):
        ends.newlines(raw[at : at + size])

    assert ends.open_quote == slow.open_quote
    opened = ends.open_quote
    if opened is not None:
        assert raw[opened : opened + 1] == b'"'
        # Without it, and what it opens, nothing is open.
        before = RecordEnds(options, starts_file=True)
        before.newlines(raw[:opened])
        assert before.open_quote is None


@pytest.mark.parametrize("options", [MULTILINE, ESCAPED])
@examples(60)
@given(text=TEXTS, size=st.integers(1, 30))
def test_records_are_found_one_by_one_where_they_end(options, text, size):
    raw = text.encode()
    ends, found, at = RecordEnds(options, starts_file=True), list[int](), 0

    while at < len(raw):
        end = ends.first_end(raw[at : at + size])
        at += size if end is None else end
        found += [] if end is None else [at - 1]

    assert found == RecordEnds(options, starts_file=True).newlines(raw).tolist()


def chunked(raw: bytes, size: int, options: CsvOptions) -> list[Part]:
    """Parts as a reader cuts them that sees `size` bytes at once."""
    ends, edges = RecordEnds(options, starts_file=True), [0]
    for at in range(0, len(raw), size):
        end = ends.last_end(raw[at : at + size])
        if end is not None:
            edges.append(at + end)
    edges.append(len(raw))
    return [part(raw[first:end], first=first) for first, end in itertools.pairwise(edges) if first < end]


@pytest.mark.parametrize("options", [MULTILINE, ESCAPED])
@given(pairs=WELL_FORMED)
def test_well_written_text_is_read_back(options, pairs):
    assert rows(written(pairs, options), options=options) == pairs


@pytest.mark.parametrize("count", [1, 200])
def test_null_is_written_without_quotes(count):
    assert rows(b',""\n' * count) == [(None, "")] * count
    assert rows(b'NULL,"NULL"\n' * count, options=CsvOptions(header=False, null="NULL")) == [(None, "NULL")] * count


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"1", "1 values instead of 2"),
        (b"1,2,3", "3 values instead of 2"),
        (b'1,a"b', "stray quote"),
        (b'1,a""b', "stray quote"),
        (b'1,5"" pipe', "stray quote"),
        (b'1,x""', "stray quote"),
        (b'1,"a"b', "continues after"),
        (b'1,"ab', "never closed"),
        (b"1,\xff", "UTF-8"),
        (b"1,\0", "NUL"),
    ],
)
def test_a_malformed_record_is_bad_alone(line, why):
    records = read(part(b'x,y\n"x",y\r\n' * 100 + line + b"\n" + b'x,"y"\n' * 100))

    assert records.rows.num_rows == 300
    assert [(bad.sequence_id, bad.raw) for bad in records.bad] == [(1100, line)]
    assert why in records.bad[0].reason


def test_the_header_and_its_mark_are_not_a_record():
    options = CsvOptions()
    raw = b"\xef\xbb\xbfa,b\r\n1,2\r\n\r\n3,4"

    records = read(part(raw), options=options, a="integer", b="bigint")

    assert records.rows.to_pydict() == {"a": [1, 3], "b": [2, 4], "_producer_id": [1, 1], "_sequence": [8, 15]}
    assert split_header(raw[:8], options) == ("a", "b")
    assert split_header(b'"a ""x""",\n', options) == ('a "x"', "")


def written_to(folder, content: bytes, name: str = "a.csv") -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


@pytest.mark.parametrize(
    ("content", "options", "header"),
    [
        (b"a,b\r\n1,2\n", CsvOptions(), ("a", "b")),
        (b'"a\nb",c\n1,2\n', CsvOptions(multiline=True), ("a\nb", "c")),
        (b'\xef\xbb\xbf"a\nb",c\n1,2\n', CsvOptions(multiline=True), ("a\nb", "c")),
        (b"", CsvOptions(), ()),
        (b"x" * 200_000 + b",b\n", CsvOptions(), ("x" * 200_000, "b")),
    ],
)
def test_a_header_is_the_first_record(tmp_path, content, options, header):
    assert read_header(written_to(tmp_path, content), options, sealed=False) == header


def test_a_header_without_newline_may_go_on_until_the_file_is_sealed(tmp_path):
    url = written_to(tmp_path, b"a,b")

    assert read_header(url, CsvOptions(), sealed=False) is None
    assert read_header(url, CsvOptions(), sealed=True) == ("a", "b")


@pytest.mark.parametrize(
    ("content", "options", "why"),
    [
        ("id,größe\n".encode("latin-1"), CsvOptions(), "not valid UTF-8"),
        (b'id,na"me\n', CsvOptions(), "a stray quote"),
        (b'"a\nb",c\n', CsvOptions(), "never closed"),
        (b"x" * 2**21, CsvOptions(), "does not end within its first 1048576 bytes"),
        (b'"' + b"a\n" * 2**20, CsvOptions(multiline=True), "does not end within its first 1048576 bytes"),
    ],
)
def test_a_header_that_is_none_needs_a_person(tmp_path, content, options, why):
    with pytest.raises(FileRefused, match=why) as refused:
        read_header(written_to(tmp_path, content), options, sealed=True)

    assert refused.value.exit_code is ExitCode.NEEDS_A_PERSON


@pytest.mark.parametrize(
    ("header", "missing_columns", "lacking"),
    [
        (("b", "a", "x"), MissingColumns.STOP, None),
        (("a",), MissingColumns.STOP, "among them b"),
        (("b",), MissingColumns.STOP, "among them a"),
        (("a",), MissingColumns.IGNORE, None),
        (("b",), MissingColumns.IGNORE, "among them a"),
        (("a;b",), MissingColumns.IGNORE, "among them a, b"),
    ],
)
def test_a_header_has_to_name_the_declared_columns(header, missing_columns, lacking):
    declared = columns(a="text not null", b="text")

    with pytest.raises(FileRefused, match=lacking) if lacking else nullcontext():
        check_header("a.csv", header, declared, CsvOptions(missing_columns=missing_columns))


def test_a_record_beyond_record_bytes_max_is_bad_whatever_is_in_it():
    raw = b'1,2\n"' + b"x" * 50 + b'",4\n5,6\n'

    records = read(part(raw), record_bytes_max=20)

    assert [(bad.sequence_id, bad.raw) for bad in records.bad] == [(4, raw[4:58])]
    assert records.rows.column("a").to_pylist() == ["1", "5"]


def test_a_later_chunk_has_no_header():
    assert read(part(b"1,2\n", first=8), options=CsvOptions()).rows.num_rows == 1


def test_columns_are_found_by_name_and_those_that_are_missing_are_null():
    records = read(part(b"1,2\n"), header=("b", "z"), a="text", b="integer", c="jsonb")

    assert records.rows.select(["a", "b", "c"]).to_pylist() == [{"a": None, "b": 1, "c": None}]
    assert read(part(b"1,2\n"), a="text", q="text not null").bad[0].column == "q"


def test_undeclared_fields_of_the_header_follow_the_pipelines_rule():
    ignored, failed, added = (read(part(b"1,2\n"), a="text", unknown_fields=rule) for rule in UnknownFields)

    assert (ignored.rows.num_rows, failed.bad[0].column, added.rows.num_rows) == (1, "b", 1)
    assert [(column.name, str(column.type)) for column in added.unknown] == [("b", "text")]


def test_a_header_that_names_a_column_twice_is_ambiguous():
    assert read(part(b"1,2\n"), header=("a", "a")).bad[0].reason == "the header names the column twice"


TYPED = {
    "integer": ["1", " 1", "+1", "0x1A", "0xFFFFFFFF", "1.0", "1e2", "x", "2147483648", "-0"],
    "double precision": ["1.5", "nan", "inf", "-Infinity", "nan(1)", "1e400", "1e-400", "+.5", "5.", "1d", " 1"],
    "real": ["1.1", "1e39", "NaN", "1e-45", "1e-46", "0e-999"],
    "numeric(5,2)": ["1", "1.10", "1.105", "999.99", "1000", "1e2", "+1", "NaN", " 1", "5."],
    "boolean": ["true", "T", "1", "0", "yes", "2", " off"],
    "date": ["2024-01-01", "0000-01-01", "20240101", "2024-13-01"],
    "time": ["10:00", "10", "10:00:00.5", "25:00"],
    "timestamp": [
        "2024-01-01",
        "2024-01-01 10:00:00Z",
        "2024-01-01T10:00:00.1234567",
        "0000-01-01",
        "infinity",
        "2024-01-01T10",
        "2024-01-01T10:00+16:00",
    ],
    "timestamptz": [
        "2024-01-01",
        "2024-01-01 10:00:00Z",
        "2024-01-01T10:00:00+02",
        "9999-12-31T23:59:59-01:00",
        "2024-01-01T10Z",
        "2024-01-01T10:00+1600",
        "2024-01-01T10:00:00.5-23:59",
        "2024-01-01T10:00-16",
        "2024-01-01 10",
    ],
    "uuid": ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "A0EEBC999C0B4EF8BB6D6BB9BD380A11", "a0eebc99"],
    "bytea": ["\\xdead", "3q0=", "deadbeef", "?"],
    "jsonb": ['"{""a"":1.10}"', "[1]", "{a}"],
    "text[]": ['"{a,""b c"",NULL}"', '"[""a""]"', "a"],
    "bigint[]": ['"{1,2}"', "{x}"],
    "varchar(2)": ["äö", "äöü"],
}


@pytest.mark.parametrize(
    ("declared", "text"), [(declared, text) for declared, texts in TYPED.items() for text in texts]
)
def test_both_tiers_read_a_value_alike(declared, text):
    raw = f"{text},x\n".encode()

    assert by_sequence_id(read(part(raw), a=declared)) == by_sequence_id(slowly(part(raw), a=declared))


@pytest.mark.parametrize("declared", TYPED)
def test_a_value_is_read_alike_whatever_its_neighbours_are(declared):
    lines = [f"{text},x\n".encode() for text in ["", *TYPED[declared]]]
    together = by_sequence_id(read(part(b"".join(lines)), a=declared))

    alone: dict[int, object] = {}
    for at, line in enumerate(lines):
        alone |= by_sequence_id(read(part(line, first=sum(map(len, lines[:at]))), a=declared))
    assert together == alone


def test_nothing_is_read_from_nothing():
    assert read().count == 0
    assert read(part(b"")).count == 0
    assert read(part(b"\r\n\n")).count == 0
