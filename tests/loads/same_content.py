"""Files that are known by their content, and what a load of them did."""

from typing import Any

from onceload_jobs.load.report import Report
from onceload_jobs.verify.verify import verify
from tests.loads.conftest import Loads, line


def lines(first: int, end: int) -> str:
    return "".join(map(line, range(first, end)))


def counts(report: Report) -> tuple[int, int]:
    return report.loaded, report.duplicates


def is_verified(logs: Loads) -> bool:
    verification = verify(logs.declared, logs.engine, deep=True)
    return verification.differences == ()


def settled(logs: Loads, **changes: Any) -> Report:
    """Load until nothing is new any more."""
    reports = [logs.load(**changes) for _ in range(4)]
    assert counts(reports[-1]) == (0, 0)
    return reports[-1]
