"""A drafted pipeline file loads the files that it was drafted from, with every value."""

import gzip
import json
import subprocess
import sys
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings

from onceload.draft.draft import draft
from onceload.pipeline_file import read_pipeline
from onceload_jobs.load.report import Report
from onceload_jobs.pipeline.declared import Publish
from tests.laws import examples
from tests.loads.conftest import Loads
from tests.unit.draft.test_any_records import records
from tests.waiting import PATIENCE_S

UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"


@pytest.fixture
def publish():
    return Publish.STAGED


def load_draft(loads: Loads, pattern: str) -> Report:
    path = loads.folder.parent / "drafted.yaml"
    path.write_text(draft(str(loads.folder / pattern)).text)
    return loads.load(**vars(read_pipeline(path)))


def counts(report: Report) -> tuple[int, int, list[Any]]:
    return report.loaded, report.quarantined, list(report.notes)


def types_of(loads: Loads, table: str) -> dict[str, str]:
    found = loads.ask(
        f"SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = '{table}'::regclass "
        "AND attnum > 0 ORDER BY attnum"
    )
    return {name: of_type for name, of_type in found if name not in ("_producer_id", "_sequence")}


def order(number: int, **changes: object) -> str:
    record = {
        "order_id": number,
        "Total €": f"{number}.50",
        "price": float(f"{number}.5"),
        "paid": number % 2 == 0,
        "day": "2026-11-20",
        "at": f"2026-11-20T10:{number % 60:02}:00+01:00",
        "device": UUID,
        "address": {"city": "Köln", "zip": ["50667", number]},
        "zip": "00501",
        "mixed": number if number % 2 else f"n{number}",
        "select": "null",
        "_sequence": number,
    }
    return json.dumps({**record, **changes}) + "\n"


def test_json_lines_with_every_kind_of_value(loads: Loads):
    loads.write("orders/a.jsonl", "".join(map(order, range(120))) + "{broken\n")
    loads.write("orders/b.jsonl.gz", gzip.compress(order(120, large=2**70, tiny=1e-7).encode()))
    loads.write("orders/c.jsonl.zst", zstandard.compress(order(121, mixed=None).removesuffix("\n").encode()))

    report = load_draft(loads, "orders/*")

    assert counts(report) == (122, 1, [])
    assert types_of(loads, "orders") == {
        "order_id": "bigint",
        "Total €": "numeric(12,2)",
        "price": "numeric(12,2)",
        "paid": "boolean",
        "day": "date",
        "at": "timestamp with time zone",
        "device": "uuid",
        "address": "jsonb",
        "zip": "text",
        "mixed": "text",
        "select": "text",
        "large": "numeric(24,0)",
        "tiny": "double precision",
    }
    columns = '"Total €", price, paid, day, at, device::text, address, zip, mixed, "select"'
    (found,) = loads.ask(f"SELECT {columns} FROM orders WHERE order_id = 61")
    at = datetime(2026, 11, 20, 9, 1, tzinfo=UTC)
    address = {"city": "Köln", "zip": ["50667", 61]}
    amounts = (Decimal("61.50"), Decimal("61.50"))
    assert found == (*amounts, False, date(2026, 11, 20), at, UUID, address, "00501", "61", "null")
    assert loads.ask("SELECT sum(order_id), sum(large), sum(tiny), count(mixed) FROM orders") == [
        (121 * 122 // 2, 2**70, 1e-7, 121)
    ]
    assert loads.ask("SELECT attnotnull FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attnum = 1") == [
        (True,)
    ]


def test_csv_of_a_dialect_of_its_own(loads: Loads):
    first = 'Id;"Full name";born;zip;balance;active\r\n1;"O\'Neil; ""Bob""";1999-01-31;00501;-1.5;yes\r\n'
    loads.write("people-2026-01.csv", first + '2;"two\r\nlines";\\N;00502;\\N;no\r\n')
    loads.write("people-2026-02.csv.gz", gzip.compress(b"active;Id;Full name;born;zip;balance\nno;3;;\\N;00503;2.25"))

    report = load_draft(loads, "people-*")

    assert counts(report) == (3, 0, [])
    assert types_of(loads, "people") == {
        "Id": "bigint",
        "Full name": "text",
        "born": "date",
        "zip": "text",
        "balance": "numeric(12,2)",
        "active": "boolean",
    }
    assert loads.ask(
        'SELECT * FROM (SELECT "Id", "Full name", born, zip, balance, active FROM people) _ ORDER BY 1'
    ) == [
        (1, 'O\'Neil; "Bob"', date(1999, 1, 31), "00501", Decimal("-1.50"), True),
        (2, "two\r\nlines", None, "00502", None, False),
        (3, "", None, "00503", Decimal("2.25"), False),
    ]


def test_csv_without_a_header(loads: Loads):
    loads.write("rates.tsv", "".join(f"EUR\t2026-11-{day:02} 10:00\t1.{day}\n" for day in range(1, 31)))

    report = load_draft(loads, "rates.tsv")

    assert counts(report) == (30, 0, [])
    assert types_of(loads, "rates") == {
        "column_1": "text",
        "column_2": "timestamp without time zone",
        "column_3": "numeric(12,2)",
    }
    assert loads.ask("SELECT max(column_2), sum(column_3) FROM rates") == [
        (datetime.fromisoformat("2026-11-30 10:00"), sum((Decimal(f"1.{day}") for day in range(1, 31)), Decimal(0)))
    ]


def test_parquet_by_its_schema(loads: Loads):
    stored = {
        "id": pa.array(range(3), pa.int32()),
        "amount": pa.array([Decimal("1.10"), None, Decimal("-3.00")], pa.decimal128(9, 2)),
        "ratio": pa.array([0.1, 0.2, None], pa.float32()),
        "at": pa.array([datetime(2026, 11, 20, tzinfo=UTC)] * 3),
        "key": pa.array([UUID, None, UUID]),
        "tags": pa.array([["a"], [], None]),
        "raw": pa.array([b"\xff\0", b"", None]),
        "ctid": pa.array([1, 2, 3]),
    }
    loads.folder.joinpath("events").mkdir()
    schema = pa.schema([pa.field(name, array.type, nullable=name != "id") for name, array in stored.items()])
    pq.write_table(pa.table(stored, schema=schema), loads.folder / "events" / "part-0.parquet", row_group_size=2)

    report = load_draft(loads, "events/*.parquet")

    assert counts(report) == (3, 0, [])
    assert types_of(loads, "events") == {
        "id": "bigint",
        "amount": "numeric(9,2)",
        "ratio": "real",
        "at": "timestamp with time zone",
        "key": "uuid",
        "tags": "jsonb",
        "raw": "bytea",
    }
    rows = loads.ask("SELECT id, amount, ratio::text, at, key::text, tags, raw FROM events ORDER BY id")
    at = datetime(2026, 11, 20, tzinfo=UTC)
    assert [(*row[:-1], row[-1] if row[-1] is None else bytes(row[-1])) for row in rows] == [
        (0, Decimal("1.10"), "0.1", at, UUID, ["a"], b"\xff\0"),
        (1, None, "0.2", at, None, [], b""),
        (2, Decimal("-3.00"), None, at, UUID, None, None),
    ]


@settings(examples(5), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(some=records())
def test_a_draft_of_any_records_loads_all_of_them(loads: Loads, some: list[dict[str, object]]):
    topic = f"t{uuid.uuid4().hex}"
    loads.write(f"{topic}/a.jsonl", "".join(json.dumps(record) + "\n" for record in some))

    report = load_draft(loads, f"{topic}/*.jsonl")

    assert counts(report) == (len(some), 0, [])
    for name in types_of(loads, topic):
        filled = sum(record.get(name) is not None for record in some)
        quoted = name.replace('"', '""').replace(":", "\\:")
        assert loads.ask(f'SELECT count("{quoted}") FROM {topic}') == [(filled,)]


@pytest.mark.long
def test_draft_plan_and_load_follow_each_other_on_the_command_line(dsn: str, tmp_path: Path):
    def onceload(*arguments: str, dsn: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "onceload", *arguments]
        return subprocess.run(
            command,
            cwd=tmp_path,
            env={"ONCELOAD_DSN": dsn},
            capture_output=True,
            text=True,
            check=True,
            timeout=PATIENCE_S,
        )

    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "a.csv").write_text("order_id,total\n1,9.99\n2,10.00\n")

    drafted = onceload("draft", "orders/*.csv", dsn="postgresql://nowhere.invalid/x")
    (tmp_path / "orders.yaml").write_text(drafted.stdout)
    planned = onceload("plan", "orders.yaml", "--json", dsn=dsn)
    loaded = onceload("load", "orders.yaml", "--json", dsn=dsn)

    assert drafted.stderr.splitlines()[-2:] == ["  onceload plan orders.yaml", "  onceload load orders.yaml"]
    assert [each["file"] for each in json.loads(planned.stdout)["to_read"]] == ["a.csv"]
    assert [json.loads(loaded.stdout)[name] for name in ("loaded", "quarantined")] == [2, 0]
