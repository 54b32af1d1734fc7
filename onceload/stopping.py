"""Stopping on Ctrl-C or SIGTERM."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C: the command ends at once, and releases what it holds."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        # A second SIGTERM must not interrupt the release.
        signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets; a second signal ends the process at once."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        if stopped.is_set():
            raise KeyboardInterrupt(number)
        stopped.set()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
