"""The same promises with Spark's own tasks, and what only Spark can do: transforms."""

from dataclasses import replace
from typing import Any

import pytest

from dedup_core.names import Batch
from dedup_core.postgres import LedgerSettings
from spark_jobs.declared import Publish, Target
from spark_jobs.load import LoadSettings, Report, load, new_batch
from spark_jobs.spark import SparkTasks
from tests.loads.conftest import Loads, line


@pytest.fixture(scope="module")
def tasks():
    with SparkTasks.started("tests", "local[2,4]", {}) as tasks:
        yield tasks


def load_by_spark(loads: Loads, tasks: SparkTasks, **changes: Any) -> Report:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    return load(replace(loads.declared, **changes), settings, batch=Batch(new_batch()), tasks=tasks)


def test_spark_s_tasks_load_each_record_once(loads, tasks):
    source = replace(loads.declared.source, chunk_bytes=10_000)
    for name in "abc":
        loads.write(f"{name}.jsonl", "".join(line(number) for number in range(1000)) + "{bad\n")

    report = load_by_spark(loads, tasks, source=source)
    again = load_by_spark(loads, tasks, source=source)

    assert (report.loaded, report.quarantined, again.loaded) == (3000, 3, 0)
    assert loads.rows() == sorted(list(range(1000)) * 3)


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_transform_that_keeps_records_keeps_their_lineage(loads, tasks):
    loads.write("a.jsonl", "".join(line(number, f"{number}.50") for number in range(100)))
    transform = "SELECT *, amount * 2 AS twice FROM records WHERE id >= 90"

    report = load_by_spark(loads, tasks, transform=transform)

    assert (report.loaded, report.filtered) == (10, 90)
    rows = loads.ask("SELECT id, CAST(twice AS text), _sequence IS NOT NULL FROM target ORDER BY id")
    assert rows[0] == (90, "181.00", True)
    assert len(rows) == 10
    assert load_by_spark(loads, tasks, transform=transform).loaded == 0


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_transform_may_aggregate_the_new_records_of_a_batch(loads, tasks):
    loads.write("a.jsonl", line(1, "1.00", "x") + line(2, "2.00", "x") + line(3, "4.00", "y"))
    transform = "SELECT note, count(*) AS records, sum(amount) AS total FROM records GROUP BY note"
    target = Target(schema="public", table="sums")

    report = load_by_spark(loads, tasks, transform=transform, target=target)
    loads.write("b.jsonl", line(4, "8.00", "y"))
    load_by_spark(loads, tasks, transform=transform, target=target)

    assert report.loaded == 2
    found = loads.ask("SELECT note, records, CAST(total AS text) FROM sums ORDER BY note, records")
    assert found == [("x", 2, "3.00"), ("y", 1, "4.00"), ("y", 1, "8.00")]
