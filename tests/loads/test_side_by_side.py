"""Several loads, pipelines and people at one table at the same moment."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from onceload_core.errors import CallAgain, OnceloadError
from onceload_core.names import Batch
from onceload_core.postgres import LedgerSettings
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.columns import parse_column
from onceload_jobs.pipeline.declared import Declared, OnRewrite, Publish, UnknownFields, Write
from tests.loads.conftest import InThisProcess, Loads, line, through_a_table
from tests.loads.test_load import counts
from tests.servers import execute

STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])
DIRECT = pytest.mark.parametrize("publish", [Publish.DIRECT])


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Begin all of them at the same moment, and answer with what each returned or raised."""
    barrier = threading.Barrier(len(calls))

    def begin(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except OnceloadError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(begin, calls))


def loading(loads: Loads, declared: Declared, *, batch: Batch | None = None) -> Callable[[], Report]:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=30)
    return lambda: load(declared, settings, batch=batch or new_batch(), executor=InThisProcess())


def until_nothing_is_new(loads: Loads, declared: Declared) -> None:
    while loading(loads, declared)().records:
        pass


@STAGED
def test_pipelines_that_share_a_table_replace_and_rewind_only_their_own_rows(loads):
    own = {}
    for name in ("first", "second", "third"):
        loads.write(f"{name}/a.jsonl", line(1) + line(2))
        source = replace(loads.declared.source, path=str(loads.folder / name / "*.jsonl"))
        pipeline = replace(loads.declared.pipeline, name=name)
        own[name] = replace(loads.declared, pipeline=pipeline, source=source, on_rewrite=OnRewrite.REPLACE)
    reports = at_once(*(loading(loads, declared) for declared in own.values()))
    assert [counts(report) for report in reports] == [(2, 0, 0)] * 3

    loads.write("second/a.jsonl", line(3))

    assert counts(loading(loads, own["second"])()) == (1, 0, 0)
    assert loads.rows() == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("round_", range(5))
def test_one_batch_that_is_loaded_twice_at_once_is_loaded_once(loads, round_):
    for number in range(6):
        loads.write(f"{number}.jsonl", "".join(map(line, range(number * 10, number * 10 + 10))))

    answers = at_once(*(loading(loads, loads.declared, batch=Batch("nightly")) for _ in range(2)))

    assert [each for each in answers if isinstance(each, OnceloadError) and not isinstance(each, CallAgain)] == []
    until_nothing_is_new(loads, loads.declared)
    assert loads.rows() == list(range(60))


@DIRECT
def test_a_column_that_a_person_adds_while_sessions_add_others_costs_no_row(loads):
    loads.write("0.jsonl", line(0))
    loads.load()
    added = replace(
        loads.declared,
        unknown_fields=UnknownFields.ADD,
        columns=(parse_column("id", "bigint"),),
        source=replace(loads.declared.source, chunk_bytes=64),
    )
    for number in range(1, 40):
        loads.write(f"{number}.jsonl", f'{{"id":{number},"field{number % 7}":{number}}}\n')

    def by_hand() -> None:
        for number in range(10):
            execute(loads.admin_dsn, f"ALTER TABLE target ADD COLUMN by_hand{number} text")

    answers = at_once(*(loading(loads, added) for _ in range(4)), by_hand)

    assert [each for each in answers if isinstance(each, OnceloadError) and not isinstance(each, CallAgain)] == []
    until_nothing_is_new(loads, added)
    assert loads.rows() == list(range(40))


@STAGED
@pytest.mark.parametrize("round_", range(5))
def test_merges_of_the_same_keys_that_are_published_at_once_leave_one_row_of_each(loads, round_):
    target = replace(loads.declared.target, write=Write.MERGE, key=("id",))
    columns = (parse_column("id", "bigint not null"), parse_column("note", "text"))
    own = {}
    for name in ("up", "down"):
        numbers = range(200) if name == "up" else reversed(range(200))
        loads.write(f"{name}/a.jsonl", "".join(line(number, note=name) for number in numbers))
        source = replace(loads.declared.source, path=str(loads.folder / name / "*.jsonl"))
        pipeline = replace(loads.declared.pipeline, name=name)
        own[name] = replace(loads.declared, pipeline=pipeline, source=source, target=target, columns=columns)
    loads.write("up/0.jsonl", line(1000, note="up"))
    loading(loads, replace(own["up"], source=replace(own["up"].source, path=str(loads.folder / "up" / "0*"))))()

    at_once(*(loading(loads, declared) for declared in own.values()))
    for declared in own.values():
        until_nothing_is_new(loads, declared)

    assert loads.rows() == [*range(200), 1000]
    winners = loads.ask("SELECT count(DISTINCT _producer_id) FROM target WHERE id < 200")
    assert winners == [(1,)]


def test_the_rest_of_a_stage_that_a_crash_interrupted_is_swept(loads):
    """The server crashed between the two tables of a stage: no session holds it, and it is incomplete."""
    with loads.engine.begin() as connection:
        connection.exec_driver_sql('CREATE UNLOGGED TABLE onceload_stage."0123456789abcdef rows" (id bigint)')
    loads.write("a.jsonl", line(1))

    loads.load(publish=Publish.STAGED, target=through_a_table(loads.declared).target)

    assert loads.ask("SELECT to_regclass('onceload_stage.\"0123456789abcdef rows\"')") == [(None,)]
    assert loads.rows() == [1]
