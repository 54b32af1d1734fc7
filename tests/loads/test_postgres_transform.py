"""A transform that Postgres runs over the staged records."""

import re
from dataclasses import replace

import pytest

from onceload_core.errors import SettingRefused
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.batch.job import TransformRefused
from onceload_jobs.batch.stage import Stage
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    MessageId,
    OnRewrite,
    Publish,
    RecordProducer,
    Target,
    TransformEngine,
    Write,
)
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish import postgres_transform
from onceload_jobs.publish.postgres_transform import QueryChanged
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, Loads, line
from tests.servers import execute

ALL = "SELECT * FROM records"
TWICE = """
SELECT id, CAST(amount * 2 AS numeric(12,2)) AS amount, upper(note) AS note, _producer_id, _sequence FROM records
"""
#: Its rows are made of all records at once.
DISTINCT = "SELECT DISTINCT * FROM records"
GROUPED = "SELECT max(id) AS id, CAST(sum(amount) AS numeric(12,2)) AS amount, note FROM records GROUP BY note"
NO_RECORD = "CAST(NULL AS bigint) AS _producer_id, CAST(NULL AS bigint) AS _sequence"
NO_LINEAGE = Target(schema="public", table="target", lineage=False)


@pytest.fixture
def publish() -> Publish:
    return Publish.STAGED


@pytest.fixture(autouse=True)
def by_postgres(loads: Loads) -> None:
    loads.declared = replace(loads.declared, transform=TWICE, transform_engine=TransformEngine.POSTGRES)


def change(loads: Loads, statement: str) -> None:
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(statement)


def write(loads: Loads, name: str, *notes: str, first: int = 0) -> None:
    loads.write(name, "".join(line(number, note=note) for number, note in enumerate(notes, first)))


def test_postgres_makes_the_rows_of_all_records(loads):
    write(loads, "a.jsonl", "a", "b")
    write(loads, "b.jsonl", "c", first=2)

    report = loads.load(transform="SELECT id, note || '!' AS note, amount, _producer_id, _sequence FROM records")

    assert (report.loaded, loads.rows("id, note")) == (3, [(0, "a!"), (1, "b!"), (2, "c!")])
    assert verify(loads.declared, loads.engine).differing == 0
    assert loads.load().loaded == 0


@pytest.mark.parametrize(
    ("transform", "rows", "filtered"),
    [
        (TWICE, ["A", "B", "B"], 0),
        (ALL, ["a", "b", "b"], 0),
        ("SELECT id, amount, note FROM records", ["a", "b", "b"], 0),
        (GROUPED, ["a", "b"], 0),
        ("SELECT * FROM records WHERE note = 'a'; ", ["a"], 2),
        ("SELECT * FROM records -- all of them", ["a", "b", "b"], 0),
        ("SELECT * FROM records UNION ALL SELECT * FROM records", ["a", "a", "b", "b", "b", "b"], 0),
        ("SELECT records.* FROM records, generate_series(1, 3) WHERE note = 'a'", ["a", "a", "a"], 2),
        ("WITH b AS (SELECT * FROM records WHERE note = 'b') SELECT id, amount, note FROM b", ["b", "b"], 0),
        ("SELECT DISTINCT ON (note) * FROM records ORDER BY note, id", ["a", "b"], 1),
        ("SELECT id, amount, note FROM records WHERE note = 'c'", [], 3),
        (
            "SELECT CAST(n AS bigint) AS id, amount, note, _producer_id, _sequence"
            " FROM generate_series(1, 2) AS n LEFT JOIN records ON note = 'a' AND n = 1",
            ["a", None],
            0,
        ),
        (
            "SELECT id, amount, (SELECT name FROM named WHERE of = note LIMIT 1) AS note FROM records",
            ["bee", "bee", None],
            0,
        ),
        ("SELECT id, amount, name AS note FROM records JOIN named ON of = note", ["bee", "bee"], 0),
        ("SELECT id, amount, ':x %s %(y)s {z}' AS note FROM records WHERE note LIKE 'a%'", [":x %s %(y)s {z}"], 0),
        ("SELECT id, amount, '; COMMIT; ' AS note FROM records WHERE note = 'a' -- ; COMMIT;", ["; COMMIT; "], 0),
        (
            'SELECT id, amount, $a$;\':$$;$a$ AS note /* ; /* ; */ ; */ FROM records AS ";" LIMIT ALL;',
            [";':$$;"] * 3,
            0,
        ),
        (r"SELECT id, amount, E'\';\\' AS note FROM records WHERE note = 'a'", ["';\\"], 0),
        (f"SELECT note, {NO_RECORD} FROM records WHERE note = 'b'", ["b", "b"], 0),
        (f"SELECT note, {NO_RECORD} FROM records WHERE note = 'c'", [], 3),
        (
            f"SELECT * FROM records WHERE id = 0 UNION ALL SELECT id, amount, note, {NO_RECORD} FROM records",
            [*"aabb"],
            0,
        ),
    ],
)
def test_a_query_makes_its_rows_once(loads, transform, rows, filtered):
    """If a row names no record, only the absence of any row shows that records were filtered."""
    change(loads, "CREATE TABLE named (of text, name text); INSERT INTO named VALUES ('b', 'bee')")
    write(loads, "a.jsonl", "a", "b")
    write(loads, "b.jsonl", "b", first=2)

    report = loads.load(transform=transform)

    assert sorted(loads.rows("note"), key=str) == sorted(rows, key=str)
    assert (report.loaded, report.filtered, report.duplicates) == (len(rows), filtered, 0)
    assert verify(replace(loads.declared, transform=transform), loads.engine, deep=True).differing == 0
    assert loads.load(transform=transform).loaded == 0


@pytest.mark.parametrize(
    ("transform", "rows"),
    [
        ("SELECT CAST(ARRAY(SELECT id FROM records) AS text) AS note", ["{0,1,2,3,4,5,6,7,8}"]),
        (
            "SELECT CAST(g AS text) AS note FROM generate_series(0, 9) AS g WHERE g NOT IN (SELECT id FROM records)",
            ["9"],
        ),
        (
            "SELECT g || ' ' || EXISTS (SELECT FROM records WHERE id = g) AS note FROM generate_series(8, 9) AS g",
            ["8 true", "9 false"],
        ),
        ("SELECT note FROM records WHERE id = (SELECT max(id) FROM records)", ["x"]),
    ],
)
def test_a_subquery_sees_the_records_of_all_files(loads, transform, rows):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=100))
    for number in range(3):
        write(loads, f"{number}.jsonl", "x", "x", "x", first=3 * number)

    report = loads.load(transform=transform, target=NO_LINEAGE)

    assert (report.loaded, sorted(loads.rows("note"))) == (len(rows), rows)


@pytest.mark.parametrize(
    ("lineage", "why"),
    [
        ("_producer_id, _sequence + n AS _sequence", "rows name records that this batch has not read"),
        ("_producer_id + 100000 AS _producer_id, _sequence", "rows name a file of which this batch has read nothing"),
        ("_producer_id, nullif(_sequence, 0) AS _sequence", "rows have _producer_id or _sequence without the other"),
        ("CAST(NULL AS bigint) AS _producer_id, _sequence", "rows have _producer_id or _sequence without the other"),
    ],
)
def test_rows_that_name_records_that_were_not_read_are_refused(loads, lineage, why):
    """How many records are filtered would be unknown, and to `verify` the rows would be from nowhere."""
    write(loads, "a.jsonl", "a", "b")

    with pytest.raises(TransformRefused, match=why):
        loads.load(transform=f"SELECT id, amount, note, {lineage} FROM records, generate_series(0, 1) AS n")

    assert loads.rows() == []


def test_another_engine_is_another_version_of_the_pipeline_file(loads):
    """The same SQL may make other rows."""
    by_spark = replace(loads.declared, transform_engine=TransformEngine.SPARK)

    declarations = [pipeline_with_declaration(each).declaration for each in (loads.declared, by_spark)]

    assert declarations[0] != declarations[1]


@pytest.mark.parametrize(
    ("transform", "found"),
    [
        ("SELEC * FROM records", "syntax error"),
        ("SELECT missing FROM records", 'column "missing" does not exist'),
        ("SELECT * FROM record", 'relation "record" does not exist'),
        ("SELECT secret FROM secrets, records", "permission denied for table secrets"),
        ("UPDATE secrets SET secret = 'x' RETURNING secret", "syntax error"),
        ("SELECT 1 AS id; SELECT * FROM records", "syntax error"),
        ("SELECT * FROM records;;", "syntax error"),
        ("SELECT 1) AS made; COMMIT; DROP TABLE kept; SELECT * FROM (SELECT 1 AS id", "several statements"),
        ("SELECT 1) AS made; DROP TABLE kept; COMMIT; SELECT (1", "several statements"),
        ("SELECT * FROM records /* ; COMMIT", "unterminated /* comment"),
        ("SELECT id, id FROM records", 'column "id" specified more than once'),
        ("SELECT id, point(1, 2) AS at FROM records", "column at: found point"),
        ("SELECT id, amount * 2 AS amount FROM records", "such as numeric(12,2)"),
        ("SELECT id, CAST(_producer_id AS text) AS _producer_id FROM records", "_producer_id of another type"),
        ("SELECT * FROM records LIMIT 1", "leaves records unread"),
        ("SELECT * FROM records ORDER BY id FETCH FIRST 1 ROW ONLY", "leaves records unread"),
        ("(SELECT * FROM records LIMIT 1) UNION ALL SELECT * FROM records", "leaves records unread"),
        ("WITH r AS MATERIALIZED (SELECT * FROM records) (SELECT * FROM r OFFSET 1)", "leaves records unread"),
        ("SELECT * FROM records WHERE false", "leaves records unread"),
        ("SELECT 1 AS id", "leaves records unread"),
        ("SELECT nowhere.f(id) AS id FROM records", 'schema "nowhere" does not exist'),
        ("SELECT FROM records", "no column"),
        ("SELECT _producer_id, _sequence FROM records", "no column"),
        ("SELECT id + 1 FROM records", "a column without a name"),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused(loads, transform, found):
    execute(loads.admin_dsn, "CREATE TABLE secrets (secret text)")
    change(loads, "CREATE TABLE kept ()")
    write(loads, "a.jsonl", "a", "b")

    with pytest.raises(SettingRefused, match=re.escape(found)):
        loads.load(transform=transform)

    assert loads.rows_or_none() == []
    assert loads.ask("SELECT to_regclass('kept') IS NULL") == [(False,)]
    assert loads.load().loaded == 2


@pytest.mark.parametrize(
    ("transform", "reason"),
    [
        ("SELECT 1 / id AS id, amount, note FROM records", "division by zero"),
        ("SELECT id, CAST(note AS numeric(12,2)) AS amount, note FROM records", "invalid input syntax"),
        ("SELECT id, CAST(amount - 100 AS numeric(12,2)) AS amount, note FROM records", "target_amount_check"),
        ("SELECT id, (SELECT amount FROM records) AS amount, note FROM records", "more than one row"),
        ("SELECT currval('counter') AS id, amount, note FROM records", "not yet defined in this session"),
        ("SELECT CAST(NULL AS bigint) AS id, amount, note FROM records", "column id: null, but declared"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_all_others(loads, transform, reason):
    change(loads, "CREATE TABLE target (id bigint NOT NULL, amount numeric(12,2) CHECK (amount > 0), note text)")
    change(loads, "CREATE SEQUENCE counter")
    write(loads, "a.jsonl", "a", "b")

    with pytest.raises(TransformRefused, match=reason):
        loads.load(transform=transform, target=NO_LINEAGE)

    assert loads.rows() == []
    assert loads.load(transform="SELECT id, amount, note FROM records", target=NO_LINEAGE).loaded == 2


@pytest.mark.parametrize("query", [ALL, DISTINCT])
@pytest.mark.parametrize(
    ("of_type", "value"),
    [
        ("uuid[]", '["00000000-0000-0000-0000-000000000001", null]'),
        ("timestamptz[]", '["2026-01-01T00:00:00.123456Z"]'),
        ("varchar(3)[]", '["a,c", "\\"{}"]'),
        ("jsonb", '{"a": [1.50]}'),
        ("bytea", '"\\\\x00ff"'),
    ],
)
def test_values_of_all_types_come_through_the_query_as_without_one(loads, of_type, value, query):
    columns = {"columns": (parse_column("id", "bigint"), parse_column("value", of_type))}
    elsewhere = replace(loads.declared.pipeline, name="plain")
    loads.write("a.jsonl", f'{{"id": 1, "value": {value}}}\n')

    loads.load(transform=query, **columns)
    loads.load(pipeline=elsewhere, transform=None, target=Target(schema="public", table="plain"), **columns)

    assert loads.ask("SELECT value IS NOT NULL FROM target") == [(True,)]
    assert loads.ask("SELECT CAST(value AS text) FROM target") == loads.ask("SELECT CAST(value AS text) FROM plain")


def test_a_table_that_is_altered_while_records_are_staged_rounds_no_value(loads):
    change(loads, "CREATE TABLE prices (of bigint, price bigint); INSERT INTO prices VALUES (0, 1), (1, 2)")

    class Altering(InThisProcess):
        def begins(self) -> None:
            change(loads, "ALTER TABLE prices ALTER price TYPE numeric(12,2); UPDATE prices SET price = price + 0.4")

    query = "SELECT records.*, price FROM records JOIN prices ON of = id"
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn))
    write(loads, "a.jsonl", "a", "b")

    with pytest.raises(QueryChanged, match="because a table that its query reads was altered"):
        load(replace(loads.declared, transform=query), settings, batch=Batch("first"), executor=Altering())

    assert loads.rows() == []
    with pytest.raises(SettingRefused, match=r"price is bigint instead of numeric\(12,2\)"):
        loads.load(transform=query)
    change(loads, "ALTER TABLE target ALTER price TYPE numeric(12,2)")
    assert loads.load(transform=query).loaded == 2


@pytest.mark.parametrize("content", ["", "\n", '{"id": "bad"}\n'])
def test_a_batch_without_a_good_record_makes_no_row(loads, content):
    loads.write("a.jsonl", content)

    report = loads.load(transform="SELECT count(*) AS n FROM records")

    assert (report.loaded, loads.load(transform="SELECT count(*) AS n FROM records").loaded) == (0, 0)
    write(loads, "b.jsonl", "a", "b")
    assert loads.load(transform="SELECT count(*) AS n FROM records").loaded == 1
    assert loads.ask("SELECT n FROM target") == [(2,)]


def test_bad_records_are_quarantined_before_the_query_sees_them(loads):
    loads.write("a.jsonl", line(1) + '{"id": "one"}\n' + line(2))

    report = loads.load()

    assert (report.loaded, report.quarantined, loads.rows()) == (2, 1, [1, 2])
    assert verify(loads.declared, loads.engine).differing == 0


def test_the_last_record_of_a_key_that_the_query_makes_is_merged(loads):
    merged = Target(schema="public", table="target", write=Write.MERGE, key=("name",))
    query = "SELECT lower(note) AS name, id, _producer_id, _sequence FROM records"
    write(loads, "a.jsonl", "a", "B", "A")
    loads.load(transform=query, target=merged)
    write(loads, "b.jsonl", "b", first=7)
    loads.load(transform=query, target=merged)

    assert loads.rows("name, id") == [("a", 2), ("b", 7)]
    write(loads, "c.jsonl", "c")
    with pytest.raises(TransformRefused, match="several rows have the same key"):
        loads.load(
            transform="SELECT note AS name, id FROM records UNION ALL SELECT note, id FROM records", target=merged
        )


def test_a_null_in_a_column_that_must_have_none_is_refused(loads):
    write(loads, "a.jsonl", "a")
    never_null = (parse_column("id", "bigint"), parse_column("note", "text not null"))
    query = "SELECT id, CAST(NULL AS text) AS note, _producer_id, _sequence FROM records"

    with pytest.raises(TransformRefused, match=r"column note: null, but declared not null or used by target\.key"):
        loads.load(columns=never_null, transform=query)
    with pytest.raises(TransformRefused, match=r"column name: null, but declared not null or used by target\.key"):
        loads.load(
            transform=query.replace("note", "name"),
            target=Target(schema="public", table="merged", write=Write.MERGE, key=("name",)),
        )


def test_all_rows_that_the_query_makes_of_a_business_id_take_effect_once(loads):
    keep = {
        "pipeline": replace(loads.declared.pipeline, message_keep_days=2),
        "message_id": MessageId(columns=("note",), keep_days=2),
        "transform": "SELECT upper(note) AS name, n, _producer_id, _sequence FROM records, generate_series(1, 2) AS n",
    }
    write(loads, "a.jsonl", "a", "b", "a")
    first = loads.load(**keep)
    write(loads, "b.jsonl", "b", "c")
    second = loads.load(**keep)

    assert (first.loaded, first.duplicates, second.loaded, second.duplicates) == (4, 1, 2, 1)
    assert loads.rows("name, n") == [(name, n) for name in "ABC" for n in (1, 2)]
    write(loads, "c.jsonl", "d")
    with pytest.raises(TransformRefused, match="rows have _producer_id or _sequence without the other"):
        loads.load(**keep | {"transform": keep["transform"].replace("_sequence", "CAST(NULL AS bigint) AS _sequence")})


def test_producers_that_the_query_names_are_loaded_once(loads):
    named = {
        "producer": RecordProducer(name="device", sequence="seq"),
        "columns": tuple(parse_column(*each) for each in (("device", "text"), ("seq", "bigint"), ("note", "text"))),
        "transform": "SELECT 'd' || device AS device, seq * 2 AS seq, note, _producer_id, _sequence FROM records",
    }
    loads.write(
        "a.jsonl", "".join(f'{{"device": "{d}", "seq": {n}, "note": "x"}}\n' for d, n in ((1, 0), (1, 1), (2, 0)))
    )
    first = loads.load(**named)
    loads.write("b.jsonl", "".join(f'{{"device": "{d}", "seq": {n}, "note": "x"}}\n' for d, n in ((1, 1), (1, 2))))
    second = loads.load(**named)

    assert (first.loaded, second.loaded, second.duplicates) == (3, 1, 1)
    assert loads.rows("device, seq") == [("d1", 0), ("d1", 2), ("d1", 4), ("d2", 0)]


def test_a_kept_batch_is_published_with_the_rows_that_were_made_of_it(loads):
    write(loads, "a.jsonl", "a", "b", "c")
    random = {
        "transform": "SELECT id, CAST(random() AS numeric(12,2)) AS amount, note FROM records WHERE random() < 0.5"
    }
    declared = replace(loads.declared, **random)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), publishes=False)
    kept = load(declared, settings, batch=Batch("kept"), executor=InThisProcess())
    (made,) = loads.ask("SELECT array_agg(relname) FROM pg_class WHERE relname LIKE '% rows' AND relkind = 'r'")
    there = loads.ask(f'SELECT id, amount FROM onceload_stage."{made[0][0]}" ORDER BY id')

    published = publish_batch(declared, replace(settings, publishes=True), batch=Batch("kept"))

    assert kept.loaded == 0
    assert (published.loaded, loads.rows("id, amount")) == (len(there), there)
    assert loads.load(**random).loaded == 0


def test_a_null_of_a_single_record_in_a_column_declared_not_null_is_refused(loads):
    """The target would take it."""
    change(loads, "CREATE TABLE target (id bigint, amount numeric(12,2), note text)")
    write(loads, "a.jsonl", "a", "b")

    with pytest.raises(TransformRefused, match="column id: null, but declared not null"):
        loads.load(transform="SELECT nullif(id, 1) AS id, amount, note FROM records", target=NO_LINEAGE)

    assert loads.rows() == []


def test_the_rows_of_a_replaced_file_are_replaced(loads):
    write(loads, "a.jsonl", "a", "b")
    loads.load()
    write(loads, "a.jsonl", "c", "d", "e")

    report = loads.load(on_rewrite=OnRewrite.REPLACE)

    assert (report.loaded, loads.rows("id, note")) == (3, [(0, "C"), (1, "D"), (2, "E")])
    assert verify(loads.declared, loads.engine).differing == 0


def test_rows_are_made_again_if_the_answer_is_lost(loads, monkeypatch):
    """Those of the first time are not published beside them."""
    make, made = postgres_transform._make_of_records, list[int]()

    def make_and_lose(connection, *rest):
        made.append(make(connection, *rest))
        if len(made) == 1:
            connection.exec_driver_sql("COMMIT")
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
            execute(loads.admin_dsn, f"SELECT pg_terminate_backend({pid}, 5000)")
        return made[-1]

    monkeypatch.setattr(postgres_transform, "_make_of_records", make_and_lose)
    write(loads, "a.jsonl", "a", "b")

    report = loads.load(transform=DISTINCT)

    assert (made, report.loaded, loads.rows()) == ([2, 2], 2, [0, 1])


def test_records_are_staged_again_if_the_server_loses_them(loads, monkeypatch):
    make, made = postgres_transform._make_of_records, list[Stage]()

    def lose_before(connection, job, stage, count):
        if not made:
            # What a crash does to unlogged tables.
            connection.exec_driver_sql(f"TRUNCATE {stage.proof}, {stage.beside('records')}")
        made.append(stage)
        return make(connection, job, stage, count)

    monkeypatch.setattr(postgres_transform, "_make_of_records", lose_before)
    write(loads, "a.jsonl", "a", "b")

    report = loads.load(transform=DISTINCT)

    assert (len(made), report.loaded, loads.rows()) == (2, 2, [0, 1])


def test_made_rows_that_the_stage_loses_are_made_again(loads, monkeypatch):
    """Their records would count as filtered."""
    make, made = postgres_transform._make_of_records, list[int]()

    def make_and_lose(connection, job, stage, count):
        made.append(make(connection, job, stage, count))
        if len(made) == 1:
            connection.exec_driver_sql(f"DELETE FROM {stage.rows} WHERE id = 0")
        return made[-1]

    monkeypatch.setattr(postgres_transform, "_make_of_records", make_and_lose)
    write(loads, "a.jsonl", "a", "b")

    report = loads.load()

    assert (len(made), report.loaded, report.filtered, loads.rows()) == (2, 2, 0, [0, 1])
