"""The three roles: each can do its work, and nothing more; each refusal here is an attack that the server stops."""

import json
import os
from contextlib import closing
from dataclasses import replace

import psycopg2
import pytest
from psycopg2.errors import InsufficientPrivilege

from onceload import cli, schema
from onceload_core.errors import ExitCode
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings, connect
from tests.loads.conftest import InThisProcess, declared_for
from tests.servers import as_member, execute, temporary_database, temporary_server

pytestmark = pytest.mark.every_postgres

RIGHTS = """
SELECT CAST(relation.oid AS regclass) AS name, acl.privilege_type FROM pg_class AS relation
 CROSS JOIN aclexplode(relation.relacl) AS acl
 WHERE relnamespace = 'onceload'::regnamespace AND acl.grantee = '{role}'::regrole"""
RELATIONS = """
SELECT oid::regclass::text FROM pg_class
 WHERE relnamespace = 'onceload'::regnamespace AND relkind IN ('r', 'p', 'v') AND NOT relispartition"""


@pytest.fixture
def made(dsn):
    """The address of a database that a superuser has made ready."""
    execute(dsn, "CREATE SCHEMA warehouse AUTHORIZATION onceload_loader")
    return dsn


def upgraded(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    try:
        return schema.upgrade(engine)
    finally:
        engine.dispose()


def with_roles(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    try:
        return schema.has_roles(engine)
    finally:
        engine.dispose()


def refused(dsn, statement):
    """Whether the server refuses it for want of rights, and for nothing else."""
    with closing(psycopg2.connect(dsn)) as connection, connection.cursor() as cursor:
        try:
            cursor.execute(statement)
        except InsufficientPrivilege:
            return True
        return False


@pytest.fixture
def loaded(made, tmp_path, capsys):
    """The same, after a load by a loader: one row, one bad record; and the pipeline's file."""
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.jsonl").write_text('{"id": 1}\n{"id": "secret-of-a-customer"}\n')
    file = tmp_path / "p.yaml"
    file.write_text(
        f"pipeline: events\nsource: {{path: {tmp_path}/landing/*.jsonl, format: jsonl}}\n"
        "columns: {id: bigint not null}\ntarget: {table: warehouse.events}\npublish: direct\n"
    )
    assert call(as_member(made, "onceload_loader"), "consume", str(file), "--session", "one") == 0
    capsys.readouterr()
    return made, file


def call(dsn, *command):
    """A command line in this process, as a user of the database."""
    return cli.main(command, {**os.environ, "ONCELOAD_DSN": dsn})


def test_every_table_is_of_the_owner_and_open_to_the_loader(made):
    relations = {name for (name,) in execute(made, RELATIONS)}
    owned = {name for (name,) in execute(made, RELATIONS + " AND relowner = 'onceload_owner'::regrole")}
    rights = execute(made, RIGHTS.format(role="onceload_loader"))
    read_by_loader = {name for name, right in rights if right == "SELECT"}

    assert len(relations) > 12
    assert relations == owned
    # A recovery says where new producers go on.
    assert read_by_loader == relations | {"onceload.producer_producer_id_seq"}


def test_no_other_role_has_any_right(made):
    grantees = execute(
        made,
        "SELECT DISTINCT coalesce(rolname, 'everybody') FROM ("
        " SELECT relacl AS acl FROM pg_class WHERE relnamespace = 'onceload'::regnamespace"
        " UNION ALL SELECT proacl FROM pg_proc WHERE pronamespace = 'onceload'::regnamespace AND prosecdef"
        " UNION ALL SELECT nspacl FROM pg_namespace WHERE nspname LIKE 'onceload%') AS all_of_it"
        " CROSS JOIN aclexplode(acl) AS entry LEFT JOIN pg_roles ON pg_roles.oid = entry.grantee",
    )

    assert {name for (name,) in grantees} <= {"onceload_owner", "onceload_loader", "onceload_reader", "postgres"}


@pytest.mark.parametrize(
    "attack",
    [
        "UPDATE onceload.ledger SET loaded = 0",
        "DELETE FROM onceload.ledger",
        "TRUNCATE onceload.ledger CASCADE",
        "UPDATE onceload.ledger_span SET rows = 0",
        "DELETE FROM onceload.ledger_span",
        "ALTER TABLE onceload.ledger DISABLE TRIGGER ALL",
        "DROP TRIGGER ledger_is_append_only ON onceload.ledger",
        "CREATE OR REPLACE FUNCTION onceload.refuse_to_change_the_past() RETURNS trigger LANGUAGE sql AS ''",
        "ALTER TABLE onceload.pipeline DROP CONSTRAINT pipeline_positions_count_up_from_zero",
        "DELETE FROM onceload.pipeline",
        "UPDATE onceload.snapshot_producer SET consumed = '{}'",
        "UPDATE onceload.message SET position = 0",
        "UPDATE onceload.schema_version SET version_num = '0001'",
        "DROP TABLE onceload.producer CASCADE",
        "CREATE TABLE onceload.mine ()",
        "CREATE TABLE onceload.mine PARTITION OF onceload.message FOR VALUES FROM ('2000-01-01') TO ('2000-01-02')",
        "SET ROLE onceload_owner",
        "CREATE ROLE another LOGIN SUPERUSER",
        "COPY onceload.ledger TO PROGRAM 'cat'",
        "COPY onceload.ledger FROM '/etc/passwd'",
        "CREATE SCHEMA more",
    ],
)
def test_a_loader_cannot(made, attack):
    assert refused(as_member(made, "onceload_loader"), attack)


def test_a_loader_cannot_mislead_a_function_of_the_owner_by_tables_of_its_own(made):
    execute(made, "CREATE TABLE warehouse.kept (n int)")
    with closing(psycopg2.connect(as_member(made, "onceload_loader"))) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT onceload.prepare_message_days()")
        cursor.execute("CREATE TEMPORARY TABLE pg_inherits (inhrelid oid, inhparent oid)")
        cursor.execute("CREATE TEMPORARY TABLE pg_class (oid oid, relname text)")
        cursor.execute("INSERT INTO pg_temp.pg_inherits VALUES (1, 'onceload.message'::regclass)")
        cursor.execute("INSERT INTO pg_temp.pg_class VALUES (1, 'x\"; DROP TABLE warehouse.kept; --20000101')")
        cursor.execute("SET search_path = pg_temp, pg_catalog")
        cursor.execute("SELECT onceload.forget_messages()")
        assert cursor.fetchall() == []
        connection.commit()

    assert execute(made, "SELECT count(*) FROM warehouse.kept") == [(0,)]


@pytest.mark.parametrize(
    "trap",
    [
        # Each fits what `onceload init` says better than Postgres's own, where others may make something in public.
        "FUNCTION public.hashtextextended(text, integer) RETURNS bigint",
        "FUNCTION public.has_table_privilege(regrole, text, text) RETURNS boolean",
    ],
)
def test_a_loader_cannot_make_a_superuser_call_a_function_of_its_own(made, trap):
    """It would become one, by the next `onceload init`."""
    execute(made, "GRANT CREATE ON SCHEMA public TO onceload_loader")
    body = "BEGIN RAISE EXCEPTION 'called by %', current_user; END"
    execute(as_member(made, "onceload_loader"), f"CREATE {trap} LANGUAGE plpgsql AS $${body}$$")

    upgraded(made)

    assert with_roles(made)


@pytest.mark.parametrize("attack", ["prepare_message_days", "forget_messages"])
def test_a_reader_cannot_call(made, attack):
    assert refused(as_member(made, "onceload_reader"), f"SELECT onceload.{attack}()")


@pytest.mark.parametrize("view", ["status", "producers", "ledger", "sessions", "deliveries list", "snapshot list"])
def test_a_reader_can_look_at(loaded, capsys, view):
    dsn, _ = loaded

    assert call(as_member(dsn, "onceload_reader"), *view.split(), "--json") == 0
    assert "secret-of-a-customer" not in capsys.readouterr().out


def test_a_reader_cannot_see_what_a_record_holds(loaded):
    dsn, _ = loaded
    reader = as_member(dsn, "onceload_reader")
    readable = "quarantine_id, producer_id, sequence_id, column_name, quarantined_at, state"

    assert execute(reader, f"SELECT count({readable.partition(',')[0]}) FROM onceload.quarantine") == [(1,)]
    for secret in ("raw FROM onceload.quarantine", "reason FROM onceload.quarantine", "* FROM warehouse.events"):
        assert refused(reader, f"SELECT {secret}")
    for secret in ("sample", "observed"):
        assert refused(reader, f"SELECT {secret} FROM onceload.quality_result")
    assert refused(reader, "SELECT message FROM onceload.message")


def test_a_reader_cannot_change_any_table(made):
    reader = as_member(made, "onceload_reader")
    changes = ("DELETE FROM {}", "TRUNCATE {}", "INSERT INTO {} DEFAULT VALUES", "LOCK TABLE {} IN EXCLUSIVE MODE")
    tables = [name for (name,) in execute(made, RELATIONS + " AND relkind <> 'v'")]

    assert all(refused(reader, change.format(name)) for name in tables for change in changes)
    assert refused(reader, "CREATE TABLE onceload_stage.mine ()")


@pytest.mark.parametrize(
    "command", ["consume", "maintain", "snapshot take", "recover state", "pause events --why repair", "resume events"]
)
def test_a_reader_gets_an_error_for_what_it_must_not_do(loaded, capsys, command):
    dsn, file = loaded
    arguments = [str(file), "--session", "two"] if command == "consume" else []

    code = call(as_member(dsn, "onceload_reader"), *command.split(), *arguments)

    assert code == ExitCode.WRONG_USE
    assert "docs/how-to/roles.md" in capsys.readouterr().err


@pytest.fixture
def shut(loaded, capsys):
    """A command of a loader that has no right on the schema of its target, and what it prints."""
    dsn, file = loaded
    execute(dsn, "ALTER SCHEMA warehouse OWNER TO postgres")
    execute(dsn, "REVOKE ALL ON SCHEMA warehouse FROM onceload_loader")

    def run(*command):
        code = call(as_member(dsn, "onceload_loader"), *(str(file) if each == "FILE" else each for each in command))
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("command", ["plan", "load", "verify", "quarantine retry", "consume --session one"])
def test_a_schema_that_a_loader_cannot_use_is_refused_with_the_grant_to_run(shut, command):
    code, said = shut(*command.split(), "FILE")

    assert code == ExitCode.WRONG_USE
    assert 'Run `GRANT USAGE, CREATE ON SCHEMA "warehouse" TO "onceload_loader"`' in said


@pytest.mark.parametrize(
    "command", [["show", "FILE"], ["show", "warehouse.events"], ["sql", "-c", "TABLE warehouse.events"]]
)
def test_a_table_that_a_user_cannot_read_is_refused_with_the_rights_to_grant(shut, command):
    code, said = shut(*command)

    assert code == ExitCode.WRONG_USE
    assert "permission denied for schema warehouse" in said
    assert "grant it USAGE on their schema and the right on the table (docs/how-to/roles.md)" in said


def test_two_loaders_share_what_either_of_them_made(made, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": 1}\n')
    declared = declared_for(tmp_path, columns={"id": "bigint"})
    declared = replace(declared, target=replace(declared.target, schema="warehouse"))
    first = as_member(made, "onceload_loader")
    execute(made, "DROP ROLE IF EXISTS second_loader")
    execute(made, "CREATE ROLE second_loader LOGIN IN ROLE onceload_loader")
    execute(made, "ALTER ROLE second_loader SET role = 'onceload_loader'")
    second = first.replace("a_onceload_loader@", "second_loader@")

    one = stage(declared, first, "one")
    (tmp_path / "b.jsonl").write_text('{"id": 2}\n')
    other = stage(declared, second, "other")

    assert (one.loaded, other.loaded) == (1, 1)
    assert execute(made, "SELECT id FROM warehouse.target ORDER BY id") == [(1,), (2,)]


def stage(declared, dsn, batch):
    from onceload_jobs.load.load import load
    from onceload_jobs.load.settings import LoadSettings

    settings = LoadSettings(ledger=LedgerSettings(dsn=dsn), wait_s=0)
    return load(declared, settings, batch=Batch(batch), executor=InThisProcess())


def test_a_member_of_the_owner_role_brings_the_schema_up_to_date(dsn):
    owner = as_member(dsn, "onceload_owner")
    # A later revision changes a table, makes another, and is written down.
    execute(owner, "ALTER TABLE onceload.pipeline ADD COLUMN later int")
    execute(owner, "CREATE TABLE onceload.later ()")

    assert upgraded(owner) == (schema.head(), schema.head())


def test_the_owner_of_tables_from_before_there_were_roles_keeps_all_rights(empty_dsn):
    database = empty_dsn.rpartition("/")[2].partition("?")[0]
    execute(empty_dsn, "DROP ROLE IF EXISTS alone")
    execute(empty_dsn, "CREATE ROLE alone LOGIN")
    execute(empty_dsn, f"ALTER DATABASE {database} OWNER TO alone")
    alone = empty_dsn.replace("://postgres@", "://alone@")
    try:
        upgraded(alone)
        before = with_roles(alone)
        upgraded(empty_dsn)

        assert (before, with_roles(alone)) == (False, True)
        execute(alone, "DELETE FROM onceload.pipeline")
        assert upgraded(alone) == (schema.head(), schema.head())
    finally:
        execute(empty_dsn, f"ALTER DATABASE {database} OWNER TO postgres")
        execute(empty_dsn, "DROP OWNED BY alone CASCADE")
        execute(empty_dsn, "DROP ROLE alone")


def test_a_user_who_may_create_roles_creates_them_and_another_gets_a_warning(postgres_version, capsys):
    with temporary_server(postgres_version) as server, temporary_database(server) as dsn:
        database = dsn.rpartition("/")[2].partition("?")[0]
        execute(dsn, "CREATE ROLE maker LOGIN")
        execute(dsn, f"ALTER DATABASE {database} OWNER TO maker")
        maker = dsn.replace("://postgres@", "://maker@")

        assert call(maker, "init") == 0
        assert "no roles were created: this user cannot create them" in capsys.readouterr().err
        execute(dsn, "ALTER ROLE maker CREATEROLE")
        assert call(maker, "init", "--json") == 0
        assert json.loads(capsys.readouterr().out)["has_roles"] is True
        assert not refused(as_member(dsn, "onceload_loader"), "DELETE FROM onceload.session")
