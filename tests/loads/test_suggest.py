"""A drafted suite is one that the reader takes, and that the rows meet which it was drafted from."""

import json
import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from sqlalchemy import text

from onceload.commands.suggest import write_suite
from onceload.pipeline_yaml import Document
from onceload.suite_file import read_suite
from onceload_core.errors import SettingRefused
from onceload_core.names import Batch
from onceload_core.postgres.quarantine import Fix, Selection, choose, get_record
from onceload_core.verdicts import Order
from onceload_jobs.load.staged.kept_batch import audit_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Publish, RecordProducer, Suite, Target, Write
from onceload_jobs.quality.suggest import _BATCHES_MIN, _asked, suggest
from onceload_jobs.recover.retry import retry
from tests.loads.conftest import line
from tests.loads.test_kept import publish_now, settings_of, stage

NOW = datetime(2026, 11, 22, tzinfo=UTC)
WEIRD = 'We"ird % :name'
COLUMNS = {
    "id": "bigint not null",
    "code": "text not null",
    "status": "text not null",
    "host": "text not null",
    "device": "text",
    "amount": "numeric(12,2) not null",
    "celsius": "double precision",
    "at": "timestamptz not null",
    "day": "date",
    "seen": "boolean",
    "tags": "text[]",
    "body": "jsonb",
    "key": "uuid",
    "path": "text",
    "note": "varchar(2000)",
    WEIRD: "text",
    "lines": "text",
}
#: What would end a quoted text, a comment or a line, and what YAML or SQL takes for something else.
NASTY = ["a: b # c", "q\"uo'te", "null", "☃ \U0001f600", "[{}]", "%(x)s :y"]


@pytest.fixture
def publish():
    return Publish.STAGED


def record(number, dice):
    return {
        "id": number,
        "code": f"e-{number:06}",
        "status": dice.choice(["placed", "paid", "shipped"]),
        "host": f"[a|b].example.org:({number % 7})?*+$",
        "path": f"c:\\{dice.choice('ab')}",
        "device": f"device-{dice.randrange(4)}",
        "amount": f"{dice.randrange(1, 99_999) / 100:.2f}",
        "celsius": None if number % 10 == 0 else dice.gauss(21, 3),
        "at": f"2026-11-{1 + number % 20:02}T10:00:00Z",
        "day": "2026-11-20",
        "seen": True,
        "tags": ["a"],
        "body": {"a": 1},
        "key": f"00000000-0000-0000-0000-{number:012}",
        "note": "word " * dice.randint(0, 200),
        WEIRD: dice.choice(NASTY),
        "lines": dice.choice(["new\nline\u2028x", "tab\tx"]),
    }


@pytest.fixture
def rich(loads):
    columns = tuple(parse_column(name, of_type) for name, of_type in COLUMNS.items())
    loads.declared = replace(loads.declared, columns=columns)
    dice = random.Random(7)
    loads.write("a.jsonl", "".join(json.dumps(record(number, dice)) + "\n" for number in range(600)))
    return loads


def suite_of(draft, folder: Path) -> Suite:
    path = folder / "suite.yaml"
    path.write_text(write_suite(draft), encoding="utf-8")
    document = Document(str(path))
    expectations = read_suite(document, path)
    assert document.problems == ()
    return Suite(name="drafted", path=str(path), expectations=expectations)


def drafted(loads, **named):
    draft = suggest(loads.engine, loads.declared, now=NOW, **{"batch": None, **named})
    return {
        (each.expectation.kwargs.get("column"), each.expectation.type.removeprefix("expect_")): each
        for each in draft.suggestions
    }, draft


@pytest.mark.long
def test_a_draft_from_a_staged_batch_is_met_by_it(rich, tmp_path):
    stage(rich)

    found, draft = drafted(rich, batch=Batch("one"))
    rich.declared = replace(rich.declared, suite=suite_of(draft, tmp_path))
    audit = audit_batch(rich.declared, settings_of(rich), batch=Batch("one"))

    assert [each for each in audit.findings if not each.success] == []
    assert {each.severity for each in audit.findings} == {"warning"}
    assert len(audit.findings) == len(draft.suggestions) == len(found)
    assert publish_now(rich).loaded == 600


@pytest.mark.long
def test_a_draft_from_the_target_is_met_by_what_comes_next_as_it_did(rich, tmp_path):
    rich.load()

    _, draft = drafted(rich)
    rich.declared = replace(rich.declared, suite=suite_of(draft, tmp_path))
    dice = random.Random(8)
    rich.write("b.jsonl", "".join(json.dumps(record(number, dice)) + "\n" for number in range(600, 1400)))
    stage(rich, "two")
    audit = audit_batch(rich.declared, settings_of(rich), batch=Batch("two"))

    assert [each for each in audit.findings if not each.success] == []


def test_each_is_a_careful_guess_and_says_what_was_seen(rich):
    rich.load()

    found, draft = drafted(rich)
    kwargs = {key: {k: v for k, v in each.expectation.kwargs.items() if k != "column"} for key, each in found.items()}

    assert draft.rows == 600
    assert kwargs[None, "table_row_count_to_be_between"] == {"max_value": 6000}
    # It numbers the rows, so that no bound is the last.
    assert kwargs["id", "column_values_to_be_between"] == {"min_value": 0}
    assert kwargs["code", "column_values_to_match_regex"] == {"regex": "^e-[0-9]+$"}
    assert ("code", "column_values_to_be_unique") in found
    assert kwargs["status", "column_values_to_be_in_set"] == {"value_set": ["paid", "placed", "shipped"]}
    assert kwargs["host", "column_values_to_match_regex"] == {
        "regex": "^[[]a[|]b[]][.]example[.]org:[(][0-9]+[)][?][*][+][$]$"
    }
    assert ("path", "column_value_lengths_to_be_between") in found
    # There will be a fifth device.
    assert kwargs["device", "column_values_to_match_regex"] == {"regex": "^device-[0-9]+$"}
    assert kwargs["amount", "column_values_to_be_between"]["min_value"] == 0
    assert 1900 < kwargs["amount", "column_values_to_be_between"]["max_value"] <= 2100
    assert kwargs["celsius", "column_values_to_not_be_null"] == {"mostly": 0.75}
    assert kwargs["celsius", "column_values_to_be_between"]["min_value"] < 5
    assert kwargs["at", "column_values_to_be_between"] == {"min_value": "2025-11-01"}
    assert kwargs["note", "column_value_lengths_to_be_between"]["min_value"] == 0
    # What the contract refuses anyway is left out.
    assert not any(
        key[1] == "column_values_to_not_be_null" for key in found if COLUMNS.get(key[0], "").endswith("null")
    )
    seen = found["celsius", "column_values_to_not_be_null"].seen
    assert seen == "null in 10.00% of 600 rows, 2026-11-22"
    assert "in 600 rows, 2026-11-22; 98 of 100 are" in found["amount", "column_values_to_be_between"].seen


def test_no_value_is_more_than_a_value_in_the_file(rich):
    rich.load()

    _, draft = drafted(rich)
    written = write_suite(draft)

    (in_set,) = (each for each in yaml.safe_load(written)["expectations"] if each["kwargs"].get("column") == WEIRD
                 and "value_set" in each["kwargs"])  # fmt: skip
    assert sorted(in_set["kwargs"]["value_set"]) == sorted(NASTY)
    assert all(character.isprintable() or character == "\n" for character in written)
    assert written.count("\n") == 3 + 4 * len(draft.suggestions)


def test_no_guess_concerns_the_key_of_a_merge_or_its_deletions(rich):
    target = Target(schema="public", table="target", write=Write.MERGE, key=("code",), deleted="seen")
    dice = random.Random(9)
    records = (record(number, dice) | {"seen": False} for number in range(600))
    rich.write("a.jsonl", "".join(json.dumps(each) + "\n" for each in records))
    rich.declared = replace(rich.declared, target=target)
    rich.load()

    found, _ = drafted(rich)

    assert ("code", "column_values_to_be_unique") not in found
    assert not any(column == "seen" for column, _ in found)


def test_too_few_rows_do_not_show_what_is_ordinary(loads):
    with pytest.raises(SettingRefused, match="which does not exist yet"):
        drafted(loads)
    loads.write("a.jsonl", line(1))
    loads.load()

    with pytest.raises(SettingRefused, match="Expected at least 100"):
        drafted(loads)
    with pytest.raises(SettingRefused, match="is not staged"):
        drafted(loads, batch=Batch("none"))


def test_a_big_table_is_looked_at_in_parts_and_nothing_of_it_changes(loads, monkeypatch):
    monkeypatch.setattr("onceload_jobs.quality.suggest._ROWS_MAX", 1000)
    loads.write("a.jsonl", line(0))
    loads.load()
    with loads.engine.begin() as connection:
        connection.execute(
            text("INSERT INTO target (id, amount, note) SELECT n, n % 7, 'x' FROM generate_series(1, 50000) n")
        )

    found, draft = drafted(loads)

    assert 200 < draft.rows <= 5000
    # Some of all pages, and not the first ones.
    most = int(found["id", "column_values_to_be_between"].seen.split(" … ")[1].split(" ")[0].replace(",", ""))
    assert most > 20_000
    # A part of the rows hides twins.
    assert ("id", "column_values_to_be_unique") not in found
    assert found["amount", "column_values_to_be_between"].expectation.kwargs["max_value"] == 12


@pytest.mark.parametrize("retried_as", ["batch 4", "another name"])
@pytest.mark.parametrize("producer", [None, RecordProducer(name="note", sequence="id", order=Order.ANY)])
def test_only_batches_of_loads_are_counted(loads, producer, retried_as):
    """A retry is not one of them, also if it has the name of the load before it."""
    loads.declared = replace(loads.declared, producer=producer)
    for batch in range(_BATCHES_MIN):
        lines = [line(each) for each in range(100 * batch, 100 * (batch + 1))]
        loads.write(f"{batch}.jsonl", "".join(lines))
        if batch == _BATCHES_MIN - 1:
            loads.write("bad.jsonl", '{"id": 1000, "amount": "bad", "note": "x"}\n')
        loads.load(batch=f"batch {batch}")
    asked = choose(loads.engine, Selection(pipeline="events")).held
    (bad,) = (record.quarantine_id for record in asked)
    fixed = {bad: Fix(raw=line(1000).encode(), digest=get_record(loads.engine, bad).digest)}

    report = retry(loads.engine, loads.ledger, loads.declared, asked, batch=Batch(retried_as), fixed=fixed)
    found, _ = drafted(loads)

    assert report.retried == 1
    of_rows = found[None, "table_row_count_to_be_between"]
    assert of_rows.seen == "100 … 100 rows in 5 batches, 2026-11-22"
    assert of_rows.expectation.kwargs == {"min_value": 10, "max_value": 1000}


def test_rows_without_a_column_that_a_suite_may_concern_are_counted(loads):
    with loads.engine.begin() as connection:
        assert connection.execute(_asked("(VALUES (1), (2)) AS rows", (), "")).one() == (2,)
