"""Producers that the records name, and business ids: what is new is decided record by record."""

import json
from dataclasses import replace

import pytest

from dedup_core.errors import SettingRefused
from dedup_core.postgres import PostgresLedger
from dedup_core.verdicts import Order
from onceload.maintain_commands import let_go
from spark_jobs.columns import parse_column
from spark_jobs.declared import MessageId, Publish, RecordProducer
from tests.loads.conftest import Loads
from tests.servers import execute

COLUMNS = {"device": "text", "seq": "bigint", "amount": "numeric(12,2)"}


def record(device: object, seq: object, amount: str = "1.00") -> str:
    return json.dumps({"device": device, "seq": seq, "amount": amount}) + "\n"


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.fixture(params=[Order.ANY, Order.ORDERED])
def devices(loads: Loads, request: pytest.FixtureRequest) -> Loads:
    loads.declared = replace(
        loads.declared,
        columns=tuple(parse_column(*each) for each in COLUMNS.items()),
        producer=RecordProducer(name="device", sequence="seq", order=request.param),
    )
    return loads


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


def test_a_record_that_stands_twice_in_a_first_batch_takes_effect_once(devices):
    """Nothing of it was seen before: only the batch itself tells."""
    devices.write("a.jsonl", record("d1", 0) + record("d1", 1) + record("d1", 1, "9.99") + record("d2", 0))

    report = devices.load()

    assert (report.loaded, report.duplicates) == (3, 1)
    assert [(device, seq, str(amount)) for device, seq, amount in devices.rows("device, seq, amount")] == [
        ("d1", 0, "1.00"),
        ("d1", 1, "1.00"),
        ("d2", 0, "1.00"),
    ]


@pytest.mark.parametrize("again", [0, 63, 64, 2**53 + 1, 2**63 - 2])
def test_of_ids_far_apart_only_the_one_that_stands_twice_is_a_duplicate(devices, again):
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

    gone = let_go(devices.engine, home=tmp_path)
    again = devices.load()

    assert gone["idle_producers"] == 2
    assert [state.name for state in devices.ledger.states("events").states.values()] == ["a.jsonl"]
    assert (again.loaded, again.duplicates) == (0, 0)
    assert devices.rows("device, seq") == [("d1", 0), ("d2", 0)]
    # What is declared: a device that was silent for longer, and says the same again, begins anew.
    devices.write("b.jsonl", record("d1", 0))
    assert devices.load().loaded == 1


def test_records_without_a_usable_id_are_quarantined(devices):
    devices.write("a.jsonl", record(None, 1) + record("d1", None) + record("d1", -1) + record("d1", 2**63 - 1))

    report = devices.load()

    assert (report.loaded, report.quarantined) == (0, 4)
    assert devices.load().quarantined == 0


def test_a_business_id_takes_effect_once_in_its_window(loads):
    keep = replace(loads.declared.pipeline, message_keep_days=2)
    loads.declared = replace(loads.declared, pipeline=keep, message_id=MessageId(columns=("id",), keep_days=2))
    loads.write("a.jsonl", '{"id": 1, "note": "a"}\n{"id": 1, "note": "b"}\n{"id": 2}\n')
    first = loads.load()
    loads.write("b.jsonl", '{"id": 2, "note": "again"}\n{"id": 3}\n')
    second = loads.load()

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (2, 1, 1, 1)
    assert loads.rows("id, note") == [(1, "a"), (2, None), (3, None)]


@pytest.mark.parametrize("is_file_first", [True, False])
def test_a_file_that_is_called_like_a_producer_is_refused(devices, is_file_first):
    """What one of them consumed would be the other's."""
    source = replace(devices.declared.source, path=str(devices.folder / "*"))
    devices.write("device=d1" if is_file_first else "more", record("d2" if is_file_first else "d1", 1))
    devices.load(source=source)
    devices.write("more" if is_file_first else "device=d1", record("d1" if is_file_first else "d2", 2))

    if is_file_first:
        with pytest.raises(SettingRefused, match="device=d1, and a file of that name"):
            devices.load(source=source)
    else:
        (note,) = devices.load(source=source).notes
        assert (note.name, note.needs_a_person) == ("device=d1", True)

    assert len(devices.rows("seq")) == 1


def test_business_ids_stay_the_same_whatever_the_server_is_set_to(loads):
    columns = (parse_column("id", "bytea"),)
    loads.declared = replace(
        loads.declared,
        columns=columns,
        pipeline=replace(loads.declared.pipeline, message_keep_days=2),
        message_id=MessageId(columns=("id",), keep_days=2),
    )
    loads.write("a.jsonl", json.dumps({"id": "\\x00ff"}) + "\n")
    loads.load()
    ((name,),) = loads.ask("SELECT current_database()")
    execute(loads.admin_dsn, f'ALTER DATABASE "{name}" SET bytea_output = escape')
    loads.engine.dispose()
    loads.write("b.jsonl", json.dumps({"id": "\\x00ff"}) + "\n")

    report = loads.load()

    assert (report.loaded, report.duplicates) == (0, 1)
