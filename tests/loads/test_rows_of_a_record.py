"""A transform that makes several rows of a record: all of them take effect with their record, and once."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_core.verdicts import Order
from onceload_jobs.batch.job import TransformRefused
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import MessageId, Publish, RecordProducer, Target, Write
from onceload_jobs.verify.verify import verify
from onceload_jobs.work.spark.spark import Spark
from tests.loads.conftest import Loads

COLUMNS = {"dev": "text", "seq": "bigint", "items": "text[]"}
EXPLODED = "SELECT dev, seq, explode(items) AS item, _producer_id, _sequence FROM records"
WITHOUT_LINEAGE = "SELECT dev, seq, explode(items) AS item FROM records"
SUMMED = "SELECT dev, seq, sum(size(items)) AS items FROM records GROUP BY dev, seq"


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.fixture
def devices(loads: Loads) -> Loads:
    loads.declared = replace(
        loads.declared,
        columns=tuple(parse_column(*each) for each in COLUMNS.items()),
        producer=RecordProducer(name="dev", sequence="seq"),
        transform=EXPLODED,
    )
    return loads


@pytest.fixture
def messages(devices: Loads) -> Loads:
    keep = replace(devices.declared.pipeline, message_keep_days=2)
    message_id = MessageId(columns=("dev", "seq"), keep_days=2)
    devices.declared = replace(devices.declared, pipeline=keep, producer=None, message_id=message_id)
    return devices


def record(dev: str, seq: int, items: Sequence[str]) -> str:
    return json.dumps({"dev": dev, "seq": seq, "items": items}) + "\n"


def load_by_spark(loads: Loads, tasks: Spark, **changes: Any) -> Report:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    return load(replace(loads.declared, **changes), settings, batch=Batch(new_batch()), executor=tasks)


@pytest.mark.parametrize("order", Order)
def test_all_rows_of_a_record_take_effect_once(devices, tasks, order):
    declared = replace(devices.declared, producer=RecordProducer(name="dev", sequence="seq", order=order))
    devices.declared = declared
    devices.write("a.jsonl", "".join(record("d1", seq, ["p", "q", "r"]) for seq in (0, 1, 5)))
    first = load_by_spark(devices, tasks)
    devices.write("b.jsonl", record("d1", 5, ["p", "q", "r"]) + record("d1", 6, ["s", "t"]))
    second = load_by_spark(devices, tasks)

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (9, 0, 2, 1)
    all_items = [("d1", seq, item) for seq in (0, 1, 5) for item in "pqr"]
    assert devices.rows("dev, seq, item") == [*all_items, ("d1", 6, "s"), ("d1", 6, "t")]
    consumed = {state.name: str(state.consumed) for state in devices.ledger.states("events").states.values()}
    assert consumed["dev=d1"] == ("{[0,2),[5,7)}" if order is Order.ANY else "{[0,7)}")
    assert verify(declared, devices.engine).differing == 0


def test_a_record_that_occurs_twice_in_a_batch_brings_the_rows_of_the_first(devices, tasks):
    devices.write("a.jsonl", record("d1", 0, ["a", "b"]) + record("d1", 0, ["c", "d", "e"]) + record("d1", 1, ["f"]))
    devices.write("b.jsonl", record("d1", 0, ["g"]) + record("d2", 0, ["h", "i"]))

    report = load_by_spark(devices, tasks)

    assert (report.loaded, report.duplicates) == (5, 2)
    expected = [("d1", 0, "a"), ("d1", 0, "b"), ("d1", 1, "f"), ("d2", 0, "h"), ("d2", 0, "i")]
    assert devices.rows("dev, seq, item") == expected
    assert verify(devices.declared, devices.engine).differing == 0


def test_all_rows_of_a_business_id_take_effect_once(messages, tasks):
    messages.write("a.jsonl", record("d1", 0, ["a", "b"]) + record("d1", 0, ["c"]) + record("d1", 1, ["d", "e"]))
    first = load_by_spark(messages, tasks)
    messages.write("b.jsonl", record("d1", 1, ["f"]) + record("d1", 2, ["g", "h"]))
    second = load_by_spark(messages, tasks)

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (4, 1, 2, 1)
    expected = [("d1", 0, "a"), ("d1", 0, "b"), ("d1", 1, "d"), ("d1", 1, "e"), ("d1", 2, "g"), ("d1", 2, "h")]
    assert messages.rows("dev, seq, item") == expected


def test_rows_of_a_producer_and_a_business_id_take_effect_together(devices, tasks):
    keep = replace(devices.declared.pipeline, message_keep_days=2)
    devices.declared = replace(devices.declared, pipeline=keep, message_id=MessageId(columns=("dev",), keep_days=2))
    devices.write("a.jsonl", record("d1", 0, ["a", "b"]) + record("d1", 1, ["c", "d"]) + record("d2", 4, ["e", "f"]))

    report = load_by_spark(devices, tasks)

    assert (report.loaded, report.duplicates) == (4, 1)
    assert devices.rows("dev, seq, item") == [("d1", 0, "a"), ("d1", 0, "b"), ("d2", 4, "e"), ("d2", 4, "f")]


@pytest.mark.parametrize("who", ["devices", "messages"])
@pytest.mark.parametrize(("transform", "rows"), [(WITHOUT_LINEAGE, [("d1", 0, "a")]), (SUMMED, [("d1", 0, 1)])])
def test_a_transform_sees_each_record_once_and_need_not_tell_which(request, tasks, who, transform, rows):
    loads = request.getfixturevalue(who)
    loads.write("a.jsonl", record("d1", 0, ["a"]) + record("d1", 0, ["a"]))
    first = load_by_spark(loads, tasks, transform=transform)
    loads.write("b.jsonl", record("d1", 0, ["a"]))
    second = load_by_spark(loads, tasks, transform=transform)

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (1, 1, 0, 1)
    assert loads.rows("dev, seq, " + ("items" if transform == SUMMED else "item")) == rows


@pytest.mark.parametrize("who", ["devices", "messages"])
def test_a_row_of_half_a_lineage_is_refused(request, tasks, who):
    loads = request.getfixturevalue(who)
    loads.write("a.jsonl", record("d1", 0, ["a"]) + record("d1", 1, ["b"]))
    transform = "SELECT dev, seq, _producer_id, CASE WHEN seq = 0 THEN _sequence END AS _sequence FROM records"

    with pytest.raises(TransformRefused, match=r"rows have _producer_id or _sequence without the other"):
        load_by_spark(loads, tasks, transform=transform)

    assert loads.ask("SELECT count(*) FROM onceload.ledger") == [(0,)]


@pytest.mark.parametrize(("made", "filtered"), [("WHERE seq > 0", 1), ("WHERE seq > 5", 2), ("", 0)])
def test_records_of_which_a_transform_makes_no_row_are_filtered(devices, tasks, made, filtered):
    devices.write("a.jsonl", record("d1", 0, ["a"]) + record("d1", 1, ["b"]) + record("d1", 1, ["c"]))

    transform = f"SELECT dev, seq, _producer_id, _sequence FROM records {made}"
    report = load_by_spark(devices, tasks, transform=transform)
    devices.write("b.jsonl", record("d1", 0, ["d"]))
    again = load_by_spark(devices, tasks, transform=transform)

    assert (report.loaded, report.duplicates, report.filtered) == (2 - filtered, 1, filtered)
    assert (again.loaded, again.duplicates, again.filtered) == (0, 1, 0)
    assert verify(devices.declared, devices.engine).differing == 0


def test_a_merge_refuses_several_rows_of_one_key_that_one_record_makes(devices, tasks):
    """None of them is known to be the last, so that chance would decide."""
    target = Target(schema="public", table="target", write=Write.MERGE, key=("item",))
    transform = "SELECT *, explode(items) AS item FROM records"
    devices.write("a.jsonl", record("d1", 0, ["a", "b"]) + record("d1", 1, ["a"]))
    load_by_spark(devices, tasks, target=target, transform=transform)
    devices.write("b.jsonl", record("d1", 2, ["c", "c"]))

    with pytest.raises(TransformRefused, match=r"several rows have the same key \(item\)"):
        load_by_spark(devices, tasks, target=target, transform=transform)

    assert devices.rows("item, seq") == [("a", 1), ("b", 0)]


def test_a_transform_that_makes_null_what_rows_are_found_by_is_refused(devices, tasks):
    """To a unique index no null is the same as another: each load would add a row that none takes the place of."""
    devices.ask(
        "CREATE TABLE target (dev text, id bigint UNIQUE, _producer_id bigint, _sequence bigint);"
        " GRANT ALL ON target TO onceload_loader; SELECT 1"
    )
    devices.write("a.jsonl", "".join(record("d1", seq, []) for seq in range(4)))
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    transform = "SELECT dev, CASE WHEN seq % 2 = 0 THEN seq END AS id, _producer_id, _sequence FROM records"

    with pytest.raises(TransformRefused, match=r"column id: null, .* target.key"):
        load_by_spark(devices, tasks, transform=transform, producer=None, target=target)

    assert devices.ask("SELECT count(*) FROM target") == [(0,)]
