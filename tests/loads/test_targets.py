"""Which tables are targets, and that the database has written each row that a commit says is loaded."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from psycopg2.errors import LockNotAvailable

from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.guards import RowsDiffer
from onceload_core.postgres.quarantine import Selection, choose
from onceload_jobs.load.settings import new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Publish, Write
from onceload_jobs.recover.retry import retry
from onceload_jobs.write import target
from onceload_jobs.write.target import CommitRefused, check_target, count_written, ensure_target
from tests.loads.conftest import Loads, line
from tests.loads.test_load import counts
from tests.servers import execute

COLUMNS = "id bigint PRIMARY KEY, amount numeric(12,2), note text, _producer_id bigint, _sequence bigint"
PLAIN = COLUMNS.replace(" PRIMARY KEY", "")
POSITION = "SELECT coalesce(max(position), 0) FROM onceload.pipeline"


def make(loads: Loads, *statements: str) -> None:
    """As an administrator, who then gives all of it to the loader."""
    for statement in statements:
        execute(loads.admin_dsn, statement)
    execute(loads.admin_dsn, "GRANT ALL ON ALL TABLES IN SCHEMA public TO onceload_loader")


def foreign(of: str) -> tuple[str, ...]:
    return (
        "CREATE FOREIGN DATA WRAPPER nothing",
        "CREATE SERVER elsewhere FOREIGN DATA WRAPPER nothing",
        f"CREATE FOREIGN TABLE {of} SERVER elsewhere",
    )


UNFIT = {
    "unlogged": (("CREATE UNLOGGED TABLE target (" + PLAIN + ")",), "an unlogged table, whose rows are lost"),
    "foreign": (foreign(f"target ({PLAIN})"), "a foreign table, whose rows another server commits"),
    "view": (("CREATE TABLE below (" + PLAIN + ")", "CREATE VIEW target AS SELECT * FROM below"), "a view"),
    "materialized view": (("CREATE MATERIALIZED VIEW target AS SELECT 1 AS id",), "a materialized view"),
    "unlogged partition": (
        (
            f"CREATE TABLE target ({PLAIN}) PARTITION BY RANGE (id)",
            "CREATE UNLOGGED TABLE low PARTITION OF target FOR VALUES FROM (0) TO (5)",
            "CREATE TABLE high PARTITION OF target FOR VALUES FROM (5) TO (5000)",
        ),
        "low, an unlogged table",
    ),
    "foreign partition of a partition": (
        (
            f"CREATE TABLE target ({PLAIN}) PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF target FOR VALUES FROM (0) TO (5) PARTITION BY RANGE (id)",
            *foreign("lower PARTITION OF low FOR VALUES FROM (0) TO (5)"),
        ),
        "lower, a foreign table",
    ),
    "rule": (
        (f"CREATE TABLE target ({PLAIN})", "CREATE RULE gone AS ON INSERT TO target DO INSTEAD NOTHING"),
        "whose rule 'gone' changes what is written to it",
    ),
    "rule beside": (
        (f"CREATE TABLE target ({PLAIN})", "CREATE RULE gone AS ON INSERT TO target DO ALSO DELETE FROM target"),
        "whose rule 'gone' changes what is written to it",
    ),
    "row-level security": (
        (
            f"CREATE TABLE target ({PLAIN})",
            "ALTER TABLE target ENABLE ROW LEVEL SECURITY",
            "CREATE POLICY few ON target USING (id > 3)",
        ),
        "whose row-level security hides rows",
    ),
}


@pytest.mark.parametrize("kind", UNFIT)
def test_a_table_whose_rows_are_not_those_of_the_commit_alone_is_not_a_target(loads, kind):
    statements, why = UNFIT[kind]
    make(loads, *statements)
    loads.write("a.jsonl", line(1))

    with pytest.raises(SettingRefused, match=why) as refused:
        loads.load()
    with pytest.raises(SettingRefused, match=why):
        check_target(loads.engine, loads.ledger, loads.declared)

    assert refused.value.exit_code is ExitCode.WRONG_USE
    assert loads.ask("SELECT count(*) FROM onceload.producer") == [(0,)]


def test_a_partitioned_table_of_permanent_tables_is_a_target(loads):
    make(
        loads,
        f"CREATE TABLE target ({PLAIN}) PARTITION BY RANGE (id)",
        "CREATE TABLE low PARTITION OF target FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE high PARTITION OF target FOR VALUES FROM (5) TO (5000)",
    )
    loads.write("a.jsonl", "".join(map(line, range(10))))

    assert counts(loads.load()) == (10, 0, 0)
    assert loads.rows() == list(range(10))


def discarding(when: str, condition: str, *, answer: str = "NULL") -> tuple[str, ...]:
    return (
        "CREATE FUNCTION discard() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN IF {condition} THEN RETURN {answer}; END IF; RETURN coalesce(NEW, OLD); END$$",
        f"CREATE TRIGGER discards BEFORE {when} ON target FOR EACH ROW EXECUTE FUNCTION discard()",
    )


def refuses(loads: Loads, written: int, expected: int, *, load: Callable[[], object]) -> None:
    """The load is refused with both counts, and nothing has changed."""
    before, position = loads.rows("id, note"), loads.ask(POSITION)

    with pytest.raises(RowsDiffer, match=f"the database wrote {written} rows instead of {expected}"):
        load()

    assert loads.rows("id, note") == before
    assert loads.ask(POSITION) == position
    assert loads.ask("SELECT count(*) FROM onceload.delivery WHERE state = 'dead'") == [(0,)]


def test_rows_that_a_trigger_discards_are_not_recorded_as_loaded(loads):
    make(loads, f"CREATE TABLE target ({PLAIN})", *discarding("INSERT", "NEW.id % 2 = 1"))
    loads.write("a.jsonl", "".join(map(line, range(10))))

    refuses(loads, 5, 10, load=loads.load)

    execute(loads.admin_dsn, "DROP TRIGGER discards ON target")
    assert counts(loads.load()) == (10, 0, 0)
    assert loads.rows() == list(range(10))


@pytest.mark.parametrize(
    "trigger",
    ["TRIGGER takes AFTER INSERT", "CONSTRAINT TRIGGER takes AFTER INSERT", "TRIGGER takes BEFORE INSERT"],
    ids=["after", "deferred", "of others"],
)
@pytest.mark.parametrize("on", ["target", "leaf"])
def test_rows_that_a_trigger_deletes_again_are_not_recorded_as_loaded(loads, trigger, on):
    which = "id = NEW.id - 2" if "BEFORE" in trigger else "id = NEW.id AND id % 2 = 1"
    deferred = " DEFERRABLE INITIALLY DEFERRED" if "CONSTRAINT" in trigger else ""
    make(
        loads,
        f"CREATE TABLE target ({PLAIN}){' PARTITION BY RANGE (id)' if on == 'leaf' else ''}",
        *(["CREATE TABLE leaf PARTITION OF target DEFAULT"] if on == "leaf" else []),
        "CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS"
        f" $$BEGIN DELETE FROM target WHERE {which}; RETURN NEW; END$$",
        f"CREATE {trigger} ON {on}{deferred} FOR EACH ROW EXECUTE FUNCTION take()",
    )
    loads.write("a.jsonl", "".join(map(line, range(10))))

    refuses(loads, 2 if "BEFORE" in trigger else 5, 10, load=loads.load)

    execute(loads.admin_dsn, f"DROP TRIGGER takes ON {on}")
    assert counts(loads.load()) == (10, 0, 0)
    assert loads.rows() == list(range(10))


def test_a_trigger_that_writes_elsewhere_is_nothing_to_refuse(loads):
    make(
        loads,
        f"CREATE TABLE target ({PLAIN})",
        "CREATE TABLE log (id bigint)",
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN INSERT INTO log VALUES (NEW.id); DELETE FROM log WHERE id = 3; RETURN NULL; END$$",
        "CREATE TRIGGER notes AFTER INSERT ON target FOR EACH ROW EXECUTE FUNCTION note()",
    )
    loads.write("a.jsonl", "".join(map(line, range(10))))

    assert counts(loads.load()) == (10, 0, 0)
    assert loads.ask("SELECT count(*) FROM log") == [(9,)]


def test_a_trigger_that_comes_just_before_the_rows_is_counted_with_them(loads, monkeypatch):
    """A commit locks its table before it looks, but a partition only when a row goes there."""
    make(
        loads,
        f"CREATE TABLE target ({PLAIN}) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF target DEFAULT",
        "CREATE FUNCTION take() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN DELETE FROM target WHERE id = NEW.id AND id % 2 = 1; RETURN NULL; END$$",
    )
    loads.write("a.jsonl", "".join(map(line, range(10))))
    counted, comes = target._unaltered, iter([True])

    def come_after(*arguments, **named):
        found = counted(*arguments, **named)
        if next(comes, False):
            trigger = "CREATE CONSTRAINT TRIGGER takes AFTER INSERT ON part DEFERRABLE INITIALLY DEFERRED"
            execute(loads.admin_dsn, f"{trigger} FOR EACH ROW EXECUTE FUNCTION take()")
        return found

    monkeypatch.setattr(target, "_unaltered", come_after)
    refuses(loads, 5, 10, load=loads.load)


def test_a_server_that_does_not_count_what_triggers_delete_takes_no_commit(loads):
    make(loads, f"CREATE TABLE target ({PLAIN})", *discarding("INSERT", "false"))
    loads.write("a.jsonl", line(1))
    database = loads.ask("SELECT quote_ident(current_database())")[0][0]

    execute(loads.admin_dsn, f"ALTER DATABASE {database} SET track_counts = off")
    loads.engine.dispose()
    with pytest.raises(CommitRefused, match="track_counts: found off, and"):
        loads.load()

    assert loads.rows() == []
    assert loads.ask(POSITION) == [(0,)]


def test_a_table_that_is_made_unlogged_during_a_load_takes_no_commit(loads, monkeypatch):
    make(loads, f"CREATE TABLE target ({PLAIN})")
    loads.write("a.jsonl", "".join(map(line, range(10))))
    looked_at = check_target

    def alter_then(*arguments):
        looked_at(*arguments)
        execute(loads.admin_dsn, "ALTER TABLE target SET UNLOGGED")

    monkeypatch.setattr("onceload_jobs.load.context.check_target", alter_then)
    with pytest.raises(SettingRefused, match="an unlogged table"):
        loads.load()

    monkeypatch.undo()
    execute(loads.admin_dsn, "ALTER TABLE target SET LOGGED")
    assert counts(loads.load()) == (10, 0, 0)


def alter_before_rows(loads, monkeypatch, altered):
    """Alter the target, as far as its lock lets one, between the look at it and the write."""
    counted, comes = target._unaltered, iter([True])

    def alter_once(*arguments, **named):
        found = counted(*arguments, **named)
        if next(comes, False):
            execute(loads.admin_dsn, f"ALTER TABLE target {altered}")
        return found

    monkeypatch.setattr(target, "_unaltered", alter_once)


@pytest.mark.parametrize("altered", ["SET UNLOGGED", "ALTER id TYPE double precision", "DROP note"])
def test_no_table_is_altered_between_the_look_at_it_and_its_rows(loads, monkeypatch, altered):
    make(loads, f"CREATE TABLE target ({PLAIN})")
    loads.write("a.jsonl", line(1))
    refused: list[str] = []

    def alter_once(*arguments, **named):
        found = counted(*arguments, **named)
        if not refused:
            with pytest.raises(LockNotAvailable) as locked:
                execute(loads.admin_dsn, f"SET lock_timeout = '50ms'; ALTER TABLE target {altered}")
            refused.append(str(locked.value))
        return found

    counted = target._unaltered
    monkeypatch.setattr(target, "_unaltered", alter_once)

    assert counts(loads.load()) == (1, 0, 0)
    assert refused


def test_a_partition_that_is_attached_just_before_the_rows_takes_no_commit(loads, monkeypatch):
    make(loads, f"CREATE TABLE target ({PLAIN}) PARTITION BY RANGE (id)", f"CREATE UNLOGGED TABLE first ({PLAIN})")
    loads.write("a.jsonl", line(1))
    alter_before_rows(loads, monkeypatch, "ATTACH PARTITION first FOR VALUES FROM (0) TO (9)")

    with pytest.raises(SettingRefused, match="an unlogged table"):
        loads.load()

    assert loads.rows() == []


@pytest.mark.parametrize("instead", ["", "CREATE VIEW target AS SELECT 1 AS id"])
def test_a_table_that_is_gone_when_rows_are_written_is_named(loads, monkeypatch, instead):
    make(loads, f"CREATE TABLE target ({PLAIN})")
    loads.write("a.jsonl", line(1))
    refuse_altered = target.refuse_altered

    def rename_first(*arguments, **named):
        if loads.ask("SELECT to_regclass('away')") == [(None,)]:
            execute(loads.admin_dsn, f"ALTER TABLE target RENAME TO away; {instead}")
        refuse_altered(*arguments, **named)

    monkeypatch.setattr(target, "refuse_altered", rename_first)
    with pytest.raises(CommitRefused, match="which is no longer a table" if instead else "which no longer exists"):
        loads.load()

    assert loads.ask("SELECT count(*) FROM away") == [(0,)]


ALTERED = {
    # The bytes of 1 are then those of 5e-324.
    "ALTER id TYPE double precision": "ALTER id TYPE bigint",
    "ALTER amount TYPE numeric(12,0)": "ALTER amount TYPE numeric(12,2)",
    "DROP note": "ADD note text",
}


@pytest.mark.parametrize("altered", ALTERED)
def test_a_column_that_is_altered_during_a_load_takes_no_commit(loads, monkeypatch, altered):
    make(loads, f"CREATE TABLE target ({PLAIN})")
    loads.write("a.jsonl", "".join(map(line, range(10))))
    monkeypatch.setattr("onceload_jobs.load.context.ensure_target", alter_after(ensure_target, loads, altered))

    with pytest.raises(CommitRefused, match=r"found (id|amount|note) is"):
        loads.load()

    assert loads.ask(POSITION) == [(0,)]
    monkeypatch.undo()
    execute(loads.admin_dsn, f"ALTER TABLE target {ALTERED[altered]}")
    assert counts(loads.load()) == (10, 0, 0)


def alter_after(looks: Callable[..., None], loads: Loads, altered: str) -> Callable[..., None]:
    def look_then_alter(*arguments, **more):
        looks(*arguments, **more)
        execute(loads.admin_dsn, f"ALTER TABLE target {altered}")

    return look_then_alter


def test_a_column_that_is_altered_during_a_retry_takes_no_record(loads, monkeypatch):
    make(loads, f"CREATE TABLE target ({PLAIN})", "ALTER TABLE target ADD CONSTRAINT odd CHECK (id <> 1)")
    loads.write("a.jsonl", line(1, "1.55") + line(2))
    assert counts(loads.load()) == (1, 0, 1)
    make(loads, "ALTER TABLE target DROP CONSTRAINT odd")
    held = choose(loads.engine, Selection(pipeline="events")).held
    altered = "ALTER amount TYPE numeric(12,0)"

    with monkeypatch.context() as patched:
        patched.setattr("onceload_jobs.recover.retry.ensure_target", alter_after(ensure_target, loads, altered))
        with pytest.raises(SettingRefused, match=r"amount is numeric\(12,0\) instead of numeric\(12,2\)"):
            retry(loads.engine, loads.ledger, loads.declared, held, batch=new_batch())

    assert choose(loads.engine, Selection(pipeline="events")).held == held
    execute(loads.admin_dsn, f"ALTER TABLE target {ALTERED[altered]}")
    assert retry(loads.engine, loads.ledger, loads.declared, held, batch=new_batch()).retried == 1


def test_a_view_that_takes_the_name_during_a_load_refuses_no_rows(loads, monkeypatch):
    make(loads, f"CREATE TABLE target ({PLAIN})")
    loads.write("a.jsonl", line(1))
    looked_at = check_target

    def exchange_then(*arguments):
        looked_at(*arguments)
        make(
            loads,
            "ALTER TABLE target RENAME TO kept",
            "CREATE VIEW target AS SELECT * FROM kept",
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$BEGIN RAISE 'refused'; END$$",
            "CREATE TRIGGER refuses INSTEAD OF INSERT ON target FOR EACH ROW EXECUTE FUNCTION refuse()",
        )

    monkeypatch.setattr("onceload_jobs.load.context.check_target", exchange_then)
    with pytest.raises(SettingRefused, match="a view"):
        loads.load()

    assert loads.ask("SELECT count(*) FROM onceload.quarantine") == [(0,)]


@pytest.mark.parametrize(
    ("index", "is_fit"),
    [
        ("CREATE UNIQUE INDEX ON target (id, lower(note))", False),
        ("ALTER TABLE target ADD UNIQUE (id) DEFERRABLE", False),
        ("CREATE UNIQUE INDEX ON target (id) WHERE id > 0", False),
        ("CREATE UNIQUE INDEX ON target (id) INCLUDE (note)", True),
    ],
)
def test_a_merge_asks_for_a_unique_index_that_it_can_go_by(loads, index, is_fit):
    loads = merging(loads, lineage=True)
    make(loads, "ALTER TABLE target DROP CONSTRAINT target_pkey", index)
    loads.write("a.jsonl", row(1, "x"))

    if is_fit:
        assert counts(loads.load()) == (1, 0, 0)
    else:
        with pytest.raises(SettingRefused, match="a unique index on its key"):
            loads.load()


def test_rows_that_travel_as_text_are_counted_where_they_arrive(loads):
    make(
        loads,
        "CREATE TABLE target (id bigint, tags uuid[], _producer_id bigint, _sequence bigint)",
        *discarding("INSERT", "NEW.id = 1"),
    )
    loads.write("a.jsonl", '{"id":1,"tags":["6f2b0d52-4b8a-4f0e-9a51-0123456789ab"]}\n{"id":2,"tags":[]}\n')
    columns = (parse_column("id", "bigint"), parse_column("tags", "uuid[]"))

    with pytest.raises(RowsDiffer, match="the database wrote 1 rows instead of 2"):
        loads.load(columns=columns)

    assert loads.rows() == []


def test_a_retried_record_that_a_trigger_discards_stays_in_quarantine(loads):
    make(loads, f"CREATE TABLE target ({PLAIN})", "ALTER TABLE target ADD CONSTRAINT odd CHECK (id % 2 = 0)")
    loads.write("a.jsonl", "".join(map(line, range(4))))
    assert counts(loads.load()) == (2, 0, 2)
    make(loads, "ALTER TABLE target DROP CONSTRAINT odd", *discarding("INSERT", "NEW.id = 3"))
    held = choose(loads.engine, Selection(pipeline="events")).held

    with pytest.raises(RowsDiffer, match="the database wrote 1 rows instead of 2"):
        retry(loads.engine, loads.ledger, loads.declared, held, batch=new_batch())

    assert loads.rows() == [0, 2]
    assert len(choose(loads.engine, Selection(pipeline="events")).held) == 2


def merging(loads: Loads, *, lineage: bool, deleted: bool = False) -> Loads:
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("a merge is published at once")
    columns = "id bigint PRIMARY KEY, note text, gone boolean"
    make(loads, f"CREATE TABLE target ({columns}{', _producer_id bigint, _sequence bigint' if lineage else ''})")
    target = replace(
        loads.declared.target, write=Write.MERGE, key=("id",), lineage=lineage, deleted="gone" if deleted else None
    )
    declared = tuple(map(parse_column, ("id", "note", "gone"), ("bigint not null", "text", "boolean")))
    loads.declared = replace(loads.declared, target=target, columns=declared)
    return loads


def row(number: int, note: str, *, gone: bool = False) -> str:
    return f'{{"id":{number},"note":"{note}","gone":{str(gone).lower()}}}\n'


BY_LINEAGE = pytest.mark.parametrize("lineage", [True, False])


@BY_LINEAGE
@pytest.mark.parametrize(
    ("when", "condition", "answer"),
    [("INSERT", "NEW.id = 5", "NULL"), ("UPDATE", "NEW.id = 2", "NULL")],
    ids=["insert", "update"],
)
def test_a_merge_counts_the_keys_that_a_trigger_discards(loads, lineage, when, condition, answer):
    loads = merging(loads, lineage=lineage)
    loads.write("a.jsonl", "".join(row(number, "old") for number in range(4)))
    assert counts(loads.load()) == (4, 0, 0)
    make(loads, *discarding(when, condition, answer=answer))
    loads.write("b.jsonl", "".join(row(number, "new") for number in (2, 2, 3, 5)))

    refuses(loads, 3, 4, load=loads.load)

    execute(loads.admin_dsn, "DROP TRIGGER discards ON target")
    assert counts(loads.load()) == (4, 0, 0)
    assert loads.rows("id, note") == [(0, "old"), (1, "old"), (2, "new"), (3, "new"), (5, "new")]


@BY_LINEAGE
def test_a_merge_counts_the_deletions_that_a_trigger_discards(loads, lineage):
    loads = merging(loads, lineage=lineage, deleted=True)
    loads.write("a.jsonl", "".join(row(number, "old") for number in range(4)))
    assert counts(loads.load()) == (4, 0, 0)
    make(loads, *discarding("DELETE", "OLD.id = 1"))
    loads.write("b.jsonl", row(1, "x", gone=True) + row(2, "x", gone=True) + row(7, "x", gone=True))

    refuses(loads, 2, 3, load=loads.load)

    execute(loads.admin_dsn, "DROP TRIGGER discards ON target")
    assert counts(loads.load()) == (3, 0, 0)
    assert loads.rows("id, note") == [(0, "old"), (3, "old")]


def test_a_merge_of_rows_that_are_older_than_those_there_counts_all_of_them(loads):
    """A record that comes late, such as one that is retried, changes nothing and is not lost either."""
    loads = merging(loads, lineage=True)
    loads.write("a.jsonl", row(1, "first") + row(2, "x") + row(1, "last"))
    assert counts(loads.load()) == (3, 0, 0)
    execute(loads.admin_dsn, "UPDATE target SET _sequence = 1000000 WHERE id = 1")
    loads.write("a.jsonl", row(1, "first") + row(2, "x") + row(1, "last") + row(1, "older") + row(2, "newer"))

    assert counts(loads.load()) == (2, 0, 0)
    assert loads.rows("id, note") == [(1, "last"), (2, "newer")]


def test_a_key_that_another_load_brings_while_it_is_deleted_is_not_a_discarded_row(loads, monkeypatch):
    loads = merging(loads, lineage=True, deleted=True)
    loads.write("a.jsonl", row(1, "old"))
    loads.load()
    loads.write("b.jsonl", row(2, "x", gone=True) + row(3, "x"))

    def bring_first(connection, table, write, **columns):
        execute(loads.admin_dsn, "INSERT INTO target VALUES (2, 'theirs', false, 4711, 0)")
        return count_written(connection, table, write, **columns)

    with monkeypatch.context() as patched:
        patched.setattr("onceload_jobs.publish.merge.count_written", bring_first)
        assert counts(loads.load()) == (2, 0, 0)

    assert loads.rows("id, note") == [(1, "old"), (2, "theirs"), (3, "x")]
