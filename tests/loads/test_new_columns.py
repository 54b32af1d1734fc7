"""A declared column that the target lacks, and one that is wider than there: changed, or refused with the statement."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from multiprocessing import get_context

import psycopg2
import pytest

from onceload_core.declaration import DeclarationChanged
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.names import Batch, Position
from onceload_core.ports import Session
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.quarantine import Selection, choose
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import Column, parse_column
from onceload_jobs.pipeline.declared import Declared, OnNewColumn, Publish, TransformEngine, Write
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.recover.retry import retry
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from onceload_jobs.write import evolve
from onceload_jobs.write.evolve import TableHeld, evolve_target
from tests.loads.conftest import COLUMNS, InThisProcess, Loads
from tests.servers import execute
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.usually_staged

_GATE = 20_261_127
WITH_CITY = COLUMNS | {"city": "text"}
TYPES = (
    "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'target'::regclass "
    "AND attnum > 0 AND NOT attisdropped AND attname NOT LIKE '\\_%' ORDER BY attnum"
)


def columns_of(types: dict[str, str]) -> tuple[Column, ...]:
    return tuple(parse_column(*each) for each in types.items())


def adding(loads: Loads, types: dict[str, str] = WITH_CITY) -> Declared:
    return replace(loads.declared, columns=columns_of(types), on_new_column=OnNewColumn.ADD)


def record(number: int, **fields: str) -> str:
    listed = "".join(f', "{name}": {value}' for name, value in fields.items())
    return f'{{"id": {number}, "note": "n"{listed}}}\n'


def there(loads: Loads) -> dict[str, str]:
    return dict(loads.ask(TYPES))


@pytest.fixture
def loaded(loads: Loads) -> Loads:
    """Two rows of a table without city; the file already has the field."""
    loads.write("a.jsonl", record(1, city='"Rome"') + record(2))
    assert loads.load().loaded == 2
    return loads


def test_a_declared_column_is_added_and_the_rows_that_were_there_have_null_in_it(loaded):
    loaded.write("a.jsonl", record(1, city='"Rome"') + record(2) + record(3, city='"Oslo"'))
    loaded.declared = adding(loaded)

    report = loaded.load()

    assert loaded.rows("id, city") == [(1, None), (2, None), (3, "Oslo")]
    outcome = "the column city text was added. Existing rows have null in it"
    assert [(note.name, note.reason) for note in report.notes] == [('"public"."target"', outcome)]
    loaded.write("b.jsonl", record(4, city='"Bern"'))
    assert (loaded.load().notes, loaded.rows("city")[-2:]) == ((), [None, None])
    assert verify(loaded.declared, loaded.engine).differing == 0


def test_without_leave_a_missing_column_is_refused_with_the_statement_that_adds_it(loaded):
    loaded.write("b.jsonl", record(3, city='"Oslo"'))
    loaded.declared = replace(loaded.declared, columns=columns_of(WITH_CITY | {"zip": "varchar(5)"}))

    with pytest.raises(SettingRefused, match="city is missing; zip is missing") as refused:
        loaded.load()

    (statement,) = re.findall("run `(ALTER TABLE .*?)`, or set on_new_column: add", str(refused.value))
    assert statement == 'ALTER TABLE "public"."target" ADD COLUMN "city" text, ADD COLUMN "zip" varchar(5)'
    assert (loaded.rows(), refused.value.exit_code) == ([1, 2], ExitCode.WRONG_USE)
    execute(loaded.admin_dsn, statement)
    assert loaded.load().loaded == 1


def test_rows_loaded_with_more_columns_are_rewound_and_loaded_again(loaded):
    loaded.write("b.jsonl", record(3, city='"Oslo"'))
    loaded.declared = adding(loaded)
    loaded.load()

    rewind(loaded.declared, loaded.engine, to=Position(0), dry_run=False)

    assert loaded.rows() == []
    loaded.load()
    assert loaded.rows("id, city") == [(1, "Rome"), (2, None), (3, "Oslo")]


WIDER = {
    "varchar(3)": ("text", '"abcde"'),
    "varchar(4)": ("varchar(5)", '"abcde"'),
    "varchar(5)": ("varchar", '"abcdef"'),
    "numeric(4,2)": ("numeric(6,2)", "1234.50"),
}


def with_city(loads: Loads, of_type: str) -> None:
    """A table with two rows, and an index of the column."""
    loads.declared = replace(loads.declared, columns=columns_of(COLUMNS | {"city": of_type}))
    loads.write("a.jsonl", record(1, city="12.5" if of_type.startswith("n") else '"abc"') + record(2))
    loads.load()
    execute(loads.admin_dsn, "CREATE INDEX cities ON target (city)")


FILES = "SELECT pg_relation_filenode('target'), pg_relation_filenode('cities')"


@pytest.mark.parametrize("before", WIDER)
def test_a_wider_type_that_needs_no_rewrite_is_taken(loads, before):
    after, value = WIDER[before]
    with_city(loads, before)
    stored, old = loads.ask(FILES), loads.ask("SELECT city FROM target WHERE id = 1")
    loads.write("b.jsonl", record(3, city=value))
    loads.declared = adding(loads, COLUMNS | {"city": after})

    report = loads.load()

    assert (report.loaded, report.quarantined) == (1, 0)
    assert (loads.ask(FILES), loads.ask("SELECT city FROM target WHERE id = 1")) == (stored, old)
    assert there(loads)["city"] == after.replace("varchar", "character varying")
    assert report.notes[0].reason.startswith("the column city was widened from ")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("integer", "bigint"),
        ("smallint", "numeric(5,0)"),
        ("real", "double precision"),
        ("numeric(4,2)", "numeric(7,4)"),
    ],
)
def test_a_wider_type_that_rewrites_the_table_is_left_to_a_person(loads, before, after):
    loads.declared = replace(loads.declared, columns=columns_of(COLUMNS | {"city": before}))
    loads.write("a.jsonl", record(1, city="7"))
    loads.load()
    loads.write("b.jsonl", record(2, city="8"))
    loads.declared = adding(loads, COLUMNS | {"city": after})

    with pytest.raises(SettingRefused, match="rewrites the whole table for city, and blocks all reads") as refused:
        loads.load()

    assert there(loads)["city"] == before
    (statement,) = re.findall("`(ALTER TABLE .*?)`", str(refused.value))
    execute(loads.admin_dsn, statement)
    assert loads.load().loaded == 1
    assert loads.ask("SELECT sum(city) FROM target") == [(15,)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("numeric(6,2)", "numeric(6,1)"),
        ("numeric(6,2)", "numeric(6,3)"),
        ("numeric(6,2)", "numeric(5,2)"),
        ("varchar(5)", "varchar(4)"),
        ("varchar", "varchar(400)"),
        ("text", "varchar(10)"),
        ("bigint", "integer"),
        ("bigint", "numeric(18,0)"),
        ("bigint", "double precision"),
        ("double precision", "real"),
        ("timestamp", "timestamptz"),
        ("text", "jsonb"),
        ("text[]", "text"),
        ("varchar(3)[]", "text[]"),
    ],
)
def test_a_change_that_could_lose_values_is_refused(loads, before, after):
    loads.declared = replace(loads.declared, columns=columns_of(COLUMNS | {"city": before}))
    loads.write("a.jsonl", record(1))
    loads.load()
    loads.write("b.jsonl", record(2))
    loads.declared = adding(loads, COLUMNS | {"city": after, "more": "text"})
    types = there(loads)

    with pytest.raises(SettingRefused, match=r"declare city as .*, or give the column another name: .* lose values"):
        loads.load()

    assert (there(loads), loads.rows()) == (types, [1])


@pytest.mark.parametrize("create", ["CREATE TYPE place AS ENUM ('Oslo', 'Rome')", "CREATE DOMAIN place AS text"])
def test_a_column_of_a_type_that_loads_do_not_write_is_refused_with_what_can_be_done(loads, create):
    execute(loads.admin_dsn, create)
    execute(loads.admin_dsn, "CREATE TABLE target (id bigint, city place, _producer_id bigint, _sequence bigint)")
    execute(loads.admin_dsn, "GRANT ALL ON target TO onceload_loader")
    loads.declared = replace(loads.declared, columns=columns_of({"id": "bigint", "city": "text"}))
    loads.write("a.jsonl", record(1))

    with pytest.raises(SettingRefused, match="loads do not write columns of the type place") as refused:
        loads.load()

    execute(loads.admin_dsn, str(refused.value).split("`")[1])
    assert loads.load().loaded == 1


def test_a_role_that_does_not_own_the_table_gets_the_statement_to_run(loads):
    execute(loads.admin_dsn, "CREATE TABLE target (id bigint, amount numeric(12,2), note text)")
    execute(loads.admin_dsn, "ALTER TABLE target ADD _producer_id bigint, ADD _sequence bigint")
    execute(loads.admin_dsn, "GRANT ALL ON target TO onceload_loader")
    loads.write("a.jsonl", record(1, city='"Rome"'))
    loads.declared = adding(loads)

    with pytest.raises(SettingRefused, match="owned by postgres, and only its owner may change it") as refused:
        loads.load()

    assert 'run `ALTER TABLE "public"."target" ADD COLUMN "city" text`' in str(refused.value)
    (statement,) = re.findall("let loads do it, run `(.*?)`", str(refused.value))
    execute(loads.admin_dsn, statement)
    assert (loads.load().loaded, loads.rows("city")) == (1, ["Rome"])


def test_a_view_of_the_table_keeps_no_column_from_being_added_but_one_from_being_widened(loads):
    with_city(loads, "varchar(3)")
    execute(loads.admin_dsn, "CREATE VIEW seen AS SELECT * FROM target")
    loads.write("b.jsonl", record(3, zip='"0150"'))
    loads.declared = adding(loads, COLUMNS | {"city": "varchar(3)", "zip": "text"})
    assert loads.load().loaded == 1

    loads.write("c.jsonl", record(4, city='"Oslo"'))
    loads.declared = adding(loads, COLUMNS | {"city": "text", "zip": "text"})
    with pytest.raises(SettingRefused, match="cannot alter type of a column used by a view") as refused:
        loads.load()

    assert 'ALTER COLUMN "city" TYPE text' in str(refused.value)
    execute(loads.admin_dsn, "DROP VIEW seen")
    assert loads.load().loaded == 1


@pytest.mark.parametrize(
    ("column", "more"),
    [
        ('varchar(3) COLLATE "C"', ""),
        ("varchar(3) CHECK (city <> 'x')", ""),
        ("varchar(3)", "CREATE INDEX lower_cities ON target (lower(city))"),
        ("varchar(3)", "CREATE INDEX some_ids ON target (id) WHERE city > 'm'"),
    ],
)
def test_a_type_is_not_widened_where_that_costs_more_than_the_catalog(loads, column, more):
    columns = "id bigint, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint"
    execute(loads.admin_dsn, f"CREATE TABLE target ({columns}, city {column}); {more}")
    execute(loads.admin_dsn, "ALTER TABLE target OWNER TO onceload_loader")
    loads.write("a.jsonl", record(1, city='"Rome"'))
    loads.declared = adding(loads, COLUMNS | {"city": "text"})

    with pytest.raises(SettingRefused, match=r'column city with.*Run `.*ALTER COLUMN "city" TYPE text`'):
        loads.load()
    loads.declared = adding(loads, COLUMNS | {"city": "varchar(3)", "zip": "text"})
    assert (loads.load().loaded, loads.load().quarantined) == (0, 0)


def test_a_partitioned_table_gets_the_column_in_all_of_its_partitions(loads):
    execute(
        loads.admin_dsn,
        "CREATE TABLE target (id bigint, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint) "
        "PARTITION BY RANGE (id)",
    )
    execute(loads.admin_dsn, "CREATE TABLE low PARTITION OF target FOR VALUES FROM (0) TO (2)")
    execute(loads.admin_dsn, "CREATE TABLE high PARTITION OF target FOR VALUES FROM (2) TO (9)")
    for table in ("target", "low", "high"):
        execute(loads.admin_dsn, f"ALTER TABLE {table} OWNER TO onceload_loader")
    loads.write("a.jsonl", record(1, city='"Rome"') + record(2, city='"Oslo"'))
    loads.declared = adding(loads)

    assert loads.load().loaded == 2
    assert loads.ask("SELECT city FROM low UNION ALL SELECT city FROM high") == [("Rome",), ("Oslo",)]


def merged(loads: Loads) -> Declared:
    return replace(loads.declared, target=replace(loads.declared.target, write=Write.MERGE, key=("id",)))


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_merge_gets_a_column_but_not_one_of_its_key(loads):
    loads.declared = merged(loads)
    loads.write("a.jsonl", record(1) + record(2))
    loads.load()
    loads.write("b.jsonl", record(2, city='"Oslo"') + record(3, city='"Bern"'))
    loads.declared = adding(loads)

    assert loads.load().loaded == 2
    assert loads.rows("id, city") == [(1, None), (2, "Oslo"), (3, "Bern")]

    loads.declared = adding(loads, WITH_CITY | {"part": "text"})
    loads.declared = replace(loads.declared, target=replace(loads.declared.target, key=("id", "part")))
    loads.write("c.jsonl", record(4, part='"x"'))
    with pytest.raises(SettingRefused, match="part is missing"):
        loads.load()
    assert "part" not in there(loads)


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_column_that_a_transform_makes_is_added(loaded):
    loaded.write("b.jsonl", record(3))
    transform = "SELECT id, amount, note, upper(note) AS loud, _producer_id, _sequence FROM records"
    loaded.declared = replace(
        loaded.declared, on_new_column=OnNewColumn.ADD, transform=transform, transform_engine=TransformEngine.POSTGRES
    )

    assert loaded.load().loaded == 1
    assert loaded.rows("id, loud") == [(1, None), (2, None), (3, "N")]


def test_a_retry_of_a_quarantined_record_adds_the_column(loads):
    loads.write("a.jsonl", record(1) + record(2, amount='"1.555"', city='"Oslo"'))
    assert loads.load().quarantined == 1
    loads.declared = adding(loads, WITH_CITY | {"amount": "text"})
    execute(loads.admin_dsn, "ALTER TABLE target ALTER amount TYPE text")
    held = choose(loads.engine, Selection(pipeline="events")).held

    assert retry(loads.engine, loads.ledger, loads.declared, held, batch=new_batch()).retried == 1
    assert loads.rows("id, city") == [(1, None), (2, "Oslo")]


def session_of(loads: Loads, declared: Declared) -> Session:
    version = loads.ledger.declare(pipeline_with_declaration(declared))
    return loads.ledger.open_session("events", "s", version=version)  # type: ignore[arg-type] # Any name will do.


def test_a_load_of_an_earlier_version_of_the_file_changes_no_table(loaded):
    earlier = adding(loaded)
    session = session_of(loaded, earlier)
    session_of(loaded, loaded.declared)

    with pytest.raises(DeclarationChanged):
        evolve_target(loaded.engine, earlier, session, columns=earlier.columns)

    assert "city" not in there(loaded)


@contextmanager
def transaction(dsn: str) -> Iterator[Callable[[str], None]]:
    with closing(psycopg2.connect(dsn, application_name="a reader")) as connection, connection.cursor() as cursor:
        yield cursor.execute
        connection.rollback()


def test_a_reader_that_holds_the_table_is_named_and_nothing_hangs(loaded, monkeypatch):
    monkeypatch.setattr(evolve, "_PATIENCE_S", 1.0)
    loaded.write("b.jsonl", record(3, city='"Oslo"'))
    loaded.declared = adding(loaded)

    with transaction(loaded.admin_dsn) as execute_in:
        execute_in("SELECT count(*) FROM target")
        with pytest.raises(TableHeld, match=r"other transactions use it: pid \d+ \(postgres, a reader\)") as held:
            loaded.load()

    assert held.value.exit_code is ExitCode.CALL_AGAIN
    assert held.value.statement == 'ALTER TABLE "public"."target" ADD COLUMN "city" text'
    assert (loaded.rows(), "city" in there(loaded)) == ([1, 2], False)
    assert loaded.load().loaded == 1


def test_a_reader_that_ends_lets_the_load_go_on(loaded):
    loaded.write("b.jsonl", record(3, city='"Oslo"'))
    loaded.declared = adding(loaded)
    with transaction(loaded.admin_dsn) as execute_in:
        execute_in("SELECT count(*) FROM target")
        loader = threading.Thread(target=loaded.load)
        loader.start()
        waits = "SELECT count(*) FROM pg_locks WHERE relation = 'target'::regclass AND NOT granted"
        until(lambda: execute(loaded.admin_dsn, waits) == [(1,)])
    loader.join()

    assert loaded.rows("id, city") == [(1, None), (2, None), (3, "Oslo")]


def test_a_commit_that_holds_the_table_and_needs_the_pipeline_ends_first(loaded):
    """Each waits for a lock of the other: the change must release its lock before Postgres looks for a deadlock."""
    declared = adding(loaded)
    session = session_of(loaded, declared)
    with transaction(loaded.admin_dsn) as execute_in:
        execute_in("LOCK TABLE target IN ROW EXCLUSIVE MODE")
        more = {"columns": declared.columns}
        changes = threading.Thread(target=evolve_target, args=(loaded.engine, declared, session), kwargs=more)
        changes.start()
        waits = "SELECT count(*) FROM pg_locks WHERE relation = 'target'::regclass AND NOT granted"
        until(lambda: execute(loaded.admin_dsn, waits) == [(1,)])
        # One that has waited for a second has looked for a deadlock; from then on, the other one would find it.
        looks = f"{waits} AND waitstart > clock_timestamp() - interval '1.5 s'"
        until(lambda: execute(loaded.admin_dsn, looks) == [(0,)])
        execute_in("SELECT 1 FROM onceload.pipeline FOR NO KEY UPDATE")
    changes.join()

    assert there(loaded)["city"] == "text"


@pytest.fixture
def vacuumed(loaded) -> Iterator[Loads]:
    """Autovacuum runs on the table, and would need minutes."""
    many = "INSERT INTO target (id) SELECT 0 FROM generate_series(1, 100000)"
    slow = "autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_cost_delay = 100, autovacuum_vacuum_threshold = 0"
    execute(loaded.admin_dsn, f"ALTER TABLE target SET ({slow}, autovacuum_vacuum_scale_factor = 0)")
    execute(loaded.admin_dsn, many)
    execute(loaded.admin_dsn, "DELETE FROM target WHERE id = 0")
    execute(loaded.admin_dsn, "ALTER SYSTEM SET autovacuum_naptime = '1s'")
    execute(loaded.admin_dsn, "SELECT pg_reload_conf()")
    at_work = "SELECT count(*) FROM pg_stat_progress_vacuum WHERE relid = 'target'::regclass"
    try:
        until(lambda: execute(loaded.admin_dsn, at_work) == [(1,)])
        yield loaded
    finally:
        execute(loaded.admin_dsn, "ALTER SYSTEM RESET autovacuum_naptime")
        execute(loaded.admin_dsn, "SELECT pg_reload_conf()")


def test_a_change_of_the_table_does_not_wait_for_the_end_of_autovacuum(vacuumed, monkeypatch):
    monkeypatch.setattr(evolve, "_PATIENCE_S", 5.0)
    vacuumed.write("b.jsonl", record(3, city='"Oslo"'))
    vacuumed.declared = adding(vacuumed)

    assert vacuumed.load().loaded == 1
    assert vacuumed.rows("id, city") == [(1, None), (2, None), (3, "Oslo")]


def test_two_loads_at_once_add_the_column_once(loaded):
    loaded.declared = adding(loaded)
    for number in range(3, 7):
        loaded.write(f"{number}.jsonl", record(number, city='"Oslo"'))
    failed: list[BaseException] = []

    def load_now() -> None:
        try:
            settings = LoadSettings(ledger=LedgerSettings(dsn=loaded.dsn), wait_s=PATIENCE_S)
            load(loaded.declared, settings, batch=new_batch(), executor=InThisProcess())
        except BaseException as error:  # noqa: BLE001 - the test raises what it finds.
            failed.append(error)

    with transaction(loaded.admin_dsn) as execute_in:
        # Both come to the table while it is held.
        execute_in("LOCK TABLE target IN ROW EXCLUSIVE MODE")
        both = [threading.Thread(target=load_now) for _ in range(2)]
        for each in both:
            each.start()
        waits = "SELECT count(*) FROM pg_locks WHERE relation = 'target'::regclass AND NOT granted"
        until(lambda: execute(loaded.admin_dsn, waits)[0][0] > 0)
    for each in both:
        each.join()

    assert failed == []
    assert loaded.rows("id, city") == [(1, None), (2, None), *((number, "Oslo") for number in range(3, 7))]


#: The moments of a change at which a load is killed, as triggers that wait there.
MOMENTS = {
    "before ALTER TABLE": "EVENT TRIGGER gate ON ddl_command_start WHEN TAG IN ('ALTER TABLE')",
    "after ALTER TABLE": "EVENT TRIGGER gate ON ddl_command_end WHEN TAG IN ('ALTER TABLE')",
    "after its commit": "TRIGGER gate AFTER INSERT ON target",
    "at the COMMIT of the rows": "CONSTRAINT TRIGGER gate AFTER INSERT ON onceload.ledger INITIALLY DEFERRED "
    "FOR EACH ROW",
}


@contextmanager
def gate(moment: str, dsn: str) -> Iterator[Callable[[], bool]]:
    """A transaction that comes to this moment waits; whether one does."""
    is_of_ddl = MOMENTS[moment].startswith("EVENT")
    returns, ending = ("event_trigger", "") if is_of_ddl else ("trigger", "RETURN NULL;")
    with closing(psycopg2.connect(dsn)) as holder, holder.cursor() as cursor:
        holder.autocommit = True
        # A load gives up other waits for locks after a while.
        cursor.execute(
            f"CREATE FUNCTION wait_at_gate() RETURNS {returns} LANGUAGE plpgsql SET lock_timeout = 0 AS "
            f"$$ BEGIN PERFORM pg_advisory_xact_lock({_GATE}); {ending} END $$"
        )
        cursor.execute(f"CREATE {MOMENTS[moment]} EXECUTE FUNCTION wait_at_gate()")
        cursor.execute(f"SELECT pg_advisory_lock({_GATE})")
        waiting = f"SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = {_GATE}"
        try:
            yield lambda: execute(dsn, f"{waiting} AND NOT granted") == [(1,)]
        finally:
            cursor.execute(f"SELECT pg_advisory_unlock({_GATE})")
            until(lambda: execute(dsn, waiting) == [(0,)])
            cursor.execute("DROP FUNCTION wait_at_gate CASCADE")


def load_first(declared: Declared, settings: LoadSettings) -> None:
    load(declared, settings, batch=Batch("first"), executor=InThisProcess())


@pytest.mark.parametrize(
    "moment",
    [pytest.param(each, marks=pytest.mark.long if each.startswith("after") else ()) for each in MOMENTS],
)
def test_a_load_that_is_killed_around_the_change_and_called_again_loads_each_record_once(loaded, moment):
    loaded.write("b.jsonl", record(3, city='"Oslo"'))
    loaded.declared = adding(loaded)
    settings = LoadSettings(ledger=LedgerSettings(dsn=loaded.dsn, lock_timeout_s=PATIENCE_S))

    with gate(moment, loaded.admin_dsn) as is_reached:
        process = get_context("spawn").Process(target=load_first, args=(loaded.declared, settings))
        process.start()
        try:
            until(lambda: is_reached() or not process.is_alive())
            assert is_reached(), "it ended before it could be killed"
        finally:
            process.kill()
            process.join()

    assert ("city" in there(loaded)) == ("ALTER" not in moment)
    # The lock of the killed load is gone with it.
    loaded.load(batch="first")
    assert loaded.rows("id, city") == [(1, None), (2, None), (3, "Oslo")]
    assert verify(loaded.declared, loaded.engine).differing == 0
