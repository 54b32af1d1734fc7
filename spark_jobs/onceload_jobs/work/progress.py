"""The progress of a load: what is read, or with publish: direct, committed."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy.exc import SQLAlchemyError

from onceload_core.errors import OnceloadError
from onceload_core.names import Batch, Position
from onceload_core.postgres import LedgerSettings, PostgresLedger, connect
from onceload_jobs.batch.piece import Piece
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.read.board_work import Bundle

_EVERY_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The completed part of a load."""

    bytes: int
    #: None if only reading shows it: for compressed files.
    bytes_planned: int | None
    records: int
    seconds: float

    @property
    def records_per_s(self) -> int:
        return round(self.records / self.seconds) if self.seconds else 0

    @property
    def seconds_left(self) -> float | None:
        """At the speed so far."""
        if not self.bytes or self.bytes_planned is None:
            return None
        return max(0, self.bytes_planned - self.bytes) * self.seconds / self.bytes


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """What a load waits for."""

    waits_for: str


OnProgress: TypeAlias = Callable[[Progress | Waiting], None]


class Watch:
    """Reports progress each second, in a thread of its own, while the load works."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        #: How many bytes will be read.
        self.bytes_planned: int | None = 0
        self._bytes = self._records = 0

    def piece_came(self, piece: Piece) -> None:
        self._bytes += piece.bytes
        self._records += piece.records + len(piece.quarantined)

    @contextmanager
    def watching(self, look: "Callable[[], tuple[int, int]] | None" = None) -> Iterator[None]:
        """Report while the block runs; `look` asks for the bytes and the records so far."""
        if self._on_progress is None:
            yield
            return
        ended = threading.Event()
        arguments = (self._on_progress, look or self._read, ended)
        watching = threading.Thread(target=self._watch, args=arguments, name="onceload progress", daemon=True)
        watching.start()
        try:
            yield
        finally:
            ended.set()
            # Do not wait for a missing answer.
            watching.join(_EVERY_S)

    def _read(self) -> tuple[int, int]:
        return self._bytes, self._records

    def _watch(self, report: OnProgress, look: Callable[[], tuple[int, int]], ended: threading.Event) -> None:
        started = time.monotonic()
        while not ended.wait(_EVERY_S):
            with suppress(OSError):
                report(self._look(look, seconds=time.monotonic() - started))

    def _look(self, look: Callable[[], tuple[int, int]], *, seconds: float) -> Progress | Waiting:
        try:
            done, records = look()
        except (OnceloadError, SQLAlchemyError):
            return Waiting(waits_for="the database, which does not answer")
        return Progress(bytes=done, bytes_planned=self.bytes_planned, records=records, seconds=seconds)


@contextmanager
def committed(
    settings: LedgerSettings, pipeline: str, batch: Batch, *, after: Position
) -> Iterator[Callable[[], tuple[int, int]]]:
    """Asks the ledger, with a connection of its own, for the bytes and records that a batch has committed."""
    engine = connect(settings)
    ledger = PostgresLedger(engine)

    def look() -> tuple[int, int]:
        outcome = ledger.outcome_of(pipeline, batch, after=after)
        counts = outcome.counts
        return outcome.bytes, counts.loaded + counts.duplicate + counts.quarantined

    try:
        yield look
    finally:
        engine.dispose()


def planned_bytes(bundles: Iterable[Bundle]) -> int | None:
    """How many bytes will be read."""
    chunks = [chunk for chunks in bundles for chunk in chunks]
    if any(is_compressed(chunk.url) for chunk in chunks):
        return None
    return sum(chunk.bytes for chunk in chunks)
