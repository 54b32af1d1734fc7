"""Verification after retries, rewinds, replacements, merges and repeated loads."""

import gzip
from dataclasses import replace

import pytest

from onceload_core.names import Batch, Position
from onceload_core.pipeline import Guarantee
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_core.verdicts import Order
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    MessageId,
    OnRewrite,
    Publish,
    RecordProducer,
    Target,
    Write,
)
from onceload_jobs.plan.choice import Choice
from onceload_jobs.recover.retry import retry
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.findings import Kind
from tests.loads.conftest import InThisProcess, line
from tests.loads.verified import named, verified

pytestmark = pytest.mark.usually_staged


def test_an_earlier_life_of_a_file_keeps_its_rows_and_cannot_be_read_again(loads):
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    path.write_text(line(8))
    loads.load(on_rewrite=OnRewrite.NEW_GENERATION)

    for deep in (False, True):
        verification = verified(loads, deep=deep)
        assert (named(verification), verification.rows, verification.files) == ([], 3, 1)
        assert "generation 1" in verification.not_compared[0].reason
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM target WHERE id = 1")
    assert verified(loads).counts == {Kind.ROW_MISSING: 1}


def test_a_file_that_begins_another_life_meanwhile_is_not_a_difference(loads, monkeypatch):
    from onceload_core.postgres.audit import files_up_to

    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()

    def rewritten_behind(*asked):
        for file in files_up_to(*asked):
            path.write_text(line(8))
            loads.load(on_rewrite=OnRewrite.NEW_GENERATION)
            yield file

    monkeypatch.setattr("onceload_jobs.verify.files.files_up_to", rewritten_behind)

    verification = verified(loads)

    assert (named(verification), verification.rows) == ([], 2)
    assert "a later one" in verification.not_compared[0].reason


def retried(loads, fixed):
    records = tuple(find_records(loads.engine, Selection(pipeline="events")))
    report = retry(
        loads.engine,
        loads.ledger,
        loads.declared,
        records,
        batch=Batch("mended"),
        fixed={record.quarantine_id: Fix(raw=fixed, digest=record.digest) for record in records},
    )
    assert report.retried == len(records)


def test_a_record_that_was_fixed_and_retried_is_not_a_difference(loads):
    loads.write("a.jsonl", line(1) + "{broken\n" + line(3) + line(4))
    loads.load()
    retried(loads, line(2).encode())
    assert loads.rows() == [1, 2, 3, 4]

    for deep in (False, True):
        assert named(verified(loads, deep=deep)) == []
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM target WHERE id IN (2, 3)")
    for deep in (False, True):
        assert named(verified(loads, deep=deep)) == [
            ("a.jsonl", Kind.ROW_MISSING, len(line(1))),
            ("a.jsonl", Kind.ROW_MISSING, len(line(1) + "{broken\n")),
        ]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_rows_of_a_replaced_file_are_expected_no_more(loads):
    path = loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    path.write_text(line(8))
    loads.load(on_rewrite=OnRewrite.REPLACE)
    assert loads.rows() == [8]

    for deep in (False, True):
        verification = verified(loads, deep=deep)
        assert (named(verification), verification.rows, verification.files) == ([], 1, 1)
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(
            "INSERT INTO target (id, _producer_id, _sequence) SELECT 1, min(producer_id), 0 FROM onceload.producer"
        )
    assert named(verified(loads)) == [("a.jsonl", Kind.ROW_FROM_NOWHERE, 0)]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("deep", [False, True])
def test_a_generation_that_breaks_off_hides_no_difference_of_the_one_before(loads, deep):
    packed = gzip.compress("".join(line(number) for number in range(100)).encode())
    loads.write("a.jsonl.gz", packed)
    loads.load()
    loads.write("a.jsonl.gz", packed[:-40])
    # What breaks off replaces nothing.
    loads.load(on_rewrite=OnRewrite.REPLACE)

    assert named(verified(loads, deep=deep)) == [("a.jsonl.gz", Kind.FILE_SHORTER, None)]


def test_rewound_rows_are_no_longer_expected(loads):
    path = loads.write("a.jsonl", line(1) + "{broken\n")
    loads.load()
    with path.open("a") as file:
        file.write(line(3) + "{broken too\n")
    loads.load()
    rewind(loads.declared, loads.engine, to=Position(1), dry_run=False)
    assert loads.rows() == [1]

    for deep in (False, True):
        verification = verified(loads, deep=deep)
        assert (named(verification), verification.rows) == ([], 1)
    loads.load()
    for deep in (False, True):
        verification = verified(loads, deep=deep)
        assert (named(verification), verification.rows) == ([], 2)


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("order", Order)
def test_rows_of_producers_that_records_name_are_counted_by_them(loads, order):
    columns = {"device": "text", "seq": "bigint"}
    loads.declared = replace(
        loads.declared,
        columns=tuple(parse_column(*each) for each in columns.items()),
        producer=RecordProducer(name="device", sequence="seq", order=order),
    )
    records = [("a", 1), ("a", 2), ("b", 7), ("a", 2), ("a", 9)]
    loads.write("x.jsonl", "".join(f'{{"device": "{device}", "seq": {seq}}}\n' for device, seq in records))
    loads.load()

    assert named(verified(loads, deep=True)) == []
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM target WHERE seq = 2")
    (difference,) = verified(loads).differences
    assert (difference.producer, difference.kind) == ("device=a", Kind.ROW_MISSING)
    assert difference.sequence_id == (2 if order is Order.ANY else None)


MERGE = Target(schema="public", table="target", write=Write.MERGE, key=("id",), deleted="gone")
CHANGES = {"id": "bigint", "amount": "numeric(12,2)", "gone": "boolean"}


def change(number, amount, gone="false"):
    return f'{{"id": {number}, "amount": {amount}, "gone": {gone}}}\n'


@pytest.fixture
def merged(loads):
    """Keys that are overwritten within a file, by a later part of it and by another file, and one that is deleted."""
    loads.declared = replace(
        loads.declared,
        target=MERGE,
        publish=Publish.STAGED,
        columns=tuple(parse_column(*each) for each in CHANGES.items()),
    )
    path = loads.write("b.jsonl", change(1, 1.0) + change(2, 2.0) + change(1, 3.0) + change(3, 3.0) + change(5, 5.0))
    loads.load()
    loads.write("a.jsonl", change(2, 20.0) + change(3, 0, "true"))
    loads.load()
    with path.open("a") as file:
        file.write(change(4, 4.0) + change(5, 50.0))
    loads.load()
    return loads


def test_merged_rows_are_compared_by_key(merged):
    plain, deep = verified(merged), verified(merged, deep=True)

    assert (named(plain), named(deep)) == ([], [])
    assert (plain.rows, deep.rows_compared) == (None, 9)
    assert "merged by key" in plain.not_compared[0].reason
    assert [(key, float(amount)) for key, amount in merged.rows("id, amount")] == [(1, 3), (2, 20), (4, 4), (5, 50)]


def test_merged_rows_that_are_not_their_last_record_are_found(merged):
    with merged.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET amount = 2 WHERE id = 2; DELETE FROM target WHERE id = 4")
        connection.exec_driver_sql("INSERT INTO target (id, amount) VALUES (77, 1)")

    verification = verified(merged, deep=True)

    assert verification.counts == {Kind.VALUE_CHANGED: 1, Kind.ROW_MISSING: 1, Kind.ROW_FROM_NOWHERE: 1}
    assert (verification.differences[0].producer, verification.differences[0].expected) == ("a.jsonl", "20.00")


def test_a_file_that_is_gone_makes_no_merged_row_a_difference(merged):
    (merged.folder / "a.jsonl").unlink()

    assert named(verified(merged, deep=True)) == [("a.jsonl", Kind.FILE_MISSING, None)]


def test_duplicates_by_business_id_are_not_missing(loads):
    loads.declared = replace(loads.declared, publish=Publish.STAGED, message_id=MessageId(columns=("id",), keep_days=9))
    loads.declared = replace(loads.declared, pipeline=replace(loads.declared.pipeline, message_keep_days=9))
    loads.write("a.jsonl", line(1) + line(2) + line(1))
    loads.write("b.jsonl", line(2) + line(3))
    loads.load()
    assert loads.rows() == [1, 2, 3]

    assert named(verified(loads, deep=True)) == []
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM target WHERE id = 3")
    assert verified(loads).counts == {Kind.ROW_MISSING: 1}


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("lineage", [True, False])
def test_a_merged_row_is_not_that_of_a_record_that_repeats_a_business_id(loads, lineage):
    target = replace(loads.declared.target, write=Write.MERGE, key=("id",), lineage=lineage)
    loads.declared = replace(loads.declared, target=target, message_id=MessageId(columns=("note",), keep_days=9))
    loads.declared = replace(loads.declared, pipeline=replace(loads.declared.pipeline, message_keep_days=9))
    loads.write("a.jsonl", line(1, "1.00", "first") + line(1, "2.00", "second") + line(2, note="third"))
    loads.load()
    loads.write("b.jsonl", line(1, "1.00", "first") + line(3, note="fourth"))
    loads.load()
    assert loads.rows("id, amount") == [(1, 2), (2, 1.5), (3, 1.5)]

    assert named(verified(loads, deep=True)) == []
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE target SET amount = 3 WHERE id = 1")
    verification = verified(loads, deep=True)
    assert verification.counts == ({Kind.VALUE_CHANGED: 1} if lineage else {})
    assert lineage or "one business id" in verification.not_compared[-1].reason


def test_parts_that_were_loaded_twice_are_not_counted(loads):
    loads.declared = replace(
        loads.declared, pipeline=replace(loads.declared.pipeline, guarantee=Guarantee.AT_LEAST_ONCE)
    )
    loads.write("a.jsonl", line(1))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.producer SET consumed = '{}', fingerprint = NULL")
    loads.load()
    assert loads.rows() == [1, 1]

    verification = verified(loads)

    assert named(verification) == []
    assert "at_least_once" in verification.not_compared[0].reason


def test_a_file_that_was_loaded_twice_is_a_difference_until_it_is_replaced(loads):
    """Every row matches a receipt, but without at_least_once no two receipts cover one record."""
    loads.declared = replace(loads.declared, publish=Publish.STAGED)
    for name in ("a.jsonl", "b.jsonl"):
        loads.write(name, line(1) + line(2))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.producer SET consumed = '{}' WHERE name = 'a.jsonl'")
    loads.load()
    assert loads.rows() == [1, 1, 1, 2, 2, 2]

    verification = verified(loads, deep=True)

    assert named(verification) == [("a.jsonl", Kind.LOADED_AGAIN, None)]
    assert verification.not_compared == ()
    chosen = Choice(files=("a.jsonl",), replaces=True)
    how = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, choice=chosen)
    load(loads.declared, how, batch=new_batch(), executor=InThisProcess())
    assert (loads.rows(), named(verified(loads, deep=True))) == ([1, 1, 2, 2], [])


@pytest.mark.parametrize("is_allowed_then", [True, False])
def test_loads_that_were_repeated_count_by_the_guarantee_of_their_time(loads, is_allowed_then):
    with_repeats = replace(loads.declared.pipeline, guarantee=Guarantee.AT_LEAST_ONCE)
    guarantees = [loads.declared.pipeline, with_repeats]
    loads.write("a.jsonl", line(1))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE onceload.producer SET consumed = '{}', fingerprint = NULL")
    loads.load(pipeline=guarantees[is_allowed_then])
    loads.write("b.jsonl", line(2))
    loads.load(pipeline=guarantees[not is_allowed_then])

    verification = verified(loads, pipeline=guarantees[not is_allowed_then])

    assert named(verification) == ([] if is_allowed_then else [("a.jsonl", Kind.LOADED_AGAIN, None)])
