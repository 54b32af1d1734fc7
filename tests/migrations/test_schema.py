"""The schema: what the migrations make is what schema.sql says, and what does not fit this code is refused."""

import threading

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from dedup_core.errors import SchemaRefused
from dedup_core.postgres import LedgerSettings, connect
from onceload import schema

pytestmark = pytest.mark.every_postgres

CATALOG = """
SELECT 'column', table_name || '.' || column_name, concat_ws(' ', data_type, is_nullable, column_default, is_identity,
       identity_generation) FROM information_schema.columns WHERE table_schema = 'onceload'
UNION ALL
SELECT 'constraint', conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
  FROM pg_constraint WHERE connamespace = to_regnamespace('onceload')
UNION ALL
SELECT 'index', indexname, indexdef FROM pg_indexes WHERE schemaname = 'onceload'
UNION ALL
SELECT 'trigger', tgrelid::regclass || '.' || tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
UNION ALL
SELECT 'function', proname, prosrc FROM pg_proc WHERE pronamespace = to_regnamespace('onceload')
UNION ALL
SELECT 'table', relname, CAST(relkind AS text) || ' ' || coalesce(array_to_string(reloptions, ','), '')
  FROM pg_class WHERE relnamespace = to_regnamespace('onceload')
ORDER BY 1, 2, 3
"""


@pytest.fixture
def engine(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    yield engine
    engine.dispose()


def catalog(engine):
    with engine.begin() as connection:
        rows = [tuple(row) for row in connection.execute(text(CATALOG))]
    return [row for row in rows if "schema_version" not in row[1]]


def test_the_migrations_make_what_the_readable_schema_says(engine):
    schema.upgrade(engine)
    migrated = catalog(engine)
    with engine.begin() as connection:
        connection.execute(text("DROP SCHEMA onceload CASCADE"))
        readable = (schema.MIGRATIONS / "schema.sql").read_text(encoding="utf-8")
        connection.execution_options(no_parameters=True).exec_driver_sql(readable)

    assert len(migrated) > 100
    assert migrated == catalog(engine)


def test_the_files_are_named_by_the_revisions_that_they_hold():
    script = ScriptDirectory(str(schema.MIGRATIONS))

    assert script.get_heads() == [schema.head()]
    assert {each.revision for each in script.walk_revisions()} == schema._known()


def test_upgrading_again_changes_nothing(engine):
    first, second = schema.upgrade(engine), schema.upgrade(engine)

    assert first == (None, schema.head())
    assert second == (schema.head(), schema.head())
    schema.check(engine)


def test_four_upgrades_at_once_make_one_schema(dsn):
    engines = [connect(LedgerSettings(dsn=dsn)) for _ in range(4)]
    results = []
    threads = [threading.Thread(target=lambda each=each: results.append(schema.upgrade(each))) for each in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    for each in engines:
        each.dispose()

    assert sorted(results, key=str) == [(schema.head(), schema.head())] * 3 + [(None, schema.head())]


def test_a_missing_schema_is_refused_with_the_command_that_makes_it(engine):
    with pytest.raises(SchemaRefused, match="not there yet; nothing was changed: run `onceload init`"):
        schema.check(engine)


def test_an_older_schema_is_refused_with_the_command_that_upgrades_it(engine, monkeypatch):
    _, now = schema.upgrade(engine)
    monkeypatch.setattr(schema, "head", lambda: "9999")

    with pytest.raises(SchemaRefused, match=f"older, revision {now}; nothing was changed: run `onceload init`"):
        schema.check(engine)


def test_a_newer_schema_is_refused_and_not_touched(engine):
    schema.upgrade(engine)
    with engine.begin() as connection:
        connection.execute(text("UPDATE onceload.schema_version SET version_num = '9999'"))
    before = catalog(engine)

    for use in (schema.check, schema.upgrade):
        with pytest.raises(SchemaRefused, match=r"newer than this code, revision 9999.*install the Onceload release"):
            use(engine)

    assert catalog(engine) == before


def test_somebody_elses_schema_of_the_same_name_is_refused_and_not_touched(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA onceload"))
        connection.execute(text("CREATE TABLE onceload.pipeline (theirs text)"))
    before = catalog(engine)

    for use in (schema.check, schema.upgrade):
        with pytest.raises(SchemaRefused, match=r"somebody else's \(it holds pipeline\).*rename that schema"):
            use(engine)

    assert catalog(engine) == before


@pytest.mark.parametrize("columns", ["theirs text", "version_num text"])
def test_somebody_elses_version_table_is_not_taken_for_ours(engine, columns):
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA onceload"))
        connection.execute(text(f"CREATE TABLE onceload.schema_version ({columns})"))
        connection.execute(text("CREATE TABLE onceload.pipeline (theirs text)"))
        connection.execute(text("INSERT INTO onceload.schema_version VALUES ('flyway')"))

    for use in (schema.check, schema.upgrade):
        with pytest.raises(SchemaRefused, match="rename that schema"):
            use(engine)


def test_an_empty_schema_of_the_name_is_used(engine):
    """An administrator may have made it, with rights for us alone."""
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA onceload"))

    assert schema.upgrade(engine) == (None, schema.head())
