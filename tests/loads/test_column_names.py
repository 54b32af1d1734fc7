"""Columns of records may be called like those of the ledger, and like what a load calls its own."""

import json
from dataclasses import replace

import pytest

from onceload_core.verdicts import Order
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import MessageId, Publish, RecordProducer, Write
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


def test_names_may_have_characters_that_mean_something_in_statements(loads: Loads):
    name, position, key, gone = "%(name)s", "at:position", 'a {rows} of "ids" \\:key 100%', "gone?"
    of_type = {name: "text", position: "bigint", key: "bigint not null", gone: "boolean"}
    loads.declared = replace(
        loads.declared,
        columns=tuple(parse_column(*each) for each in of_type.items()),
        producer=RecordProducer(name=name, sequence=position),
        message_id=MessageId(columns=(name, position), keep_days=7),
        target=replace(loads.declared.target, write=Write.MERGE, key=(key,), deleted=gone),
    )

    def write(file: str, *records: tuple[str, int, int, bool]) -> None:
        loads.write(file, "".join(json.dumps(dict(zip(of_type, each, strict=True))) + "\n" for each in records))

    write("a.jsonl", ("x", 1, 10, False), ("x", 1, 11, False), ("y", 1, 12, False))
    first = loads.load()
    write("b.jsonl", ("y", 1, 13, False), ("y", 2, 12, True), ("x", 2, 10, False))
    second = loads.load()

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (2, 1, 2, 1)
    quoted = key.replace('"', '""')
    assert loads.ask(f'SELECT "{quoted}" FROM target'.replace(":", "\\:")) == [(10,)]
