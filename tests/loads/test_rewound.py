"""What a rewind rolled back is remembered until it is loaded again, and what can no longer be loaded is named."""

import gzip
import json
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload.cli import main
from onceload.recoveries import rewind_in_words
from onceload_core.errors import ExitCode
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Format, Publish, RecordProducer, Source
from onceload_jobs.verify.findings import Kind
from tests.loads.conftest import line
from tests.loads.rewinding import back, pipeline_file
from tests.loads.verified import named, verified

pytestmark = pytest.mark.usually_staged

_NAMES = ["a.jsonl", "b.jsonl.gz"]


@pytest.fixture(params=_NAMES)
def rewound(loads, request):
    """A file whose rows were rolled back, beside one whose rows were not."""
    loads.write("kept.jsonl", line(0))
    loads.load()
    content = "".join(map(line, range(1, 100))).encode()
    loads.file = loads.write(request.param, gzip.compress(content) if request.param.endswith("gz") else content)
    loads.load()
    back(loads, 1)
    assert loads.rows() == [0]
    return loads


def notes(verification):
    return {note.name: note.reason for note in verification.not_compared}


def test_a_file_that_is_still_there_waits_to_be_loaded_again(rewound):
    found = verified(rewound, deep=True)

    assert named(found) == []
    reason = notes(found)[rewound.file.name]
    assert reason.startswith("nothing of it has been loaded since the rewind at position 3 (20")
    rewound.load()
    assert (len(rewound.rows()), verified(rewound, deep=True).not_compared) == (100, ())


def test_a_file_that_is_gone_after_a_rewind_is_a_difference(rewound):
    rewound.file.unlink()

    for _ in range(2):
        (difference,) = verified(rewound).differences
        assert (difference.producer, difference.kind) == (rewound.file.name, Kind.NOT_LOADED_AGAIN)
        assert difference.expected.startswith("loaded again after the rewind at position 3 (20")
        assert difference.found == "no such file"
        rewound.load()
    assert rewound.rows() == [0]


def test_a_file_that_was_shortened_after_a_rewind_is_a_difference(rewound):
    content = "".join(map(line, range(1, 50))).encode()
    rewound.file.write_bytes(gzip.compress(content) if rewound.file.name.endswith("gz") else content)

    assert named(verified(rewound)) == [(rewound.file.name, Kind.NOT_LOADED_AGAIN, None)]
    rewound.load()
    assert len(rewound.rows()) == 50
    (difference,) = verified(rewound, deep=True).differences
    assert (difference.kind, difference.found) == (Kind.NOT_LOADED_AGAIN, "the file is shorter than before")


def write_groups(path, first):
    """Write four row groups of 100 rows; returns the metadata of the first one."""
    ids = pa.table({"id": pa.array(range(first, first + 400), pa.int64())})
    pq.write_table(ids, path, row_group_size=100, compression="none", use_dictionary=False)
    return pq.read_metadata(path).row_group(0)


def test_a_file_of_which_a_part_is_loaded_after_a_rewind_is_compared_with_what_it_was_before(loads):
    file, kept = loads.folder / "a.parquet", loads.folder / "0.parquet"
    of_group = write_groups(kept, 0).total_byte_size
    source = Source(path=str(loads.folder / "*.parquet"), format=Format.PARQUET, chunk_bytes=of_group + 50)
    loads.declared = replace(loads.declared, source=source, columns=(parse_column("id", "bigint"),))
    loads.load()
    position = loads.ledger.position("events")
    write_groups(file, 1000)
    loads.load()
    back(loads, position)
    at = write_groups(file, 2000).column(0).data_page_offset
    whole = file.read_bytes()
    file.write_bytes(whole[:at] + b"\xff" * 400 + whole[at + 400 :])

    loads.load()

    assert loads.rows() == [*range(400), *range(2100, 2400)]
    (difference,) = [each for each in verified(loads).differences if each.kind is Kind.NOT_LOADED_AGAIN]
    assert (difference.producer, difference.found) == ("a.parquet", "the file has other content than before")


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_file_that_is_right_as_it_is_now_is_accepted_by_replacing_it(rewound):
    rewound.write(rewound.file.name, line(1) if rewound.file.suffix == ".jsonl" else gzip.compress(line(1).encode()))
    rewound.load()
    assert named(verified(rewound)) == [(rewound.file.name, Kind.NOT_LOADED_AGAIN, None)]

    rewound.load()
    assert named(verified(rewound)) == [(rewound.file.name, Kind.NOT_LOADED_AGAIN, None)]
    file = pipeline_file(rewound, rewound.folder.parent)
    arguments = ["load", str(file), "--only", rewound.file.name, "--replace"]
    assert main(arguments, {"ONCELOAD_DSN": rewound.dsn}) == 0

    assert (rewound.rows(), named(verified(rewound, deep=True))) == ([0, 1], [])


def test_a_file_of_which_a_part_stays_loaded_is_named_too(loads):
    path = loads.write("a.jsonl", line(1))
    loads.load()
    path.write_text(line(1) + line(2))
    loads.load()
    back(loads, 1)

    assert named(verified(loads)) == []
    path.write_text(line(1))
    assert named(verified(loads)) == [("a.jsonl", Kind.NOT_LOADED_AGAIN, None)]
    path.unlink()
    assert {kind for _, kind, _ in named(verified(loads))} == {Kind.FILE_MISSING, Kind.NOT_LOADED_AGAIN}


def test_a_file_that_was_gone_in_one_of_two_rewinds_is_named(loads):
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    back(loads, 0)
    path.write_text(line(1))
    loads.load()
    back(loads, 0)
    loads.load()

    (difference,) = verified(loads).differences
    assert (loads.rows(), difference.kind) == ([1], Kind.NOT_LOADED_AGAIN)
    assert difference.expected.startswith("loaded again after the rewind at position 2 ")


@pytest.mark.parametrize("name", ["a.log", "b.log"])
def test_content_that_is_loaded_under_another_name_is_not_missed(logs, name):
    logs.write("a.log", line(1) + line(2))
    logs.load()
    logs.write("b.log", line(1) + line(2))
    logs.load()
    back(logs, 0)
    (logs.folder / name).unlink()

    logs.load()

    assert (logs.rows(), named(verified(logs, deep=True))) == ([1, 2], [])


def test_records_that_name_their_producers_are_named_by_their_file(loads):
    source = {"producer": RecordProducer(name="note", sequence="id", order=Order.ANY), "publish": Publish.STAGED}
    loads.declared = replace(loads.declared, **source)
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    back(loads, 0)
    assert named(verified(loads)) == []

    path.unlink()

    assert named(verified(loads)) == [("a.jsonl", Kind.NOT_LOADED_AGAIN, None)]


def test_a_rewind_names_the_files_that_cannot_bring_their_rows_again(loads):
    for name in ("gone.jsonl", "short.jsonl", "whole.jsonl"):
        loads.write(name, line(1) + line(2))
    loads.load()
    (loads.folder / "gone.jsonl").unlink()
    loads.write("short.jsonl", line(1))

    dry = back(loads, 0, dry_run=True)
    done = back(loads, 0)

    assert (
        dry.lost
        == done.lost
        == (
            "gone.jsonl (records: 2): the source has no such file",
            "short.jsonl (records: 2): the file has 41 bytes, and what is rolled back ends at byte 82",
        )
    )
    assert "records of these files would be rolled back, and cannot be loaded again: gone.jsonl" in rewind_in_words(dry)
    assert "records of these files cannot be loaded again: gone.jsonl" in rewind_in_words(done)
    loads.load()
    assert back(loads, 0, dry_run=True).lost == ()


def test_a_rewind_looks_for_files_that_a_pattern_of_one_day_does_not_match(loads):
    loads.write("2026-01-01/a.jsonl", line(1))
    loads.load()
    today = replace(loads.declared.source, path=str(loads.folder / "2026-01-02" / "*.jsonl"), root=str(loads.folder))
    loads.declared = replace(loads.declared, source=today)

    assert back(loads, 0, dry_run=True).lost == ()


def test_the_command_line_says_what_is_not_loaded_again(rewound, capsys):
    rewound.file.unlink()
    environment = {"ONCELOAD_DSN": rewound.dsn}

    assert main(["status"], environment) == 0
    err = capsys.readouterr().err
    assert "not loaded again yet: 1. `onceload verify pipelines/events.yaml` lists" in err
    assert main(["status", "--json"], environment) == 0
    assert json.loads(capsys.readouterr().out)["status"][0]["not_loaded_again"] == 1

    file = pipeline_file(rewound, rewound.folder.parent)
    assert main(["verify", str(file)], environment) == ExitCode.NEEDS_A_PERSON
    assert "not loaded again (1): a rewind deleted the rows of these records" in capsys.readouterr().err


def test_after_the_rewind_of_a_retry_the_record_is_in_quarantine_and_not_loaded_again(grown, capsys):
    file, environment = pipeline_file(grown, grown.folder.parent), {"ONCELOAD_DSN": grown.dsn}

    assert main(["recover", "rewind", str(file), "--position", "3"], environment) == 0
    of_retry = capsys.readouterr().err
    assert main(["recover", "rewind", str(file), "--position", "2"], environment) == 0
    of_load = capsys.readouterr().err

    listed = "`onceload quarantine list --pipeline events` shows the records that are in quarantine again"
    again = f"run `onceload load {file}` to load the records again"
    assert [listed in of_retry, again in of_retry] == [True, False]
    assert [listed in of_load, again in of_load] == [False, True]
