"""Calls with rows that are killed at each step, get no answer, or run twice at once; then the call is made again."""

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.synchronize import Barrier
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow as pa
import pytest

import onceload
from onceload.given_rows import offers_of
from onceload_core.names import Batch
from onceload_core.ports import CommitStep
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.given_rows import load_rows
from onceload_jobs.load.report import Report
from tests.fault.proxy import Fate, Proxy
from tests.python.conftest import Place
from tests.servers import execute
from tests.waiting import PATIENCE_S

_PROCESSES = get_context("forkserver")

#: Two of them are loaded before, and one is bad.
ROWS = [{"id": number if number != 7 else None, "amount": "1.50", "note": "x"} for number in range(10)]
FORMS: dict[str, Callable[[], Any]] = {"mappings": lambda: ROWS, "table": lambda: pa.Table.from_pylist(ROWS)}


@pytest.fixture
def pipeline(place: Place) -> onceload.Pipeline:
    described = place.describe(pipeline="crm")
    del described["source"]
    pipeline = onceload.Pipeline.of(described, dsn=place.dsn)
    assert pipeline.load_rows(ROWS[:2], producer="crm", first_id=0).loaded == 2
    return pipeline


def load(pipeline: onceload.Pipeline, batch: str, rows: Any, reached: Callable[[CommitStep], None], dsn: str) -> Report:
    offers = offers_of(rows, pipeline.declared, producer="crm", first_id=0, id_column=None)
    settings = LedgerSettings(dsn=dsn)
    return load_rows(
        pipeline.declared,
        settings,
        offers,
        producer="crm",
        is_without_gaps=True,
        batch=Batch(batch),
        reached=reached,
    )


def assert_each_row_is_there_once(place: Place, pipeline: onceload.Pipeline) -> None:
    assert place.rows("_sequence, id") == [(number, number) for number in range(10) if number != 7]
    assert execute(place.dsn, "SELECT sequence_id, state FROM onceload.quarantine") == [(7, "held")]
    assert execute(place.dsn, "SELECT consumed::text FROM onceload.producer") == [("{[0,10)}",)]
    found = pipeline.verify(deep=True)
    assert (found.differing, found.rows) == (0, 9)
    assert not pipeline.recover_state(dry_run=True).is_different


def killed_at(pipeline: onceload.Pipeline, form: str, step: str, dsn: str) -> None:
    """Kill this process at a step of its commit."""

    def reached(now: CommitStep) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    load(pipeline, "killed", FORMS[form](), reached, dsn)


@pytest.mark.parametrize("step", CommitStep)
def test_rows_of_a_call_that_is_killed_and_made_again_are_there_once(
    place: Place, pipeline: onceload.Pipeline, step: CommitStep
) -> None:
    form = ("mappings", "table")[list(CommitStep).index(step) % 2]
    process = _PROCESSES.Process(target=killed_at, args=(pipeline, form, str(step), place.dsn))
    process.start()
    process.join(PATIENCE_S)
    assert process.exitcode == -signal.SIGKILL

    report = pipeline.load_rows(FORMS[form](), producer="crm", first_id=0)

    is_landed = step is CommitStep.COMMITTED
    assert (report.loaded, report.duplicates, report.quarantined) == ((0, 10, 0) if is_landed else (7, 2, 1))
    assert_each_row_is_there_once(place, pipeline)


def together(pipeline: onceload.Pipeline, batch: str, both: Barrier, dsn: str) -> None:
    """Commit when another process has judged the same ids, too."""
    is_first = [True]

    def reached(step: CommitStep) -> None:
        if step is CommitStep.BEGUN and is_first.pop():
            is_first.append(False)
            both.wait(PATIENCE_S)

    load(pipeline, batch, ROWS, reached, dsn)


def test_two_processes_at_once_with_the_same_ids_load_each_row_once(place: Place, pipeline: onceload.Pipeline) -> None:
    both = _PROCESSES.Barrier(2)
    processes = [
        _PROCESSES.Process(target=together, args=(pipeline, batch, both, place.dsn)) for batch in ("one", "two")
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)

    assert [process.exitcode for process in processes] == [0, 0]
    entries = execute(place.dsn, "SELECT loaded, quarantined FROM onceload.ledger ORDER BY position")
    assert entries == [(2, 0), (7, 1)]
    assert_each_row_is_there_once(place, pipeline)


@pytest.fixture
def proxy(place: Place) -> Iterator[tuple[Proxy, str]]:
    """A proxy before the server, and the address of the database behind it."""
    folder = parse_qs(urlsplit(place.dsn).query)["host"][0]
    with TemporaryDirectory(prefix="onceload-proxy-") as own, Proxy(folder=Path(own), server_folder=Path(folder)) as it:
        yield it, place.dsn.replace(quote(folder, safe=""), quote(own, safe=""))


@pytest.mark.parametrize("fate", Fate)
def test_a_commit_without_an_answer_is_neither_repeated_nor_lost(
    place: Place, pipeline: onceload.Pipeline, proxy: tuple[Proxy, str], fate: Fate
) -> None:
    dooms = [fate]

    def reached(step: CommitStep) -> None:
        if step is CommitStep.DELIVERY_ACKED and dooms:
            proxy[0].doom_next_commit(dooms.pop())

    report = load(pipeline, "unanswered", ROWS, reached, proxy[1])

    assert (report.loaded, report.duplicates, report.quarantined) == (7, 2, 1)
    assert not proxy[0].doom_is_pending
    assert_each_row_is_there_once(place, pipeline)


def test_a_later_call_of_the_same_batch_fences_an_earlier_one(place: Place, pipeline: onceload.Pipeline) -> None:
    def reached(step: CommitStep) -> None:
        if step is CommitStep.ROWS_WRITTEN:
            assert pipeline.load_rows(ROWS, producer="crm", first_id=0, batch="same").loaded == 7

    with pytest.raises(onceload.SessionFenced):
        load(pipeline, "same", ROWS, reached, place.dsn)

    assert_each_row_is_there_once(place, pipeline)
