"""Which file is which: by its name below the root, by its content, and by what was loaded of it before."""

import gzip
import json
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload.cli import main
from onceload.pipeline_file import read_pipeline
from onceload_core.declaration import EditRefused
from onceload_core.errors import ExitCode, NotFound
from onceload_core.names import Position
from onceload_jobs.load.report import Report
from onceload_jobs.pipeline.declared import Format, Identity, OnRewrite, Publish
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import line

PIPELINE = """
pipeline: events
source: {path: "ROOT/PATH", format: jsonl, identity: IDENTITY}
columns: {id: bigint not null, amount: "numeric(12,2)", note: text}
target: {table: public.target}
"""


@pytest.fixture
def publish():
    """A plan does not depend on how its batch is published."""
    return Publish.STAGED


@pytest.fixture
def file_of(loads, tmp_path):
    """A pipeline file for the folder of the loads."""

    def write(path="**/*.jsonl*", *, identity="path"):
        file = tmp_path / "events.yaml"
        file.write_text(PIPELINE.replace("ROOT", str(loads.folder)).replace("PATH", path).replace("IDENTITY", identity))
        return file

    return write


@pytest.fixture
def onceload(loads, capsys):
    """Call a command that answers with a document, as from a shell."""

    def run(*arguments):
        code = main([*map(str, arguments), "--json"], {"ONCELOAD_DSN": loads.dsn})
        out, err = capsys.readouterr()
        return code, json.loads(out), err

    return run


def counts(report: Report) -> tuple[int, int, int]:
    return report.loaded, report.duplicates, report.quarantined


def reasons(report: Report) -> list[tuple[str, str]]:
    return [(note.name, note.reason) for note in report.notes]


def plan(loads, **changes):
    return make_plan(replace(loads.declared, **changes), loads.ledger, now_s=0)


# Names.


@pytest.mark.parametrize("on_rewrite", [OnRewrite.STOP, OnRewrite.REPLACE])
def test_files_of_two_days_are_two_files_where_a_placeholder_names_the_day(loads, file_of, on_rewrite):
    days = {day: read_pipeline(file_of("in/{{ ds }}/*.jsonl"), values={"ds": day}) for day in ("d1", "d2")}
    loads.write("in/d1/part-0.jsonl", line(1) + line(2))
    loads.write("in/d2/part-0.jsonl", line(3))

    reports = [loads.load(source=days[day].source, on_rewrite=on_rewrite) for day in ("d1", "d2", "d1", "d2")]

    assert [counts(report) for report in reports] == [(2, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0)]
    assert [report.notes for report in reports] == [()] * 4
    assert loads.rows() == [1, 2, 3]


def test_every_command_calls_a_file_of_a_placeholder_by_the_same_name(loads, file_of, onceload):
    file = file_of("in/{{ ds }}/*.jsonl")
    path = loads.write("in/d1/part-0.jsonl", line(1))
    loads.write("in/d2/part-0.jsonl", line(2))
    sources = [read_pipeline(file, values={"ds": day}).source for day in ("d1", "d2")]

    code, planned, _ = onceload("plan", file, "--set", "ds=d1")
    assert (code, [each["file"] for each in planned["to_read"]]) == (ExitCode.DONE, ["d1/part-0.jsonl"])
    loads.load(source=sources[0])
    loads.load(source=sources[1])
    assert onceload("why", file, path, "--set", "ds=d1")[1]["file"] == "d1/part-0.jsonl"
    # All loaded files are compared, for any day.
    for source in sources:
        verification = verify(replace(loads.declared, source=source), loads.engine, deep=True)
        assert (verification.differences, verification.files, verification.rows_compared) == ((), 2, 2)
    rewind(replace(loads.declared, source=sources[1]), loads.engine, to=Position(1), dry_run=False)
    assert loads.rows() == [1]
    assert [loads.load(source=source).loaded for source in sources] == [0, 1]


def test_a_path_that_would_name_files_in_another_way_is_refused_unless_all_of_it_was_moved(
    loads, file_of, onceload, capsys
):
    declared = read_pipeline(file_of("in/day/*.jsonl"), values={})
    loads.write("in/day/a.jsonl", line(1))
    loads.load(pipeline=declared.pipeline, source=declared.source)
    assert loads.ask("SELECT terms ->> 'source.root' FROM onceload.declaration") == [(f"{loads.folder}/in/day",)]

    wider = file_of("in/*/*.jsonl")
    for command in (["plan"], ["load"], ["verify"], ["quarantine", "retry"]):
        assert main([*command, str(wider)], {"ONCELOAD_DSN": loads.dsn}) == ExitCode.WRONG_USE
        assert "set `source.identity: content`" in capsys.readouterr().err.lower()
    assert loads.rows() == [1]

    (loads.folder / "in").rename(loads.folder / "out")
    file = file_of("out/day/*.jsonl")
    file.write_text(file.read_text().replace("format:", f'moved_from: "{loads.folder}/in/day", format:'))
    planned = onceload("plan", file)[1]
    assert [(each["file"], each["bytes"]) for each in planned["to_read"]] == [("a.jsonl", 0)]
    declared = read_pipeline(file, values={})
    assert loads.load(pipeline=declared.pipeline, source=declared.source).loaded == 0
    planned = onceload("plan", file)[1]
    assert (planned["to_read"], planned["done"]) == ([], 1)


# Content.


def test_a_copy_has_no_rows_of_its_own_to_miss(loads):
    source = replace(loads.declared.source, identity=Identity.CONTENT)
    first = loads.write("a.jsonl", line(1) + "{bad\n" + line(2))
    loads.load(source=source)
    loads.write("b.jsonl", first.read_bytes() + line(3).encode())
    assert counts(loads.load(source=source)) == (1, 3, 0)

    verification = verify(replace(loads.declared, source=source), loads.engine, deep=True)

    assert verification.differences == ()
    assert (verification.files, verification.rows, verification.rows_compared) == (2, 3, 3)


def by_content(loads, **changes):
    return replace(loads.declared.source, identity=Identity.CONTENT, **changes)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_one_of_several_copies_that_come_together_is_loaded_and_the_others_are_found(loads, suffix):
    content = "".join(line(number) for number in range(300)).encode()
    for name, age_s in (("a", 10), ("b", 20), ("c", 15)):
        path = loads.write(f"{name}.jsonl{suffix}", gzip.compress(content, mtime=0) if suffix else content)
        os.utime(path, (1_000 - age_s, 1_000 - age_s))
    loads.write("other.jsonl", content[: len(line(1))] + b"{}\n")

    first = loads.load(source=by_content(loads))
    second = loads.load(source=by_content(loads))

    assert (counts(first), counts(second)) == ((301, 0, 1), (0, 600, 0))
    assert [(name, f"beginning of b.jsonl{suffix}" in reason) for name, reason in reasons(first)] == [
        (f"a.jsonl{suffix}", True),
        (f"c.jsonl{suffix}", True),
    ]
    assert (second.notes, counts(loads.load(source=by_content(loads)))) == ((), (0, 0, 0))


@pytest.mark.parametrize("is_loaded", [True, False])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_copy_under_way_waits_until_it_is_whole(loads, suffix, is_loaded):
    content = "".join(line(number) for number in range(2_000)).encode()
    raw = gzip.compress(content) if suffix else content
    loads.write(f"a.jsonl{suffix}", raw)
    if is_loaded:
        loads.load(source=by_content(loads))
    copy = loads.write(f"0.jsonl{suffix}", raw[: len(raw) // 2])

    report = loads.load(source=by_content(loads))
    assert counts(report) == ((0, 0, 0) if is_loaded else (2_000, 0, 0))
    assert [name for name, reason in reasons(report) if "the beginning of" in reason] == [f"0.jsonl{suffix}"]
    copy.write_bytes(raw)
    assert counts(loads.load(source=by_content(loads))) == (0, 2_000, 0)
    assert loads.rows() == list(range(2_000))


def test_a_file_that_only_began_like_another_is_loaded_when_it_goes_on(loads):
    loads.write("a.jsonl", line(1) + line(2) + line(3))
    loads.load(source=by_content(loads))
    other = loads.write("b.jsonl", line(1))
    assert counts(loads.load(source=by_content(loads))) == (0, 0, 0)

    other.write_text(line(1) + line(4))

    assert counts(loads.load(source=by_content(loads))) == (2, 0, 0)
    assert counts(loads.load(source=by_content(loads))) == (0, 0, 0)


def test_a_copy_of_a_file_that_has_grown_since_does_not_overtake_it(loads):
    path = loads.write("b.jsonl", line(1))
    loads.load(source=by_content(loads))
    path.write_text(line(1) + line(2))
    loads.write("a.jsonl", line(1) + line(2))

    assert counts(loads.load(source=by_content(loads))) == (1, 1, 0)
    assert counts(loads.load(source=by_content(loads))) == (0, 1, 0)
    assert loads.rows() == [1, 2]


def test_nothing_waits_for_a_file_that_waits_for_a_person(loads):
    path = loads.write("a.jsonl", line(1))
    loads.load(source=by_content(loads))
    path.write_text(line(8) + line(9))
    loads.write("b.jsonl", line(8))

    assert counts(loads.load(source=by_content(loads))) == (1, 0, 0)


def test_a_copy_of_a_complete_file_is_as_complete(loads):
    source = by_content(loads, sealed_after_s=0)
    first = loads.write("a.jsonl", line(1) + line(2).rstrip())
    loads.load(source=source)
    copy = loads.write("b.jsonl", first.read_bytes())
    assert counts(loads.load(source=source)) == (0, 2, 0)

    copy.write_bytes(first.read_bytes() + b" \n" + line(3).encode())

    assert counts(loads.load(source=source)) == (0, 0, 0)
    assert [(name, "its last line has grown" in reason) for name, reason in reasons(loads.load(source=source))] == [
        ("b.jsonl", True)
    ]


# Rewritten files.


@pytest.mark.parametrize("on_rewrite", OnRewrite)
def test_a_complete_packed_file_may_grow_by_a_member_as_a_plain_one_may_by_a_line(loads, on_rewrite):
    source = replace(loads.declared.source, sealed_after_s=0)
    packed = loads.write("a.jsonl.gz", gzip.compress((line(1) + line(2)).encode()))
    plain = loads.write("b.jsonl", line(11))
    loads.load(source=source)
    for path, more in ((packed, gzip.compress(line(3).encode())), (plain, line(12).encode())):
        path.write_bytes(path.read_bytes() + more)

    report = loads.load(source=source, on_rewrite=on_rewrite)

    assert (counts(report), report.notes) == ((2, 0, 0), ())
    assert loads.rows() == [1, 2, 3, 11, 12]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_complete_file_that_goes_on_in_its_last_line_is_reported(loads, name):
    def packed(content):
        return gzip.compress(content.encode()) if name.endswith("gz") else content.encode()

    source = replace(loads.declared.source, sealed_after_s=0)
    path = loads.write(name, packed(line(1).rstrip()))
    loads.load(source=source)
    path.write_bytes(path.read_bytes() + packed(" \n" + line(2)))

    (note,) = loads.load(source=source).notes

    assert note.needs_a_person
    assert note.reason.startswith("its last line has grown, although it was loaded as complete without a newline")


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_an_empty_file_replaces_nothing_and_is_reported(loads, name):
    content = (line(1) + line(2)).encode()
    path = loads.write(name, gzip.compress(content) if name.endswith("gz") else content)
    loads.load()
    path.write_bytes(b"")

    report = loads.load(on_rewrite=OnRewrite.REPLACE)

    assert (counts(report), loads.rows()) == ((0, 0, 0), [1, 2])
    assert [(note.name, note.needs_a_person) for note in report.notes] == [(name, True)]
    assert "it is empty" in report.notes[0].reason


# What a plan, a load and a question say.


def test_a_copy_is_reported_with_the_file_that_it_is_loaded_under(loads, file_of, onceload, capsys):
    file = file_of(identity="content")
    first = loads.write("a.jsonl", line(1) + line(2))
    loads.load(source=by_content(loads))
    loads.write("b.jsonl", first.read_bytes())
    loads.write("c.jsonl", first.read_bytes() + line(3).encode())

    code = main(["plan", str(file)], {"ONCELOAD_DSN": loads.dsn})
    table = capsys.readouterr().out.splitlines()
    planned = onceload("plan", file)[1]

    assert code == ExitCode.DONE
    assert [row.split()[0] for row in table if "already loaded as a.jsonl" in row] == ["b.jsonl", "c.jsonl"]
    assert [(each["file"], each["loaded_as"]) for each in planned["to_read"]] == [
        ("b.jsonl", "a.jsonl"),
        ("c.jsonl", "a.jsonl"),
    ]
    assert onceload("why", file, "b.jsonl")[1]["next_load"] == "records that all of it is already loaded as a.jsonl"
    assert onceload("why", file, "c.jsonl")[1]["next_load"].endswith(
        "as generation 1; the part before that is already loaded as a.jsonl"
    )


def test_a_pattern_that_matches_no_file_is_reported(loads, file_of, onceload):
    file = file_of("in/*.jsonl")
    loads.write("in/a.csv", "id\n1\n")

    for command in ("plan", "load"):
        code, document, err = onceload(command, file)

        (note,) = document["waiting" if command == "plan" else "notes"]
        assert (code, note["name"]) == (ExitCode.DONE, f"{loads.folder}/in/*.jsonl")
        assert note["reason"].startswith("no file matches it")
        assert command == "plan" or f"{loads.folder}/in/*.jsonl: no file matches it" in err


def test_the_folder_of_a_day_can_be_missing_so_far(loads, file_of, onceload):
    file = file_of("in/{{ ds }}/*.jsonl")
    loads.write("in/d1/a.jsonl", line(1))

    assert onceload("load", file, "--set", "ds=d2")[0] == ExitCode.DONE
    with pytest.raises(NotFound, match="nowhere"):
        loads.load(source=read_pipeline(file_of("nowhere/{{ ds }}/*"), values={"ds": "d1"}).source)


def test_rows_are_not_left_behind_in_another_table(loads, file_of, onceload):
    loads.write("a.jsonl", line(1))
    loads.load()
    another = replace(loads.declared.target, table="another")

    with pytest.raises(EditRefused, match=r'target.table was changed from "public"."target" to "public"."another"'):
        loads.load(target=another)
    file = file_of()
    file.write_text(file.read_text().replace("public.target", "public.another"))
    assert main(["plan", str(file)], {"ONCELOAD_DSN": loads.dsn}) == ExitCode.WRONG_USE

    rewind(loads.declared, loads.engine, to=Position(0), dry_run=False)
    assert loads.load(target=another).loaded == 1


def test_a_load_that_could_read_no_file_at_all_is_called_again(loads, file_of, onceload, monkeypatch):
    loads.write("a.jsonl", line(1))
    loads.write("b.jsonl", line(2))

    def refused(*_, **__):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as rights:
        rights.setattr("onceload_jobs.files.reading._read_local", refused)
        assert onceload("plan", file_of())[0] == ExitCode.CALL_AGAIN
        code, document, _ = onceload("load", file_of())

    assert (code, document["loaded"]) == (ExitCode.CALL_AGAIN, 0)
    assert [note["is_unreadable"] for note in document["notes"]] == [True, True]
    assert loads.load().loaded == 2
    assert onceload("load", file_of())[0] == ExitCode.DONE


def test_a_parquet_file_that_is_packed_stops_no_other(loads):
    table = pa.table({"id": [1, 2], "amount": pa.nulls(2), "note": ["p", "q"]})
    pq.write_table(table, loads.folder / "a.parquet")
    loads.write("b.parquet.gz", gzip.compress((loads.folder / "a.parquet").read_bytes()))
    source = replace(loads.declared.source, path=str(loads.folder / "*.parquet*"), format=Format.PARQUET)

    report = loads.load(source=source)

    assert counts(report) == (2, 0, 0)
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("b.parquet.gz", True)]
    assert "Put the unpacked file there" in report.notes[0].reason


# Parquet files that differ only in the middle.


def _write_wide(loads, name, *, seed):
    """A file of 200 columns, so that the last bytes do not show the values; its size does not depend on them."""
    random = np.random.default_rng(seed)
    columns = {f"c{number}": random.random(2_000) for number in range(200)} | _without_values(2_000)
    path = loads.folder / name
    pq.write_table(pa.table({"id": range(2_000), **columns}), path)
    return path


def _without_values(rows):
    return {name: pa.nulls(rows) for name in ("amount", "note")}


def _edges(path):
    raw = path.read_bytes()
    return len(raw), raw[:4096], raw[-4096:]


def test_a_parquet_file_with_the_edges_of_another_is_not_a_copy_of_it(loads):
    first, second = _write_wide(loads, "a.parquet", seed=1), _write_wide(loads, "b.parquet", seed=2)
    source = by_content(loads, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    second.rename(loads.folder / "later")
    assert counts(loads.load(source=source)) == (2_000, 0, 0)
    (loads.folder / "later").rename(second)
    (loads.folder / "c.parquet").write_bytes(first.read_bytes())

    assert _edges(first) == _edges(second)
    assert counts(loads.load(source=source)) == (2_000, 2_000, 0)


def test_a_parquet_file_with_the_same_statistics_of_other_values_is_not_a_copy(loads):
    """Without statistics, not even the footer shows it."""

    def write(name, value):
        columns = {f"c{number}": [value + number] * 1_000 for number in range(100)} | _without_values(1_000)
        options = {"use_dictionary": False, "compression": "none", "write_statistics": False}
        pq.write_table(pa.table({"id": range(1_000), **columns}), loads.folder / name, **options)

    write("a.parquet", 1)
    source = by_content(loads, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    loads.load(source=source)
    write("b.parquet", 2)

    assert counts(loads.load(source=source)) == (1_000, 0, 0)


def test_a_parquet_file_that_is_rewritten_with_the_same_edges_is_rewritten(loads):
    path = _write_wide(loads, "a.parquet", seed=1)
    before = _edges(path)
    source = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    loads.load(source=source)
    assert _edges(_write_wide(loads, "a.parquet", seed=2)) == before

    report = loads.load(source=source)
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("a.parquet", True)]
    assert counts(loads.load(source=source, on_rewrite=OnRewrite.NEW_GENERATION)) == (2_000, 0, 0)
