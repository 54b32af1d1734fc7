"""Zombies: a worker that is stopped in mid-commit, and wakes up after another has taken over.

Each commit that it still tries is refused: it contributes no row after the other has taken over.
"""

import time
from dataclasses import dataclass, replace
from enum import StrEnum
from random import Random

from onceload_core.errors import AlreadyConsumed, CommitOutcomeUnknown, DatabaseLost, DeliveryTakenAway, SessionFenced
from onceload_core.names import Batch, Position, SessionName
from onceload_core.ports import CommitStep
from onceload_core.postgres import PostgresLedger, PostgresSnapshots
from tests.fault.lane import Lane
from tests.fault.laws import Place
from tests.fault.nursery import NotAsPlanned, RunningWorker
from tests.fault.sweep import Outcome, finish, outcome_of
from tests.fault.work import Work, make_up
from tests.fault.worker import Halt, Order

#: Short, so that a test need not wait long for them to pass.
_IDLE_TIMEOUT_S = 0.3
_LEASE_S = 0.3
_HOLDS_NO_LOCK = {CommitStep.BEGUN, CommitStep.ROWS_WRITTEN, CommitStep.COMMITTED}
#: Answers that a zombie may get; an unknown outcome where the server ended its transaction before its COMMIT came.
_REFUSALS = (SessionFenced, DeliveryTakenAway, AlreadyConsumed, DatabaseLost, CommitOutcomeUnknown)


class Successor(StrEnum):
    """The worker that takes over while the first one is stopped."""

    SAME_NAME = "zombie: another life of its session took over"
    OTHER_NAME = "zombie: another session loaded its spans after its lease"
    OTHER_NAME_UNCLAIMED = "zombie: another session loaded its spans, neither claiming"
    OTHER_NAME_CLAIMING = "zombie: another session holds its spans after its lease"


@dataclass(frozen=True, kw_only=True)
class Haunting:
    """One run, to be had again from its seed."""

    successor: Successor
    step: CommitStep
    seed: str


def hauntings(number: int, *, seed: int) -> list[Haunting]:
    """A number of runs, evenly over the successors, each at a step drawn by its seed."""
    successors = list(Successor)
    found = []
    for each in range(number):
        successor = successors[each % len(successors)]
        text = f"{seed}:{successor.name}:{each}"
        steps = [step for step in CommitStep if _makes_sense(successor, step)]
        found.append(Haunting(successor=successor, step=Random(text).choice(steps), seed=text))
    return found


def _makes_sense(successor: Successor, step: CommitStep) -> bool:
    """Committed spans cannot be claimed; a session that holds a lock, and no claim, is ended in any case."""
    match successor:
        case Successor.SAME_NAME | Successor.OTHER_NAME:
            return True
        case Successor.OTHER_NAME_CLAIMING:
            return step is not CommitStep.COMMITTED
        case Successor.OTHER_NAME_UNCLAIMED:
            return step in {CommitStep.BEGUN, CommitStep.ROWS_WRITTEN}


def run_haunting(lane: Lane, haunting: Haunting) -> Outcome:
    started = time.monotonic()
    rng = Random(haunting.seed)
    place, producer_ids = lane.new_place(rng)
    work = make_up(rng, producer_ids)
    if haunting.successor is Successor.OTHER_NAME_UNCLAIMED:
        # Only the compare-and-set is in the way.
        work = replace(work, is_plain=True)
    order = _order_of_zombie(lane, haunting, place, work, rng)
    assert order.halt
    with lane.nursery.worker(order) as zombie:
        zombie.wait_for(order.halt)
        # The permission is there already: it goes on the moment it wakes.
        zombie.pause()
        zombie.go_on()
        PostgresSnapshots(lane.engine).take(place.pipeline)
        lane.observer.wait_for_a_poll()
        had = _commits_of(lane, place, order.batch)
        _take_over(lane, haunting, work, order, zombie)
        contributed = _commits_of(lane, place, order.batch) - had
    finisher = replace(order, session=SessionName("finisher"), batch=Batch("finish"), lease_s=None)
    broken = (*_broken(haunting, zombie, contributed=contributed), *finish(lane, finisher))
    return outcome_of(
        lane,
        place,
        work,
        finisher,
        what=haunting.successor,
        seed=haunting.seed,
        started=started,
        worker=zombie,
        broken=broken,
    )


def _order_of_zombie(lane: Lane, haunting: Haunting, place: Place, work: Work, rng: Random) -> Order:
    fresh = work.with_something_new()
    chunk = rng.choice(fresh[:-1])
    # A zombie that holds the commit lock is ended by the server; others may keep their transaction.
    patience_s = rng.choice([_IDLE_TIMEOUT_S, 30.0, 30.0]) if haunting.step in _HOLDS_NO_LOCK else _IDLE_TIMEOUT_S
    leases = {Successor.SAME_NAME: rng.choice([None, 60.0]), Successor.OTHER_NAME_UNCLAIMED: None}
    return Order(
        settings=lane.settings(idle_timeout_s=patience_s),
        pipeline=place.pipeline,
        session=SessionName("loader"),
        batch=Batch("zombie"),
        target=place.target,
        chunks=work.chunks,
        is_plain=work.is_plain,
        halt=Halt(chunk=chunk, step=haunting.step),
        lease_s=leases.get(haunting.successor, _LEASE_S),
    )


def _take_over(lane: Lane, haunting: Haunting, work: Work, order: Order, zombie: RunningWorker) -> None:
    """Another worker does the zombie's work; then the zombie wakes, and its answers are checked."""
    assert order.halt
    same_name = haunting.successor is Successor.SAME_NAME
    other = replace(
        order,
        settings=lane.settings(),
        session=order.session if same_name else SessionName("successor"),
        batch=Batch("successor"),
        # A later life leaves something new to be tried, so that a zombie that goes on is seen.
        chunks=order.chunks[: work.with_something_new()[-1]] if same_name else order.chunks,
        lease_s=order.lease_s and 60.0,
        halt=None,
    )
    match haunting.successor:
        case Successor.SAME_NAME | Successor.OTHER_NAME | Successor.OTHER_NAME_UNCLAIMED:
            _run_to_its_end(lane, other)
            zombie.wake()
        case Successor.OTHER_NAME_CLAIMING:
            holding = replace(other, halt=Halt(chunk=order.halt.chunk, step=CommitStep.BEGUN))
            with lane.nursery.worker(holding) as successor:
                successor.wait_for(Halt(chunk=order.halt.chunk, step=CommitStep.BEGUN))
                zombie.wake()
                zombie.wait_for_refusal()
                # From here on it would be a worker like any other.
                zombie.kill()
                successor.go_on()
                successor.wait_for_end()
    zombie.wait_for_end()


def _run_to_its_end(lane: Lane, order: Order) -> None:
    with lane.nursery.worker(order) as worker:
        worker.wait_for_end()
        if not worker.is_finished:
            raise NotAsPlanned(f"the successor did not finish: {worker.refusals}")


def _commits_of(lane: Lane, place: Place, batch: Batch) -> int:
    entries = PostgresLedger(lane.engine).entries(place.pipeline, after=Position(0))
    return sum(entry.batch == batch for entry in entries)


def _broken(haunting: Haunting, zombie: RunningWorker, *, contributed: int) -> tuple[str, ...]:
    broken = []
    if contributed:
        broken.append(f"the zombie made {contributed} commits after another took over")
    if not zombie.refusals and haunting.step is not CommitStep.COMMITTED:
        broken.append("the zombie was not refused")
    if haunting.successor is Successor.SAME_NAME and not any(
        isinstance(each, SessionFenced) for each in zombie.refusals
    ):
        broken.append(f"the zombie was never fenced: {zombie.refusals}")
    if unexpected := [each for each in zombie.refusals if not isinstance(each, _REFUSALS)]:
        broken.append(f"the zombie got other answers: {unexpected}")
    return tuple(broken)
