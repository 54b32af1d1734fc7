"""Values of files whose column is gone from the table, and rows that are not counted as compared."""

from dataclasses import replace

import pyarrow as pa
import pytest
from pyarrow import parquet

from onceload.choices import chosen
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, OnNewColumn, Publish, Target, UnknownFields, Write
from onceload_jobs.verify.findings import Kind
from tests.loads.conftest import InThisProcess, line
from tests.loads.verified import named, verified
from tests.servers import execute

pytestmark = pytest.mark.usually_staged


@pytest.fixture
def adding(loads):
    loads.declared = replace(loads.declared, unknown_fields=UnknownFields.ADD)
    return loads


def _of(column):
    return (parse_column(*column.split()),)


def values_named(loads):
    differences = verified(loads, deep=True).differences
    return sorted((each.producer, each.kind, each.column, each.expected, each.found) for each in differences)


def jsonl(loads):
    loads.write("a.jsonl", '{"id": 1}\n{"id": 2, "color": "red", "size": 3}\n')
    loads.write("b.jsonl", '{"id": 3, "color": [1, "x"]}\n{"id": 4, "color": null}\n')
    return [("a.jsonl", "red"), ("b.jsonl", '[1, "x"]')]


def csv(loads):
    source = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV)
    loads.declared = replace(loads.declared, source=source)
    loads.write("a.csv", "id,amount,note,color\n1,1,x,red\n2,1,x,\n")
    return [("a.csv", "red")]


def of_parquet(loads):
    source = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    loads.declared = replace(loads.declared, source=source)
    rows = pa.table({"id": [1, 2], "amount": [None, 1.5], "note": ["x", "y"], "color": [None, [7]]})
    parquet.write_table(rows, loads.folder / "a.parquet")
    return [("a.parquet", "[7]")]


@pytest.mark.parametrize("files", [jsonl, csv, of_parquet])
def test_each_value_of_a_column_that_a_load_had_added_is_named_if_the_column_is_dropped(adding, files):
    expected = files(adding)
    adding.load()
    assert named(verified(adding, deep=True)) == []

    execute(adding.admin_dsn, "ALTER TABLE target DROP COLUMN color")

    assert values_named(adding) == [
        (name, Kind.VALUE_CHANGED, "color", value, "no such column") for name, value in expected
    ]


def test_a_dropped_column_is_named_beside_another_changed_value(adding):
    jsonl(adding)
    adding.load()

    execute(adding.admin_dsn, "ALTER TABLE target DROP COLUMN color; UPDATE target SET size = 4 WHERE id = 2")

    assert [each[2:] for each in values_named(adding)] == [
        ("color", "red", "no such column"),
        ("size", "3", "4"),
        ("color", '[1, "x"]', "no such column"),
    ]


def test_a_field_behind_the_loaded_part_and_one_of_a_quarantined_record_miss_no_column(adding):
    path = adding.write("a.jsonl", line(1) + '{"id": "x", "color": "red"}\n')
    adding.load()
    path.write_text(path.read_text() + '{"id": 2, "size": 3}\n')

    assert named(verified(adding, deep=True)) == []


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_merge_misses_only_the_values_that_its_rows_should_have(adding):
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    adding.declared = replace(adding.declared, target=target)
    adding.write("a.jsonl", '{"id": 1, "color": "old"}\n{"id": 2, "color": "blue"}\n{"id": 1}\n')
    adding.load()

    execute(adding.admin_dsn, "ALTER TABLE target DROP COLUMN color")

    assert [each[2:] for each in values_named(adding)] == [("color", "blue", "no such column")]


def test_a_declared_column_that_a_load_had_added_is_named_if_it_is_dropped(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    changed = replace(loads.declared, columns=(*loads.declared.columns, *_of("color text")))
    loads.declared = replace(changed, on_new_column=OnNewColumn.ADD)
    loads.write("b.jsonl", '{"id": 2, "color": "red"}\n')
    loads.load()

    execute(loads.admin_dsn, "ALTER TABLE target DROP COLUMN color")

    (difference,) = verified(loads, deep=True).differences
    assert (difference.kind, difference.column, difference.found) == (Kind.COLUMN_DIFFERS, "color", "no such column")


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_file_that_was_replaced_under_a_new_version_is_compared_and_no_note_says_otherwise(loads):
    loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    loads.declared = replace(loads.declared, columns=(*loads.declared.columns, *_of("color text")))
    execute(loads.admin_dsn, "ALTER TABLE target ADD COLUMN color text")
    assert [note.name for note in verified(loads, deep=True).not_compared] == ["a.jsonl"]

    settings = LoadSettings(
        ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, choice=chosen(loads.declared, files=(), replaces=True)
    )
    load(loads.declared, settings, batch=Batch("again"), executor=InThisProcess())

    found = verified(loads, deep=True)
    assert (named(found), found.not_compared, found.rows_compared) == ([], (), 2)
