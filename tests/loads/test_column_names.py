"""Columns of records may be called like those of the ledger, and like what a load calls its own."""

import json
from dataclasses import replace

import pytest

from dedup_core.verdicts import Order
from spark_jobs.pipeline.columns import parse_column
from spark_jobs.pipeline.declared import Publish, RecordProducer
from tests.loads.conftest import Loads

#: The first two say who a record is.
_NAMES = ("name", "position", "id", "ids", "first", "last", "rows", "spans", "reached", "consumed", "producer_id")


@pytest.fixture
def publish():
    return Publish.STAGED


@pytest.mark.parametrize("order", Order)
def test_records_that_name_their_producers_may_have_columns_of_any_name(loads: Loads, order: Order):
    columns = tuple(parse_column(name, "bigint") for name in _NAMES)
    producer = RecordProducer(name="name", sequence="position", order=order)
    loads.declared = replace(loads.declared, columns=columns, producer=producer)

    def write(name: str, *positions: int) -> None:
        records = (dict.fromkeys(_NAMES, 7) | {"position": position} for position in positions)
        loads.write(name, "".join(json.dumps(record) + "\n" for record in records))

    write("a.jsonl", 1, 3, 3)
    first = loads.load()
    write("b.jsonl", 3, 5)
    second = loads.load()

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (2, 1, 1, 1)
    assert loads.rows("name, position") == [(7, 1), (7, 3), (7, 5)]
