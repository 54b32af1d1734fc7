"""Files that change while they are read, or between two loads in ways that hide it."""

import gzip
import itertools
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_jobs.formats.parquet import footers
from onceload_jobs.formats.parquet.footers import read_row_groups
from onceload_jobs.formats.parquet.rows import read_parquet
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import CsvOptions, Format, OnRewrite, Publish
from onceload_jobs.publish.replaced_rows import half_read
from onceload_jobs.read import checked_parts as reading
from onceload_jobs.read import rows
from onceload_jobs.read.parts import parts_of
from onceload_jobs.verify.verify import verify
from onceload_jobs.write.writer import Writer
from tests.loads.conftest import line


def lines(*numbers: int) -> str:
    return "".join(map(line, numbers))


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_whose_place_another_takes_while_it_is_read_is_not_taken_for_that(loads, monkeypatch, packed):
    name = "a.jsonl.gz" if packed else "a.jsonl"

    def written(*numbers: int) -> bytes:
        plain = lines(*numbers).encode()
        return gzip.compress(plain) if packed else plain

    if not packed:
        loads.write(name, written(1, 2))
        loads.load()
    path = loads.write(name, written(1, 2, 3))

    def replaced_behind(*arguments, **named):
        for part in parts_of(*arguments, **named):
            loads.write("other", written(5, 6, 7)).rename(path)
            yield part

    with monkeypatch.context() as patched:
        patched.setattr(reading, "parts_of", replaced_behind)
        loads.load()

    report = loads.load()

    if packed:
        # Nothing was loaded of what was there before, and all of what is there now.
        assert loads.rows() == [5, 6, 7]
    else:
        assert [note.needs_a_person for note in report.notes] == [True]
        assert not set(loads.rows()) & {5, 6, 7}


@pytest.mark.parametrize("call", [1, 2])
def test_a_parquet_file_whose_place_another_takes_while_it_is_read_gives_no_rows_of_both(loads, monkeypatch, call):
    source = replace(loads.declared.source, format=Format.PARQUET, path=str(loads.folder / "*.parquet"))
    columns = (parse_column("id", "bigint"),)
    path, other = loads.folder / "a.parquet", loads.folder / "other"
    # The pages of both are at the same places.
    options = {"compression": "none", "use_dictionary": False}
    pq.write_table(pa.table({"id": [1, 2, 3]}), path, **options)

    calls = itertools.count(1)

    def replaced_behind(*arguments, **named):
        """The plan reads the footer too."""
        groups = read_row_groups(*arguments, **named)
        if next(calls) == call:
            pq.write_table(pa.table({"id": [11, 12, 13]}), other, **options)
            other.rename(path)
        return groups

    with monkeypatch.context() as patched:
        patched.setattr(footers, "read_row_groups", replaced_behind)
        loads.load(source=source, columns=columns)
    loads.load(source=source, columns=columns, on_rewrite=OnRewrite.NEW_GENERATION)

    assert loads.rows() == [11, 12, 13]


def test_the_rows_of_a_parquet_file_are_decoded_from_the_bytes_that_were_digested(loads, monkeypatch):
    """A value in the middle changes between the two: neither the edges of the file nor its size show it."""
    source = replace(loads.declared.source, format=Format.PARQUET, path=str(loads.folder / "*.parquet"))
    columns, path = (parse_column("id", "bigint"),), loads.folder / "a.parquet"
    pq.write_table(
        pa.table({"id": range(5000)}), path, compression="none", use_dictionary=False, write_statistics=False
    )
    of_then = path.read_bytes()
    of_later = of_then.replace((2500).to_bytes(8, "little"), (9999).to_bytes(8, "little"))

    def written_before(*arguments, **named):
        path.write_bytes(of_later)
        return read_parquet(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr(rows, "read_parquet", written_before)
        loads.load(source=source, columns=columns)

    assert loads.rows() == list(range(5000))
    assert verify(replace(loads.declared, source=source, columns=columns), loads.engine).differing == 1
    path.write_bytes(of_then)
    assert verify(replace(loads.declared, source=source, columns=columns), loads.engine, deep=True).differing == 0


def test_a_sealed_last_line_is_the_last_also_when_its_file_was_recompressed(loads):
    source = replace(
        loads.declared.source,
        format=Format.CSV,
        path=str(loads.folder / "*.csv.gz"),
        csv=CsvOptions(header=False),
    )
    columns = (parse_column("id", "bigint"),)
    loads.write("a.csv.gz", gzip.compress(b"1\n2\n3", mtime=1))
    loads.load(columns=columns, source=replace(source, sealed_after_s=0))
    loads.write("a.csv.gz", gzip.compress(b"1\n2\n3", 0, mtime=2))
    loads.load(columns=columns, source=source)
    loads.write("a.csv.gz", gzip.compress(b"1\n2\n345\n6\n", mtime=3))

    report = loads.load(columns=columns, source=source)

    assert loads.rows() == [1, 2, 3]
    assert "its last line has grown" in report.notes[0].reason


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("multiline", [False, True])
def test_a_sealed_last_line_that_goes_on_while_it_is_read_is_not_a_record_yet(loads, monkeypatch, packed, multiline):
    options = CsvOptions(header=False, multiline=multiline)
    source = replace(
        loads.declared.source, format=Format.CSV, path=str(loads.folder / "*.csv*"), csv=options, sealed_after_s=0
    )
    columns = (parse_column("id", "bigint"),)
    path = loads.write("a.csv.gz" if packed else "a.csv", gzip.compress(b"1\n12") if packed else b"1\n12")

    def going_on(*arguments, **named):
        for part in parts_of(*arguments, **named):
            if part.raw == b"12":
                with path.open("ab") as file:
                    file.write(gzip.compress(b"34\n5") if packed else b"34\n5")
            yield part

    with monkeypatch.context() as patched:
        patched.setattr(reading, "parts_of", going_on)
        report = loads.load(columns=columns, source=source)

    assert (report.loaded, [note.needs_a_person for note in report.notes]) == (1, [False])
    assert "its last line (2 bytes) was still being written" in report.notes[0].reason
    assert loads.load(columns=columns, source=source).notes == ()
    assert loads.rows() == [1, 5, 1234]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize("packed", [False, True])
def test_a_sealed_last_line_that_goes_on_before_its_commit_is_left_out(loads, monkeypatch, packed):
    source = replace(loads.declared.source, format=Format.CSV, path=str(loads.folder / "*.csv*"), sealed_after_s=0)
    source = replace(source, csv=CsvOptions(header=False))
    columns = (parse_column("id", "bigint"),)
    path = loads.write("a.csv.gz" if packed else "a.csv", gzip.compress(b"1\n12") if packed else b"1\n12")
    loads.write("b.csv", b"2\n")
    copy = Writer.copy_encoded

    def grown(*arguments, **named):
        rows = copy(*arguments, **named)
        path.write_bytes(gzip.compress(b"1\n12") + gzip.compress(b"34\n") if packed else b"1\n1234\n")
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(Writer, "copy_encoded", grown)
        report = loads.load(columns=columns, source=source)

    assert [(note.name, note.needs_a_person) for note in report.notes] == [(path.name, False)]
    assert loads.rows() == [1, 2]
    assert loads.load(columns=columns, source=source).notes == ()
    assert loads.rows() == [1, 2, 1234]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize(("more", "noted", "rows"), [(" \n", ["a.jsonl.gz"], [2]), ("\n", [], [1, 2])])
def test_a_packed_last_line_that_goes_on_before_its_batch_is_published_is_left_out(
    loads, monkeypatch, more, noted, rows
):
    source = replace(loads.declared.source, sealed_after_s=0)
    path = loads.write("a.jsonl.gz", gzip.compress(line(1).encode()[:-1]))
    loads.write("b.jsonl", line(2))

    def grown(*arguments, **named):
        path.write_bytes(gzip.compress(line(1).encode()[:-1]) + gzip.compress((more + line(3)).encode()))
        return half_read(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr("onceload_jobs.load.staged.staged_batch.half_read", grown)
        report = loads.load(source=source)

    assert ([note.name for note in report.notes], loads.rows()) == (noted, rows)
    assert loads.load(source=source).notes == ()
    assert loads.rows() == [1, 2, 3]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize(
    ("multiline", "more", "noted", "rows", "in_the_end"),
    [
        (False, b"34\n", ["a.csv"], [2], [1, 2, 1234]),
        (False, b"\n4\n", [], [1, 2, 12], [1, 2, 4, 12]),
        # There, no newline marks the end of a record.
        (True, b"\n4\n", ["a.csv"], [2], [1, 2, 4, 12]),
    ],
)
def test_a_sealed_last_line_that_goes_on_before_its_batch_is_published_is_left_out(
    *, loads, monkeypatch, multiline, more, noted, rows, in_the_end
):
    source = replace(loads.declared.source, format=Format.CSV, path=str(loads.folder / "*.csv"), sealed_after_s=0)
    source = replace(source, csv=CsvOptions(header=False, multiline=multiline))
    columns = (parse_column("id", "bigint"),)
    path = loads.write("a.csv", b"1\n12")
    loads.write("b.csv", b"2\n")

    def grown(*arguments, **named):
        path.write_bytes(b"1\n12" + more)
        return half_read(*arguments, **named)

    with monkeypatch.context() as patched:
        patched.setattr("onceload_jobs.load.staged.staged_batch.half_read", grown)
        report = loads.load(columns=columns, source=source)

    assert [(note.name, note.needs_a_person) for note in report.notes] == [(name, False) for name in noted]
    assert loads.rows() == rows
    assert loads.load(columns=columns, source=source).notes == ()
    assert loads.rows() == in_the_end


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_packed_file_that_is_empty_inside_replaces_nothing(loads):
    loads.write("a.jsonl.gz", gzip.compress(lines(1, 2).encode()))
    loads.load()
    loads.write("a.jsonl.gz", gzip.compress(b""))

    report = loads.load(on_rewrite=OnRewrite.REPLACE)

    assert loads.rows() == [1, 2]
    assert "Its loaded rows stay and are not replaced" in report.notes[0].reason
