"""Where order counts, nothing overtakes what could not be read: its records would be lost as duplicates."""

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.delivery import Mode, Rules
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import BatchIncomplete
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Declared, Identity, Publish, RecordProducer, Source, Target, Write
from onceload_jobs.read.checked_parts import FileRewritten, ReadPart, read_parts
from tests.loads.conftest import InThisProcess, Loads

ORDERED: dict[str, Any] = {"producer": RecordProducer(name="device", sequence="seq", order=Order.ORDERED)}
IN_MODE: dict[str, Any] = {"delivery": Rules(mode=Mode.ORDERED)}


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.fixture
def loads(loads: Loads) -> Loads:
    columns = tuple(parse_column(*each) for each in {"device": "text", "seq": "bigint"}.items())
    loads.declared = replace(loads.declared, columns=columns)
    return loads


@pytest.fixture(params=[ORDERED, IN_MODE], ids=["producer", "mode"])
def ordered(loads: Loads, request: pytest.FixtureRequest) -> Loads:
    loads.declared = replace(loads.declared, **request.param)
    return loads


@pytest.fixture
def of_devices(loads: Loads) -> Loads:
    loads.declared = replace(loads.declared, **ORDERED)
    return loads


def records(first: int, end: int) -> bytes:
    return "".join(json.dumps({"device": "d1", "seq": seq}) + "\n" for seq in range(first, end)).encode()


def seqs(loads: Loads) -> list[int]:
    return [seq for (seq,) in loads.ask("SELECT seq FROM target ORDER BY seq")]


def reasons(report: Report) -> dict[str, str]:
    return {note.name: note.reason for note in report.notes}


WHOLE = gzip.compress(records(0, 1000), compresslevel=1)


@pytest.mark.parametrize("half", [WHOLE[: len(WHOLE) // 2], b"no gzip at all"], ids=["half", "damaged"])
def test_nothing_overtakes_a_packed_file_that_cannot_be_read_whole(ordered, half):
    ordered.write("f1.jsonl.gz", half)
    ordered.write("f2.jsonl", records(1000, 2000))
    ordered.write("f3.jsonl", records(2000, 2010))
    first = ordered.load()
    before = seqs(ordered)
    again = ordered.load()
    ordered.write("f1.jsonl.gz", WHOLE)
    last = ordered.load()

    # What could be read of it is loaded, and nothing behind it.
    assert before == list(range(first.loaded))
    assert first.loaded < 1000
    assert (first.loaded > 0) == (half != b"no gzip at all")
    assert again.loaded == 0
    for report in (first, again):
        assert reasons(report)["f2.jsonl"].startswith("waits for f1.jsonl.gz, which is not completely read. If ")
        assert reasons(report)["f3.jsonl"].startswith("waits for f1.jsonl.gz")
    assert (last.loaded, last.duplicates) == (2010 - first.loaded, 0)
    assert seqs(ordered) == list(range(2010))
    assert last.notes == ()


def test_waiting_files_are_loaded_once_the_file_is_gone(ordered):
    damaged = ordered.write("f1.jsonl.gz", b"no gzip at all")
    ordered.write("f2.jsonl", records(0, 5))
    before = ordered.load()
    damaged.unlink()

    assert (before.loaded, ordered.load().loaded) == (0, 5)


def _open_line(loads: Loads) -> None:
    loads.write("f1.jsonl", records(0, 3) + b'{"device": "d1",')


def _only_an_open_line(loads: Loads) -> None:
    loads.write("f1.jsonl", records(0, 1)[:-1])


def _rewritten(loads: Loads) -> None:
    loads.write("f1.jsonl", records(0, 3))
    loads.load()
    loads.write("f1.jsonl", records(1, 4))


@pytest.mark.parametrize("happens", [_open_line, _only_an_open_line, _rewritten])
def test_nothing_overtakes_what_a_plan_finds_not_to_be_whole(ordered, happens: Callable[[Loads], None]):
    happens(ordered)
    ordered.write("f2.jsonl", records(10, 12))
    report = ordered.load()

    assert reasons(report)["f2.jsonl"].startswith("waits for f1.jsonl, which is not completely read")
    (ordered.folder / "f1.jsonl").unlink()
    assert ordered.load().loaded == 2


def test_in_any_order_other_files_are_loaded_meanwhile(loads):
    loads.declared = replace(loads.declared, producer=RecordProducer(name="device", sequence="seq"))
    loads.write("f1.jsonl.gz", WHOLE[: len(WHOLE) // 2])
    loads.write("f2.jsonl", records(1000, 1010))
    loads.load()
    loads.write("f1.jsonl.gz", WHOLE)
    loads.load()

    assert seqs(loads) == list(range(1010))


@pytest.fixture
def in_the_middle_nothing(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The first file is cut into three, and the one in the middle cannot be read."""
    content = records(0, 900)
    loads.write("f1.jsonl", content)
    loads.write("f2.jsonl", records(900, 910))
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=len(content) // 3))

    def reading(chunk: Chunk, source: Source) -> Iterator[ReadPart]:
        if chunk.name == "f1.jsonl" and 0 < chunk.first < len(content) // 2:
            raise FileRewritten(chunk.url, "it was rewritten since it was planned")
        return read_parts(chunk, source)

    with monkeypatch.context() as patched:
        patched.setattr("onceload_jobs.read.new_content.read_parts", reading)
        yield patched


def test_the_rest_of_a_file_does_not_overtake_a_part_of_it_that_could_not_be_read(of_devices, in_the_middle_nothing):
    first = of_devices.load()
    before = seqs(of_devices)
    in_the_middle_nothing.undo()
    last = of_devices.load()

    assert 0 < first.loaded < 450
    assert before == list(range(first.loaded))
    assert set(reasons(first)) == {"f1.jsonl", "f2.jsonl"}
    assert (last.loaded, last.duplicates) == (910 - first.loaded, 0)
    assert seqs(of_devices) == list(range(910))


def test_a_merge_applies_records_in_the_order_of_their_file(loads, in_the_middle_nothing):
    """If a deletion behind it took effect first, a record would come back for good; other files do not wait."""
    target = Target(schema="public", table="target", write=Write.MERGE, key=("seq",))
    loads.declared = replace(loads.declared, target=target)

    first = loads.load()
    before = seqs(loads)
    in_the_middle_nothing.undo()
    loads.load()

    assert before == [*range(first.loaded - 10), *range(900, 910)]
    assert set(reasons(first)) == {"f1.jsonl"}
    assert seqs(loads) == list(range(910))


def test_a_batch_of_ordered_records_with_a_dead_letter_publishes_nothing(of_devices, monkeypatch):
    of_devices.declared = replace(of_devices.declared, source=replace(of_devices.declared.source, chunk_bytes=50))
    of_devices.write("f1.jsonl", records(0, 5))
    of_devices.write("f2.jsonl", records(5, 10))

    def fails(chunk: Chunk, source: Source) -> Iterator[ReadPart]:
        if chunk.name == "f1.jsonl":
            raise RuntimeError("no memory")
        return read_parts(chunk, source)

    with monkeypatch.context() as patched:
        patched.setattr("onceload_jobs.read.new_content.read_parts", fails)
        with pytest.raises(BatchIncomplete, match="no memory"):
            of_devices.load()
    before = of_devices.ask("SELECT count(*) FROM onceload.ledger")
    last = of_devices.load()

    assert before == [(0,)]
    assert (last.loaded, last.duplicates) == (10, 0)


def test_a_kept_batch_holds_nothing_that_would_overtake(of_devices):
    of_devices.write("f1.jsonl.gz", WHOLE[: len(WHOLE) // 2])
    of_devices.write("f2.jsonl", records(1000, 1010))
    settings = LoadSettings(ledger=LedgerSettings(dsn=of_devices.dsn), wait_s=0)
    staging = replace(settings, publishes=False)
    load(of_devices.declared, staging, batch=Batch("one"), executor=InThisProcess())

    report = publish_batch(of_devices.declared, settings, batch=Batch("one"))

    assert seqs(of_devices) == list(range(report.loaded))
    assert set(reasons(report)) == {"f1.jsonl.gz", "f2.jsonl"}


def test_a_copy_under_way_does_not_keep_waiting_what_it_waits_for(of_devices):
    of_devices.declared = _by_content(of_devices.declared)
    of_devices.write("copy.jsonl", records(0, 5))
    of_devices.write("original.jsonl", records(0, 10))

    assert of_devices.load().loaded == 10


def test_nothing_overtakes_a_copy_that_holds_more_than_was_loaded(of_devices):
    of_devices.declared = _by_content(of_devices.declared)
    for name in "ab":
        of_devices.write(f"{name}.jsonl", records(0, 10))
    of_devices.load()
    of_devices.load()
    for name, end in (("a", 20), ("b", 30)):
        of_devices.write(f"{name}.jsonl", records(0, end))
    of_devices.write("c.jsonl", records(30, 40))
    for _ in range(4):
        of_devices.load()

    assert seqs(of_devices) == list(range(40))


def test_nothing_overtakes_what_is_so_far_the_beginning_of_another_file(of_devices):
    of_devices.declared = _by_content(of_devices.declared)
    of_devices.write("a.jsonl", records(0, 10))
    of_devices.load()
    of_devices.write("b.jsonl", records(0, 5))
    of_devices.write("c.jsonl", records(20, 30))
    report = of_devices.load()
    of_devices.write("b.jsonl", records(0, 5) + records(10, 20))
    of_devices.load()

    assert "waits for b.jsonl" in reasons(report)["c.jsonl"]
    assert seqs(of_devices) == list(range(30))


def _by_content(declared: Declared) -> Declared:
    return replace(declared, source=replace(declared.source, identity=Identity.CONTENT))


def test_nothing_overtakes_a_file_whose_name_is_refused(ordered):
    bad = ordered.write("a\n1.jsonl", records(0, 2))
    ordered.write("b.jsonl", records(2, 4))
    ordered.load()
    bad.rename(ordered.folder / "a1.jsonl")

    ordered.load()

    assert seqs(ordered) == [0, 1, 2, 3]
