"""Several sessions that load one pipeline: what each mode promises, and what becomes of failures."""

import gzip
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import count, pairwise
from typing import Any

import pytest
from sqlalchemy import text

from onceload_core.declaration import DeclarationChanged
from onceload_core.delivery import Mode, Rules
from onceload_core.errors import DatabaseLost, SessionFenced, SettingRefused
from onceload_core.names import Batch, Position, SessionName
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.by_hand import abandon, redrive
from onceload_core.postgres.deliveries import Handed, PostgresDeliveries
from onceload_core.postgres.sessions import session_of
from onceload_core.spans import SpanSet
from onceload_jobs.batch.job import Job
from onceload_jobs.files.addresses import Unreadable
from onceload_jobs.files.notes import Note
from onceload_jobs.load.consume import consume
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Identity, Publish, Write
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.publish.publish import BatchIncomplete
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.work import load_delivery as loading
from onceload_jobs.work import session as work
from onceload_jobs.work.load_delivery import load_delivery
from onceload_jobs.work.session import Worker
from tests.loads.conftest import InThisProcess, Loads, line
from tests.waiting import until

ROWS, FILES = 40, 4
DIRECT = pytest.mark.parametrize("publish", [Publish.DIRECT])
STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])
EVERY_MODE = pytest.mark.parametrize("mode", Mode)
#: Where what is left lying is taken by others.
WITH_TAKERS = pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED, Mode.ORDERED])


def declare(loads: Loads, mode: Mode, **rules: Any) -> None:
    """A pipeline of small chunks: ten lines each."""
    loads.declared = replace(
        loads.declared,
        source=replace(loads.declared.source, chunk_bytes=10 * len(line(100))),
        delivery=Rules(mode=mode, **{"sessions": 2, "ack_deadline_s": 60, **rules}),
    )


def write(loads: Loads, *, files: int = FILES, rows: int = ROWS) -> list[int]:
    numbers = iter(range(100, 100 + files * rows))
    for file in range(files):
        loads.write(f"{file}.jsonl", "".join(line(next(numbers)) for _ in range(rows)))
    return list(range(100, 100 + files * rows))


def settings(loads: Loads, **changes: Any) -> LoadSettings:
    return replace(LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=30), **changes)


def consume_once(loads: Loads, name: str, **changes: Any) -> Report:
    (report,) = consume(
        loads.declared,
        settings(loads, **changes),
        name=SessionName(name),
        batch=new_batch(),
        pause=lambda: False,
    )
    assert isinstance(report, Report), report
    return report


def at_once(calls: Sequence[Callable[[], Any]]) -> list[Any]:
    results: list[Any] = [None] * len(calls)

    def call(number: int) -> None:
        try:
            results[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001 - returned to the test.
            results[number] = error

    threads = [threading.Thread(target=call, args=(number,)) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
        assert not thread.is_alive()
    return results


def pass_time(loads: Loads, seconds: float) -> None:
    """As if so much time went by: all leases and deadlines are that much nearer."""
    with loads.engine.begin() as connection:
        for statement in (
            "UPDATE onceload.session SET lease_until = lease_until - make_interval(secs => :seconds)",
            "UPDATE onceload.delivery SET deadline_at = deadline_at - make_interval(secs => :seconds)",
        ):
            connection.execute(text(statement), {"seconds": seconds})


class Board:
    """What a test does by hand to the deliveries of the pipeline."""

    def __init__(self, loads: Loads) -> None:
        self.board = PostgresDeliveries(loads.engine, "events", loads.declared.delivery)
        self.loads = loads

    def take(self, name: str) -> Handed:
        session = self.board.open_session(SessionName(name))
        assert session
        take = self.board.take if self.loads.declared.is_direct else self.board.take_staged
        handed = take(session)
        assert handed
        return handed

    def states(self) -> list[str]:
        statement = "SELECT state FROM onceload.delivery WHERE work IS NOT NULL ORDER BY delivery_id"
        return [state for (state,) in self.loads.ask(statement)]


def offered(loads: Loads) -> Board:
    """Everything is offered, and no session has taken anything yet."""

    class Nobody(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            del job, sessions
            raise DatabaseLost("working", "there is no server")

    with pytest.raises(DatabaseLost):
        load(loads.declared, settings(loads), batch=new_batch(), tasks=Nobody())
    return Board(loads)


# What each mode promises.


@EVERY_MODE
def test_consumers_load_each_record_once_and_in_the_order_of_their_mode(loads, mode):
    declare(loads, mode)
    numbers = write(loads)

    reports = at_once([partial(consume_once, loads, name) for name in ("1", "2")])

    assert [type(each) for each in reports] == [Report, Report]
    assert loads.rows() == numbers
    assert sum(report.loaded for report in reports) == len(numbers)
    if loads.declared.is_direct:
        check_order(loads, mode)
    assert Board(loads).states() == []


def check_order(loads: Loads, mode: Mode) -> None:
    """Receipts in the order of their positions, by session, by file or all together."""
    receipts = loads.ask(
        "SELECT session, producer, lower(spans) FROM onceload.ledger_span"
        " JOIN onceload.ledger USING (pipeline_id, position) ORDER BY position"
    )
    lines: dict[object, list[Any]] = defaultdict(list)
    for session, producer, first in receipts:
        match mode:
            case Mode.SESSION:
                # Chunks of all files, one after the other.
                lines[session].append((first, producer))
            case Mode.KEY_SHARED:
                lines[producer].append(first)
            case Mode.ORDERED:
                lines[mode].append((producer, first))
            case Mode.SHARED:
                return
    assert lines
    assert all(earlier < later for line in lines.values() for earlier, later in pairwise(line))


@DIRECT
def test_session_goes_round_robin_to_its_fixed_sessions(loads):
    declare(loads, Mode.SESSION)
    write(loads)

    consume_once(loads, "1")
    assert len(loads.rows()) == FILES * ROWS // 2
    assert set(Board(loads).states()) == {"waiting"}
    consume_once(loads, "2")

    assert len(loads.rows()) == FILES * ROWS
    sessions = loads.ask("SELECT session, count(*) FROM onceload.ledger GROUP BY session ORDER BY session")
    assert sessions == [("1", FILES * ROWS // 20), ("2", FILES * ROWS // 20)]


@DIRECT
def test_a_load_works_as_all_fixed_sessions(loads):
    declare(loads, Mode.SESSION, sessions=3)
    numbers = write(loads)

    loads.load()

    assert loads.rows() == numbers
    assert {session for (session,) in loads.ask("SELECT session FROM onceload.ledger")} == {"1", "2", "3"}


@DIRECT
def test_deliveries_of_a_session_that_no_longer_exists_go_to_the_first(loads):
    declare(loads, Mode.SESSION, sessions=4)
    numbers = write(loads)
    offered(loads)
    declare(loads, Mode.SESSION, sessions=1)

    loads.load()

    assert loads.rows() == numbers


@pytest.mark.parametrize("name", ["3", "loader"])
@DIRECT
def test_session_refuses_a_consumer_that_is_none_of_its_own(loads, name):
    declare(loads, Mode.SESSION)

    with pytest.raises(SettingRefused, match="Expected a number from 1 to 2"):
        consume_once(loads, name)


@pytest.mark.parametrize("name", ["a/b", "", "a\nb"])
def test_a_consumer_cannot_be_called_like_a_session_of_a_batch(loads, name):
    with pytest.raises(SettingRefused, match="--session"):
        consume_once(loads, name)


@DIRECT
def test_files_take_turns_so_that_a_large_one_keeps_no_small_one_waiting(loads):
    declare(loads, Mode.SHARED)
    loads.write("a.jsonl", "".join(line(number) for number in range(100, 200)))
    loads.write("b.jsonl", line(300) * 12)

    loads.load()

    order = [producer for (producer,) in loads.ask("SELECT producer FROM onceload.ledger_span ORDER BY position")]
    assert order.index("b.jsonl") == 1


# Sessions that vanish, and come back.


@WITH_TAKERS
def test_deliveries_of_a_vanished_consumer_are_loaded_by_another_once_its_lease_has_ended(loads, mode):
    declare(loads, mode)
    if not loads.declared.is_direct:
        pytest.skip("what is staged goes with who publishes it")
    numbers = write(loads)
    offered(loads).take("gone")

    waiting = consume_once(loads, "b", wait_s=0)
    assert waiting.notes
    assert all(note.is_busy for note in waiting.notes)
    assert len(loads.rows()) < len(numbers)
    pass_time(loads, 61)
    consume_once(loads, "b")

    assert loads.rows() == numbers
    check_order(loads, mode)


@DIRECT
def test_session_leaves_the_line_of_one_that_is_away_alone_for_an_hour_and_goes_on_when_it_is_back(loads):
    declare(loads, Mode.SESSION)
    numbers = write(loads)
    handed = offered(loads).take("1")

    pass_time(loads, 3600)
    other = consume_once(loads, "2")
    assert (other.loaded, other.notes) == (len(numbers) // 2, ())
    assert len(loads.rows()) == len(numbers) // 2
    consume_once(loads, "1")

    assert loads.rows() == numbers
    check_order(loads, Mode.SESSION)
    with pytest.raises(SessionFenced):
        Board(loads).board.__class__.take(_same_life(loads, handed), handed.claim.session)


def _same_life(loads: Loads, handed: Handed) -> PostgresDeliveries:
    """A board on which a life that is over goes on."""
    board = Board(loads).board
    ((session_id,),) = loads.ask(f"SELECT session_id FROM onceload.session WHERE name = '{handed.claim.session.name}'")
    board._session_ids[handed.claim.session.name] = session_id
    return board


@WITH_TAKERS
@DIRECT
def test_the_later_of_two_under_one_name_goes_on_and_the_earlier_gets_an_error(loads, mode, monkeypatch):
    declare(loads, mode)
    numbers = write(loads)
    offered(loads)
    has_one, goes_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> list[Note]:
        if not has_one.is_set():
            has_one.set()
            assert goes_on.wait(60)
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", slow)

    def later() -> Report:
        assert has_one.wait(60)
        report = consume_once(loads, "a")
        goes_on.set()
        return report

    earlier, last = at_once([lambda: consume_once(loads, "a"), later])

    assert isinstance(earlier, SessionFenced)
    assert last.loaded == len(numbers)
    assert loads.rows() == numbers
    check_order(loads, mode)


@DIRECT
@WITH_TAKERS
def test_a_straggler_that_wakes_up_after_its_lease_commits_nothing(loads, mode, monkeypatch):
    declare(loads, mode)
    numbers = write(loads, files=1)
    offered(loads)
    has_one, goes_on = threading.Event(), threading.Event()
    commit_piece = loading._commit_piece

    def slow(*arguments: Any, **named: Any) -> None:
        if not has_one.is_set():
            has_one.set()
            assert goes_on.wait(60)
        commit_piece(*arguments, **named)

    monkeypatch.setattr(loading, "_commit_piece", slow)

    def other() -> Report:
        assert has_one.wait(60)
        pass_time(loads, 61)
        # A later beat of the straggler would only hide that it is late.
        report = consume_once(loads, "other")
        goes_on.set()
        return report

    straggler, report = at_once([lambda: consume_once(loads, "straggler"), other])

    assert (report.loaded, straggler.loaded) == (len(numbers), 0)
    assert loads.rows() == numbers
    check_order(loads, mode)


def test_a_later_run_of_a_batch_takes_over_at_once_what_its_earlier_life_held(loads):
    declare(loads, Mode.SHARED, ack_deadline_s=3600)
    numbers = write(loads)

    class Killed(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            Board(loads).take(sessions[0])
            raise KeyboardInterrupt

    with monkeypatched(PostgresDeliveries, "end_batch"), pytest.raises(KeyboardInterrupt):
        load(loads.declared, settings(loads), batch=Batch("run"), tasks=Killed())
    loads.load(batch="run")

    assert loads.rows() == numbers


@contextmanager
def monkeypatched(owner: type, name: str) -> Iterator[None]:
    """Nothing is sent in the end, as by a process that was killed."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, lambda *_, **__: None)
        yield


@contextmanager
def killed_while_planning(loads: Loads) -> Iterator[None]:
    """The planner ends here, and gives nothing back."""
    with (
        monkeypatched(PostgresDeliveries, "end_batch"),
        monkeypatched(type(loads.ledger), "release"),
        pytest.raises(KeyboardInterrupt),
    ):
        yield


# Two at once.


def test_two_loads_at_once_share_the_work(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads, files=8)
    both, of_thread = threading.Barrier(2), threading.local()

    def deliver_together(*arguments: Any) -> list[Note]:
        """Each of them holds one before either goes on."""
        if not hasattr(of_thread, "is_under_way"):
            of_thread.is_under_way = True
            both.wait(timeout=60)
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", deliver_together)

    reports = at_once([lambda: load_waiting(loads), lambda: load_waiting(loads)])

    assert [type(each) for each in reports] == [Report, Report]
    assert sum(report.loaded for report in reports) == len(numbers)
    assert loads.rows() == numbers
    assert not [note for report in reports for note in report.notes]


def load_waiting(loads: Loads, **changes: Any) -> Report:
    return load(loads.declared, settings(loads, **changes), batch=new_batch(), tasks=InThisProcess())


def test_a_load_waits_for_another_run_until_that_makes_no_progress(loads):
    declare(loads, Mode.SHARED, ack_deadline_s=3600)
    numbers = write(loads)
    if loads.declared.is_direct:
        offered(loads).take("other")
    else:
        loads.ledger.declare(pipeline_with_declaration(loads.declared))
        ids = loads.ledger.register("events", [("0.jsonl", 1)])
        other = loads.ledger.open_session("events", SessionName("other"))
        loads.ledger.claim(other, dict.fromkeys(ids.values(), SpanSet()), batch=Batch("o"), lease_s=3600)

    report = load_waiting(loads, wait_s=0.2)

    assert next(note.name for note in report.notes if note.is_busy) == "0.jsonl"
    assert len(loads.rows()) < len(numbers)


@STAGED
def test_a_consumer_stages_for_the_batch_of_another(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    helped: list[Report] = []

    class Helped(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            if not helped:
                helped.append(consume_once(loads, "helper", wait_s=0))
            return super().run(job, sessions)

    states: list[str] = []

    class Watched(Helped):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            notes = super().run(job, sessions)
            states.extend(Board(loads).states())
            return notes

    report = load(loads.declared, settings(loads), batch=new_batch(), tasks=Watched())

    assert set(states) == {"staged"}
    assert (helped[0].loaded, report.loaded) == (0, len(numbers))
    opened = {name for (name,) in loads.ask("SELECT name FROM onceload.session")}
    assert "helper" in opened
    assert loads.rows() == numbers


@STAGED
def test_a_load_with_an_edited_pipeline_file_takes_the_place_of_the_batch(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    other = replace(loads, declared=replace(loads.declared, columns=loads.declared.columns[:1]))
    helped: list[Report] = []

    class Helped(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            if not helped:
                helped.append(consume_once(other, "helper", wait_s=0))
            return super().run(job, sessions)

    with pytest.raises(DeclarationChanged):
        load(loads.declared, settings(loads), batch=new_batch(), tasks=Helped())

    assert helped[0].loaded == len(numbers)
    assert loads.rows() == numbers


@STAGED
def test_a_batch_goes_with_its_publisher_and_is_staged_again_by_the_next(loads):
    declare(loads, Mode.SHARED, ack_deadline_s=60)
    numbers = write(loads)

    class Killed(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            super().run(job, sessions[:1])
            raise KeyboardInterrupt

    with killed_while_planning(loads):
        load(loads.declared, settings(loads), batch=new_batch(), tasks=Killed())
    assert set(Board(loads).states()) == {"staged"}
    assert {note.reason.split(" (")[0] for note in loads.load().notes} == {"another run is loading it"}
    pass_time(loads, 61)

    assert loads.load().loaded == len(numbers)
    assert loads.rows() == numbers


@DIRECT
def test_no_more_is_open_than_the_pipeline_allows(loads):
    declare(loads, Mode.KEY_SHARED, open_max=3)
    numbers = write(loads)
    seen: list[int] = []

    class Counted(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            seen.append(len(Board(loads).states()))
            return super().run(job, sessions)

    load(loads.declared, settings(loads), batch=new_batch(), tasks=Counted())

    assert loads.rows() == numbers
    assert len(seen) == -(-FILES * ROWS // 10 // 3)
    assert max(seen) == 3
    check_order(loads, Mode.KEY_SHARED)


@STAGED
def test_chunks_offered_one_by_one_are_withdrawn_once_the_pipeline_publishes_at_once(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    loads.declared = replace(loads.declared, publish=Publish.DIRECT)
    offered(loads)
    loads.declared = replace(loads.declared, publish=Publish.STAGED)

    report = loads.load()

    assert (report.loaded, report.position) == (len(numbers), 1)
    assert loads.rows() == numbers


@DIRECT
def test_offered_deliveries_are_withdrawn_by_a_rewind(loads):
    declare(loads, Mode.SHARED)
    loads.write("before.jsonl", line(50))
    loads.load()
    numbers = write(loads)
    board = offered(loads)

    done = rewind(loads.declared, loads.engine, to=Position(0), dry_run=False)

    assert done.applied
    assert board.states() == []
    loads.load()
    assert loads.rows() == [50, *numbers]


@DIRECT
def test_the_first_of_two_sessions_reports_that_the_board_is_full_of_the_work_of_the_other(loads):
    declare(loads, Mode.SESSION, open_max=2)
    numbers = write(loads)

    report = consume_once(loads, "1", wait_s=0)

    assert report.loaded < len(numbers) // 2
    assert [(note.name, note.is_busy) for note in report.notes] == [("events", True)]
    assert "delivery.open_max" in report.notes[0].reason
    loads.load()
    assert loads.rows() == numbers


@DIRECT
def test_no_session_ends_before_all_of_its_part_is_handed_out(loads):
    declare(loads, Mode.SESSION, open_max=4)
    numbers = write(loads, files=1, rows=200)

    reports = at_once([partial(consume_once, loads, name) for name in "12"])

    assert [each.loaded for each in reports] == [len(numbers) // 2] * 2
    assert loads.rows() == numbers
    check_order(loads, Mode.SESSION)


# What failed once.


def test_a_delivery_handed_out_without_an_answer_is_not_kept_by_a_heartbeat(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    take = PostgresDeliveries._take
    lost: list[Handed | None] = []

    def losing(*arguments: Any, **named: Any) -> Handed | None:
        handed = take(*arguments, **named)
        if len(lost) < 2:
            lost.append(handed)
            raise DatabaseLost("taking a delivery", "the connection was cut")
        return handed

    monkeypatch.setattr(PostgresDeliveries, "_take", losing)
    consume_once(loads, "a")

    assert len(lost) == 2
    assert loads.rows() == numbers
    assert loads.ask("SELECT count(*) FROM onceload.delivery") == [(0,)]


@WITH_TAKERS
@DIRECT
def test_a_follower_that_has_nothing_of_its_own_holds_nothing_of_others(loads, mode, monkeypatch):
    declare(loads, mode)
    numbers = write(loads)
    board = offered(loads)
    take = PostgresDeliveries._take
    lost: list[Handed] = []

    def losing_the_first(*arguments: Any, **named: Any) -> Handed | None:
        handed = take(*arguments, **named)
        if not lost and handed:
            # There is no second look in this round.
            lost.append(handed)
            raise DatabaseLost("taking a delivery", "the connection was cut")
        return None if len(lost) == 1 else handed

    monkeypatch.setattr(PostgresDeliveries, "_take", losing_the_first)

    def looks_again() -> bool:
        lost.append(lost[0])
        return len(lost) < 4

    reports = list(
        consume(loads.declared, settings(loads, wait_s=0), name=SessionName("a"), batch=new_batch(), pause=looks_again)
    )

    assert all(isinstance(report, Report) for report in reports)
    assert board.states() == []
    assert loads.rows() == numbers


@STAGED
@pytest.mark.parametrize("is_changed", [False, True], ids=["its stage is gone", "its pipeline file was changed"])
def test_a_load_without_new_files_does_not_wait_for_an_earlier_life_of_its_batch(loads, is_changed):
    declare(loads, Mode.SHARED)
    write(loads)

    class Killed(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            raise KeyboardInterrupt

    with killed_while_planning(loads):
        load(loads.declared, settings(loads), batch=Batch("run"), tasks=Killed())
    for file in range(FILES):
        (loads.folder / f"{file}.jsonl").unlink()
    if is_changed:
        loads.declared = replace(loads.declared, columns=loads.declared.columns[:2])

    (report,) = at_once([partial(loads.load, batch="run")])

    assert (report.loaded, report.notes[0].is_busy) == (0, False)
    assert loads.ask("SELECT count(*) FROM onceload.delivery") == [(0,)]


@DIRECT
def test_a_load_waits_once_for_what_others_hold(loads):
    declare(loads, Mode.SHARED, sessions=1, ack_deadline_s=1)
    write(loads)

    class BehindAnother(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            if "held" not in Board(loads).states():
                Board(loads).take("other")
                # It sends heartbeats, and makes no progress.
                pass_time(loads, -3600)
            return super().run(job, sessions)

    waits_s, started = 6.0, time.monotonic()

    report = load(loads.declared, settings(loads, wait_s=waits_s), batch=new_batch(), tasks=BehindAnother())

    # The session itself waits for as long as a lease, and the load for as long as it was asked to.
    assert waits_s <= time.monotonic() - started < 2 * waits_s
    assert any("session other, lease until" in note.reason for note in report.notes)


@DIRECT
def test_no_session_is_named_whose_claim_has_ended(loads):
    declare(loads, Mode.SHARED)
    write(loads)
    board = offered(loads)
    board.take("other")
    ids = loads.ledger.register("events", [("gone.jsonl", 1)])
    gone = loads.ledger.open_session("events", SessionName("gone"))
    loads.ledger.claim(gone, dict.fromkeys(ids.values(), SpanSet()), batch=Batch("gone"), lease_s=60)
    loads.ledger.open_session("events", SessionName("gone"))

    report = consume_once(loads, "next", wait_s=0)

    named = {
        name for note in report.notes for name in ("other", "gone") if f"session {name}, lease until" in note.reason
    }
    assert named == {"other"}


def test_a_follower_that_goes_on_after_an_error_holds_nothing_meanwhile(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    failing = [DatabaseLost("committing", "it was away for too long")]

    def failing_once(*arguments: Any) -> list[Note]:
        if failing:
            raise failing.pop()
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", failing_once)
    told = consume(
        loads.declared, settings(loads), name=SessionName("a"), batch=new_batch(), pause=lambda: loads.rows() != numbers
    )

    assert isinstance(next(told), DatabaseLost)
    assert "held" not in Board(loads).states()
    assert isinstance(next(told), Report)
    assert not list(told)
    assert loads.rows() == numbers


@STAGED
def test_a_planner_that_vanished_keeps_no_other_from_its_own_work(loads):
    declare(loads, Mode.SHARED)
    write(loads)

    class Killed(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            raise KeyboardInterrupt

    with killed_while_planning(loads):
        load(loads.declared, settings(loads), batch=new_batch(), tasks=Killed())
    loads.write("new.jsonl", line(7))

    (report,) = at_once([partial(consume_once, loads, "next", wait_s=0)])

    assert report.loaded == 1
    assert sorted(note.name for note in report.notes if note.is_busy) == [f"{file}.jsonl" for file in range(FILES)]


@DIRECT
def test_a_load_does_not_wait_for_a_packed_file_in_the_line_of_another(loads):
    declare(loads, Mode.SESSION)
    for file in range(2):
        text = "".join(line(number) for number in range(100 + 300 * file, 400 + 300 * file))
        loads.write(f"{file}.jsonl.gz", gzip.compress(text.encode()))

    report = consume_once(loads, "1", wait_s=0)

    assert (report.loaded, report.notes) == (300, ())
    assert consume_once(loads, "2", wait_s=0).loaded == 300


@DIRECT
def test_a_delivery_that_depends_on_another_line_waits_with_a_bound(loads):
    declare(loads, Mode.SESSION)
    loads.declared = replace(loads.declared, source=replace(loads.declared.source, identity=Identity.CONTENT))
    write(loads)
    assert consume_once(loads, "1", wait_s=0).notes == ()
    loads.write("new.jsonl", line(7))

    (report,) = at_once([partial(consume_once, loads, "1", wait_s=0.2)])

    assert {note.name for note in report.notes if note.is_busy} >= {"new.jsonl"}
    assert 7 not in loads.rows()


#: As a heartbeat does.
HELD_FOR_AN_HOUR = """
UPDATE onceload.delivery SET deadline_at = now() + interval '1 h' WHERE state = 'held' RETURNING delivery_id"""


@DIRECT
def test_a_load_waits_with_a_bound_for_a_session_that_makes_no_progress(loads):
    declare(loads, Mode.SHARED, ack_deadline_s=1)
    numbers = write(loads)

    class Hanging(InThisProcess):
        """Beside one whose heartbeat goes on, and nothing else."""

        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            if "held" not in Board(loads).states():
                Board(loads).take("other")
                loads.ask(HELD_FOR_AN_HOUR)
            return super().run(job, sessions)

    call = partial(load, loads.declared, settings(loads, wait_s=0.2), batch=new_batch(), tasks=Hanging())
    (report,) = at_once([call])

    assert [(note.name, "session other" in note.reason) for note in report.notes if note.is_busy] == [("0.jsonl", True)]
    assert loads.rows() == numbers[10:]


@DIRECT
def test_a_file_that_breaks_off_is_not_planned_again_while_there_is_more(loads):
    declare(loads, Mode.SHARED, open_max=1)
    loads.write("0.jsonl.gz", gzip.compress("".join(map(line, range(100, 400))).encode())[:-20])
    loads.write("1.jsonl", line(7))

    (report,) = at_once([loads.load])

    assert [note.name for note in report.notes] == ["0.jsonl.gz"]
    assert 7 in loads.rows()


@STAGED
def test_deliveries_of_a_killed_worker_are_withdrawn_once_the_pipeline_publishes_at_once(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    loads.declared = replace(loads.declared, publish=Publish.DIRECT)
    offered(loads).take("gone")
    loads.declared = replace(loads.declared, publish=Publish.STAGED)
    pass_time(loads, 61)

    assert consume_once(loads, "next", wait_s=0).loaded == len(numbers)
    assert loads.rows() == numbers


@DIRECT
def test_a_load_goes_on_when_the_database_was_away_between_two_rounds(loads, monkeypatch):
    declare(loads, Mode.SHARED, open_max=2)
    numbers = write(loads)
    away = [(type(loads.ledger), name) for name in ("renew", "outlook", "know", "register")]
    away += [(PostgresDeliveries, name) for name in ("open_work", "expire")]
    for owner, name in away:
        monkeypatch.setattr(owner, name, lost_once(getattr(owner, name)))

    assert loads.load().loaded == len(numbers)
    assert loads.rows() == numbers


def lost_once(method: Callable[..., Any]) -> Callable[..., Any]:
    """The second call gets no answer."""
    calls = count(1)

    def call(*arguments: Any, **named: Any) -> Any:
        if next(calls) == 2:
            raise DatabaseLost("looking", "the connection was cut")
        return method(*arguments, **named)

    return call


@WITH_TAKERS
@DIRECT
def test_a_successor_takes_over_what_a_vanished_session_held(loads, mode):
    declare(loads, mode)
    numbers = write(loads)
    offered(loads).take("gone")
    pass_time(loads, 61)

    # A follower does not wait within a load.
    consume_once(loads, "follower", wait_s=0)

    assert loads.rows() == numbers


def test_a_run_that_was_replaced_leaves_the_one_alone_that_replaced_it(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    epochs: list[Any] = []

    class Replaced(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            loads.load(batch="run")
            epochs.append(loads.ask("SELECT epoch FROM onceload.session WHERE name = 'run/plan'"))
            return super().run(job, sessions)

    with pytest.raises(SessionFenced):
        load(loads.declared, settings(loads), batch=Batch("run"), tasks=Replaced())

    assert loads.ask("SELECT epoch FROM onceload.session WHERE name = 'run/plan'") == epochs[0]
    assert loads.rows() == numbers


@STAGED
def test_a_publish_reports_what_a_helper_could_not_read(loads):
    declare(loads, Mode.SHARED, deliveries_max=1)
    numbers = write(loads)
    helped: list[Report] = []

    class Helped(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            (loads.folder / "1.jsonl").rename(loads.folder / "1.gone")
            helped.append(consume_once(loads, "helper", wait_s=0))
            return []

    report = load(loads.declared, settings(loads), batch=new_batch(), tasks=Helped())

    assert helped[0].loaded == 0
    assert {note.name for note in report.notes if note.is_unreadable} == {"1.jsonl"}
    assert loads.rows() == [number for number in numbers if not 140 <= number < 180]


@DIRECT
def test_a_planner_reports_what_another_session_could_not_read(loads, monkeypatch):
    declare(loads, Mode.SHARED, deliveries_max=2)
    numbers = write(loads)

    class Blind(InThisProcess):
        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            def unreadable(chunk: Any, source: Any) -> Iterator[Any]:
                raise Unreadable(chunk.url, "it is not mounted here")

            with monkeypatch.context() as patched:
                patched.setattr(loading, "read_parts", unreadable)
                super().run(job, sessions)
            return []

    report = load(loads.declared, settings(loads), batch=new_batch(), tasks=Blind())

    assert report.loaded == 0
    assert sorted(note.name for note in report.notes if note.is_unreadable) == [
        f"{file}.jsonl" for file in range(FILES)
    ]
    loads.load()
    assert loads.rows() == numbers


@DIRECT
def test_deliveries_of_a_session_that_no_longer_exists_are_loaded_once_its_lease_has_ended(loads):
    declare(loads, Mode.SESSION, sessions=4)
    numbers = write(loads)
    offered(loads).take("3")
    declare(loads, Mode.SESSION, sessions=1)
    pass_time(loads, 61)

    loads.load()

    assert loads.rows() == numbers


# Deliveries that fail.


class Poison:
    """Chunks that cannot be read, until they are fixed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str, first: int = 0) -> None:
        self.tries: list[str] = []
        self.is_mended = False

        def read(chunk: Any, source: Any) -> Iterator[Any]:
            if chunk.name in names and chunk.first <= first and not self.is_mended:
                self.tries.append(chunk.name)
                raise ValueError("poison")
            yield from read_parts(chunk, source)

        monkeypatch.setattr(loading, "read_parts", read)


@EVERY_MODE
def test_a_poison_chunk_is_tried_a_fixed_number_of_times_then_set_aside_and_loaded_once_when_it_is_fixed(
    loads, mode, monkeypatch
):
    declare(loads, mode, deliveries_max=3)
    numbers = write(loads)
    if mode is Mode.ORDERED and not loads.declared.is_direct:
        pytest.skip("a batch in order is published whole")
    poison = Poison(monkeypatch, "1.jsonl")

    report = loads.load()

    assert poison.tries == ["1.jsonl"] * 3
    assert loads.rows() == [number for number in numbers if not 140 <= number < 150]
    assert [(note.name, note.needs_a_person) for note in report.notes] == [("1.jsonl", True)]
    assert "dead letter" in report.notes[0].reason
    assert Board(loads).states() == ["dead"]
    # No load tries it again by itself.
    assert (loads.load().loaded, len(poison.tries)) == (0, 3)
    poison.is_mended = True
    ((number,),) = loads.ask("SELECT delivery_id FROM onceload.delivery")
    redrive(loads.engine, "events", number)
    loads.load()

    assert loads.rows() == numbers
    assert not loads.load().notes


@pytest.mark.parametrize("whole", [{"mode": Mode.ORDERED}, {"mode": Mode.SHARED, "write": Write.MERGE}])
@STAGED
def test_a_batch_that_makes_sense_only_whole_is_not_published_without_a_poison_chunk(loads, whole, monkeypatch):
    declare(loads, whole["mode"], deliveries_max=2)
    if "write" in whole:
        loads.declared = replace(
            loads.declared, target=replace(loads.declared.target, write=whole["write"], key=("id",))
        )
    numbers = write(loads)
    poison = Poison(monkeypatch, "1.jsonl")

    with pytest.raises(BatchIncomplete, match=r"failed 2 times, last with: ValueError: poison. Nothing was published"):
        loads.load()
    assert loads.rows() == []
    poison.is_mended = True
    loads.load()

    assert loads.rows() == numbers


def test_a_delivery_that_is_given_up_is_planned_again(loads, monkeypatch):
    declare(loads, Mode.SHARED, deliveries_max=1)
    numbers = write(loads)
    poison = Poison(monkeypatch, "1.jsonl")
    loads.load()
    poison.is_mended = True
    ((number,),) = loads.ask("SELECT delivery_id FROM onceload.delivery")

    abandon(loads.engine, "events", number)
    report = loads.load()

    assert (report.loaded, loads.rows()) == (10, numbers)


@DIRECT
def test_a_file_that_cannot_be_read_just_now_is_tried_again_where_there_is_an_order(loads, monkeypatch):
    monkeypatch.setattr(work, "_UNREADABLE_RETRY_S", (0.01, 0.01))
    declare(loads, Mode.KEY_SHARED, deliveries_max=2)
    numbers = write(loads)
    board = offered(loads)
    hidden = (loads.folder / "1.jsonl").rename(loads.folder / "1.gone")

    report = loads.load()

    # The records behind it in its file did not take effect first.
    assert loads.rows() == [number for number in numbers if not 140 <= number < 180]
    assert {note.name for note in report.notes if note.needs_a_person} == {"1.jsonl"}
    # There is nothing behind the last of them, so that it is only planned again.
    assert board.states() == ["dead"] * 3
    hidden.rename(loads.folder / "1.jsonl")
    for (number,) in loads.ask("SELECT delivery_id FROM onceload.delivery"):
        redrive(loads.engine, "events", number)
    loads.load()
    assert loads.rows() == numbers
    check_order(loads, Mode.KEY_SHARED)


@DIRECT
@pytest.mark.parametrize("tail", ["", '{"id": 9'], ids=["whole", "still written to"])
def test_a_small_file_that_is_gone_takes_no_other_of_its_bundle_with_it(loads, monkeypatch, tail):
    monkeypatch.setattr(work, "_UNREADABLE_RETRY_S", (0.01, 0.01))
    declare(loads, Mode.KEY_SHARED, deliveries_max=2)
    for number, name in enumerate("abc"):
        loads.write(f"{name}.jsonl", line(100 + number) + (tail if name == "b" else ""))
    board = offered(loads)
    assert board.states() == ["waiting"]
    (loads.folder / "b.jsonl").unlink()

    loads.load()

    assert loads.rows() == [100, 102]
    assert board.states() == []


@EVERY_MODE
@DIRECT
def test_a_file_that_was_rewritten_since_it_was_offered_is_planned_again(loads, mode):
    declare(loads, mode)
    numbers = write(loads)
    offered(loads)
    loads.write("1.jsonl", line(900) * 3)

    loads.load()
    loads.load()

    assert loads.rows() == sorted([number for number in numbers if not 140 <= number < 180] + [900] * 3)
    assert Board(loads).states() == []


@DIRECT
def test_a_part_of_a_delivery_that_was_committed_is_not_committed_again_when_it_is_redelivered(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    # A packed file is one delivery, and commits piece by piece.
    loads.write("a.jsonl.gz", gzip.compress("".join(line(number) for number in range(100, 140)).encode()))
    commit_piece, calls = loading._commit_piece, iter(range(100))

    def dying(*arguments: Any, **named: Any) -> None:
        if next(calls) == 2:
            raise ValueError("it died")
        commit_piece(*arguments, **named)

    monkeypatch.setattr(loading, "_commit_piece", dying)
    report = loads.load()

    assert (report.loaded, report.duplicates) == (40, 0)
    assert loads.rows() == list(range(100, 140))
    assert loads.ask("SELECT count(*) FROM onceload.delivery_failure") == [(0,)]


def test_the_error_history_of_a_delivery_is_kept(loads, monkeypatch):
    declare(loads, Mode.SHARED, deliveries_max=2)
    write(loads)
    Poison(monkeypatch, "1.jsonl")

    loads.load(batch="b")

    history = loads.ask("SELECT try, session, reason FROM onceload.delivery_failure ORDER BY try")
    assert [(number, reason) for number, _, reason in history] == [(1, "ValueError: poison"), (2, "ValueError: poison")]
    assert {session.split("/")[0] for _, session, _ in history} == {"b"}


# Followers.


@DIRECT
def test_a_follower_loads_what_comes_until_it_is_asked_to_stop(loads):
    declare(loads, Mode.SHARED)
    first, stopped = write(loads, files=1), threading.Event()

    def follow() -> list[Any]:
        return list(
            consume(
                loads.declared,
                settings(loads, is_stopped=stopped.is_set, wait_s=0),
                name=SessionName("follower"),
                batch=Batch("f"),
                pause=lambda: not stopped.wait(0.05),
            )
        )

    def more() -> None:
        until(lambda: len(loads.rows_or_none()) == len(first))
        loads.write("more.jsonl", line(900))
        until(lambda: 900 in loads.rows_or_none())
        stopped.set()

    reports, _ = at_once([follow, more])

    assert sum(report.loaded for report in reports) == len(first) + 1
    ((alive,),) = loads.ask("SELECT count(*) FROM onceload.session WHERE lease_until > clock_timestamp()")
    assert alive == 0


@DIRECT
def test_a_follower_that_could_not_open_its_session_opens_it_when_the_database_is_back(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    open_session, lost = Worker.open, [True]

    def losing(worker: Worker, *, waits: bool) -> bool:
        if lost:
            lost.clear()
            raise DatabaseLost("opening a session", "the server is away")
        return open_session(worker, waits=waits)

    monkeypatch.setattr(Worker, "open", losing)
    rounds = iter([True, False])
    found = list(
        consume(
            loads.declared,
            settings(loads),
            name=SessionName("follower"),
            batch=Batch("f"),
            pause=lambda: next(rounds),
        )
    )

    assert [type(each) for each in found] == [DatabaseLost, Report]
    assert loads.rows() == numbers


@DIRECT
def test_a_stopped_consumer_finishes_what_it_holds_and_leaves_the_rest(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    stopped = threading.Event()

    def stopping(*arguments: Any) -> list[Note]:
        stopped.set()
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", stopping)
    report = consume_once(loads, "a", is_stopped=stopped.is_set)

    assert report.loaded == 10
    assert set(Board(loads).states()) == {"waiting"}
    consume_once(loads, "b")
    assert loads.rows() == numbers


def test_a_consumer_refuses_a_transform(loads):
    loads.declared = replace(loads.declared, transform="SELECT * FROM records")

    with pytest.raises(SettingRefused, match="onceload load"):
        consume_once(loads, "a")


def test_a_batch_cannot_be_called_like_a_session(loads):
    with pytest.raises(SettingRefused, match="batch"):
        loads.load(batch="a/b")


def test_sessions_of_a_batch_are_told_apart_from_those_of_others():
    assert session_of(Batch("a"), "1") == "a/1"


@DIRECT
def test_unreadable_chunks_are_not_planned_again_while_there_is_more(loads, monkeypatch):
    declare(loads, Mode.SHARED, open_max=1, deliveries_max=2)
    numbers = write(loads)
    tries: list[str] = []

    def not_the_first(chunk: Any, source: Any) -> Iterator[Any]:
        tries.append(chunk.name)
        if chunk.name == "0.jsonl":
            raise Unreadable(chunk.url, "it is not mounted here")
        return read_parts(chunk, source)

    monkeypatch.setattr(loading, "read_parts", not_the_first)

    report = loads.load()

    assert tries.count("0.jsonl") == 2
    assert [note.name for note in report.notes if note.is_unreadable] == ["0.jsonl"]
    assert loads.rows() == numbers[ROWS:]
