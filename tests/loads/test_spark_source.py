"""The records of a source in Spark: the same rows as a load makes of the same files."""

import base64
import gzip
import json
import pickle
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyspark.cloudpickle import dumps
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from onceload.pipeline_file import read_pipeline
from onceload.spark import OnceloadSource
from onceload_core.declaration import EditRefused
from onceload_core.errors import DatabaseUnreachable, SettingRefused, TooManyQuarantined
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.pipeline.declared import Publish
from onceload_jobs.work.failures import QueryOutdated
from onceload_jobs.work.spark.source import SourceReader
from tests.loads.conftest import COLUMNS, Loads, line
from tests.ports import free_port

#: Every type, as Spark and the database show it.
TYPES = {
    "id": "bigint not null",
    "flag": "boolean",
    "small": "smallint",
    "whole": "integer",
    "share": "real",
    "ratio": "double precision",
    "amount": "numeric(38,10)",
    "day": "date",
    "clock": "time",
    "at": "timestamp",
    "seen": "timestamptz",
    "key": "uuid",
    "detail": "jsonb",
    "raw": "bytea",
    "code": "varchar(5)",
    "tags": "text[]",
    "keys": "uuid[]",
    "amounts": "numeric(6,2)[]",
}

#: How SQL reads types that psycopg would return as text, and the types that Spark has as texts.
_ASKED = {"key": "key::text", "keys": "keys::text[]", "raw": "encode(raw, 'hex')", "clock": "clock::text"}


@pytest.fixture
def publish() -> Publish:
    return Publish.STAGED


@pytest.fixture
def spark(tasks: Any) -> SparkSession:
    """The session of this process, with the source."""
    session: SparkSession = tasks.session
    session.dataSource.register(OnceloadSource)
    return session


def declare(loads: Loads, tmp_path: Path, **changes: Any) -> Path:
    """A pipeline file, which the loads of the test follow too."""
    file = tmp_path / "events.yaml"
    described = {
        "pipeline": "events",
        "source": {"path": str(loads.folder / "**" / "*.jsonl*"), "format": "jsonl", "chunk_bytes": "4kB"},
        "columns": COLUMNS,
        "target": {"table": "public.target"},
    }
    file.write_text(yaml.safe_dump({**described, **changes}, sort_keys=False))
    loads.declared = read_pipeline(file)
    return file


@pytest.fixture
def file(loads: Loads, tmp_path: Path) -> Path:
    return declare(loads, tmp_path)


def read(spark: SparkSession, file: Path, **options: Any) -> DataFrame:
    return spark.read.format("onceload").options(pipeline=str(file), **options).load()


def in_spark(frame: DataFrame) -> list[dict[str, Any]]:
    """The rows in their order; values of Arrow keep time zones."""
    return sorted(frame.toArrow().to_pylist(), key=lambda row: (row["_producer"], row["_sequence"]))


def in_target(loads: Loads, *columns: str) -> list[dict[str, Any]]:
    """The rows of the table, with the name of their file."""
    asked = ", ".join(_ASKED.get(name, name) for name in columns)
    found = loads.ask(
        f"SELECT {asked}, _producer_id, _sequence, producer.name FROM target"
        " JOIN onceload.producer ON producer_id = _producer_id ORDER BY producer.name, _sequence"
    )
    return [dict(zip([*columns, "_producer_id", "_sequence", "_producer"], row, strict=True)) for row in found]


def reader_of(file: Path, **options: str) -> SourceReader:
    source = OnceloadSource({"pipeline": str(file), **options})
    return source.reader(source.schema())


def records_of(reader: SourceReader) -> list[int]:
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return [number for batch in batches for number in batch.column("id").to_pylist()]


def of_all_types(number: int) -> dict[str, Any]:
    if number % 7 == 0:
        return {"id": number}
    return {
        "id": number,
        "flag": number % 2 == 0,
        "small": -number,
        "whole": 2**31 - 1 - number,
        "share": number / 8,
        "ratio": number / 3,
        "amount": f"{number}.{number:010}",
        "day": f"20{number % 90 + 10}-02-03",
        "clock": f"01:02:03.{number:06}",
        "at": f"2026-11-20T01:02:03.{number:06}",
        "seen": f"2026-11-20T01:02:03.{number:06}+02:00",
        "key": str(UUID(int=number)),
        "detail": {"n": number, "ü": [None, "🐍"]},
        "raw": base64.b64encode(bytes([number % 256])).decode(),
        "code": f"ü{number}",
        "tags": ["a b", None, str(number)],
        "keys": [str(UUID(int=number)), None],
        "amounts": [f"{number}.25"],
    }


def as_stored(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Spark with the values that the database returns: a jsonb, a time and bytes have another form."""
    detail, raw, clock = row["detail"], row["raw"], row["clock"]
    return {
        **row,
        "detail": None if detail is None else json.loads(detail),
        "raw": None if raw is None else raw.hex(),
        "clock": None if clock is None else clock.rstrip("0").rstrip("."),
    }


def test_the_rows_are_those_that_a_load_writes(loads, tmp_path, spark):
    file = declare(loads, tmp_path, columns=TYPES)
    lines = [json.dumps(of_all_types(number)) + "\n" for number in range(1, 200)]
    loads.write("a.jsonl", "".join(lines[:100]) + '{"id": "bad"}\n' + lines[100] + '{"id": 1')
    loads.write("b/c.jsonl.gz", gzip.compress("".join(lines[101:]).encode()))
    loads.write("empty.jsonl", "")
    report = loads.load()

    records = read(spark, file, dsn=loads.dsn)

    assert (report.loaded, report.quarantined) == (199, 1)
    assert list(map(as_stored, in_spark(records))) == in_target(loads, *TYPES)
    assert records.selectExpr("spark_partition_id() AS partition").distinct().count() > 3


_CSV = 'id;amount;note\n1;1.50;x\n2;;\nx;1;bad\n3;2.00;"a;b"\n'
_ROWS = {"id": [1, 2, None], "amount": ["1.50", "2.25", "3"], "note": ["x", None, "bad"]}


@pytest.mark.parametrize("of_format", ["csv", "parquet"])
def test_other_formats_are_read_by_the_same_readers(loads, tmp_path, spark, of_format):
    options = {"options": {"delimiter": ";"}} if of_format == "csv" else {}
    file = declare(loads, tmp_path, source={"path": str(loads.folder / "*"), "format": of_format, **options})
    if of_format == "csv":
        loads.write("a", _CSV)
    else:
        pq.write_table(pa.table(_ROWS), loads.folder / "a", row_group_size=1)
    report = loads.load()

    assert in_spark(read(spark, file, dsn=loads.dsn)) == in_target(loads, *COLUMNS)
    assert report.quarantined == 1


def test_without_a_database_rows_have_the_name_of_their_file_and_no_id(loads, file, spark):
    loads.write("0.jsonl", "{bad\n")
    loads.write("a.jsonl", line(1) + line(2))
    loads.write("b/a.jsonl", line(3))

    rows = [(row["id"], row["_producer"], row["_producer_id"]) for row in in_spark(read(spark, file))]

    assert rows == [(1, "a.jsonl", None), (2, "a.jsonl", None), (3, "b/a.jsonl", None)]


def test_new_rows_are_those_that_the_next_load_adds(loads, file, spark):
    loads.write("a.jsonl", "".join(map(line, range(300))))
    loads.write("b.jsonl", line(300))
    loads.load()
    with (loads.folder / "a.jsonl").open("a") as growing:
        growing.writelines(map(line, range(301, 600)))
    loads.write("c.jsonl", line(600))
    before = loads.rows()

    new = in_spark(read(spark, file, new=True, dsn=loads.dsn))
    loads.load()

    assert [row["id"] for row in new] == [number for number in loads.rows() if number not in set(before)]
    ids = dict(loads.ask("SELECT name, producer_id FROM onceload.producer"))
    assert {(row["_producer"], row["_producer_id"]) for row in new} == {("a.jsonl", ids["a.jsonl"]), ("c.jsonl", None)}
    assert in_spark(read(spark, file, new=True, dsn=loads.dsn)) == []


def test_a_generation_that_is_not_loaded_yet_has_no_id(loads, tmp_path, spark):
    file = declare(loads, tmp_path, on_rewrite="new_generation")
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("a.jsonl", line(2) + line(3))

    new = in_spark(read(spark, file, new=True, dsn=loads.dsn))

    assert [(row["id"], row["_producer_id"]) for row in new] == [(2, None), (3, None)]


def test_one_content_under_several_names_is_read_once(loads, tmp_path, spark):
    source = {"path": str(loads.folder / "*.jsonl"), "format": "jsonl", "identity": "content"}
    file = declare(loads, tmp_path, source=source)
    loads.write("a.jsonl", line(1) + line(2))
    loads.write("copy.jsonl", line(1) + line(2))

    assert [row["id"] for row in in_spark(read(spark, file))] == [1, 2]


def test_values_for_placeholders_and_a_pattern_choose_the_files(loads, tmp_path, spark):
    source = {"path": str(loads.folder / "{{ ds }}" / "{{ Region }}" / "*.jsonl"), "format": "jsonl"}
    for number, name in enumerate(["1/north east/a.jsonl", "1/north east/b.jsonl", "2/north east/a.jsonl"]):
        loads.write(name, line(number))
    file = tmp_path / "events.yaml"
    target = {"table": "public.target"}
    file.write_text(yaml.safe_dump({"pipeline": "events", "source": source, "columns": COLUMNS, "target": target}))
    values = "ds=1 'Region=north east'"

    assert [row["id"] for row in in_spark(read(spark, file, set=values))] == [0, 1]
    assert [row["_producer"] for row in in_spark(read(spark, file, set=values, files="*/b*"))] == [
        "1/north east/b.jsonl"
    ]


def test_a_source_without_records_has_its_columns_and_no_rows(loads, file, spark):
    records = read(spark, file)

    assert (records.columns, records.count()) == ([*COLUMNS, "_producer_id", "_sequence", "_producer"], 0)


def test_columns_for_undeclared_fields_are_left_out(loads, tmp_path, spark):
    file = declare(loads, tmp_path, unknown_fields="add")
    loads.write("a.jsonl", json.dumps({"id": 1, "surprise": True}) + "\n" + line(2))

    records = in_spark(read(spark, file))

    assert [row["id"] for row in records] == [1, 2]
    assert list(records[0]) == [*COLUMNS, "_producer_id", "_sequence", "_producer"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_a_file_that_was_rewritten_after_the_plan_is_refused(loads, file, name):
    pack = gzip.compress if name.endswith(".gz") else bytes
    loads.write(name, pack("".join(map(line, range(300))).encode()))
    reader = reader_of(file)
    loads.write(name, pack("".join(map(line, range(1000, 1300))).encode()))

    with pytest.raises(QueryOutdated, match=f"pipeline events: {name} was rewritten after this query"):
        records_of(reader)


def test_records_that_are_appended_after_the_plan_are_not_read(loads, file):
    loads.write("a.jsonl", line(1))
    reader = reader_of(file)
    with (loads.folder / "a.jsonl").open("a") as growing:
        growing.write(line(2))

    assert records_of(reader) == [1]


def test_a_file_that_is_gone_after_the_plan_ends_the_query(loads, file):
    path = loads.write("a.jsonl", line(1))
    reader = reader_of(file)
    path.unlink()

    with pytest.raises(Unreadable, match="it is gone"):
        records_of(reader)


def test_what_a_load_leaves_out_is_left_out_and_logged(loads, file, monkeypatch, capsys):
    monkeypatch.setenv("ONCELOAD_LOG_FORMAT", "json")
    loads.write("a.jsonl", line(1) + "{bad\n" + '{"id": "x"}\n')
    loads.write("b.jsonl", "{bad\n" * 30)
    loads.write("c.jsonl", gzip.compress(line(2).encode()))

    records = records_of(reader_of(file))
    logged = list(map(json.loads, capsys.readouterr().err.splitlines()))
    report = loads.load()

    assert records == loads.rows() == [1]
    left_out = {each["file"] for each in logged if each["event"] == "file_left_out"}
    assert left_out == {note.name for note in report.notes} == {"b.jsonl", "c.jsonl"}
    bad = [(each["file"], each["records"]) for each in logged if each["event"] == "bad_records_left_out"]
    assert bad == [("a.jsonl", report.quarantined)] == [("a.jsonl", 2)]


def test_more_bad_records_than_the_pipeline_allows_end_the_query(loads, tmp_path):
    file = declare(loads, tmp_path, quality={"quarantined_max": 1})
    loads.write("a.jsonl", line(1) + "{bad\n" * 2)

    with pytest.raises(TooManyQuarantined):
        records_of(reader_of(file))


def test_the_address_of_the_database_is_not_sent_to_tasks(loads, file, monkeypatch):
    loads.write("a.jsonl", "".join(map(line, range(300))))
    monkeypatch.setenv("ONCELOAD_DSN", loads.dsn)
    source = OnceloadSource({"pipeline": str(file)})
    reader = source.reader(source.schema())
    database = urlsplit(loads.dsn).path.encode()

    sent = [dumps(each) for each in (source, reader, *reader.partitions())]

    assert database in dumps(loads.dsn)
    assert not any(database in each for each in sent)
    # A task gets its own chunks only.
    assert len(reader.partitions()) > 1
    assert not hasattr(pickle.loads(sent[1]), "_bundles")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"pipline": "x.yaml"}, "option pipline"),
        ({}, "option pipeline"),
        ({"pipeline": "x.yaml", "new": "yes"}, "option new: found 'yes'"),
        ({"pipeline": "x.yaml", "new": "true"}, "option new: found no database"),
        ({"pipeline": "x.yaml", "set": "ds"}, "option set: found 'ds'"),
        ({"pipeline": "x.yaml", "dsn": "postgresql://u:secret@host/db"}, "option dsn"),
        ({"pipeline": "x.yaml", "dsn": "postgresql://u@host/db?password=secret"}, "option dsn"),
        ({"pipeline": "x.yaml", "dsn": "host=x password=secret"}, "dsn"),
    ],
)
def test_options_that_mean_nothing_are_refused_without_their_secrets(options, expected):
    with pytest.raises(SettingRefused, match=expected) as refused:
        OnceloadSource(options).schema()

    assert "secret" not in str(refused.value)


def test_a_column_with_the_name_of_ours_is_refused(loads, tmp_path):
    file = declare(loads, tmp_path, columns={**COLUMNS, "_producer": "text"})

    with pytest.raises(SettingRefused, match="column _producer"):
        OnceloadSource({"pipeline": str(file)}).schema()


def test_a_database_that_does_not_answer_ends_the_query(loads, file):
    loads.write("a.jsonl", line(1))

    with pytest.raises(DatabaseUnreachable):
        reader_of(file, dsn=f"postgresql://nobody@localhost:{free_port()}/none")


def test_an_edit_that_a_load_would_refuse_is_refused(loads, tmp_path):
    loads.write("a.jsonl", line(1))
    declare(loads, tmp_path)
    loads.load()
    source = {"path": str(loads.folder / "*.jsonl"), "format": "csv"}
    file = declare(loads, tmp_path, source=source)

    with pytest.raises(EditRefused):
        reader_of(file, dsn=loads.dsn)


def test_an_error_of_the_plan_reaches_the_program(tmp_path, spark):
    with pytest.raises(AnalysisException, match=f"{tmp_path}/missing.yaml:1: the file cannot be read"):
        read(spark, tmp_path / "missing.yaml")
