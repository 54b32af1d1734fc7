"""The kill-point sweep: every fault at every step of a commit, each time with other work.

One run: a worker loads, and is stopped at a step of some commit; a snapshot is taken; the fault strikes; the worker
goes on, or another one takes its place; in the end every record must be there once, with its proof.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from enum import StrEnum
from queue import Empty, SimpleQueue
from random import Random
from typing import TypeVar, assert_never

from onceload_core.errors import CommitOutcomeUnknown
from onceload_core.names import Batch, SessionName
from onceload_core.ports import CommitStep
from onceload_core.postgres import PostgresSnapshots
from tests.fault.lane import Lane
from tests.fault.laws import Place, judge_run, records_lost
from tests.fault.nursery import RunningWorker
from tests.fault.proxy import Fate
from tests.fault.work import Work, make_up
from tests.fault.worker import Halt, Order

Task = TypeVar("Task")
Result = TypeVar("Result")


class Fault(StrEnum):
    WORKER_KILLED = "worker killed (SIGKILL)"
    BACKEND_ENDED = "backend ended (pg_terminate_backend)"
    CONNECTION_CUT = "connection cut by a proxy"
    SERVER_CRASHED = "server crashed (pg_ctl stop -m immediate)"
    COMMIT_ANSWER_LOST = "COMMIT unanswered: committed"
    COMMIT_LOST = "COMMIT unanswered: not committed"
    COMMIT_UNDER_WAY = "COMMIT unanswered: under way"


_FATES = {
    Fault.COMMIT_ANSWER_LOST: Fate.ANSWER_SWALLOWED,
    Fault.COMMIT_LOST: Fate.NOT_FORWARDED,
    Fault.COMMIT_UNDER_WAY: Fate.UNDER_WAY,
}
UNANSWERED = frozenset(_FATES)
_THROUGH_PROXY = {Fault.CONNECTION_CUT, *UNANSWERED}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run, to be had again from its seed."""

    fault: Fault
    step: CommitStep
    seed: str


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run lost, repeated or broke, and the answers that its workers got."""

    what: str
    seed: str
    lost: int
    repeated: int
    refused: int
    unknown: int
    broken: tuple[str, ...]
    seconds: float

    @property
    def is_good(self) -> bool:
        return not (self.lost or self.repeated or self.broken)


def trials(faults: Iterable[Fault], *, repeats: int, seed: int) -> list[Trial]:
    """Every step of the commit, a number of times for each fault."""
    return [
        Trial(fault=fault, step=step, seed=f"{seed}:{fault.name}:{step.name}:{number}")
        for fault in faults
        for step in CommitStep
        for number in range(repeats)
    ]


def in_lanes(lanes: Sequence[Lane], tasks: Iterable[Task], run: Callable[[Lane, Task], Result]) -> list[Result]:
    """Each lane takes the next task as soon as it is free."""
    waiting: SimpleQueue[Task] = SimpleQueue()
    for task in tasks:
        waiting.put(task)

    def take_all(lane: Lane) -> list[Result]:
        results: list[Result] = []
        while True:
            try:
                task = waiting.get_nowait()
            except Empty:
                return results
            results.append(run(lane, task))

    with ThreadPoolExecutor(len(lanes)) as threads:
        return [result for results in threads.map(take_all, lanes) for result in results]


def run_trial(lane: Lane, trial: Trial) -> Outcome:
    started = time.monotonic()
    rng = Random(trial.seed)
    place, producer_ids = lane.new_place(rng)
    work = make_up(rng, producer_ids)
    order = _order_of(lane, trial, place, work, rng)
    assert order.halt
    with lane.nursery.worker(order) as worker:
        worker.wait_for(order.halt)
        PostgresSnapshots(lane.engine).take(place.pipeline)
        lane.observer.wait_for_a_poll()
        _strike(lane, trial.fault, worker)
        worker.wait_for_end()
    lost = records_lost(lane.engine, place, work) if worker.is_finished else 0
    # Offering everything again finishes what a killed worker left, and otherwise changes nothing.
    broken = (*_not_as_planned(lane, trial, worker), *finish(lane, order))
    found = outcome_of(
        lane, place, work, order, what=trial.fault, seed=trial.seed, started=started, worker=worker, broken=broken
    )
    return replace(found, lost=max(lost, found.lost))


def _order_of(lane: Lane, trial: Trial, place: Place, work: Work, rng: Random) -> Order:
    committed_chunks = work.with_something_new()
    # A fault after a commit strikes what follows it.
    candidates = committed_chunks[:-1] if trial.step is CommitStep.COMMITTED else committed_chunks
    return Order(
        settings=lane.settings(through_proxy=trial.fault in _THROUGH_PROXY),
        pipeline=place.pipeline,
        session=SessionName("loader"),
        batch=Batch(trial.seed),
        target=place.target,
        chunks=work.chunks,
        is_plain=work.is_plain,
        halt=Halt(chunk=rng.choice(candidates), step=trial.step),
        lease_s=rng.choice([None, 60.0]),
        writes_early=rng.choice([False, True]),
    )


def _strike(lane: Lane, fault: Fault, worker: RunningWorker) -> None:
    match fault:
        case Fault.WORKER_KILLED:
            worker.kill()
        case Fault.BACKEND_ENDED:
            lane.end_backends_of_workers()
            worker.go_on()
        case Fault.CONNECTION_CUT:
            lane.proxy.cut()
            worker.go_on()
        case Fault.SERVER_CRASHED:
            lane.crash_server()
            worker.go_on()
            lane.server.start()
        case Fault.COMMIT_ANSWER_LOST | Fault.COMMIT_LOST | Fault.COMMIT_UNDER_WAY:
            lane.proxy.doom_next_commit(_FATES[fault])
            worker.go_on()
        case _:
            assert_never(fault)


def finish(lane: Lane, order: Order) -> Iterator[str]:
    """Another worker of the same name offers all chunks again; answers with what kept it from finishing."""
    again = replace(order, settings=lane.settings(), halt=None)
    with lane.nursery.worker(again) as worker:
        worker.wait_for_end()
    if not worker.is_finished:
        yield f"the retried work did not finish: {worker.refusals}"


def _not_as_planned(lane: Lane, trial: Trial, worker: RunningWorker) -> Iterator[str]:
    """A fault that did not happen proves nothing, and who survives one must go on by itself."""
    if trial.fault is Fault.WORKER_KILLED:
        return
    if not worker.is_finished:
        yield f"the struck worker did not go on: {worker.refusals}"
    if not worker.refusals or lane.proxy.doom_is_pending:
        yield "the fault did not strike"
    was_told = any(isinstance(refusal, CommitOutcomeUnknown) for refusal in worker.refusals)
    # After a commit nothing is under way: what is struck is the question to the ledger that comes next.
    if trial.fault in UNANSWERED and trial.step is not CommitStep.COMMITTED and not was_told:
        yield f"a COMMIT without an answer was not called unknown: {worker.refusals}"


def outcome_of(
    lane: Lane,
    place: Place,
    work: Work,
    order: Order,
    *,
    what: str,
    seed: str,
    started: float,
    worker: RunningWorker,
    broken: tuple[str, ...],
) -> Outcome:
    """The answer that the struck worker got, and the rows that are there now."""
    findings = judge_run(lane.engine, place, work)
    seen = lane.observer.watch(None)
    unknown = sum(isinstance(refusal, CommitOutcomeUnknown) for refusal in worker.refusals)
    return Outcome(
        what=what,
        seed=seed,
        lost=findings.lost,
        repeated=findings.repeated,
        refused=len(worker.refusals) - unknown,
        unknown=unknown,
        broken=(*broken, *findings.broken, *(f"seen by the reader: {each}" for each in seen)),
        seconds=time.monotonic() - started,
    )
