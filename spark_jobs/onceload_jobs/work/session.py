"""A running session: it takes deliveries from the board until it can get no more.

The board decides who holds a delivery, and the ledger whether it took effect. Failures: if the database is away, the
worker waits. If a delivery fails, it goes back with the reason, to be retried or moved to the dead letters. If an error
would fail every delivery, the worker ends and releases what it holds. If the worker is killed or stopped, its lease
ends. If it was only slow and another worker took over, its later writes are refused.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial

from onceload_core.declaration import DeclarationChanged
from onceload_core.delivery import Mode
from onceload_core.errors import (
    CommitOutcomeUnknown,
    DatabaseLost,
    DeliveryTakenAway,
    LimitReached,
    OnceloadError,
    PipelineBusy,
    SessionFenced,
    TooManyQuarantined,
    WrongUse,
)
from onceload_core.events import event
from onceload_core.guards import RowsDiffer
from onceload_core.names import SessionName
from onceload_core.pause import PipelinePaused
from onceload_core.ports import Session
from onceload_core.postgres.deliveries import Handed, OpenWork, PostgresDeliveries
from onceload_jobs.batch.job import Job, engine_of
from onceload_jobs.files.addresses import Unreadable, use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.read.board_work import decode_handed, find_file_being_read, reading, split_off
from onceload_jobs.work.failures import reason_of
from onceload_jobs.work.load_delivery import load_delivery
from onceload_jobs.write.patience import until_answered

#: Errors that would occur with any delivery.
_ENDS_THE_WORKER = (
    DeclarationChanged,
    SessionFenced,
    DatabaseLost,
    PipelineBusy,
    PipelinePaused,
    CommitOutcomeUnknown,
    TooManyQuarantined,
    LimitReached,
    RowsDiffer,
    WrongUse,
)
#: Errors that have another cause than the file that is read.
OF_NO_FILE = (*_ENDS_THE_WORKER, DeliveryTakenAway)
#: From this try on, a delivery is loaded file by file.
_SECOND_TRY = 2
BEATS_PER_LEASE = 4
#: How often a session hands out what dead sessions held.
_EXPIRES_EVERY_S = 1.0
#: How long a session without work waits before it polls the board again; doubled each time.
_PAUSE_S = (0.005, 0.25)
#: The delay before an unreadable file is retried, doubled with each try.
_UNREADABLE_RETRY_S = (0.5, 30.0)


def never() -> bool:
    return False


def work(job: Job, name: SessionName, *, waits: bool = False, is_stopped: Callable[[], bool] = never) -> list[Note]:
    """Open a session, and let it work until it can get no more; optionally wait for a live one of the same name."""
    worker = Worker(job, name, is_stopped=is_stopped)
    try:
        more_work = MoreWork(worker, job)
        while not worker.open(waits=waits):
            if is_stopped() or not more_work.may_come():
                return []
            time.sleep(_PAUSE_S[1])
        return worker.run(job)
    finally:
        worker.close()


def work_session(job: Job, name: SessionName) -> list[Note]:
    """The same as a function of an executor. A later life of the session takes over from an earlier one.

    Only fixed sessions wait for the end of an earlier life, because another load may have their name.
    """
    use_access(job.access)
    try:
        return work(job, name, waits=job.declared.delivery.mode is Mode.SESSION)
    except SessionFenced:
        # A newer epoch that took over does the rest.
        return []


class MoreWork:
    """Whether a session may still get work of a job; the wait for work without progress is bounded."""

    def __init__(self, worker: "Worker", job: Job) -> None:
        self._worker, self._job = worker, job
        self._seen: OpenWork | None = None
        self._until = 0.0

    def may_come(self) -> bool:
        declared, left = self._job.declared, self._worker.left(self._job)
        if left != self._seen:
            # A dead holder has lost its lease by then; the load as a whole waits for the rest, once.
            wait_s = min(self._job.wait_s, declared.delivery.ack_deadline_s)
            self._seen, self._until = left, time.monotonic() + wait_s
        is_ours = left.of_session if declared.has_fixed_sessions else left.of_batch
        return is_ours and time.monotonic() < self._until


class _FileFailed(Exception):
    """An error while one file of a delivery was read or committed."""

    def __init__(self, name: str, error: Exception) -> None:
        super().__init__(name)
        self.name, self.error = name, error


class Worker:
    """One session, and the board that it takes deliveries from."""

    def __init__(self, job: Job, name: SessionName, *, is_stopped: Callable[[], bool] = never) -> None:
        self._board = PostgresDeliveries(engine_of(job), job.declared.name, job.declared.delivery)
        self._name = name
        self._version = job.session.version
        self._is_stopped = is_stopped
        self._session: Session | None = None
        self._open = ExitStack()

    def open(self, *, waits: bool) -> bool:
        """Start an epoch of the session; with `waits`, only if no other epoch is alive."""
        self._session = until_answered(
            partial(self._board.open_session, self._name, version=self._version, waits=waits)
        )
        if self._session is None:
            return False
        every_s = self._board.rules.ack_deadline_s / BEATS_PER_LEASE
        self._open.enter_context(renewed(partial(self._board.renew, self._session), every_s=every_s))
        return True

    def close(self) -> None:
        """Release what is held."""
        self._open.close()
        if self._session is not None:
            # If the database does not answer, the lease ends by itself.
            with suppress(OnceloadError):
                self._board.close_session(self._session)

    def run(self, job: Job) -> list[Note]:
        """Take deliveries until the batch of the job has no more, and nothing else is ready."""
        session = self._session
        notes: list[Note] = []
        pause_s, expired_at = _PAUSE_S[0], time.monotonic()
        more_work = MoreWork(self, job)
        while session is not None and not self._is_stopped():
            if time.monotonic() - expired_at >= _EXPIRES_EVERY_S:
                expired_at = time.monotonic()
                # The heartbeat would keep it held forever.
                self._release_held(session)
                self._expire(job)
            handed = until_answered(partial(self._board.take, session))
            if handed:
                notes += self._load_or_give_back(replace(job, session=session), handed)
                pause_s = _PAUSE_S[0]
            elif more_work.may_come():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S[1])
            else:
                # A session may stay open after this, and with it its heartbeat.
                self._release_held(session)
                break
        return notes

    def _expire(self, job: Job) -> None:
        """Hand out again what sessions held whose lease has ended."""
        if expired := until_answered(self._board.expire):
            event("claim_expired", level=logging.WARNING, pipeline=job.declared.name, deliveries=expired)

    def _release_held(self, session: Session) -> None:
        """The worker has no delivery: if one is still held, the answer that handed it out was lost."""
        until_answered(partial(self._board.give_back, session))

    def left(self, job: Job) -> OpenWork:
        return until_answered(partial(self._board.open_work, job.batch, session=self._name))

    def _load_or_give_back(self, job: Job, handed: Handed) -> list[Note]:
        """Load a delivery; if that fails, return it to the board, unless the error ends this worker."""
        try:
            return self._load_whole_or_by_file(job, handed)
        except DeliveryTakenAway:
            # Its new holder loads it.
            self._warn("delivery_taken_away", job, handed)
            return []
        except SessionFenced:
            self._warn("session_fenced", job, handed)
            raise
        except _ENDS_THE_WORKER:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next deliveries must not suffer from it.
            self._nack(job, handed, error)
        return []

    def _warn(self, what: str, job: Job, handed: Handed, **more: object) -> None:
        session, delivery = handed.claim.session, handed.claim.delivery_id
        common = {"pipeline": job.declared.name, "session": session.name, "epoch": session.epoch}
        event(what, level=logging.WARNING, **common, delivery=delivery, tries=handed.tries, **more)

    def _load_whole_or_by_file(self, job: Job, handed: Handed) -> list[Note]:
        """Load a delivery; file by file if it was tried before, because one file may fail it or kill its worker."""
        if handed.tries < _SECOND_TRY:
            return self._commit(job, handed, on_chunk=None)
        left = self._without_file_that_killed(handed)
        while left is not None:
            try:
                with self._file_on_board(left) as on_chunk:
                    return self._commit(job, left, on_chunk=on_chunk)
            except _FileFailed as failed:
                if not self._is_last_try(left):
                    raise failed.error from None
                self._warn("delivery_failed", job, left, reason=type(failed.error).__name__)
                left = self._without_file(left, failed.name, reason=reason_of(failed.error))
        return []

    def _without_file_that_killed(self, handed: Handed) -> Handed | None:
        """On the last try, leave out the file that killed the previous worker."""
        name, clean = find_file_being_read(handed.work), replace(handed, work=reading(handed.work, None))
        if name is None or not self._is_last_try(handed):
            return clean
        return self._without_file(
            clean, name, reason=f"the worker process died or stopped responding while it read {name!r}"
        )

    def _without_file(self, handed: Handed, name: str, *, reason: str) -> Handed | None:
        """Make a dead letter of one file, and return what is left of its delivery."""
        rest, file_alone = split_off(handed.work, name)
        if rest is None:
            until_answered(partial(self._board.nack, handed, reason))
            return None
        # Another such file shows in the tries that are left.
        tries = max(_SECOND_TRY, self._board.rules.deliveries_max - 1)
        until_answered(partial(self._board.part_with, handed, file_alone, rest=rest, tries=tries, reason=reason))
        return replace(handed, work=rest, tries=tries)

    def _is_last_try(self, handed: Handed) -> bool:
        return handed.tries >= self._board.rules.deliveries_max

    @contextmanager
    def _file_on_board(self, handed: Handed) -> Iterator[Callable[[Chunk], None]]:
        """Record on the board which file is started, so that its name remains if the worker dies.

        If the file fails, its name goes with the error.
        """
        begun: str | None = None

        def on_chunk(chunk: Chunk) -> None:
            nonlocal begun
            until_answered(partial(self._board.note, handed, reading(handed.work, chunk.name)))
            begun = chunk.name

        try:
            yield on_chunk
        except BaseException as error:
            # This worker is alive, or was asked to stop.
            with suppress(OnceloadError):
                self._board.note(handed, handed.work)
            if begun is None or not isinstance(error, Exception) or isinstance(error, OF_NO_FILE):
                raise
            raise _FileFailed(begun, error) from error

    def _commit(self, job: Job, handed: Handed, *, on_chunk: Callable[[Chunk], None] | None) -> list[Note]:
        """Commit a delivery piece by piece."""
        delivery = decode_handed(job.declared, handed)
        job = replace(job, is_redelivered=handed.tries > 1, is_last_try=self._is_last_try(handed))
        return load_delivery(job, delivery, on_chunk)

    def _nack(self, job: Job, handed: Handed, error: Exception) -> None:
        if isinstance(error, Unreadable) and job.declared.is_direct and job.declared.keeps_order:
            # No other worker may take it meanwhile.
            time.sleep(min(_UNREADABLE_RETRY_S[0] * 2 ** (handed.tries - 1), _UNREADABLE_RETRY_S[1]))
        self._warn("delivery_failed", job, handed, reason=type(error).__name__)
        with suppress(DeliveryTakenAway):
            until_answered(partial(self._board.nack, handed, reason_of(error)))


@contextmanager
def renewed(renew: Callable[[], object], *, every_s: float) -> Iterator[None]:
    """Heartbeat: renew a lease while the block runs."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(every_s):
            # The next beat makes up for a missed one; after the lease has ended, commits are refused.
            with suppress(OnceloadError):
                renew()

    thread = threading.Thread(target=beat, name="onceload heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
