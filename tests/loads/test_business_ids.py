"""Business ids: of several records with one id, only the first takes effect while the id is remembered."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection

from onceload_core.errors import RowsRefused
from onceload_core.names import Position
from onceload_core.ports import Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger
from onceload_core.verdicts import Order
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    Expectation,
    MessageId,
    Publish,
    RecordProducer,
    Suite,
    TransformEngine,
    Write,
)
from tests.loads.conftest import Loads
from tests.servers import execute

COLUMNS = {"device": "text", "seq": "bigint", "id": "bigint", "note": "bigint"}

#: Two rows of each record.
TWO_ROWS_EACH = "SELECT device, seq, id, note, _producer_id, _sequence FROM records, generate_series(1, 2)"
AS_READ = "SELECT id, note, _producer_id, _sequence FROM records"
STAGED = """
    SELECT CAST(CAST(oid AS regclass) AS text) FROM pg_class
     WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r'
"""


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.fixture
def messages(loads: Loads) -> Loads:
    keep = replace(loads.declared.pipeline, message_keep_days=2)
    loads.declared = replace(loads.declared, pipeline=keep, message_id=MessageId(columns=("id",), keep_days=2))
    return loads


def test_a_business_id_takes_effect_once_in_its_window(messages):
    messages.write("a.jsonl", '{"id": 1, "note": "a"}\n{"id": 1, "note": "b"}\n{"id": 2}\n')
    first = messages.load()
    messages.write("b.jsonl", '{"id": 2, "note": "again"}\n{"id": 3}\n')
    second = messages.load()

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (2, 1, 1, 1)
    assert messages.rows("id, note") == [(1, "a"), (2, None), (3, None)]


def test_ids_that_the_server_reads_as_one_value_are_one_in_all_buckets(messages, monkeypatch):
    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.bucket_count", lambda *_, **__: 3)
    messages.declared = replace(messages.declared, columns=(parse_column("id", "jsonb"),))
    ids = [f'{{"n": [{zero}, {number}]}}' for number in range(10) for zero in ("0", "-0", "-0e5")]
    messages.write("a.jsonl", "".join(f'{{"id": {each}}}\n' for each in ids))

    report = messages.load()

    assert (report.loaded, report.duplicates) == (10, 20)


def test_ids_that_are_no_longer_remembered_take_effect_again(messages):
    messages.write("a.jsonl", '{"id": 1, "note": "a"}\n{"id": 2, "note": "a"}\n')
    messages.load()

    ((today,),) = messages.ask("SELECT DISTINCT day FROM onceload.message")
    # As if it had been loaded three days ago. Each day has a partition.
    execute(
        messages.admin_dsn,
        f"CREATE TABLE onceload.message_{today - timedelta(days=3):%Y%m%d} PARTITION OF onceload.message"
        f" FOR VALUES FROM ('{today - timedelta(days=3)}') TO ('{today - timedelta(days=2)}')",
    )
    execute(messages.admin_dsn, "UPDATE onceload.message SET day = day - 3 WHERE message = sha256('[\"1\"]')")
    messages.write("b.jsonl", '{"id": 1, "note": "b"}\n{"id": 2, "note": "b"}\n')

    report = messages.load()

    assert (report.loaded, report.duplicates) == (1, 1)
    assert messages.rows("id, note") == [(1, "a"), (1, "b"), (2, "a")]


def test_an_audit_reads_the_rows_that_would_be_published(messages):
    unique = Expectation(type="expect_column_values_to_be_unique", kwargs={"column": "id"})
    messages.declared = replace(messages.declared, suite=Suite(name="s", path="s.yaml", expectations=(unique,)))
    messages.write("a.jsonl", '{"id": 1, "note": "a"}\n{"id": 1, "note": "b"}\n{"id": 2}\n')

    report = messages.load()

    assert (report.loaded, report.duplicates) == (2, 1)
    assert messages.ask("SELECT passed, rows FROM onceload.audit") == [(True, 2)]


@pytest.mark.parametrize("order", [None, *Order], ids=["of files", "any", "ordered"])
@pytest.mark.parametrize("buckets", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_the_first_new_record_of_each_id_takes_effect(messages, monkeypatch, order, seed, buckets):
    """Ids are repeated within a batch and from load to load. If records name a producer, its ids are checked first."""
    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.bucket_count", lambda *_, **__: buckets)
    columns = tuple(parse_column(*each) for each in COLUMNS.items())
    producer = order and RecordProducer(name="device", sequence="seq", order=order)
    messages.declared = replace(messages.declared, columns=columns, producer=producer)
    rng, expected, model = Random(seed), list[tuple[object, ...]](), _Model(order)
    for number in range(4):
        offered = [
            (rng.choice(["d1", "d2"]), 3 * number + rng.randrange(12), rng.randrange(20), 100 * number + note)
            for note in range(rng.randrange(1, 12))
        ]
        half = len(offered) // 2
        for name, some in (("a", offered[:half]), ("b", offered[half:])):
            messages.write(f"{number}{name}.jsonl", "".join(_record(each) for each in some))

        report = messages.load()

        new = list(model.new(offered))
        expected += new
        assert (report.loaded, report.duplicates) == (len(new), len(offered) - len(new))
        assert messages.rows("device, seq, id, note") == sorted(expected)


@pytest.mark.parametrize("transform", [None, TWO_ROWS_EACH], ids=["as read", "two rows each"])
@pytest.mark.parametrize("order", [None, Order.ANY], ids=["of files", "any"])
def test_ids_that_another_load_records_before_the_commit_are_left_out(messages, monkeypatch, order, transform):
    """The decision is repeated; the second time, another load comes between again."""
    columns = tuple(parse_column(*each) for each in COLUMNS.items())
    producer = order and RecordProducer(name="device", sequence="seq", order=order)
    messages.declared = replace(
        messages.declared,
        columns=columns,
        producer=producer,
        transform=transform,
        transform_engine=TransformEngine.POSTGRES,
    )
    messages.write("a.jsonl", "".join(_record(("d1", number, number, 1)) for number in range(4)))
    commit, others = PostgresLedger.commit, iter(["b.jsonl", "c.jsonl"])

    def behind_another(ledger: PostgresLedger, offered: Commit[Connection], **begun: Any) -> Position:
        if name := next(others, None):
            number = "bc".index(name[0])
            messages.write(name, _record(("d2", number, number, 2)))
            with monkeypatch.context() as original:
                original.setattr(PostgresLedger, "commit", commit)
                messages.load()
        return commit(ledger, offered, **begun)

    monkeypatch.setattr(PostgresLedger, "commit", behind_another)

    report = messages.load()

    rows = 1 if transform is None else 2
    assert (report.loaded, report.duplicates) == (2 * rows, 2)
    assert messages.rows("id, note") == sorted([(0, 2), (1, 2), (2, 1), (3, 1)] * rows)
    assert messages.ask("SELECT count(*) FROM onceload.message") == [(4,)]


def test_a_row_of_spark_that_the_target_refuses_ends_the_load_with_the_reason_of_the_server(messages, tasks):
    def load_by_spark() -> None:
        settings = LoadSettings(ledger=LedgerSettings(dsn=messages.dsn), wait_s=0)
        load(messages.declared, settings, batch=new_batch(), executor=tasks)

    messages.declared = replace(messages.declared, transform="SELECT id, note, _producer_id, _sequence FROM records")
    messages.write("a.jsonl", '{"id": 1}\n')
    load_by_spark()
    with messages.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target ADD CHECK (id < 100)")
    messages.write("b.jsonl", '{"id": 2}\n{"id": 100}\n')

    with pytest.raises(RowsRefused, match="violates check constraint"):
        load_by_spark()
    assert messages.rows() == [1]


def test_a_batch_whose_ids_are_lost_by_a_crash_is_staged_again(messages, monkeypatch):
    """A crash empties the unlogged tables that the commit was prepared from."""
    messages.declared = replace(
        messages.declared, target=replace(messages.declared.target, write=Write.MERGE, key=("id",))
    )
    messages.write("a.jsonl", '{"id": 1, "note": "a"}\n{"id": 1, "note": "b"}\n{"id": 2}\n')
    commit, emptied = PostgresLedger.commit, list[str]()

    def behind_a_crash(ledger: PostgresLedger, offered: Commit[Connection], **begun: Any) -> Position:
        if not emptied:
            emptied.extend(name for (name,) in messages.ask(STAGED))
            execute(messages.admin_dsn, f"TRUNCATE {', '.join(emptied)}")
        return commit(ledger, offered, **begun)

    monkeypatch.setattr(PostgresLedger, "commit", behind_a_crash)

    report = messages.load()

    assert len(emptied) == len(["rows", "proof", "messages"])
    assert (report.loaded, report.duplicates) == (2, 1)
    assert messages.rows("id") == [1, 2]


def test_many_records_of_one_id_are_left_out_in_linear_time(messages):
    """If each were compared with all others, this would take a quarter of an hour."""
    count = 100_000
    messages.declared = replace(messages.declared, transform=AS_READ, transform_engine=TransformEngine.POSTGRES)
    messages.write("a.jsonl", "".join(f'{{"id": 1, "note": "{number}"}}\n' for number in range(count)))

    report = messages.load()

    assert (report.loaded, report.duplicates) == (1, count - 1)
    assert messages.rows("id, note") == [(1, "0")]


class _Model:
    """The rows that take effect, decided one by one."""

    def __init__(self, order: Order | None) -> None:
        self._order = order
        self._consumed: dict[str, set[int]] = {"d1": set(), "d2": set()}
        self._ids: set[int] = set()

    def new(self, offered: Sequence[tuple[str, int, int, int]]) -> Iterator[tuple[str, int, int, int]]:
        before = {device: set(consumed) for device, consumed in self._consumed.items()}
        for device, seq, number, note in offered:
            if self._order is not None:
                is_late = self._order is Order.ORDERED and seq <= max(before[device], default=-1)
                if is_late or seq in self._consumed[device]:
                    continue
                self._consumed[device].add(seq)
            if number not in self._ids:
                self._ids.add(number)
                yield device, seq, number, note


def _record(values: tuple[object, ...]) -> str:
    return json.dumps(dict(zip(COLUMNS, values, strict=True))) + "\n"


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
