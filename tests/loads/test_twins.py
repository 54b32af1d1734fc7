"""The same content under another name, where content is what makes a file the same: whatever way it came there."""

import gzip
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.postgres import LedgerSettings
from onceload_core.verdicts import Order
from onceload_jobs.executor.executor import Outcome, called
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Declared, Identity, OnRewrite, Publish, RecordProducer
from tests.loads.conftest import InThisProcess, Loads, line

pytestmark = pytest.mark.usually_staged


@pytest.fixture
def logs(loads: Loads) -> Loads:
    source = replace(loads.declared.source, path=str(loads.folder / "*.log*"), identity=Identity.CONTENT)
    loads.declared = replace(loads.declared, source=source)
    return loads


def lines(*numbers: int) -> str:
    return "".join(map(line, numbers))


def test_a_copy_is_found_although_a_load_was_killed_once_it_had_registered_it(logs):
    content = logs.write("app.log", lines(1, 2)).read_bytes()
    logs.load()
    logs.write("copy.log", content)
    logs.ledger.register("events", [("copy.log", 1)])

    report = logs.load()

    assert (report.loaded, report.duplicates) == (0, 2)
    assert logs.rows() == [1, 2]


def test_files_that_move_up_in_a_rotation_are_found(logs):
    """Each takes the name of one that was loaded with other content."""
    logs.write("app.log", lines(3, 4))
    logs.write("app.log.1", lines(1, 2))
    logs.load(on_rewrite=OnRewrite.NEW_GENERATION)
    (logs.folder / "app.log.1").rename(logs.folder / "app.log.2")
    (logs.folder / "app.log").rename(logs.folder / "app.log.1")
    logs.write("app.log", lines(5))

    report = logs.load(on_rewrite=OnRewrite.NEW_GENERATION)

    assert (report.loaded, report.duplicates) == (1, 4)
    assert logs.load(on_rewrite=OnRewrite.NEW_GENERATION).loaded == 0
    assert logs.rows() == [1, 2, 3, 4, 5]


def test_all_records_of_a_copy_are_duplicates_whatever_became_of_them_under_the_other_name(logs):
    logs.write("app.log", lines(1, 2) + "broken\n")
    logs.load()
    grown = logs.write("grown.log", lines(1, 2) + "broken\n" + lines(3, 4)).read_bytes()
    first = logs.load()
    logs.write("copy.log", grown)
    second = logs.load()

    assert (first.loaded, first.duplicates) == (2, 3)
    assert (second.loaded, second.duplicates, second.quarantined) == (0, 5, 0)


def test_a_file_is_found_again_though_a_record_in_it_is_too_long_to_be_held(logs):
    source = replace(logs.declared.source, chunk_bytes=2**20, record_bytes_max=2**20)
    logs.declared = replace(logs.declared, source=source)
    file = logs.write("app.log", line(1) + "x" * 3 * 2**20 + "\n" + line(2))
    first = logs.load()
    file.rename(logs.folder / "app.log.1")

    second = logs.load()

    assert (first.loaded, first.quarantined) == (2, 1)
    assert (second.loaded, second.quarantined, second.duplicates) == (0, 0, 3)
    assert logs.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_records_of_a_copy_that_say_who_they_are_are_duplicates(logs):
    producer = RecordProducer(name="note", sequence="id", order=Order.ANY)
    content = logs.write("app.log", lines(1, 2, 3)).read_bytes()
    logs.load(producer=producer)
    logs.write("copy.log", content)

    report = logs.load(producer=producer)

    assert (report.loaded, report.duplicates) == (0, 3)


def test_a_file_is_found_that_was_packed_and_unpacked_again(logs):
    content = logs.write("app.log", lines(1, 2)).read_bytes()
    logs.load()
    (logs.folder / "app.log").unlink()
    packed = logs.write("app.log.1.gz", gzip.compress(content))
    first = logs.load()
    packed.unlink()
    logs.write("again.log", content + lines(3).encode())

    second = logs.load()

    assert (first.loaded, first.duplicates, second.loaded) == (0, 2, 1)
    assert logs.rows() == [1, 2, 3]


class AllButTheFirst(InThisProcess):
    """The load is killed before one of its tasks has run."""

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        for number, item in list(enumerate(items))[1:]:
            yield number, called(function, item)
        raise KeyboardInterrupt


def load_all_but_the_first(declared: Declared, dsn: str) -> None:
    settings = LoadSettings(ledger=LedgerSettings(dsn=dsn), wait_s=0)
    with pytest.raises(KeyboardInterrupt):
        load(declared, settings, batch=new_batch(), executor=AllButTheFirst())


@pytest.mark.parametrize("packed", [True, False])
def test_a_chunk_that_was_never_loaded_is_loaded_of_the_copy(logs, packed):
    """A packed file is read as one stream, of which everything else is loaded."""
    path = logs.write("app.log", lines(1, 2, 3))
    in_chunks = replace(logs.declared.source, chunk_bytes=1)
    declared = replace(logs.declared, source=in_chunks, publish=Publish.DIRECT)
    load_all_but_the_first(declared, logs.dsn)
    content = path.read_bytes()
    path.unlink()
    logs.write("app.log.1.gz" if packed else "app.log.1", gzip.compress(content) if packed else content)

    report = logs.load()

    assert (report.loaded, report.duplicates) == (1, 2)
    assert logs.load().loaded == 0
    assert logs.rows() == [1, 2, 3]


def test_a_file_that_goes_on_in_a_loaded_last_line_is_not_loaded_under_another_name(logs):
    source = replace(logs.declared.source, sealed_after_s=0)
    logs.write("app.log", lines(1) + '{"id": 2')
    logs.load(source=source)
    logs.write("whole.log", lines(1) + '{"id": 2}\n')

    report = logs.load(source=source)

    assert (report.loaded, report.duplicates) == (0, 0)
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("whole.log", True)]


def test_a_replaced_file_is_loaded_again_under_another_name(logs):
    by_path = replace(logs.declared.source, identity=Identity.PATH)
    replacing = {"on_rewrite": OnRewrite.REPLACE, "publish": Publish.STAGED, "source": by_path}
    logs.write("app.log", lines(1, 2))
    logs.load(**replacing)
    logs.write("app.log", lines(3))
    logs.load(**replacing)
    logs.write("copy.log", lines(1, 2))

    logs.load()

    assert logs.rows() == [1, 2, 3]
