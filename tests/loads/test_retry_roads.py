"""Retried records take the same roads as others: by their own ids, through transforms, and into merges."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from onceload_core.errors import OnceloadError, SettingRefused
from onceload_core.names import Position
from onceload_core.ports import CommitStep
from onceload_core.postgres import LedgerSettings, PostgresLedger
from onceload_core.postgres.quarantine import Fix, QuarantineId, Selection, choose, get_record
from onceload_core.replay import EntryKind
from onceload_core.verdicts import Order
from onceload_jobs.batch.folders import DiskFolder
from onceload_jobs.batch.job import TransformRefused
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    Declared,
    MessageId,
    Publish,
    RecordProducer,
    Target,
    TransformEngine,
    Write,
)
from onceload_jobs.recover.retry import RetryReport, retry
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.recover.stored_records import StoredRecords
from onceload_jobs.verify.verify import verify
from tests.contract.conftest import Crash, crashing_at
from tests.loads.conftest import Loads
from tests.loads.held_records import held, is_sound
from tests.servers import execute

COLUMNS = {"device": "text", "seq": "bigint", "amount": "numeric(12,2)"}
BY_DEVICE = RecordProducer(name="device", sequence="seq", order=Order.ANY)
IN_ORDER = replace(BY_DEVICE, order=Order.ORDERED)
BY_MESSAGE = MessageId(columns=("device", "seq"), keep_days=30)
MERGE = Target(schema="public", table="target", write=Write.MERGE, key=("device", "seq"))
DOUBLED = "CAST(amount * 2 AS numeric(12,2))"
IN_POSTGRES = {"transform_engine": TransformEngine.POSTGRES}
TWICE = {**IN_POSTGRES, "transform": f"SELECT device, seq, {DOUBLED} AS amount, _producer_id, _sequence FROM records"}
#: Everything by which a record may be known, and every way that its row may take.
WAYS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "producers": {"producer": BY_DEVICE},
    "producers in order": {"producer": IN_ORDER},
    "messages": {"message_id": BY_MESSAGE},
    "producers and messages": {"producer": BY_DEVICE, "message_id": BY_MESSAGE},
    "merge": {"target": MERGE},
    "merge of producers": {"target": MERGE, "producer": BY_DEVICE},
    "merge of messages": {"target": MERGE, "message_id": BY_MESSAGE},
    "transform": TWICE,
    "transform without lineage": {**IN_POSTGRES, "transform": f"SELECT device, seq, {DOUBLED} AS amount FROM records"},
    "transform of producers": {**TWICE, "producer": BY_DEVICE},
    "transform of messages": {**TWICE, "message_id": BY_MESSAGE},
    "merge of a transform": {**TWICE, "target": MERGE},
}
WITH_OWN_IDS = [name for name, changes in WAYS.items() if {"producer", "message_id"} & changes.keys()]


@pytest.fixture
def publish() -> Publish:
    return Publish.STAGED


def record(device: str, seq: int, amount: str = "1.00") -> str:
    return json.dumps({"device": device, "seq": seq, "amount": amount}) + "\n"


def of_devices(loads: Loads, way: str) -> Loads:
    columns = tuple(parse_column(*each) for each in COLUMNS.items())
    loads.declared = replace(loads.declared, columns=columns, **WAYS[way])
    return loads


def fix_all(
    loads: Loads, fixed: Mapping[QuarantineId, str], *, ledger: PostgresLedger | None = None, **changes: Any
) -> RetryReport:
    asked = choose(loads.engine, Selection(pipeline="events")).held
    fixes = {each: Fix(raw=raw.encode(), digest=get_record(loads.engine, each).digest) for each, raw in fixed.items()}
    declared: Declared = replace(loads.declared, **changes)
    return retry(loads.engine, ledger or loads.ledger, declared, asked, batch=new_batch(), fixed=fixes)


def reasons(loads: Loads) -> list[str]:
    return [reason for (reason,) in loads.ask("SELECT reason FROM onceload.quarantine WHERE state = 'held' ORDER BY 1")]


def is_proven(loads: Loads) -> bool:
    return is_sound(loads) and verify(loads.declared, loads.engine, deep=True).differing == 0


@pytest.fixture(params=WAYS)
def two_bad(loads: Loads, request: pytest.FixtureRequest) -> Loads:
    """Two of four records are in quarantine."""
    of_devices(loads, request.param)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2) + record("d1", 3, "bad") + record("d2", 1, "bad"))
    report = loads.load()
    assert (report.loaded, report.quarantined) == (2, 2)
    return loads


def test_a_fixed_record_is_loaded_once_by_whatever_it_is_known(two_bad):
    first, second = held(two_bad)
    doubled = 2 if two_bad.declared.transform else 1

    report = fix_all(two_bad, {first: record("d1", 3)})
    again = fix_all(two_bad, {second: record("d2", 1, "5.00")})

    assert (report.retried, list(report.still_bad), again.retried) == (1, [second], 1)
    assert two_bad.rows("device, seq, amount") == [
        ("d1", 1, doubled),
        ("d1", 2, doubled),
        ("d1", 3, doubled),
        ("d2", 1, 5 * doubled),
    ]
    assert held(two_bad) == []
    assert fix_all(two_bad, {}).retried == 0
    assert (two_bad.load().loaded, is_proven(two_bad)) == (0, True)


@pytest.mark.parametrize("step", [CommitStep.BEGUN, CommitStep.ENTRY_RECORDED, CommitStep.COMMITTED])
def test_a_retry_that_is_killed_and_called_again_loads_each_record_once(two_bad, step):
    first, second = held(two_bad)
    fixed = {first: record("d1", 3), second: record("d2", 1)}
    with suppress(Crash):
        fix_all(two_bad, fixed, ledger=PostgresLedger(two_bad.engine, reached=crashing_at(step)))

    left = {each: fixed[each] for each in held(two_bad)}
    fix_all(two_bad, left)

    assert two_bad.rows("device, seq") == [("d1", 1), ("d1", 2), ("d1", 3), ("d2", 1)]
    assert is_proven(two_bad)


def test_a_rewind_undoes_a_retry(two_bad):
    if two_bad.declared.target.write is Write.MERGE or "_sequence" not in (two_bad.declared.transform or "_sequence"):
        pytest.skip("such rows cannot be rewound")
    before = two_bad.ledger.position("events")
    first, second = held(two_bad)
    fix_all(two_bad, {first: record("d1", 3), second: record("d2", 1)})

    rewind(two_bad.declared, two_bad.engine, to=before, dry_run=False)

    assert (len(two_bad.rows("device, seq")), held(two_bad)) == (2, [first, second])
    fix_all(two_bad, {first: record("d1", 3), second: record("d2", 1)})
    assert two_bad.rows("device, seq") == [("d1", 1), ("d1", 2), ("d1", 3), ("d2", 1)]
    assert is_proven(two_bad)


@pytest.mark.parametrize("way", WITH_OWN_IDS)
def test_a_record_whose_id_is_loaded_already_stays_in_quarantine(loads, way):
    of_devices(loads, way)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    loads.load()
    loads.write("b.jsonl", record("d1", 2, "7.00"))
    loads.load()
    (bad,) = held(loads)

    report = fix_all(loads, {bad: record("d1", 2)})

    assert (report.retried, list(report.still_bad)) == (0, [bad])
    assert "already" in report.still_bad[bad].reason
    assert loads.rows("device, seq") == [("d1", 1), ("d1", 2)]
    assert is_proven(loads)


@pytest.mark.parametrize("way", WITH_OWN_IDS)
def test_one_of_two_fixed_records_with_the_same_id_is_loaded(loads, way):
    of_devices(loads, way)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad") + record("d1", 2, "worse"))
    loads.load()
    first, second = held(loads)

    report = fix_all(loads, {first: record("d1", 2, "5.00"), second: record("d1", 2, "6.00")})

    assert (report.retried, list(report.still_bad)) == (1, [second])
    assert loads.rows("device, seq") == [("d1", 1), ("d1", 2)]
    loads.write("b.jsonl", record("d1", 2))
    assert (loads.load().loaded, is_proven(loads)) == (0, True)


def test_an_ordered_producer_takes_no_record_from_before_its_last_one(loads):
    of_devices(loads, "producers in order")
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad") + record("d1", 3) + record("d1", 4, "bad"))
    loads.load()
    late, next_one = held(loads)

    report = fix_all(loads, {late: record("d1", 2), next_one: record("d1", 4)})

    assert (report.retried, list(report.still_bad)) == (1, [late])
    assert "declares order: any" in report.still_bad[late].reason
    assert (loads.rows("seq"), is_proven(loads)) == ([1, 3, 4], True)


def test_two_retries_at_once_load_an_id_once(loads):
    """The id is loaded by another process after the retry has looked."""
    of_devices(loads, "producers")
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    loads.load()
    (bad,) = held(loads)
    loads.write("b.jsonl", record("d1", 2, "7.00"))
    turns = [loads.load]

    class Overtaken(PostgresLedger):
        def settle(self, settlement, *, begun=None):
            if turns:
                turns.pop()()
            return super().settle(settlement, begun=begun)

    report = fix_all(loads, {bad: record("d1", 2)}, ledger=Overtaken(loads.engine))

    assert (report.retried, list(report.still_bad)) == (0, [bad])
    assert [str(amount) for amount in loads.rows("amount")] == ["1.00", "7.00"]
    assert is_proven(loads)


@pytest.mark.parametrize(
    ("way", "other"),
    [
        ("transform", "retry"),
        ("transform without lineage", "retry"),
        *((way, other) for way in ("transform of producers", "transform of messages") for other in ("retry", "load")),
    ],
)
def test_rows_of_another_process_are_not_refused_because_each_may_be_there_once(loads, way, other):
    """The target refuses them before the ledger does."""
    of_devices(loads, way)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    loads.load()
    execute(loads.admin_dsn, "ALTER TABLE target ADD UNIQUE (device, seq)")
    (bad,) = held(loads)
    fixed = {bad: record("d1", 2)}
    if other == "load":
        loads.write("b.jsonl", record("d1", 2, "1.00"))
    turns = [loads.load if other == "load" else partial(fix_all, loads, fixed)]

    class Overtaken(PostgresLedger):
        def settle(self, settlement, *, begun=None):
            if turns:
                turns.pop()()
            return super().settle(settlement, begun=begun)

    report = fix_all(loads, fixed, ledger=Overtaken(loads.engine))

    still_bad = [bad] if other == "load" else []
    assert (report.retried, list(report.still_bad), report.settled_elsewhere) == (0, still_bad, 1 - len(still_bad))
    assert loads.rows("device, seq, amount") == [("d1", 1, 2), ("d1", 2, 2)]
    assert is_proven(loads)


def test_a_retry_works_while_its_pipeline_is_paused(loads):
    of_devices(loads, "producers")
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    loads.load()
    (bad,) = held(loads)
    loads.ask("UPDATE onceload.pipeline SET paused_at = now(), paused_by = 'ann', pause_reason = 'look' RETURNING 1")

    assert fix_all(loads, {bad: record("d1", 2)}).retried == 1
    assert loads.rows("seq") == [1, 2]


@pytest.mark.parametrize(
    ("transform", "rows", "counts"),
    [
        ("SELECT * FROM records UNION ALL SELECT * FROM records", 4, (4, 0)),
        ("SELECT * FROM records WHERE device <> 'd1'", 1, (1, 1)),
        ("SELECT * FROM records WHERE device = 'd3'", 0, (0, 2)),
        (
            "SELECT 'all' AS device, count(*) AS seq, CAST(sum(amount) AS numeric(12,2)) AS amount FROM records",
            1,
            (1, 0),
        ),
    ],
)
def test_a_transform_makes_any_number_of_rows_of_retried_records(loads, transform, rows, counts):
    of_devices(loads, "plain")
    loads.declared = replace(loads.declared, transform=transform, **IN_POSTGRES)
    loads.write("a.jsonl", record("d1", 1, "bad") + record("d2", 1, "bad"))
    loads.load()
    first, second = held(loads)

    report = fix_all(loads, {first: record("d1", 1), second: record("d2", 1)})

    assert (report.retried, len(loads.rows("device"))) == (2, rows)
    *_, entry = loads.ledger.entries("events", after=Position(0))
    assert (entry.kind, entry.counts.loaded, entry.counts.filtered) == (EntryKind.RETRY, *counts)
    assert is_proven(loads)


def test_a_transform_that_fails_leaves_all_records_in_quarantine(loads):
    of_devices(loads, "plain")
    divided = "SELECT device, seq, CAST(1 / seq AS numeric(12,2)) AS amount, _producer_id, _sequence FROM records"
    loads.declared = replace(loads.declared, transform=divided, **IN_POSTGRES)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad") + record("d1", 3, "bad"))
    loads.load()
    first, second = held(loads)

    with pytest.raises(TransformRefused, match="division by zero"):
        fix_all(loads, {first: record("d1", 2), second: record("d1", 0)})

    assert (held(loads), loads.rows("seq")) == ([first, second], [1])
    assert fix_all(loads, {first: record("d1", 2)}).retried == 1


@pytest.mark.parametrize(
    ("transform", "why"),
    [
        ("SELECT device, seq, amount FROM records", "a transform that drops _producer_id"),
        ("SELECT device, seq, amount FROM (SELECT * FROM records) AS all_of_them", "which row of a key is newer"),
    ],
)
def test_a_merge_of_rows_without_lineage_is_refused(loads, transform, why):
    """It would overwrite what a later record wrote."""
    of_devices(loads, "merge")
    loads.declared = replace(loads.declared, transform=transform, **IN_POSTGRES)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    loads.load()
    (bad,) = held(loads)

    with pytest.raises(SettingRefused, match=why):
        fix_all(loads, {bad: record("d1", 2)})

    assert held(loads) == [bad]


@pytest.mark.parametrize("way", ["plain", "producers", "messages", "merge", "transform of messages"])
def test_a_record_that_only_the_server_refuses_stays_in_quarantine(loads, way):
    of_devices(loads, way)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad") + record("d1", 3, "bad"))
    loads.load()
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target ADD CONSTRAINT small CHECK (amount < 100)")
    first, second = held(loads)
    fixed = {first: record("d1", 2, "1000.00"), second: record("d1", 3)}

    if way == "transform of messages":
        with pytest.raises(TransformRefused, match="small"):
            fix_all(loads, fixed)
        del fixed[first]
    report = fix_all(loads, fixed)

    assert (report.retried, list(report.still_bad)) == (1, [first])
    assert (loads.rows("seq"), is_proven(loads)) == ([1, 3], True)


SPARK = "SELECT device, seq, CAST(amount * 2 AS decimal(12,2)) AS amount, _producer_id, _sequence FROM records"


@pytest.mark.parametrize(
    "changes", [{}, {"producer": BY_DEVICE}, {"message_id": BY_MESSAGE}, {"target": MERGE}], ids=str
)
def test_spark_makes_the_rows_of_retried_records(loads, tasks, changes):
    of_devices(loads, "plain")
    loads.declared = replace(loads.declared, transform=SPARK, **changes)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad") + record("d2", 1, "bad"))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    load(loads.declared, settings, batch=new_batch(), executor=tasks)
    first, second = held(loads)

    report = fix_all(loads, {first: record("d1", 2)})
    again = fix_all(loads, {second: record("d2", 1, "5.00")})

    assert (report.retried, list(report.still_bad), again.retried) == (1, [second], 1)
    assert loads.rows("device, seq, amount") == [("d1", 1, 2), ("d1", 2, 2), ("d2", 1, 10)]
    assert is_proven(loads)


def test_spark_on_other_machines_makes_the_rows_of_retried_records(loads, tasks, monkeypatch):
    """Its workers do not see a folder of the machine that retries."""
    of_devices(loads, "plain")
    loads.declared = replace(loads.declared, transform=SPARK)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    load(loads.declared, settings, batch=new_batch(), executor=tasks)
    (bad,) = held(loads)

    def on_its_way(folder: DiskFolder) -> tuple[Any, ...]:
        return partial(DiskFolder, path="/nowhere", token=folder.token), ()

    monkeypatch.setattr(DiskFolder, "__reduce__", on_its_way)

    assert fix_all(loads, {bad: record("d1", 2)}).retried == 1
    assert is_proven(loads)


def test_a_transform_that_spark_refuses_leaves_all_records_in_quarantine(loads, tasks):
    of_devices(loads, "plain")
    divided = "SELECT device, seq, CAST(1 / seq AS decimal(12,2)) AS amount, _producer_id, _sequence FROM records"
    loads.declared = replace(loads.declared, transform=divided)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    load(loads.declared, settings, batch=new_batch(), executor=tasks)
    (bad,) = held(loads)

    with pytest.raises(TransformRefused, match="DIVIDE_BY_ZERO"):
        fix_all(loads, {bad: record("d1", 0)})

    assert held(loads) == [bad]
    assert fix_all(loads, {bad: record("d1", 2)}).retried == 1
    assert is_proven(loads)


def test_a_record_with_an_invalid_id_is_refused_by_a_retry_as_by_a_load(loads):
    """For an ordered producer, a negative id would be in no range that is consumed."""
    of_devices(loads, "producers in order")
    loads.write("a.jsonl", record("d1", 1) + record("d1", -2) + record("x" * 2_500, 1) + record("d1", 3, "bad"))
    loads.load()
    *odd, bad = held(loads)

    report = fix_all(loads, {bad: record("d1", 3)})

    assert (report.retried, sorted(report.still_bad)) == (1, sorted(odd))
    assert (loads.rows("seq"), is_proven(loads)) == ([1, 3], True)


@pytest.mark.parametrize("way", ["plain", "producers", "messages"])
def test_a_record_that_another_retry_settles_meanwhile_is_not_reported_as_bad(loads, way, monkeypatch):
    of_devices(loads, way)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    loads.load()
    (bad,) = held(loads)
    fixed, turns, read = {bad: record("d1", 2)}, [fix_all], StoredRecords.read

    def read_after_another(stored: StoredRecords, *args: Any, **named: Any) -> Any:
        while turns:
            assert turns.pop()(loads, fixed).retried == 1
        return read(stored, *args, **named)

    monkeypatch.setattr(StoredRecords, "read", read_after_another)
    report = fix_all(loads, fixed)

    assert (report.retried, report.still_bad, report.settled_elsewhere) == (0, {}, 1)
    assert loads.rows("seq") == [1, 2]


def test_a_rewind_knows_that_the_id_of_a_retried_record_is_forgotten(loads):
    """A later load has found a duplicate by it, and would bring it again after the rewind."""
    of_devices(loads, "messages")
    loads.write("a.jsonl", record("d1", 1, "bad"))
    loads.load()
    (bad,) = held(loads)
    fix_all(loads, {bad: record("d1", 1)})
    position = loads.ledger.position("events")
    loads.write("b.jsonl", record("d1", 1) + record("d1", 7))
    loads.load()
    execute(loads.admin_dsn, f"DELETE FROM onceload.message WHERE position = {position}")

    with pytest.raises(OnceloadError):
        rewind(loads.declared, loads.engine, to=position, dry_run=False)

    assert (loads.load().loaded, loads.rows("seq")) == (0, [1, 7])


TWO_ROWS = "SELECT device, seq, amount, _producer_id, _sequence FROM records WHERE seq <> 4"


def test_verify_counts_rows_of_a_retry_together_that_are_as_many_as_its_records(loads):
    of_devices(loads, "plain")
    loads.declared = replace(loads.declared, transform=f"{TWO_ROWS} UNION ALL {TWO_ROWS}", **IN_POSTGRES)
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2, "bad"))
    loads.load()
    with (loads.folder / "a.jsonl").open("a") as file:
        file.write(record("d1", 3) + record("d1", 4, "bad"))
    loads.load()
    first, second = held(loads)

    fix_all(loads, {first: record("d1", 2), second: record("d1", 4)})

    assert loads.rows("seq") == [1, 1, 2, 2, 3, 3]
    assert is_proven(loads)


def test_verify_finds_a_lost_row_of_a_commit_beside_a_retry_of_many_rows(loads):
    of_devices(loads, "plain")
    loads.write("a.jsonl", record("d1", 1) + record("d1", 2))
    loads.load()
    loads.declared = replace(loads.declared, transform=f"{TWO_ROWS} UNION ALL {TWO_ROWS}", **IN_POSTGRES)
    with (loads.folder / "a.jsonl").open("a") as file:
        file.write(record("d1", 3) + record("d1", 5, "bad"))
    loads.load()
    (bad,) = held(loads)
    fix_all(loads, {bad: record("d1", 5)})
    assert is_proven(loads)

    execute(loads.admin_dsn, "DELETE FROM target WHERE seq = 1; INSERT INTO target SELECT * FROM target WHERE seq = 2")

    assert verify(loads.declared, loads.engine, deep=True).differing > 0
