"""What goes on beside the work of a load, in threads of their own: it reports its progress, and renews its leases.

Its progress is what is read, or with publish: direct, committed.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TypeAlias

from sqlalchemy.exc import SQLAlchemyError

from onceload_core.errors import OnceloadError
from onceload_jobs.batch.piece import Piece
from onceload_jobs.files.compression import is_compressed
from onceload_jobs.plan.bundles import Bundle

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
        on_progress, started = self._on_progress, time.monotonic()

        def report() -> None:
            with suppress(OSError):
                on_progress(self._look(look or self._read, seconds=time.monotonic() - started))

        # Do not wait for a missing answer.
        with repeated(report, every_s=_EVERY_S, joined_s=_EVERY_S):
            yield

    def _read(self) -> tuple[int, int]:
        return self._bytes, self._records

    def _look(self, look: Callable[[], tuple[int, int]], *, seconds: float) -> Progress | Waiting:
        try:
            done, records = look()
        except (OnceloadError, SQLAlchemyError):
            return Waiting(waits_for="the database, which does not answer")
        return Progress(bytes=done, bytes_planned=self.bytes_planned, records=records, seconds=seconds)


def planned_bytes(bundles: Iterable[Bundle]) -> int | None:
    """How many bytes will be read."""
    chunks = [chunk for chunks in bundles for chunk in chunks]
    if any(is_compressed(chunk.url) for chunk in chunks):
        return None
    return sum(chunk.bytes for chunk in chunks)


@contextmanager
def repeated(call: Callable[[], object], *, every_s: float, joined_s: float | None = None) -> Iterator[None]:
    """Call something again and again while the block runs, such as the renewal of a lease."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            # The next call makes up for a missed one; after a lease has ended, commits are refused.
            with suppress(OnceloadError, SQLAlchemyError):
                call()

    thread = threading.Thread(target=repeat, name="onceload heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(joined_s)


def never() -> bool:
    return False
