"""Two loads at once of the same pipeline: what one has read and not yet published is not the other's to decide."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import psycopg2
import pytest

from onceload_core.errors import CommitOutcomeUnknown, DatabaseLost, NotAlone
from onceload_core.names import Batch, SessionName
from onceload_core.postgres import LedgerSettings, PostgresLedger
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Order
from onceload_jobs.batch.stage import sweep
from onceload_jobs.load import offering
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import (
    Identity,
    MessageId,
    OnRewrite,
    Publish,
    RecordProducer,
    Write,
)
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.plan.plan import make_plan
from onceload_jobs.publish import batch_road
from onceload_jobs.publish.merge import merge_in
from onceload_jobs.publish.table_road import copy_to, open_tables
from onceload_jobs.recover.retry import retry
from onceload_jobs.work import load_delivery as loading
from onceload_jobs.write import kept_alive
from onceload_jobs.write.find_refused import offer_rows
from onceload_jobs.write.target import ensure_target
from tests.loads.conftest import InThisProcess, Loads, line, through_a_table
from tests.servers import execute
from tests.waiting import until


@dataclass
class Meanwhile(InThisProcess):
    """Something else happens before anything is read, or once all of it is."""

    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def begins(self) -> None:
        self.before()

    def ends(self) -> None:
        self.after()


def load_with(loads: Loads, tasks: Meanwhile) -> Report:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    return load(loads.declared, settings, batch=new_batch(), executor=tasks)


def declare(loads: Loads, *, columns: dict[str, str], **changes: Any) -> None:
    loads.declared = replace(loads.declared, columns=tuple(parse_column(*each) for each in columns.items()), **changes)


def lines(*numbers: int) -> str:
    return "".join(map(line, numbers))


STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])
DIRECT = pytest.mark.parametrize("publish", [Publish.DIRECT])


@STAGED
@pytest.mark.parametrize("second", ["a.jsonl", "b.jsonl"])
def test_ordered_records_wait_for_those_that_another_run_has_read_before_them(loads, second):
    declare(
        loads,
        columns={"id": "bigint", "who": "text"},
        producer=RecordProducer(name="who", sequence="id", order=Order.ORDERED),
    )
    first, later = (json.dumps({"id": number, "who": "me"}) + "\n" for number in (1, 2))
    loads.write("a.jsonl", first)

    def go_on():
        loads.write(second, first + later if second == "a.jsonl" else later)
        report = loads.load()
        assert "another run is loading" in report.notes[-1].reason

    load_with(loads, Meanwhile(after=go_on))
    loads.load()

    assert loads.rows() == [1, 2]


@STAGED
def test_ordered_records_are_not_published_before_earlier_ones_that_were_read_since_they_were_planned(
    loads, monkeypatch
):
    declare(
        loads,
        columns={"id": "bigint", "who": "text"},
        producer=RecordProducer(name="who", sequence="id", order=Order.ORDERED),
    )
    first, later = (json.dumps({"id": number, "who": "me"}) + "\n" for number in (1, 2))
    planned_file = loads.write("later.jsonl", later)
    loads.ledger.declare(pipeline_with_declaration(loads.declared))
    planned = make_plan(loads.declared, loads.ledger, now_s=time.time())
    planned_file.unlink()
    loads.write("first.jsonl", first)

    def load_what_was_planned():
        loads.write("later.jsonl", later)
        with monkeypatch.context() as patched:
            patched.setattr(offering, "make_plan", lambda *_, **__: planned)
            with pytest.raises(NotAlone, match=r"another session has started to load first\.jsonl.*Retry"):
                loads.load()

    load_with(loads, Meanwhile(after=load_what_was_planned))
    loads.load()

    assert loads.rows() == [1, 2]


def test_a_file_that_is_rewritten_under_the_claim_of_a_loader_that_died_is_loaded_whole(loads):
    loads.ledger.declare(pipeline_with_declaration(loads.declared))
    dead = loads.ledger.open_session("events", SessionName("dead"))
    file = loads.ledger.register("events", [("a.jsonl", 1)])["a.jsonl", 1]
    loads.ledger.claim(dead, {file: SpanSet.of((0, len(line(1))))}, batch=Batch("dead"), lease_s=60)
    loads.write("a.jsonl", line(2, note="a longer one"))

    waiting = loads.load()
    loads.ledger.open_session("events", SessionName("dead"))
    loads.load()

    assert [note.reason.split(" until ")[0] for note in waiting.notes] == [
        "another run is loading it. Now session dead holds delivery 1"
    ]
    assert loads.rows() == [2]


@STAGED
def test_a_deletion_waits_for_the_row_that_another_run_has_read_before_it(loads):
    target = replace(loads.declared.target, write=Write.MERGE, key=("id",), deleted="gone")
    declare(loads, columns={"id": "bigint", "gone": "boolean"}, target=target)
    row, deletion = '{"id": 1, "gone": false}\n', '{"id": 1, "gone": true}\n'
    loads.write("a.jsonl", row)

    def delete():
        loads.write("a.jsonl", row + deletion)
        loads.load()

    load_with(loads, Meanwhile(after=delete))
    loads.load()

    assert loads.rows() == []


@pytest.fixture
def logs(loads: Loads) -> Loads:
    source = replace(loads.declared.source, path=str(loads.folder / "*.log*"), identity=Identity.CONTENT)
    loads.declared = replace(loads.declared, source=source)
    return loads


@STAGED
def test_a_file_that_is_rotated_while_it_is_staged_is_loaded_once(logs):
    logs.write("app.log", lines(1, 2))

    def rotate():
        (logs.folder / "app.log").rename(logs.folder / "app.log.1")
        assert "until that run ends" in logs.load().notes[0].reason

    load_with(logs, Meanwhile(after=rotate))
    logs.load()

    assert logs.rows() == [1, 2]


@DIRECT
def test_a_file_that_is_rotated_before_it_is_committed_is_loaded_once(logs, monkeypatch):
    logs.write("app.log", lines(1, 2))
    commit_piece = loading._commit_piece

    def rotate(*arguments, **named):
        monkeypatch.setattr(loading, "_commit_piece", commit_piece)
        (logs.folder / "app.log").rename(logs.folder / "app.log.1")
        logs.load()
        return commit_piece(*arguments, **named)

    monkeypatch.setattr(loading, "_commit_piece", rotate)
    logs.load()
    logs.load()

    assert logs.rows() == [1, 2]


def test_a_file_that_was_loaded_under_another_name_since_it_was_planned_is_not_loaded_again(logs, monkeypatch):
    logs.write("app.log.1", lines(1, 2))

    def plan_and_lose_a_race(*arguments, **named):
        planned = make_plan(*arguments, **named)
        monkeypatch.setattr(offering, "make_plan", make_plan)
        rotated = (logs.folder / "app.log.1").rename(logs.folder / "app.log")
        logs.load()
        rotated.rename(logs.folder / "app.log.1")
        return planned

    monkeypatch.setattr(offering, "make_plan", plan_and_lose_a_race)
    report = logs.load()

    # It plans again, and finds a copy.
    assert (report.loaded, report.duplicates) == (0, 2)
    assert logs.rows() == [1, 2]


def test_a_planned_copy_is_not_noted_once_something_else_took_effect(logs, monkeypatch):
    """The longer twin that came meanwhile would not be looked for any more."""
    logs.write("app.log", lines(1, 2))
    logs.load()
    logs.write("copy.log", lines(1, 2, 3))

    def plan_and_lose_a_race(*arguments, **named):
        planned = make_plan(*arguments, **named)
        monkeypatch.setattr(offering, "make_plan", make_plan)
        logs.write("app.log", lines(1, 2, 3))
        (logs.folder / "copy.log").rename(logs.folder / "kept")
        logs.load()
        (logs.folder / "kept").rename(logs.folder / "copy.log")
        return planned

    monkeypatch.setattr(offering, "make_plan", plan_and_lose_a_race)
    # It plans again.
    report = logs.load()

    assert (report.duplicates, logs.rows()) == (3, [1, 2, 3])


@STAGED
def test_files_of_a_content_pipeline_wait_while_another_run_loads(logs):
    logs.write("a.log", lines(1, 2))
    reports: list[Report] = []

    def load_another():
        logs.write("b.log", lines(3))
        reports.append(logs.load())

    load_with(logs, Meanwhile(after=load_another))
    logs.load()

    assert [note.name for note in reports[0].notes] == ["a.log", "b.log"]
    assert logs.rows() == [1, 2, 3]


@DIRECT
def test_a_file_that_is_rewritten_while_its_next_generation_is_read_loses_nothing(loads, monkeypatch):
    source = replace(loads.declared.source, chunk_bytes=100)
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.NEW_GENERATION, source=source)
    loads.write("a.jsonl", lines(1))
    loads.load()
    loads.write("a.jsonl", line(2, note="second life"))
    commit_piece = loading._commit_piece

    def rewrite(*arguments, **named):
        monkeypatch.setattr(loading, "_commit_piece", commit_piece)
        loads.write("a.jsonl", lines(*range(10, 19)))
        assert loads.load().notes[0].reason.startswith("another run is loading it. Now session ")
        return commit_piece(*arguments, **named)

    monkeypatch.setattr(loading, "_commit_piece", rewrite)
    loads.load()
    loads.load()

    assert loads.rows() == [1, 2, *range(10, 19)]


@DIRECT
def test_nothing_of_a_file_is_taken_once_another_run_was_faster_with_a_part_of_it(loads, monkeypatch):
    """What it claims it may have read of another content, which need not end where a record of this one does."""
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=100))
    loads.write("a.jsonl", lines(*range(10, 19)))
    loads.write("b.jsonl", lines(30))

    def plan_and_lose_a_race(*arguments, **named):
        planned = make_plan(*arguments, **named)
        other = loads.ledger.open_session("events", SessionName("other"))
        file = loads.ledger.register("events", [("a.jsonl", 1)])["a.jsonl", 1]
        loads.ledger.claim(other, {file: SpanSet.of((0, 51))}, batch=Batch("other"), lease_s=60)
        return planned

    with monkeypatch.context() as patched:
        patched.setattr(offering, "make_plan", plan_and_lose_a_race)
        report = loads.load()
    assert (report.loaded, loads.rows()) == (1, [30])

    loads.ledger.open_session("events", SessionName("other"))
    loads.load()
    assert loads.rows() == [*range(10, 19), 30]


@STAGED
def test_a_dead_claim_on_the_next_generation_of_a_file_stops_no_other_file(loads):
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.NEW_GENERATION)
    loads.write("a.jsonl", lines(1))
    loads.load()
    dead = loads.ledger.open_session("events", SessionName("dead"))
    file = loads.ledger.register("events", [("a.jsonl", 2)])["a.jsonl", 2]
    loads.ledger.claim(dead, {file: SpanSet.of((0, 10))}, batch=Batch("dead"), lease_s=60)
    loads.write("a.jsonl", line(2, note="a longer one"))
    loads.write("b.jsonl", lines(3))

    loads.load()

    assert loads.rows() == [1, 3]


@STAGED
def test_a_generation_that_was_read_is_not_published_once_it_is_replaced(loads):
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.REPLACE)
    loads.write("a.jsonl", lines(1, 2))
    loads.load()
    loads.write("a.jsonl", lines(1, 2, 3))

    def rewrite():
        loads.write("a.jsonl", lines(7, 8, 9, 10))
        with loads.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE onceload.delivery SET deadline_at = clock_timestamp()")
        loads.load()

    # It is refused, and plans again.
    load_with(loads, Meanwhile(after=rewrite))

    assert loads.rows() == [7, 8, 9, 10]


@STAGED
@pytest.mark.parametrize("change", [lambda declared: declared, through_a_table], ids=["batch", "table"])
def test_a_batch_that_loses_one_of_its_files_to_another_load_loads_the_others(loads, change):
    """That the file is loaded does not show that the batch took effect."""
    loads.declared = change(loads.declared)
    loads.write("a.jsonl", lines(1, 2))
    loads.write("b.jsonl", lines(3, 4))
    taken: list[Report] = []

    def take_one():
        if not taken:
            hidden = (loads.folder / "b.jsonl").rename(loads.folder / ".b")
            with loads.engine.begin() as connection:
                connection.exec_driver_sql("UPDATE onceload.delivery SET deadline_at = clock_timestamp()")
            taken.append(loads.load())
            hidden.rename(loads.folder / "b.jsonl")

    report = load_with(loads, Meanwhile(after=take_one))

    assert (taken[0].loaded, report.loaded, loads.rows()) == (2, 2, [1, 2, 3, 4])


@STAGED
def test_a_retried_record_does_not_take_the_place_of_a_later_one_that_is_just_loaded(loads, monkeypatch):
    target = replace(loads.declared.target, write=Write.MERGE, key=("id",))
    declare(loads, columns={"id": "bigint", "amount": "numeric(12,2)"}, target=target)
    loads.write("a.jsonl", '{"id": 1, "amount": "x"}\n')
    loads.load()
    (held,) = find_records(loads.engine, Selection(pipeline="events"))
    loads.write("b.jsonl", '{"id": 1, "amount": 5}\n')
    fixed = {held.quarantine_id: Fix(raw=b'{"id": 1, "amount": 4}', digest=held.digest)}
    retrying = threading.Thread(
        target=lambda: retry(loads.engine, loads.ledger, loads.declared, (held,), batch=Batch("retry"), fixed=fixed)
    )

    def merge_while_it_is_retried(*arguments, is_late):
        merged = merge_in(*arguments, is_late=is_late)
        if not is_late:
            retrying.start()
            wait_for_blocked_session(loads)
        return merged

    monkeypatch.setattr("onceload_jobs.publish.table_road.merge_in", merge_while_it_is_retried)
    loads.load()
    retrying.join()

    assert [int(amount) for amount in loads.rows("amount")] == [5]


def wait_for_blocked_session(loads: Loads) -> None:
    blocked = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    until(lambda: execute(loads.admin_dsn, blocked), "a session waits for a lock")


@STAGED
@pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.long), "after"])
def test_a_stage_whose_holder_was_ended_by_hand_is_staged_again(loads, when):
    loads.declared = through_a_table(loads.declared)
    loads.write("a.jsonl", lines(1, 2))
    ended: list[object] = []

    def end_once():
        if not ended:
            ended.append(end_holder_and_sweep(loads))

    report = load_with(loads, Meanwhile(**{when: end_once}))

    assert ended == [[(True,)]]
    assert (report.loaded, loads.rows()) == (2, [1, 2])


@STAGED
@pytest.mark.parametrize("road", ["batch", "table"])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_load_outlives_all_its_connections(loads, road, when):
    """A crash of the server leaves old connections in the pool. Each fails only when it is used."""
    if road == "table":
        loads.declared = through_a_table(loads.declared)
    loads.write("a.jsonl", lines(1, 2))
    ended: list[tuple[Any, ...]] = []

    def end_all_once() -> None:
        if not ended:
            ended.extend(execute(loads.admin_dsn, _END_ALL))
            loads.engine.dispose()

    report = load_with(loads, Meanwhile(**{when: end_all_once}))

    assert ended
    assert (report.loaded, loads.rows()) == (2, [1, 2])


@STAGED
def test_a_stage_is_opened_although_the_server_has_ended_all_connections(loads, monkeypatch):
    loads.declared = through_a_table(loads.declared)
    loads.write("a.jsonl", lines(1, 2))
    ended: list[tuple[Any, ...]] = []

    def open_after_a_crash(*arguments: Any) -> Any:
        if not ended:
            ended.extend(execute(loads.admin_dsn, _END_ALL))
        return open_tables(*arguments)

    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.open_tables", open_after_a_crash)

    report = loads.load()

    assert ended
    assert (report.loaded, loads.rows()) == (2, [1, 2])


@STAGED
def test_a_transaction_that_waits_for_its_workers_is_kept(loads, monkeypatch):
    """The server ends one that is idle for too long."""
    monkeypatch.setattr(kept_alive, "_EVERY_S", 0.05)
    loads.write("a.jsonl", lines(1, 2))
    ledger, seen = LedgerSettings(dsn=loads.dsn, idle_timeout_s=0.5), list[object]()

    class Slow(InThisProcess):
        def ends(self) -> None:
            def is_old() -> object:
                # Nothing, if the server has ended it. A loader has no right to look at transactions.
                return execute(loads.admin_dsn, _OPEN_FOR_A_SECOND)[0][0]

            until(lambda: is_old() is not False, "a transaction waits, or is ended")
            seen.append(is_old())

    report = load(loads.declared, LoadSettings(ledger=ledger, wait_s=0), batch=new_batch(), executor=Slow())

    assert (seen, report.loaded, loads.rows()) == ([True], 2, [1, 2])


@STAGED
def test_a_commit_without_an_answer_that_comes_late_is_no_other_load(loads, monkeypatch):
    """It is carried out after the ledger was asked about it, and before it is tried again."""
    loads.declared = through_a_table(loads.declared)
    loads.write("a.jsonl", lines(1, 2))
    commit = PostgresLedger.commit
    commits: list[int] = []
    plans: list[int] = []

    def committing(ledger: PostgresLedger, offered: Any, **begun: Any) -> Any:
        commits.append(len(commits))
        if len(commits) == 1:
            raise CommitOutcomeUnknown(loads.declared.name, offered.batch, "the connection was lost")
        commit(ledger, offered, **begun)
        return commit(ledger, offered, **begun)

    def planning(*asked: Any, **how: Any) -> Any:
        plans.append(len(plans))
        return make_plan(*asked, **how)

    monkeypatch.setattr(PostgresLedger, "commit", committing)
    monkeypatch.setattr("onceload_jobs.load.offering.make_plan", planning)

    report = loads.load()

    assert (len(commits), len(plans), report.loaded, loads.rows()) == (2, 1, 2, [1, 2])


@STAGED
def test_a_stage_whose_filling_got_no_answer_is_filled_again(loads, monkeypatch):
    loads.declared = through_a_table(loads.declared)
    loads.write("a.jsonl", lines(1, 2))
    filled: list[int] = []

    def without_an_answer(*arguments: Any) -> Any:
        copied = copy_to(*arguments)
        filled.append(len(copied))
        if len(filled) == 1:
            raise DatabaseLost("staging rows", "its COMMIT got no answer")
        return copied

    monkeypatch.setattr("onceload_jobs.load.staged.staged_batch.copy_to", without_an_answer)

    report = loads.load()

    assert (filled, report.loaded, loads.rows()) == ([1, 1], 2, [1, 2])


_OPEN_FOR_A_SECOND = """
SELECT bool_or(clock_timestamp() - xact_start > interval '1 s') FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()"""
_END_ALL = (
    "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@STAGED
def test_a_stage_that_is_lost_while_refused_rows_are_looked_for_is_staged_again(loads, monkeypatch):
    loads.declared = replace(loads.declared, message_id=MessageId(columns=("id",), keep_days=1))
    loads.load()
    ensure_target(loads.engine, loads.declared, columns=loads.declared.columns, is_recorded=False)
    with loads.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE target ADD CHECK (id < 100)")
    loads.write("a.jsonl", lines(1, 200))

    def lose_stage(*arguments, **named):
        monkeypatch.setattr(batch_road, "offer_rows", offer_rows)
        execute(loads.admin_dsn, _END_ALL)
        loads.engine.dispose()
        return offer_rows(*arguments, **named)

    monkeypatch.setattr(batch_road, "offer_rows", lose_stage)
    report = loads.load()

    assert (report.loaded, report.quarantined, loads.rows()) == (1, 1, [1])


def end_holder_and_sweep(loads: Loads) -> list[tuple[Any, ...]]:
    ended = execute(
        loads.admin_dsn,
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_locks JOIN pg_database ON pg_database.oid = database"
        " WHERE locktype = 'advisory' AND datname = current_database()",
    )
    sweep(loads.engine)
    return ended


@STAGED
def test_a_stage_is_held_for_as_long_as_it_is_filled_whatever_the_server_does_to_idle_sessions(loads):
    ((name,),) = loads.ask("SELECT current_database()")
    execute(loads.admin_dsn, f'ALTER DATABASE "{name}" SET idle_session_timeout = 500')
    loads.engine.dispose()
    loads.declared = through_a_table(loads.declared)
    loads.write("a.jsonl", lines(1, 2))

    def sweep_later():
        with closing(psycopg2.connect(loads.dsn)) as idle:
            there = f"SELECT 1 FROM pg_stat_activity WHERE pid = {idle.info.backend_pid}"
            until(lambda: not execute(loads.admin_dsn, there), "the server ends an idle session")
        # By now it would have ended one that was opened before, and says nothing.
        swept.append(sweep(loads.engine))

    swept: list[int] = []
    load_with(loads, Meanwhile(after=sweep_later))

    assert swept == [0]

    assert loads.rows() == [1, 2]
