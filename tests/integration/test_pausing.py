"""A pause stops every commit of a load, and nothing else: commits race with it on a real Postgres."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import IntegrityError

from onceload_core.errors import ExitCode, NotFound, SettingRefused
from onceload_core.names import Batch, ProducerId, SessionName
from onceload_core.pause import PipelinePaused
from onceload_core.pipeline import Pipeline
from onceload_core.ports import Advance, Commit, CommitStep, QuarantinedRecord, Session, Settlement
from onceload_core.postgres import PostgresLedger
from onceload_core.postgres.pausing import find_pause, pause, resume
from onceload_core.replay import Counts, EntryKind
from onceload_core.spans import SpanSet
from tests.integration.shell import onceload
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.every_postgres

WHY = "rows of May are being repaired"
COMMITTERS = 4


@pytest.fixture
def ledger(engine: Engine) -> PostgresLedger:
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE target (value int)"))
    ledger = PostgresLedger(engine)
    ledger.declare(Pipeline(name="events"))
    return ledger


@pytest.fixture
def producer_id(ledger: PostgresLedger) -> ProducerId:
    return ledger.register("events", [("a", 1)])["a", 1]


@pytest.fixture
def session(ledger: PostgresLedger) -> Session:
    return ledger.open_session("events", SessionName("loader"))


@pytest.fixture
def commit(producer_id: ProducerId, session: Session) -> Callable[[int], Commit[Connection]]:
    """A commit of one row with this id, and its proof."""

    def of(sequence_id: int) -> Commit[Connection]:
        advance = Advance(producer_id=producer_id, spans=SpanSet.of((sequence_id, sequence_id + 1)), rows=1)
        return Commit(
            session=session, batch=Batch("b"), advances=(advance,), write_rows=insert, counts=Counts(loaded=1)
        )

    return of


def insert(connection: Connection) -> int:
    return connection.execute(text("INSERT INTO target VALUES (1)")).rowcount


def rows_in(engine: Engine) -> int:
    with engine.begin() as connection:
        return int(connection.execute(text("SELECT count(*) FROM target")).scalar_one())


def test_no_load_commits_while_a_pipeline_is_paused_and_each_does_after_the_resume(engine, ledger, commit):
    ledger.commit(commit(0))
    made = pause(engine, "events", by="ann", why=WHY).pause

    with pytest.raises(PipelinePaused) as refused:
        ledger.commit(commit(1))

    assert (refused.value.by, refused.value.since, refused.value.why) == ("ann", made.since, WHY)
    assert refused.value.exit_code is ExitCode.CALL_AGAIN
    assert "`onceload resume events`" in str(refused.value)
    assert (rows_in(engine), ledger.position("events")) == (1, 1)
    resume(engine, "events", by="ben")
    assert ledger.commit(commit(1)) == 2
    assert rows_in(engine) == 2


@pytest.mark.parametrize("step", [CommitStep.POSITION_TAKEN, CommitStep.DELIVERY_ACKED])
def test_a_pause_waits_for_the_commit_in_progress(engine, commit, step, wait_until_blocked):
    may_go_on = threading.Event()

    def reached(now: CommitStep) -> None:
        if now is step:
            at_step.set()
            may_go_on.wait(timeout=PATIENCE_S)

    at_step = threading.Event()
    with ThreadPoolExecutor(2) as threads:
        committed = threads.submit(PostgresLedger(engine, reached=reached).commit, commit(0))
        assert at_step.wait(timeout=PATIENCE_S)
        paused = threads.submit(pause, engine, "events", by="ann", why=WHY)
        try:
            wait_until_blocked()
            assert not paused.done()
        finally:
            may_go_on.set()

    assert (committed.result(), paused.result().is_earlier) == (1, False)
    assert rows_in(engine) == 1


def test_a_commit_that_has_written_its_rows_before_the_pause_and_locks_after_it_is_rolled_back(engine, commit):
    def reached(step: CommitStep) -> None:
        if step is CommitStep.ROWS_WRITTEN:
            pause(engine, "events", by="ann", why=WHY)

    with pytest.raises(PipelinePaused):
        PostgresLedger(engine, reached=reached).commit(commit(0))

    assert rows_in(engine) == 0


def test_a_commit_that_waits_for_a_pause_in_progress_is_refused(engine, commit, wait_until_blocked):
    with engine.connect() as pausing, ThreadPoolExecutor(1) as thread:
        pausing.execute(
            text(f"UPDATE onceload.pipeline SET paused_at = now(), paused_by = 'ann', pause_reason = '{WHY}'")
        )
        began = thread.submit(PostgresLedger(engine).commit, commit(0))
        wait_until_blocked()
        pausing.commit()

    assert isinstance(began.exception(), PipelinePaused)
    assert rows_in(engine) == 0


def test_no_row_appears_after_a_pause_has_returned_however_many_commits_race_with_it(engine, ledger, commit):
    """Each round pauses in the middle of a race, and lets the race go on for a moment."""
    ids, lock, stopped = iter(range(1_000_000)), threading.Lock(), threading.Event()

    def commit_again_and_again() -> None:
        own = PostgresLedger(engine)
        while not stopped.is_set():
            with lock:
                sequence_id = next(ids)
            with suppress(PipelinePaused):
                own.commit(commit(sequence_id))

    with ThreadPoolExecutor(COMMITTERS) as threads:
        racing = [threads.submit(commit_again_and_again) for _ in range(COMMITTERS)]
        try:
            for _ in range(20):
                before = ledger.position("events")
                while ledger.position("events") < before + 3:
                    assert not any(each.done() for each in racing), [each.exception() for each in racing if each.done()]
                pause(engine, "events", by="ann", why=WHY)
                then = rows_in(engine)
                stopped.wait(0.02)
                assert rows_in(engine) == then == ledger.position("events")
                resume(engine, "events", by="ann")
        finally:
            stopped.set()

    assert [each.result() for each in racing] == [None] * COMMITTERS


def test_records_in_quarantine_are_retried_and_discarded_during_a_pause(engine, ledger, producer_id, session, commit):
    bad = tuple(QuarantinedRecord(producer_id=producer_id, sequence_id=each, raw=b"x", reason="bad") for each in (1, 2))
    advance = Advance(producer_id=producer_id, spans=SpanSet.of((1, 3)))
    counts = Counts(quarantined=2)
    ledger.commit(replace(commit(0), advances=(advance,), write_rows=lambda _: 0, counts=counts, quarantined=bad))
    pause(engine, "events", by="ann", why=WHY)

    for kind, sequence_id, write in ((EntryKind.RETRY, 1, insert), (EntryKind.DISCARD, 2, lambda _: 0)):
        records = {(producer_id, sequence_id): None}
        ledger.settle(Settlement(kind=kind, session=session, batch=Batch("b"), records=records, write_rows=write))

    assert rows_in(engine) == 1
    assert [entry.kind for entry in ledger.entries("events", after=1)] == [EntryKind.RETRY, EntryKind.DISCARD]


def test_a_second_pause_changes_nothing_and_reports_the_first(engine, ledger):
    first, second = (pause(engine, "events", by=by, why=why) for by, why in (("ann", WHY), ("ben", "another")))

    assert (first.is_earlier, second.is_earlier) == (False, True)
    assert first.pause == second.pause == find_pause(engine, "events")
    assert (first.pause.by, first.pause.why) == ("ann", WHY)
    assert abs(first.pause.at - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_resume_returns_the_pause_that_it_ended_and_a_second_one_nothing(engine, ledger):
    made = pause(engine, "events", by="ann", why=WHY).pause

    assert [resume(engine, "events", by="ben") for _ in range(2)] == [made, None]
    assert find_pause(engine, "events") is None


def test_two_pauses_at_once_are_one_and_both_callers_learn_which(engine, ledger):
    users = [f"user {number}" for number in range(8)]
    with ThreadPoolExecutor(len(users)) as threads:
        results = [*threads.map(lambda by: pause(engine, "events", by=by, why=WHY), users)]

    assert len({each.pause for each in results}) == 1
    assert [each.is_earlier for each in results].count(False) == 1


def test_pauses_and_resumes_are_logged_with_their_users(engine, ledger, logged):
    pause(engine, "events", by="ann", why=WHY)
    pause(engine, "events", by="ben", why=WHY)
    resume(engine, "events", by="cem")
    resume(engine, "events", by="cem")

    assert logged.one("pipeline_paused") == {"pipeline": "events", "by": "ann", "reason": WHY}
    ended = logged.one("pipeline_resumed")
    assert (ended["by"], ended["paused_by"]) == ("cem", "ann")


@pytest.mark.parametrize("change", [pause, resume])
def test_an_unknown_pipeline_is_not_found_and_not_paused(engine, ledger, change):
    more = {"why": WHY} if change is pause else {}

    with pytest.raises(NotFound, match=r"'event'\. Nothing was changed\. Known: events"):
        change(engine, "event", by="ann", **more)

    assert find_pause(engine, "event") is None


@pytest.mark.parametrize(
    ("by", "why"), [("ann", " \n"), ("", WHY), ("ann", "\x00"), ("a\x1b[31m", WHY), ("ann", "x" * 3000)]
)
def test_a_pause_without_a_printable_user_and_reason_is_refused(engine, ledger, by, why):
    with pytest.raises(SettingRefused, match="pause"):
        pause(engine, "events", by=by, why=why)

    assert find_pause(engine, "events") is None


def test_a_reason_of_several_lines_becomes_one_line(engine, ledger):
    assert pause(engine, "events", by=" ann", why="a repair\n\tof May\n").pause.why == "a repair of May"


@pytest.mark.parametrize("column", ["paused_at", "paused_by", "pause_reason"])
def test_the_database_keeps_no_part_of_a_pause_alone(engine, ledger, column):
    pause(engine, "events", by="ann", why=WHY)

    with pytest.raises(IntegrityError, match="pipeline_pause_has_time_user_and_reason"), engine.begin() as connection:
        connection.execute(text(f"UPDATE onceload.pipeline SET {column} = NULL"))


def called(dsn: str, *command: str) -> tuple[int, Any, str]:
    """The exit code of a command with its document and its messages."""
    done = onceload(*command, "--json", ONCELOAD_DSN=dsn, LOGNAME="ann")
    return done.returncode, json.loads(done.stdout), done.stderr


def test_commands_pause_and_resume_once_and_report_that_the_second_time(dsn, ledger):
    paused, again = (called(dsn, "pause", "events", "--why", why) for why in (WHY, "another"))
    resumed, not_paused = (called(dsn, "resume", "events") for _ in range(2))

    assert [code for code, _, _ in (paused, again, resumed, not_paused)] == [0] * 4
    assert "ends at its next commit" in paused[2]
    assert f"was already paused by ann at {paused[1]['pause']['at'][:10]}" in again[2]
    assert WHY in again[2]
    assert [each["is_earlier"] for _, each, _ in (paused, again)] == [False, True]
    assert paused[1]["pause"] == again[1]["pause"] == resumed[1]["ended"]
    assert "The next load continues with the rest" in resumed[2]
    assert not_paused[1] == {"pipeline": "events", "ended": None}
    assert "is not paused. Nothing was changed" in not_paused[2]


def test_a_command_on_an_unknown_pipeline_is_wrong_use(dsn, ledger):
    for command in (["pause", "event", "--why", WHY], ["resume", "event"]):
        assert onceload(*command, ONCELOAD_DSN=dsn).returncode == ExitCode.WRONG_USE


def test_the_status_shows_a_pause_with_its_user_and_its_reason(engine, dsn, ledger):
    ledger.declare(Pipeline(name="other"))
    before = onceload("status", "--pipelines", "none", ONCELOAD_DSN=dsn).stdout
    pause(engine, "events", by="ann", why=WHY)

    done = onceload("status", "--pipelines", "none", ONCELOAD_DSN=dsn)

    assert "paused" not in before
    table = done.stdout.splitlines()
    assert table[1].split()[:2] == ["events", "paused"]
    assert table[1].endswith(f": {WHY}")
    assert table[2].split()[:2] == ["other", "fine"]
    assert "Next: run `onceload resume events`" in done.stderr
    found = called(dsn, "status", "--pipelines", "none")[1]["status"]
    assert [(each["pipeline"], each["paused_by"], each["pause_reason"]) for each in found] == [
        ("events", "ann", WHY),
        ("other", None, None),
    ]


@pytest.mark.parametrize("paused", [True, False])
def test_the_metrics_show_a_pause(engine, dsn, ledger, paused):
    if paused:
        pause(engine, "events", by="ann", why=WHY)

    shown = onceload("metrics", ONCELOAD_DSN=dsn).stdout

    assert f'onceload_paused{{pipeline="events"}} {float(paused)}' in shown
