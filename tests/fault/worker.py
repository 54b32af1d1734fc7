"""A loader in a process of its own.

It reports every step of every commit to the test that started it, and stops for permission where its order says.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import TypeVar

from sqlalchemy import Connection as Database
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from onceload_core.errors import AskTheLedger, CallAgain, ClaimedElsewhere, OnceloadError, SessionFenced
from onceload_core.names import Batch, ProducerId, SessionName
from onceload_core.ports import Advance, Commit, CommitStep, QuarantinedRecord, Session
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_core.postgres.connection import translated
from onceload_core.replay import Counts
from onceload_core.spans import SpanSet
from onceload_core.verdicts import Judgement, judge
from tests.fault.work import Chunk, ids_in, is_damaged, message_ids_in, payload_of
from tests.waiting import PATIENCE_S

Answer = TypeVar("Answer")
_PAUSE_S = 0.03


@dataclass(frozen=True, kw_only=True)
class Halt:
    """Where to wait for permission to go on: at a step of the first try to commit a chunk."""

    chunk: int
    step: CommitStep


@dataclass(frozen=True, kw_only=True)
class Order:
    """All that a worker has to know."""

    settings: LedgerSettings
    pipeline: str
    session: SessionName
    batch: Batch
    target: str
    chunks: tuple[Chunk, ...]
    is_plain: bool
    halt: Halt | None = None
    #: Left out, the worker claims nothing, and relies on the compare-and-set alone.
    lease_s: float | None = None
    #: Whether the rows are written before the commit, in the transaction that it then ends.
    writes_early: bool = False


@dataclass(frozen=True, kw_only=True)
class Reached:
    chunk: int
    step: CommitStep


@dataclass(frozen=True, kw_only=True)
class Refused:
    error: OnceloadError


@dataclass(frozen=True, kw_only=True)
class Finished:
    """Everything that was offered has taken effect."""


class Worker:
    """Loads its chunks in order, and goes on after whatever happens, as the protocol says."""

    def __init__(self, order: Order, conversation: Connection) -> None:
        self._order = order
        self._conversation = conversation
        self._chunk = 0
        self._halt = order.halt
        self._connect()

    def work(self) -> None:
        session = self._until_answered(self._open_session)
        for number, chunk in enumerate(self._order.chunks):
            self._chunk = number
            self._until_answered(partial(self._load, session, chunk))
        self._conversation.send(Finished())

    def _connect(self) -> None:
        self._engine = connect(self._order.settings)
        self._ledger = PostgresLedger(self._engine, reached=self._reached)

    def _reached(self, step: CommitStep) -> None:
        self._conversation.send(Reached(chunk=self._chunk, step=step))
        if self._halt == Halt(chunk=self._chunk, step=step):
            self._halt = None
            self._conversation.recv()

    def _until_answered(self, call: Callable[[], Answer]) -> Answer:
        """Call again with a fresh connection: whatever went wrong before, the ledger is asked first."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                return call()
            except SessionFenced:
                raise
            except ClaimedElsewhere:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_PAUSE_S)
            except (CallAgain, AskTheLedger) as error:
                if time.monotonic() > deadline:
                    raise
                self._conversation.send(Refused(error=error))
                self._engine.dispose()
                self._connect()
                time.sleep(_PAUSE_S)

    def _open_session(self) -> Session:
        return self._ledger.open_session(self._order.pipeline, self._order.session)

    def _load(self, session: Session, chunk: Chunk) -> None:
        """Know, judge, claim, commit."""
        known = self._ledger.know(session, list(chunk))
        judgements = {
            producer_id: judge(spans, consumed=known[producer_id].state.consumed, claimed=known[producer_id].claimed)
            for producer_id, spans in chunk.items()
        }
        for producer_id, judgement in judgements.items():
            if judgement.unknown:
                name = known[producer_id].state.name
                raise ClaimedElsewhere(session.pipeline, name, str(judgement.unknown), "another session")
        new = {producer_id: judgement.new for producer_id, judgement in judgements.items() if judgement.new}
        if new:
            self._commit(session, new, judgements)

    def _commit(
        self, session: Session, new: Mapping[ProducerId, SpanSet], judgements: Mapping[ProducerId, Judgement]
    ) -> None:
        order = self._order
        claim = None
        if order.lease_s is not None:
            claim = self._ledger.claim(session, new, batch=order.batch, lease_s=order.lease_s)
        records = list(ids_in(new))
        damaged = [record_id for record_id in records if is_damaged(*record_id) and not order.is_plain]
        good = [record_id for record_id in records if record_id not in damaged]
        quarantined = tuple(_quarantined(*record_id) for record_id in damaged)
        duplicates = sum(judgement.duplicate.count for judgement in judgements.values())
        commit: Commit[Database] = Commit(
            session=session,
            batch=order.batch,
            advances=tuple(_advance(producer_id, spans, good) for producer_id, spans in new.items()),
            write_rows=lambda database: _write(database, order.target, good),
            claim=claim,
            counts=Counts(loaded=len(good), quarantined=len(quarantined), duplicate=duplicates),
            message_ids=() if order.is_plain else message_ids_in(good),
            quarantined=quarantined,
        )
        if not order.writes_early:
            self._ledger.commit(commit)
            return
        with self._begun(session.pipeline) as database:
            with translated(pipeline=session.pipeline, doing="writing rows early"):
                written = _write(database, order.target, good)
            self._ledger.commit(replace(commit, write_rows=lambda _: written), begun=database)

    @contextmanager
    def _begun(self, pipeline: str) -> Iterator[Database]:
        """A transaction that begins before the commit, and is rolled back unless that ends it."""
        with translated(pipeline=pipeline, doing="writing rows early"):
            database = self._engine.connect()
        try:
            yield database
        finally:
            # If the server is gone, so is the transaction.
            with suppress(DBAPIError):
                database.close()


def _advance(producer_id: ProducerId, spans: SpanSet, good: list[tuple[ProducerId, int]]) -> Advance:
    rows = sum(record_id[0] == producer_id for record_id in good)
    digest = hashlib.sha256(str(spans).encode()).digest()
    return Advance(
        producer_id=producer_id, spans=spans, rows=rows, digest=digest, fingerprint=digest[:8], size=spans.end
    )


def _quarantined(producer_id: ProducerId, sequence_id: int) -> QuarantinedRecord:
    raw = payload_of(producer_id, sequence_id).encode()
    return QuarantinedRecord(producer_id=producer_id, sequence_id=sequence_id, raw=raw, reason="damaged")


def _write(database: Database, target: str, records: list[tuple[ProducerId, int]]) -> int:
    binds = {
        "producer_ids": [producer_id for producer_id, _ in records],
        "sequence_ids": [sequence_id for _, sequence_id in records],
        "payloads": [payload_of(*record_id) for record_id in records],
    }
    arrays = "CAST(:producer_ids AS bigint[]), CAST(:sequence_ids AS bigint[]), CAST(:payloads AS text[])"
    return database.execute(text(f"INSERT INTO {target} SELECT * FROM unnest({arrays})"), binds).rowcount


def live(conversation: Connection) -> None:
    """A worker's whole life: take the order, carry it out, and say how it ended."""
    with closing(conversation):
        conversation.send(os.getpid())
        order = conversation.recv()
        try:
            Worker(order, conversation).work()
        except OnceloadError as error:
            conversation.send(Refused(error=error))
