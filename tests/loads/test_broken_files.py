"""What becomes of files that are cut short, damaged or not what they should be: a note each, and the others load."""

import gzip
import io
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from onceload.cli import main
from onceload_core.errors import ExitCode
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, Format, Identity, MissingColumns, OnRewrite, Publish
from tests.loads.conftest import InThisProcess, Loads, line
from tests.typed_files import avro_of, content_of

pytestmark = pytest.mark.usually_staged

PACK: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "zst": zstandard.compress}
OPEN = "newline"


def counts(report: Report) -> tuple[int, int, int]:
    return report.loaded, report.duplicates, report.quarantined


def notes(report: Report) -> list[tuple[str, bool]]:
    return [(note.name, note.needs_a_person) for note in report.notes]


def csv_of(loads: Loads, **options: Any) -> Loads:
    source = replace(
        loads.declared.source, path=str(loads.folder / "*.csv*"), format=Format.CSV, csv=CsvOptions(**options)
    )
    loads.declared = replace(loads.declared, source=source)
    return loads


def parquet_of(loads: Loads, **columns: str) -> Loads:
    source = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    declared = tuple(parse_column(*each) for each in columns.items()) or loads.declared.columns
    loads.declared = replace(loads.declared, source=source, columns=declared)
    return loads


def load_without_tasks(loads: Loads, **changes: Any) -> Report:
    """A load that finds nothing new, so that it must not ask any worker to read."""

    class NoTasks(InThisProcess):
        def begins(self) -> None:
            raise AssertionError("there is nothing to read")

    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    return load(replace(loads.declared, **changes), settings, batch=new_batch(), executor=NoTasks())


def parquet(first: int, count: int, **kwargs: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": list(range(first, first + count)), "note": ["p"] * count}), sink, **kwargs)
    return sink.getvalue()


def with_damaged_page(content: bytes, *, group: int = 0) -> bytes:
    place = pq.read_metadata(io.BytesIO(content)).row_group(group).column(0)
    first = place.dictionary_page_offset or place.data_page_offset
    return content[: first + 8] + b"\xff" * 40 + content[first + 48 :]


# Packed files.


@pytest.mark.parametrize("suffix", PACK)
def test_a_packed_last_line_without_newline_is_noted_until_it_is_whole(loads, suffix, tmp_path, capsys):
    pack = PACK[suffix]
    path = loads.write(f"a.jsonl.{suffix}", pack((line(1) + line(2)).encode() + b'{"id": 3'))

    first = loads.load()

    assert (counts(first), notes(first)) == ((2, 0, 0), [(path.name, False)])
    assert "its last line (8 bytes) has no newline yet" in first.notes[0].reason
    again = load_without_tasks(loads)
    assert notes(again) == [(path.name, False)]
    assert OPEN in again.notes[0].reason
    pipeline = tmp_path / "events.yaml"
    pipeline.write_text(
        f"pipeline: events\nsource: {{path: {loads.folder}/**/*.jsonl*, format: jsonl}}\n"
        'columns: {id: bigint not null, amount: "numeric(12,2)", note: text}\ntarget: {table: public.target}\n'
    )
    assert main(["why", str(pipeline), path.name, "--json"], {"ONCELOAD_DSN": loads.dsn}) == ExitCode.DONE
    assert OPEN in json.loads(capsys.readouterr().out)["next_load"]

    with path.open("ab") as file:
        file.write(pack(b"}\n" + line(4).encode()))
    assert counts(loads.load()) == (2, 0, 0)
    assert (counts(load_without_tasks(loads)), loads.rows()) == ((0, 0, 0), [1, 2, 3, 4])


def test_a_packed_last_line_without_newline_counts_once_the_file_is_sealed(loads):
    loads.write("a.jsonl.gz", gzip.compress((line(1) + line(2).rstrip()).encode()))
    sealed = replace(loads.declared.source, sealed_after_s=0)

    assert counts(loads.load()) == (1, 0, 0)
    assert counts(loads.load(source=sealed)) == (1, 0, 0)
    assert load_without_tasks(loads, source=sealed).notes == ()
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("left", [0.1, 0.9], ids=["in its header", "in its records"])
@pytest.mark.parametrize("suffix", PACK)
def test_a_packed_file_that_breaks_off_needs_a_person_once_it_is_sealed(loads, suffix, left):
    csv_of(loads)
    content = PACK[suffix](b"id,amount,note\n" + b"".join(b"%d,1.00,%x\n" % (n, n**9) for n in range(20_000)))
    path = loads.write(f"a.csv.{suffix}", content[: int(left * 100) if left < 0.5 else int(left * len(content))])
    sealed = replace(loads.declared.source, sealed_after_s=0)

    being_written = loads.load()
    first, again = loads.load(source=sealed), loads.load(source=sealed)

    assert notes(being_written) == [(path.name, False)]
    assert "as in a file that is still being written" in being_written.notes[0].reason
    assert [notes(first), notes(again)] == [[(path.name, True)]] * 2
    assert "it breaks off, although source.sealed says that it is complete" in again.notes[0].reason
    path.write_bytes(content)
    assert loads.load(source=sealed).notes == ()
    assert loads.rows() == list(range(20_000))


def test_a_packed_file_of_one_open_line_is_not_unpacked_again_to_know(loads):
    loads.write("a.jsonl.gz", gzip.compress(b'{"id": 1'))

    assert OPEN in loads.load().notes[0].reason
    assert OPEN in load_without_tasks(loads).notes[0].reason


@pytest.mark.parametrize("suffix", PACK)
def test_a_file_is_loaded_up_to_its_damage_and_the_rest_is_noted(loads, suffix):
    content = PACK[suffix]((line(1) + line(2)).encode())
    path = loads.write(f"a.jsonl.{suffix}", content + b"trailing garbage")

    report = loads.load()

    assert (counts(report), notes(report)) == ((2, 0, 0), [(path.name, True)])
    assert "Only whole records before that are loaded" in report.notes[0].reason
    again = load_without_tasks(loads)
    assert notes(again) == [(path.name, True)]
    path.write_bytes(content + PACK[suffix](line(3).encode()))
    assert counts(loads.load()) == (1, 0, 0)
    assert loads.rows() == [1, 2, 3]


def test_a_packed_file_of_which_no_record_is_whole_makes_no_commit(loads):
    path = loads.write("a.jsonl.gz", gzip.compress(b'{"id": 1') + b"garbage")

    assert [notes(loads.load()) for _ in range(2)] == [[(path.name, True)]] * 2
    assert loads.ask("SELECT * FROM onceload.ledger") == []


def test_a_copy_of_a_file_whose_last_line_is_open_is_noted_too(loads):
    source = replace(loads.declared.source, identity=Identity.CONTENT)
    packed = gzip.compress(("".join(map(line, range(300))) + '{"id": 3').encode())
    loads.write("a.jsonl.gz", packed)
    loads.load(source=source)
    loads.write("b.jsonl.gz", packed)

    for _ in range(2):
        assert [name for name, _ in sorted(notes(loads.load(source=source)))] == ["a.jsonl.gz", "b.jsonl.gz"]
    assert loads.rows() == list(range(300))


# CSV.


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("id,amount,größe,note\n".encode("latin-1"), "UTF-8"),
        (b'id,amount,na"me,note\n', "stray quote"),
        (b'"id\nnumber",amount,note\n', "never closed"),
        (b"id;amount;note\n", "'id;amount;note'"),
        (b"id,note\n", "among them amount"),
        (b"amount,note\n", "among them id"),
    ],
)
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_header_that_is_none_is_a_note_and_the_other_files_load(loads, header, why, suffix):
    csv_of(loads)
    content = header + b"1,2.00,a\n"
    loads.write(f"a.csv{suffix}", gzip.compress(content) if suffix else content)
    loads.write("b.csv", b"id,amount,note\n5,6.00,b\n")

    report = loads.load()

    assert (counts(report), notes(report)) == ((1, 0, 0), [(f"a.csv{suffix}", True)])
    assert why in report.notes[0].reason
    assert notes(load_without_tasks(loads)) == [(f"a.csv{suffix}", True)]
    assert loads.rows() == [5]


def test_columns_that_a_header_lacks_are_null_where_that_is_declared(loads):
    csv_of(loads, missing_columns=MissingColumns.IGNORE)
    loads.write("a.csv", b"note,id\na,1\n")
    loads.write("b.csv", b"note;id\na;1\n")

    report = loads.load()

    assert (counts(report), notes(report)) == ((1, 0, 0), [("b.csv", True)])
    assert loads.rows("id, amount, note") == [(1, None, "a")]


def test_a_header_may_go_over_several_lines(loads):
    csv_of(loads, multiline=True)
    loads.write("a.csv", b'\xef\xbb\xbf"id",amount,note,"a\nb"\n1,2.00,"x\ny",z\n')

    assert counts(loads.load()) == (1, 0, 0)
    assert loads.rows("id, note") == [(1, "x\ny")]


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("chunk_bytes", [1, 7, 2**20])
def test_a_mark_before_a_first_value_over_several_lines_tears_nothing(loads, suffix, chunk_bytes):
    csv_of(loads, multiline=True, header=False)
    content = b'\xef\xbb\xbf"x\ny",1\n"z",2\n'
    loads.write(f"a.csv{suffix}", gzip.compress(content) if suffix else content)
    columns = (parse_column("note", "text"), parse_column("id", "bigint"))

    report = loads.load(columns=columns, source=replace(loads.declared.source, chunk_bytes=chunk_bytes))

    assert counts(report) == (2, 0, 0)
    assert loads.rows("id, note") == [(1, "x\ny"), (2, "z")]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_header_that_is_still_being_written_needs_no_person(loads, suffix):
    csv_of(loads, multiline=True)
    loads.write(f"a.csv{suffix}", gzip.compress(b"id,am") if suffix else b"id,am")

    report = load_without_tasks(loads)

    assert notes(report) == [(f"a.csv{suffix}", False)]
    assert OPEN in report.notes[0].reason


def test_an_open_last_record_over_several_lines_is_noted_and_takes_no_tasks(loads):
    csv_of(loads, multiline=True)
    path = loads.write("a.csv", b'id,amount,note\n1,2.00,a\n2,3.00,"b\n')

    first = loads.load()

    assert (counts(first), notes(first)) == ((1, 0, 0), [("a.csv", False)])
    again = load_without_tasks(loads)
    assert [note.reason for note in again.notes] == [
        "its last line (10 bytes) is not complete: the quote that opens at line 3 (byte 31) is not closed yet. "
        "It is loaded once it is complete"
    ]
    with path.open("ab") as file:
        file.write(b'c"\n')
    assert counts(loads.load()) == (1, 0, 0)
    assert load_without_tasks(loads).notes == ()
    assert loads.rows("id, note") == [(1, "a"), (2, "b\nc")]


@pytest.mark.parametrize("sealed_after_s", [None, 0])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_quote_that_is_not_closed_in_all_that_a_record_may_have_needs_a_person(loads, suffix, sealed_after_s):
    csv_of(loads, multiline=True)
    source = replace(loads.declared.source, chunk_bytes=100, record_bytes_max=1000, sealed_after_s=sealed_after_s)
    content = b'id,amount,note\n1,2.00,a\n2,3.00,"b\n' + b"3,4.00,c\n" * 500
    path = loads.write(f"a.csv{suffix}", gzip.compress(content) if suffix else content)
    loads.write("b.csv", b"id,amount,note\n5,6.00,b\n")

    first = loads.load(source=source)
    again = loads.load(source=source) if suffix else load_without_tasks(loads, source=source)

    assert counts(first) == (2, 0, 0)
    assert [notes(report) for report in (first, again)] == [[(path.name, True)]] * 2
    for report in (first, again):
        assert "the quote that opens at line 3 (byte 31) is not closed in the 1000 bytes" in report.notes[0].reason
    mended = content.replace(b'"', b"")
    path.write_bytes(gzip.compress(mended) if suffix else mended)
    assert loads.load(source=source).notes == ()
    assert loads.rows() == [1, 2, *[3] * 500, 5]


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_quote_that_is_open_at_the_end_of_a_sealed_file_needs_a_person(loads, suffix):
    csv_of(loads, multiline=True)
    source = replace(loads.declared.source, sealed_after_s=0)
    content = b'id,amount,note\n1,2.00,a\n2,3.00,"b\n' + b"3,4.00,c\n" * 500
    path = loads.write(f"a.csv{suffix}", gzip.compress(content) if suffix else content)

    first, again = loads.load(source=source), loads.load(source=source)

    assert (counts(first), counts(again)) == ((1, 0, 0), (0, 0, 0))
    for report in (first, again):
        assert notes(report) == [(path.name, True)]
        assert "the quote that opens at line 3 (byte 31) is not closed before the end" in report.notes[0].reason
    mended = content.replace(b'"', b"")
    path.write_bytes(gzip.compress(mended) if suffix else mended)
    assert loads.load(source=source).notes == ()
    assert loads.rows() == [1, 2, *[3] * 500]


def test_a_quote_that_is_open_in_the_last_line_alone_makes_a_bad_record_of_it(loads):
    csv_of(loads, multiline=True)
    loads.write("a.csv", b'id,amount,note\n1,2.00,a\n2,3.00,"b')

    report = loads.load(source=replace(loads.declared.source, sealed_after_s=0))

    assert (counts(report), notes(report)) == ((1, 0, 1), [])


def test_a_file_of_records_over_several_lines_is_done_when_all_of_it_is_loaded(loads):
    csv_of(loads, multiline=True)
    loads.write("a.csv", b"id,amount,note\n1,2.00,a\n")
    loads.write("b.csv", b"")
    assert counts(loads.load()) == (1, 0, 0)

    assert load_without_tasks(loads).notes == ()
    assert load_without_tasks(loads, source=replace(loads.declared.source, sealed_after_s=0)).notes == ()


# Files that are not text, whatever their names say.

UTF_16 = (line(1) + line(2)).encode("utf-16")
RETURNS = (line(1) + line(2)).replace("\n", "\r").encode()


@pytest.mark.parametrize("sealed_after_s", [None, 0])
@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("a.jsonl.GZ", gzip.compress(line(1).encode()), "compressed with gzip"),
        ("a.jsonl.gz", gzip.compress(gzip.compress(line(1).encode())), "compressed with gzip"),
        ("a.jsonl", UTF_16, "UTF-16"),
        ("a.jsonl.gz", gzip.compress(UTF_16), "UTF-16"),
        ("a.jsonl", RETURNS, "carriage returns"),
        ("a.jsonl.gz", gzip.compress(RETURNS), "carriage returns"),
    ],
    # Packed bytes hold the time, and ids of tests must not.
    ids=["misnamed", "packed twice", "UTF-16", "packed UTF-16", "returns", "packed returns"],
)
def test_a_file_that_is_not_text_in_lines_is_not_consumed_at_all(loads, name, content, why, sealed_after_s):
    source = replace(loads.declared.source, sealed_after_s=sealed_after_s)
    path = loads.write(name, content)
    loads.write("b.jsonl", line(5))

    first = loads.load(source=source)
    again = loads.load(source=source) if name.endswith(".gz") else load_without_tasks(loads, source=source)

    assert counts(first) == (1, 0, 0)
    assert [notes(report) for report in (first, again)] == [[(name, True)]] * 2
    assert why in first.notes[0].reason
    path.write_bytes(gzip.compress(line(7).encode()) if name.endswith(".gz") else line(7).encode())
    assert (counts(loads.load(source=source)), loads.rows()) == ((1, 0, 0), [5, 7])


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("content", [b"id,amount,note\r1,2.00,a\r", "id,amount,note\n1,2.00,a\n".encode("utf-16")])
def test_a_header_that_is_not_text_in_lines_needs_a_person(loads, suffix, content):
    csv_of(loads)
    loads.write(f"a.csv{suffix}", gzip.compress(content) if suffix else content)

    report = load_without_tasks(loads)

    assert notes(report) == [(f"a.csv{suffix}", True)]
    assert "carriage returns" in report.notes[0].reason or "UTF-16" in report.notes[0].reason


# Parquet.


@pytest.mark.parametrize("broken", [b"", b"PAR1", parquet(0, 500)[:-50], with_damaged_page(parquet(0, 500))])
def test_a_parquet_file_that_is_none_is_a_note_and_its_neighbours_load(loads, broken):
    parquet_of(loads, id="bigint not null", note="text")
    loads.write("a.parquet", parquet(1000, 10))
    loads.write("b.parquet", broken)
    loads.write("c.parquet", parquet(2000, 10))

    report = loads.load()

    assert (counts(report), notes(report)) == ((20, 0, 0), [("b.parquet", True)])
    assert loads.rows() == [*range(1000, 1010), *range(2000, 2010)]
    loads.write("b.parquet", parquet(0, 500))
    assert counts(loads.load()) == (500, 0, 0)
    assert (len(loads.rows()), load_without_tasks(loads).notes) == (520, ())


def nested(of_format: Format, depth: int) -> bytes:
    """One row, with a list of a list of … a number."""
    values = pa.array([1], pa.int64())
    of_type: Any = "long"
    value: Any = 1
    for _ in range(depth):
        values = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), values)
        of_type, value = {"type": "array", "items": of_type}, [value]
    if of_format is not Format.AVRO:
        return content_of(pa.table({"id": [1], "note": values}), of_format)
    fields = [{"name": "id", "type": "long"}, {"name": "note", "type": of_type}]
    return avro_of({"type": "record", "name": "row", "fields": fields}, [{"id": 1, "note": value}])


@pytest.mark.parametrize(
    ("of_format", "depth", "why"),
    [
        (Format.PARQUET, 50, "it uses a schema that is nested too deeply, in more than 100 levels"),
        (Format.ORC, 100, "it uses a feature of ORC (values that are nested too deeply)"),
        (Format.AVRO, 300, "it uses values that are nested too deeply"),
    ],
    ids=["parquet", "orc", "avro"],
)
def test_a_file_of_values_that_are_nested_too_deeply_is_a_note_and_its_neighbours_load(loads, of_format, depth, why):
    declared = (parse_column("id", "bigint"), parse_column("note", "jsonb"))
    source = replace(loads.declared.source, path=str(loads.folder / "*"), format=of_format)
    loads.declared = replace(loads.declared, source=source, columns=declared)
    for name, levels in {"a": 1, "b": depth, "c": 2}.items():
        (loads.folder / name).write_bytes(nested(of_format, levels))

    report = loads.load()

    assert (report.loaded, notes(report)) == (2, [("b", True)])
    assert f"{why}, which is not supported" in report.notes[0].reason


def test_the_row_groups_around_a_damaged_one_are_loaded_once(loads):
    parquet_of(loads, id="bigint not null", note="text")
    source = replace(loads.declared.source, chunk_bytes=1)
    loads.write("a.parquet", with_damaged_page(parquet(0, 300, row_group_size=100), group=1))
    loads.write("b.parquet", parquet(1000, 10))

    report = loads.load(source=source)

    assert (counts(report), notes(report)) == ((210, 0, 0), [("a.parquet", True)])
    assert loads.rows() == [*range(100), *range(200, 300), *range(1000, 1010)]
    again = loads.load(source=source)
    assert (counts(again), notes(again)) == ((0, 0, 0), [("a.parquet", True)])


def test_a_parquet_value_beyond_all_calendars_is_one_bad_record(loads):
    parquet_of(loads, id="bigint not null", day="date", more="jsonb", times="timestamp[]")
    far, near = 10_000_000, 20_000
    days = [near, far, near, near, near]
    structs = pa.StructArray.from_arrays([pa.array([near, near, far, near, near], pa.int32()).cast(pa.date32())], ["d"])
    times = pa.array([[0], [0], [0], [2**62], [0]], pa.list_(pa.int64())).cast(pa.list_(pa.timestamp("us")))
    table = pa.table(
        {"id": list(range(5)), "day": pa.array(days, pa.int32()).cast(pa.date32()), "more": structs, "times": times}
    )
    pq.write_table(table, loads.folder / "a.parquet")

    assert counts(loads.load()) == (2, 0, 3)
    assert loads.rows() == [0, 4]
    assert loads.ask("SELECT sequence_id, column_name FROM onceload.quarantine ORDER BY 1") == [
        (1, "day"),
        (2, "more"),
        (3, "times"),
    ]


@pytest.mark.parametrize("publish", [Publish.STAGED], indirect=True)
@pytest.mark.parametrize("columns", [{"uid": [1], "text": ["a"]}, {"id": [1]}, {"note": ["a"]}, {"uid": []}])
def test_a_parquet_file_that_lacks_a_declared_column_is_a_note_and_replaces_no_row(loads, columns):
    parquet_of(loads, id="bigint", note="text")
    loads.write("a.parquet", parquet(1, 2))
    loads.load()
    for name in ("a.parquet", "b.parquet"):
        pq.write_table(pa.table(columns), loads.folder / name)
    loads.write("c.parquet", parquet(5, 1))

    report = loads.load(on_rewrite=OnRewrite.REPLACE)

    assert (counts(report), notes(report)) == ((1, 0, 0), [("a.parquet", True), ("b.parquet", True)])
    lacking = ", ".join(name for name in ("id", "note") if name not in columns)
    assert f"names '{next(iter(columns))}'" in report.notes[0].reason
    assert f"among them {lacking}. Nothing more of it is loaded." in report.notes[0].reason
    assert "by a pipeline file of their own" in report.notes[0].reason
    assert loads.rows("id, note") == [(1, "p"), (2, "p"), (5, "p")]


def test_parquet_files_without_a_new_column_are_loaded_by_a_pipeline_of_their_own(loads):
    parquet_of(loads, id="bigint", note="text")
    older = replace(loads.declared.source, path=str(loads.folder / "older" / "*.parquet"))
    loads.write("older/a.parquet", parquet(1, 2))
    pq.write_table(pa.table({"id": [5], "note": ["b"], "price": [1]}), loads.folder / "b.parquet")

    loads.load(columns=(*loads.declared.columns, parse_column("price", "integer")))
    pipeline = replace(loads.declared.pipeline, name="older_events")
    loads.load(pipeline=pipeline, source=older)

    assert loads.rows("id, note, price") == [(1, "p", None), (2, "p", None), (5, "b", 1)]


def test_two_parquet_columns_of_one_name_are_a_note(loads):
    parquet_of(loads, id="bigint not null", note="text")
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array(["x"])], names=["id", "id", "note"])
    pq.write_table(twice, loads.folder / "a.parquet")
    loads.write("b.parquet", parquet(5, 1))

    report = loads.load()

    assert (counts(report), notes(report)) == ((1, 0, 0), [("a.parquet", True)])
    assert "several columns called 'id'" in report.notes[0].reason


def test_parquet_files_without_rows_are_done_after_one_look(loads):
    parquet_of(loads, id="bigint not null", note="text")
    loads.write("a.parquet", parquet(0, 0))
    sink = io.BytesIO()
    schema = pa.schema([("id", pa.int64()), ("note", pa.string())])
    with pq.ParquetWriter(sink, schema) as writer:
        writer.write_table(pa.table({"id": [7], "note": ["a"]}))
        writer.write_table(schema.empty_table())
    loads.write("b.parquet", sink.getvalue())
    pq.write_table(pa.table({}), loads.folder / "c.parquet")

    assert counts(loads.load()) == (1, 0, 0)
    assert load_without_tasks(loads).notes == ()


# Records that are too long.


@pytest.mark.parametrize("chunk_bytes", [10, 3000, 2**20])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_record_beyond_record_bytes_max_is_quarantined_whatever_the_chunks_are(loads, chunk_bytes, suffix):
    source = replace(loads.declared.source, chunk_bytes=chunk_bytes, record_bytes_max=1000)
    long = line(2, note="x" * 5000)
    content = (line(1) + long + line(3)).encode()
    loads.write(f"a.jsonl{suffix}", gzip.compress(content) if suffix else content)

    assert counts(loads.load(source=source)) == (2, 0, 1)
    assert loads.rows() == [1, 3]
    ((raw, reason),) = loads.ask("SELECT raw, reason FROM onceload.quarantine")
    assert bytes(raw) == long.rstrip("\n").encode()
    assert reason == f"{len(long)} bytes are more than record_bytes_max"
