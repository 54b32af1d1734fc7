"""Lines of progress in the log of a task."""

import time

from onceload_airflow.task_log import progress_lines
from onceload_jobs.work.progress import Progress, Waiting


def test_a_log_has_a_line_of_progress_from_time_to_time(monkeypatch):
    now = [100.0]
    lines: list[str] = []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    report = progress_lines(lines.append, "events")

    report(Waiting(waits_for="Spark to start"))
    now[0] += 10
    report(Waiting(waits_for="Spark to start"))
    now[0] += 9
    report(Progress(bytes=1, bytes_planned=2_000_000, records=1, seconds=1.0))
    now[0] += 1
    report(Progress(bytes=1_000_000, bytes_planned=2_000_000, records=9_000, seconds=3.0))

    assert lines == [
        "pipeline events: waiting for Spark to start",
        "pipeline events: 1.0 MB of 2.0 MB, 3,000 rows/s, 3 s left",
    ]
