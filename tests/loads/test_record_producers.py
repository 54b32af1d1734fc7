"""Producers that the records name: what is new is decided record by record."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection

from onceload.upkeep import delete_unused
from onceload_core.errors import SettingRefused
from onceload_core.names import Position
from onceload_core.ports import Commit
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.quarantine import Selection, choose
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order, judge, settled
from onceload_jobs.load.settings import new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Declared, MessageId, Publish, RecordProducer, Target, Write
from onceload_jobs.publish.new_rows import NewRows, open_duplicate_filter
from onceload_jobs.recover.retry import retry
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads
from tests.loads.small_batches import small_batches_in_files

COLUMNS = {"device": "text", "seq": "bigint", "amount": "numeric(12,2)"}


def record(device: object, seq: object, amount: str = "1.00") -> str:
    return json.dumps({"device": device, "seq": seq, "amount": amount}) + "\n"


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.fixture(params=["any", "any, in files", "ordered"])
def devices(loads: Loads, request: pytest.FixtureRequest) -> Iterator[Loads]:
    """The rows of a large batch go through files, as long as all ids are new."""
    order, *in_files = request.param.split(", ")
    loads.declared = with_devices(loads.declared, Order(order))
    with small_batches_in_files() if in_files else nullcontext():
        yield loads


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


@pytest.mark.parametrize("seed", range(4))
def test_the_server_decides_as_judge_does(devices, seed):
    """For records that name their producer, the decision is made in SQL, for all of a batch at once."""
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
    register_all = PostgresLedger.register_all

    def forgetting(ledger: PostgresLedger, pipeline: str, table: str, *, generation: int) -> None:
        register_all(ledger, pipeline, table, generation=generation)
        forgotten.append(ledger.forget_idle(pipeline))

    monkeypatch.setattr(PostgresLedger, "register_all", forgetting)

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


def test_names_and_business_ids_are_the_same_only_byte_by_byte(devices, monkeypatch):
    """A collation of the target's column may call `D1` and `d1` the same; ICU has such, which not every build has."""
    devices.ask(
        "CREATE TABLE target (device text COLLATE ucs_basic, seq bigint, amount numeric(12,2),"
        " _producer_id bigint, _sequence bigint); SELECT 1"
    )
    keep = replace(devices.declared.pipeline, message_keep_days=2)
    message_id = MessageId(columns=("device", "seq"), keep_days=2)
    devices.declared = replace(devices.declared, pipeline=keep, message_id=message_id)
    devices.write("a.jsonl", record("D1", 0) + record("d1", 0))
    found: list[tuple[str, str]] = []
    commit = PostgresLedger.commit

    def looking(ledger: PostgresLedger, offered: Commit[Connection], **begun: Any) -> Position:
        found.extend(devices.ask(COLLATIONS))
        return commit(ledger, offered, **begun)

    monkeypatch.setattr(PostgresLedger, "commit", looking)

    assert devices.load().loaded == 2
    assert set(found) == {("called", "C")}


COLLATIONS = """
    SELECT CAST(attname AS text), CAST(collname AS text)
      FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid JOIN pg_collation ON pg_collation.oid = attcollation
     WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r' AND attname = 'called'
"""


def test_each_of_two_publishers_of_one_batch_uses_what_it_found_out_itself(loads, monkeypatch):
    """The first pauses before its commit; another load brings a part of it, and the second looks for what is new."""
    loads.declared = with_devices(loads.declared, Order.ANY)
    publishers: list[object] = []

    @contextmanager
    def pausing(*of_batch: Any) -> Iterator[Any]:
        with open_duplicate_filter(*of_batch) as first, ExitStack() as later:
            select_new = first.select_new
            publishers.append(first)

            def select_and_pause(advances: Any, **staged: Any) -> NewRows:
                found = select_new(advances, **staged)
                if len(publishers) == 1:
                    loads.write("b.jsonl", record("d1", 1))
                    assert loads.load().loaded == 1
                    later.enter_context(open_duplicate_filter(*of_batch)).select_new(advances, **staged)
                return found

            monkeypatch.setattr(first, "select_new", select_and_pause)
            yield first

    monkeypatch.setattr("onceload_jobs.publish.publish.open_duplicate_filter", pausing)
    loads.write("a.jsonl", record("d1", 0) + record("d1", 1))

    report = loads.load()

    assert (report.loaded, report.duplicates) == (1, 1)
    assert loads.rows("device, seq") == [("d1", 0), ("d1", 1)]
    assert loads.ask("SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('onceload_stage')") == [(0,)]


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
    with pytest.raises(SettingRefused, match="with a separate pipeline file that declares order: any"):
        retry(loads.engine, loads.ledger, loads.declared, asked, batch=new_batch())
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
