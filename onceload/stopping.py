"""Stopping on Ctrl-C, on SIGTERM, and on SIGHUP, which a terminal sends when it is closed."""

import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType


def _signals() -> list[signal.Signals]:
    """Those that ask this process to stop; `nohup` ignores SIGHUP."""
    return [each for each in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(each) is not signal.SIG_IGN]


@contextmanager
def _handled(handler: Callable[[int, FrameType | None], None], signals: Iterable[signal.Signals]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in signals}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Treat SIGTERM and SIGHUP like Ctrl-C: the command ends at once, and releases what it holds."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        # A second one must not interrupt the release.
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt(number)

    signals = _signals()
    with _handled(interrupt, signals):
        yield


@contextmanager
def asked_to_stop() -> Iterator[threading.Event]:
    """An event that SIGTERM, SIGHUP or Ctrl-C sets; a second signal ends the process at once."""
    stopped = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        del frame
        if stopped.is_set():
            raise KeyboardInterrupt(number)
        stopped.set()

    with _handled(stop, [*_signals(), signal.SIGINT]):
        yield stopped
