"""Going back: rows and state as they were at an earlier position, and all of it loaded again."""

import json
import logging
import random
from dataclasses import replace

import pytest
from sqlalchemy import text

from onceload.cli import main
from onceload_core.errors import (
    DatabaseLost,
    NotFound,
    PipelineBusy,
    SessionFenced,
    SettingRefused,
)
from onceload_core.messages import whole_message
from onceload_core.names import Batch, Position, SessionName
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit
from onceload_core.postgres import LedgerSettings, PostgresLedger, PostgresSnapshots, connect
from onceload_core.postgres import rewind as core
from onceload_core.postgres.connection import ChangeOutcomeUnknown
from onceload_core.replay import Condition, Counts, replay
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import MessageId, OnRewrite, Publish, RecordProducer
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import line
from tests.loads.rewinding import START, back, everything, pipeline_file, proven
from tests.servers import execute

pytestmark = pytest.mark.usually_staged


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


def test_a_rewind_of_other_commits_than_were_shown_is_refused(grown):
    shown = back(grown, 1, dry_run=True)
    (grown.folder / "later.jsonl").write_text(line(5))
    grown.load()
    before = everything(grown)

    with pytest.raises(SettingRefused, match=r"position 5: something has committed since position 4"):
        back(grown, 1, expected=shown.position)

    assert everything(grown) == before
    assert back(grown, 1, expected=Position(shown.position + 1)).applied


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

    with pytest.raises(ChangeOutcomeUnknown, match="did not answer COMMIT"):
        back(grown, 1)

    assert "commits_rewound" not in logged.names()


def test_a_rewind_that_loses_the_database_after_its_commit_reports_that_it_is_done(grown, logged):
    class Ending(logging.Handler):
        def emit(self, record):
            if record.event == "commits_rewound":
                execute(
                    grown.admin_dsn,
                    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'onceload'"
                    " AND datname = current_database()",
                )

    log, ending = logging.getLogger("onceload"), Ending()
    log.addHandler(ending)
    try:
        with pytest.raises(DatabaseLost) as lost:
            back(grown, 1)
    finally:
        log.removeHandler(ending)

    assert "The rewind to position 1 is done: the ledger records it at position 5." in whole_message(lost.value)
    assert grown.rows() == [1]


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


def test_a_target_that_is_gone_is_loaded_again(grown):
    with grown.engine.begin() as connection:
        connection.execute(text("DROP TABLE target"))

    assert back(grown, 0, differences_accepted=True).rows == 0

    grown.load()
    assert grown.rows() == [1, 3, 4]
    assert proven(grown)


def test_verification_finds_nothing_amiss_before_and_after_it_is_loaded_again(grown):
    back(grown, 1)
    assert verify(grown.declared, grown.engine, deep=True).differing == 0

    grown.load()

    assert verify(grown.declared, grown.engine, deep=True).differing == 0


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
    assert "3 commits of 2 producers were rolled back, with 3 rows" in done[2]
    assert "nothing to do" in again[2]
    assert json.loads(refused[1])["error"] == "SettingRefused"
    assert grown.rows() == [1]
