"""What a pipeline file says, and what is meant where it says nothing."""

import pickle

import pytest

from onceload.pipeline_file import PipelineFileRefused, find_pipelines, read_pipeline
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import ExitCode, NotFound
from onceload_core.pipeline import Guarantee, Pipeline, SnapshotPolicy
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    CsvOptions,
    Declared,
    Format,
    Identity,
    MessageId,
    MissingColumns,
    OnNewColumn,
    OnRewrite,
    Publish,
    QuarantineLimit,
    RecordProducer,
    Source,
    Target,
    UnknownFields,
    Write,
)
from tests.unit.pipeline_file.files import PLAIN, SAMPLES, WHOLE, plain, read


def test_everything_that_a_file_says_is_read(tmp_path):
    assert read(tmp_path, WHOLE, ds="2026-11-21", region="eu/north") == Declared(
        pipeline=Pipeline(
            name="events",
            guarantee=Guarantee.AT_LEAST_ONCE,
            producers_max=5,
            islands_max=6,
            forget_idle_after_s=86_400,
            message_keep_days=30,
            snapshot=SnapshotPolicy(every_commits=10, every_s=30, kept=3),
        ),
        source=Source(
            path="s3://landing/2026-11-21/eu/north/*.csv.gz",
            root="s3://landing",
            pattern="s3://landing/{{ ds }}/{{region}}/*.csv.gz",
            format=Format.CSV,
            csv=CsvOptions(
                header=False,
                delimiter="\t",
                quote="'",
                escape="\\",
                null="NA",
                multiline=True,
                missing_columns=MissingColumns.IGNORE,
            ),
            identity=Identity.CONTENT,
            sealed_after_s=600,
            chunk_bytes=32_000_000,
            record_bytes_max=2**20,
        ),
        columns=(
            parse_column("id", "text not null"),
            parse_column("device", "text"),
            parse_column("seq", "bigint"),
            parse_column("gone", "boolean"),
        ),
        unknown_fields=UnknownFields.FAIL,
        on_new_column=OnNewColumn.ADD,
        producer=RecordProducer(name="device", sequence="seq", order=Order.ORDERED),
        message_id=MessageId(columns=("id", "device"), keep_days=30),
        transform="SELECT * FROM records",
        target=Target(
            schema="my schema", table='a "t" b', write=Write.MERGE, key=("id",), deleted="gone", lineage=False
        ),
        publish=Publish.STAGED,
        delivery=Rules(mode=Mode.SESSION, sessions=3, ack_deadline_s=600, deliveries_max=7, open_max=9),
        on_rewrite=OnRewrite.NEW_GENERATION,
        quarantine_limit=QuarantineLimit(share=0.001),
        schedule="*/5 * * * *",
    )


def test_a_missing_key_has_its_default(tmp_path):
    assert read(tmp_path, PLAIN) == Declared(
        pipeline=Pipeline(name="events"),
        source=Source(path="in/*.csv", format=Format.CSV),
        columns=tuple(
            parse_column(name, declared)
            for name, declared in {
                "id": "bigint not null",
                "device": "text",
                "seq": "bigint",
                "gone": "boolean",
                "amount": "numeric(12,2)",
            }.items()
        ),
        target=Target(schema="public", table="events"),
    )


@pytest.mark.parametrize(
    "nothing",
    ["transform: null", "schedule: ~", "guarantee:", "producer:", "message_id: null", "quality: {}"],
)
def test_nothing_is_the_same_as_leaving_the_key_out(tmp_path, nothing):
    assert read(tmp_path, plain(added=nothing)) == read(tmp_path, PLAIN)


def test_null_and_no_and_on_are_keys_as_they_are_written(tmp_path):
    declared = read(tmp_path, plain(("header: true", "null: NA"), ("device: text", "no: text\n  on: date")))

    assert declared.source.csv.null == "NA"
    assert [column.name for column in declared.columns[1:3]] == ["no", "on"]


def test_anchors_and_aliases_are_read(tmp_path):
    declared = read(tmp_path, plain(("device: text", "device: &word text\n  place: *word")))

    assert [str(column.type) for column in declared.columns[1:3]] == ["text", "text"]


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path):
    assert read(tmp_path, b"\xef\xbb\xbf" + PLAIN.encode()) == read(tmp_path, PLAIN)


@pytest.mark.parametrize(
    ("written", "expected"),
    [("events", ("public", "events")), ("a.b", ("a", "b")), ("'\"A\"'", ("public", "A")), ("été.b_1", ("été", "b_1"))],
)
def test_a_table_has_a_schema(tmp_path, written, expected):
    target = read(tmp_path, plain(("public.events", written))).target

    assert (target.schema, target.table) == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [("1", 1), ("1B", 1), ("64kb", 64_000), ("1MiB", 2**20), ("1GiB", 2**30), ('"4096 B"', 4096)],
)
def test_sizes_are_bytes(tmp_path, written, expected):
    content = plain(("format: csv", f"format: csv\n  chunk_bytes: {written}"))

    assert read(tmp_path, content).source.chunk_bytes == expected


@pytest.mark.parametrize(("written", "expected"), [("never", None), ("always", 0), ("0s", 0), ("2h", 7200)])
def test_a_file_is_sealed_after_a_time(tmp_path, written, expected):
    content = plain(("format: csv", f"format: csv\n  sealed: {written}"))

    assert read(tmp_path, content).source.sealed_after_s == expected


@pytest.mark.parametrize(
    ("written", "expected"),
    [("0", QuarantineLimit(records=0)), ("5", QuarantineLimit(records=5)), ("100%", QuarantineLimit(share=1))],
)
def test_the_quarantine_limit_is_a_share_or_a_number(tmp_path, written, expected):
    content = plain(added=f"quality: {{quarantined_max: {written}}}")

    assert read(tmp_path, content).quarantine_limit == expected


@pytest.mark.parametrize(
    "written",
    [
        "0 6 * * 1-5",
        "0,30 */2 1 JAN mon-fri",
        "0 6 L * *",
        "0 6 * * mon#1",
        "0 0 29 2 *",
        f"{','.join(map(str, range(60)))} * * * *",
        "@hourly",
        "on_arrival",
    ],
)
def test_a_schedule_is_kept_as_it_is(tmp_path, written):
    assert read(tmp_path, plain(added=f'schedule: "{written}"')).schedule == written


@pytest.mark.parametrize(
    "allowed",
    [
        plain(("header: true", "header: false")),
        plain(added="message_id: {columns: [id], keep: 48h}\nguarantee: at_least_once"),
        plain(("format: csv\n  options:\n    header: true", "format: parquet"), added="unknown_fields: add"),
        plain(("format: csv", "format: csv\n  identity: content"), added="producer: {name: device, sequence: seq}"),
        plain(("write: append", "write: merge\n  key: [made_up]\n  deleted: also"), added="transform: SELECT 1"),
        plain(
            ("write: append", "write: merge\n  key: [id]\n  lineage: false"),
            added="producer: {name: device, sequence: seq, order: ordered}",
        ),
        plain(("header: true", "quote: ''")),
    ],
)
def test_an_apparent_contradiction_is_accepted(tmp_path, allowed):
    read(tmp_path, allowed)


def test_a_refusal_survives_pickling_and_says_that_nothing_was_started(tmp_path):
    with pytest.raises(PipelineFileRefused) as refused:
        read(tmp_path, plain(("format: csv", "format: xml")))

    back = pickle.loads(pickle.dumps(refused.value))
    assert str(back) == str(refused.value)
    assert back.problems == (
        f"{tmp_path}/p.yaml:4: source.format: expected one of jsonl, csv, fixed, json, parquet, orc, avro, found 'xml'",
    )
    assert str(back).splitlines() == [
        *back.problems,
        f"{tmp_path}/p.yaml: nothing was started. Fix it, and retry",
    ]
    assert back.exit_code is ExitCode.WRONG_USE


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_the_samples_are_read_and_name_files_that_are_there(path, monkeypatch):
    monkeypatch.chdir(path.parents[1])
    declared = read_pipeline(path)

    assert declared.name == path.stem
    # Those of the readings are written by `make run`, and belong to no checkout.
    expected = 0 if declared.source.path.startswith(".onceload/") else 2
    there = [each for each in path.parents[1].glob(declared.source.path) if ".onceload" not in each.parts]
    assert len(there) == expected


def test_the_pipelines_of_a_folder_come_in_order(tmp_path):
    for name in ("b.yml", "a.yaml", ".hidden.yaml", "notes.md"):
        (tmp_path / name).touch()
    (tmp_path / "folder.yaml").mkdir()

    assert find_pipelines(tmp_path) == [tmp_path / "a.yaml", tmp_path / "b.yml"]


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(NotFound, match="folder of pipeline files not found"):
        find_pipelines(tmp_path / "nowhere")
