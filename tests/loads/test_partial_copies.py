"""Copies of files with holes, with open last lines, or that were partly rewound."""

import gzip
from dataclasses import replace

import pytest

from onceload_core.errors import SettingRefused
from onceload_core.names import Position
from onceload_jobs.pipeline.declared import CsvOptions, Format, Publish
from onceload_jobs.recover.rewind import rewind
from tests.loads.conftest import line
from tests.loads.same_content import is_verified, lines, settled
from tests.loads.test_twins import load_all_but_the_first

pytestmark = pytest.mark.usually_staged


@pytest.mark.parametrize("tail", [line(300)[:12], "no json\n", line(300)])
def test_a_copy_is_not_taken_for_a_shorter_file_that_parted_earlier(logs, tail):
    for name in ("x.log", "y.log", "z.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    for name in ("x.log", "z.log"):
        logs.write(name, lines(0, 20))
    settled(logs)
    logs.write("y.log", lines(0, 10) + tail)
    settled(logs)
    logs.write("x.log", lines(0, 20) + lines(100, 105))
    logs.load()
    logs.write("z.log", lines(0, 20) + lines(200, 205))

    settled(logs)

    assert logs.rows() == [*range(20), *range(100, 105), *range(200, 205), *([300] if tail == line(300) else [])]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("more", ["", lines(10, 15)])
@pytest.mark.parametrize("name", ["x.log", "x.log.1", "x.log.gz"])
def test_a_last_line_that_gets_its_newline_after_it_was_loaded_is_loaded_once(logs, name, more, newline):
    source = replace(logs.declared.source, sealed_after_s=0)
    x = logs.write("x.log", lines(0, 10).rstrip("\n"))
    logs.load(source=source)
    x.unlink()
    content = (lines(0, 10).rstrip("\n") + newline + more).encode()
    logs.write(name, gzip.compress(content) if name.endswith(".gz") else content)

    settled(logs, source=source)

    assert logs.rows() == list(range(15 if more else 10))


def test_a_newline_inside_an_open_quote_does_not_end_a_record_that_was_loaded(logs):
    source = replace(logs.declared.source, format=Format.CSV, csv=CsvOptions(multiline=True), sealed_after_s=0)
    x = logs.write("x.log", 'id,amount,note\n1,1.50,x\n2,1.50,"open')
    logs.load(source=source)
    x.write_text(x.read_text() + '\n3,1.50,x"\n')

    report = logs.load(source=source)

    assert [(note.name, note.needs_a_person) for note in report.notes] == [("x.log", True)]
    assert logs.rows() == [1]


def test_a_last_line_that_goes_on_under_another_name_needs_a_person(logs):
    source = replace(logs.declared.source, sealed_after_s=0)
    x = logs.write("x.log", lines(0, 10).rstrip("\n"))
    logs.load(source=source)
    x.unlink()
    logs.write("x.log.1", lines(0, 10).rstrip("\n") + ', "no json": ' + lines(10, 15))

    report = logs.load(source=source)

    assert [(note.name, note.needs_a_person) for note in report.notes] == [("x.log.1", True)]
    assert logs.rows() == list(range(10))


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_hole_is_filled_once_though_a_copy_holds_it_as_well(logs):
    path = logs.write("x.log", lines(0, 3))
    declared = replace(logs.declared, source=replace(logs.declared.source, chunk_bytes=1))
    load_all_but_the_first(declared, logs.dsn)
    logs.load()
    at = logs.ledger.position("events")
    # The first of them came last.
    rewind(logs.declared, logs.engine, to=Position(at - 1), dry_run=False)
    assert logs.rows() == [1, 2]
    logs.write("y.log", path.read_bytes())

    settled(logs)

    assert logs.rows() == [0, 1, 2]
    assert is_verified(logs)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_file_that_differs_where_another_has_a_hole_is_not_a_copy(logs):
    """Both have the same edges, so that they differ only in what fills the hole."""
    records = [line(each, note=4_000 * "n") for each in range(10)]
    logs.write("x.log", "".join(records[:3]))
    logs.load()
    logs.write("x.log", "".join(records))
    in_chunks = replace(logs.declared, source=replace(logs.declared.source, chunk_bytes=1))
    load_all_but_the_first(in_chunks, logs.dsn)
    logs.load()
    rewind(logs.declared, logs.engine, to=Position(logs.ledger.position("events") - 1), dry_run=False)
    assert logs.rows() == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    logs.write("y.log", "".join([*records[:3], line(5, note=4_000 * "n"), *records[4:]]))

    settled(logs)

    assert logs.rows() == sorted([*range(10), 0, 1, 2, 4, 5, 5, 6, 7, 8, 9])


@pytest.mark.parametrize("is_there", [True, False])
def test_records_of_a_rewind_are_loaded_once_of_either_name(logs, is_there):
    path = logs.write("x.log", lines(0, 5))
    logs.load()
    logs.write("y.log", lines(0, 10))
    logs.load()
    logs.write("x.log", lines(0, 10))
    settled(logs)
    rewind(logs.declared, logs.engine, to=Position(1), dry_run=False)
    if not is_there:
        path.unlink()

    settled(logs)

    assert logs.rows() == list(range(10))
    assert is_verified(logs)


def test_a_copy_of_what_a_rewind_does_not_touch_stays_one(logs):
    """It could not be found again: the other file is gone, and holds more than the copy."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    x = logs.write("x.log", lines(0, 20))
    settled(logs)
    x.unlink()
    at = logs.ledger.position("events")
    logs.write("z.log", lines(50, 55))
    logs.load()
    rewind(logs.declared, logs.engine, to=at, dry_run=False)

    settled(logs)

    assert logs.rows() == [*range(20), *range(50, 55)]


def test_a_copy_stays_one_when_a_rewind_goes_back_to_before_it_was_noted(logs):
    """Only the note is after the position: what it is a copy of stays loaded."""
    b = logs.write("b.log", lines(0, 10))
    logs.load()
    before = logs.ledger.position("events")
    logs.write("z.log", lines(0, 10))
    settled(logs)
    assert logs.ledger.position("events") > before
    rewind(logs.declared, logs.engine, to=before, dry_run=False)

    settled(logs)
    verified = is_verified(logs)
    b.unlink()
    settled(logs)

    assert verified
    assert logs.rows() == list(range(10))


def test_a_copy_is_not_believed_once_the_other_was_rewound_and_loaded_in_another_way(logs):
    path = logs.write("x.log", lines(0, 5))
    logs.load()
    path.write_text(lines(0, 10))
    logs.load()
    logs.write("y.log", lines(0, 10))
    settled(logs)
    rewind(logs.declared, logs.engine, to=Position(1), dry_run=False)
    (logs.folder / "y.log").rename(logs.folder / "later")
    path.write_text(lines(0, 5) + lines(50, 55))
    logs.load()
    (logs.folder / "later").rename(logs.folder / "y.log")

    settled(logs)

    assert set(logs.rows()) == {*range(10), *range(50, 55)}


@pytest.mark.parametrize("to", [1, 2, 3])
def test_a_rewind_to_before_two_copies_parted_is_refused_while_one_of_them_stays(logs, to):
    copies_that_part(logs, at=to)
    expected = r"before y.log differed from x.log.*would load them a second time"

    with pytest.raises(SettingRefused, match=expected):
        rewind(logs.declared, logs.engine, to=Position(to), dry_run=False)

    settled(logs)
    assert logs.rows() == [*range(20), *range(100, 110), *range(200, 205)]
    assert is_verified(logs)


@pytest.mark.parametrize("to", ["nothing", "parted"])
def test_a_rewind_that_takes_both_copies_back_or_leaves_them_apart_loads_each_record_once(logs, to):
    parted = copies_that_part(logs, at=3)

    rewind(logs.declared, logs.engine, to=Position(0) if to == "nothing" else parted, dry_run=False)
    settled(logs)

    # Loaded again, the two are files that share only a part.
    twice = range(20) if to == "nothing" else ()
    assert logs.rows() == sorted([*range(20), *range(100, 110), *range(200, 205), *twice])
    assert is_verified(logs)


def copies_that_part(logs, *, at):
    """Two of them, of which the second is found to go on in another way; where that was noted."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    logs.write("x.log", lines(0, 20) + lines(100, 110))
    logs.write("y.log", lines(0, 20) + lines(200, 205))
    logs.load()
    assert logs.ledger.position("events") >= at
    while logs.load().notes:
        pass
    (parted,) = logs.ask(
        "SELECT position FROM onceload.ledger_span WHERE shares_with IS NOT NULL AND rows = 0 AND NOT isempty(spans)"
    )[0]
    return Position(parted)
