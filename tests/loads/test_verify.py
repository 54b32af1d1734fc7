"""Verification finds each difference between files, receipts and rows, and nothing else."""

import gzip
import json
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from onceload.cli import main
from onceload.commands.verify import _MEANING
from onceload_core.errors import ExitCode
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    Format,
    Target,
    UnknownFields,
)
from onceload_jobs.verify.findings import Kind
from tests.loads.conftest import line
from tests.loads.verified import named, verified

pytestmark = pytest.mark.usually_staged


def write_parquet(loads):
    table = pa.table({"id": list(range(100)), "amount": ["1.50"] * 100, "note": pa.nulls(100)})
    pq.write_table(table, loads.folder / "a.parquet", row_group_size=30)


FORMATS = {
    "jsonl": lambda loads: loads.write("deep/a.jsonl", "".join(line(number) for number in range(100))),
    "gz": lambda loads: loads.write("a.jsonl.gz", gzip.compress("".join(line(n) for n in range(100)).encode())),
    "zst": lambda loads: loads.write(
        "a.jsonl.zst", zstandard.compress("".join(line(number) for number in range(100)).encode())
    ),
    "csv": lambda loads: loads.write(
        "a.csv", "note,id,amount\n" + "".join(f"n{number},{number},\n" for number in range(100))
    ),
    "parquet": write_parquet,
}


def source_of(loads, name):
    formats = {"csv": Format.CSV, "parquet": Format.PARQUET}
    pattern = f"**/*.{name}" if name in formats else "**/*.jsonl*"
    return replace(
        loads.declared.source,
        path=str(loads.folder / pattern),
        format=formats.get(name, Format.JSONL),
        chunk_bytes=500,
    )


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("deep", [False, True])
def test_an_untouched_load_has_no_differences(loads, name, deep):
    FORMATS[name](loads)
    source = source_of(loads, name)
    loads.load(source=source)

    verification = verified(loads, deep=deep, source=source)

    assert verification.differences == ()
    assert (verification.files, verification.rows, verification.rows_compared) == (1, 100, 100 if deep else 0)
    assert verification.bytes > 100


@pytest.mark.parametrize("deep", [False, True])
def test_quarantined_records_and_unread_ends_are_not_differences(loads, deep):
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE target (id bigint NOT NULL CHECK (id <> 7), amount numeric(12,2), note text,"
            " _producer_id bigint, _sequence bigint)"
        )
    path = loads.write("a.jsonl", "".join(map(line, range(20))) + "{broken\n" + line(20) + '{"id": 2')
    loads.load()
    with path.open("a") as file:
        file.write("1}\n" + line(22))

    assert named(verified(loads, deep=deep)) == []
    loads.load()
    assert named(verified(loads, deep=deep)) == []
    assert loads.ask("SELECT count(*) FROM onceload.quarantine") == [(2,)]


def test_a_record_that_is_too_long_is_not_a_difference(loads):
    source = replace(loads.declared.source, chunk_bytes=2**20, record_bytes_max=2**20)
    loads.write("a.jsonl", line(1) + line(2, note="x" * 2 * 2**20) + line(3))
    assert loads.load(source=source).quarantined == 1

    assert named(verified(loads, source=source, deep=True)) == []


def test_rows_of_another_pipeline_in_the_same_table_are_not_compared(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("others/a.jsonl", line(1))
    source = replace(loads.declared.source, path=f"{loads.folder}/others/*.jsonl")
    loads.load(pipeline=replace(loads.declared.pipeline, name="others"), source=source)

    assert loads.rows() == [1, 1]
    assert named(verified(loads, deep=True)) == []
    assert verified(loads).rows == 1


def test_changed_bytes_are_named_by_their_span(loads):
    content = "".join(line(number) for number in range(100))
    path = loads.write("a.jsonl", content)
    source = replace(loads.declared.source, chunk_bytes=1000)
    loads.load(source=source)
    path.write_text(content[:1500] + "#" + content[1501:])

    (difference,) = verified(loads, source=source).differences

    assert (difference.producer, difference.kind) == ("a.jsonl", Kind.BYTES_CHANGED)
    first, end = map(int, difference.span.strip("[)").split(","))
    assert first <= 1500 < end < len(content)


@pytest.mark.parametrize("name", ["gz", "parquet"])
def test_changed_bytes_are_found_in_files_that_are_not_plain(loads, name):
    FORMATS[name](loads)
    source = source_of(loads, name)
    loads.load(source=source)
    if name == "gz":
        loads.write("a.jsonl.gz", gzip.compress("".join(line(number, "1.51") for number in range(100)).encode()))
    else:
        path = loads.folder / "a.parquet"
        content = bytearray(path.read_bytes())
        content[20] ^= 1
        path.write_bytes(content)

    assert {each.kind for each in verified(loads, source=source).differences} == {Kind.BYTES_CHANGED}


def test_a_missing_a_shorter_and_a_torn_file_are_told_apart(loads):
    loads.write("gone.jsonl", line(1))
    shorter = loads.write("shorter.jsonl", line(2) + line(3))
    packed = gzip.compress((line(4) + line(5)).encode())
    torn = loads.write("torn.jsonl.gz", packed)
    loads.load()
    (loads.folder / "gone.jsonl").unlink()
    shorter.write_text(line(2))
    torn.write_bytes(packed[:30])

    assert named(verified(loads, deep=True)) == [
        ("gone.jsonl", Kind.FILE_MISSING, None),
        ("shorter.jsonl", Kind.FILE_SHORTER, None),
        ("torn.jsonl.gz", Kind.FILE_SHORTER, None),
    ]


def notes_of(verification):
    return {note.name: note.reason for note in verification.not_compared}


def test_a_folder_that_cannot_be_listed_is_named_as_not_compared(closed):
    closed.write("a.jsonl", line(2))
    closed.load()

    verification = verified(closed, deep=True)

    assert named(verification) == []
    reason = "it could not be read, so it is unknown whether it has new records: Permission denied"
    assert notes_of(verification) == {"'closed/'": reason}


def test_files_with_names_that_cannot_be_loaded_are_named_with_those_that_are_not_loaded(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    for name in ("b\n.jsonl", os.fsdecode(b"c\xff.jsonl")):
        loads.write(name, line(2))

    verification = verified(loads, deep=True)

    assert named(verification) == []
    assert notes_of(verification) == {
        "'b\\n.jsonl'": "its name contains a NUL or a newline. Nothing of it is loaded. Rename it",
        "'c\\udcff.jsonl'": "its name is not valid UTF-8. Nothing of it is loaded. Rename it",
    }


@pytest.mark.parametrize("name", ["jsonl", "gz", "parquet"])
def test_a_fifo_in_place_of_a_loaded_file_is_a_difference_that_nothing_waits_for(loads, name):
    FORMATS[name](loads)
    source = source_of(loads, name)
    loads.load(source=source)
    (path,) = (each for each in loads.folder.rglob("*") if each.is_file())
    path.unlink()
    os.mkfifo(path)

    (found,) = verified(loads, source=source, deep=True).differences

    assert found.kind is Kind.FILE_UNREADABLE
    assert "it is not a regular file, so it is not loaded. Its loaded rows stay. Retry when" in found.found


@pytest.mark.parametrize("name", FORMATS)
def test_a_deleted_and_a_duplicated_row_of_one_file_are_both_found(loads, name):
    FORMATS[name](loads)
    source = source_of(loads, name)
    loads.load(source=source)
    ((deleted,), (duplicated,)) = loads.ask("SELECT _sequence FROM target WHERE id IN (41, 42) ORDER BY id")
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM target WHERE id = 41")
        connection.exec_driver_sql("INSERT INTO target SELECT * FROM target WHERE id = 42")

    for deep in (False, True):
        found = {(each.kind, each.sequence_id) for each in verified(loads, source=source, deep=deep).differences}
        assert found == {(Kind.ROW_MISSING, deleted), (Kind.ROW_DUPLICATED, duplicated)}


def test_all_are_counted_and_only_some_are_named(loads):
    for number in range(30):
        loads.write(f"{number:02}.jsonl", line(number) + line(100 + number))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE target")

    verification = verified(loads)

    assert verification.counts == {Kind.ROW_MISSING: 60}
    assert len(verification.differences) == 20
    assert verification.differing == 60
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO target (id, _producer_id) SELECT n, n + 1000 FROM generate_series(1, 25) n"
        )
    assert verified(loads).counts == {Kind.ROW_MISSING: 60, Kind.ROW_FROM_NOWHERE: 25}


def test_without_its_file_a_deleted_row_is_still_counted(loads):
    path = loads.write("a.jsonl", line(1) + line(2) + line(3))
    loads.load()
    path.unlink()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM target WHERE id > 1")

    verification = verified(loads)

    assert verification.counts == {Kind.FILE_MISSING: 1, Kind.ROW_MISSING: 2}
    assert [each.found for each in verification.differences if each.kind is Kind.ROW_MISSING] == [
        "1 rows, 2 of them row missing"
    ]


def test_rows_that_came_from_nowhere_are_found_wherever_they_claim_to_come_from(loads):
    loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    ((producer_id,),) = loads.ask("SELECT DISTINCT _producer_id FROM target")
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO target (id, _producer_id, _sequence) VALUES (7, {producer_id}, 5), (8, {producer_id}, 5000),"
            f" (9, 4711, 0), (10, NULL, NULL), (11, {producer_id}, NULL)"
        )

    assert set(named(verified(loads))) == {
        ("a.jsonl", Kind.ROW_FROM_NOWHERE, 5),
        ("a.jsonl", Kind.ROW_FROM_NOWHERE, 5000),
        ("a.jsonl", Kind.ROW_FROM_NOWHERE, None),
        ("(unknown producer 4711)", Kind.ROW_FROM_NOWHERE, 0),
        ("(a row without _producer_id)", Kind.ROW_FROM_NOWHERE, None),
    }
    assert verified(loads).counts == {Kind.ROW_FROM_NOWHERE: 5}


def test_a_changed_value_is_found_by_the_deep_form_alone(loads):
    loads.write("a.jsonl", "".join(line(number) for number in range(10)))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET amount = 1.51, note = NULL WHERE id = 4")

    assert named(verified(loads)) == []
    verification = verified(loads, deep=True)
    assert {(each.sequence_id, each.column, each.expected, each.found) for each in verification.differences} == {
        (4 * len(line(0)), "amount", "1.50", "1.51"),
        (4 * len(line(0)), "note", "x", "null"),
    }


def test_a_row_that_only_moved_is_found_by_the_deep_form(loads):
    loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET _sequence = 3 WHERE _sequence = 0")

    assert set(named(verified(loads, deep=True))) == {
        ("a.jsonl", Kind.ROW_MISSING, 0),
        ("a.jsonl", Kind.ROW_FROM_NOWHERE, 3),
    }


def test_exotic_values_are_compared_as_the_server_means_them(loads):
    columns = {"id": "uuid", "tags": "varchar(3)[]", "seen": "timestamptz[]", "more": "jsonb", "a:b": "real"}
    loads.write(
        "a.jsonl",
        '{"id":"6F1C7A52-93a8-4d0e-8e0f-0f3b0a5b9c11","tags":["a",null],"seen":["2026-01-01T00:00:00+02:00"],'
        '"more":{"x":1.10,"a":2},"a:b":0.1}\n',
    )
    declared = {"columns": tuple(parse_column(*each) for each in columns.items())}
    loads.load(**declared)

    assert named(verified(loads, deep=True, **declared)) == []
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("""UPDATE target SET more = '{"x": 1.11, "a": 2}', "a:b" = 0.2""")
    differences = verified(loads, deep=True, **declared).differences
    assert {(each.column, each.expected, each.found) for each in differences} == {
        ("more", '{"a": 2, "x": 1.10}', '{"a": 2, "x": 1.11}'),
        ("a:b", "0.1", "0.2"),
    }


def test_a_lost_quarantined_record_is_found(loads):
    loads.write("a.jsonl", line(1) + "{\n{{\n")
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM onceload.quarantine WHERE raw = '{{'")
        connection.exec_driver_sql("UPDATE onceload.quarantine SET sequence_id = 4711")

    assert [(each.kind, each.expected, each.found) for each in verified(loads).differences] == [
        (Kind.QUARANTINE_DIFFERS, "2 quarantined records", "0"),
        (Kind.QUARANTINE_DIFFERS, "no quarantined record: no receipt covers it", "a quarantined record"),
    ]


def test_a_load_that_goes_on_meanwhile_is_not_a_difference(loads, monkeypatch):
    from onceload_core.postgres.audit import AuditView

    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    count = AuditView.count_rows

    def count_later(view, table, **named):
        with path.open("a") as file:
            file.write(line(3))
        loads.load()
        return count(view, table, **named)

    monkeypatch.setattr(AuditView, "count_rows", count_later)

    verification = verified(loads, deep=True)

    assert (named(verification), verification.rows, verification.position) == ([], 2, 1)
    assert loads.rows() == [1, 2, 3]


def test_rows_without_lineage_are_reported_as_beyond_comparison(loads):
    target = Target(schema="public", table="target", lineage=False)
    loads.write("a.jsonl", line(1))
    loads.load(target=target)

    verification = verified(loads, target=target, deep=True)

    assert (named(verification), verification.rows, verification.bytes) == ([], None, len(line(1)))
    assert "have no lineage" in verification.not_compared[0].reason


def test_a_table_that_is_gone_is_one_difference(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE target")

    assert named(verified(loads, deep=True)) == [('"public"."target"', Kind.TABLE_MISSING, None)]


@pytest.mark.parametrize(("altered", "found"), [("ALTER id TYPE text", "text"), ("DROP id", "no such column")])
def test_a_column_of_another_type_is_one_difference(loads, altered, found):
    loads.write("a.jsonl", line(1))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(f"ALTER TABLE target {altered}")

    (difference,) = verified(loads, deep=True).differences

    assert (difference.kind, difference.column) == (Kind.COLUMN_DIFFERS, "id")
    assert (difference.expected, difference.found) == ("bigint", found)


def test_undeclared_columns_are_compared_too(loads):
    loads.declared = replace(loads.declared, unknown_fields=UnknownFields.ADD)
    loads.write("a.jsonl", line(1) + '{"id": 2, "color": "red"}\n')
    loads.load()

    assert named(verified(loads, deep=True)) == []
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET color = 'blue' WHERE id = 2")
    (difference,) = verified(loads, deep=True).differences
    assert (difference.column, difference.found) == ("color", "blue")


PIPELINE = """
pipeline: events
source: {path: landing/*.jsonl, format: jsonl}
columns: {id: bigint not null, amount: "numeric(12,2)", note: text}
target: {table: public.target}
"""


@pytest.fixture
def call(loads, tmp_path, capsys):
    """Run a command on the pipeline's file, as from a shell."""
    file = tmp_path / "events.yaml"
    file.write_text(PIPELINE.replace("landing/", f"{loads.folder}/"))

    def run(*arguments):
        code = main([arguments[0], str(file), *arguments[1:]], {"ONCELOAD_DSN": loads.dsn})
        return code, *capsys.readouterr()

    return run


def test_the_command_names_what_differs_and_what_to_do(loads, call):
    loads.write("a-rather-long-name-of-a-file-of-some-device.jsonl", line(1) + line(2))
    loads.load()
    code, out, err = call("verify", "--deep")
    assert (code, out) == (ExitCode.DONE, "")
    assert "compared 1 file (" in err
    assert err.strip().endswith("compared the values of 2 rows; no differences")
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET amount = 9 WHERE id = 1; DELETE FROM target WHERE id = 2")

    code, out, err = call("verify", "--deep")

    assert code == ExitCode.NEEDS_A_PERSON
    assert "a-rather-long-name-of-a-file-of-some-device.jsonl  value changed" in out
    assert "row missing (1): " in err
    assert "onceload recover" in err
    code, out, err = call("verify", "--deep", "--json")
    document = json.loads(out)
    assert (code, document["differing"]) == (ExitCode.NEEDS_A_PERSON, 2)
    assert {each["kind"] for each in document["differences"]} == {"row missing", "value changed"}


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_difference_has_a_meaning(kind):
    assert _MEANING[kind]
