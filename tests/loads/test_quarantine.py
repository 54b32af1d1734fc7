"""Quarantined records as a person sees them: the exported file, and the commands."""

import gzip
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from onceload.cli import main
from onceload.quarantine_file import check_fixed_records, read_fixed_records, write_records
from onceload.quarantined import readable
from onceload_core.errors import ExitCode, NotFound, SettingRefused
from onceload_core.names import Position
from onceload_core.postgres.quarantine import VALUES, QuarantineId, Selection, choose, find_records, kind_of
from onceload_core.postgres.upkeep import tidy
from onceload_core.replay import EntryKind
from onceload_jobs.pipeline.declared import (
    Publish,
)
from tests.loads.conftest import Loads, line
from tests.loads.held_records import BROKEN, held, is_sound, states_of

pytestmark = pytest.mark.usually_staged

#: With values as Python and as the server quote them, and with names that are none.
REASONS = (
    "'a\\'b\"c' is not a valid bigint: out of range",
    '"it\'s" is not a valid bigint',
    "'\\\\' is not a valid numeric(12,2)",
    "'a' and \"b\" and 'c'",
    "-1.5e+300 is not a valid real: out of range",
    "invalid UTF-8 at byte 7 of the record",
    "12 bytes that are not text are not a valid varchar(10)",
    'the server refused it: invalid input syntax for type inet: "10.0.0.300"',
    'the server refused it: new row for relation "t 1" violates check constraint "c 2"',
    "the server refused it: it isn't so",
    "'ünï…' is not a valid date",
)


# The exported file.


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_an_exported_file_is_for_its_owner_alone_and_gives_the_same_bytes_back(loads, tmp_path):
    loads.write("a.jsonl", BROKEN.encode() + b"\xff\xfe\n" + "é\u2028{\n".encode())
    loads.load()
    path = tmp_path / "bad.jsonl"
    records = list(find_records(loads.engine, Selection(pipeline="events")))

    assert write_records(records, path) == 3

    fixed = read_fixed_records(path, pipeline="events")
    check_fixed_records(fixed, records)
    assert [fixed[each.quarantine_id].raw for each in records] == [b"{broken", b"\xff\xfe", "é\u2028{".encode()]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_file_of_another_database_fixes_nothing(two_strange, tmp_path):
    path = tmp_path / "bad.jsonl"
    records = list(find_records(two_strange.engine, Selection(pipeline="events")))
    write_records([replace(each, sequence_id=each.sequence_id + 1) for each in records], path)

    with pytest.raises(SettingRefused, match=f"record {records[0].quarantine_id} as sequence id"):
        check_fixed_records(read_fixed_records(path, pipeline="events"), records)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{\n",
        "[]\n",
        '{"id": 1}\n',
        '{"id": "1", "file": "a", "sequence_id": 0, "digest": "", "raw": ""}\n',
        '{"id": 1, "file": "a", "sequence_id": 0, "digest": "", "raw": "", "raw_base64": ""}\n',
        '{"id": 1, "file": "a", "sequence_id": 0, "digest": "", "raw": "\\ud800"}\n',
        '{"id": 1, "file": "a", "sequence_id": 0, "digest": "", "raw_base64": "!"}\n',
        '{"id": 1, "file": "a", "sequence_id": 0, "digest": "", "raw": 7}\n',
        '{"id": 1, "file": "a", "sequence_id": 0, "digest": 7, "raw": ""}\n',
        '{"id": 1, "file": "a", "sequence_id": 0, "digest": "", "raw": ""}\n' * 2,
    ],
)
def test_a_file_that_says_something_else_is_refused(tmp_path, content):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)

    with pytest.raises(SettingRefused, match=r"bad\.jsonl"):
        read_fixed_records(path, pipeline="events")


def test_a_file_that_an_earlier_release_exported_is_refused_with_the_command_that_exports_again(tmp_path):
    path = tmp_path / "bad.jsonl"
    path.write_text('{"id": 1, "file": "a", "sequence_id": 0, "column": null, "reason": "bad", "raw": "{}"}\n')

    with pytest.raises(SettingRefused, match=r"without digest.*`onceload quarantine export again\.jsonl --pipeline e"):
        read_fixed_records(path, pipeline="events")


# The command line.


def pipeline_file(loads: Loads, folder: Path) -> Path:
    path = folder / "events.yaml"
    path.write_text(
        f"pipeline: events\nsource: {{path: '{loads.folder}/*.jsonl', format: jsonl}}\n"
        "columns: {id: bigint not null, amount: 'numeric(12,2)', note: text}\n"
        "target: {table: public.target}\npublish: direct\n"
    )
    return path


@pytest.fixture
def call(loads, capsys):
    """The command line in this process: its exit code, what it says, and its document."""

    def run(*arguments: str) -> tuple[ExitCode, str, Any]:
        capsys.readouterr()
        code = main(["quarantine", *arguments], {"ONCELOAD_DSN": loads.dsn})
        printed = capsys.readouterr()
        document = json.loads(printed.out) if "--json" in arguments else printed.out
        return code, printed.err, document

    return run


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_from_looking_to_fixing_to_retrying(loads, tmp_path, call):
    loads.write("a.jsonl", line(1) + '{"id": "two"}\n{"id": "three"}\n' + BROKEN)
    loads.load()
    bad, yaml = tmp_path / "bad.jsonl", str(pipeline_file(loads, tmp_path))

    code, _, table = call("list")
    listed = call("list", "--json", "--reason", "BIGINT")[2]
    exported = call("export", str(bad), "--reason", "bigint", "--json")[2]
    bad.write_text(bad.read_text().replace('\\"two\\"', "2").replace('\\"three\\"', "3"))
    report = call("retry", yaml, "--from", str(bad), "--json")[2]
    again, messages, _ = call("retry", yaml, "--from", str(bad))

    assert (code, again) == (ExitCode.DONE, ExitCode.DONE)
    assert table.splitlines()[0].split() == ["records", "column", "reason", "example"]
    assert [each["file"] for each in listed["records"]] == ["a.jsonl", "a.jsonl"]
    assert sum(each["records"] for each in listed["reasons"]) == exported["records"] == report["retried"] == 2
    assert "was already retried at position 2" in messages
    assert loads.rows() == [1, 2, 3]
    assert [each["id"] for each in call("list", "--json")[2]["records"]] == held(loads)
    assert len(call("list", "--json", "--state", "any")[2]["records"]) == 3


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_fix_of_another_record_at_the_same_place_loads_nothing(loads, tmp_path, call):
    """As in the database of another stage, or in one that was restored, where the id, file and sequence id recur."""
    loads.write("a.jsonl", line(1) + '{"id": "two"}\n{"id": "three"}\n')
    loads.load()
    bad, again, yaml = tmp_path / "bad.jsonl", tmp_path / "again.jsonl", str(pipeline_file(loads, tmp_path))
    call("export", str(bad))
    bad.write_text(bad.read_text().replace('\\"two\\"', "2").replace('\\"three\\"', "3"))
    other = "UPDATE onceload.quarantine SET raw = :raw WHERE reason LIKE '%three%'"
    with loads.engine.begin() as connection:
        connection.execute(text(other), {"raw": b'{"id": "seven"}'})

    refused, messages, _ = call("retry", yaml, "--from", str(bad))
    call("export", str(again))
    again.write_text(again.read_text().replace('\\"two\\"', "2").replace('\\"seven\\"', "7"))

    assert refused is ExitCode.WRONG_USE
    assert f"record {held(loads)[1]}: found a fix of other bytes" in messages
    assert loads.rows() == [1]
    assert call("retry", yaml, "--from", str(again), "--json")[2]["retried"] == 2
    assert loads.rows() == [1, 2, 7]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_retry_names_the_fields_without_a_column(two_strange, tmp_path, call):
    _, messages, report = call("retry", str(pipeline_file(two_strange, tmp_path)), "--json")

    assert (report["retried"], report["ignored_fields"], report["ignored_of"]) == (2, {"surprise": 2}, 2)
    assert "fields without a column were not loaded: surprise (in 2 of 2 records looked at). Declare" in messages


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_record_is_shown_whole_and_does_no_harm_to_a_terminal(loads, call):
    loads.write("a.jsonl", b"\x1b[31mred \xff " + "\u202eé".encode() + b"\n" + b"y" * 9000 + b"\n")
    loads.load()
    first, second = map(str, held(loads))

    code, words, shown = call("show", first)

    assert code is ExitCode.DONE
    assert "\\x1b[31mred \\xff \\u202eé" in shown
    assert all(character.isprintable() or character == "\n" for character in shown)
    assert f"quarantine discard --pipeline events --id {first} --yes" in words
    assert ("a.jsonl" in shown, "generation" in shown, "position" in shown) == (True, True, True)
    assert call("show", second)[2].count("y" * 4096) == 1
    assert "y" * 9000 in call("show", second, "--all")[2]
    assert call("show", second, "--json", "--all")[2]["raw"] == "y" * 9000
    assert (call("show", "99")[0], "99" in call("show", "99")[1]) == (ExitCode.WRONG_USE, True)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_discard_says_what_it_would_do_and_then_does_it_in_the_ledger(two_strange, call):
    loads = two_strange
    first = str(held(loads)[0])

    would, messages, _ = call("discard", "--id", first)
    assert (would, held(loads)[0], loads.ledger.position("events")) == (ExitCode.DONE, int(first), 1)
    done = call("discard", "--id", first, "--yes", "--json")[2]
    again, said_again, _ = call("discard", "--id", first, "--yes")

    assert f"1 record ({first}) would be discarded. Nothing was changed." in messages
    assert done == {"pipeline": "events", "records": [int(first)], "discarded": True, "position": 2}
    assert (again, f"record {first} was already discarded at position 2" in said_again) == (ExitCode.DONE, True)
    assert states_of(loads) == [("discarded", 2), ("held", None)]
    *_, entry = loads.ledger.entries("events", after=Position(0))
    assert (entry.kind, entry.counts.filtered) == (EntryKind.DISCARD, 1)
    assert entry.session is not None
    assert " by " in entry.session
    assert is_sound(loads)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_the_sessions_of_retries_and_discards_go_like_those_of_loads(two_strange, call, tmp_path):
    loads = two_strange
    first, second = map(str, held(loads))
    call("retry", str(pipeline_file(loads, tmp_path)), "--id", first)
    call("discard", "--id", second, "--yes")
    with loads.engine.begin() as connection:
        ages = "opened_at = opened_at - interval '31 days', lease_until = lease_until - interval '31 days'"
        connection.execute(text(f"UPDATE onceload.session SET {ages}"))

    tidy(loads.engine, "events")

    assert states_of(loads) == [("retried", 2), ("discarded", 3)]
    assert loads.ask("SELECT name FROM onceload.session") == []


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_reasons_that_differ_in_a_value_are_listed_as_one(loads, call):
    values = [f"{number} x" for number in range(955)]
    loads.write("a.jsonl", line(1) + "".join(line(number, value) for number, value in enumerate(values)) + BROKEN)
    loads.load()

    reasons = call("list", "--json")[2]["reasons"]
    same = call("list", "--json", "--reason", "… IS not a valid numeric", "--limit", "1000")[2]
    _, _, table = call("list")

    ids = held(loads)
    assert [(each["records"], each["column"], each["reason"]) for each in reasons] == [
        (955, "amount", "… is not a valid numeric(12,2)"),
        (1, None, "invalid JSON at character …"),
    ]
    assert (reasons[0]["example"], reasons[0]["example_id"]) == ("'0 x' is not a valid numeric(12,2)", ids[0])
    assert (len(same["records"]), len(same["reasons"])) == (955, 1)
    assert table.splitlines()[1].split()[0] == "955"


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_the_server_groups_reasons_as_python_does(loads):
    with loads.engine.begin() as connection:
        found = connection.execute(
            text("SELECT regexp_replace(reason, :values, '…', 'g') FROM unnest(CAST(:reasons AS text[])) AS reason"),
            {"values": VALUES, "reasons": list(REASONS)},
        )

        assert list(found.scalars()) == [kind_of(reason) for reason in REASONS]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_records_are_listed_with_their_lines_while_the_file_holds_them(loads, call, suffix):
    content = line(1) + "\n" + BROKEN + line(2, note="é") + "  {}\n"
    path = loads.write(f"a.jsonl{suffix}", gzip.compress(content.encode()) if suffix else content)
    loads.load()
    first, second = map(str, held(loads))

    records = call("list", "--json")[2]["records"]
    assert [(each["sequence_id"], each["line"]) for each in records] == [
        (content.index("{broken"), 3),
        (len((line(1) + "\n" + BROKEN + line(2, note="é")).encode()), 5),
    ]
    assert call("show", second, "--json")[2]["line"] == 5
    assert "line              5" in call("show", second)[2]

    written = content.replace("{}", "[]").encode()
    path.write_bytes(gzip.compress(written) if suffix else written)
    assert [call("show", each, "--json")[2]["line"] for each in (first, second)] == [3, None]
    path.unlink()
    os.mkfifo(path)
    assert {each["line"] for each in call("list", "--json")[2]["records"]} == {None}


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_an_empty_selection_is_reported_clearly(two_strange, call, tmp_path):
    yaml = str(pipeline_file(two_strange, tmp_path))

    for arguments in (["list"], ["retry", yaml], ["discard", "--yes"], ["export", str(tmp_path / "bad.jsonl")]):
        code, messages, _ = call(*arguments, "--reason", "no such words")
        assert code is ExitCode.DONE
        assert "no record with reason 'no such words' is held in quarantine" in messages

    assert not (tmp_path / "bad.jsonl").exists()
    assert call("discard", "--yes")[0] is ExitCode.WRONG_USE
    assert call("retry", yaml, "--id", "77")[0] is ExitCode.WRONG_USE
    assert len(held(two_strange)) == 2


def test_an_id_that_does_not_exist_is_refused_by_its_name(two_strange):
    asked = Selection(pipeline="events", ids=(QuarantineId(held(two_strange)[0]), QuarantineId(1234)))

    with pytest.raises(NotFound, match="'1234'"):
        choose(two_strange.engine, asked)


def test_text_is_shown_as_text_and_bytes_are_escaped():
    assert readable(b'{"a": "\\n"}') == ['{"a": "\\n"}']
    assert readable("ä\tb\nc".encode()) == ["ä\\tb", "c"]
    assert readable("ää".encode()[:3], is_cut=True) == ["ä"]
    assert readable(b"\x00\x9b") == ["\\x00\\x9b"]
