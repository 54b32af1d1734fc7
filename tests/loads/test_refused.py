"""What becomes of records, and of batches, that the target does not take as they are."""

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import CommitOutcomeUnknown, PipelineBusy, RowsRefused, SettingRefused, TooManyQuarantined
from onceload_core.names import ProducerId
from onceload_core.ports import Knowledge, Session
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.connection import is_lost
from onceload_core.postgres.quarantine import Selection, choose
from onceload_core.replay import ProducerState
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import new_batch
from onceload_jobs.pipeline.columns import ADDED_UP_TO, Column, parse_column
from onceload_jobs.pipeline.declared import (
    Format,
    MessageId,
    OnRewrite,
    Publish,
    QuarantineLimit,
    RecordProducer,
    TransformEngine,
    UnknownFields,
)
from onceload_jobs.publish.commits import publish_commit
from onceload_jobs.publish.table_road import publish
from onceload_jobs.recover.retry import RetryReport, retry
from onceload_jobs.write import find_refused
from onceload_jobs.write import writer as write
from onceload_jobs.write.binary_copy import encoded
from onceload_jobs.write.sql import run
from onceload_jobs.write.target import ensure_target
from tests.loads.conftest import Loads, line, through_a_table
from tests.loads.test_load import counts
from tests.loads.test_record_producers import record

pytestmark = pytest.mark.usually_staged

ADD = UnknownFields.ADD


def columns(**declared: str) -> tuple[Column, ...]:
    return tuple(parse_column(*each) for each in declared.items())


def make_target(loads: Loads, *statements: str) -> None:
    with loads.engine.begin() as connection:
        for statement in statements:
            run(connection, statement)


def reasons(loads: Loads) -> list[str]:
    return [reason for (reason,) in loads.ask("SELECT reason FROM onceload.quarantine ORDER BY quarantine_id")]


def retry_all(loads: Loads, **changes: Any) -> RetryReport:
    asked = choose(loads.engine, Selection(pipeline="events")).held
    return retry(loads.engine, loads.ledger, replace(loads.declared, **changes), asked, batch=new_batch())


def one_record_each(loads: Loads, *values: str) -> Report:
    """Files that are pieces of their own, with an undeclared field."""
    source = replace(loads.declared.source, chunk_bytes=16)
    for number, value in enumerate(values, start=1):
        loads.write(f"{number}.jsonl", f'{{"id":{number},"x":{value}}}\n')
    return loads.load(source=source, columns=columns(id="bigint"), unknown_fields=ADD)


# Undeclared fields.


def test_a_later_piece_is_read_as_the_column_that_an_earlier_one_made(loads):
    report = one_record_each(loads, "1", "1.5", '"abcdefgh"', '"abc"', '"4"')

    assert counts(report) == (2, 0, 3)
    assert loads.rows("id, x") == [(1, 1), (5, 4)]
    assert all("is not a valid bigint" in reason for reason in reasons(loads))


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("has_own_ids", [False, True])
def test_a_delivery_whose_fields_differ_one_after_the_other_is_read_as_the_columns_that_are_there(loads, has_own_ids):
    """Each of its parts has one of the fields, and shows only that the type of this one differs."""
    wide = " " * 500
    loads.write("0.jsonl", f'{{"id":1,"x":1,"y":1}}{wide}\n')
    parts = (f'{{"id":{number},"{field}":"t"}}{wide}\n' for number, field in enumerate("xy", start=2))
    loads.write("1.jsonl.gz", gzip.compress("".join(parts).encode()))
    changes: dict[str, Any] = {"source": replace(loads.declared.source, chunk_bytes=512)}
    if has_own_ids:
        pipeline = replace(loads.declared.pipeline, message_keep_days=2)
        changes |= {"pipeline": pipeline, "message_id": MessageId(columns=("id",), keep_days=2)}

    report = loads.load(columns=columns(id="bigint"), unknown_fields=ADD, **changes)

    assert counts(report) == (1, 0, 2)
    assert loads.rows("id, x, y") == [(1, 1, 1)]


def test_columns_are_added_to_a_table_with_rules_that_wait_for_the_commit(loads):
    make_target(
        loads,
        "CREATE TABLE known (id bigint PRIMARY KEY)",
        "INSERT INTO known SELECT generate_series(1, 9)",
        "CREATE TABLE target (id bigint REFERENCES known DEFERRABLE INITIALLY DEFERRED,"
        " _producer_id bigint, _sequence bigint)",
    )
    for number, fields in enumerate(('"a":1', '"b":2', '"a":"x","c":3', '"a":"4","d":5'), start=1):
        loads.write(f"{number}.jsonl", f'{{"id":{number},{fields}}}\n')
    source = replace(loads.declared.source, chunk_bytes=16)

    report = loads.load(source=source, columns=columns(id="bigint"), unknown_fields=ADD)

    assert counts(report) == (3, 0, 1)
    assert loads.rows("id, a, b, d") == [(1, 1, None, None), (2, None, 2, None), (4, 4, None, 5)]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_column_that_comes_while_a_load_runs_is_read_as_it_is(loads, monkeypatch):
    def make_and_add(*args: Any, **more: Any) -> None:
        ensure_target(*args, **more)
        make_target(loads, "ALTER TABLE target ADD COLUMN x text")

    monkeypatch.setattr("onceload_jobs.load.context.ensure_target", make_and_add)

    assert counts(one_record_each(loads, "1", "2.50")) == (2, 0, 0)
    assert loads.rows("id, x") == [(1, "1"), (2, "2.50")]


def test_a_column_that_comes_while_a_batch_is_published_is_read_by_the_next_call(loads, monkeypatch):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("pieces that commit themselves look at the target when they are written")
    loads.declared = through_a_table(loads.declared)

    def add_and_publish(*args: Any, **more: Any) -> None:
        make_target(loads, "ALTER TABLE target ADD COLUMN x text")
        publish(*args, **more)

    with monkeypatch.context() as patched:
        patched.setattr("onceload_jobs.load.staged.staged_batch.publish", add_and_publish)
        with pytest.raises(PipelineBusy):
            one_record_each(loads, "1")

    assert counts(one_record_each(loads, "1")) == (1, 0, 0)
    assert loads.rows("id, x") == [(1, "1")]


def test_a_field_goes_into_a_column_that_the_target_has_or_to_quarantine(loads):
    make_target(
        loads,
        "CREATE TABLE target (id bigint, at timestamptz, tags text[], _producer_id bigint, _sequence bigint)",
    )
    loads.write(
        "a.jsonl",
        '{"id":1,"at":1700000000}\n{"id":2,"at":"2026-01-02T03:04:05Z","tags":["a",null]}\n{"id":3,"tags":["b"]}\n',
    )

    report = loads.load(columns=columns(id="bigint"), unknown_fields=ADD)

    assert counts(report) == (2, 0, 1)
    assert loads.rows("id, CAST(at AS text), tags") == [
        (2, "2026-01-02 03:04:05+00", ["a", None]),
        (3, None, ["b"]),
    ]
    assert reasons(loads) == ["'1700000000' is not a valid timestamptz"]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        ("x inet", "x: found inet.* Expected "),
        ("x uuid[]", "found uuid"),
        ("x bigint DEFAULT 7", "which the table fills itself"),
        ("x bigint GENERATED ALWAYS AS (id + 1) STORED", "which the table fills itself"),
    ],
)
def test_a_field_for_a_column_that_takes_none_is_refused_by_name(loads, column, said):
    make_target(loads, f"CREATE TABLE target (id bigint, {column}, _producer_id bigint, _sequence bigint)")

    with pytest.raises(SettingRefused, match=said):
        one_record_each(loads, "1")

    assert loads.rows() == []
    assert counts(loads.load(columns=columns(id="bigint"))) == (1, 0, 0)


def test_a_refused_copy_is_not_taken_for_a_lost_connection(loads):
    make_target(loads, "CREATE TABLE target (id text CHECK (id <> 'abc'))")
    rows = pa.table({"id": pa.array(["abc"])})
    writer = write.Writer(table="target", target="target", columns=columns(id="text"), lineage=False, needs_cast=False)

    with pytest.raises(DBAPIError) as caught, loads.engine.begin() as connection:
        writer.copy_encoded(connection, writer.encoded(rows))

    assert not is_lost(caught.value)


def test_a_record_with_more_fields_than_a_table_takes_is_quarantined_alone(loads):
    wide = json.dumps({"id": 2, **{f"f{number}": number for number in range(1700)}})
    loads.write("a.jsonl", f'{{"id":1,"x":1}}\n{wide}\n{{"id":3,"y":2}}\n')

    report = loads.load(columns=columns(id="bigint"), unknown_fields=ADD)

    assert counts(report) == (2, 0, 1)
    assert loads.rows("id, x, y") == [(1, 1, None), (3, None, 2)]
    assert f"more than {ADDED_UP_TO}" in reasons(loads)[0]


def test_fields_without_a_place_in_the_table_are_quarantined_and_other_records_loaded(loads):
    taken = ", ".join(f"c{number} integer" for number in range(ADDED_UP_TO - 3))
    make_target(loads, f"CREATE TABLE target (id bigint, _producer_id bigint, _sequence bigint, gone text, {taken})")
    make_target(loads, "ALTER TABLE target DROP COLUMN gone")
    loads.write("a.jsonl", '{"id":1,"x":1}\n{"id":2}\n{"id":3,"c5":5}\n')

    report = loads.load(columns=columns(id="bigint"), unknown_fields=ADD)

    assert counts(report) == (2, 0, 1)
    assert loads.rows("id, c5") == [(2, None), (3, 5)]
    assert "has no room for another column" in reasons(loads)[0]


def test_a_refusal_before_any_row_is_its_own_cause(loads):
    rows = pa.table({"id": pa.array([], pa.int64())})
    writer = write.Writer(
        table="nowhere", target="nowhere", columns=columns(id="bigint"), lineage=False, needs_cast=False
    )

    with pytest.raises(DBAPIError, match="nowhere"), loads.engine.begin() as connection:
        find_refused.offer_rows(connection, writer.adding(columns(x="text")), rows)


# Limits of the quarantine.


def test_a_share_is_judged_of_the_whole_batch_where_that_is_published_at_once(loads):
    source = replace(loads.declared.source, chunk_bytes=200)
    loads.write("a.jsonl", "".join(line(number) for number in range(100)) + "{bad\n" * 3)
    limit = QuarantineLimit(share=0.1)

    if loads.declared.publish is Publish.DIRECT:
        with pytest.raises(TooManyQuarantined):
            loads.load(source=source, quarantine_limit=limit)
    else:
        assert counts(loads.load(source=source, quarantine_limit=limit)) == (100, 0, 3)
        loads.write("b.jsonl", line(100) + "{bad\n")
        with pytest.raises(TooManyQuarantined):
            loads.load(source=source, quarantine_limit=limit)


def test_no_more_refused_rows_are_looked_for_than_the_limit_allows(loads, monkeypatch):
    make_target(
        loads,
        "CREATE TABLE target (id bigint CHECK (id < 0), amount numeric(12,2), note text,"
        " _producer_id bigint, _sequence bigint)",
    )
    loads.write("a.jsonl", "".join(line(number) for number in range(4000)))
    copies: list[int] = []

    def counted(rows: pa.Table, *arguments: Any, **more: Any) -> Iterator[bytes]:
        copies.append(rows.num_rows)
        return encoded(rows, *arguments, **more)

    monkeypatch.setattr("onceload_jobs.write.writer.encoded", counted)

    with pytest.raises(TooManyQuarantined, match="target_id_check"):
        loads.load(quarantine_limit=QuarantineLimit(records=10))

    assert len(copies) < 100


def test_every_refused_row_is_kept_with_its_own_bytes_and_the_name_of_the_target(loads):
    make_target(
        loads,
        "CREATE TABLE target (id bigint CHECK (id % 2 = 0), amount numeric(12,2), note text,"
        " _producer_id bigint, _sequence bigint)",
    )
    lines = [line(number, note="y" * (number % 5)) for number in range(20)]
    loads.write("a.jsonl", "".join(lines[:10]) + "{bad\n" + "".join(lines[10:]))

    assert counts(loads.load()) == (10, 0, 11)

    kept = loads.ask("SELECT raw FROM onceload.quarantine ORDER BY sequence_id")
    odd = [each.rstrip().encode() for number, each in enumerate(lines) if number % 2]
    assert [bytes(raw) for (raw,) in kept] == [*odd[:5], b"{bad", *odd[5:]]
    refused = 'the server refused it: new row for relation "target" violates check constraint "target_id_check"'
    assert reasons(loads).count(refused) == 10


# What the target itself refuses.


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        ("RAISE 'no thirteen'", "no thirteen"),
        ("RAISE division_by_zero", "division_by_zero"),
        ("NEW.id := 'x'::text::bigint", "invalid input syntax"),
    ],
)
def test_a_trigger_that_refuses_a_row_refuses_it_in_words(loads, raised, said):
    make_target(
        loads,
        "CREATE TABLE target (id bigint, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)",
        f"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$ BEGIN IF NEW.id = 13 THEN {raised}; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    loads.write("a.jsonl", "".join(line(number) for number in range(20)))

    assert counts(loads.load()) == (19, 0, 1)
    assert said in reasons(loads)[0]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_trigger_that_refuses_a_row_refuses_the_batch_that_goes_through_a_table(loads):
    loads.declared = through_a_table(loads.declared)
    make_target(
        loads,
        "CREATE TABLE target (id bigint, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)",
        "CREATE UNIQUE INDEX ON target (id)",
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN IF NEW.id = 13 THEN RAISE 'no thirteen'; END IF; RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON target FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    loads.write("a.jsonl", "".join(line(number) for number in range(20)))

    with pytest.raises(RowsRefused, match="no thirteen"):
        loads.load()

    assert loads.ask("SELECT * FROM onceload.ledger") == []


@pytest.mark.parametrize("made", ["GENERATED ALWAYS AS IDENTITY", "GENERATED ALWAYS AS (1) STORED"])
def test_a_declared_column_that_the_target_makes_itself_is_refused(loads, made):
    make_target(
        loads,
        f"CREATE TABLE target (id bigint {made}, amount numeric(12,2), note text,"
        " _producer_id bigint, _sequence bigint)",
    )
    loads.write("a.jsonl", line(1))

    with pytest.raises(SettingRefused, match="found id, which the table generates"):
        loads.load()


@pytest.mark.parametrize("name", ["_message", "_position"])
def test_a_column_that_is_called_like_one_of_ours_is_refused(loads, name):
    loads.write("a.jsonl", f'{{"id":1,"{name}":"a"}}\n')

    with pytest.raises(SettingRefused, match=f"found {name}"):
        loads.load(columns=columns(id="bigint", **{name: "text"}))


def test_a_field_that_is_called_like_one_of_ours_is_quarantined(loads):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("business ids are staged")
    loads.write("a.jsonl", '{"id":1,"_message":"a"}\n{"id":2}\n')
    keep = replace(loads.declared.pipeline, message_keep_days=2)

    report = loads.load(
        pipeline=keep,
        message_id=MessageId(columns=("id",), keep_days=2),
        columns=columns(id="bigint"),
        unknown_fields=ADD,
    )

    assert counts(report) == (1, 0, 1)
    assert "cannot be the name of a column" in reasons(loads)[0]


@pytest.mark.parametrize("order", Order)
def test_columns_may_be_called_like_those_that_we_join_with(loads, order):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("record producers are staged")
    ours = ["producer_id", "first", "last", "ids", "rows", "spans", "consumed", "generation", "message", "_rows"]
    loads.write(
        "a.jsonl", "".join(f'{{"name":"d{number % 2}","sequence_id":{number}}}\n' for number in (0, 1, 5, 5, 7))
    )

    report = loads.load(
        pipeline=replace(loads.declared.pipeline, message_keep_days=2),
        message_id=MessageId(columns=("sequence_id",), keep_days=2),
        producer=RecordProducer(name="name", sequence="sequence_id", order=order),
        columns=columns(name="text", sequence_id="bigint", **dict.fromkeys(ours, "bigint")),
    )

    assert counts(report) == (4, 1, 0)
    assert loads.rows("name, sequence_id") == [("d0", 0), ("d1", 1), ("d1", 5), ("d1", 7)]


@pytest.mark.parametrize("kind", ["text", "bytea"])
def test_a_producer_whose_name_is_too_long_is_quarantined_alone(loads, kind):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("record producers are staged")
    names = ["a" * 1993, "a" * 1994] if kind == "text" else ["\\x" + "ab" * 995, "\\x" + "ab" * 996]
    loads.write("a.jsonl", record(names[0], 1) + record(names[1], 2) + record(names[1], 3))

    report = loads.load(
        columns=columns(device=kind, seq="bigint", amount="numeric(12,2)"),
        producer=RecordProducer(name="device", sequence="seq"),
    )

    assert counts(report) == (1, 0, 2)
    assert all("2001 bytes" in reason for reason in reasons(loads))


# A file that takes the place of another.


def test_a_file_that_breaks_off_does_not_replace_what_was_loaded_of_it(loads):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("pieces that commit themselves cannot replace anything at once")
    path = loads.write("a.jsonl.gz", gzip.compress("".join(line(number) for number in range(5)).encode()))
    loads.write("b.jsonl", line(1000))
    loads.load()
    whole = gzip.compress("".join(line(number, note=os.urandom(20).hex()) for number in range(100, 300)).encode())
    path.write_bytes(whole[: len(whole) // 2])
    with (loads.folder / "b.jsonl").open("a") as file:
        file.write(line(1001))

    first = loads.load(on_rewrite=OnRewrite.REPLACE)

    assert counts(first) == (1, 0, 0)
    assert loads.rows() == [*range(5), 1000, 1001]
    assert [note.name for note in first.notes] == ["a.jsonl.gz"]
    assert "breaks off" in first.notes[0].reason
    assert "Its loaded rows stay" in first.notes[0].reason

    path.write_bytes(whole)
    assert counts(loads.load(on_rewrite=OnRewrite.REPLACE)) == (200, 0, 0)
    assert loads.rows() == [*range(100, 300), 1000, 1001]


# Rows of Parquet, retried.


def test_a_retried_row_of_parquet_has_the_values_that_its_neighbours_have(loads):
    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    types = {
        "id": "smallint",
        "j": "jsonb",
        "t": "text",
        "tags": "text[]",
        "u": "uuid",
        "us": "uuid[]",
        "b": "bytea",
        "js": "jsonb[]",
        "d": "date",
        "dj": "jsonb",
    }
    row = {
        "j": '{"k":1}',
        "t": b"hi",
        "tags": '{a,"b c",NULL}',
        "u": bytes(range(16)),
        "us": [bytes(range(16)), None],
        "b": b"\x00\xff",
        "js": ['{"k":[2]}', "3"],
        "d": pa.scalar(1_767_225_600_000_000, pa.timestamp("us")),
        "dj": pa.scalar(20454, pa.date32()),
    }
    arrays = {name: pa.array([value, value]) for name, value in row.items()}
    pq.write_table(pa.table({"id": [1, 100_000], **arrays}), loads.folder / "a.parquet")
    assert counts(loads.load(source=parquet, columns=columns(**types))) == (1, 0, 1)
    make_target(loads, "ALTER TABLE target ALTER COLUMN id TYPE integer")

    report = retry_all(loads, source=parquet, columns=columns(**types | {"id": "integer"}))

    assert (report.retried, report.still_bad) == (1, {})
    first, second = loads.ask(f"SELECT {', '.join(f'CAST({name} AS text)' for name in row)} FROM target ORDER BY id")
    assert first == second
    assert first[:3] == ('{"k": 1}', "hi", '{a,"b c",NULL}')


def test_values_of_parquet_that_are_none_stay_refused_when_they_are_retried(loads):
    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    types = {"id": "bigint", "j": "jsonb", "t": "text", "s": "text"}
    broken = pa.Array.from_buffers(pa.string(), 3, pa.array([b"ok", b"ok", b"\xff\xfe"]).buffers())
    table = pa.table({"id": [1, 2, 3], "j": ["{broken", "{}", "{}"], "t": [b"a", b"\xff\xfe", b"c"], "s": broken})
    pq.write_table(table, loads.folder / "a.parquet")
    assert counts(loads.load(source=parquet, columns=columns(**types))) == (0, 0, 3)

    report = retry_all(loads, source=parquet, columns=columns(**types))

    assert (report.retried, len(report.still_bad)) == (0, 3)


def test_rows_of_parquet_that_the_server_refused_come_back_as_they_were(loads):
    parquet = replace(loads.declared.source, path=str(loads.folder / "*.parquet"), format=Format.PARQUET)
    types = {"id": "bigint", "u": "uuid", "b": "bytea", "j": "jsonb", "n": "numeric(6,2)", "a": "timestamptz"}
    make_target(
        loads,
        f"CREATE TABLE target ({', '.join(f'{name} {kind}' for name, kind in types.items())},"
        " _producer_id bigint, _sequence bigint, CONSTRAINT only_one CHECK (id = 1))",
    )
    row = {
        "u": bytes(range(16)),
        "b": b"\x00\xff",
        "j": '{"k":1}',
        "n": "1.50",
        "a": pa.scalar(1_767_225_600_000_000, pa.timestamp("us", "UTC")),
    }
    arrays = {name: pa.array([value, value]) for name, value in row.items()}
    pq.write_table(pa.table({"id": [1, 2], **arrays}), loads.folder / "a.parquet")
    assert counts(loads.load(source=parquet, columns=columns(**types))) == (1, 0, 1)
    make_target(loads, "ALTER TABLE target DROP CONSTRAINT only_one")

    assert retry_all(loads, source=parquet, columns=columns(**types)).retried == 1

    first, second = loads.ask(f"SELECT {', '.join(f'CAST({name} AS text)' for name in row)} FROM target ORDER BY id")
    assert first == second


def test_a_retried_record_is_read_as_the_column_that_came_meanwhile(loads):
    loads.write("a.jsonl", '{"id":1}\n{"id":2,"x":5}\n{"id":3,"x":"7"}\n')
    loads.load(columns=columns(id="bigint"), unknown_fields=UnknownFields.FAIL)
    make_target(loads, "ALTER TABLE target ADD COLUMN x varchar(9)")

    report = retry_all(loads, columns=columns(id="bigint"), unknown_fields=ADD)

    assert report.retried == 2
    assert loads.rows("id, x") == [(1, None), (2, "5"), (3, "7")]


@pytest.mark.parametrize("road", ["batch", "table"])
def test_rows_of_a_commit_without_an_answer_are_not_taken_for_bad_where_each_may_be_there_once(
    loads, monkeypatch, road
):
    """The commit takes effect after the look that asks for it."""
    make_target(
        loads,
        "CREATE TABLE target"
        " (id bigint UNIQUE, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint)",
    )
    if road == "table":
        made = {"transform": "SELECT * FROM records", "transform_engine": TransformEngine.POSTGRES}
        loads.declared = replace(loads.declared, publish=Publish.STAGED, **made)
    loads.write("a.jsonl", "".join(map(line, range(20))))
    know = PostgresLedger.know
    lost, too_early = [True], [True]

    def unanswered(*args: Any, **more: Any) -> None:
        publish_commit(*args, **more)
        if lost:
            lost.clear()
            raise CommitOutcomeUnknown("events", "b", "the line went dead")

    def too_early_once(ledger: PostgresLedger, session: Session, producer_ids: Sequence[ProducerId]) -> Any:
        if too_early and not lost:
            too_early.clear()
            nothing = Knowledge(state=ProducerState(name="a.jsonl", consumed=SpanSet()), claimed=SpanSet())
            return dict.fromkeys(producer_ids, nothing)
        return know(ledger, session, producer_ids)

    monkeypatch.setattr(f"onceload_jobs.publish.{road}_road.publish_commit", unanswered)
    monkeypatch.setattr(PostgresLedger, "know", too_early_once)

    report = loads.load()

    assert (counts(report), report.notes) == ((20, 0, 0), ())
    assert loads.rows() == list(range(20))
