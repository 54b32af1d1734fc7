"""Retries of quarantined records: each is loaded once, under its own id, or stays held with its reason."""

import threading
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from onceload.cli import main
from onceload_core.errors import CommitOutcomeUnknown, ExitCode, SettingRefused
from onceload_core.names import Position
from onceload_core.ports import CommitStep
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.quarantine import Fix, Selection, choose, get_record
from onceload_core.replay import EntryKind
from onceload_jobs.formats.chunks import KEPT_BYTES
from onceload_jobs.load.settings import new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    CsvOptions,
    Format,
    MissingColumns,
    Publish,
    QuarantineLimit,
    Target,
    UnknownFields,
    Write,
)
from onceload_jobs.recover.retry import RetryReport, retry
from tests.contract.conftest import Crash, crashing_at
from tests.contract.ledgers import SETTLING
from tests.loads.conftest import Loads, line, strange
from tests.loads.held_records import BROKEN, held, is_sound, states_of
from tests.loads.test_choice import load_chosen
from tests.servers import execute
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.usually_staged

#: A file may be bad as a whole.
ANY_NUMBER = QuarantineLimit(share=1)


def retry_all(
    loads: Loads, *, ledger: PostgresLedger | None = None, fixed: dict[Any, bytes] | None = None, **changes: Any
) -> RetryReport:
    declared = replace(loads.declared, **changes)
    asked = choose(loads.engine, Selection(pipeline=declared.name)).held
    fixes = {each: Fix(raw=raw, digest=get_record(loads.engine, each).digest) for each, raw in (fixed or {}).items()}
    return retry(loads.engine, ledger or loads.ledger, declared, asked, batch=new_batch(), fixed=fixes)


def test_a_record_that_is_good_now_is_loaded_under_its_own_id_in_one_commit(two_strange):
    loads = two_strange

    report = retry_all(loads)

    assert (report.retried, report.still_bad, report.position) == (2, {}, 2)
    assert loads.rows() == [1, 2, 3, 4]
    content = (loads.folder / "a.jsonl").read_text()
    starts = [content.index(f'{{"id": {number}') for number in (1, 2, 3, 4)]
    assert [sequence for _, sequence in loads.rows("id, _sequence")] == starts
    assert len({producer for producer, _ in loads.rows("_producer_id, id")}) == 1
    assert states_of(loads) == [("retried", 2), ("retried", 2)]
    *_, entry = loads.ledger.entries("events", after=Position(0))
    assert (entry.kind, entry.counts.loaded, entry.batch) == (EntryKind.RETRY, 2, report.batch)
    assert is_sound(loads)


def test_a_retry_does_not_create_a_target_again_that_was_lost(two_strange):
    loads = two_strange
    with loads.engine.begin() as connection:
        connection.execute(text("DROP TABLE target"))

    with pytest.raises(SettingRefused, match="which does not exist"):
        retry_all(loads)

    assert loads.ask("SELECT to_regclass('target')") == [(None,)]


def test_retrying_again_finds_nothing_and_loading_again_finds_nothing_new(two_strange):
    loads = two_strange
    retry_all(loads)

    assert retry_all(loads).retried == 0
    assert loads.load().loaded == 0
    assert loads.rows() == [1, 2, 3, 4]


def test_a_record_that_is_still_bad_stays_held_with_its_new_reason_and_the_rest_is_loaded(loads):
    loads.write("a.jsonl", strange(1) + BROKEN + strange(2) + line(3, amount="no number"))
    loads.load(unknown_fields=UnknownFields.FAIL)

    narrow = tuple(parse_column(*each) for each in {"id": "bigint", "amount": "integer", "note": "text"}.items())
    execute(loads.admin_dsn, "ALTER TABLE target ALTER amount TYPE integer")
    report = retry_all(loads, fixed=dict.fromkeys((held(loads)[0], held(loads)[2]), b'{"id": 7}'), columns=narrow)

    assert (report.retried, len(report.still_bad)) == (2, 2)
    after = loads.ask("SELECT state, column_name, reason FROM onceload.quarantine ORDER BY sequence_id")
    assert [state for state, _, _ in after] == ["retried", "held", "retried", "held"]
    assert after[3] == ("held", "amount", "'no number' is not a valid integer")
    assert is_sound(loads)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_fix_that_is_bad_too_leaves_the_record_its_own_reason(loads):
    loads.write("a.jsonl", line(1) + line(2, amount="no number"))
    loads.load()
    (held_id,) = held(loads)
    stored = loads.ask("SELECT column_name, reason FROM onceload.quarantine")

    report = retry_all(loads, fixed={held_id: b'{"amount": 1}'})

    assert report.still_bad[held_id].reason == "null, but declared not null"
    assert loads.ask("SELECT column_name, reason FROM onceload.quarantine") == stored


def test_a_retry_counts_and_names_the_fields_that_are_not_loaded(two_strange, logged):
    loads = two_strange

    report = retry_all(loads)

    assert (report.ignored_fields, report.ignored_of) == ({"surprise": 2}, 2)
    assert logged.one("fields_ignored")["fields"] == "surprise (in 2 of 2 records looked at)"
    assert retry_all(loads).ignored_fields == {}


def test_nothing_good_makes_no_commit(loads):
    loads.write("a.jsonl", line(1) + BROKEN)
    loads.load()

    report = retry_all(loads)

    assert (report.retried, len(report.still_bad), report.position) == (0, 1, 1)
    assert loads.ledger.position("events") == 1


@pytest.mark.parametrize("step", SETTLING)
@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_retry_killed_anywhere_and_called_again_loads_each_record_once(two_strange, step):
    loads = two_strange
    with pytest.raises(Crash):
        retry_all(loads, ledger=PostgresLedger(loads.engine, reached=crashing_at(step)))

    retry_all(loads)

    assert loads.rows() == [1, 2, 3, 4]
    assert loads.ledger.position("events") == 2
    assert is_sound(loads)


@pytest.mark.parametrize("lands", [True, False])
@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_commit_without_an_answer_is_looked_up_and_not_repeated(two_strange, lands):
    loads = two_strange
    unanswered = [True]

    class Unanswered(PostgresLedger):
        def settle(self, settlement: Any, *, begun: Any = None) -> Position:
            if not unanswered:
                return super().settle(settlement, begun=begun)
            unanswered.pop()
            if lands:
                super().settle(settlement, begun=begun)
            raise CommitOutcomeUnknown("events", settlement.batch, "the line went dead")

    report = retry_all(loads, ledger=Unanswered(loads.engine))

    assert (report.retried, report.settled_elsewhere, report.position) == (2, 0, 2)
    assert loads.rows() == [1, 2, 3, 4]


def test_two_retries_at_once_load_each_record_once(loads):
    """Both wait for the commit lock with all rows written; one of them gets them all."""
    count = 50
    loads.write("a.jsonl", "".join(strange(number) for number in range(count)))
    loads.load(unknown_fields=UnknownFields.FAIL, quarantine_limit=ANY_NUMBER)
    asked = choose(loads.engine, Selection(pipeline="events")).held
    meeting = threading.Barrier(2)
    reports: list[RetryReport] = []

    def run() -> None:
        met: list[bool] = []

        def reached(step: CommitStep) -> None:
            if step is CommitStep.ROWS_WRITTEN and not met:
                met.append(True)
                meeting.wait(timeout=PATIENCE_S)

        engine = connect(LedgerSettings(dsn=loads.dsn))
        ledger = PostgresLedger(engine, reached=reached)
        reports.append(retry(engine, ledger, loads.declared, asked, batch=new_batch()))
        engine.dispose()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)

    assert sorted((each.retried, each.settled_elsewhere) for each in reports) == [(0, count), (count, 0)]
    assert loads.rows() == list(range(count))
    assert loads.ledger.position("events") == 2
    assert is_sound(loads)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_retry_and_a_discard_at_once_settle_a_record_in_one_way(two_strange, capsys):
    loads = two_strange
    ids = held(loads)
    environment = {"ONCELOAD_DSN": loads.dsn}

    class Overtaken(PostgresLedger):
        def settle(self, settlement: Any, *, begun: Any = None) -> Position:
            discarding = ["quarantine", "discard", "--id", str(ids[0]), "--yes"]
            with suppress(IndexError):
                assert main([*discarding, *turns.pop()], environment) is ExitCode.DONE
            return super().settle(settlement, begun=begun)

    turns: list[list[str]] = [[]]
    report = retry_all(loads, ledger=Overtaken(loads.engine))

    assert (report.retried, report.settled_elsewhere) == (1, 1)
    assert states_of(loads) == [("discarded", 2), ("retried", 3)]
    assert loads.rows() == [1, 3, 4]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_records_that_only_the_server_refuses_stay_held_and_the_rest_is_loaded(loads):
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE target (id bigint NOT NULL CHECK (id <> 7), amount numeric(12,2), note text,"
            " _producer_id bigint, _sequence bigint)"
        )
    loads.write("a.jsonl", "".join(strange(number) for number in range(20)))
    loads.load(unknown_fields=UnknownFields.FAIL, quarantine_limit=ANY_NUMBER)

    first = retry_all(loads)
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target DROP CONSTRAINT target_id_check")

    (refusal,) = first.still_bad.values()
    assert (first.retried, "target_id_check" in refusal.reason) == (19, True)
    assert retry_all(loads).retried == 1
    assert loads.rows() == list(range(20))


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_record_that_a_constraint_refuses_at_the_commit_stays_held_and_the_rest_is_loaded(loads):
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE TABLE target (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, amount numeric(12,2), note text,"
            " _producer_id bigint, _sequence bigint)"
        )
    loads.write("a.jsonl", line(1) + line(2, "x") + line(1, "y"))
    loads.load()
    second, again = held(loads)

    report = retry_all(loads, fixed={second: line(2).encode(), again: line(1).encode()})

    assert (report.retried, list(report.still_bad)) == (1, [again])
    assert loads.rows() == [1, 2]


def test_a_late_record_does_not_overwrite_a_newer_one_of_its_key(loads):
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    loads.write("a.jsonl", strange(1) + line(1, "9.00") + strange(2))
    loads.write("b.jsonl", line(2, "8.00") + strange(3))
    loads.load(target=target, publish=Publish.STAGED, unknown_fields=UnknownFields.FAIL)

    report = retry_all(loads, target=target, publish=Publish.STAGED)

    assert report.retried == 3
    assert [(key, str(amount)) for key, amount in loads.rows("id, amount")] == [(1, "9.00"), (2, "8.00"), (3, "2.50")]
    assert is_sound(loads)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_undeclared_fields_get_their_column_from_a_retry_as_from_a_load(two_strange):
    retry_all(two_strange, unknown_fields=UnknownFields.ADD)

    assert two_strange.rows("id, surprise") == [(1, None), (2, 1), (3, 1), (4, None)]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_csv_is_read_by_the_header_of_its_file_and_not_without_it(loads):
    csv = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV)
    path = loads.write("a.csv", "note,id,amount\nhello,1,\nlater,x2,\n")
    loads.load(source=csv)
    ids = held(loads)
    content = path.read_text()

    path.write_text(content.replace("note,id", "id,note"))
    rewritten = retry_all(loads, source=csv, fixed={ids[0]: b"later,2,"})
    path.write_text(content)
    report = retry_all(loads, source=csv, fixed={ids[0]: b"later,2,"})

    assert (rewritten.retried, "rewritten" in rewritten.still_bad[ids[0]].reason) == (0, True)
    assert report.retried == 1
    assert loads.rows("id, note") == [(1, "hello"), (2, "later")]


RENAMED = {"id": "bigint", "price": "numeric(12,2)", "note": "text"}
WIDENED = {"id": "bigint", "amount": "numeric(12,2)", "note": "text", "price": "numeric(12,2)"}


@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize("columns", [RENAMED, WIDENED], ids=["renamed", "added"])
def test_a_csv_record_without_a_column_that_is_declared_now_stays_held_as_a_load_refuses_it(loads, columns):
    narrow = tuple(parse_column(*each) for each in {"id": "bigint", "note": "varchar(3)"}.items())
    csv = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV)
    content = "id,amount,note\n1,5,abc\n2,6,abcdef\n"
    loads.write("a.csv", content)
    loads.load(source=csv, columns=narrow)
    execute(
        loads.admin_dsn, "ALTER TABLE target ALTER note TYPE text, ADD amount numeric(12,2), ADD price numeric(12,2)"
    )
    edited = {"source": csv, "columns": tuple(parse_column(*each) for each in columns.items())}

    report = retry_all(loads, **edited)
    loads.write("b.csv", content)
    (note,) = loads.load(**edited).notes

    ((quarantine_id, refusal),) = report.still_bad.items()
    assert refusal.reason.partition(". ")[0] in note.reason
    assert "set missing_columns: ignore" in refusal.reason
    assert loads.ask("SELECT quarantine_id, state, reason FROM onceload.quarantine") == [
        (quarantine_id, "held", refusal.reason)
    ]
    assert loads.rows() == [1]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_csv_record_is_retried_with_null_for_a_column_that_may_be_missing(loads):
    csv = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV)
    loads.write("a.csv", "id,amount,note\n1,5,a\nx2,6,b\n")
    loads.load(source=csv)
    (quarantine_id,) = held(loads)
    columns = (*loads.declared.columns, parse_column("price", "integer"))
    execute(loads.admin_dsn, "ALTER TABLE target ADD price integer")
    lenient = replace(csv, csv=CsvOptions(missing_columns=MissingColumns.IGNORE))

    assert retry_all(loads, source=lenient, columns=columns, fixed={quarantine_id: b"2,6,b"}).retried == 1
    assert loads.rows("id, price") == [(1, None), (2, None)]


def loaded_before_a_column_was_declared(loads):
    """The source of a Parquet file with one quarantined row, loaded without its column `amount`."""
    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    narrow = tuple(parse_column(*each) for each in {"id": "bigint", "note": "varchar(3)"}.items())
    pq.write_table(pa.table({"id": [1, 2], "amount": [5, 6], "note": ["a", "long"]}), loads.folder / "a.parquet")
    loads.load(source=parquet, columns=narrow)
    execute(loads.admin_dsn, "ALTER TABLE target ALTER note TYPE text, ADD amount numeric(12,2)")
    return parquet


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_row_of_parquet_without_a_column_that_is_declared_now_stays_held_until_it_has_a_value(loads):
    parquet = loaded_before_a_column_was_declared(loads)
    (quarantine_id,) = held(loads)

    (refusal,) = retry_all(loads, source=parquet).still_bad.values()
    assert "stored without a value for 'amount', declared as columns since" in refusal.reason
    assert loads.rows("id, amount") == [(1, None)]

    fixed = {quarantine_id: b'{"id": 2, "amount": 6, "note": "long"}'}
    assert retry_all(loads, source=parquet, fixed=fixed).retried == 1
    assert loads.ask("SELECT id, amount FROM target ORDER BY id") == [(1, None), (2, Decimal(6))]


@pytest.mark.parametrize("publish", [Publish.STAGED], indirect=True)
def test_a_file_of_parquet_that_is_loaded_again_brings_the_column_that_its_stored_rows_lack(loads):
    parquet = loaded_before_a_column_was_declared(loads)
    loads.declared = replace(loads.declared, source=parquet)

    load_chosen(loads, "a.parquet", replaces=True)

    assert loads.ask("SELECT id, amount FROM target ORDER BY id") == [(1, Decimal(5)), (2, Decimal(6))]
    (refusal,) = retry_all(loads).still_bad.values()
    assert "its file was replaced by a later generation" in refusal.reason


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_row_of_parquet_is_retried_from_the_json_that_was_kept_of_it(loads):
    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    table = pa.table({"id": [1, 2], "amount": pa.nulls(2), "note": ["a", "é"], "surprise": [1, 2]})
    pq.write_table(table, loads.folder / "a.parquet")
    loads.load(source=parquet, unknown_fields=UnknownFields.FAIL)

    assert retry_all(loads, source=parquet).retried == 2
    assert loads.rows("id, note, _sequence") == [(1, "a", 0), (2, "é", 1)]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
@pytest.mark.parametrize("fixed", [b'{"id": 2}\n{"id": 3}', b"", b"\n"])
def test_a_text_that_is_not_one_record_stays_held(two_strange, fixed):
    report = retry_all(two_strange, fixed=dict.fromkeys(held(two_strange), fixed))

    assert report.retried == 0
    assert {"instead of one" in each.reason for each in report.still_bad.values()} == {True}


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_blank_line_around_a_fixed_record_does_not_move_its_id(two_strange):
    ids = two_strange.ask("SELECT sequence_id FROM onceload.quarantine ORDER BY sequence_id")

    retry_all(two_strange, fixed=dict.fromkeys(held(two_strange), b'\n\n {"id": 9}\n'))

    assert [(sequence,) for key, sequence in two_strange.rows("id, _sequence") if key == 9] == ids


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_the_beginning_of_a_record_that_was_too_long_never_passes_for_one(loads):
    csv = replace(loads.declared.source, path=str(loads.folder / "*.csv"), format=Format.CSV)
    csv = replace(csv, chunk_bytes=2**20, record_bytes_max=2**20)
    loads.write("a.csv", f"id,note,amount\n1,{'x' * (KEPT_BYTES + 100)},\n2,short,\n")
    loads.load(source=csv)

    report = retry_all(loads, source=csv)

    assert (report.retried, len(report.still_bad)) == (0, 1)
    assert loads.rows() == [2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize(
    ("setting", "changes"),
    [("target.deleted", {"deleted": "gone"}), ("target.lineage: false with write: merge", {"lineage": False})],
)
def test_a_record_whose_turn_is_unknown_is_not_retried(loads, setting, changes):
    """It would bring back what a later record deleted, or overwrite what it wrote."""
    columns = (*loads.declared.columns, parse_column("gone", "boolean"))
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",), **changes)
    loads.declared = replace(loads.declared, columns=columns, target=target)
    loads.write("a.jsonl", line(1, "x") + '{"id": 1, "gone": true}\n')
    loads.load()
    (held_id,) = held(loads)

    with pytest.raises(SettingRefused, match=setting):
        retry_all(loads, fixed={held_id: line(1).encode()})

    assert len(held(loads)) == 1
