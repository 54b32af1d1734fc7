"""Going back: rows and state as they were at an earlier position, and all of it loaded again."""

import json
import random
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import create_engine, text

from onceload.cli import main
from onceload.snapshot_file import read_snapshot, write_snapshot
from onceload_core.errors import (
    CommitOutcomeUnknown,
    NotFound,
    PipelineBusy,
    SessionFenced,
    SettingRefused,
    StateDiffers,
)
from onceload_core.names import Batch, Position, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect, recover_state
from onceload_core.postgres import rewind as core
from onceload_core.postgres.quarantine import Selection, find_records
from onceload_core.replay import Condition, Counts, replay
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Identity, MessageId, OnRewrite, Publish, RecordProducer, Write
from onceload_jobs.recover.rebuild import rebuild
from onceload_jobs.recover.retry import retry
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import InThisProcess, line
from tests.servers import execute, temporary_database

pytestmark = pytest.mark.usually_staged

START = Position(0)


def back(loads, to=None, **options):
    position = None if to is None else Position(to)
    return rewind(loads.declared, loads.engine, to=position, **{"dry_run": False, **options})


def everything(loads):
    """All that a rewind may touch, but for the ledger that only grows."""
    return {
        "rows": loads.rows("id, note"),
        "states": loads.ledger.states("events").states,
        "quarantine": loads.ask(
            "SELECT producer_id, sequence_id, raw::text, state, settled_position FROM onceload.quarantine ORDER BY 1, 2"
        ),
        "messages": loads.ask("SELECT message::text FROM onceload.message ORDER BY 1"),
    }


def proven(loads):
    """The live states are what the whole ledger adds up to, however it is added."""
    for start in (START, *(each.position for each in PostgresSnapshots(loads.engine).list("events")[:1])):
        found = recover_state(loads.engine, "events", snapshot_position=start, dry_run=True)
        assert (found.differing, found.position) == ((), found.position_was)
    return replay({}, loads.ledger.entries("events", after=START)) == loads.ledger.states("events").states


@pytest.fixture
def grown(loads):
    """Four commits: of a file that grows, and of others beside it; one record is bad, and one is retried."""
    loads.write("a.jsonl", line(1) + "{broken\n" + line(2, amount="x"))
    loads.load()
    with (loads.folder / "a.jsonl").open("a") as file:
        file.write(line(3))
    loads.load()
    loads.write("b.jsonl", line(4) + "{also broken\n")
    loads.load()
    kept = [each for each in find_records(loads.engine, Selection(pipeline="events")) if b'"x"' in each.raw]
    fixed = {kept[0].quarantine_id: line(2).encode().rstrip()}
    retry(loads.engine, loads.ledger, loads.declared, kept, batch=Batch("retry"), fixed=fixed)
    return loads


def test_commits_after_a_position_are_rewound_and_loaded_again(grown, logged):
    before = everything(grown)
    assert grown.rows() == [1, 2, 3, 4]

    done = back(grown, 1)

    assert (done.entries, done.producers, done.rows, done.quarantined, done.held_again) == (3, 2, 3, 1, 1)
    assert (done.applied, done.position, done.differing) == (True, 5, ())
    assert logged.one("commits_rewound") == {
        "pipeline": "events", "position": 5, "rewound_to": 1, "entries": 3, "producers": 2, "rows": 3, "quarantined": 1,
        "held_again": 1, "message_ids": 0, "differing": 0,
    }  # fmt: skip
    assert grown.rows() == [1]
    assert [state for *_, state, _ in everything(grown)["quarantine"]] == ["held", "held"]
    assert proven(grown)
    again = grown.load()
    assert (again.loaded, again.quarantined) == (2, 1)
    assert grown.rows() == [1, 3, 4]
    assert {state.name: state for state in everything(grown)["states"].values()} == {
        state.name: state for state in before["states"].values()
    }
    assert proven(grown)


def test_every_position_may_be_gone_back_to_in_turn(loads):
    seen = [everything_at_start(loads)]
    for number in range(5):
        with (loads.folder / f"{number % 2}.jsonl").open("a") as file:
            file.write(line(number) + "{broken\n" * (number % 3))
        loads.load()
        seen.append(everything(loads))
    for to in (4, 3, 3, 2, 1, 0, 0):
        back(loads, to)
        assert everything(loads) == seen[to]
        assert proven(loads)
    loads.load()
    assert loads.rows() == list(range(5))
    assert proven(loads)


def everything_at_start(loads):
    loads.load()
    return {"rows": [], "states": {}, "quarantine": [], "messages": []}


def test_a_dry_run_says_what_would_go_and_changes_nothing(grown, logged):
    before = everything(grown)

    found = back(grown, 0, dry_run=True)

    assert (found.entries, found.producers, found.rows, found.quarantined) == (4, 2, 4, 3)
    assert (found.applied, found.position) == (False, 4)
    assert "commits_rewound" not in logged.names()
    assert everything(grown) == before
    assert grown.ledger.position("events") == 4


def test_a_dry_run_makes_no_writer_wait(grown):
    impatient = PostgresLedger(connect(LedgerSettings(dsn=grown.dsn, lock_timeout_s=0.2)))
    session = impatient.open_session("events", SessionName("beside"))

    def commit_now(doing):
        impatient.register("events", [("d.jsonl", 1)])
        impatient.commit(Commit(session=session, batch=Batch("d"), advances=(), write_rows=lambda _: 0))

    found = back(grown, 0, dry_run=True, on_progress=commit_now)

    assert (found.entries, found.rows, found.position) == (4, 4, 4)
    assert grown.ledger.position("events") == 5


def test_a_rewind_whose_commit_gets_no_answer_reports_that_it_is_unknown(grown, logged):
    execute(
        grown.admin_dsn,
        "CREATE FUNCTION hang_up() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS"
        " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NULL; END $$;"
        " CREATE CONSTRAINT TRIGGER late AFTER INSERT ON onceload.ledger DEFERRABLE INITIALLY DEFERRED"
        " FOR EACH ROW EXECUTE FUNCTION hang_up()",
    )

    with pytest.raises(CommitOutcomeUnknown, match="did not answer COMMIT"):
        back(grown, 1)

    assert "commits_rewound" not in logged.names()


def test_a_second_rewind_to_the_same_position_finds_nothing_to_do(grown):
    PostgresSnapshots(grown.engine).take("events")
    grown.write("c.jsonl", line(5))
    grown.load()
    first, second = back(grown), back(grown)

    assert (first.rewound_to, first.applied, first.rows) == (4, True, 1)
    assert (second.rewound_to, second.applied, second.entries) == (4, False, 0)
    assert grown.ledger.position("events") == 6


@pytest.mark.parametrize("step", ["_delete_rows", "_set_back", "_prove"])
def test_a_rewind_that_is_killed_anywhere_has_changed_nothing(grown, monkeypatch, step):
    before, whole = everything(grown), getattr(core, step)

    def killed(*arguments, **options):
        whole(*arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(core, step, killed)
    with pytest.raises(KeyboardInterrupt):
        back(grown, 0)

    assert everything(grown) == before
    assert grown.ledger.position("events") == 4


def test_a_position_whose_rows_were_rolled_back_is_not_a_target_of_a_rewind(grown):
    back(grown, 1)
    grown.load()

    with pytest.raises(SettingRefused, match="up to 1, or from 5 on"):
        back(grown, 3)

    assert back(grown, 5).applied
    assert grown.rows() == [1]
    assert back(grown, 0).applied
    assert grown.rows() == []
    assert proven(grown)


def test_snapshots_of_rewound_commits_are_passed_over(grown):
    PostgresSnapshots(grown.engine).take("events")
    with pytest.raises(SettingRefused, match="0 to 4"):
        back(grown, 5)
    back(grown, 1)

    with pytest.raises(NotFound, match="such as 0: before everything"):
        back(grown)

    assert proven(grown)


def test_lost_and_duplicated_rows_are_named_and_accepted_only_if_asked_for(grown):
    before = grown.rows()
    with grown.engine.begin() as connection:
        connection.execute(text("DELETE FROM target WHERE id = 3"))
        connection.execute(text("INSERT INTO target SELECT * FROM target WHERE id = 4"))

    looked = back(grown, 1, dry_run=True)
    with pytest.raises(StateDiffers, match=r"a.jsonl \(1 rows instead of 2\), b.jsonl \(2 rows instead of 1\)"):
        back(grown, 1)
    assert grown.ledger.position("events") == 4
    done = back(grown, 1, differences_accepted=True)
    grown.load()

    assert len(looked.differing) == len(done.differing) == 2
    assert grown.rows() == [each for each in before if each != 2]


def test_a_target_that_is_gone_is_loaded_again(grown):
    with grown.engine.begin() as connection:
        connection.execute(text("DROP TABLE target"))

    assert back(grown, 0, differences_accepted=True).rows == 0

    grown.load()
    assert grown.rows() == [1, 3, 4]
    assert proven(grown)


def test_a_row_that_does_not_go_stops_it(grown):
    with grown.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';"
            "CREATE TRIGGER keep BEFORE DELETE ON target FOR EACH ROW EXECUTE FUNCTION keep()"
        )

    with pytest.raises(StateDiffers, match="0 rows deleted of 4"):
        back(grown, 0)

    assert grown.ledger.position("events") == 4


@pytest.mark.parametrize("is_in_a_snapshot", [False, True])
def test_state_that_is_damaged_is_recovered_first(grown, is_in_a_snapshot):
    PostgresSnapshots(grown.engine).take("events")
    execute(grown.admin_dsn, "UPDATE onceload.producer SET consumed = '{[0,3)}' WHERE name = 'b.jsonl'")
    if is_in_a_snapshot:
        execute(
            grown.admin_dsn,
            "UPDATE onceload.snapshot SET position = 3;"
            " UPDATE onceload.snapshot_producer SET position = 3, consumed = live.consumed"
            " FROM onceload.producer AS live WHERE live.producer_id = snapshot_producer.producer_id",
        )

    with pytest.raises(StateDiffers, match=r"differs for b.jsonl\. .*recover state"):
        back(grown, 3)

    assert grown.ledger.position("events") == 4


def test_state_that_cannot_be_set_back_is_recovered_first(grown):
    with grown.engine.begin() as connection:
        connection.execute(text("DELETE FROM onceload.producer WHERE name = 'a.jsonl'"))

    with pytest.raises(StateDiffers, match=r"differs for a.jsonl\. .*recover state"):
        back(grown, 1)

    assert grown.rows() == [1, 2, 3, 4]
    recover_state(grown.engine, "events", dry_run=False)
    assert back(grown, 1).applied


def test_verification_finds_nothing_amiss_before_and_after_it_is_loaded_again(grown):
    back(grown, 1)
    assert verify(grown.declared, grown.engine, deep=True).differing == 0

    grown.load()

    assert verify(grown.declared, grown.engine, deep=True).differing == 0


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"write": Write.MERGE, "key": ("id",)}, "append.* recover rebuild"),
        ({"lineage": False}, "lineage: true.* recover rebuild"),
    ],
)
def test_rows_that_do_not_name_their_record_are_not_rewound(grown, change, sentence):
    grown.declared = replace(grown.declared, target=replace(grown.declared.target, **change))

    with pytest.raises(SettingRefused, match=sentence):
        back(grown, 0)


def test_a_target_that_got_no_lineage_from_its_transform_is_refused(grown):
    with grown.engine.begin() as connection:
        connection.execute(text("ALTER TABLE target DROP COLUMN _sequence"))

    with pytest.raises(SettingRefused, match="a transform may have left them out"):
        back(grown, 0)


def test_rows_from_before_there_was_a_lineage_are_refused(grown):
    execute(grown.admin_dsn, "UPDATE target SET _producer_id = NULL")
    execute(grown.admin_dsn, "ALTER TABLE onceload.ledger DISABLE TRIGGER ledger_is_append_only")
    execute(grown.admin_dsn, "UPDATE onceload.ledger SET loaded = loaded + 1 WHERE position = 2")

    with pytest.raises(SettingRefused, match="_producer_id and _sequence in all rows"):
        back(grown, 0, differences_accepted=True)


def test_nothing_goes_back_past_a_forgetting(grown):
    grown.ledger.declare(replace(grown.declared.pipeline, forget_idle_after_s=60))
    with grown.engine.begin() as connection:
        connection.execute(
            text("UPDATE onceload.producer SET advanced_at = '2000-01-01', fingerprint = NULL WHERE name = 'b.jsonl'")
        )
    grown.ledger.forget_idle("events")

    with pytest.raises(SettingRefused, match=r"position 5 forgot b.jsonl"):
        back(grown, 4)

    assert not back(grown, 5).entries


def test_nothing_goes_back_past_a_replaced_generation(loads):
    if loads.declared.publish is Publish.DIRECT:
        pytest.skip("pieces that commit themselves cannot replace anything at once")
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.REPLACE)
    path = loads.write("a.jsonl", line(1))
    loads.load()
    path.write_text(line(2))
    loads.load()
    loads.write("b.jsonl", line(3))
    loads.load()

    with pytest.raises(SettingRefused, match=r"position 2 replaced the rows of a.jsonl"):
        back(loads, 1)

    assert back(loads, 2).applied
    assert loads.rows() == [2]
    assert proven(loads)


def test_a_generation_that_began_later_is_as_if_it_had_never_been(loads):
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.NEW_GENERATION)
    path = loads.write("a.jsonl", line(1))
    loads.load()
    first = path.read_text()
    path.write_text(line(2))
    loads.load()

    back(loads, 1)
    path.write_text(first)

    assert loads.load().loaded == 0
    assert loads.rows() == [1]
    path.write_text(line(2))
    assert loads.load().loaded == 1
    assert proven(loads)


def test_rows_that_were_loaded_twice_as_allowed_are_not_taken_apart(loads):
    """A row of theirs does not tell with which of the two entries it came."""
    loads.write("a.jsonl", line(1))
    loads.load()
    with loads.engine.begin() as connection:
        connection.execute(text("UPDATE onceload.producer SET consumed = '{}'"))
    loads.load()

    for position in (1, 0):
        with pytest.raises(SettingRefused, match=r"a.jsonl, loaded more than once"):
            back(loads, position)
    assert loads.rows() == [1, 1]


def test_rewound_business_ids_are_new_again(loads):
    keep = replace(loads.declared.pipeline, message_keep_days=2)
    loads.declared = replace(
        loads.declared, pipeline=keep, publish=Publish.STAGED, message_id=MessageId(columns=("id",), keep_days=2)
    )
    loads.write("a.jsonl", line(1) + line(2))
    loads.load()
    loads.write("b.jsonl", line(2) + line(3))
    loads.load()
    before = everything(loads)

    done = back(loads, 1)

    assert (done.message_ids, done.rows, loads.rows()) == (1, 1, [1, 2])
    again = loads.load()
    assert (again.loaded, again.duplicates) == (1, 1)
    assert everything(loads)["rows"] == before["rows"]
    assert everything(loads)["messages"] == before["messages"]


@pytest.fixture
def with_ids(loads):
    """Two commits: the second one found a duplicate by its business id."""
    keep = replace(loads.declared.pipeline, message_keep_days=2)
    loads.declared = replace(
        loads.declared, pipeline=keep, publish=Publish.STAGED, message_id=MessageId(columns=("id",), keep_days=2)
    )
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.jsonl", line(1) + line(2))
    loads.load()
    assert loads.rows() == [1, 2]
    return loads


@pytest.mark.parametrize("is_dropped", [True, False])
def test_a_rewind_of_duplicates_whose_business_ids_are_forgotten_is_asked_for_explicitly(with_ids, is_dropped):
    """The id is remembered no longer, so the duplicate would be loaded. Upkeep may have deleted its day or not yet."""
    if is_dropped:
        execute(with_ids.admin_dsn, "DELETE FROM onceload.message")
    else:
        today = datetime.now(UTC).date()
        execute(
            with_ids.admin_dsn,
            "CREATE TABLE onceload.message_19990101 PARTITION OF onceload.message"
            f" FOR VALUES FROM ('{today - timedelta(9)}') TO ('{today - timedelta(2)}');"
            "UPDATE onceload.message SET day = day - 3",
        )
    before = everything(with_ids)

    looked = back(with_ids, 1, dry_run=True)
    with pytest.raises(StateDiffers, match="up to 1 records that were skipped as duplicates would be loaded"):
        back(with_ids, 1)

    assert "those of 1 commits up to position 1 are no longer remembered" in looked.differing[0]
    assert everything(with_ids) == before
    assert back(with_ids, 1, differences_accepted=True).applied


def test_a_rewind_that_brings_back_no_duplicate_is_not_asked_for(with_ids):
    """All is loaded again, or the rewound commits found no duplicate."""
    with_ids.write("c.jsonl", line(3))
    with_ids.load()
    execute(with_ids.admin_dsn, "DELETE FROM onceload.message")

    assert back(with_ids, 2).differing == ()
    assert back(with_ids, 0).differing == ()


@pytest.mark.parametrize("order", Order)
@pytest.mark.parametrize("to", [0, 1, 2])
def test_records_that_name_their_producer_are_loaded_again(loads, order, to):
    def record(device, seq):
        return json.dumps({"device": device, "seq": seq}) + "\n"

    loads.declared = replace(
        loads.declared,
        publish=Publish.STAGED,
        columns=tuple(parse_column(*each) for each in {"device": "text", "seq": "bigint"}.items()),
        producer=RecordProducer(name="device", sequence="seq", order=order),
    )
    for name, ids in {"a": (0, 1, 5), "b": (5, 6, 9), "c": (10, 12)}.items():
        loads.write(f"{name}.jsonl", "".join(record("d1", seq) + record(f"d-{name}", seq) for seq in ids))
        loads.load()
    rows = loads.rows("device, seq")
    consumed = {state.name: state.consumed for state in loads.ledger.states("events").states.values()}

    assert back(loads, to).applied
    assert proven(loads)
    assert len(loads.rows("device, seq")) == {0: 0, 1: 6, 2: 11}[to]
    loads.load()

    assert loads.rows("device, seq") == rows
    assert {state.name: state.consumed for state in loads.ledger.states("events").states.values()} == consumed
    assert proven(loads)


def test_a_running_load_is_fenced_and_its_rows_do_not_come(grown):
    session = grown.ledger.open_session("events", SessionName("slow"))
    producer_id = grown.ledger.register("events", [("c.jsonl", 1)])["c.jsonl", 1]
    claim = grown.ledger.claim(session, {producer_id: SpanSet.of((0, 9))}, batch=Batch("slow"), lease_s=600)

    back(grown, 1)

    advance = Advance(producer_id=producer_id, spans=SpanSet.of((0, 9)))
    with pytest.raises(SessionFenced):
        grown.ledger.commit(
            Commit(session=session, batch=Batch("slow"), advances=(advance,), write_rows=lambda _: 0, claim=claim)
        )
    grown.write("c.jsonl", line(7))
    assert grown.load().loaded == 3


def test_one_owner_at_a_time(grown):
    with grown.engine.connect() as other:
        other.execute(
            text(
                "SELECT pg_advisory_xact_lock(hashtextextended('onceload.recovery of pipeline ' || pipeline_id, 0))"
                " FROM onceload.pipeline"
            )
        )
        with pytest.raises(PipelineBusy, match="already running"):
            back(grown, 0)


@pytest.mark.parametrize("seed", range(3))
def test_states_and_rows_are_the_remembered_ones_after_any_history(loads, seed):
    """Loads in any order, forgettings and rewinds, against a memory of every position."""
    dice = random.Random(f"{seed} {loads.declared.publish}")
    ledger = loads.ledger
    ledger.declare(Pipeline(name="events", forget_idle_after_s=60))
    with loads.engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (id bigint, note text, _producer_id bigint, _sequence bigint)"))
    rewinds: list[tuple[int, int]] = []
    past, floor = [everything(loads)], 0
    for _ in range(25):
        positions = [
            each for each in range(floor, len(past)) if not any(to < each < position for to, position in rewinds)
        ]
        step = dice.choices(["load", "forget", "rewind", "snapshot"], [6, 1, 3, 1])[0]
        if step == "load":
            some_spans(loads, dice)
        elif step == "forget" and ledger.states("events").states:
            with loads.engine.begin() as connection:
                gone = dice.choice(sorted(ledger.states("events").states))
                connection.exec_driver_sql(
                    f"UPDATE onceload.producer SET advanced_at = '2000-01-01' WHERE producer_id = {gone}"
                )
            ledger.forget_idle("events")
            floor = ledger.position("events")
        elif step == "rewind":
            to = dice.choice(positions)
            if back(loads, to).applied:
                rewinds.append((to, len(past)))
                assert everything(loads) == past[to]
        else:
            PostgresSnapshots(loads.engine).take("events")
        if ledger.position("events") == len(past):
            past.append(everything(loads))
        assert everything(loads) == past[-1]
        assert proven(loads)
    entries = list(ledger.entries("events", after=START))
    for position, remembered in enumerate(past):
        assert replay({}, entries[:position]) == remembered["states"]


def some_spans(loads, dice):
    """One commit of new parts of some producers, with a row for each id of them."""
    names = [(name, 1) for name in dice.sample("abcd", dice.randint(1, 3))]
    ids = loads.ledger.register("events", names)
    session = loads.ledger.open_session("events", SessionName("loader"))
    known = loads.ledger.know(session, list(ids.values()))
    new = {
        each: SpanSet.of(*((first, first + 2) for first in dice.sample(range(30), 4))) - known[each].state.consumed
        for each in ids.values()
    }
    advances = tuple(
        Advance(
            producer_id=each,
            spans=spans,
            rows=spans.count,
            fingerprint=dice.randbytes(2),
            size=dice.randint(0, 99),
            condition=dice.choice([Condition.OPEN, Condition.SEALED]),
        )
        for each, spans in new.items()
        if spans
    )
    values = [
        f"({at}, 'x', {each}, {at})"
        for each, spans in new.items()
        for span in spans
        for at in range(span.first, span.end)
    ]
    if not advances:
        return

    def write(connection):
        return connection.exec_driver_sql(f"INSERT INTO target VALUES {', '.join(values)}").rowcount

    counts = Counts(loaded=len(values))
    loads.ledger.commit(Commit(session=session, batch=Batch("b"), advances=advances, write_rows=write, counts=counts))


def pipeline_file(loads, folder):
    path = folder / "events.yaml"
    path.write_text(
        f"pipeline: events\nsource: {{path: {loads.folder}/**/*.jsonl*, format: jsonl}}\n"
        "columns: {id: bigint not null, amount: 'numeric(12,2)', note: text}\n"
        f"target: {{table: public.target}}\npublish: {loads.declared.publish}\n"
    )
    return path


def test_the_command_line_says_first_what_it_would_do(grown, tmp_path, capsys):
    file = pipeline_file(grown, tmp_path)

    def call(*arguments):
        code = main(["recover", "rewind", str(file), *arguments], {"ONCELOAD_DSN": grown.dsn})
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    dry = call("--position", "1", "--dry-run", "--json")
    done = call("--position", "1")
    again = call("--position", "1")
    refused = call("--position", "3", "--json")

    assert (dry[0], done[0], again[0], refused[0]) == (0, 0, 0, 2)
    assert (json.loads(dry[1])["rows"], json.loads(dry[1])["applied"]) == (3, False)
    assert "Run again without --dry-run" in dry[2]
    assert "3 entries of 2 producers were rolled back, with 3 rows" in done[2]
    assert "nothing to do" in again[2]
    assert json.loads(refused[1])["error"] == "SettingRefused"
    assert grown.rows() == [1]


# rebuild


@pytest.fixture
def new_dsn(server_dsn, template):
    """A new database, in place of one that is gone."""
    with temporary_database(server_dsn, template=template) as dsn:
        yield dsn


@pytest.fixture
def exported(loads, tmp_path):
    """Two files and a growing third, known to a snapshot outside of the database."""
    for name, number in {"a": 1, "b": 2}.items():
        loads.write(f"{name}.jsonl", line(number) + "{broken\n")
        loads.load()
    PostgresSnapshots(loads.engine).take("events")
    path = tmp_path / "events.snapshot"
    write_snapshot(PostgresSnapshots(loads.engine).get("events"), path)
    return path


def rebuilt(loads, dsn, exported=None):
    snapshot = read_snapshot(exported) if exported else None
    settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
    return rebuild(loads.declared, settings, batch=new_batch(), snapshot=snapshot, tasks=InThisProcess())


def test_a_database_that_is_gone_is_rebuilt_from_the_same_files(loads, exported, new_dsn, logged):
    done = rebuilt(loads, new_dsn, exported)

    assert (done.report.loaded, done.report.quarantined) == (2, 2)
    assert (done.comparison.same, done.comparison.ahead, done.comparison.different) == (2, (), ())
    assert logged.one("pipeline_rebuilt") == {
        "pipeline": "events", "batch": done.report.batch, "position": done.report.position, "rows": 2,
        "quarantined": 2, "snapshot_position": 2, "missing": 0,
    }  # fmt: skip


def test_files_that_have_grown_since_the_snapshot_are_ahead_of_it(loads, exported, new_dsn):
    with (loads.folder / "a.jsonl").open("a") as file:
        file.write(line(3))
    loads.write("c.jsonl", line(4))

    found = rebuilt(loads, new_dsn, exported).comparison

    assert (found.same, found.ahead, found.different) == (1, ("a.jsonl", "c.jsonl"), ())


def test_files_that_are_missing_or_cut_are_named(loads, exported, new_dsn):
    (loads.folder / "a.jsonl").unlink()
    loads.write("b.jsonl", line(2))

    found = rebuilt(loads, new_dsn, exported).comparison

    assert (found.same, found.ahead) == (0, ())
    assert [(each.producer, each.found) for each in found.different] == [
        ("a.jsonl", "nothing: no file contains it any more"),
        ("b.jsonl", f"{{[0,{len(line(2))})}}"),
    ]


def test_an_earlier_life_that_no_file_holds_is_named(loads, exported, new_dsn):
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.NEW_GENERATION)
    loads.write("a.jsonl", line(9))
    loads.load()
    PostgresSnapshots(loads.engine).take("events")
    write_snapshot(PostgresSnapshots(loads.engine).get("events"), exported)

    found = rebuilt(loads, new_dsn, exported).comparison

    assert found.same == 2
    assert [(each.producer, each.generation) for each in found.different] == [("a.jsonl", 1)]


def test_a_file_of_the_same_size_with_other_content_is_named(loads, exported, new_dsn):
    whole = (loads.folder / "a.jsonl").read_text()
    loads.write("a.jsonl", whole.replace("1.50", "9.50"))

    found = rebuilt(loads, new_dsn, exported).comparison

    assert found.same == 1
    assert [(each.producer, each.found) for each in found.different] == [
        ("a.jsonl", f"{{[0,{len(whole)})}} with other content")
    ]


def test_files_that_are_known_by_their_content_may_have_other_names(loads, new_dsn, tmp_path):
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    loads.write("a.jsonl", line(1))
    loads.write("copy.jsonl", line(2))
    loads.load()
    loads.write("b.jsonl", line(2))
    loads.load()
    loads.load()
    (loads.folder / "a.jsonl").rename(loads.folder / "a.1.jsonl")
    loads.load()
    PostgresSnapshots(loads.engine).take("events")
    path = tmp_path / "events.snapshot"
    write_snapshot(PostgresSnapshots(loads.engine).get("events"), path)

    done = rebuilt(loads, new_dsn, path)

    assert done.report.loaded == 2
    # Names of one content are one producer.
    assert (done.comparison.same, done.comparison.different) == (2, ())


def test_a_target_that_still_has_rows_is_not_loaded_over(loads, exported, new_dsn):
    engine = create_engine(new_dsn)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (id bigint)"))
        connection.execute(text("INSERT INTO target VALUES (1)"))
    engine.dispose()

    with pytest.raises(SettingRefused, match=r"found table .*target.* with rows.*Expected an empty target"):
        rebuilt(loads, new_dsn, exported)


def test_without_a_snapshot_nothing_is_compared(loads, exported, new_dsn):
    assert rebuilt(loads, new_dsn).comparison is None


def test_a_database_that_has_the_pipeline_is_not_rebuilt_over(loads, exported):
    with pytest.raises(SettingRefused, match="with 2 commits in this database"):
        rebuilt(loads, loads.dsn, exported)


def test_a_snapshot_of_another_pipeline_is_refused(loads, exported, new_dsn):
    loads.declared = replace(loads.declared, pipeline=replace(loads.declared.pipeline, name="others"))

    with pytest.raises(SettingRefused, match=r"found one of pipeline events.*Expected a snapshot of others"):
        rebuilt(loads, new_dsn, exported)


def test_the_command_line_says_that_a_rebuild_keeps_one_row_of_each_business_id(
    loads, new_dsn, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(
        "onceload_jobs.work.spark.tasks.SparkTasks.started", lambda *_, **__: nullcontext(InThisProcess())
    )
    file = pipeline_file(loads, tmp_path)
    staged = file.read_text().replace(f"publish: {loads.declared.publish}", "publish: staged")
    file.write_text(f"{staged}message_id: {{columns: [id], keep: 1d}}\n")
    loads.write("a.jsonl", line(1))
    loads.write("b.jsonl", line(1) + line(2))

    code = main(["recover", "rebuild", str(file)], {"ONCELOAD_DSN": new_dsn})

    messages = capsys.readouterr().err
    assert code == 0
    assert "2 loaded, 1 duplicates" in messages
    assert "records that repeat an id after its window are counted as duplicates" in messages


@pytest.mark.usefixtures("exported")
def test_the_command_line_names_what_a_rebuild_lacks(loads, new_dsn, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        "onceload_jobs.work.spark.tasks.SparkTasks.started", lambda *_, **__: nullcontext(InThisProcess())
    )
    file, exported = pipeline_file(loads, tmp_path), tmp_path / "events.snapshot"
    (loads.folder / "a.jsonl").unlink()

    code = main(["recover", "rebuild", str(file), "--snapshot", str(exported), "--json"], {"ONCELOAD_DSN": new_dsn})

    printed = capsys.readouterr()
    assert code == 4
    assert json.loads(printed.out)["comparison"]["different"][0]["producer"] == "a.jsonl"
    assert "a.jsonl (generation 1): expected" in printed.err
    assert "1 producers are the same, 0 are ahead or new, 1 lack records" in printed.err
