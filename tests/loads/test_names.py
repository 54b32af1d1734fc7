"""One file under several names, and names that cannot be loaded."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from onceload_core.errors import ExitCode
from onceload_jobs.files.notes import code_of
from onceload_jobs.pipeline.declared import Identity, Publish
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads, line
from tests.loads.rewinding import pipeline_file
from tests.loads.test_broken_files import counts, notes

ONE = [Publish.STAGED]


def links_of(loads: Loads) -> list[tuple[str, bool]]:
    report = loads.load()
    assert all("it is the same file as" in note.reason for note in report.notes)
    return notes(report)


@pytest.mark.parametrize("identity", Identity)
def test_a_file_is_loaded_once_whatever_links_lead_to_it(loads, identity):
    path = loads.write("b.jsonl", line(1) + line(2))
    (loads.folder / "a.jsonl").symlink_to("b.jsonl")
    os.link(path, loads.folder / "c.jsonl")
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=identity))

    assert links_of(loads) == [("'a.jsonl'", False), ("'c.jsonl'", False)]
    with path.open("a") as file:
        file.write(line(3))
    assert links_of(loads) == [("'a.jsonl'", False), ("'c.jsonl'", False)]
    assert loads.rows() == [1, 2, 3]
    assert code_of(loads.load().notes, is_idle=True) is ExitCode.DONE
    verification = verify(loads.declared, loads.engine)
    assert (verification.differences, verification.not_compared) == ((), ())


@pytest.mark.parametrize("publish", ONE)
def test_a_link_that_comes_later_takes_the_place_of_no_loaded_file(loads):
    path = loads.write("b.jsonl", line(1))
    loads.load()
    os.link(path, loads.folder / "a.jsonl")
    with path.open("a") as file:
        file.write(line(2))

    assert links_of(loads) == [("'a.jsonl'", False)]
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", ONE)
def test_a_name_that_was_only_registered_takes_the_place_of_no_loaded_file(loads):
    path = loads.write("b.jsonl", line(1))
    loads.load()
    os.link(path, loads.folder / "a.jsonl")
    loads.ledger.register("events", [("a.jsonl", 1)])

    assert links_of(loads) == [("'a.jsonl'", False)]
    assert loads.rows() == [1]


@pytest.mark.parametrize("publish", ONE)
def test_a_rewritten_file_is_not_loaded_by_the_name_of_a_link(loads):
    path = loads.write("b.jsonl", line(1) + line(2))
    loads.load()
    os.link(path, loads.folder / "a.jsonl")
    path.write_text(line(1))

    report = loads.load()

    assert sorted(notes(report)) == [("'a.jsonl'", False), ("b.jsonl", True)]
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", ONE)
def test_a_symbolic_link_that_leads_to_another_file_by_now_gives_way_to_it(loads):
    first = loads.write("old/1.jsonl", line(1))
    current = loads.folder / "current.jsonl"
    current.symlink_to(first)
    source = replace(loads.declared.source, path=str(loads.folder / "*.jsonl"))
    loads.load(source=source)
    second = loads.write("2.jsonl", line(2))
    current.unlink()
    current.symlink_to(second)

    report = loads.load(source=source)

    assert (counts(report), notes(report)) == ((1, 0, 0), [("'current.jsonl'", False)])
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", ONE)
def test_a_loaded_symbolic_link_keeps_its_file_when_that_is_listed_too(loads):
    target = loads.write("below/1.jsonl", line(1))
    (loads.folder / "a.jsonl").symlink_to(target)
    loads.load(source=replace(loads.declared.source, path=str(loads.folder / "*.jsonl")))

    report = loads.load(source=replace(loads.declared.source, path=str(loads.folder / "**/*.jsonl")))

    assert (counts(report), notes(report)) == ((0, 0, 0), [("'below/1.jsonl'", False)])


@pytest.mark.parametrize("publish", ONE)
def test_a_name_that_the_ledger_cannot_keep_needs_a_person_at_each_load(loads):
    loads.write("a.jsonl", line(1))
    for name in (b"caf\xe9.jsonl", b"two\nlines.jsonl"):
        Path(os.fsdecode(os.fsencode(loads.folder) + b"/" + name)).write_text(line(2))

    for _ in range(2):
        assert notes(loads.load()) == [(r"'caf\udce9.jsonl'", True), (r"'two\nlines.jsonl'", True)]
    assert loads.rows() == [1]


@pytest.mark.parametrize("publish", ONE)
def test_a_loaded_file_that_is_a_folder_now_is_noted(loads):
    path = loads.write("a.jsonl", line(1))
    loads.load()
    path.unlink()
    path.mkdir()
    (loads.folder / "b.jsonl").mkdir()
    loads.write("c.jsonl", line(2))

    report = loads.load()

    assert [(note.name, note.reason) for note in report.notes] == [
        ("a.jsonl", "it was loaded as a file and is a folder now. Its loaded rows stay")
    ]


@pytest.mark.parametrize("publish", ONE)
@pytest.mark.parametrize(("command", "more"), [("load", ()), ("verify", ()), ("why", ("é.jsonl",))])
def test_a_process_that_decodes_names_otherwise_is_refused(loads, tmp_path, command, more):
    """Under another encoding, a file has another name, and would be loaded again."""
    loads.write("é.jsonl", line(1))
    loads.load()
    file = pipeline_file(loads, tmp_path)
    words = [sys.executable, "-m", "onceload", command, str(file), *more]
    otherwise = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    done = subprocess.run(
        words, env={**os.environ, "ONCELOAD_DSN": loads.dsn, **otherwise}, capture_output=True, check=False
    )

    assert done.returncode == ExitCode.WRONG_USE, done.stderr
    assert b"the encoding of file names in this process: found ascii." in done.stderr
    assert b"Set PYTHONUTF8=1" in done.stderr
    assert loads.rows() == [1]
