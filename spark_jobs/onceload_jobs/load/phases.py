"""How long each phase of a load takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum


class Phase(StrEnum):
    #: Register the pipeline, list the files, and compare them with the ledger.
    PLAN = "plan"
    #: Start Spark. Counted only if nothing is read in the meantime.
    START = "start"
    #: Sessions read the files. With publish: direct, they also commit the rows; otherwise they stage them.
    #: For rows that a program gives: wait for the program.
    STAGE = "stage"
    #: Check the staged rows with the suite.
    AUDIT = "audit"
    #: Write the staged rows and the proof in one transaction. For rows that a program gives: write them.
    PUBLISH = "publish"
    #: Wait for other loads of the pipeline.
    WAIT = "wait"
    #: Read the result from the ledger, and take a snapshot if one is due.
    END = "end"


class Stopwatch:
    """The seconds of each phase so far. Exactly one phase runs at any time, so their sum is the time of the load."""

    def __init__(self, first: Phase = Phase.PLAN) -> None:
        self._phase, self._since = first, time.monotonic()
        self._seconds: dict[Phase, float] = {}

    def switch_to(self, phase: Phase) -> Phase:
        """End the phase that runs, and return it."""
        ended, now = self._phase, time.monotonic()
        self._seconds[ended] = self._seconds.get(ended, 0.0) + now - self._since
        self._phase, self._since = phase, now
        return ended

    @contextmanager
    def during(self, phase: Phase) -> Iterator[None]:
        """Time another phase, then resume the interrupted one."""
        interrupted = self.switch_to(phase)
        try:
            yield
        finally:
            self.switch_to(interrupted)

    def seconds(self) -> dict[Phase, float]:
        """The seconds of each phase so far, including the one that runs."""
        self.switch_to(self._phase)
        return dict(self._seconds)
