"""Two loads or consumers of one pipeline at once: who does what, and who waits."""

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from onceload_core.declaration import DeclarationChanged
from onceload_core.delivery import Mode
from onceload_core.names import Batch, Position, SessionName
from onceload_core.spans import SpanSet
from onceload_jobs.files.notes import Note
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import new_batch
from onceload_jobs.pipeline.declared import Publish
from onceload_jobs.plan.declaration_texts import pipeline_with_declaration
from onceload_jobs.recover.rewind import rewind
from onceload_jobs.work import session as work
from onceload_jobs.work.load_delivery import load_delivery
from tests.loads.conftest import InThisProcess, Loads, line
from tests.loads.sharing import (
    DIRECT,
    FILES,
    ROWS,
    STAGED,
    Board,
    at_once,
    check_order,
    consume_once,
    declare,
    killed_while_planning,
    offered,
    pass_time,
    settings,
    write,
)
from tests.waiting import PATIENCE_S


def test_two_loads_at_once_share_the_work(loads, monkeypatch):
    declare(loads, Mode.SHARED)
    numbers = write(loads, files=8)
    both, of_thread = threading.Barrier(2), threading.local()

    def deliver_together(*arguments: Any) -> list[Note]:
        """Each of them holds one before either goes on."""
        if not hasattr(of_thread, "is_under_way"):
            of_thread.is_under_way = True
            both.wait(timeout=PATIENCE_S)
        return load_delivery(*arguments)

    monkeypatch.setattr(work, "load_delivery", deliver_together)

    reports = at_once([lambda: load_waiting(loads), lambda: load_waiting(loads)])

    assert [type(each) for each in reports] == [Report, Report]
    assert sum(report.loaded for report in reports) == len(numbers)
    assert loads.rows() == numbers
    assert not [note for report in reports for note in report.notes]


def load_waiting(loads: Loads, **changes: Any) -> Report:
    return load(loads.declared, settings(loads, **changes), batch=new_batch(), executor=InThisProcess())


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
def test_a_consumer_leaves_the_batch_of_another_alone(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    helped: list[Report] = []

    class Beside(InThisProcess):
        def begins(self) -> None:
            if not helped:
                helped.append(consume_once(loads, "another", wait_s=0))

    report = load(loads.declared, settings(loads), batch=new_batch(), executor=Beside())

    assert (helped[0].loaded, report.loaded) == (0, len(numbers))
    assert all(note.is_busy for note in helped[0].notes)
    assert loads.rows() == numbers


@STAGED
def test_a_load_with_an_edited_pipeline_file_takes_the_place_of_the_batch(loads):
    declare(loads, Mode.SHARED)
    numbers = write(loads)
    other = replace(loads, declared=replace(loads.declared, columns=loads.declared.columns[:1]))
    helped: list[Report] = []

    class Helped(InThisProcess):
        def begins(self) -> None:
            if not helped:
                helped.append(consume_once(other, "helper", wait_s=0))

    with pytest.raises(DeclarationChanged):
        load(loads.declared, settings(loads), batch=new_batch(), executor=Helped())

    assert helped[0].loaded == len(numbers)
    assert loads.rows() == numbers


@STAGED
def test_a_batch_goes_with_its_publisher_and_is_staged_again_by_the_next(loads):
    declare(loads, Mode.SHARED, ack_deadline_s=60)
    numbers = write(loads)

    class Killed(InThisProcess):
        def ends(self) -> None:
            raise KeyboardInterrupt

    with killed_while_planning(loads):
        load(loads.declared, settings(loads), batch=new_batch(), executor=Killed())
    assert {note.reason.split(". Now ")[0] for note in loads.load().notes} == {"another run is loading it"}
    pass_time(loads, 61)

    assert loads.load().loaded == len(numbers)
    assert loads.rows() == numbers


@DIRECT
def test_no_more_is_open_than_the_pipeline_allows(loads):
    declare(loads, Mode.KEY_SHARED, open_max=3)
    numbers = write(loads)
    seen: list[int] = []

    class Counted(InThisProcess):
        def begins(self) -> None:
            seen.append(len(Board(loads).states()))

    load(loads.declared, settings(loads), batch=new_batch(), executor=Counted())

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
