"""Spark and local processes load the same files: with the same rows, the same quarantine and the same ledger."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.postgres import LedgerSettings
from onceload_jobs.executor.local import LocalExecutor
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Declared, Format, MessageId, Publish, RecordProducer, Target
from tests.loads.conftest import Loads, line
from tests.loads.test_spark_formats import write

pytestmark = pytest.mark.usually_staged
STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])

#: Records that take different ways through the reader.
_ODD = (
    line(0, amount=1.5),
    line(1, amount="1e1"),
    '{"id": 2.0, "amount": "2.50", "note": "x"}\n',
    '{"id": 3, "id": 4, "amount": "2.50", "note": "x"}\n',
    '{"id": 5, "amount": "2.50", "note": "x", "unknown": [1, {"a": null}]}\n',
    '{"id": 6, "amount": null, "note": "\\ud83d\\ude00 \\u0001"}\r\n',
    '{"id": 7, "amount": "2.505", "note": "x"}\n',
    '{"id": 9223372036854775808, "amount": "2.50", "note": "x"}\n',
    '{"id": 9, "note": "\\u0000"}\n',
    '{"id": 10}\n',
    "\n",
    "{broken\n",
    "[11]\n",
    line(12, note="ä" * 3000),
)


def _odd_lines(loads: Loads) -> None:
    plain = "".join(line(number) for number in range(100, 3_000))
    loads.write("a.jsonl", plain + "".join(_ODD) + plain.replace('"x"', '"y"'))
    loads.write("b.jsonl", "".join(_ODD) + line(13))
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=20_000))


def _of_format(of_format: Format) -> Callable[[Loads], None]:
    return lambda loads: write(loads, of_format)


_FILES = {
    "jsonl": _odd_lines,
    **{str(each): _of_format(each) for each in (Format.CSV, Format.FIXED, Format.JSON, Format.PARQUET)},
}


@pytest.mark.parametrize("files", _FILES)
def test_spark_and_local_processes_give_the_same_ledger_and_the_same_rows(loads, tasks, files):
    _FILES[files](loads)

    _compare(loads, tasks)


@STAGED
@pytest.mark.parametrize("has_ids", [False, True], ids=["producers", "business ids"])
def test_records_that_are_known_one_by_one_are_the_same_with_spark_and_local_processes(loads, tasks, has_ids):
    columns = {"device": "text", "seq": "bigint", "amount": "numeric(12,2)"}
    keep = replace(loads.declared.pipeline, message_keep_days=2)
    loads.declared = replace(
        loads.declared,
        columns=tuple(parse_column(*each) for each in columns.items()),
        source=replace(loads.declared.source, chunk_bytes=2_000),
        **(
            {"pipeline": keep, "message_id": MessageId(columns=("device", "seq"), keep_days=2)}
            if has_ids
            else {"producer": RecordProducer(name="device", sequence="seq")}
        ),
    )
    for name, numbers in (("a.jsonl", range(600)), ("b.jsonl", range(300, 900))):
        records = [{"device": f"d{number % 7}", "seq": number, "amount": "1.00"} for number in numbers]
        content = "".join(json.dumps(each) + "\n" for each in records)
        loads.write(name, content + '{"device": "d1", "seq": "x"}\n' + content[:1_000].rpartition("\n")[0] + "\n")

    found = _compare(loads, tasks)

    assert found["counts"][0][:2] == (900, 2)


def _compare(loads: Loads, tasks: Any) -> dict[str, list[Any]]:
    found = []
    processes = LocalExecutor(slots=2)
    for name, of_load in (("by_spark", tasks), ("by_processes", processes)):
        declared = replace(
            loads.declared,
            pipeline=replace(loads.declared.pipeline, name=name),
            target=Target(schema="public", table=name),
        )
        settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
        report = load(declared, settings, batch=new_batch(), executor=of_load)
        assert report.loaded
        again = load(declared, settings, batch=new_batch(), executor=of_load)
        assert (again.loaded, again.quarantined) == (0, 0)
        found.append(_proof(loads, declared))
    processes.close()
    assert found[0] == found[1]
    return found[0]


def _proof(loads: Loads, declared: Declared) -> dict[str, list[Any]]:
    """Everything that must not depend on which session committed, or when."""
    columns = ", ".join(each.name for each in declared.columns)
    return {
        what: loads.ask(query.format(table=declared.target.table, name=declared.name, columns=columns))
        for what, query in _PROOF.items()
    }


_PROOF = {
    "rows": """
        SELECT producer.name, _sequence, {columns} FROM {table}
          LEFT JOIN onceload.producer ON producer_id = _producer_id ORDER BY 1, 2""",
    "quarantine": """
        SELECT producer.name, sequence_id, raw, column_name, reason, state
          FROM onceload.quarantine JOIN onceload.producer USING (pipeline_id, producer_id)
          JOIN onceload.pipeline USING (pipeline_id) WHERE pipeline.name = '{name}' ORDER BY 1, 2""",
    "producers": """
        SELECT producer.name, generation, CAST(consumed AS text), fingerprint, size, condition
          FROM onceload.producer JOIN onceload.pipeline USING (pipeline_id)
         WHERE pipeline.name = '{name}' ORDER BY 1, 2""",
    "receipts": """
        SELECT producer, generation, CAST(spans AS text), span.rows, records, digest
          FROM onceload.ledger_span AS span JOIN onceload.pipeline USING (pipeline_id)
         WHERE pipeline.name = '{name}' ORDER BY 1, 2, 3, 4""",
    "counts": """
        SELECT sum(loaded), sum(quarantined), sum(duplicate), sum(filtered), sum(bytes)
          FROM onceload.ledger JOIN onceload.pipeline USING (pipeline_id) WHERE pipeline.name = '{name}'""",
    "messages": """
        SELECT message FROM onceload.message JOIN onceload.pipeline USING (pipeline_id)
         WHERE pipeline.name = '{name}' ORDER BY 1""",
}
