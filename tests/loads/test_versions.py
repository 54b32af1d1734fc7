"""A pipeline file that is edited between loads, or while one runs: no record is lost, and none is loaded twice."""

import gzip
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import pytest

from onceload_core.declaration import DeclarationChanged, EditRefused, LoadedByAnother
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import NotAlone, NotFound
from onceload_core.names import Batch, DeliveryId, Position, SessionName
from onceload_core.pipeline import Guarantee
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.attempts import look_attempts
from onceload_core.postgres.by_hand import redrive
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_core.postgres.upkeep import forget_messages
from onceload_core.verdicts import Order
from onceload_jobs.load import offering
from onceload_jobs.load.consume import consume
from onceload_jobs.load.load import load, take_version
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.load.staged.kept_batch import NothingKept, publish_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    CsvOptions,
    Declared,
    Format,
    Identity,
    MessageId,
    OnRewrite,
    Publish,
    RecordProducer,
)
from onceload_jobs.plan.choice import Choice
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.read import new_content as loading
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, Loads, line
from tests.servers import execute

pytestmark = pytest.mark.usually_staged


class Killed(BaseException):
    """The process is dead."""


@dataclass
class Meanwhile(InThisProcess):
    """Something happens before the sessions get to work."""

    happens: Callable[[], object]
    has_happened: bool = field(default=False, init=False)

    def begins(self) -> None:
        if not self.has_happened:
            self.has_happened = True
            self.happens()


def lines(*numbers: int) -> str:
    return "".join(map(line, numbers))


def settings_of(loads: Loads, **more: Any) -> LoadSettings:
    return LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, **more)


def edited(loads: Loads, *, source: dict[str, Any] | None = None, **of_file: Any) -> Declared:
    return replace(loads.declared, source=replace(loads.declared.source, **(source or {})), **of_file)


def below(loads: Loads, path: str, **of_file: Any) -> Declared:
    return edited(loads, source={"path": str(loads.folder / path)}, **of_file)


def load_while(loads: Loads, declared: Declared, happens: Callable[[], object]) -> Report:
    return load(declared, settings_of(loads), batch=new_batch(), executor=Meanwhile(happens))


def load_now(loads: Loads, declared: Declared, **settings: Any) -> Report:
    return load(declared, settings_of(loads, **settings), batch=new_batch(), executor=InThisProcess())


def killed() -> None:
    raise Killed


def kill_at_work(loads: Loads, declared: Declared) -> None:
    """A load that is killed when all is handed out and nothing is read; the leases of all that died have passed."""
    with pytest.raises(Killed):
        load_while(loads, declared, killed)
    loads.ask("UPDATE onceload.delivery SET deadline_at = clock_timestamp() WHERE state = 'held' RETURNING 1")


# Names of files.


def test_a_path_that_is_widened_while_the_first_load_runs_loads_no_record_twice(loads):
    loads.write("day/a.jsonl", lines(1, 2))
    narrow, wide = below(loads, "day/*.jsonl"), below(loads, "*/*.jsonl")

    with pytest.raises(DeclarationChanged, match="while this load ran, the pipeline file was edited"):
        load_while(loads, narrow, lambda: load_now(loads, wide))
    load_now(loads, wide)

    assert loads.rows() == [1, 2]


def test_looking_takes_no_version_and_writes_nothing(loads):
    loads.write("day/a.jsonl", lines(1, 2))
    narrow, wide = below(loads, "day/*.jsonl"), below(loads, "*/*.jsonl")
    state = "SELECT CAST(xmin AS text), version FROM onceload.pipeline"

    def look_at_wide() -> None:
        before = loads.ask(state)
        assert loads.look(wide).files == 1
        assert loads.ask(state) == before

    load_while(loads, narrow, look_at_wide)

    assert loads.rows() == [1, 2]
    with pytest.raises(EditRefused, match=r"source\.root was changed from .*day to .*loaded again"):
        loads.look(wide)


def test_looking_at_a_pipeline_that_was_never_loaded_makes_nothing(loads):
    loads.write("a.jsonl", lines(1))

    found = loads.look()

    assert (found.files, found.open, found.is_held) == (1, 0, False)
    assert loads.ask("SELECT count(*) FROM onceload.pipeline") == [(0,)]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_chunks_handed_out_before_the_path_was_edited_are_not_loaded_under_their_old_name(loads):
    loads.write("day/a.jsonl", lines(1, 2))
    kill_at_work(loads, below(loads, "day/*.jsonl"))

    report = load_now(loads, below(loads, "*/*.jsonl"))

    assert report.loaded == 2
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_batch_that_was_staged_before_the_path_was_edited_is_not_published(loads):
    loads.write("day/a.jsonl", lines(1, 2))
    narrow, wide, batch = below(loads, "day/*.jsonl"), below(loads, "*/*.jsonl"), Batch("kept")
    staged = load(narrow, settings_of(loads, publishes=False), batch=batch, executor=InThisProcess())
    load_now(loads, wide)

    for declared in (narrow, wide):
        with pytest.raises(NothingKept):
            publish_batch(declared, settings_of(loads), batch=batch)

    assert staged.staged == 2
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_dead_letter_of_before_an_edit_is_planned_again_and_not_redelivered(loads):
    loads.write("day/a.jsonl", lines(1, 2))
    rules = Rules(deliveries_max=1)
    with patch.object(loading, "read_parts", side_effect=ValueError("poison")):
        load_now(loads, below(loads, "day/*.jsonl", delivery=rules))
    ((dead,),) = loads.ask("SELECT delivery_id FROM onceload.delivery WHERE state = 'dead'")

    load_now(loads, below(loads, "*/*.jsonl", delivery=rules))
    with pytest.raises(NotFound):
        redrive(loads.engine, "events", DeliveryId(dead), by="ann")
    load_now(loads, below(loads, "*/*.jsonl", delivery=rules))

    assert loads.rows() == [1, 2]


# Pieces.


def test_a_chunk_size_that_is_edited_after_a_worker_was_killed_loses_nothing(loads):
    loads.write("a.jsonl.gz", gzip.compress(lines(*range(400)).encode()))
    kill_at_work(loads, edited(loads, source={"chunk_bytes": 1000}))

    load_now(loads, edited(loads, source={"chunk_bytes": 4000}))

    assert loads.rows() == list(range(400))


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_deliveries_cut_at_newlines_are_planned_again_once_quotes_may_hold_newlines(loads):
    loads.write("a.jsonl", "".join(f'{number},1.00,"a\nb"\n' for number in range(50)))
    plain = {"format": Format.CSV, "csv": CsvOptions(header=False), "chunk_bytes": 40}
    kill_at_work(loads, edited(loads, source=plain))

    report = load_now(loads, edited(loads, source={**plain, "csv": CsvOptions(header=False, multiline=True)}))

    assert (report.loaded, report.quarantined) == (50, 0)
    assert loads.rows() == list(range(50))


# The identity of records.


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_business_ids_of_other_columns_are_refused_while_ids_are_remembered(loads):
    loads.write("a.jsonl", line(1, note="7") + line(2, note="8"))
    load_now(loads, edited(loads, message_id=MessageId(columns=("id",), keep_days=2)))
    loads.write("b.jsonl", line(7, note="1") + line(8, note="2"))
    by_note = edited(loads, message_id=MessageId(columns=("note",), keep_days=2))

    with pytest.raises(EditRefused, match="message_id was changed from id bigint to note text"):
        load_now(loads, by_note)

    # As the message says.
    load_now(loads, loads.declared)
    loads.write("c.jsonl", line(9, note="1"))
    load_now(loads, by_note)
    assert loads.rows() == [1, 2, 7, 8, 9]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_business_ids_are_remembered_for_their_window_although_they_are_not_declared_for_a_while(loads):
    with_ids = edited(loads, message_id=MessageId(columns=("id",), keep_days=30))
    loads.write("a.jsonl", lines(1))
    load_now(loads, with_ids)

    load_now(loads, loads.declared)
    ten_days_later(loads)
    forget_messages(loads.engine)
    loads.write("b.jsonl", lines(1, 2))
    load_now(loads, with_ids)

    assert loads.rows() == [1, 2]


def ten_days_later(loads):
    execute(
        loads.admin_dsn,
        "DO $$ DECLARE earlier date := CAST(clock_timestamp() AT TIME ZONE 'UTC' AS date) - 10; BEGIN"
        " EXECUTE format('CREATE TABLE onceload.%I PARTITION OF onceload.message FOR VALUES FROM (%L) TO (%L)',"
        " to_char(earlier, '\"message_\"YYYYMMDD'), earlier, earlier + 1);"
        " UPDATE onceload.message SET day = day - 10; END $$",
    )


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_load_with_business_ids_is_refused_once_another_has_loaded_without_them(loads):
    loads.write("a.jsonl", lines(1, 2))
    with_ids = edited(loads, message_id=MessageId(columns=("id",), keep_days=2))

    def load_without() -> None:
        loads.write("b.jsonl", lines(3))
        load_now(loads, loads.declared, choice=Choice(files=("b.jsonl",)))

    with pytest.raises(DeclarationChanged):
        load_while(loads, with_ids, load_without)
    load_now(loads, with_ids)
    loads.write("c.jsonl", lines(1, 4))
    load_now(loads, with_ids)

    assert loads.rows() == [1, 2, 3, 4]


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("after", [("note", "other"), ("device", "id")])
def test_records_are_not_counted_in_another_column_once_some_are_loaded(loads, after):
    number, _, text = loads.declared.columns
    more = (replace(number, name="other"), replace(text, name="device"))
    loads.declared = replace(loads.declared, columns=(*loads.declared.columns, *more))
    row = '{{"id": {0}, "other": {1}, "note": "a", "device": "b"}}\n'
    loads.write("a.jsonl", row.format(1, 11))
    load_now(loads, edited(loads, producer=RecordProducer(name="note", sequence="id")))
    loads.write("b.jsonl", row.format(11, 1))

    with pytest.raises(EditRefused, match="producer was changed from note text, id bigint"):
        load_now(loads, edited(loads, producer=RecordProducer(name=after[0], sequence=after[1])))

    assert loads.rows() == [1]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_without_a_header_a_column_of_ids_is_known_by_its_place(loads):
    source = {"path": f"{loads.folder}/*.csv", "format": Format.CSV, "csv": CsvOptions(header=False)}
    producer = RecordProducer(name="note", sequence="id")
    before = edited(loads, source=source, producer=producer)
    loads.write("a.csv", "1,2.00,x\n")
    load_now(loads, before)

    number, amount, text = before.columns
    with pytest.raises(EditRefused, match="id bigint in place 1 to note text in place 3, id bigint in place 2"):
        load_now(loads, replace(before, columns=(amount, number, text)))


@pytest.mark.parametrize("publish", [Publish.STAGED])
@pytest.mark.parametrize("orders", [(Order.ORDERED, Order.ANY), (Order.ANY, Order.ORDERED)])
def test_the_order_of_records_does_not_change_once_some_are_loaded(loads, orders):
    """What an ordered producer has passed over counts as loaded, and what is missing in any order would."""
    before, after = (edited(loads, producer=RecordProducer(name="note", sequence="id", order=each)) for each in orders)
    loads.write("a.jsonl", "".join(line(number, note="A") for number in (1, 2, 10)))
    load_now(loads, before)
    loads.write("b.jsonl", line(5, note="A") + line(11, note="A"))

    with pytest.raises(EditRefused, match=r"producer\.order was changed"):
        load_now(loads, after)


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_wider_column_is_no_other_producer_and_no_other_id(loads):
    columns = (parse_column("id", "integer"), parse_column("note", "varchar(10)"))
    narrow = edited(loads, columns=columns, producer=RecordProducer(name="note", sequence="id"))
    loads.write("a.jsonl", line(1))
    load_now(loads, narrow)
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target ALTER id TYPE bigint, ALTER note TYPE text")
    loads.write("b.jsonl", line(1) + line(2))

    wide = (parse_column("id", "bigint"), parse_column("note", "text"))
    assert load_now(loads, replace(narrow, columns=wide)).loaded == 1


CONTENT = {"identity": Identity.CONTENT}


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_names_are_not_what_files_are_known_by_once_content_was(loads):
    """A file that is loaded under another name would be loaded once more."""
    loads.write("x.jsonl", lines(1, 2))
    load_now(loads, edited(loads, source=CONTENT))
    loads.write("y.jsonl", lines(1, 2, 3))
    load_now(loads, edited(loads, source=CONTENT))

    with pytest.raises(EditRefused, match=r"source\.identity was changed from content to path"):
        load_now(loads, loads.declared)

    assert loads.rows() == [1, 2, 3]


# What becomes of rows.


def test_another_table_is_refused_while_rows_are_in_the_one_before_and_a_renamed_one_is_not(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    moved = edited(loads, target=replace(loads.declared.target, table="moved"))
    loads.write("b.jsonl", lines(3))

    with pytest.raises(EditRefused, match=r"target\.table was changed.*rename the table itself"):
        load_now(loads, moved)

    with loads.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target RENAME TO moved")
    load_now(loads, moved)
    assert loads.ask("SELECT id FROM moved ORDER BY id") == [(1,), (2,), (3,)]


def renamed(declared: Declared, name: str = "events2") -> Declared:
    return replace(declared, pipeline=replace(declared.pipeline, name=name))


def test_a_pipeline_that_was_renamed_loads_nothing_a_second_time(loads):
    # A load without files decides nothing.
    load_now(loads, renamed(loads.declared))
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)

    for refused in (load_now, Loads.look):
        with pytest.raises(LoadedByAnother, match=r"pipeline events has loaded .*/a\.jsonl into public\.target\. A"):
            refused(loads, renamed(loads.declared))
    assert loads.rows() == [1, 2]


def test_a_pipeline_that_is_renamed_in_the_database_too_goes_on(loads):
    """As the how-to describes it."""
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    loads.ask("UPDATE onceload.pipeline SET name = 'events2' WHERE name = 'events' RETURNING 1")
    loads.write("b.jsonl", lines(3))

    load_now(loads, renamed(loads.declared))

    assert loads.rows() == [1, 2, 3]
    assert [each.pipeline for each in look_attempts(loads.engine)] == ["events2"]
    assert verify(renamed(loads.declared), loads.engine, deep=True).differing == 0


@pytest.mark.parametrize(("path", "table", "count"), [("b*.jsonl", "target", 2), ("**/*.jsonl*", "other", 1)])
def test_two_pipelines_share_a_table_or_files_and_not_both(loads, path, table, count):
    loads.write("a.jsonl", lines(1))
    load_now(loads, loads.declared)
    loads.write("b.jsonl", lines(2))
    target = replace(loads.declared.target, table=table)

    load_now(loads, renamed(edited(loads, source={"path": f"{loads.folder}/{path}"}, target=target)))

    assert len(loads.rows()) == count


def test_rows_that_were_rewound_are_loaded_under_another_name(loads):
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, loads.declared)
    rewind(loads.declared, loads.engine, to=Position(0), dry_run=False)

    load_now(loads, renamed(loads.declared))

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_a_batch_that_was_to_replace_rows_deletes_none_once_the_file_says_stop(loads):
    file, batch = loads.write("a.jsonl", lines(1, 2)), Batch("kept")
    load_now(loads, loads.declared)
    file.write_text(lines(3, 4))
    replacing = edited(loads, on_rewrite=OnRewrite.REPLACE)
    load(replacing, settings_of(loads, publishes=False), batch=batch, executor=InThisProcess())

    with pytest.raises(NothingKept, match="edited after the batch was staged"):
        publish_batch(loads.declared, settings_of(loads), batch=batch)

    assert loads.rows() == [1, 2]


def test_a_guarantee_is_that_of_the_loads_that_declare_it(loads):
    loads.write("a.jsonl", lines(1, 2))
    careless = edited(loads, pipeline=replace(loads.declared.pipeline, guarantee=Guarantee.AT_LEAST_ONCE))

    with pytest.raises(DeclarationChanged):
        load_while(loads, loads.declared, lambda: load_now(loads, careless))

    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_follower_ends_when_the_pipeline_file_was_edited(loads):
    """It would go on with the columns and the table of its start, or take its own version back."""
    loads.write("a.jsonl", lines(1, 2))
    loads.declared = replace(loads.declared, delivery=Rules(mode=Mode.SHARED))
    name, batch = SessionName("one"), new_batch()
    following = consume(loads.declared, settings_of(loads), name=name, batch=batch, pause=lambda: True)
    first = next(following)
    load_now(loads, edited(loads, columns=loads.declared.columns[:2]))
    loads.write("b.jsonl", lines(3))

    with pytest.raises(DeclarationChanged, match="Retry with the current file"):
        next(following)

    assert isinstance(first, Report)
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_follower_whose_first_load_failed_does_not_take_its_version_back(loads, monkeypatch):
    loads.write("a.jsonl", lines(1, 2))
    loads.declared = replace(loads.declared, delivery=Rules(mode=Mode.SHARED))
    failing = iter([NotAlone("events", 0, "position 1 was committed")])

    def fails_first(*arguments: Any, **named: Any) -> Any:
        for error in failing:
            raise error
        return make_plan(*arguments, **named)

    monkeypatch.setattr(offering, "make_plan", fails_first)
    name, batch = SessionName("one"), new_batch()
    following = consume(loads.declared, settings_of(loads), name=name, batch=batch, pause=lambda: True)
    first = next(following)
    load_now(loads, edited(loads, columns=loads.declared.columns[:2]))
    loads.write("b.jsonl", lines(3))

    with pytest.raises(DeclarationChanged):
        next(following)

    assert isinstance(first, NotAlone)
    assert loads.rows() == [1, 2]


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_number_that_a_failover_gives_out_again_is_another_version(loads):
    """The standby lacks the commit that took the number first, and another file takes it there."""
    loads.write("a.jsonl", lines(1))
    load_now(loads, loads.declared)
    lost_file = edited(loads, columns=loads.declared.columns[:2])
    lost = take_version(lost_file, settings_of(loads))
    execute(loads.admin_dsn, f"UPDATE onceload.pipeline SET version = {lost.number - 1}")
    execute(loads.admin_dsn, f"DELETE FROM onceload.declaration WHERE version = {lost.number}")
    taken = take_version(edited(loads, columns=loads.declared.columns[::2]), settings_of(loads))
    loads.write("b.jsonl", lines(2))

    board = PostgresDeliveries(loads.engine, "events", Rules())
    for follows in (
        lambda: load_now(loads, lost_file, version=lost),
        lambda: loads.ledger.open_session("events", SessionName("late"), version=lost),
        lambda: board.open_session(SessionName("late"), version=lost),
    ):
        with pytest.raises(DeclarationChanged, match=f"and another version {lost.number} is in force"):
            follows()

    assert (taken.number, loads.rows()) == (lost.number, [1])
    assert board.open_session(SessionName("now"), version=taken)


def test_limits_and_schedules_are_not_part_of_a_version(loads):
    loads.write("a.jsonl", lines(1))
    first = load_now(loads, loads.declared)
    more = replace(loads.declared.pipeline, islands_max=7, producers_max=8)

    second = load_now(loads, edited(loads, pipeline=more, schedule="@daily", delivery=Rules(deliveries_max=2)))

    assert first.version == second.version == 1
    assert loads.ask("SELECT islands_max, producers_max FROM onceload.pipeline") == [(7, 8)]


def test_the_content_of_a_version_can_be_read(loads):
    loads.write("a.jsonl", lines(1))
    load_now(loads, loads.declared)

    ((version, terms, rest),) = loads.ask("SELECT version, terms, rest FROM onceload.declaration")

    assert version == 1
    assert (terms["source.root"], rest["source.path"]) == (str(loads.folder), loads.declared.source.path)
    assert rest["columns"] == "id bigint not null, amount numeric(12,2), note text"
    assert loads.ask("SELECT DISTINCT version FROM onceload.ledger") == [(1,)]


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_rows_of_an_earlier_version_are_not_verified_by_the_rules_of_a_later_one(loads):
    """A record that was a duplicate by its id has no row, and none is missed once no ids are declared."""
    loads.write("a.jsonl", lines(1, 2, 1))
    load_now(loads, edited(loads, message_id=MessageId(columns=("id",), keep_days=2)))
    loads.write("b.jsonl", lines(3))
    load_now(loads, loads.declared)

    found = verify(loads.declared, loads.engine, deep=True)

    assert found.differing == 0
    assert [(note.name, "earlier version" in note.reason) for note in found.not_compared] == [("a.jsonl", True)]
    assert found.rows_compared == 1


@pytest.mark.parametrize("publish", [Publish.STAGED])
def test_business_ids_are_remembered_in_a_form_that_stays(loads):
    """They are the SHA-256 of a JSON array of the values as texts; another form would load repeats again."""
    with_ids = edited(loads, message_id=MessageId(columns=("id",), keep_days=2))
    loads.write("a.jsonl", lines(1, 2))
    load_now(loads, with_ids)

    known = loads.ask("SELECT message FROM onceload.message")
    expected = loads.ask(
        "SELECT sha256(convert_to(CAST(json_build_array(CAST(id AS text)) AS text), 'UTF8')) FROM target"
    )

    assert sorted(bytes(each) for (each,) in known) == sorted(bytes(each) for (each,) in expected)
