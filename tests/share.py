"""A share of the tests that fits a time: in an order that differs from turn to turn, until the time is over."""

import time
from collections import Counter
from hashlib import blake2b

import pytest

_OVER = "its turn did not come in time"


def of_turn(turn: str, item: pytest.Item) -> bytes:
    """Where the file of a test comes in a turn. Tests of one file stay together, in the order that they have."""
    return blake2b(f"{turn} {item.location[0]}".encode()).digest()


class Share:
    """Begins no test once the time is over, and lists the tests that did not run."""

    def __init__(self, *, minutes_max: float) -> None:
        self._minutes_max = minutes_max
        self._ends = time.monotonic() + 60 * minutes_max
        self._left_out: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if time.monotonic() > self._ends:
            # The test itself is named by the summary.
            pytest.skip(_OVER)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.skipped and isinstance(report.longrepr, tuple) and _OVER in report.longrepr[-1]:
            self._left_out[report.nodeid.split("[")[0]] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        count = self._left_out.total()
        terminalreporter.section(f"{count} tests did not run within {self._minutes_max:g} minutes")
        for test, times in sorted(self._left_out.items()):
            terminalreporter.line(f"{test}{f' ({times} cases)' if times > 1 else ''}")
