"""Jobs of the console without Airflow: calls of the API, each in a thread."""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from onceload.console.access import Job
from onceload.databases import open_database
from onceload.lag import Described
from onceload.pipeline import Pipeline
from onceload.recoveries import rewind_in_words
from onceload.settings import Settings
from onceload_core.errors import OnceloadError
from onceload_core.postgres import PostgresSnapshots
from onceload_jobs.files.notes import problems_of

_KEPT = 100


@dataclass
class Running:
    """A job, and what came of it."""

    kind: str
    pipeline: str
    at: datetime = field(default_factory=lambda: datetime.now(UTC))
    state: str = "running"
    lines: tuple[str, ...] = ()


class Jobs:
    """The jobs of this process, the newest first."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.all: deque[Running] = deque(maxlen=_KEPT)

    def start(self, job: Job, described: Described) -> None:
        running = Running(kind=job.kind, pipeline=job.pipeline)
        self.all.appendleft(running)
        pipeline = Pipeline.read(described.path, dsn=self._settings.dsn, home=self._settings.home)
        call = _CALLS[job.kind]
        # A daemon: if the console ends, the job ends like a killed load, and can be started again.
        threading.Thread(target=_run, args=(running, call, pipeline, job.params), daemon=True).start()


def _run(
    running: Running,
    call: Callable[[Pipeline, Mapping[str, Any]], list[str]],
    pipeline: Pipeline,
    params: Mapping[str, Any],
) -> None:
    try:
        running.lines = tuple(call(pipeline, params))
        running.state = "done"
    except OnceloadError as error:
        running.lines, running.state = (str(error),), "failed"
    except Exception as error:
        running.lines, running.state = (f"{type(error).__name__}: {error}",), "failed"
        raise


def _load(pipeline: Pipeline, params: Mapping[str, Any]) -> list[str]:
    report = pipeline.load(only=params.get("files", ()), replaces=params.get("mode") == "replace")
    counts = f"{report.loaded:,} loaded, {report.duplicates:,} duplicates, {report.quarantined:,} quarantined"
    return [f"{counts}; position {report.position:,}", *filter(None, [problems_of(report.notes)])]


def _rewind(pipeline: Pipeline, params: Mapping[str, Any]) -> list[str]:
    found = pipeline.recover_rewind(position=params["position"])
    return [*rewind_in_words(found).splitlines(), *_load(pipeline, {})]


def _verify(pipeline: Pipeline, params: Mapping[str, Any]) -> list[str]:
    found = pipeline.verify(deep=bool(params["deep"]))
    result = f"{found.differing:,} differences" if found.differing else "no difference"
    return [f"{result} in {found.files:,} files and {found.rows:,} rows", *map(str, found.differences)]


def _snapshot(pipeline: Pipeline, params: Mapping[str, Any]) -> list[str]:
    del params
    with open_database(pipeline.settings) as engine:
        return [f"took a snapshot at position {PostgresSnapshots(engine).take(pipeline.name):,}"]


_CALLS: Mapping[str, Callable[[Pipeline, Mapping[str, Any]], list[str]]] = {
    "backfill": _load,
    "recover": _rewind,
    "verify": _verify,
    "snapshot": _snapshot,
}
