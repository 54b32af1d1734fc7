"""Comparisons of contents that a store interrupts: no record is loaded twice because of that."""

from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_jobs.files import reading
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.pipeline.declared import Format
from onceload_jobs.plan import copies, other_names, same_content
from onceload_jobs.read import checked_parts
from tests.loads.conftest import line
from tests.loads.same_content import lines, settled

pytestmark = pytest.mark.usually_staged


def no_answer(url, *_, **__):
    raise Unreadable(url, "the store did not answer")


class Interrupted:
    """A stream whose reader gets an error of the store."""

    def __init__(self, stream):
        self.stream = stream

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()

    def read(self, size):
        raise OSError("the connection was reset")


def interrupted(url):
    return Interrupted(reading.open_stream(url))


def opened_by(turns):
    """What opens a stream, by turns; after them, all is well."""
    left = list(turns)

    def opened(url):
        return left.pop(0)(url) if left else reading.open_stream(url)

    return opened


@pytest.mark.parametrize("fails", [no_answer, interrupted])
@pytest.mark.parametrize("at", [0, 1])
def test_a_renamed_file_is_not_new_if_its_comparison_is_interrupted(logs, monkeypatch, fails, at):
    x = logs.write("x.log", lines(0, 10))
    settled(logs)
    x.rename(x.with_name("y.log"))

    with monkeypatch.context() as patched:
        patched.setattr(copies, "open_stream", opened_by([*[reading.open_stream] * at, fails]))
        report = logs.load()

    assert (report.loaded, [(note.name, note.is_unreadable) for note in report.notes]) == (0, [("y.log", True)])
    settled(logs)
    assert logs.rows() == list(range(10))


def test_a_renamed_parquet_file_is_not_new_if_its_comparison_is_interrupted(logs, monkeypatch):
    source = replace(logs.declared.source, format=Format.PARQUET)
    x = logs.write("x.log", b"")
    amounts = pa.array([Decimal("1.50")] * 2, pa.decimal128(12, 2))
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int64()), "amount": amounts, "note": ["x", "y"]}), x)
    settled(logs, source=source)
    x.rename(x.with_name("y.log"))

    with monkeypatch.context() as patched:
        patched.setattr(checked_parts, "read_at", no_answer)
        report = logs.load(source=source)

    assert (report.loaded, [(note.name, note.is_unreadable) for note in report.notes]) == (0, [("y.log", True)])
    settled(logs, source=source)
    assert logs.rows() == [1, 2]


def test_copies_part_where_they_do_although_the_search_for_that_was_interrupted(logs, monkeypatch):
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    logs.write("x.log", lines(0, 20) + line(100))
    logs.load()
    logs.write("y.log", lines(0, 20) + line(200))

    with monkeypatch.context() as patched:
        patched.setattr(other_names, "read_parts", lambda chunk, _: no_answer(chunk.url))
        report = logs.load()

    assert (report.loaded, [(note.name, note.is_unreadable) for note in report.notes]) == (0, [("y.log", True)])
    settled(logs)
    assert logs.rows() == [*range(20), 100, 200]


@pytest.mark.parametrize("fails", [no_answer, interrupted])
@pytest.mark.parametrize(("at", "is_unreadable"), [(0, True), (2, False), (3, False)])
def test_a_copy_in_progress_waits_if_its_comparison_is_interrupted(logs, monkeypatch, fails, at, is_unreadable):
    logs.write("x.log", lines(0, 20))
    settled(logs)
    logs.write("y.log", lines(0, 10))

    with monkeypatch.context() as patched:
        # The heads of both are read first: that of the new file, and that of the loaded one.
        patched.setattr(same_content, "open_stream", opened_by([*[reading.open_stream] * at, fails]))
        report = logs.load()

    assert report.loaded == 0
    assert [(note.name, note.is_unreadable) for note in report.notes] == [("y.log", is_unreadable)]
    logs.write("y.log", lines(0, 20))
    settled(logs)
    assert logs.rows() == list(range(20))
