"""A file that ends the process that reads it is set aside alone, and the files that were held with it are loaded.

The processes are real, and so are their ends: the name of a file decides who is killed.
"""

import math
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from onceload_core.delivery import Mode, Rules
from onceload_core.names import DeliveryId, SessionName
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.by_hand import describe, list_deliveries, redrive
from onceload_jobs.batch.job import Job
from onceload_jobs.executor.executor import Died, Outcome, called
from onceload_jobs.files.notes import Note
from onceload_jobs.load.load import load
from onceload_jobs.load.report import Report
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Publish, QuarantineLimit
from onceload_jobs.read import new_content as loading
from onceload_jobs.read.checked_parts import read_parts
from onceload_jobs.read.rows import read_adding, read_records
from onceload_jobs.work.session import work
from tests.loads.conftest import Loads, line

pytestmark = pytest.mark.usually_staged

_TRIES = 3
_PROCESSES = get_context("forkserver")
_PROCESSES.set_forkserver_preload(["onceload_jobs.work.session"])


def kill_at(name: str, deadly: frozenset[str]) -> None:
    if Path(name).name in deadly:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def mortal(reading: frozenset[str], decoding: frozenset[str]) -> Iterator[None]:
    def read(chunk: Any, source: Any) -> Any:
        kill_at(chunk.name, reading)
        return read_parts(chunk, source)

    def decode(declared: Any, columns: Any, parts: Any) -> Any:
        for each in parts:
            kill_at(each.chunk.name, decoding)
        return read_records(declared, columns, parts)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "read_parts", read)
        patched.setattr(loading, "read_adding", partial(read_adding, read=decode))
        yield


Deadly = tuple[frozenset[str], frozenset[str]]


def work_mortally(job: Job, name: SessionName, deadly: Deadly) -> None:
    with mortal(*deadly):
        work(job, name)


def call_mortally(function: Callable[[Any], Any], item: object, deadly: Deadly, link: Any) -> None:
    with mortal(*deadly):
        link.send(called(function, item))


class Mortals:
    """Each session, and each call of a function, is a process; as Spark does, another takes over from one that died."""

    slots = 1

    def __init__(self, *, reading: Sequence[str] = (), decoding: Sequence[str] = ()) -> None:
        self._deadly = frozenset(reading), frozenset(decoding)
        self.deaths = 0
        #: After so many deaths nothing is deadly any more.
        self.deaths_max = math.inf

    @property
    def executor(self) -> "Mortals":
        return self

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        for name in sessions:
            while (code := self._lived(work_mortally, job, name)) == -signal.SIGKILL:
                self.deaths += 1
            assert code == 0
        return []

    def each(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[int, Outcome]]:
        for number, item in enumerate(items):
            yield number, self.called(function, item)

    def called(self, function: Callable[[Any], Any], item: object) -> Outcome:
        link, its = _PROCESSES.Pipe(duplex=False)
        deadly = self._deadly_now()
        process = _PROCESSES.Process(target=call_mortally, args=(function, item, deadly, its))
        process.start()
        its.close()
        with link:
            try:
                outcome: Outcome = link.recv()
            except EOFError:
                self.deaths += 1
                outcome = Died("its process ended with SIGKILL")
        process.join()
        return outcome

    def close(self) -> None:
        pass

    def _deadly_now(self) -> Deadly:
        return self._deadly if self.deaths < self.deaths_max else (frozenset(), frozenset())

    def _lived(self, target: Callable[..., None], *arguments: object) -> int | None:
        process = _PROCESSES.Process(target=target, args=(*arguments, self._deadly_now()))
        process.start()
        process.join()
        return process.exitcode


def load_by(loads: Loads, tasks: Mortals, **rules: Any) -> Report:
    settings = LoadSettings(ledger=LedgerSettings(dsn=loads.dsn), wait_s=0)
    loads.declared = replace(loads.declared, delivery=Rules(deliveries_max=_TRIES, **rules))
    return load(loads.declared, settings, batch=new_batch(), executor=tasks)


def dead_letters(loads: Loads) -> dict[str, str]:
    """Why each file was set aside."""
    dead = list_deliveries(loads.engine, "events", state=None, at_most=100)
    assert {each["state"] for each in dead} <= {"dead"}
    told = {}
    for each in dead:
        described = describe(loads.engine, DeliveryId(int(str(each["delivery"]))), at_most=100)
        (span,) = described.spans
        told[str(span["producer"])] = described.failures[-1]["reason"]
    return {name: str(reason) for name, reason in told.items()}


def why_dead(loads: Loads, name: str) -> str:
    if loads.declared.is_direct and loads.declared.keeps_order:
        # A session had it.
        return f"the worker process died or stopped responding while it read '{name}'"
    return f"while it read '{name}', its process ended with SIGKILL"


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
@pytest.mark.parametrize("moment", ["reading", "decoding"])
@pytest.mark.parametrize("deadly", ["b", *(pytest.param(each, marks=pytest.mark.long) for each in ("ac", "a", "d"))])
def test_only_the_file_that_kills_its_worker_is_set_aside(loads, deadly, moment, mode):
    for number, name in enumerate("abcd"):
        loads.write(f"{name}.jsonl", line(number))
    files = [f"{name}.jsonl" for name in deadly]

    tasks = Mortals(**{moment: files})
    report = load_by(loads, tasks, mode=mode)

    assert loads.rows() == [number for number, name in enumerate("abcd") if name not in deadly]
    assert sorted(dead_letters(loads)) == files
    for name, reason in dead_letters(loads).items():
        assert reason == why_dead(loads, name)
    assert sorted(note.name for note in report.notes if note.needs_a_person) == files
    assert tasks.deaths <= _TRIES * len(files)


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
def test_a_file_that_kills_its_worker_alone_is_named_too(loads, mode):
    loads.write("a.jsonl", line(1))

    load_by(loads, Mortals(reading=["a.jsonl"]), mode=mode)

    assert list(dead_letters(loads)) == ["a.jsonl"]
    assert dead_letters(loads)["a.jsonl"] == why_dead(loads, "a.jsonl")


def test_a_file_that_killed_its_worker_is_loaded_when_it_is_delivered_again(loads):
    for number, name in enumerate("abc"):
        loads.write(f"{name}.jsonl", line(number))
    load_by(loads, Mortals(reading=["b.jsonl"]))
    ((dead, *_),) = loads.ask("SELECT delivery_id FROM onceload.delivery WHERE state = 'dead'")

    redrive(loads.engine, "events", dead, by="ann")
    report = load_by(loads, Mortals())

    assert (report.loaded, loads.rows(), dead_letters(loads)) == (1, [0, 1, 2], {})


@pytest.mark.parametrize("mode", [Mode.SHARED, Mode.KEY_SHARED])
def test_a_file_that_only_failed_is_not_blamed_for_a_killed_worker(loads, mode):
    """A try that ends with an error clears the name of the file that it had begun."""
    for number, name in enumerate("ab"):
        loads.write(f"{name}.jsonl", line(number))

    class FailingAfterwards(Mortals):
        def _lived(self, *arguments: Any) -> int | None:
            return 0 if self.deaths else super()._lived(*arguments)

        def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
            if not self.deaths:
                super().run(job, sessions)
            with failing():
                work(job, sessions[0])
            return []

        def called(self, function: Callable[[Any], Any], item: object) -> Outcome:
            if not self.deaths:
                return super().called(function, item)
            with failing():
                return called(function, item)

    load_by(loads, FailingAfterwards(reading=["b.jsonl"]), mode=mode)

    assert dead_letters(loads) == dict.fromkeys(["a.jsonl", "b.jsonl"], "RuntimeError: no such luck")


@contextmanager
def failing() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(loading, "read_adding", partial(read_adding, read=_failing))
        yield


def _failing(declared: Any, columns: Any, parts: Any) -> Any:
    if parts:
        raise RuntimeError("no such luck")
    return read_records(declared, columns, parts)


@pytest.mark.parametrize("publish", [Publish.DIRECT])
def test_a_share_of_bad_records_is_judged_file_by_file_where_files_are(loads):
    """Read together, they would be good enough. Read alone after deaths, the bad file is refused alone."""
    loads.write("a.jsonl", line(0) + "{bad\n")
    loads.write("b.jsonl", "".join(line(number) for number in range(1, 40)))
    loads.declared = replace(loads.declared, quarantine_limit=QuarantineLimit(share=0.1))
    tasks = Mortals(decoding=["a.jsonl"])
    tasks.deaths_max = 2

    report = load_by(loads, tasks)

    assert tasks.deaths == 2
    assert [note.name for note in report.notes] == ["a.jsonl"]
    assert loads.rows() == list(range(1, 40))
