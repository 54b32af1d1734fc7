"""Files of ORC and Avro: each is loaded once, as Parquet is."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from onceload.draft.draft import draft
from onceload.pipeline_file import read_pipeline
from onceload_core.postgres import LedgerSettings
from onceload_jobs.formats.avro import blocks
from onceload_jobs.formats.whole_files import read_whole_file
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import Engine, LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, Identity, OnRewrite, Publish, UnknownFields
from onceload_jobs.verify.findings import Kind
from tests.loads.conftest import Loads
from tests.loads.held_records import is_sound
from tests.loads.test_retry import retry_all
from tests.loads.verified import named, verified
from tests.servers import execute
from tests.typed_files import OTHER_FORMATS, avro_of, content_of

pytestmark = pytest.mark.usually_staged
#: Ways that all formats of whole files share.
LONG = pytest.mark.long

_MANY, _GROUP = 5_000, 500
#: Text that no codec makes much smaller.
_NOTES = [f"{random.Random(number).getrandbits(800):x}" for number in range(_MANY)]


@pytest.fixture(params=OTHER_FORMATS)
def of_format(request: pytest.FixtureRequest) -> Format:
    return Format(request.param)


@pytest.fixture
def loads(loads: Loads, of_format: Format, monkeypatch: pytest.MonkeyPatch) -> Loads:
    monkeypatch.setattr(blocks, "GROUP_BYTES", 1)
    blocks.read_blocks.cache_clear()
    source = replace(loads.declared.source, path=str(loads.folder / "*.data"), format=of_format, chunk_bytes=1)
    loads.declared = replace(loads.declared, source=source)
    return loads


def table(first: int, end: int, **fields: list[Any] | pa.Array) -> pa.Table:
    count = end - first
    columns = {
        "id": pa.array(range(first, end), pa.int64()),
        "amount": pa.array([Decimal("1.50")] * count, pa.decimal128(12, 2)),
        "note": pa.array(_NOTES[first:end]),
    }
    return pa.table(columns | fields)


def write(loads: Loads, name: str, content: pa.Table, *, rows: int | None = _GROUP) -> bytes:
    raw = content_of(content, loads.declared.source.format, rows=rows)
    loads.write(name, raw)
    return raw


def counts(report: Report) -> tuple[int, int, int]:
    return report.loaded, report.duplicates, report.quarantined


def notes(report: Report) -> list[tuple[str, bool]]:
    return [(note.name, note.needs_a_person) for note in report.notes]


def declare(loads: Loads, **columns: str) -> None:
    loads.declared = replace(loads.declared, columns=tuple(parse_column(*each) for each in columns.items()))


def test_a_file_of_many_groups_is_loaded_once(loads):
    raw = write(loads, "a.data", table(0, _MANY))
    write(loads, "b.data", table(0, 3))

    groups = read_whole_file(loads.declared.source.format, str(loads.folder / "a.data"), size=len(raw)).row_groups
    report, again = loads.load(), loads.load()

    assert [(group.first, group.end) for group in groups] == [
        (first, first + _GROUP) for first in range(0, _MANY, _GROUP)
    ]
    assert (counts(report), counts(again), again.notes) == ((_MANY + 3, 0, 0), (0, 0, 0), ())
    assert loads.rows("id, note")[6:] == [(number, _NOTES[number]) for number in range(3, _MANY)]
    assert loads.rows("_sequence")[6:] == list(range(3, _MANY))
    found = verified(loads, deep=True)
    assert (found.differences, found.rows, found.rows_compared) == ((), _MANY + 3, _MANY + 3)
    assert is_sound(loads)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize("engine", [Engine.LOCAL, pytest.param(Engine.SPARK, marks=LONG)])
def test_sessions_in_other_processes_load_each_row_once(loads, engine, request, monkeypatch):
    # Other processes do not have what is patched here.
    monkeypatch.undo()
    if engine is Engine.SPARK:
        request.getfixturevalue("tasks")
    columns = {"id": range(20_000), "amount": pa.nulls(20_000, pa.decimal128(12, 2)), "note": ["x" * 100] * 20_000}
    write(loads, "a.data", pa.table(columns), rows=1_000)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), engine=engine, wait_s=0)

    report, again = (load(loads.declared, settings, batch=new_batch()) for _ in range(2))

    assert (report.loaded, report.engine, again.loaded) == (20_000, engine, 0)
    assert loads.rows() == list(range(20_000))


def test_a_value_that_does_not_fit_is_quarantined_and_loaded_when_it_does(loads):
    moments = pa.array([0, 2**63 - 1, 5], pa.int64()).cast(pa.timestamp("us", "UTC"))
    declare(loads, id="smallint not null", at="timestamptz", more="jsonb", raw="bytea", tags="text[]")
    values = table(0, 3).drop_columns(["amount", "note"]).to_pydict()
    values |= {"id": pa.array([1, 2, 100_000], pa.int64()), "at": moments, "more": [{"x": [1, None]}] * 3}
    write(loads, "a.data", pa.table(values | {"raw": [b"\xff\0"] * 3, "tags": [["a", None]] * 3}), rows=2)

    report = loads.load()

    assert counts(report) == (1, 0, 2)
    assert loads.ask("SELECT sequence_id, column_name FROM onceload.quarantine ORDER BY 1") == [(1, "at"), (2, "id")]
    assert named(verified(loads, deep=True)) == []
    execute(loads.admin_dsn, "ALTER TABLE target ALTER id TYPE integer")
    declare(loads, id="integer not null", at="timestamptz", more="jsonb", raw="bytea", tags="text[]")
    retried = retry_all(loads)
    assert (retried.retried, len(retried.still_bad)) == (1, 1)
    first, second = loads.ask("SELECT more::text, raw, tags FROM target ORDER BY id")
    assert [(more, bytes(raw), tags) for more, raw, tags in (first, second)] == [
        ('{"x": [1, null]}', b"\xff\0", ["a", None])
    ] * 2
    assert loads.rows("_sequence") == [0, 2]


@pytest.mark.parametrize("of_format", [Format.PARQUET, *OTHER_FORMATS], indirect=True)
def test_a_float_of_32_bits_is_retried_as_the_value_that_a_load_gives(loads, of_format):
    types = {
        "wide": "double precision",
        "many": "double precision[]",
        "narrow": "real",
        "exact": "numeric(12,2)",
        "more": "jsonb",
    }
    declare(loads, id="smallint not null", **types)
    floats = dict.fromkeys(("wide", "narrow", "exact"), pa.array([0.1, 0.1], pa.float32()))
    floats |= {"many": pa.array([[0.1, None]] * 2, pa.list_(pa.float32()))}
    floats |= {"more": pa.array([{"x": 0.1}] * 2, pa.struct({"x": pa.float32()}))}
    write(loads, "a.data", pa.table({"id": pa.array([1, 100_000], pa.int64()), **floats}))
    report = loads.load()

    execute(loads.admin_dsn, "ALTER TABLE target ALTER id TYPE integer")
    declare(loads, id="integer not null", **types)
    retried = retry_all(loads)

    assert (counts(report), retried.retried) == ((1, 0, 1), 1)
    loaded, later = loads.ask("SELECT wide, many, narrow, exact, more FROM target ORDER BY id")
    wide = 0.10000000149011612
    assert later == loaded == (wide, [wide, None], 0.1, Decimal("0.10"), {"x": wide})


@pytest.mark.parametrize(
    "rewrite",
    [OnRewrite.STOP, *(pytest.param(each, marks=LONG) for each in (OnRewrite.REPLACE, OnRewrite.NEW_GENERATION))],
)
@pytest.mark.parametrize("later", [range(5), pytest.param(range(10, 13), marks=LONG)])
def test_a_file_that_grew_or_was_rewritten_counts_as_new_content(loads, rewrite, later, publish):
    # Rows are replaced in staged batches only.
    publish = Publish.STAGED if rewrite is OnRewrite.REPLACE else publish
    loads.declared = replace(loads.declared, on_rewrite=rewrite, publish=publish)
    write(loads, "a.data", table(0, 3))
    loads.load()
    write(loads, "a.data", table(later.start, later.stop))

    report = loads.load()

    assert (
        loads.rows()
        == {
            OnRewrite.STOP: [0, 1, 2],
            OnRewrite.REPLACE: [*later],
            OnRewrite.NEW_GENERATION: sorted([0, 1, 2, *later]),
        }[rewrite]
    )
    assert notes(report) == ([("a.data", True)] if rewrite is OnRewrite.STOP else [])
    assert loads.load().loaded == 0


@pytest.mark.parametrize("broken", [-20, *(pytest.param(each, marks=LONG) for each in (0, 4, 200, -1))])
def test_a_file_that_is_not_complete_is_a_note_and_its_neighbours_load(loads, broken):
    whole = write(loads, "b.data", table(10, 20))
    loads.write("b.data", whole[:broken])
    write(loads, "a.data", table(0, 3))
    write(loads, "c.data", table(5, 8))

    report = loads.load()

    assert (counts(report), notes(report)) == ((6, 0, 0), [("b.data", True)])
    assert "damaged or truncated" in report.notes[0].reason
    loads.write("b.data", whole)
    assert (counts(loads.load()), loads.load().notes) == ((10, 0, 0), ())
    assert loads.rows() == [0, 1, 2, 5, 6, 7, *range(10, 20)]


@LONG
def test_the_groups_around_a_damaged_one_are_loaded_once(loads):
    whole = write(loads, "a.data", table(0, 300), rows=100)
    source = loads.declared.source
    groups = read_whole_file(source.format, str(loads.folder / "a.data"), size=len(whole)).row_groups
    first, size = groups[1].first_byte + 5, groups[1].bytes - 25
    assert first > 4096
    loads.write("a.data", whole[:first] + b"\xff" * size + whole[first + size :])

    report = loads.load()

    assert (counts(report), notes(report)) == ((200, 0, 0), [("a.data", True)])
    assert loads.rows() == [*range(100), *range(200, 300)]
    loads.write("a.data", whole)
    assert (counts(loads.load()), loads.rows()) == ((100, 0, 0), list(range(300)))


@pytest.mark.parametrize("of_format", [Format.AVRO], indirect=True)
def test_a_file_that_was_rewritten_after_a_look_is_loaded_at_once(loads):
    """Neither its size nor its edges show that the blocks between them are in another order."""
    raw = write(loads, "a.data", table(0, 400), rows=100)
    path = loads.folder / "a.data"
    groups = read_whole_file(Format.AVRO, str(path), size=len(raw)).row_groups
    first, one, two, last = (raw[group.first_byte : group.end_byte] for group in groups)
    assert len(one) != len(two)
    loads.write("a.data", raw[: groups[0].first_byte] + first + two + one + last)

    report = loads.load()

    assert (counts(report), report.notes) == ((400, 0, 0), ())
    assert loads.rows("id, _sequence")[100] == (100, 200)


@pytest.mark.parametrize("of_format", [Format.AVRO], indirect=True)
@pytest.mark.parametrize(("first_byte", "shifted_by"), [(b"\xa8", -16), (b"\x80", -36)])
def test_rows_that_a_damaged_count_has_shifted_are_not_mixed_with_those_of_the_complete_copy(
    loads, first_byte, shifted_by
):
    """The heads of the blocks are neither at the edges of the file nor in a footer."""
    whole = write(loads, "a.data", table(0, 300), rows=100)
    groups = read_whole_file(Format.AVRO, str(loads.folder / "a.data"), size=len(whole)).row_groups
    head = groups[1].first_byte
    assert whole[head : head + 2] == b"\xc8\x01"
    loads.write("a.data", whole[:head] + first_byte + whole[head + 1 :])
    assert notes(loads.load()) == [("a.data", True)]
    assert loads.rows("_sequence")[-1] == 299 + shifted_by

    loads.write("a.data", whole)
    write(loads, "b.data", table(500, 510))
    report = loads.load()

    assert (report.loaded, notes(report)) == (10, [("a.data", True)])
    assert "some of its rows were loaded with other row numbers" in report.notes[0].reason
    again = loads.load(on_rewrite=OnRewrite.NEW_GENERATION)
    assert (again.loaded, notes(again)) == (0, [("a.data", True)])
    assert loads.load(on_rewrite=OnRewrite.REPLACE, publish=Publish.STAGED).loaded == 300
    assert loads.rows() == [*range(300), *range(500, 510)]
    assert loads.load().notes == ()


@LONG
def test_a_change_in_the_middle_is_found_by_verify(loads):
    columns = table(0, _MANY)
    options = {"compression": "UNCOMPRESSED"} if loads.declared.source.format is Format.ORC else {"codec": "null"}
    whole = content_of(columns, loads.declared.source.format, rows=_GROUP, **options)
    path = loads.write("a.data", whole)
    loads.load()
    assert whole.count(_NOTES[2500].encode()) == 1
    path.write_bytes(whole.replace(_NOTES[2500].encode(), _NOTES[2500].upper().encode()))

    found = verified(loads, deep=True)

    assert {(each.kind, each.span) for each in found.differences} >= {(Kind.BYTES_CHANGED, "[2500,3000)")}
    assert loads.load().loaded == 0


@pytest.mark.parametrize("publish", [Publish.STAGED], indirect=True)
def test_a_file_that_lacks_a_declared_column_is_a_note_and_replaces_no_row(loads):
    write(loads, "a.data", table(0, 3))
    loads.load()
    for name in ("a.data", "b.data"):
        write(loads, name, table(0, 3).drop_columns(["amount"]))
    write(loads, "c.data", table(5, 6))

    report = loads.load(on_rewrite=OnRewrite.REPLACE)

    assert (counts(report), notes(report)) == ((1, 0, 0), [("a.data", True), ("b.data", True)])
    assert "its schema names 'id', 'note'" in report.notes[0].reason
    assert "among them amount. Nothing more of it is loaded." in report.notes[0].reason
    assert loads.rows() == [0, 1, 2, 5]


@LONG
def test_undeclared_columns_are_counted_refused_or_added(loads):
    write(loads, "a.data", table(0, 2, zip=[1, None], more=[{"x": 1}] * 2))

    report = loads.load()
    assert (report.ignored_fields, report.ignored_of) == ({"zip": 2, "more": 2}, 2)
    write(loads, "b.data", table(2, 4, zip=[3, None]))
    assert counts(loads.load(unknown_fields=UnknownFields.FAIL)) == (0, 0, 2)
    write(loads, "c.data", table(4, 6, zip=[5, None]))
    assert counts(loads.load(unknown_fields=UnknownFields.ADD)) == (2, 0, 0)

    assert retry_all(loads).retried == 2
    assert loads.rows("id, zip") == [(0, None), (1, None), (2, None), (3, None), (4, 5), (5, None)]
    assert loads.rows("_sequence, id")[:3] == [(0, 0), (0, 2), (0, 4)]


@LONG
def test_the_same_content_under_another_name_is_not_loaded_again(loads):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    raw = write(loads, "a.data", table(0, 1000))
    loads.load()
    loads.write("b.data", raw)
    write(loads, "c.data", table(1000, 2000))

    report = loads.load()

    assert (report.loaded, loads.rows()) == (1000, list(range(2000)))


def test_a_file_inside_a_compressed_file_is_not_read(loads):
    write(loads, "a.data", table(0, 3))
    loads.write("b.data.gz", b"")
    source = replace(loads.declared.source, path=str(loads.folder / "*.data*"))

    report = loads.load(source=source)

    assert (report.loaded, notes(report)) == (3, [("b.data.gz", True)])
    assert "Put the unpacked file there" in report.notes[0].reason


@LONG
def test_a_file_of_this_format_is_not_read_as_text(loads):
    write(loads, "a.data", table(0, 3))

    (note,) = loads.load(source=replace(loads.declared.source, format=Format.JSONL)).notes

    assert f"Declare it with format: {loads.declared.source.format} in a pipeline of its own" in note.reason


@pytest.mark.parametrize("publish", [Publish.STAGED], indirect=True)
@pytest.mark.parametrize("is_named", [False, pytest.param(True, marks=LONG)])
def test_a_drafted_pipeline_file_loads_all_of_it(loads, is_named):
    at = datetime(2026, 11, 20, tzinfo=UTC)
    stored = {
        "id": pa.array(range(300), pa.int64()),
        "amount": pa.array([Decimal("1.10"), None, Decimal("-3.00")] * 100, pa.decimal128(9, 2)),
        "ratio": pa.array([0.1, 0.2, None] * 100, pa.float32()),
        "at": pa.array([at] * 300, pa.timestamp("us", "UTC")),
        "tags": pa.array([["a"], [], None] * 100),
        "raw": pa.array([b"\xff\0", b"", None] * 100),
    }
    suffix = f".{loads.declared.source.format}" if is_named else ""
    write(loads, f"events/part-0{suffix}", pa.table(stored), rows=100)
    path = loads.folder.parent / "drafted.yaml"

    found = draft(str(loads.folder / "events" / "*"))
    path.write_text(found.text)
    report = loads.load(**vars(read_pipeline(path)))

    assert (found.records, found.quarantined, counts(report)) == (300, 0, (300, 0, 0))
    types = loads.ask(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'events'::regclass AND attnum > 0 AND attname NOT LIKE '\\_%' ORDER BY attnum"
    )
    assert dict(types) == {
        "id": "bigint",
        "amount": "numeric(9,2)",
        "ratio": "real",
        "at": "timestamp with time zone",
        "tags": "jsonb",
        "raw": "bytea",
    }
    assert loads.ask("SELECT id, amount, at, tags FROM events ORDER BY id LIMIT 2") == [
        (0, Decimal("1.10"), at, ["a"]),
        (1, None, at, []),
    ]


@pytest.mark.parametrize("of_format", [Format.AVRO], indirect=True)
def test_a_quarantined_value_of_a_union_is_retried_as_what_it_is(loads):
    declare(loads, id="smallint", a="text", b="jsonb")
    union = ["null", "long", "string", {"type": "array", "items": "long"}]
    schema = {
        "type": "record",
        "name": "row",
        "fields": [{"name": "id", "type": "long"}, {"name": "a", "type": union[:3]}, {"name": "b", "type": union}],
    }
    values = [(5, 5), ("5", "5"), (None, [1])]
    records = [{"id": number * 20_000, "a": a, "b": b} for number, (a, b) in enumerate([*values, *values])]
    loads.write("a.data", avro_of(schema, records))
    assert counts(loads.load()) == (2, 0, 4)
    execute(loads.admin_dsn, "ALTER TABLE target ALTER id TYPE bigint")
    declare(loads, id="bigint", a="text", b="jsonb")

    assert retry_all(loads).retried == 4

    rows = loads.ask("SELECT a, b::text FROM target ORDER BY id")
    assert rows[:3] == rows[3:] == [("5", "5"), ("5", "5"), (None, "[1]")]


MOMENTS = (
    "1931-05-05 10:11:12.123456",
    "1969-12-31 15:59:58.9",
    "1969-12-31 22:59:58.000001",
    "1970-01-01 00:00:00",
    "2014-12-31 23:59:59.999999",
    "2024-07-01 12:00:00.000001",
    "2024-11-03 01:30:00",
    "2300-01-01 00:00:00.5",
    "9999-12-30 23:59:59.999999",
)


@LONG
@pytest.mark.parametrize("of_format", [Format.ORC], indirect=True)
@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles"])
def test_files_that_spark_wrote_have_the_values_that_were_written(loads, tasks, zone, tmp_path):
    """By the library of Java, in each of its codecs, in the time zone of the writer."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    jvm: Any = spark.sparkContext._jvm
    zones = jvm.java.util.TimeZone
    before, before_in_sql = zones.getDefault(), str(spark.conf.get("spark.sql.session.timeZone"))
    rows = ", ".join(f"({number}, timestamp'{moment}')" for number, moment in enumerate(MOMENTS))
    codecs = ("none", "zlib", "snappy", "zstd", "lz4")
    try:
        zones.setDefault(zones.getTimeZone(zone))
        spark.conf.set("spark.sql.session.timeZone", zone)
        frame = spark.sql(
            "SELECT id, at, CAST(id + 0.25 AS decimal(12,2)) AS amount, date(at) AS day, "
            "named_struct('at', at) AS more, array(id, null) AS ids, concat('t', id % 3) AS note "
            f"FROM VALUES {rows} AS t(id, at)"
        )
        for codec in codecs:
            frame.coalesce(1).write.option("compression", codec).orc(str(tmp_path / codec))
    finally:
        zones.setDefault(before)
        spark.conf.set("spark.sql.session.timeZone", before_in_sql)
    declare(
        loads,
        id="bigint",
        at="timestamp",
        amount="numeric(12,2)",
        day="date",
        more="jsonb",
        ids="bigint[]",
        note="text",
    )
    source = replace(loads.declared.source, path=str(tmp_path / "*" / "*.orc"))

    assert counts(loads.load(source=source)) == (len(codecs) * len(MOMENTS), 0, 0)

    found = loads.ask("SELECT DISTINCT id, at, amount, day, more ->> 'at', ids, note FROM target ORDER BY id")
    moments = [datetime.fromisoformat(f"{moment}+00").replace(tzinfo=None) for moment in MOMENTS]
    assert found == [
        (number, at, Decimal(f"{number}.25"), at.date(), at.isoformat(), [number, None], f"t{number % 3}")
        for number, at in enumerate(moments)
    ]
