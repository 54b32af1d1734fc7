"""Drafts of files whose values have types: from their schema, and without an end of the process."""

import io
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from onceload_jobs.formats.chunks import FileRefused
from onceload_jobs.pipeline.declared import Format
from tests.typed_files import avro_of, content_of
from tests.unit.draft.drafts import columns_of, draft_of
from tests.waiting import PATIENCE_S

TYPES = {"id": pa.int64(), "cents": pa.decimal128(12, 2), "at": pa.timestamp("us", "UTC"), "more": pa.list_(pa.int64())}


@pytest.mark.parametrize("of_format", [Format.PARQUET, Format.ORC, Format.AVRO])
def test_the_schema_of_a_file_without_rows_is_enough(tmp_path, of_format):
    content = content_of(pa.schema(TYPES.items()).empty_table(), of_format)
    path = tmp_path / f"a.{of_format}"

    assert columns_of(path, content) == {
        "id": "bigint", "cents": "numeric(12,2)", "at": "timestamptz", "more": "jsonb",
    }  # fmt: skip
    assert "no file that was read has a row: each type is from the schema" in draft_of(path, content)


def test_times_with_nanoseconds_are_noted(tmp_path):
    numbers = {"a": [1_000, 1_001], "b": [1_000, 2_000], "c": [1_500, None]}
    types = {"a": pa.timestamp("ns"), "b": pa.timestamp("ns"), "c": pa.time64("ns")}
    sink = io.BytesIO()
    pq.write_table(pa.table({name: pa.array(numbers[name], pa.int64()).cast(types[name]) for name in types}), sink)

    lines = draft_of(tmp_path / "a.parquet", sink.getvalue()).splitlines()

    note = "  # some times have nanoseconds, which are rounded to microseconds"
    assert [lines[lines.index(f"  {each}") - 1] == note for each in ("a: timestamp", "b: timestamp", "c: time")] == [
        True, False, True,
    ]  # fmt: skip


def record_of(name: str, *fields: tuple[str, object]) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": each, "type": of_type} for each, of_type in fields]}


def test_records_without_a_field_are_values_of_jsonb(tmp_path):
    schema = record_of("row", ("id", "long"), ("a", ["null", record_of("nothing")]))

    assert columns_of(tmp_path / "a.avro", avro_of(schema, [{"id": 1, "a": {}}, {"id": 2, "a": None}])) == {
        "id": "bigint not null", "a": "jsonb",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "records", "code"),
    [
        (record_of("row"), [{}, {}], 2),
        (record_of("row", ("a", record_of("inner", ("x", ["null", "string", "long"])))), [{"a": {"x": "y"}}], 0),
    ],
    ids=["no field", "union"],
)
def test_no_avro_file_ends_the_process(tmp_path, schema, records, code):
    path = tmp_path / "a.avro"
    path.write_bytes(avro_of(schema, records))

    found = subprocess.run(
        [sys.executable, "-m", "onceload", "draft", str(path)],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert (found.returncode, "Traceback" in found.stderr) == (code, False)


def test_a_file_of_values_that_are_nested_too_deeply_is_named(tmp_path):
    of_type: object = "long"
    value: object = 1
    for _ in range(300):
        of_type, value = {"type": "array", "items": of_type}, [value]

    with pytest.raises(FileRefused, match=r"a\.avro was refused: it uses values that are nested too deeply"):
        draft_of(tmp_path / "a.avro", avro_of(record_of("row", ("a", of_type)), [{"a": value}]))
