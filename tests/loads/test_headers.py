"""The first record of a CSV file names the columns: a load that cannot tell them leaves the file alone."""

import gzip
from dataclasses import replace

import pytest

from spark_jobs.declared import CsvOptions, Format
from tests.loads.conftest import Loads


@pytest.fixture
def tables(loads: Loads) -> Loads:
    source = replace(loads.declared.source, path=str(loads.folder / "*.csv*"), format=Format.CSV)
    loads.declared = replace(loads.declared, source=replace(source, csv=CsvOptions(multiline=True)))
    return loads


@pytest.mark.parametrize("header", [b'id,amount,no"te\n', b"id,amount,note\xff\n"])
def test_a_header_that_cannot_be_read_stops_no_other_file(tables, header):
    tables.write("a.csv", header + b"1,1.00,x\n")
    tables.write("b.csv", "id,amount,note\n2,2.00,x\n")

    report = tables.load()

    assert tables.rows() == [2]
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("a.csv", True)]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_a_header_that_is_not_complete_is_waited_for(tables, name):
    """Half of it would name other columns, should the rest come before the records are read."""
    pack = gzip.compress if name.endswith(".gz") else bytes
    tables.write(name, pack(b'id,note,"amo'))
    (note,) = tables.load().notes
    tables.write(name, pack(b'id,note,"amount"\n1,x,1.00\n'))
    tables.load()

    assert not note.needs_a_person
    assert [(number, str(amount)) for number, amount in tables.rows("id, amount")] == [(1, "1.00")]
