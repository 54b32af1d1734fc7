"""How far a load is: what the thread beside it finds, and what a person sees of it."""

import gzip
import sys
import threading
from dataclasses import replace

import pytest

from onceload import terminal
from onceload.terminal import renewed_line, size_in_words, time_in_words
from onceload_core.errors import DatabaseLost
from onceload_core.names import Batch, SessionName
from onceload_core.postgres import LedgerSettings
from onceload_core.spans import SpanSet
from onceload_jobs.load.context import LoadContext
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.pipeline.declared import Publish
from onceload_jobs.work import progress
from onceload_jobs.work.progress import Progress, Waiting
from tests.loads.conftest import InThisProcess, Loads, line
from tests.waiting import PATIENCE_S


class UntilReported(InThisProcess):
    """Ends only after two reports on the work that is done: the first may have been begun before."""

    def __init__(self, on_progress):
        self._on_progress = on_progress
        self._reported = threading.Event()

    def report(self, found):
        try:
            self._on_progress(found)
        finally:
            self._reported.set()

    def ends(self):
        for _ in range(2):
            self._reported.clear()
            assert self._reported.wait(PATIENCE_S), "there was no report on a load that is not over"


def progress_of(loads: Loads, monkeypatch, on_progress=None) -> list[Progress]:
    monkeypatch.setattr(progress, "_EVERY_S", 0.05)
    reported: list[Progress] = []
    tasks = UntilReported(on_progress or reported.append)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), on_progress=tasks.report)
    report = load(loads.declared, settings, batch=Batch("b"), executor=tasks)
    assert report.loaded == 100
    return reported


def test_committed_and_staged_records_are_reported_while_a_load_runs(loads, monkeypatch):
    written = loads.write("a.jsonl", "".join(line(number) for number in range(100)))

    last = progress_of(loads, monkeypatch)[-1]

    size = written.stat().st_size
    assert (last.bytes, last.bytes_planned, last.records, last.seconds_left) == (size, size, 100, 0)


def test_a_load_reports_what_it_waits_for(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("a.jsonl", line(1) + line(2))
    session = loads.ledger.open_session("events", SessionName("planner-of-another"))
    ids = loads.ledger.register("events", [("a.jsonl", 1)])
    loads.ledger.claim(
        session, {ids["a.jsonl", 1]: SpanSet.of((len(line(1)), 1000))}, batch=Batch("other"), lease_s=600
    )
    reported: list[Progress | Waiting] = []
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), on_progress=reported.append, wait_s=0.1)

    load(loads.declared, settings, batch=Batch("b"), executor=InThisProcess())

    last = reported[-1]
    assert isinstance(last, Waiting)
    assert "another load (session planner-of-another holds delivery " in last.waits_for


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_load_reports_that_the_database_does_not_answer(loads, monkeypatch):
    def lost(_):
        raise DatabaseLost("looking", "the line went dead")

    monkeypatch.setattr(LoadContext, "_committed", lost)
    loads.write("a.jsonl", "".join(line(number) for number in range(100)))

    reported: set[Progress | Waiting] = set()
    progress_of(loads, monkeypatch, on_progress=reported.add)

    assert reported == {Waiting(waits_for="the database, which does not answer")}


def test_how_much_a_compressed_file_holds_is_not_guessed(loads, monkeypatch):
    loads.write("a.jsonl.gz", gzip.compress("".join(line(number) for number in range(100)).encode()))

    last = progress_of(loads, monkeypatch)[-1]

    assert (last.bytes_planned, last.records, last.seconds_left) == (None, 100, None)


def test_a_load_is_not_disturbed_by_a_terminal_that_cannot_be_written_to(loads, monkeypatch):
    def broken(_):
        raise BrokenPipeError

    loads.write("a.jsonl", "".join(line(number) for number in range(100)))

    progress_of(loads, monkeypatch, on_progress=broken)


def test_the_remaining_time_assumes_the_speed_so_far():
    half = Progress(bytes=50, bytes_planned=100, records=7, seconds=10)

    assert (half.seconds_left, half.records_per_s) == (10, 1)
    assert replace(half, bytes=0).seconds_left is None
    assert replace(half, bytes=120).seconds_left == 0


def test_a_line_is_renewed_in_place_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "20")

    with renewed_line() as show:
        show("a" * 30)
        show("b")

    assert capsys.readouterr().err == f"\r{'a' * 19}\r{'b'.ljust(19)}\n"


@pytest.mark.parametrize(("every_s", "shown"), [(10.0, ""), (0.0, "a\nb\n")])
def test_elsewhere_a_line_is_written_now_and_then(monkeypatch, capsys, every_s, shown):
    monkeypatch.setattr(terminal, "_LINE_EVERY_S", every_s)

    with renewed_line() as show:
        show("a")
        show("b")

    assert capsys.readouterr().err == shown


def test_sizes_and_times_are_printed_in_words():
    assert [size_in_words(size) for size in (0, 999, 1_234_567, 5 * 10**14)] == ["0 B", "999 B", "1.2 MB", "500.0 TB"]
    assert [time_in_words(seconds) for seconds in (0, 99, 100, 5_000, 9_000)] == [
        "0 s",
        "99 s",
        "2 min",
        "83 min",
        "2.5 h",
    ]
