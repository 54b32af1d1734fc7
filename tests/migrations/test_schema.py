"""The schema: what the migrations make is what schema.sql says, and what does not fit this code is refused."""

import threading
from contextlib import contextmanager

import pytest
from alembic.script import ScriptDirectory
from sqlalchemy import text

from onceload import schema
from onceload_core.errors import ExitCode, SchemaRefused, UpgradeUnfinished
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.pausing import find_pause, pause
from tests.migrations import FIRST, NEXT, THIS, only_the_first, with_migration
from tests.waiting import PATIENCE_S

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


GAINED = "ALTER TABLE onceload.ledger ADD COLUMN remark text"
LOST = f"UPDATE onceload.schema_version SET compatible_from = '{NEXT}'"


@pytest.fixture
def release_after(tmp_path, monkeypatch):
    """Code of the next release, which has one migration more; outside of the block it is that of this release."""

    @contextmanager
    def installed(statement):
        with monkeypatch.context() as patched:
            patched.setattr(schema, "MIGRATIONS", with_migration(tmp_path / "migrations", statement))
            yield

    return installed


@pytest.fixture
def engine(empty_dsn):
    engine = connect(LedgerSettings(dsn=empty_dsn))
    yield engine
    engine.dispose()


def catalog(engine):
    with engine.begin() as connection:
        return [tuple(row) for row in connection.execute(text(CATALOG))]


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
    files = {path.name.split("_", 1)[0] for path in (schema.MIGRATIONS / "versions").glob("*.py")}
    assert {each.revision for each in script.walk_revisions()} == files


def test_upgrading_again_changes_nothing(engine, logged):
    first, second = schema.upgrade(engine), schema.upgrade(engine)

    assert first == (None, schema.head())
    assert second == (schema.head(), schema.head())
    assert logged.one("schema_migrated") == {"revision": schema.head(), "revision_was": None}
    schema.check(engine)


def test_four_upgrades_at_once_make_one_schema(empty_dsn):
    engines = [connect(LedgerSettings(dsn=empty_dsn)) for _ in range(4)]
    results = []
    threads = [threading.Thread(target=lambda each=each: results.append(schema.upgrade(each))) for each in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE_S)
    for each in engines:
        each.dispose()

    assert sorted(results, key=str) == [(schema.head(), schema.head())] * 3 + [(None, schema.head())]


def test_a_database_of_the_first_release_is_upgraded_and_its_pipelines_can_be_paused(engine, tmp_path, monkeypatch):
    pipeline = text(
        "INSERT INTO onceload.pipeline (name, position, producers_max, islands_max, message_keep_days,"
        " snapshot_every_commits, snapshot_every_s, snapshots_kept) VALUES ('events', 3, 9, 9, 0, 9, 9, 9)"
    )
    with monkeypatch.context() as first_release:
        first_release.setattr(schema, "MIGRATIONS", only_the_first(tmp_path / "migrations"))
        made = schema.upgrade(engine)
        with engine.begin() as connection:
            connection.execute(pipeline)
    with pytest.raises(UpgradeUnfinished, match="Run `onceload init`"):
        schema.check(engine)

    assert (made, schema.upgrade(engine)) == ((None, FIRST), (FIRST, THIS))
    assert find_pause(engine, "events") is None
    assert not pause(engine, "events", by="ann", why="a repair").is_earlier
    # Processes of the first release go on.
    with monkeypatch.context() as first_release:
        first_release.setattr(schema, "MIGRATIONS", tmp_path / "migrations")
        assert schema.check(engine) == THIS


def test_a_missing_schema_is_refused_with_the_command_that_makes_it(engine):
    with pytest.raises(SchemaRefused, match=r"missing .*Nothing was changed\. Run `onceload init`"):
        schema.check(engine)


def test_a_worker_of_the_release_before_runs_on_a_schema_that_only_gained(engine, release_after):
    schema.upgrade(engine)
    with release_after(GAINED):
        upgraded = schema.upgrade(engine)
    before = catalog(engine)

    assert (upgraded, schema.check(engine)) == ((THIS, NEXT), NEXT)
    assert schema.upgrade(engine) == (NEXT, NEXT)
    assert catalog(engine) == before


def test_a_worker_that_the_schema_has_left_behind_writes_nothing_and_is_called_again(engine, release_after):
    schema.upgrade(engine)
    with release_after(LOST):
        schema.upgrade(engine)
    before = catalog(engine)

    for use in (schema.check, schema.upgrade):
        with pytest.raises(UpgradeUnfinished, match=rf"at revision {NEXT}, and.*for revision {THIS}.*Install") as told:
            use(engine)
        assert told.value.exit_code is ExitCode.CALL_AGAIN

    assert catalog(engine) == before


def test_a_worker_that_the_schema_does_not_know_yet_is_called_again(engine, release_after):
    schema.upgrade(engine)

    with (
        release_after(GAINED),
        pytest.raises(UpgradeUnfinished, match=rf"at revision {THIS}.*Run `onceload init`") as told,
    ):
        schema.check(engine)

    assert told.value.exit_code is ExitCode.CALL_AGAIN


def test_a_worker_that_comes_while_the_schema_is_changed_is_called_again(engine, empty_dsn):
    schema.upgrade(engine)
    impatient = connect(LedgerSettings(dsn=empty_dsn, lock_timeout_s=0.1))
    with engine.begin() as upgrading:
        schema._lock_all(upgrading)
        with pytest.raises(UpgradeUnfinished, match="is being changed now"):
            schema.check(impatient)
    impatient.dispose()


def test_an_upgrade_that_has_to_wait_delays_no_other_session_for_long(engine, empty_dsn, release_after):
    schema.upgrade(engine)
    others, upgraded = connect(LedgerSettings(dsn=empty_dsn)), []
    with release_after(GAINED), others.connect() as slow:
        slow.execute(text("SELECT FROM onceload.ledger"))
        upgrade = threading.Thread(target=lambda: upgraded.append(schema.upgrade(engine)))
        upgrade.start()
        wait_for_an_upgrade(others)
        # A session that asks now is behind the upgrade, and the slow one asks for what the upgrade may have by now.
        for connection in (others.connect(), slow):
            for table in ("delivery", "ledger", "pipeline", "producer", "schema_version", "session"):
                connection.execute(text(f"SELECT FROM onceload.{table}"))
            connection.close()
        upgrade.join(timeout=PATIENCE_S)
    others.dispose()

    assert upgraded == [(THIS, NEXT)]


def wait_for_an_upgrade(engine):
    """Until it waits for a table."""
    waits = text("SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'")
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        while not connection.execute(waits).scalar_one():
            pass


def test_a_schema_from_before_the_first_release_is_refused_and_not_touched(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA onceload"))
        connection.execute(text("CREATE TABLE onceload.schema_version (version_num varchar(32) PRIMARY KEY)"))
        connection.execute(text("INSERT INTO onceload.schema_version VALUES ('0012')"))
        connection.execute(text("CREATE TABLE onceload.pipeline ()"))
    before = catalog(engine)

    for use in (schema.check, schema.upgrade):
        with pytest.raises(SchemaRefused, match=r"0012 from before the first release.*Load all files into a new"):
            use(engine)

    assert catalog(engine) == before


def test_a_schema_of_the_same_name_by_another_application_is_refused_and_not_touched(engine):
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA onceload"))
        connection.execute(text("CREATE TABLE onceload.pipeline (theirs text)"))
    before = catalog(engine)

    for use in (schema.check, schema.upgrade):
        with pytest.raises(SchemaRefused, match=r"of another application \(it contains pipeline\).*Rename that schema"):
            use(engine)

    assert catalog(engine) == before


@pytest.mark.parametrize("columns", ["theirs text", "version_num text"])
def test_a_version_table_of_another_application_is_not_taken_for_ours(engine, columns):
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA onceload"))
        connection.execute(text(f"CREATE TABLE onceload.schema_version ({columns})"))
        connection.execute(text("CREATE TABLE onceload.pipeline (theirs text)"))
        connection.execute(text("INSERT INTO onceload.schema_version VALUES ('flyway')"))

    for use in (schema.check, schema.upgrade):
        with pytest.raises(SchemaRefused, match="Rename that schema"):
            use(engine)


def test_an_empty_schema_of_the_name_is_used(engine):
    """An administrator may have made it, with rights for us alone."""
    with engine.begin() as connection:
        connection.execute(text("CREATE SCHEMA onceload"))

    assert schema.upgrade(engine) == (None, schema.head())
