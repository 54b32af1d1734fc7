"""A pause of a pipeline, and the loads that meet it: nothing is loaded, nothing is lost, and repairs are possible."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy import text

from onceload.cli import main
from onceload_core.errors import ExitCode
from onceload_core.names import Batch, Position
from onceload_core.pause import PipelinePaused
from onceload_core.postgres import LedgerSettings, recover_state
from onceload_core.postgres.pausing import pause, resume
from onceload_core.postgres.quarantine import Fix, Selection, find_records
from onceload_jobs.load.load import load
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.load.staged.kept_batch import give_up, publish_batch
from onceload_jobs.pipeline.declared import Publish
from onceload_jobs.recover.rebuild import rebuild
from onceload_jobs.recover.retry import retry
from onceload_jobs.recover.rewind import rewind
from tests.loads.conftest import InThisProcess, line
from tests.waiting import PATIENCE_S, until

WHY = "rows of May are being repaired"
DIRECT = pytest.mark.parametrize("publish", [Publish.DIRECT])
STAGED = pytest.mark.parametrize("publish", [Publish.STAGED])
PIPELINE = """
pipeline: events
source: {path: "ROOT/*.jsonl", format: jsonl, chunk_bytes: CHUNK_BYTES}
columns: {id: bigint not null, amount: "numeric(12,2)", note: text}
target: {table: public.target}
publish: PUBLISH
"""
ROWS, CHUNK_BYTES = 2_000, 500
#: All tables that a load may change before it commits.
TRACES = "SELECT (SELECT count(*) FROM onceload.session), (SELECT max(version) FROM onceload.declaration)"

#: Whether a session waits for a lock of the target.
WAITS_FOR_TARGET = "count(*) > 0 FROM pg_locks WHERE relation = 'target'::regclass AND NOT granted"


def paused(loads):
    return pause(loads.engine, "events", by="ann", why=WHY)


def resumed(loads):
    return resume(loads.engine, "events", by="ann")


def settings_of(loads, *, publishes=True):
    return LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0, publishes=publishes)


class NeverStarted(InThisProcess):
    def begins(self):
        raise AssertionError("a load of a paused pipeline started its sessions")


def test_a_load_of_a_paused_pipeline_is_refused_before_it_begins(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("a.jsonl", line(1) + line(2))
    before = loads.ask(TRACES)
    paused(loads)
    # An edit that a load would take over as a new version.
    edited = replace(loads.declared, source=replace(loads.declared.source, chunk_bytes=1000))

    with pytest.raises(PipelinePaused, match=rf"paused by ann at .*Z, with the reason '{WHY}'\. Nothing more"):
        load(edited, settings_of(loads), batch=new_batch(), executor=NeverStarted())

    assert (loads.rows(), loads.ask(TRACES)) == ([1], before)
    resumed(loads)
    assert loads.load().loaded == 1
    assert loads.rows() == [1, 2]


class PausesWhileItWorks(InThisProcess):
    """Another user pauses the pipeline once some records have been read."""

    def __init__(self, loads):
        self._loads = loads

    def begins(self) -> None:
        paused(self._loads)


def test_a_pause_ends_a_load_in_progress_and_the_next_one_loads_all_of_it(loads):
    for number in range(3):
        loads.write(f"{number}.jsonl", line(number))

    with pytest.raises(PipelinePaused):
        load(loads.declared, settings_of(loads), batch=Batch("one"), executor=PausesWhileItWorks(loads))

    assert loads.rows_or_none() == []
    # No try is used up, and nothing is held by a session.
    assert loads.ask("SELECT count(*) FROM onceload.delivery_failure") == [(0,)]
    assert loads.ask("SELECT count(*) FROM onceload.delivery WHERE state <> 'waiting' OR tries > 0") == [(0,)]
    resumed(loads)
    assert loads.load().loaded == 3
    assert loads.rows() == [0, 1, 2]


@STAGED
def test_a_batch_that_is_staged_when_the_pause_comes_is_published_after_the_resume(loads):
    loads.write("a.jsonl", line(1) + line(2))
    staged = load(loads.declared, settings_of(loads, publishes=False), batch=Batch("one"), executor=InThisProcess())
    paused(loads)

    with pytest.raises(PipelinePaused):
        publish_batch(loads.declared, settings_of(loads), batch=Batch("one"))
    with pytest.raises(PipelinePaused):
        load(loads.declared, settings_of(loads, publishes=False), batch=Batch("two"), executor=NeverStarted())

    assert (staged.staged, loads.rows()) == (2, [])
    resumed(loads)
    assert publish_batch(loads.declared, settings_of(loads), batch=Batch("one")).loaded == 2
    paused(loads)
    # It is asked again, because its caller got no answer.
    assert publish_batch(loads.declared, settings_of(loads), batch=Batch("one")).loaded == 2
    assert loads.rows() == [1, 2]


@STAGED
def test_a_staged_batch_can_be_given_up_during_a_pause(loads):
    loads.write("a.jsonl", line(1))
    load(loads.declared, settings_of(loads, publishes=False), batch=Batch("one"), executor=InThisProcess())
    paused(loads)

    assert give_up(loads.declared, settings_of(loads), batch=Batch("one"))


def test_a_pipeline_is_repaired_while_it_is_paused(loads):
    loads.write("a.jsonl", line(1) + line(2, amount="x"))
    loads.load()
    paused(loads)
    kept = list(find_records(loads.engine, Selection(pipeline="events")))
    fixed = {kept[0].quarantine_id: Fix(raw=line(2).encode().rstrip(), digest=kept[0].digest)}

    retried = retry(loads.engine, loads.ledger, loads.declared, kept, batch=Batch("retry"), fixed=fixed)
    recovered = recover_state(loads.engine, "events", dry_run=False)
    rewound = rewind(loads.declared, loads.engine, to=Position(0), dry_run=False)

    assert (retried.retried, recovered.is_different, rewound.rows) == (1, False, 2)
    assert loads.rows() == []
    with pytest.raises(PipelinePaused):
        loads.load()
    resumed(loads)
    assert loads.load().loaded == 1


def test_a_rebuild_of_a_paused_pipeline_is_refused(loads):
    """It has loaded nothing yet: otherwise a rebuild is refused anyway."""
    loads.ledger.declare(loads.declared.pipeline)
    paused(loads)
    loads.write("a.jsonl", line(1))

    with pytest.raises(PipelinePaused):
        rebuild(loads.declared, settings_of(loads), batch=new_batch(), executor=NeverStarted())


def test_a_scheduler_finds_nothing_to_do_while_a_pipeline_is_paused(loads):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.jsonl", line(2) + "{broken\n")
    paused(loads)

    during = loads.look()

    assert (during.is_paused, during.is_anything_new, during.needs_a_person) == (True, False, "")
    assert f"is paused by ann at {loads.ask('SELECT CURRENT_DATE')[0][0]}" in during.lines[0]
    assert WHY in during.lines[0]
    resumed(loads)
    assert (loads.look().is_paused, loads.look().files) == (False, 1)


# Commands and processes.


@pytest.fixture
def file(loads, publish, tmp_path):
    file = tmp_path / "events.yaml"
    described = PIPELINE.replace("ROOT", str(loads.folder)).replace("CHUNK_BYTES", str(CHUNK_BYTES))
    file.write_text(described.replace("PUBLISH", publish))
    return file


@pytest.fixture
def started(loads, file):
    """Start a command in a process of its own."""
    processes = []

    def start(command, *arguments):
        process = subprocess.Popen(
            [sys.executable, "-m", "onceload", command, str(file), *arguments],
            env={**os.environ, "ONCELOAD_DSN": loads.dsn},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def until_asked(loads, condition, process):
    """Until a condition on the database holds, while a process runs."""

    def holds():
        assert process.poll() is None, process.communicate()
        return loads.ask(f"SELECT {condition}") == [(True,)]

    until(holds, condition, every_s=0.005)


@DIRECT
def test_a_process_that_commits_again_and_again_commits_nothing_after_a_pause(loads, started):
    loads.write("a.jsonl", "".join(map(line, range(ROWS))))
    process = started("load", "--engine", "local")
    until_asked(loads, "count(*) >= 5 FROM onceload.ledger", process)

    paused(loads)
    at_the_pause = len(loads.rows())
    _, said = process.communicate(timeout=PATIENCE_S)

    assert (process.returncode, len(loads.rows())) == (ExitCode.CALL_AGAIN, at_the_pause)
    assert 0 < at_the_pause < ROWS
    assert f"pipeline events was paused by ann at {loads.ask('SELECT CURRENT_DATE')[0][0]}" in said
    assert loads.ask("SELECT count(*) FROM onceload.delivery_failure") == [(0,)]
    resumed(loads)
    assert loads.load().loaded == ROWS - at_the_pause
    assert loads.rows() == list(range(ROWS))


@DIRECT
@pytest.mark.long
def test_tasks_of_spark_that_meet_a_pause_end_the_load_and_are_not_retried(loads, tasks):
    loads.write("a.jsonl", line(1))
    loads.load()
    for number in range(2, 6):
        loads.write(f"{number}.jsonl", line(number))
    with loads.engine.connect() as holder, ThreadPoolExecutor(1) as thread:
        # They write their rows before they lock the pipeline.
        holder.execute(text("LOCK TABLE target IN SHARE MODE"))
        loading = thread.submit(load, loads.declared, settings_of(loads), batch=Batch("one"), executor=tasks)
        until(lambda: loads.ask(f"SELECT {WAITS_FOR_TARGET}") == [(True,)] or loading.done())
        paused(loads)
        holder.rollback()

        assert isinstance(loading.exception(timeout=PATIENCE_S), PipelinePaused)

    assert loads.rows() == [1]
    assert loads.ask("SELECT count(*) FROM onceload.delivery_failure") == [(0,)]
    assert loads.ask("SELECT count(*) FROM onceload.delivery WHERE state <> 'waiting' OR tries > 0") == [(0,)]
    resumed(loads)
    assert loads.load().loaded == 4


@STAGED
def test_a_process_that_publishes_when_the_pause_comes_publishes_nothing(loads, started):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("b.jsonl", line(2) + line(3))
    with loads.engine.connect() as holder:
        # It writes its rows before it locks the pipeline.
        holder.execute(text("LOCK TABLE target IN SHARE MODE"))
        process = started("load", "--engine", "local")
        until_asked(loads, WAITS_FOR_TARGET, process)
        paused(loads)

    _, said = process.communicate(timeout=PATIENCE_S)

    assert process.returncode == ExitCode.CALL_AGAIN, said
    assert "Nothing more was loaded, and nothing is lost" in said
    assert loads.rows() == [1]
    resumed(loads)
    assert loads.load().loaded == 2
    assert loads.rows() == [1, 2, 3]


_LOOKS = 6


def connections_made(loads):
    """How many connections were made to the database, but for the one that asks."""
    ((count,),) = loads.ask("SELECT sessions FROM pg_stat_database WHERE datname = current_database()")
    return count


@DIRECT
def test_a_follower_reports_a_pause_once_and_goes_on_after_the_resume(loads, started):
    loads.write("a.jsonl", line(1))
    process = started("consume", "--session", "one", "--follow", "--every", "1s")
    until_asked(loads, "count(*) = 1 FROM onceload.ledger", process)

    paused(loads)
    loads.write("b.jsonl", line(2))
    before = connections_made(loads)
    # Each look of the follower has at least one of its own.
    until(lambda: connections_made(loads) >= before + _LOOKS)
    assert process.poll() is None
    assert loads.rows() == [1]
    resumed(loads)

    until_asked(loads, "count(*) = 2 FROM onceload.ledger", process)
    process.terminate()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    assert said.count("was paused by ann") == 1


@STAGED
def test_plan_and_why_work_during_a_pause_and_report_it(loads, file, capsys):
    loads.write("a.jsonl", line(1))
    loads.load()
    loads.write("a.jsonl", line(1) + line(2))
    paused(loads)

    for command in (["plan", str(file)], ["why", str(file), "a.jsonl"]):
        code, out = main(command, {"ONCELOAD_DSN": loads.dsn}), capsys.readouterr()
        assert code == 0
        assert "new" in out.out or "the next load reads" in out.err
        assert f"with the reason '{WHY}'; no load runs until `onceload resume events`" in out.err
        assert main([*command, "--json"], {"ONCELOAD_DSN": loads.dsn}) == 0
        assert json.loads(capsys.readouterr().out)["pause"]["why"] == WHY


@STAGED
def test_plan_and_why_have_no_word_of_a_pause_without_one(loads, file, capsys):
    loads.write("a.jsonl", line(1))

    for command in (["plan", str(file)], ["why", str(file), "a.jsonl"]):
        assert main(command, {"ONCELOAD_DSN": loads.dsn}) == 0
        assert "pause" not in capsys.readouterr().err
