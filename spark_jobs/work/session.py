"""A session at work: it takes deliveries from the board until nothing can come to it any more.

The board says whose a delivery is, and the ledger whether it took effect. When something fails: the database is gone
for a while, and the worker waits; a delivery fails, and goes back with the reason, to be tried again or set aside; what
would fail whatever is in hand ends the worker, which gives back what it holds; the worker is killed or stopped, and
its lease ends; it was only slow, and another took over, and what it still tries is refused.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Protocol

from sqlalchemy.exc import DBAPIError

from dedup_core.errors import (
    CommitOutcomeUnknown,
    DatabaseLost,
    DeclarationChanged,
    DeliveryTakenAway,
    LimitReached,
    OnceloadError,
    PipelineBusy,
    RowsDiffer,
    SessionFenced,
    TooManyQuarantined,
    WrongUse,
)
from dedup_core.names import Batch, SessionName
from dedup_core.ports import Session
from dedup_core.postgres.connection import first_line
from dedup_core.postgres.deliveries import Handed, OpenWork, PostgresDeliveries
from spark_jobs.batch.job import Job, engine_of
from spark_jobs.batch.stage import Stage, StageLost
from spark_jobs.files.addresses import Unreadable
from spark_jobs.files.notes import Note
from spark_jobs.formats.records import Chunk
from spark_jobs.read.delivery import Delivery, find_file_in_hand, parted, read_handed, reading
from spark_jobs.work.deliver import deliver
from spark_jobs.write.patience import answered

#: What would be the same with any delivery in hand.
_ENDS_THE_WORKER = (
    DeclarationChanged,
    SessionFenced,
    DatabaseLost,
    PipelineBusy,
    CommitOutcomeUnknown,
    TooManyQuarantined,
    LimitReached,
    RowsDiffer,
    WrongUse,
)
#: From which on a delivery is loaded file by file.
_SECOND_TRY = 2
BEATS_PER_LEASE = 4
_LOOKS_FOR_LATE_ONES_EVERY_S = 1.0
_PAUSE_S = (0.005, 0.25)
#: A file that cannot be read just now gets a little more time with each try.
_SPARED_S = (0.5, 30.0)


class Tasks(Protocol):
    """Where sessions are at work."""

    @property
    def slots(self) -> int:
        """How many work at once."""

    def run(self, job: Job, sessions: Sequence[SessionName]) -> list[Note]:
        """Let each session take deliveries until nothing can come to it, and say what could not be read."""

    def transform(self, job: Job, deliveries: Sequence[Delivery]) -> list[Note]:
        """Read all of it, and stage what a transform makes of it."""

    def writing(self, job: Job) -> Job:
        """The job, with the columns that it will write."""


def never() -> bool:
    return False


def work(job: Job, name: SessionName, *, waits: bool = False) -> list[Note]:
    """Open a session, and let it work until nothing can come to it any more; one that is alive may be waited for."""
    worker = Worker(job, name)
    try:
        coming = Coming(worker, job)
        while not worker.open(waits=waits):
            if not coming.may_be():
                return []
            time.sleep(_PAUSE_S[1])
        return worker.run(job)
    finally:
        worker.close()


class Coming:
    """Whether anything of a job may still come to a session; what nobody gets on with is waited for with a bound."""

    def __init__(self, worker: "Worker", job: Job) -> None:
        self._worker, self._job = worker, job
        self._seen: OpenWork | None = None
        self._until = 0.0

    def may_be(self) -> bool:
        declared, left = self._job.declared, self._worker.left(self._job)
        if left != self._seen:
            # Whoever holds something and is gone has lost it by then; the rest is waited for by the whole load, once.
            wait_s = min(self._job.wait_s, declared.delivery.ack_deadline_s)
            self._seen, self._until = left, time.monotonic() + wait_s
        is_ours = left.of_session if declared.has_fixed_sessions else left.of_batch
        # A batch that is published at once is waited for by whoever publishes it.
        return is_ours and (not declared.is_direct or time.monotonic() < self._until)


class Worker:
    """One session, and the board that it takes from."""

    def __init__(self, job: Job, name: SessionName, *, is_stopped: Callable[[], bool] = never) -> None:
        self._board = PostgresDeliveries(engine_of(job), job.declared.name, job.declared.delivery)
        self._name = name
        self._version = job.session.version
        self._is_stopped = is_stopped
        self._session: Session | None = None
        self._open = ExitStack()

    def open(self, *, waits: bool) -> bool:
        """Start a life of the session; one that waits starts none while another life of it is alive."""
        self._session = answered(partial(self._board.open_session, self._name, version=self._version, waits=waits))
        if self._session is None:
            return False
        every_s = self._board.rules.ack_deadline_s / BEATS_PER_LEASE
        self._open.enter_context(renewed(partial(self._board.renew, self._session), every_s=every_s))
        return True

    def close(self) -> None:
        """Give back what is in hand."""
        self._open.close()
        if self._session is not None:
            # If the database does not answer, the lease ends by itself.
            with suppress(OnceloadError):
                self._board.close_session(self._session)

    def run(self, job: Job) -> list[Note]:
        """Take what comes until nothing of the job's batch can come any more, nor anything else is ready."""
        is_staged = not job.declared.is_direct
        session = self._session
        notes: list[Note] = []
        lost: set[Batch] = set()
        pause_s, looked_at = _PAUSE_S[0], time.monotonic()
        coming = Coming(self, job)
        while session is not None and not self._is_stopped():
            if time.monotonic() - looked_at >= _LOOKS_FOR_LATE_ONES_EVERY_S:
                looked_at = time.monotonic()
                # The heartbeat would keep it for ever.
                self._let_go(session)
                answered(partial(self._board.expire, is_staged=is_staged))
            if is_staged:
                handed = answered(partial(self._board.take_staged, session, lost=lost))
            else:
                handed = answered(partial(self._board.take, session))
            if handed:
                notes += self._load(replace(job, session=session), handed, lost)
                pause_s = _PAUSE_S[0]
            elif coming.may_be():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S[1])
            else:
                # A session may stay open after this, and with it its heartbeat.
                self._let_go(session)
                break
        return notes

    def _let_go(self, session: Session) -> None:
        """Nothing is in hand: what is held all the same was handed out by an answer that was lost."""
        answered(partial(self._board.give_back, session))

    def left(self, job: Job) -> OpenWork:
        is_staged = not job.declared.is_direct
        return answered(lambda: self._board.open_work(job.batch, is_staged=is_staged, session=self._name))

    def _load(self, job: Job, handed: Handed, lost: set[Batch]) -> list[Note]:
        try:
            return self._deliver(job, handed)
        except DeliveryTakenAway:
            # Whoever has it now loads it.
            return []
        except StageLost:
            if handed.batch == job.batch:
                raise
            # Whoever is to publish it has to stage it anew, if he is still there; others leave it alone.
            lost.add(handed.batch)
            answered(partial(self._board.give_back, handed.claim.session))
        except _ENDS_THE_WORKER:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next deliveries shall not suffer from it.
            self._nack(job, handed, error)
        return []

    def _deliver(self, job: Job, handed: Handed) -> list[Note]:
        """Load what is in hand; file by file, if others had it in hand before, as one of them may end its worker."""
        if handed.tries < _SECOND_TRY:
            return self._take_on(job, handed, begins=None)
        left = self._without_culprit(handed)
        if left is None:
            return []
        with self._noting(left) as begins:
            return self._take_on(job, left, begins=begins)

    def _without_culprit(self, handed: Handed) -> Handed | None:
        """On the last try, what is left without the file that ended the worker of the try before."""
        name, clean = find_file_in_hand(handed.work), replace(handed, work=reading(handed.work, None))
        if name is None or handed.tries < self._board.rules.deliveries_max:
            return clean
        reason = f"the worker process died, or stopped responding, while it read {name!r}"
        rest, culprit = parted(handed.work, name)
        if rest is None:
            answered(partial(self._board.nack, clean, reason))
            return None
        # One more death tells the next culprit.
        tries = max(_SECOND_TRY, self._board.rules.deliveries_max - 1)
        answered(partial(self._board.part_with, clean, culprit, rest=rest, tries=tries, reason=reason))
        return replace(clean, work=rest, tries=tries)

    @contextmanager
    def _noting(self, handed: Handed) -> Iterator[Callable[[Chunk], None]]:
        """Say on the board which file is begun: a worker that dies there leaves its name behind."""

        def begins(chunk: Chunk) -> None:
            answered(partial(self._board.note, handed, reading(handed.work, chunk.name)))

        try:
            yield begins
        except BaseException:
            # This worker lives, or was asked to stop.
            with suppress(OnceloadError):
                self._board.note(handed, handed.work)
            raise

    def _take_on(self, job: Job, handed: Handed, *, begins: Callable[[Chunk], None] | None) -> list[Note]:
        delivery, stage = read_handed(job.declared, handed)
        is_last_try = handed.tries >= self._board.rules.deliveries_max
        job = replace(job, is_redelivered=handed.tries > 1, is_last_try=is_last_try)
        if stage is None:
            return deliver(job, delivery, begins)
        called = Stage.called(stage, job.written, job.declared.target, lineage=job.has_lineage)
        # What there is to say of it is staged with it, so that whoever publishes it hears of it.
        deliver(replace(job, stage=called), delivery, begins)
        answered(partial(self._board.stage, handed))
        return []

    def _nack(self, job: Job, handed: Handed, error: Exception) -> None:
        if isinstance(error, Unreadable) and job.declared.is_direct and job.declared.keeps_order:
            # Nobody else may take it meanwhile in any case.
            time.sleep(min(_SPARED_S[0] * 2 ** (handed.tries - 1), _SPARED_S[1]))
        with suppress(DeliveryTakenAway):
            answered(partial(self._board.nack, handed, _reason(error)))


def _reason(error: Exception) -> str:
    """What went wrong, without the values that the driver repeats."""
    if isinstance(error, OnceloadError):
        return str(error)
    said = first_line(error) if isinstance(error, DBAPIError) else str(error)
    return f"{type(error).__name__}: {said}"


@contextmanager
def renewed(renew: Callable[[], object], *, every_s: float) -> Iterator[None]:
    """Heartbeat: renew something while the block runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(every_s):
            # A missed beat is made good by the next; when the lease has ended, the commits are refused.
            with suppress(OnceloadError):
                renew()

    thread = threading.Thread(target=beat, name="onceload heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
