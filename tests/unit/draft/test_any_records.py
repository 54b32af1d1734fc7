"""For any records, the draft is a valid pipeline file that loads all of its records."""

import csv
import gzip
import io
import json
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import hypothesis.strategies as st
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from hypothesis import assume, example, given

from onceload.draft.draft import Draft, _read, draft
from onceload.draft.files import find_files
from onceload.draft.formats import read_sample
from onceload.pipeline_file import PipelineFileRefused, parse_text
from onceload_core.errors import OnceloadError
from tests.laws import examples
from tests.unit.draft.drafts import with_all_paths

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
WORDS = st.sampled_from(
    ["true", "no", "N", "NULL", "\\N", "-", "nan", "1e5", "007", "+5", "1,5", "{}", "[1]", "", " 7"]
)
DATES = st.dates().map(str)
MOMENTS = st.datetimes().map(lambda moment: f"{moment.isoformat()}Z") | st.datetimes().map(str)
DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=3).map(lambda number: f"{number:f}")
MONEY = st.integers(-(10**14), 10**14).map(lambda cents: cents / 100)
NUMBERS = st.integers() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.booleans() | NUMBERS | TEXTS | WORDS | DATES | MOMENTS | DECIMALS | st.uuids().map(str)
NESTED = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
#: The values of a column are of one kind, or of several.
COLUMNS = st.sampled_from(
    [st.booleans(), st.integers(), MONEY, NUMBERS, TEXTS, WORDS, DATES, MOMENTS, DECIMALS, SCALARS, NESTED]
)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=70) | st.sampled_from(
    ["_sequence", "_producer_id_2", "ctid", "a: b # c", "null", "- x", '"', "x\ny: z", "{{ ds }}", "ä" * 40]
)


@st.composite
def records(draw: st.DrawFn) -> list[dict[str, object]]:
    columns = draw(st.dictionaries(NAMES, COLUMNS.map(lambda values: st.none() | values), max_size=5))
    columns.pop("n", None)
    # A record without any column would go to quarantine.
    fields = st.fixed_dictionaries({"n": st.integers(0, 9)}, optional=columns)
    return draw(st.lists(fields, min_size=1, max_size=12))


def drafted(name: str, content: bytes) -> Draft:
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        found = draft(str(path))
    parse_text(found.text, name="draft")
    return found


@examples(100)
@given(some=records())
def test_a_draft_of_any_json_lines_loads_all_of_them(some):
    found = drafted("some.jsonl", "".join(json.dumps(record) + "\n" for record in some).encode())

    assert (found.records, found.quarantined, found.notes) == (len(some), 0, ())


KEYS = st.sampled_from(["id", "name", "b.c", "a b", "_sequence", "ä" * 40, "{{ x }}", "#", "l"]) | TEXTS
OBJECTS = st.dictionaries(KEYS, st.dictionaries(KEYS, SCALARS | NESTED, max_size=3) | SCALARS | st.none(), max_size=4)


@examples(100)
@given(some=st.lists(st.fixed_dictionaries({"n": st.integers()}, optional={"a": OBJECTS, "l": OBJECTS}), min_size=1))
@example(some=[{"n": 1, "a": {"b": {"c": 1}}}, {"n": 2, "a": {"b": 5}}])
def test_a_draft_with_all_paths_that_it_offers_loads_all_records_too(some):
    with TemporaryDirectory() as folder:
        path = Path(folder) / "some.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in some))
        text = with_all_paths(draft(str(path)).text)
        records = _read(parse_text(text, name="draft"), read_sample(str(path), find_files(str(path))).files)

    assert (records.count, len(records.bad)) == (len(some), 0)


@st.composite
def rows(draw: st.DrawFn) -> list[list[str]]:
    width = draw(st.integers(2, 5))
    columns = [
        draw(st.sampled_from([st.integers().map(str), TEXTS, WORDS, DATES, MOMENTS, DECIMALS])) for _ in range(width)
    ]
    one = st.tuples(*columns).map(list).filter(any)
    return [[f"name {at}" for at in range(width)], *draw(st.lists(one, min_size=1, max_size=12))]


@examples(100)
@given(some=rows(), delimiter=st.sampled_from(",;\t|"), end=st.sampled_from(["\n", "\r\n"]))
def test_a_draft_of_any_quoted_csv_loads_all_of_it(some, delimiter, end):
    written = io.StringIO()
    csv.writer(written, delimiter=delimiter, lineterminator=end, quoting=csv.QUOTE_ALL).writerows(some)

    found = drafted("some.csv", written.getvalue().encode())

    assert (found.records, found.quarantined) == (len(some) - 1, 0)
    assert f"delimiter: {json.dumps(delimiter)}" in found.text


@examples(100)
@given(some=rows(), has_header=st.booleans())
def test_a_draft_of_any_plain_csv_loads_all_of_it(some, has_header):
    """Only the values that need quotes have some, and the last line has no newline."""
    numbered = [[str(number) if number else "id", *row] for number, row in enumerate(some)]
    written = io.StringIO()
    csv.writer(written, lineterminator="\n").writerows(numbered if has_header else numbered[1:])
    content = written.getvalue().removesuffix("\n")
    # A carriage return in a file without any newline counts as the end of a line.
    assume("\n" in content or "\r" not in content)

    found = drafted("some.csv", content.encode())

    assert (found.records, found.quarantined) == (len(some) - 1, 0)
    assert f"header: {json.dumps(has_header)}" in found.text


VALUES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.bool_(): st.booleans(),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(20, 4): st.decimals(-(10**15), 10**15, places=4).map(Decimal),
    pa.string(): TEXTS | WORDS | DATES | MOMENTS | DECIMALS,
    pa.large_string(): DATES | st.uuids().map(str),
    pa.binary(): st.binary(max_size=20),
    pa.date32(): st.dates(),
    pa.timestamp("ns", "UTC"): st.integers(0, 10**18),
    pa.timestamp("us"): st.datetimes(),
    pa.time64("us"): st.times(),
    pa.list_(pa.int64()): st.lists(st.integers(-9, 9), max_size=3),
    pa.struct([("a", pa.int64()), ("b", pa.string())]): st.fixed_dictionaries({"a": st.integers(-9, 9), "b": DATES}),
    pa.null(): st.none(),
    pa.dictionary(pa.int32(), pa.string()): DATES | WORDS,
}


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    types = draw(st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=5))
    count = draw(st.integers(1, 8))
    columns = [draw(st.lists(st.none() | VALUES[each], min_size=count, max_size=count)) for each in types]
    return pa.table(
        [pa.array(values, each) for values, each in zip(columns, types, strict=True)],
        [f"c {at}" for at in range(len(types))],
    )


@examples(100)
@given(table=tables())
def test_a_draft_of_any_parquet_loads_all_of_it(table):
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=3)

    found = drafted("some.parquet", sink.getvalue())

    assert (found.records, found.quarantined, found.notes) == (table.num_rows, 0, ())


def a_parquet_file() -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"a": [1, 2], "b": ["x", None], "c": [[1], []]}), sink)
    return sink.getvalue()


GOOD = {
    "some.jsonl": b'{"a": 1, "b": "x"}\n{"a": 2.5, "b": [null]}\n',
    "some.csv": b"a;b\n1;\"x\ny\"\n2;'z'\n",
    "some.parquet": a_parquet_file(),
    "some.jsonl.gz": gzip.compress(b'{"a": 1}\n' * 9),
    "some.csv.zst": zstandard.compress(b"a,b\n1,2\n" * 9),
    "some": b"",
}
SIGNS = st.sampled_from(
    [b"\n", b"\r", b'"', b"'", b"\\", b",", b";", b"\0", b"\xff", b"{", b"}", b"PAR1", b"NaN", b"\xef\xbb\xbf"]
)


@examples(100)
@given(
    name=st.sampled_from(list(GOOD)),
    added=st.lists(st.tuples(st.integers(0, 400), st.binary(max_size=9) | SIGNS), max_size=9),
)
def test_a_file_with_any_bytes_in_it_is_drafted_or_refused(name, added):
    content = GOOD[name]
    for at, octets in added:
        content = content[:at] + octets + content[at + len(octets) % 2 :]

    try:
        drafted(name, content)
    except PipelineFileRefused:
        raise
    except OnceloadError:
        pass
