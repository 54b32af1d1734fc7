"""A share of the tests that fits a time: from a place that differs from turn to turn, until the time is over.

The files are in a circle, which is the same in each turn. A turn is a time, and begins where the golden ratio puts its
number: successive turns are far apart, and each further one falls into one of the largest gaps. So a share of a fifth
runs every test within about eight turns, and within about as many days with a turn each.
"""

import time
from collections import Counter
from hashlib import blake2b

import pytest

_OVER = "its turn did not come in time"
#: How long a turn lasts.
TURN_S = 4 * 3600
_GOLDEN_RATIO = 0.6180339887498949


def sort_for_turn(items: list[pytest.Item], turn_s: int) -> None:
    """Begin where the turn of a time begins. Tests of one file stay together, in their own order."""
    circle = sorted({item.location[0] for item in items}, key=lambda file: blake2b(file.encode()).digest())
    first = int(turn_s // TURN_S * _GOLDEN_RATIO % 1 * len(circle))
    places = {file: (place - first) % len(circle) for place, file in enumerate(circle)}
    items.sort(key=lambda item: places[item.location[0]])


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
