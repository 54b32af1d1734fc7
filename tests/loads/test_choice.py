"""The choices of a load: some files of a source, or a reload of loaded ones."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from onceload.choices import chosen
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.names import Batch, Position
from onceload_core.postgres import LedgerSettings
from onceload_core.replay import replay
from onceload_jobs.files.notes import Note, code_of
from onceload_jobs.formats.chunks import LastLineOpen
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.load.staged.kept_batch import publish_batch
from onceload_jobs.pipeline.declared import Identity, MessageId, Publish, RecordProducer, Target, Write
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, line

STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])


def settings_of(loads, *, files=(), replaces=False, publishes=True, accepted=False):
    return LoadSettings(
        ledger=LedgerSettings(dsn=loads.dsn),
        wait_s=0,
        publishes=publishes,
        choice=chosen(loads.declared, files=files, replaces=replaces),
        differences_accepted=accepted,
    )


def load_chosen(loads, *files, replaces=False, batch=None, publishes=True, accepted=False):
    settings = settings_of(loads, files=files, replaces=replaces, publishes=publishes, accepted=accepted)
    return load(loads.declared, settings, batch=Batch(batch) if batch else new_batch(), executor=InThisProcess())


def is_sound(loads):
    states = loads.ledger.states("events").states
    return replay({}, loads.ledger.entries("events", after=Position(0))) == states and not (
        verify(loads.declared, loads.engine, deep=True).differing
    )


@pytest.fixture
def two_days(loads):
    loads.write("2026-03-01/a.jsonl", line(1) + line(2))
    loads.write("2026-03-02/a.jsonl", line(3) + line(4))
    return loads


@pytest.mark.parametrize("file", ["2026-03-02/a.jsonl", "2026-03-02/*", "*-02/*"])
def test_only_what_is_chosen_is_loaded_and_the_rest_later(two_days, file):
    report = load_chosen(two_days, file)
    first = two_days.rows()
    rest = two_days.load()

    assert (report.notes, first) == ((), [3, 4])
    assert (rest.loaded, two_days.rows()) == (2, [1, 2, 3, 4])


def test_a_name_with_the_signs_of_patterns_is_a_name(loads):
    loads.write("[1].jsonl", line(1))
    loads.write("1.jsonl", line(2))

    load_chosen(loads, "[1].jsonl")

    assert loads.rows() == [1, 2]
    loads.write("[ab.jsonl", line(3))
    assert load_chosen(loads, "[ab.jsonl").loaded == 1


def test_a_choice_that_means_no_file_is_reported(two_days):
    (note,) = load_chosen(two_days, "2026-04-*").notes

    assert note.name == "2026-04-*"
    assert note.reason.startswith("no file of the source has this name")
    assert two_days.rows_or_none() == []


def test_a_copy_under_way_waits_also_where_it_alone_is_chosen(loads):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    loads.write("b.jsonl", line(1))

    (note,) = load_chosen(loads, "b.jsonl").notes

    assert note.reason.startswith("so far it is the beginning of a.jsonl")
    assert loads.rows() == [1, 2]
    loads.write("b.jsonl", line(1) + line(2) + line(3))
    assert (load_chosen(loads, "b.jsonl").loaded, loads.rows()) == (1, [1, 2, 3])


@STAGED
def test_loaded_rows_are_replaced_by_a_reload(two_days):
    loads = two_days
    loads.load()
    # As the mistake of a user left them.
    with loads.engine.begin() as connection:
        connection.execute(text("DELETE FROM target WHERE id = 3"))
        connection.execute(text("UPDATE target SET note = 'damaged' WHERE id IN (1, 4)"))

    report = load_chosen(loads, "2026-03-02/*", replaces=True, accepted=True)

    assert (report.loaded, report.notes) == (2, ())
    assert loads.rows("id, note") == [(1, "damaged"), (2, "x"), (3, "x"), (4, "x")]
    # The ledger knows of no damage: that of the first day is still found.
    load_chosen(loads, replaces=True)
    assert loads.rows("id, note") == [(1, "x"), (2, "x"), (3, "x"), (4, "x")]
    assert is_sound(loads)
    assert loads.load().records == 0


@STAGED
def test_a_file_that_was_rewritten_is_replaced_by_a_load_that_asks_for_it(two_days):
    loads = two_days
    loads.load()
    loads.write("2026-03-02/a.jsonl", line(30) + "no json\n" + line(40))
    stopped = loads.load()

    assert [note.needs_a_person for note in stopped.notes] == [True]
    assert load_chosen(loads, "2026-03-02/a.jsonl", replaces=True).loaded == 2
    assert loads.rows() == [1, 2, 30, 40]
    assert is_sound(loads)


@STAGED
def test_a_run_that_replaces_finds_all_files_of_a_pipeline_that_was_never_loaded(two_days):
    assert two_days.look(replaces=True, batch="first").files == 2


@STAGED
def test_a_batch_replaces_once_however_often_it_is_called(two_days):
    loads = two_days
    loads.load()

    first = load_chosen(loads, "2026-03-01/*", replaces=True, batch="again")
    second = load_chosen(loads, "2026-03-01/*", replaces=True, batch="again")
    found = loads.look(only=["2026-03-01/*"], replaces=True, batch="again")
    other = loads.look(only=["2026-03-01/*"], replaces=True, batch="other")

    assert (first.loaded, second.records) == (2, 0)
    assert (found.is_anything_new, other.is_anything_new) == (False, True)
    assert loads.rows() == [1, 2, 3, 4]


@STAGED
def test_a_batch_replaces_what_an_earlier_call_of_it_loaded(two_days):
    loads = two_days
    load_chosen(loads, batch="today")
    with loads.engine.begin() as connection:
        connection.execute(text("UPDATE target SET note = 'damaged' WHERE id = 1"))

    first = load_chosen(loads, "2026-03-01/*", replaces=True, batch="today")
    second = load_chosen(loads, "2026-03-01/*", replaces=True, batch="today")

    assert (first.loaded, first.notes, second.records) == (2, (), 0)
    assert loads.rows("id, note") == [(1, "x"), (2, "x"), (3, "x"), (4, "x")]
    ((name, reason, code),) = ((note.name, note.reason, code_of(second.notes)) for note in second.notes)
    assert (name, code) == ("2026-03-01/a.jsonl", ExitCode.DONE)
    assert "batch today has already replaced it, at position 2" in reason
    assert "use another batch name" in reason
    assert is_sound(loads)


@STAGED
def test_a_new_file_is_not_replaced_by_the_call_that_loads_it(two_days, monkeypatch):
    loads = two_days
    # Another load ends meanwhile.
    busy = Note(name="another", reason="another run is loading it", is_busy=True)
    plans = []

    def planned(*arguments, **named):
        plans.append(make_plan(*arguments, **named))
        return plans[-1] if len(plans) > 1 else replace(plans[-1], notes=(busy,))

    monkeypatch.setattr("onceload_jobs.load.offering.make_plan", planned)

    report = load_chosen(loads, replaces=True)

    assert (len(plans), report.loaded, report.notes) == (2, 4, ())
    assert loads.rows() == [1, 2, 3, 4]


@STAGED
def test_a_replacement_may_be_published_later_and_until_then_the_old_rows_are_seen(two_days):
    loads = two_days
    loads.load()
    loads.write("2026-03-01/a.jsonl", line(10))
    load_chosen(loads, "2026-03-01/*", replaces=True, batch="later", publishes=False)
    before = loads.rows()

    report = publish_batch(loads.declared, settings_of(loads), batch=Batch("later"))

    assert (before, report.loaded, loads.rows()) == ([1, 2, 3, 4], 1, [3, 4, 10])
    assert load_chosen(loads, "2026-03-01/*", replaces=True, batch="later", publishes=False).records == 0
    assert is_sound(loads)


@STAGED
def test_several_at_once_leave_each_row_once(two_days):
    loads = two_days
    loads.load()
    one = replace(loads.declared.delivery, ack_deadline_s=5)
    loads.declared = replace(loads.declared, delivery=one)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: load_chosen(loads, replaces=bool(number % 2)), range(4)))

    assert loads.rows() == [1, 2, 3, 4]
    assert is_sound(loads)


@STAGED
def test_a_file_without_an_end_replaces_nothing(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("a.jsonl", line(1) + '{"id": 2')

    (note,) = load_chosen(loads, replaces=True).notes

    assert note.reason == f"{LastLineOpen(8)}. Its loaded rows stay and are not replaced"
    assert loads.rows() == [1]


@STAGED
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"publish": Publish.DIRECT}, "publish: direct commits each chunk by itself"),
        ({"target": Target(schema="public", table="target", lineage=False)}, "lineage is false"),
        ({"target": Target(schema="public", table="target", write=Write.MERGE, key=("id",))}, "a merged row"),
        ({"producer": RecordProducer(name="note", sequence="id")}, "producers that records name"),
        ({"message_id": MessageId(columns=("id",), keep_days=1)}, "its business id was seen"),
        ({"identity": Identity.CONTENT}, "identity: content"),
    ],
)
def test_rows_that_cannot_be_told_apart_from_others_are_not_replaced(loads, changes, why):
    if identity := changes.get("identity"):
        changes = {"source": replace(loads.declared.source, identity=identity)}
    with pytest.raises(SettingRefused, match=why):
        chosen(replace(loads.declared, **changes), files=(), replaces=True)


@STAGED
def test_where_the_first_must_take_effect_first_nothing_is_chosen(loads):
    in_order = replace(loads.declared, delivery=Rules(mode=Mode.ORDERED))

    with pytest.raises(SettingRefused, match="must load records in their order"):
        chosen(in_order, files=["a.jsonl"], replaces=False)
