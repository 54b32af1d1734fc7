"""A running session: it takes deliveries from the board until it can get no more.

The board decides who holds a delivery, and the ledger whether it took effect. Failures: if the database is away, the
worker waits. If a delivery fails, it goes back with the reason, to be retried or moved to the dead letters. If an error
would fail every delivery, the worker ends and releases what it holds. If the worker is killed or stopped, its lease
ends. If it was only slow and another worker took over, its later writes are refused.
"""

import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
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
from onceload_jobs.executor.executor import Died, Executor, Failed, Failure, Raised, map_all
from onceload_jobs.files.addresses import Unreadable, use_access
from onceload_jobs.files.notes import Note
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.plan.bundles import decode_handed, find_file_being_read, reading, split_off
from onceload_jobs.work.failures import FAILURES_MAX, TasksFailed, ends_all, reason_of
from onceload_jobs.work.load_delivery import load_delivery
from onceload_jobs.work.progress import never, repeated
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


def run_sessions(executor: Executor, job: Job, names: Sequence[SessionName]) -> list[Note]:
    """Let each session work, another process instead of one that dies; returns what could not be read."""
    # A delivery that kills its worker uses up its own tries as well.
    tries_max = FAILURES_MAX + job.declared.delivery.deliveries_max

    def next_try(name: SessionName, failures: Sequence[Failure]) -> Sequence[SessionName]:
        return [name] if isinstance(failures[-1], Died) and len(failures) < tries_max else ()

    notes: list[Note] = []
    errors: list[Exception] = []
    working = partial(work_session, job)
    for name, result in map_all(executor, working, names, next_try=next_try, ends_all=ends_all):
        if isinstance(result, Failed):
            # The other sessions may load the rest.
            errors.append(_error_of(job, name, result))
        else:
            notes += result
    if errors:
        raise errors[0]
    # Repeated reads repeat their notes.
    return list(dict.fromkeys(notes))


def _error_of(job: Job, name: SessionName, failed: Failed) -> Exception:
    match failed.failures[-1]:
        case Raised(error):
            return error
        case Died(reason):
            why = f"the process of session {name} died {len(failed.failures)} times ({reason})"
            return TasksFailed(job.declared.name, why)


def work_session(job: Job, name: SessionName) -> list[Note]:
    """Work as a function of an executor. A later life of the session takes over from an earlier one.

    Only fixed sessions wait for the end of an earlier life, because another load may have their name.
    """
    use_access(job.access)
    try:
        return work(job, name, waits=job.declared.delivery.mode is Mode.SESSION)
    except SessionFenced:
        # A newer epoch that took over does the rest.
        return []


def work(job: Job, name: SessionName, *, waits: bool = False, is_stopped: Callable[[], bool] = never) -> list[Note]:
    """Open a session, and let it work until it can get no more; optionally wait for a live one of the same name."""
    worker = Worker(job, name, is_stopped=is_stopped)
    try:
        while not worker.open(waits=waits):
            if is_stopped() or not worker.may_get_more():
                return []
            time.sleep(_PAUSE_S[1])
        return worker.run()
    finally:
        worker.close()


class Worker:
    """One session, and the board that it takes deliveries from."""

    def __init__(self, job: Job, name: SessionName, *, is_stopped: Callable[[], bool] = never) -> None:
        self._job, self._name, self._is_stopped = job, name, is_stopped
        self._board = PostgresDeliveries(engine_of(job), job.declared.name, job.declared.delivery)
        self._session: Session | None = None
        self._open = ExitStack()
        #: The open work at the last look, and until when the session waits for progress.
        self._left: OpenWork | None = None
        self._until = 0.0

    def open(self, *, waits: bool) -> bool:
        """Start an epoch of the session; with `waits`, only if no other epoch is alive."""
        version = self._job.session.version
        session = until_answered(partial(self._board.open_session, self._name, version=version, waits=waits))
        if session is None:
            return False
        self._session, self._job = session, replace(self._job, session=session)
        every_s = self._board.rules.ack_deadline_s / BEATS_PER_LEASE
        self._open.enter_context(repeated(partial(self._board.renew, session), every_s=every_s))
        return True

    def close(self) -> None:
        """Release what is held."""
        self._open.close()
        if self._session is not None:
            # If the database does not answer, the lease ends by itself.
            with suppress(OnceloadError):
                self._board.close_session(self._session)

    def may_get_more(self) -> bool:
        """Whether the session may still get work; the wait for work without progress is bounded."""
        declared = self._job.declared
        left = until_answered(partial(self._board.open_work, self._job.batch, session=self._name))
        if left != self._left:
            # A dead holder has lost its lease by then; the load as a whole waits for the rest, once.
            wait_s = min(self._job.wait_s, declared.delivery.ack_deadline_s)
            self._left, self._until = left, time.monotonic() + wait_s
        is_ours = left.of_session if declared.has_fixed_sessions else left.of_batch
        return is_ours and time.monotonic() < self._until

    def run(self) -> list[Note]:
        """Take deliveries until the batch of the job has no more, and nothing else is ready."""
        session = self._job.session
        notes: list[Note] = []
        pause_s, expired_at, self._left = _PAUSE_S[0], time.monotonic(), None
        while not self._is_stopped():
            if time.monotonic() - expired_at >= _EXPIRES_EVERY_S:
                expired_at = time.monotonic()
                # The heartbeat would keep it held forever.
                self._release_held(session)
                self._expire()
            handed = until_answered(partial(self._board.take, session))
            if handed:
                notes += self._load_or_give_back(handed)
                pause_s = _PAUSE_S[0]
            elif self.may_get_more():
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_S[1])
            else:
                # A session may stay open after this, and with it its heartbeat.
                self._release_held(session)
                break
        return notes

    def _release_held(self, session: Session) -> None:
        """The worker has no delivery: if one is still held, the answer that handed it out was lost."""
        until_answered(partial(self._board.give_back, session))

    def _expire(self) -> None:
        """Hand out again what sessions held whose lease has ended."""
        if expired := until_answered(self._board.expire):
            event("claim_expired", level=logging.WARNING, pipeline=self._job.declared.name, deliveries=expired)

    def _load_or_give_back(self, handed: Handed) -> list[Note]:
        """Load a delivery; if that fails, return it to the board, unless the error ends this worker."""
        try:
            return self._load_whole_or_by_file(handed)
        except DeliveryTakenAway:
            # Its new holder loads it.
            self._warn("delivery_taken_away", handed)
            return []
        except SessionFenced:
            self._warn("session_fenced", handed)
            raise
        except _ENDS_THE_WORKER:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the next deliveries must not suffer from it.
            self._nack(handed, error)
        return []

    def _warn(self, what: str, handed: Handed, **more: object) -> None:
        session, delivery = handed.claim.session, handed.claim.delivery_id
        common = {"pipeline": self._job.declared.name, "session": session.name, "epoch": session.epoch}
        event(what, level=logging.WARNING, **common, delivery=delivery, tries=handed.tries, **more)

    def _load_whole_or_by_file(self, handed: Handed) -> list[Note]:
        """Load a delivery; file by file if it was tried before, because one file may fail it or kill its worker."""
        if handed.tries < _SECOND_TRY:
            return self._commit(handed, on_chunk=None)
        left = self._without_file_that_killed(handed)
        while left is not None:
            begun: list[str] = []
            try:
                return self._commit(left, on_chunk=partial(self._begin_file, left, begun))
            except BaseException as error:
                # This worker is alive, or was asked to stop.
                with suppress(OnceloadError):
                    self._board.note(left, left.work)
                if not begun or not isinstance(error, Exception) or isinstance(error, OF_NO_FILE):
                    raise
                if not self._is_last_try(left):
                    raise
                self._warn("delivery_failed", left, reason=type(error).__name__)
                left = self._without_file(left, begun[-1], reason=reason_of(error))
        return []

    def _begin_file(self, handed: Handed, begun: list[str], chunk: Chunk) -> None:
        """Record on the board which file is started, so that its name remains if the worker dies."""
        until_answered(partial(self._board.note, handed, reading(handed.work, chunk.name)))
        begun.append(chunk.name)

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

    def _commit(self, handed: Handed, *, on_chunk: Callable[[Chunk], None] | None) -> list[Note]:
        """Commit a delivery piece by piece."""
        delivery = decode_handed(self._job.declared, handed)
        job = replace(self._job, is_redelivered=handed.tries > 1, is_last_try=self._is_last_try(handed))
        return load_delivery(job, delivery, on_chunk)

    def _nack(self, handed: Handed, error: Exception) -> None:
        declared = self._job.declared
        if isinstance(error, Unreadable) and declared.is_direct and declared.keeps_order:
            # No other worker may take it meanwhile.
            time.sleep(min(_UNREADABLE_RETRY_S[0] * 2 ** (handed.tries - 1), _UNREADABLE_RETRY_S[1]))
        self._warn("delivery_failed", handed, reason=type(error).__name__)
        with suppress(DeliveryTakenAway):
            until_answered(partial(self._board.nack, handed, reason_of(error)))
