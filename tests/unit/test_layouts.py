"""A stored record is read by the layout of its version: each value of then under its name of then."""

import json
from dataclasses import replace
from datetime import UTC, date, datetime, time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceload_core.names import ProducerId
from onceload_core.pipeline import Pipeline
from onceload_jobs.formats.chunks import Chunk, Part
from onceload_jobs.formats.parquet.scalars import Real, UnreadableValue
from onceload_jobs.formats.parquet.values import converted, kept_form
from onceload_jobs.formats.records import ValueRefused
from onceload_jobs.formats.values import from_kept
from onceload_jobs.pipeline.columns import Kind, arrow_type, parse_column, parse_type
from onceload_jobs.pipeline.declared import CsvOptions, Declared, FixedOptions, Format, Place, Source, Target
from onceload_jobs.pipeline.layout import Layout, types_in
from onceload_jobs.plan.declaration_texts import find_layout, pipeline_with_declaration
from onceload_jobs.read.checked_parts import ReadPart
from onceload_jobs.read.rows import read_records
from onceload_jobs.recover.stored_fields import means_the_same

NAMES = ("a", "b", "c")


def declared_as(source, names=NAMES, **types):
    columns = tuple(parse_column(name, types.get(name, "text")) for name in names)
    target = Target(schema="public", table="target")
    return Declared(pipeline=Pipeline(name="events"), source=source, columns=columns, target=target)


signs = st.permutations([",", ";", "|", "\t", "'", '"', "\\", "~"])
nulls = st.sampled_from(["", "NULL", "-", "0"])


@st.composite
def csv_sources(draw):
    delimiter, quote, escape, *_ = draw(signs)
    options = CsvOptions(
        header=draw(st.booleans()),
        delimiter=delimiter,
        quote=draw(st.sampled_from([quote, ""])),
        escape=draw(st.sampled_from([escape, None])),
        null=draw(nulls),
        multiline=False,
    )
    return Source(path="x", format=Format.CSV, csv=options)


@st.composite
def fixed_sources(draw):
    gaps = draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
    places, at = [], 0
    for name, gap in zip(draw(st.permutations(NAMES)), gaps, strict=True):
        places.append(Place(column=name, first=at + gap, end=at + gap + 4))
        at = places[-1].end
    return Source(path="x", format=Format.FIXED, fixed=FixedOptions(places=tuple(places), null=draw(nulls)))


jsonl = st.just(Source(path="x", format=Format.JSONL))
sources = csv_sources() | fixed_sources() | jsonl
values = st.fixed_dictionaries(dict.fromkeys(NAMES, st.none() | st.text("xyz189", min_size=1, max_size=4)))


def written(declared, record):
    """The record in the format of its source."""
    source = declared.source
    if source.format is Format.JSONL:
        return json.dumps(record).encode()
    if source.format is Format.CSV:
        null = source.csv.null
        texts = [null if (value := record[name]) is None else value for name in declared.column_names]
        return source.csv.delimiter.join(texts).encode()
    line = [" "] * source.fixed.width
    for place in source.fixed.places:
        value = record[place.column]
        line[place.first : place.end] = f"{source.fixed.null if value is None else value:>4}"
    return "".join(line).encode()


@given(then=sources, now=sources, order=st.permutations(NAMES), order_now=st.permutations(NAMES), record=values)
def test_a_record_keeps_its_values_under_their_names_whatever_layout_is_declared_now(
    then, now, order, order_now, record
):
    before, after = declared_as(then, order), declared_as(now, order_now)
    kept = json.loads(json.dumps(pipeline_with_declaration(before).declaration.layout))
    layout = Layout.parse(kept)
    assert layout == Layout.of(before)
    raw = written(before, record)

    source = layout.applied_to(after.source)
    chunk = Chunk(producer_id=ProducerId(1), name="x", url="", first=9, end=9 + len(raw), header=layout.names)
    part = Part(producer_id=ProducerId(1), first=9, end=9 + len(raw), raw=raw)
    reading = replace(after, source=source)
    read = read_records(reading, after.columns, [ReadPart(chunk=chunk, part=part, fingerprint=b"")])

    if read.rows.num_rows:
        assert {name: read.rows.column(name)[0].as_py() for name in NAMES} == record
    else:
        # Only what its own layout cannot read is bad.
        own = read_records(before, before.columns, [ReadPart(chunk=chunk, part=part, fingerprint=b"")])
        assert not own.rows.num_rows


@given(then=sources, order=st.permutations(NAMES))
def test_a_layout_differs_from_none_that_reads_the_same(then, order):
    declared = declared_as(then, order)
    renewed = replace(then, path="y", sealed_after_s=1.0, csv=replace(then.csv), fixed=replace(then.fixed))

    assert Layout.of(declared).differences(Layout.of(declared_as(renewed, order, a="bigint"))) == ()


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"format": "xml", "csv": {}, "places": [], "null": "", "columns": []},
        {"format": "csv", "csv": {"header": True}, "places": [], "null": "", "columns": []},
        {"format": "jsonl", "csv": {}, "places": [], "null": "", "columns": [], "later": 1},
    ],
)
def test_a_layout_of_another_release_is_unknown(kept):
    assert Layout.parse(kept) is None


CSV = Source(path="x", format=Format.CSV, csv=CsvOptions(header=False))


def test_a_version_of_an_earlier_release_is_known_by_its_texts_as_long_as_the_options_are_the_same():
    then = declared_as(CSV, ("a", "b"), a="numeric(12,2) not null", b="timestamp[]")
    old = replace(pipeline_with_declaration(then).declaration, layout=None)

    assert find_layout(old, declared_as(CSV, ("b", "a"))) == Layout.of(then)
    assert find_layout(old, declared_as(replace(CSV, csv=CsvOptions(header=False, delimiter=";")), ("a", "b"))) is None
    assert find_layout(old, declared_as(Source(path="x", format=Format.JSONL), ("a", "b"))) is None


@pytest.mark.parametrize("names", [("a,b", "c"), ("a", "b, c")])
def test_names_that_may_be_several_columns_are_not_guessed(names):
    old = replace(pipeline_with_declaration(declared_as(CSV, names)).declaration, layout=None)

    assert find_layout(old, declared_as(CSV, names)) is None


@pytest.mark.parametrize("kind", Kind)
def test_each_type_is_found_in_the_texts_of_earlier_releases(kind):
    sized = {Kind.NUMERIC: "numeric(12,2)", Kind.VARCHAR: "varchar(3)"}.get(kind, str(kind))
    for of_type in (sized, f"{sized}[]"):
        assert types_in(f"a text {of_type} not null, b c {of_type}") == {"a text": of_type, "b c": of_type}


TYPES = [
    parse_type("x", f"{'numeric(12,2)' if kind is Kind.NUMERIC else kind}{array}")
    for kind in Kind
    for array in ("", "[]")
]
TENTH = Real(np.float32(0.1))
VALUES = [
    *(None, True, 5, 1.5, Decimal("2.50"), "abcd", "ab==", "5", "\\x6162", '{"k":1}', "2026-01-01", "{a,b}"),
    *(b"ab==", b"abcd", b"0123456789abcdef", b"\xff\x00", b"5", UnreadableValue("x")),
    *(date(2026, 1, 1), time(1, 2), datetime(2026, 1, 1), datetime(2026, 1, 1, 5, tzinfo=UTC)),  # noqa: DTZ001
    *([b"ab==", None], ["a"], [5], [date(2026, 1, 1)], [b"0123456789abcdef"], [datetime(2026, 1, 1)]),  # noqa: DTZ001
    *({"k": 1}, {"k": b"ab"}),
    *(0.1, Decimal("0.1"), [0.1], TENTH, [TENTH, None], {"k": TENTH}, [{"k": TENTH}], Real(1.5), Real("inf")),
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
@pytest.mark.parametrize("then", [None, *TYPES], ids=str)
def test_a_stored_value_that_means_the_same_in_another_type_is_the_value_of_the_file(value, then):
    raw = kept_form(value, then)
    for now in TYPES:
        if not means_the_same(raw, then, now):
            assert then is None or (then.kind, then.is_array) != (now.kind, now.is_array)
            continue
        try:
            kept = from_kept(raw, now)
        except ValueRefused:
            continue
        assert same(kept, converted(value, now), now), (now, raw)


def same(one, other, of_type):
    """As they are loaded; a document may be written in other words."""
    if of_type.kind is Kind.JSONB and not of_type.is_array and None not in (one, other):
        return json.loads(one) == json.loads(other)
    return pa.scalar(one, arrow_type(of_type)) == pa.scalar(other, arrow_type(of_type))
