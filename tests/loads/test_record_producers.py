"""Producers that the records name: what is new is decided record by record."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from onceload.upkeep import delete_unused
from onceload_core.errors import SettingRefused
from onceload_core.postgres.quarantine import Fix, Selection, choose, get_record
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order, judge, settled
from onceload_jobs.batch.piece import Piece
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Declared, MessageId, Publish, RecordProducer, Target, Write
from onceload_jobs.recover.retry import retry
from onceload_jobs.verify.verify import verify
from onceload_jobs.work.by_message import dedup_by_message
from onceload_jobs.work.by_producer import dedup_by_producer
from tests.loads.conftest import Loads

COLUMNS = {"device": "text", "seq": "bigint", "amount": "numeric(12,2)"}


def record(device: object, seq: object, amount: str = "1.00") -> str:
    return json.dumps({"device": device, "seq": seq, "amount": amount}) + "\n"


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.fixture(params=Order)
def devices(loads: Loads, request: pytest.FixtureRequest) -> Loads:
    loads.declared = with_devices(loads.declared, request.param)
    return loads


def with_devices(declared: Declared, order: Order) -> Declared:
    columns = tuple(parse_column(*each) for each in COLUMNS.items())
    return replace(declared, columns=columns, producer=RecordProducer(name="device", sequence="seq", order=order))


def test_a_record_takes_effect_once_whatever_file_it_comes_in(devices):
    devices.write("a.jsonl", record("d1", 0) + record("d2", 0) + record("d1", 1))
    first = devices.load()
    devices.write("b.jsonl", record("d1", 1, "9.99") + record("d1", 2) + record("d1", 2, "9.99") + record("d3", 5))
    second = devices.load()

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (3, 0, 2, 2)
    assert [(device, seq, str(amount)) for device, seq, amount in devices.rows("device, seq, amount")] == [
        ("d1", 0, "1.00"),
        ("d1", 1, "1.00"),
        ("d1", 2, "1.00"),
        ("d2", 0, "1.00"),
        ("d3", 5, "1.00"),
    ]
    assert devices.load().loaded == 0


@pytest.mark.parametrize("message_id", [None, MessageId(columns=("amount",), keep_days=1)])
def test_a_record_whose_row_the_target_refuses_goes_to_quarantine_and_the_others_are_loaded(devices, message_id):
    devices.declared = replace(devices.declared, message_id=message_id)
    devices.write("0.jsonl", record("d0", 0, "99.00"))
    devices.load()
    with devices.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target ADD CHECK (amount < 100)")
    for name, first in (("a", 0), ("b", 5)):
        devices.write(f"{name}.jsonl", "".join(record("d1", first + each, f"{first + each}.00") for each in range(5)))
    devices.write("c.jsonl", record("d1", 10, "100.00") + record("d2", 0, "101.00") + record("d1", 11, "11.00"))

    report = devices.load()

    assert (report.loaded, report.quarantined, report.duplicates) == (11, 2, 0)
    assert devices.rows("device, seq") == [("d0", 0), *(("d1", each) for each in range(12) if each != 10)]
    held = devices.ask("SELECT convert_from(raw, 'utf8') FROM onceload.quarantine ORDER BY sequence_id")
    assert [json.loads(raw)["amount"] for (raw,) in held] == ["100.00", "101.00"]
    assert devices.load().loaded == 0


@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_workers_decide_as_judge_does(devices, monkeypatch, seed, buckets):
    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.bucket_count", lambda *_, **__: buckets)
    rng, order = Random(seed), devices.declared.producer.order
    consumed: dict[str, SpanSet] = {"d1": SpanSet(), "d2": SpanSet()}
    for number in range(4):
        offered = {device: [rng.randrange(12) for _ in range(rng.randrange(6))] for device in consumed}
        judged = {
            device: judge(SpanSet.of_ids(set(ids)), consumed=consumed[device], order=order)
            for device, ids in offered.items()
        }
        devices.write(f"{number}.jsonl", "".join(record(device, seq) for device, ids in offered.items() for seq in ids))

        report = devices.load()

        new = sum(each.new.count for each in judged.values())
        assert (report.loaded, report.duplicates) == (new, sum(map(len, offered.values())) - new)
        for device, each in judged.items():
            consumed[device] = settled(consumed[device] | each.new, order=order)
        states = {each.name: each.consumed for each in devices.ledger.states("events").states.values()}
        assert {device: states.get(f"device={device}", SpanSet()) for device in consumed} == consumed


def test_a_record_that_occurs_twice_in_a_first_batch_takes_effect_once(devices):
    """Nothing of it was seen before: only the batch itself shows it."""
    devices.write("a.jsonl", record("d1", 0) + record("d1", 1) + record("d1", 1, "9.99") + record("d2", 0))

    report = devices.load()

    assert (report.loaded, report.duplicates) == (3, 1)
    assert [(device, seq, str(amount)) for device, seq, amount in devices.rows("device, seq, amount")] == [
        ("d1", 0, "1.00"),
        ("d1", 1, "1.00"),
        ("d2", 0, "1.00"),
    ]


@pytest.mark.parametrize("again", [0, 63, 64, 2**53 + 1, 2**63 - 2])
def test_only_the_id_that_occurs_twice_among_distant_ones_is_a_duplicate(devices, again):
    ids = [0, 1, 62, 63, 64, 127, 128, 2**31, 2**53, 2**53 + 1, 2**63 - 2]
    devices.write("a.jsonl", "".join(record("d1", seq) for seq in [*ids, again]) + record("d2", again))

    report = devices.load()

    assert (report.loaded, report.duplicates) == (len(ids) + 1, 1)
    assert devices.rows("device, seq") == sorted([*(("d1", seq) for seq in ids), ("d2", again)])
    consumed = {state.name: state.consumed for state in devices.ledger.states("events").states.values()}
    assert all(seq in consumed["device=d1"] for seq in ids)


def test_an_id_that_was_jumped_over_is_late_or_lost_as_declared(devices):
    devices.write("a.jsonl", record("d1", 0) + record("d1", 5))
    devices.load()
    devices.write("b.jsonl", record("d1", 3))
    late = devices.load()

    is_any = devices.declared.producer.order is Order.ANY
    assert (late.loaded, late.duplicates) == ((1, 0) if is_any else (0, 1))
    names = {state.name: str(state.consumed) for state in devices.ledger.states("events").states.values()}
    assert names["device=d1"] == ("{[0,1),[3,4),[5,6)}" if is_any else "{[0,6)}")


@pytest.mark.parametrize("devices", ["any", "ordered"], indirect=True)
def test_a_producer_that_is_forgotten_right_after_it_was_registered_loses_nothing(devices, monkeypatch):
    devices.declared = replace(devices.declared, pipeline=replace(devices.declared.pipeline, forget_idle_after_s=60))
    devices.write("a.jsonl", record("d1", 0) + record("d2", 0))
    devices.load()
    devices.ask("UPDATE onceload.producer SET advanced_at = '2000-01-01' WHERE name = 'device=d1' RETURNING name")
    devices.write("b.jsonl", record("d1", 1) + record("d2", 1))
    forgotten = []

    def forgetting(*of_bucket: Any) -> Piece:
        piece = dedup_by_producer(*of_bucket)
        forgotten.append(devices.ledger.forget_idle("events"))
        return piece

    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.dedup_by_producer", forgetting)

    report = devices.load()

    assert forgotten == [("device=d1",), ()]
    assert (report.loaded, report.duplicates) == (2, 0)
    assert devices.rows("device, seq") == [("d1", 0), ("d1", 1), ("d2", 0), ("d2", 1)]


def test_upkeep_forgets_idle_devices_and_no_file_so_that_what_is_still_there_is_not_loaded_again(devices, tmp_path):
    devices.declared = replace(devices.declared, pipeline=replace(devices.declared.pipeline, forget_idle_after_s=60))
    devices.write("a.jsonl", record("d1", 0) + record("d2", 0))
    devices.load()
    devices.ask("UPDATE onceload.producer SET advanced_at = '2000-01-01' RETURNING name")

    gone = delete_unused(devices.engine, home=tmp_path)
    again = devices.load()

    assert gone["idle_producers"] == 2
    assert [state.name for state in devices.ledger.states("events").states.values()] == ["a.jsonl"]
    assert (again.loaded, again.duplicates) == (0, 0)
    assert devices.rows("device, seq") == [("d1", 0), ("d2", 0)]
    # As declared: a device that was silent for longer, and repeats a record, begins again.
    devices.write("b.jsonl", record("d1", 0))
    assert devices.load().loaded == 1


def test_names_and_business_ids_are_the_same_only_byte_by_byte(devices):
    """A collation of the target's column may call `D1` and `d1` the same; ICU has such, which not every build has."""
    devices.ask(
        "CREATE TABLE target (device text COLLATE ucs_basic, seq bigint, amount numeric(12,2),"
        " _producer_id bigint, _sequence bigint); SELECT 1"
    )
    keep = replace(devices.declared.pipeline, message_keep_days=2)
    message_id = MessageId(columns=("device", "seq"), keep_days=2)
    devices.declared = replace(devices.declared, pipeline=keep, message_id=message_id)
    devices.write("a.jsonl", record("D1", 0) + record("d1", 0))

    assert devices.load().loaded == 2


@pytest.mark.parametrize("writes", [Write.APPEND, Write.MERGE])
def test_a_load_that_comes_between_the_look_for_new_records_and_the_commit_repeats_none(loads, monkeypatch, writes):
    key = ("device", "seq") if writes is Write.MERGE else ()
    target = Target(schema="public", table="target", write=writes, key=key)
    loads.declared = replace(with_devices(loads.declared, Order.ANY), target=target)
    is_between: list[bool] = []
    between: list[Report] = []

    def looking(*of_bucket: Any) -> Piece:
        piece = dedup_by_producer(*of_bucket)
        if not is_between:
            is_between.append(True)
            loads.write("b.jsonl", record("d1", 1))
            between.append(loads.load())
        return piece

    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.dedup_by_producer", looking)
    loads.write("a.jsonl", record("d1", 0) + record("d1", 1))

    report = loads.load()

    assert (between[0].loaded, report.loaded, report.duplicates) == (1, 1, 1)
    assert loads.rows("device, seq") == [("d1", 0), ("d1", 1)]
    assert loads.ask("SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('onceload_stage')") == [(0,)]


@pytest.mark.parametrize("devices", ["any"], indirect=True)
@pytest.mark.parametrize("look", [dedup_by_producer, dedup_by_message])
def test_a_row_that_another_load_writes_first_is_a_duplicate_even_if_the_target_has_a_unique_key(
    devices, monkeypatch, look
):
    if look is dedup_by_message:
        business_id = MessageId(columns=("device", "seq"), keep_days=1)
        devices.declared = replace(devices.declared, producer=None, message_id=business_id)
    devices.write("0.jsonl", record("d0", 0))
    devices.load()
    with devices.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target ADD UNIQUE (device, seq)")
    is_between: list[bool] = []

    def looking(*of_bucket: Any) -> Piece:
        piece: Piece = look(*of_bucket)
        if not is_between:
            is_between.append(True)
            devices.write("b.jsonl", record("d1", 0))
            devices.load()
        return piece

    monkeypatch.setattr(f"onceload_jobs.load.staged.staged_batch.{look.__name__}", looking)
    devices.write("a.jsonl", record("d1", 0) + record("d1", 1))

    report = devices.load()

    assert (report.loaded, report.duplicates, report.quarantined) == (1, 1, 0)
    assert devices.rows("device, seq") == [("d0", 0), ("d1", 0), ("d1", 1)]


@pytest.fixture
def merging(loads: Loads) -> Loads:
    target = Target(schema="public", table="target", write=Write.MERGE, key=("amount",))
    loads.declared = replace(with_devices(loads.declared, Order.ANY), target=target)
    return loads


def test_a_late_record_takes_no_key_from_a_later_one_of_its_producer(merging):
    for seq in (10, 7):
        merging.write(f"{seq}.jsonl", record("a", seq))
        merging.load()

    assert merging.rows("device, seq") == [("a", 10)]


@pytest.mark.parametrize("is_one_batch", [False, True], ids=["one by one", "one batch"])
def test_a_late_record_takes_a_key_from_another_producer_whatever_its_own_did_before(merging, is_one_batch):
    """What the docs say of a key of several producers: no order is known between them, so the last applied wins."""
    for number, (device, seq) in enumerate([("a", 10), ("b", 1), ("a", 7)]):
        merging.write(f"{number}.jsonl", record(device, seq))
        if not is_one_batch:
            merging.load()
    merging.load()

    assert merging.rows("device, seq") == [("b", 1) if is_one_batch else ("a", 7)]


def test_records_without_a_usable_id_are_quarantined(devices):
    devices.write("a.jsonl", record(None, 1) + record("d1", None) + record("d1", -1) + record("d1", 2**63 - 1))

    report = devices.load()

    assert (report.loaded, report.quarantined) == (0, 4)
    assert devices.load().quarantined == 0


def test_a_fixed_record_of_an_ordered_producer_is_loaded_by_a_pipeline_of_its_own(loads):
    """Its id is before the last one, so that its own pipeline counts it as a duplicate."""
    loads.declared = with_devices(loads.declared, Order.ORDERED)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad") + record("d1", 3) + record("d1", 4, "bad"))
    loads.load()
    fixed = loads.folder.parent / "fixed"
    fixed.mkdir()
    (fixed / "late.jsonl").write_text(record("d1", 4))
    (fixed / "later.jsonl").write_text(record("d1", 2))

    asked = choose(loads.engine, Selection(pipeline="events")).held
    late = get_record(loads.engine, asked[0].quarantine_id)
    fixes = {late.quarantine_id: Fix(raw=record("d1", 2).encode(), digest=late.digest)}
    report = retry(loads.engine, loads.ledger, loads.declared, asked, batch=new_batch(), fixed=fixes)
    assert "with a separate pipeline file that declares order: any" in report.still_bad[late.quarantine_id].reason
    of_its_own = replace(
        with_devices(loads.declared, Order.ANY),
        pipeline=replace(loads.declared.pipeline, name="events_fixed"),
        source=replace(loads.declared.source, path=str(fixed / "*.jsonl")),
    )
    loads.declared, before = of_its_own, loads.declared
    assert loads.load().loaded == 2

    loads.declared = before
    loads.write("b.jsonl", record("d1", 3) + record("d1", 5))
    assert (loads.load().loaded, loads.rows("seq")) == (1, [1, 2, 3, 4, 5])
    for declared in (before, of_its_own):
        assert verify(declared, loads.engine, deep=True).differences == ()


@pytest.mark.parametrize("is_file_first", [True, False])
def test_a_file_that_is_called_like_a_producer_is_refused(devices, is_file_first):
    """What one of them consumed would be the other's."""
    source = replace(devices.declared.source, path=str(devices.folder / "*"))
    devices.write("device=d1" if is_file_first else "more", record("d2" if is_file_first else "d1", 1))
    devices.load(source=source)
    devices.write("more" if is_file_first else "device=d1", record("d1" if is_file_first else "d2", 2))

    if is_file_first:
        with pytest.raises(SettingRefused, match="device=d1, which is also the name of a file"):
            devices.load(source=source)
    else:
        (note,) = devices.load(source=source).notes
        assert (note.name, note.needs_a_person) == ("device=d1", True)

    assert len(devices.rows("seq")) == 1


def test_a_file_and_a_producer_of_one_batch_that_are_called_the_same_are_refused(devices):
    devices.write("device=d1", record("d2", 1))
    # An id beyond the end of that file.
    devices.write("more", record("d1", 1000))

    with pytest.raises(SettingRefused, match="device=d1, which is also the name of a file"):
        devices.load(source=replace(devices.declared.source, path=str(devices.folder / "*")))

    assert devices.rows("seq") == []
