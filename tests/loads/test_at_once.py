"""Two hands at once on the same pipeline: what one has read and not yet published is not the other's to decide."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from sqlalchemy import text

from dedup_core.errors import AlreadyConsumed
from dedup_core.names import Batch
from dedup_core.postgres import LedgerSettings
from dedup_core.postgres.quarantine import Selection, find_records
from dedup_core.verdicts import Order
from spark_jobs import loading
from spark_jobs import publish as publishing
from spark_jobs.columns import parse_column
from spark_jobs.declared import Identity, OnRewrite, Publish, RecordProducer, Write
from spark_jobs.load import LoadSettings, Report, load, new_batch
from spark_jobs.loading import Delivery, Job
from spark_jobs.plan import Note
from spark_jobs.retry import retry
from spark_jobs.stage import _sweep
from tests.loads.conftest import InThisProcess, Loads, line


@dataclass
class Meanwhile(InThisProcess):
    """Something else happens before anything is read, or once all of it is."""

    before: Callable[[], object] = lambda: None
    after: Callable[[], object] = lambda: None

    def run(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        self.before()
        notes = super().run(job, deliveries)
        self.after()
        return notes


def load_with(loads: Loads, tasks: Meanwhile) -> Report:
    return load(loads.declared, LoadSettings(ledger=LedgerSettings(dsn=loads.dsn)), batch=new_batch(), tasks=tasks)


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
        assert "one load after the other" in report.notes[-1].reason

    load_with(loads, Meanwhile(after=go_on))
    loads.load()

    assert loads.rows() == [1, 2]


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
        assert "which this may be under another name" in logs.load().notes[0].reason

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


@STAGED
def test_what_was_read_of_a_generation_is_not_published_once_it_is_replaced(loads):
    loads.declared = replace(loads.declared, on_rewrite=OnRewrite.REPLACE)
    loads.write("a.jsonl", lines(1, 2))
    loads.load()
    loads.write("a.jsonl", lines(1, 2, 3))

    def rewrite():
        loads.write("a.jsonl", lines(7, 8, 9, 10))
        loads.load()

    with pytest.raises(AlreadyConsumed):
        load_with(loads, Meanwhile(after=rewrite))
    loads.load()

    assert loads.rows() == [7, 8, 9, 10]


@STAGED
def test_a_retried_record_does_not_take_the_place_of_a_later_one_that_is_just_loaded(loads, monkeypatch):
    target = replace(loads.declared.target, write=Write.MERGE, key=("id",))
    declare(loads, columns={"id": "bigint", "amount": "numeric(12,2)"}, target=target)
    loads.write("a.jsonl", '{"id": 1, "amount": "x"}\n')
    loads.load()
    (held,) = find_records(loads.engine, Selection(pipeline="events"))
    loads.write("b.jsonl", '{"id": 1, "amount": 5}\n')
    mended = {held.quarantine_id: b'{"id": 1, "amount": 4}'}
    retrying = threading.Thread(
        target=lambda: retry(loads.engine, loads.ledger, loads.declared, (held,), batch=Batch("retry"), mended=mended)
    )
    merge_in = publishing.merge_in

    def merge_while_it_is_retried(*arguments):
        merge_in(*arguments)
        retrying.start()
        until_somebody_waits(loads)

    monkeypatch.setattr(publishing, "merge_in", merge_while_it_is_retried)
    loads.load()
    retrying.join()

    assert [int(amount) for amount in loads.rows("amount")] == [5]


def until_somebody_waits(loads: Loads) -> None:
    until = time.monotonic() + 30
    while not loads.ask("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
        assert time.monotonic() < until, "nobody came to wait"
        time.sleep(0.01)


@STAGED
def test_a_stage_is_held_for_as_long_as_it_is_filled_whatever_the_server_does_to_idle_sessions(loads):
    ((name,),) = loads.ask("SELECT current_database()")
    with loads.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text(f'ALTER DATABASE "{name}" SET idle_session_timeout = 500'))
    loads.engine.dispose()
    loads.write("a.jsonl", lines(1, 2))

    def sweep():
        # Longer than the server would have waited.
        time.sleep(1.5)
        with loads.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as holder:
            _sweep(holder)

    load_with(loads, Meanwhile(before=sweep))

    assert loads.rows() == [1, 2]
