"""Jobs of the console without Airflow: calls of the API, each in a thread."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeAlias

from onceload.console.access import Job
from onceload.databases import open_database
from onceload.lag import Described
from onceload.pipeline import Pipeline
from onceload.recoveries import rewind_in_words
from onceload.settings import Settings
from onceload_core.errors import OnceloadError, SettingRefused
from onceload_core.events import event
from onceload_core.postgres import PostgresSnapshots
from onceload_jobs.files.notes import problems_of

_KEPT = 100
_RUNNING = "running"
#: Returns the state of the job at its end, and lines about it.
Call: TypeAlias = Callable[[Pipeline, Mapping[str, Any]], tuple[str, list[str]]]


@dataclass
class Running:
    """A job, and what came of it."""

    kind: str
    pipeline: str
    by: str
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    state: str = _RUNNING
    lines: tuple[str, ...] = ()

    def is_like(self, other: "Running") -> bool:
        return (self.kind, self.pipeline) == (other.kind, other.pipeline)


class Jobs:
    """The jobs of this process, the newest first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self.all: deque[Running] = deque(maxlen=_KEPT)

    def start(self, job: Job, described: Described, *, by: str) -> None:
        # With all days of a path that contains a day.
        pipeline = Pipeline(described.declared, self._settings)
        title, call = _CALLS[job.kind]
        running = Running(kind=title, pipeline=job.pipeline, by=by)
        with self._lock:
            if any(each.is_like(running) and each.state == _RUNNING for each in self.all):
                found = f"a job of this kind that is running for pipeline {job.pipeline}"
                raise SettingRefused(title, found, "one at a time (wait until it has ended)")
            # A daemon: if the console ends, the job ends like a killed load, and can be started again.
            threading.Thread(target=_run, args=(running, call, pipeline, job.params), daemon=True).start()
            self.all.appendleft(running)
        event("console_job_started", pipeline=job.pipeline, kind=job.kind, by=by)


def _run(
    running: Running,
    call: Call,
    pipeline: Pipeline,
    params: Mapping[str, Any],
) -> None:
    try:
        state, lines = call(pipeline, params)
        # The page must not show the end without its lines.
        running.lines = tuple(lines)
        running.state = state
    except OnceloadError as error:
        running.lines, running.state = (str(error),), "failed"
    except Exception as error:
        running.lines, running.state = (f"{type(error).__name__}: {error}",), "failed"
        raise


def _load(pipeline: Pipeline, params: Mapping[str, Any]) -> tuple[str, list[str]]:
    report = pipeline.load(only=params.get("files", ()), replaces=params.get("mode") == "replace")
    counts = f"{report.loaded:,} loaded, {report.duplicates:,} duplicates, {report.quarantined:,} quarantined"
    lines = [f"{counts}; position {report.position:,}"]
    if problems := problems_of(report.notes):
        return "done, and some files need a person", [*lines, problems]
    return "done", lines


def _rewind(pipeline: Pipeline, params: Mapping[str, Any]) -> tuple[str, list[str]]:
    found = pipeline.recover_rewind(position=params["position"], expected_position=params["expected_position"])
    lines = rewind_in_words(found).splitlines()
    try:
        state, loaded = _load(pipeline, {})
    except OnceloadError as error:
        return "rewound, and not loaded again", [*lines, f"The rows are not loaded again yet: {error}"]
    return state, [*lines, *loaded]


def _verify(pipeline: Pipeline, params: Mapping[str, Any]) -> tuple[str, list[str]]:
    found = pipeline.verify(deep=bool(params["deep"]))
    looked_at = f"{found.files:,} files and {found.rows:,} rows"
    if found.differing:
        lines = [f"{found.differing:,} differences in {looked_at}", *map(str, found.differences)]
        return "done, with differences", lines
    return "done", [f"no difference in {looked_at}"]


def _snapshot(pipeline: Pipeline, params: Mapping[str, Any]) -> tuple[str, list[str]]:
    del params
    with open_database(pipeline.settings) as engine:
        return "done", [f"took a snapshot at position {PostgresSnapshots(engine).take(pipeline.name):,}"]


_CALLS: Mapping[str, tuple[str, Call]] = {
    "backfill": ("Load", _load),
    "recover": ("Rewind", _rewind),
    "verify": ("Verify", _verify),
    "snapshot": ("Snapshot", _snapshot),
}
