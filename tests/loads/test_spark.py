"""The same promises with Spark's own tasks, and what only Spark can do: transforms."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import TaskContext
from pyspark.errors import PySparkException

from onceload_core.errors import CommitOutcomeUnknown, SettingRefused, TooManyQuarantined
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.batch.folders import MARK
from onceload_jobs.batch.job import TransformRefused
from onceload_jobs.batch.piece import Block, Piece
from onceload_jobs.batch.stage_folder import RowsLost
from onceload_jobs.executor.spark import message_of, sql_state_of
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import Engine, LoadSettings, new_batch
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import OnRewrite, Publish, QuarantineLimit, RecordProducer, Target, Write
from onceload_jobs.plan.choice import Choice
from onceload_jobs.publish.replaced_rows import ReplacedRowsDiffer
from onceload_jobs.work.failures import TasksFailed
from onceload_jobs.work.spark.classic import ClassicSpark
from onceload_jobs.work.spark.spark import MadePieces, Spark, records
from tests.loads.conftest import Loads, line

STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])
NO_RECORD = "CAST(NULL AS bigint) AS _producer_id, CAST(NULL AS bigint) AS _sequence"


def load_by_spark(loads: Loads, tasks: Spark, **changes: Any) -> Report:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    return load(replace(loads.declared, **changes), settings, batch=Batch(new_batch()), executor=tasks)


def test_a_spark_that_stops_right_after_its_start_is_reported(monkeypatch):
    """As it may if no master answers."""

    class Stopped:
        def __getattr__(self, name: str) -> Any:
            if name == "range":
                raise Py4JError("Cannot call methods on a stopped SparkContext")
            if name == "defaultParallelism":
                raise Py4JJavaError("", SimpleNamespace(_target_id="", _gateway_client=self))
            return self

        def __call__(self, *_: Any) -> Any:
            return self

    context: Any = Stopped()
    monkeypatch.setattr("onceload_jobs.work.spark.classic.SparkSession", context)

    with pytest.raises(TasksFailed, match=r"pipeline events.*The master of a cluster might be unreachable"):
        _ = ClassicSpark(context, "events", batch="").slots


NEW_WORKER = """
import sys

from onceload_jobs.work.spark.classic import start_spark

context = start_spark("events", None, {"spark.python.daemon.module": "onceload_jobs.work.spark.daemon"}, tries=0)
needed = ["onceload_jobs.work.session", "pandas", "pyspark.sql", "psycopg2"]
print(context.parallelize([0], 1).map(lambda _: [name for name in needed if name not in sys.modules]).collect())
context.stop()
"""


@pytest.mark.long
def test_a_new_worker_of_our_daemon_has_its_large_imports():
    """Otherwise a load after an idle minute waits for imports, because Spark has ended its workers."""
    done = subprocess.run([sys.executable, "-c", NEW_WORKER], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines() == ["[[]]"]


def test_a_spark_of_the_program_is_used_and_not_stopped(loads, tasks):
    loads.write("a.jsonl", line(1))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), engine=Engine.SPARK)

    report = load(loads.declared, settings, batch=new_batch())

    assert (report.engine, report.loaded, tasks.slots) == (Engine.SPARK, 1, 2)


@STAGED
@pytest.mark.parametrize(
    ("changes", "refused"),
    [
        ({"master": "spark://elsewhere:7077"}, "local\\[2,4\\] that runs in this process"),
        ({"spark_options": {"spark.task.cpus": "2"}}, "no spark_options"),
    ],
)
def test_a_spark_of_the_program_that_is_not_what_was_asked_for_is_refused(loads, tasks, changes, refused):
    loads.write("a.jsonl", line(1))
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), engine=Engine.SPARK, **changes)

    with pytest.raises(SettingRefused, match=refused):
        load(loads.declared, settings, batch=new_batch())

    assert (loads.rows_or_none(), tasks.slots) == ([], 2)


class _WithoutJvm(PySparkException):
    """An error of a JVM that is gone since: it cannot be asked for its text or its state."""

    def __str__(self) -> str:
        raise Py4JNetworkError("Answer from Java side is empty")

    def getSqlState(self) -> str:  # noqa: N802 - a method of Spark.
        raise ConnectionRefusedError


def test_an_error_whose_jvm_is_gone_is_named_by_its_kind():
    error = _WithoutJvm("tasks failed")

    assert message_of(error) == "_WithoutJvm"
    assert sql_state_of(error) == ""


def test_spark_s_tasks_load_each_record_once(loads, tasks):
    source = replace(loads.declared.source, chunk_bytes=10_000)
    for name in "abc":
        loads.write(f"{name}.jsonl", "".join(line(number) for number in range(1000)) + "{bad\n")

    report = load_by_spark(loads, tasks, source=source)
    again = load_by_spark(loads, tasks, source=source)

    assert (report.loaded, report.quarantined, again.loaded) == (3000, 3, 0)
    assert loads.rows() == sorted(list(range(1000)) * 3)


@STAGED
def test_a_transform_that_keeps_records_keeps_their_lineage(loads, tasks):
    loads.write("a.jsonl", "".join(line(number, f"{number}.50") for number in range(100)))
    transform = "SELECT *, amount * 2 AS twice FROM records WHERE id >= 90"

    report = load_by_spark(loads, tasks, transform=transform)

    assert (report.loaded, report.filtered) == (10, 90)
    assert loads.ask("SELECT sum(rows) FROM onceload.ledger_span") == [(10,)]
    rows = loads.ask("SELECT id, CAST(twice AS text), _sequence IS NOT NULL FROM target ORDER BY id")
    assert rows[0] == (90, "181.00", True)
    assert len(rows) == 10
    assert load_by_spark(loads, tasks, transform=transform).loaded == 0


@STAGED
@pytest.mark.parametrize(
    ("transform", "rows", "filtered"),
    [
        ("SELECT * FROM records UNION ALL SELECT * FROM records", [0, 0, 1, 1, 2, 2], 0),
        ("SELECT * FROM records WHERE id > 0 UNION ALL SELECT * FROM records WHERE id > 0", [1, 1, 2, 2], 1),
        ("SELECT *, explode(array(1, 2)) AS n FROM records WHERE id <> 1", [0, 0, 2, 2], 1),
        # The rows of a record are in the files of two tasks.
        (
            "SELECT /*+ REPARTITION(2) */ *, explode(array(1, 2, 3, 4, 5)) AS n FROM records WHERE id <> 1",
            [0, 0, 0, 0, 0, 2, 2, 2, 2, 2],
            1,
        ),
        ("SELECT a.* FROM records AS a JOIN records AS b ON a.id = b.id", [0, 1, 2], 0),
        ("SELECT a.* FROM records AS a LEFT JOIN records AS b ON false", [0, 1, 2], 0),
        ("SELECT id FROM records WHERE id > 0", [1, 2], 0),
        ("SELECT * FROM records WHERE id < 0", [], 3),
        (f"SELECT id, {NO_RECORD} FROM records WHERE id > 0", [1, 2], 0),
        (
            f"SELECT * FROM records WHERE id = 0 UNION ALL SELECT id, amount, note, {NO_RECORD} FROM records",
            [0, 0, 1, 2],
            0,
        ),
        ("SELECT id FROM records WHERE id < 0", [], 3),
    ],
)
def test_a_transform_may_read_its_records_several_times_or_make_nothing_of_them(
    loads, tasks, transform, rows, filtered
):
    for number in range(3):
        loads.write(f"{number}.jsonl", line(number))

    report = load_by_spark(loads, tasks, transform=transform)

    assert loads.rows() == rows
    assert (report.loaded, report.filtered) == (len(rows), filtered)
    assert load_by_spark(loads, tasks, transform=transform).records == 0


@STAGED
@pytest.mark.parametrize(
    ("transform", "loaded"),
    [
        ("SELECT * FROM records LIMIT 1", 1),
        # Spark leaves out a join that can make no row, and reads nothing.
        ("SELECT a.* FROM records AS a JOIN records AS b ON false", 0),
    ],
)
def test_records_that_a_transform_leaves_out_count_as_filtered(loads, tasks, transform, loaded):
    """They are read and proven before, so it does not matter whether the query reads them."""
    loads.write("a.jsonl", line(1) + line(2))

    report = load_by_spark(loads, tasks, transform=transform)

    assert (report.loaded, report.filtered) == (loaded, 2 - loaded)
    assert load_by_spark(loads, tasks, transform=transform).records == 0


@STAGED
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


def test_an_error_that_a_retry_does_not_help_is_raised_as_itself(loads, tasks):
    loads.write("a.jsonl", line(1) + "{bad\n{bad\n")

    with pytest.raises(TooManyQuarantined) as refused:
        load_by_spark(loads, tasks, quarantine_limit=QuarantineLimit(records=1))

    assert (refused.value.quarantined, refused.value.records) == (2, 3)


@STAGED
def test_rows_of_a_transform_that_do_not_tell_their_file_are_not_replaced(loads, tasks):
    loads.write("a.jsonl", line(1) + line(2))
    declared = replace(loads.declared, transform="SELECT id, amount, note FROM records")
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    load(declared, settings, batch=new_batch(), executor=tasks)

    with pytest.raises(SettingRefused, match="a transform without them"):
        load(declared, replace(settings, choice=Choice(replaces=True)), batch=new_batch(), executor=tasks)

    assert loads.rows() == [1, 2]


@STAGED
@pytest.mark.parametrize("later", [None, "SELECT id + 10 AS id, amount, note, _producer_id, _sequence FROM records"])
def test_rows_that_an_earlier_transform_left_without_their_file_are_not_loaded_twice(loads, tasks, later):
    loads.write("a.jsonl", line(1) + line(2))
    load_by_spark(loads, tasks, transform="SELECT id, amount, note FROM records")
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), choice=Choice(replaces=True))

    with pytest.raises(ReplacedRowsDiffer, match=r"'a\.jsonl' \(2 rows .* have no lineage, so their file is unknown"):
        load(replace(loads.declared, transform=later), settings, batch=new_batch(), executor=tasks)

    assert loads.rows() == [1, 2]


@STAGED
@pytest.mark.long
def test_a_transform_whose_rows_tell_their_file_replaces_as_many_as_it_made(loads, tasks):
    loads.write("a.jsonl", line(1) + line(2) + line(3))
    transform = "SELECT id, amount, note, _producer_id, _sequence FROM records WHERE id > 1"
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), choice=Choice(replaces=True))
    load_by_spark(loads, tasks, transform=transform)

    load(replace(loads.declared, transform=transform), settings, batch=new_batch(), executor=tasks)

    assert loads.rows() == [2, 3]


@STAGED
def test_a_transform_does_not_hide_what_is_wrong_with_its_records(loads, tasks):
    loads.write("a.jsonl", line(1) + "{bad\n{bad\n")

    with pytest.raises(TooManyQuarantined):
        load_by_spark(loads, tasks, transform="SELECT * FROM records", quarantine_limit=QuarantineLimit(records=1))


@STAGED
def test_a_task_that_fails_as_often_as_it_is_tried_is_one_sentence(loads, tasks, monkeypatch):
    monkeypatch.setattr("onceload_jobs.work.spark.spark._make", _fails)
    loads.write("a.jsonl", line(1))

    with pytest.raises(TasksFailed) as failed:
        load_by_spark(loads, tasks, transform="SELECT * FROM records")

    reason = f"{CommitOutcomeUnknown.__module__}.CommitOutcomeUnknown: {_UNKNOWN}"
    assert failed.value.reason == f"Spark did not run all tasks: {reason}"
    assert loads.rows() == []


_UNKNOWN = CommitOutcomeUnknown("events", "b", "no answer")


def _fails(*_: object) -> None:
    raise _UNKNOWN


@STAGED
@pytest.mark.parametrize(
    ("changes", "refusal"),
    [
        ({"transform": "SELEC id FROM records"}, "transform: .*Syntax error at or near 'SELEC'"),
        ({"transform": "SELECT ids FROM records"}, "transform: .*`ids` cannot be resolved"),
        ({"transform": "SELECT id, id FROM records"}, "transform: .*more than one column id"),
        (
            {"transform": "SELECT id, CAST(_producer_id AS INT) AS _producer_id, _sequence FROM records"},
            "transform: found _producer_id of another type",
        ),
        (
            {
                "transform": "SELECT id FROM records",
                "target": Target(schema="public", table="target", write=Write.MERGE, key=("amount",)),
            },
            "target.key: found amount, but the transform makes id.*Expected a column that the transform makes",
        ),
        (
            {
                "transform": "SELECT id, note FROM records",
                "target": Target(schema="public", table="target", write=Write.MERGE, key=("id",), deleted="note"),
            },
            "target.deleted: found note, which the transform makes as text.*Expected a boolean",
        ),
        (
            {"transform": "SELECT id FROM records", "on_rewrite": OnRewrite.REPLACE},
            "transform: found .*Expected _producer_id and _sequence among its columns",
        ),
    ],
)
def test_a_transform_that_cannot_be_meant_is_refused(loads, tasks, changes, refusal):
    loads.write("a.jsonl", line(1))

    with pytest.raises(SettingRefused, match=refusal):
        load_by_spark(loads, tasks, **changes)


@STAGED
@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("id, concat(note, 'bcdefgh') AS note", r"column note: 8 characters are too many for varchar\(5\)"),
        ("id, '1.239' AS amount", r"column amount: '1.239' is not a valid numeric\(12,2\): it would be rounded"),
        ("CAST(NULL AS bigint) AS id", "column id: null, but declared not null"),
        ("CAST(note AS integer) AS id", "CAST_INVALID_INPUT"),
    ],
)
def test_values_of_a_transform_are_neither_cut_nor_rounded(loads, tasks, made, reason):
    loads.write("a.jsonl", line(1))
    columns = tuple(replace(each, type=SHORT) if each.name == "note" else each for each in loads.declared.columns)

    with pytest.raises(TransformRefused, match=reason):
        load_by_spark(loads, tasks, columns=columns, transform=f"SELECT {made} FROM records")

    assert loads.rows() == []


SHORT = parse_column("note", "varchar(5)").type


@STAGED
@pytest.mark.parametrize(
    ("lineage", "why"),
    [
        ("_producer_id, CAST(NULL AS bigint) AS _sequence", "rows have _producer_id or _sequence without the other"),
        ("CAST(NULL AS bigint) AS _producer_id, _sequence", "rows have _producer_id or _sequence without the other"),
        ("_producer_id + 100000 AS _producer_id, _sequence", "rows name a file of which this batch has read nothing"),
    ],
)
def test_rows_of_a_transform_that_name_no_record_that_was_read_are_refused(loads, tasks, lineage, why):
    loads.write("a.jsonl", line(1))

    with pytest.raises(TransformRefused, match=why):
        load_by_spark(loads, tasks, transform=f"SELECT id, {lineage} FROM records")

    assert loads.rows() == []


@STAGED
def test_texts_that_a_transform_makes_are_read_as_those_of_files(loads, tasks):
    loads.write("a.jsonl", line(1))
    columns = tuple(
        parse_column(name, of_type)
        for name, of_type in {
            "id": "bigint", "amount": "numeric(12,2)", "note": "varchar(5)", "at": "timestamptz",
            "key": "uuid", "numbers": "integer[]", "keys": "uuid[]", "words": "jsonb",
        }.items()
    )  # fmt: skip
    uuid = "00000000-0000-0000-0000-000000000001"
    transform = f"""
        SELECT '7' AS id, '1.5' AS amount, note, '2026-11-21' AS at, '{uuid}' AS key, '{{1,NULL}}' AS numbers,
               array('{uuid}', NULL) AS keys, '{{"a": 1}}' AS words FROM records"""

    assert load_by_spark(loads, tasks, columns=columns, transform=transform).loaded == 1

    texts = ", ".join(f"CAST({column.name} AS text)" for column in columns)
    assert loads.ask(f"SELECT {texts} FROM target") == [
        ("7", "1.50", "x", "2026-11-21 00:00:00+00", uuid, "{1,NULL}", f"{{{uuid},NULL}}", '{"a": 1}')
    ]


@STAGED
@pytest.mark.parametrize(
    "transform", ["SELECT * FROM records", "SELECT note, count(*) AS n FROM records GROUP BY note"]
)
def test_a_file_that_a_transform_cannot_read_is_named(loads, tasks, transform):
    loads.write("a.jsonl", line(1))
    loads.write("b.jsonl.gz", b"\x1f\x8b this does not unpack")

    report = load_by_spark(loads, tasks, transform=transform)

    assert report.loaded == 1
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("b.jsonl.gz", True)]


@STAGED
@pytest.mark.parametrize("is_always", [False, True])
def test_rows_of_a_transform_that_are_lost_before_they_are_copied_are_made_again(loads, tasks, monkeypatch, is_always):
    """With the folder, their records are lost too. A folder that loses them each time ends the load."""
    loads.write("a.jsonl", "".join(map(line, range(100))))
    content, losses = MadePieces.content, count(1)

    def lose(pieces: MadePieces, piece: Piece, block: Block) -> Iterator[bytes]:
        if is_always or next(losses) == 1:
            for path in Path(pieces.folder.path).iterdir():
                # With its mark, workers go on writing there.
                if path.name != MARK:
                    path.unlink()
        return content(pieces, piece, block)

    monkeypatch.setattr(MadePieces, "content", lose)

    if is_always:
        with pytest.raises(RowsLost, match=r"Nothing of the batch was loaded\."):
            load_by_spark(loads, tasks, transform="SELECT * FROM records")
    else:
        assert load_by_spark(loads, tasks, transform="SELECT * FROM records").loaded == 100
    assert loads.rows_or_none() == ([] if is_always else list(range(100)))


# Tries that end in the middle, of a transform.

_MANY = 150_000


@STAGED
@pytest.mark.parametrize(
    "is_killed", [pytest.param(False, marks=pytest.mark.long, id="raised"), pytest.param(True, id="killed")]
)
@pytest.mark.parametrize(
    "transform",
    [pytest.param("SELECT * FROM records", marks=pytest.mark.long), "SELECT * FROM records DISTRIBUTE BY id"],
)
def test_a_try_whose_input_broke_off_counts_for_nothing(loads, tasks, monkeypatch, transform, is_killed):
    """To the half behind it, an input that breaks off may look like one that has ended."""
    loads.write("a.jsonl", "".join(map(line, range(_MANY))))
    monkeypatch.setattr("onceload_jobs.work.spark.spark.records", partial(_breaks_off_once, is_killed))

    report = load_by_spark(loads, tasks, transform=transform)

    assert (report.loaded, report.filtered) == (_MANY, 0)
    assert loads.ask("SELECT count(DISTINCT id), count(*) FROM target") == [(_MANY, _MANY)]


def _breaks_off_once(is_killed: bool, *arguments: Any) -> Iterator[pa.RecordBatch]:  # noqa: FBT001 - partial gives it.
    context = TaskContext.get()
    for number, batch in enumerate(records(*arguments)):
        if number == 2 and context and context.attemptNumber() == 0:
            if is_killed:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError("the disk went away")
        yield batch


@STAGED
def test_a_merge_of_nothing_but_its_key_loads_each_key_once(loads, tasks):
    loads.write("a.jsonl", line(7, note="x") + line(7, note="x") + line(8, note="x"))
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id", "note"))
    transform = "SELECT DISTINCT id, note FROM records"

    load_by_spark(loads, tasks, target=target, transform=transform)
    loads.write("b.jsonl", line(8, note="x") + line(9, note="x"))
    load_by_spark(loads, tasks, target=target, transform=transform)

    assert loads.rows() == [7, 8, 9]


@STAGED
@pytest.mark.parametrize("made", ["id, note", "id, note, _producer_id, _sequence"])
def test_the_last_of_several_rows_of_one_key_wins_or_none(loads, tasks, made):
    loads.write("a.jsonl", line(7, note="old") + line(7, note="new"))
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    transform = f"SELECT {made} FROM records"

    if "_sequence" in made:
        load_by_spark(loads, tasks, target=target, transform=transform)
        assert loads.ask("SELECT id, note FROM target") == [(7, "new")]
    else:
        with pytest.raises(TransformRefused, match="several rows have the same key"):
            load_by_spark(loads, tasks, target=target, transform=transform)
        grouped = "SELECT id, max(note) AS note FROM records GROUP BY id"
        assert load_by_spark(loads, tasks, target=target, transform=grouped).loaded == 1


@STAGED
def test_a_kept_batch_of_rows_without_lineage_takes_the_place_of_earlier_ones(loads, tasks):
    target = Target(schema="public", table="target", write=Write.MERGE, key=("id",))
    transform = "SELECT id, max(amount) AS amount FROM records GROUP BY id"
    declared = replace(loads.declared, target=target, transform=transform)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    for amount in ("1.00", "2.00"):
        loads.write(f"{amount}.jsonl", line(1, amount))
        load(declared, replace(settings, publishes=False), batch=Batch(amount), executor=tasks)
        publish_batch(declared, settings, batch=Batch(amount))

    assert loads.rows("amount") == [Decimal("2.00")]


@STAGED
def test_records_that_name_their_producers_bring_their_order_to_a_merge(loads, tasks):
    loads.write("a.jsonl", line(2, note="x") + line(1, note="x"))
    target = Target(schema="public", table="target", write=Write.MERGE, key=("amount",))
    producer = RecordProducer(name="note", sequence="id")
    transform = "SELECT id, amount, note, _producer_id, _sequence FROM records"

    load_by_spark(loads, tasks, target=target, transform=transform, producer=producer)
    assert loads.rows() == [2]

    loads.write("late.jsonl", line(0, note="x"))
    late = load_by_spark(loads, tasks, target=target, transform=transform, producer=producer)

    assert (late.loaded, late.duplicates) == (1, 0)
    assert loads.rows() == [2]
