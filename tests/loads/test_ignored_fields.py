"""Fields without a column are not loaded: each report counts and names them."""

import json
from dataclasses import replace
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload.commands.reports import print_report
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.formats.jsonl import rows as jsonl
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, Publish, UnknownFields
from tests.loads.conftest import InThisProcess, Loads, line


def lines(*records: dict[str, object]) -> str:
    return "".join(json.dumps({"id": number, **record}) + "\n" for number, record in enumerate(records))


def test_a_report_counts_and_names_the_fields_that_are_not_loaded(loads, capsys):
    loads.write("a.jsonl", lines({"zip": 1, "note": "x"}, {"zip": 2, "amount": 3, "fax": None}, {}))

    report = loads.load()

    assert (report.loaded, report.ignored_fields, report.ignored_of) == (3, {"zip": 2, "fax": 1}, 3)
    assert report.notes == ()
    print_report(report)
    said = "fields without a column were not loaded: zip (in 2 of 3 records looked at), fax (in 1 of"
    assert said in capsys.readouterr().err


def test_fields_of_several_files_are_added_up(loads):
    for name in ("a.jsonl", "b.jsonl"):
        loads.write(name, lines({"zip": 1}, {name[0]: 1}))

    assert loads.load().ignored_fields == {"zip": 2, "a": 1, "b": 1}
    assert loads.load().ignored_fields == {}


@pytest.mark.parametrize(("rule", "loaded"), [(UnknownFields.ADD, 2), (UnknownFields.FAIL, 1)])
def test_nothing_is_ignored_where_fields_are_added_or_refused(loads, rule, loaded):
    loads.write("a.jsonl", lines({"zip": 1}, {}))

    report = loads.load(unknown_fields=rule)

    assert (report.loaded, report.ignored_fields, report.ignored_of) == (loaded, {}, 0)


def test_clean_lines_are_not_looked_at_a_second_time(loads):
    loads.write("a.jsonl", "".join(map(line, range(1000))))

    with patch.object(jsonl, "undeclared_in", side_effect=AssertionError):
        assert loads.load().ignored_fields == {}


def test_a_rare_field_is_found(loads):
    loads.write("a.jsonl", "".join(map(line, range(5000))) + lines({"zip": 1}) + "".join(map(line, range(500))))

    report = loads.load()

    assert report.ignored_fields == {"zip": 1}
    assert report.ignored_of in range(5001, 5502)


@pytest.mark.parametrize("of_type", ["text", "jsonb"])
def test_a_field_inside_of_an_object_is_named_by_its_path_unless_all_of_it_is_kept(loads, of_type):
    columns = {"id": "bigint", "customer": "jsonb"} if of_type == "jsonb" else {"id": "bigint"}
    declared = (
        *(parse_column(*each) for each in columns.items()),
        replace(parse_column("city", "text"), path=("customer", "address", "city")),
    )
    address = {"city": "Rome", "zip": 1}
    loads.write("a.jsonl", lines({"customer": {"name": "n", "address": address}}, {"customer": None, "phone": 1}))

    report = loads.load(columns=declared)

    inside = {} if of_type == "jsonb" else {"customer.name": 1, "customer.address.zip": 1}
    assert report.ignored_fields == {**inside, "phone": 1}
    assert loads.rows("id, city") == [(0, "Rome"), (1, None)]


def test_fields_of_csv_count_for_all_records(loads):
    loads.write("a.csv", "id,zip,amount,note\n1,2,3,x\n2,3,4,y\n")
    source = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV)

    report = loads.load(source=source)

    assert (report.ignored_fields, report.ignored_of) == ({"zip": 2}, 2)


def test_fields_of_parquet_count_for_all_records(loads):
    table = pa.table({"id": [1, 2], "amount": [1, 2], "note": ["x", "y"], "zip": [1, None]})
    pq.write_table(table, loads.folder / "a.parquet")
    source = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)

    report = loads.load(source=source)

    assert (report.ignored_fields, report.ignored_of) == ({"zip": 2}, 2)


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_batch_that_is_published_later_reports_what_was_ignored_when_it_was_staged(loads: Loads):
    loads.write("a.jsonl", lines({"zip": 1}, {}))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    staging = replace(settings, publishes=False)

    staged = load(loads.declared, staging, batch=Batch("kept"), executor=InThisProcess())
    published = publish_batch(loads.declared, settings, batch=Batch("kept"))

    assert staged.ignored_fields == published.ignored_fields == {"zip": 1}
    assert (published.loaded, published.notes) == (2, ())
