"""A batch that one call stages and another publishes: once, by the first process that publishes it, or not at all."""

import gzip
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from decimal import Decimal

import pytest
from sqlalchemy import text

from onceload_core.errors import SettingRefused
from onceload_core.messages import whole_message
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.batches import PostgresBatches
from onceload_core.postgres.upkeep import tidy
from onceload_jobs.batch.stage import sweep
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings
from onceload_jobs.load.staged.kept_batch import NothingKept, SealedLineContinued, give_up, publish_batch
from onceload_jobs.pipeline.columns import LINEAGE, parse_column
from onceload_jobs.pipeline.declared import (
    Format,
    MessageId,
    OnRewrite,
    Publish,
    RecordProducer,
    Target,
    UnknownFields,
    Write,
)
from onceload_jobs.write import codec
from tests.loads.conftest import InThisProcess, line
from tests.servers import execute

STAGES = "SELECT count(*) FROM pg_class WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r'"


@pytest.fixture
def publish():
    return Publish.STAGED


def settings_of(loads, *, publishes=True):
    return LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, publishes=publishes)


def stage(loads, batch="one", **changes):
    declared = replace(loads.declared, **changes)
    return load(declared, settings_of(loads, publishes=False), batch=Batch(batch), executor=InThisProcess())


def publish_now(loads, batch="one", **changes):
    return publish_batch(replace(loads.declared, **changes), settings_of(loads), batch=Batch(batch))


def test_a_batch_that_one_call_stages_is_published_once_by_another(loads):
    loads.write("a.jsonl", line(1) + line(2) + "not json\n")
    staged = stage(loads)
    before = loads.rows()

    first, again = publish_now(loads), publish_now(loads)

    assert (staged.staged, staged.loaded, before) == (2, 0, [])
    assert (first.loaded, first.quarantined, first.position) == (2, 1, 1)
    assert (again.loaded, again.quarantined, again.position) == (2, 1, 1)
    assert loads.rows() == [1, 2]
    assert loads.ask(STAGES) == [(0,)]
    assert loads.load().loaded == 0


def test_no_transaction_is_open_while_the_proof_of_a_batch_is_decoded(loads, monkeypatch):
    """The server ends one that is idle for half a minute, and many bad records take longer than that."""
    open_ones: list[tuple[str, ...]] = []

    def decode_now(of_type, text):
        # A reader keeps a lock on it for as long as its transaction is open.
        reading = "SELECT relname, mode FROM pg_locks JOIN pg_class ON pg_class.oid = relation"
        open_ones.extend(loads.ask(f"{reading} WHERE relname LIKE '% proof'"))
        return decode(of_type, text)

    decode = codec.decode
    monkeypatch.setattr("onceload_jobs.batch.stage.decode", decode_now)
    loads.write("a.jsonl", line(1) + "not json\n")
    stage(loads)
    publish_now(loads)

    assert (loads.rows(), open_ones) == ([1], [])


def test_a_stage_that_a_worker_still_reads_is_swept_later(loads, logged):
    table = 'onceload_stage."abandoned proof"'
    engine = connect(LedgerSettings(dsn=loads.dsn, lock_timeout_s=0.1))
    with loads.engine.begin() as connection:
        connection.exec_driver_sql(f"CREATE UNLOGGED TABLE {table} ()")
    with loads.engine.begin() as reading:
        reading.exec_driver_sql(f"SELECT FROM {table}")
        assert (sweep(engine), logged.names()) == (0, [])
    assert sweep(engine) == 1
    engine.dispose()


def test_as_long_as_a_batch_is_kept_no_other_run_loads_it_or_sweeps_its_stage(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)
    loads.write("b.jsonl", line(2))

    other = loads.load()

    assert loads.rows() == [2]
    assert [(note.name, note.is_busy) for note in other.notes] == [("a.jsonl", True)]
    assert publish_now(loads).loaded == 1
    assert loads.rows() == [1, 2]


def test_a_batch_that_is_staged_again_takes_the_place_of_what_was_staged_of_it_before(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)
    loads.write("b.jsonl", line(2))
    stage(loads)

    assert publish_now(loads).loaded == 2
    assert loads.rows() == [1, 2]
    assert loads.ask(STAGES) == [(0,)]


def test_the_publish_of_an_earlier_run_of_a_batch_does_not_pass_for_that_of_a_later_one(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)
    publish_now(loads)
    loads.write("b.jsonl", line(2))
    stage(loads)
    give_up(loads.declared, settings_of(loads), batch=Batch("one"))

    with pytest.raises(NothingKept, match="it is not staged"):
        publish_now(loads)
    stage(loads)

    assert publish_now(loads).loaded == 1
    assert loads.rows() == [1, 2]


def test_nothing_new_keeps_nothing(loads):
    staged = stage(loads)

    assert staged.staged is None
    with pytest.raises(NothingKept, match="batch one cannot be published"):
        publish_now(loads)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("more", "is_refused"), [("es\n3,z\n", True), ("\n3,z\n", False), ("", False), (None, False)], ids=repr
)
def test_a_kept_batch_with_a_sealed_last_line_that_went_on_is_not_published(loads, packed, more, is_refused):
    def write(content):
        return loads.write("a.csv.gz" if packed else "a.csv", gzip.compress(content.encode()) if packed else content)

    source = replace(loads.declared.source, format=Format.CSV, path=str(loads.folder / "*"), sealed_after_s=0)
    loads.declared = replace(
        loads.declared, source=source, columns=(parse_column("id", "bigint"), parse_column("note", "text"))
    )
    path = write("id,note\n1,x\n2,y")
    stage(loads)
    if more is None:
        # Whether it grew cannot be seen from here.
        path.unlink()
    else:
        write(f"id,note\n1,x\n2,y{more}")

    if is_refused:
        with pytest.raises(SealedLineContinued, match=r"a\.csv.*Give the batch up with `onceload publish"):
            publish_now(loads)
        assert loads.rows() == []
        assert give_up(loads.declared, settings_of(loads), batch=Batch("one"))
    else:
        assert publish_now(loads).loaded == 2
    loads.load()

    expected = [(1, "x"), (2, "yes" if is_refused else "y"), *([(3, "z")] if more else [])]
    assert loads.rows("id, note") == expected


def test_a_batch_that_is_given_up_is_planned_again(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)

    assert give_up(loads.declared, settings_of(loads), batch=Batch("one"))
    assert not give_up(loads.declared, settings_of(loads), batch=Batch("one"))
    assert loads.ask(STAGES) == [(0,)]
    assert loads.load().loaded == 1
    with pytest.raises(NothingKept):
        publish_now(loads)
    assert loads.rows() == [1]


def right_after_a_look(monkeypatch, happens):
    """The next process to look for the batch finds it, and another one comes before it has done anything about that."""
    find = PostgresBatches.find

    def found(self, batch):
        there = find(self, batch)
        monkeypatch.undo()
        happens()
        return there

    monkeypatch.setattr(PostgresBatches, "find", found)


def test_a_batch_that_is_being_published_by_another_process_is_not_given_up(loads, monkeypatch):
    loads.write("a.jsonl", line(1))
    stage(loads)
    right_after_a_look(monkeypatch, lambda: publish_now(loads))

    assert not give_up(loads.declared, settings_of(loads), batch=Batch("one"))
    assert loads.rows() == [1]


def test_rows_that_a_later_life_stages_at_the_same_moment_are_given_up_as_well(loads, monkeypatch):
    loads.write("a.jsonl", line(1))
    stage(loads)
    right_after_a_look(monkeypatch, lambda: stage(loads))

    assert give_up(loads.declared, settings_of(loads), batch=Batch("one"))
    with pytest.raises(NothingKept):
        publish_now(loads)


def test_a_batch_that_no_run_worked_on_for_too_long_may_be_taken_by_any(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)
    with loads.engine.begin() as connection:
        connection.execute(text("UPDATE onceload.delivery SET deadline_at = clock_timestamp()"))

    assert loads.load().loaded == 1
    with pytest.raises(NothingKept):
        publish_now(loads)
    assert loads.rows() == [1]


def test_a_batch_whose_time_is_over_is_published_anyway_if_no_other_run_took_it(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)
    with loads.engine.begin() as connection:
        connection.execute(text("UPDATE onceload.delivery SET deadline_at = clock_timestamp()"))

    assert publish_now(loads).loaded == 1
    assert loads.rows() == [1]


@pytest.mark.parametrize("lost", ["TRUNCATE", "DROP TABLE"])
def test_a_stage_that_the_server_lost_is_loaded_by_the_next_run(loads, lost):
    loads.write("a.jsonl", line(1))
    stage(loads)
    tables = loads.ask(
        "SELECT format('onceload_stage.%I', relname) FROM pg_class"
        " WHERE relnamespace = to_regnamespace('onceload_stage') AND relkind = 'r'"
    )
    with loads.engine.begin() as connection:
        # What a crash leaves of unlogged tables, and what an administrator may do.
        connection.execute(text(f"{lost} {', '.join(table for (table,) in tables)}"))

    with pytest.raises(NothingKept, match="its stage is empty, because the server crashed or a standby took over"):
        publish_now(loads)
    assert loads.load().loaded == 1
    assert loads.rows() == [1]


@pytest.mark.parametrize("of", ["the batch", "a piece"])
def test_a_batch_that_a_later_release_staged_is_loaded_by_the_next_run(loads, of):
    loads.write("a.jsonl", line(1))
    stage(loads)
    table = loads.ask(
        "SELECT format('onceload_stage.%I', relname) FROM pg_class"
        " WHERE relnamespace = to_regnamespace('onceload_stage') AND relname LIKE '% proof'"
    )[0][0]
    with loads.engine.begin() as connection:
        later = f"UPDATE {table} SET proof = jsonb_set(CAST(proof AS jsonb), '{{later}}', '1')"
        connection.execute(text(f"{later} WHERE number {'=' if of == 'the batch' else '<>'} 0"))

    with pytest.raises(NothingKept, match="another release of Onceload staged it"):
        publish_now(loads)
    assert loads.load().loaded == 1
    assert loads.rows() == [1]


def test_a_batch_that_was_staged_again_is_not_given_up_with_its_earlier_stage(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)
    before = PostgresBatches(loads.engine, "events").find(Batch("one"))
    assert before is not None
    stage(loads)

    PostgresBatches(loads.engine, "events").give_up(before)

    assert publish_now(loads).loaded == 1


def test_a_later_run_of_a_batch_has_something_to_do_as_long_as_an_earlier_one_holds_it(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)

    own = loads.look(batch="one")
    other = loads.look(batch="two")

    assert (own.is_anything_new, other.is_anything_new, other.is_busy) == (True, False, True)
    publish_now(loads)
    assert not loads.look(batch="one").is_anything_new


@pytest.mark.parametrize("write", Write)
@pytest.mark.parametrize(
    ("altered", "restored"),
    [
        ("amount TYPE numeric(12,0)", "amount TYPE numeric(12,2)"),
        # A merge compares keys: of two types, it could not.
        ("id TYPE text", "id TYPE bigint USING id::bigint"),
    ],
)
def test_a_batch_is_published_only_into_columns_of_the_types_that_it_was_staged_for(loads, write, altered, restored):
    deleted = "gone" if write is Write.MERGE else None
    columns = (*loads.declared.columns, parse_column("gone", "boolean"))
    target = replace(loads.declared.target, write=write, key=("id",) if deleted else (), deleted=deleted)
    loads.declared = replace(loads.declared, target=target, columns=columns)
    loads.write("a.jsonl", line(1, "1.55"))
    stage(loads)
    execute(loads.admin_dsn, f"ALTER TABLE target ALTER {altered}")

    with pytest.raises(SettingRefused, match=r"found (amount|id) is"):
        publish_now(loads)

    assert loads.rows() == []
    execute(loads.admin_dsn, f"ALTER TABLE target ALTER {restored}")
    publish_now(loads)
    assert loads.rows("id, amount") == [(1, Decimal("1.55"))]


@pytest.mark.parametrize(
    ("altered", "restored", "found"),
    [
        ("DROP id, ADD id bigint GENERATED ALWAYS AS (5) STORED", "DROP id, ADD id bigint", "id, which the table gen"),
        ("ALTER id ADD GENERATED ALWAYS AS IDENTITY", "ALTER id DROP IDENTITY", "id, which the table generates"),
        ("RENAME TO other", None, "which no longer exists"),
    ],
)
@pytest.mark.parametrize(
    "declared",
    [
        {},
        {"unknown_fields": UnknownFields.ADD},
        {"target": Target(schema="public", table="target", write=Write.MERGE, key=("note",))},
    ],
)
def test_a_batch_whose_table_was_altered_is_refused_in_words(loads, declared, altered, restored, found):
    loads.declared = replace(loads.declared, **declared)
    execute(
        loads.admin_dsn,
        "CREATE TABLE target (id bigint NOT NULL, amount numeric(12,2), note text PRIMARY KEY,"
        " _producer_id bigint, _sequence bigint); ALTER TABLE target OWNER TO onceload_loader",
    )
    loads.write("a.jsonl", line(1)[:-2] + ', "more": 1}\n')
    stage(loads)
    execute(loads.admin_dsn, f"ALTER TABLE target {altered}")

    with pytest.raises(SettingRefused, match=found) as refused:
        publish_now(loads)

    assert "--give-up` and load again" in whole_message(refused.value)
    execute(loads.admin_dsn, f"ALTER TABLE target {restored}" if restored else "ALTER TABLE other RENAME TO target")
    assert publish_now(loads).loaded == 1
    assert loads.rows() == [1]


def test_a_batch_whose_new_column_another_load_added_with_another_type_is_given_up(loads):
    loads.declared = replace(loads.declared, unknown_fields=UnknownFields.ADD)
    loads.write("a.jsonl", line(1)[:-2] + ', "more": 5}\n')
    stage(loads)
    loads.write("b.jsonl", line(2)[:-2] + ', "more": "text"}\n')
    other = loads.load()
    held = loads.load()

    with pytest.raises(
        NothingKept,
        match=r"columns of other types to the target \(more text\).*onceload stage PIPELINE.yaml --batch=one",
    ):
        publish_now(loads)

    assert (other.loaded, held.loaded) == (1, 0)
    assert loads.load().loaded == 1
    assert loads.rows("id, more") == [(1, "5"), (2, "text")]
    with pytest.raises(NothingKept, match="it is not staged"):
        publish_now(loads)


def test_a_pipeline_file_that_was_changed_does_not_publish_what_another_staged(loads):
    loads.write("a.jsonl", line(1))
    stage(loads)

    with pytest.raises(NothingKept, match="the pipeline file was edited after the batch was staged"):
        publish_now(loads, columns=loads.declared.columns[:1])
    assert loads.rows() == []
    assert loads.load().loaded == 1


@pytest.mark.parametrize("producer", [None, RecordProducer(name="note", sequence="id")], ids=["files", "records"])
def test_two_that_publish_at_once_publish_once(loads, producer):
    loads.declared = replace(loads.declared, producer=producer)
    for number in range(20):
        loads.write(f"{number}.jsonl", line(number))
    stage(loads)

    with ThreadPoolExecutor(4) as pool:
        reports = list(pool.map(lambda _: publish_now(loads), range(4)))

    assert [report.loaded for report in reports] == [20] * 4
    assert loads.rows() == list(range(20))
    assert loads.ask("SELECT count(*) FROM onceload.ledger WHERE loaded > 0") == [(1,)]


@pytest.mark.parametrize(
    "changes",
    [
        {"producer": RecordProducer(name="note", sequence="id")},
        {"target": Target(schema="public", table="target", write=Write.MERGE, key=("id",))},
        {"on_rewrite": OnRewrite.REPLACE},
    ],
    ids=["record producers", "merge", "replace"],
)
def test_a_pipeline_that_publishes_at_once_may_also_publish_later(loads, changes):
    loads.write("a.jsonl", line(1) + line(2) + line(2))
    stage(loads, **changes)
    publish_now(loads, **changes)
    loads.write("a.jsonl", line(3) + line(4) + line(4) + line(5))
    if "on_rewrite" not in changes:
        loads.write("a.jsonl", line(1) + line(2) + line(2) + line(3))
    stage(loads, batch="two", **changes)
    report = publish_now(loads, batch="two", **changes)

    expected = {"producer": [1, 2, 3], "target": [1, 2, 3], "on_rewrite": [3, 4, 4, 5]}
    assert loads.rows() == expected[next(iter(changes))]
    assert report.position == 2
    assert {f"{field.name}" for field in LINEAGE} <= {name for (name,) in loads.ask(COLUMNS_THERE)}


@pytest.mark.parametrize(
    "named",
    [{"producer": RecordProducer(name="note", sequence="id")}, {"message_id": MessageId(columns=("id",), keep_days=2)}],
    ids=["record producers", "business ids"],
)
@pytest.mark.parametrize("is_unique", [False, True], ids=["", "each may be there once"])
def test_a_kept_batch_some_of_whose_records_are_loaded_from_another_file_is_given_up(loads, named, is_unique):
    keep = replace(loads.declared.pipeline, message_keep_days=2 if "message_id" in named else 0)
    loads.declared = replace(loads.declared, pipeline=keep, **named)
    loads.write("a.jsonl", line(1) + line(2))
    stage(loads)
    if is_unique:
        # The target refuses the row before the ledger refuses its id.
        execute(loads.admin_dsn, "ALTER TABLE target ADD UNIQUE (id)")
    loads.write("b.jsonl", line(2) + line(3))
    assert loads.load().loaded == 2

    with pytest.raises(NothingKept, match="another load has loaded some of its records since it was staged"):
        publish_now(loads)

    report = loads.load()
    assert (report.loaded, report.duplicates) == (1, 1)
    assert loads.rows() == [1, 2, 3]


COLUMNS_THERE = "SELECT CAST(attname AS text) FROM pg_attribute WHERE attrelid = to_regclass('target')"


def test_upkeep_deletes_only_things_that_have_ended(loads):
    for batch in ("long ago", "kept"):
        loads.write(f"{batch}.jsonl", line(1))
        stage(loads, batch=batch)
        if batch == "long ago":
            publish_now(loads, batch=batch)
    with loads.engine.begin() as connection:
        connection.execute(
            text(
                "UPDATE onceload.session SET opened_at = opened_at - interval '1 year',"
                " lease_until = lease_until - interval '1 year'"
            )
        )
        connection.execute(text('CREATE UNLOGGED TABLE onceload_stage."abandoned rows" ()'))

    done = tidy(loads.engine, "events")

    assert done.sessions > 0
    assert sweep(loads.engine) == 1
    assert {name for (name,) in loads.ask("SELECT name FROM onceload.session")} == {"kept/plan"}
    assert publish_now(loads, batch="kept").loaded == 1
    # A batch that begins again under its name has published nothing yet.
    loads.write("new.jsonl", line(2))
    stage(loads, batch="long ago")
    give_up(loads.declared, settings_of(loads), batch=Batch("long ago"))
    with pytest.raises(NothingKept):
        publish_now(loads, batch="long ago")
    assert loads.load().loaded == 1


def test_a_publish_reports_files_that_could_not_be_read(loads):
    loads.write("a.jsonl", line(1))
    loads.write("b.jsonl.gz", b"no gzip at all, but long enough")
    stage(loads)

    assert [note.name for note in publish_now(loads).notes] == ["b.jsonl.gz"]


def test_a_pipeline_that_commits_chunk_by_chunk_has_nothing_to_publish_later(loads):
    with pytest.raises(SettingRefused, match="publish: staged"):
        publish_now(loads, publish=Publish.DIRECT)
    with pytest.raises(SettingRefused, match="publish: staged"):
        stage(loads, publish=Publish.DIRECT)
