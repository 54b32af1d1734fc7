"""Metrics in the text format of Prometheus: printed once, or served until stopped."""

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, generate_latest, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from sqlalchemy import Engine

from onceload.lag import Behind, Lag, Unknown
from onceload.states import Found, State, all_found, state_of
from onceload.stopping import asked_to_stop
from onceload.terminal import words
from onceload_core.errors import ExitCode, OnceloadError, SettingRefused
from onceload_core.postgres.connection import Record
from onceload_core.postgres.metrics import MetricsReader, Sums

Arguments = argparse.Namespace
#: For each column of the database, the name of its metric and its help text.
_GAUGES = {
    "position": ("position", "Commits of the pipeline so far, of any kind."),
    "producers": ("producers", "Producers (files and devices) that the pipeline knows."),
    "producers_max": ("producers_max", "The limit of producers, limits.producers_max."),
    "last_commit_age_s": ("last_commit_age_seconds", "Seconds since the last commit."),
    "snapshot_age_s": ("snapshot_age_seconds", "Seconds since the last snapshot."),
    "quarantined": ("quarantined_records", "Quarantined records that are not yet retried or discarded."),
    "sessions_alive": ("sessions_alive", "Sessions whose lease has not expired."),
    "audit_passed": ("last_audit_passed", "1 if the last audit passed, else 0."),
    "paused": ("paused", "1 if the pipeline is paused, so that no load commits anything, else 0."),
    "redeliveries": ("redeliveries", "Retries of the current deliveries."),
    "oldest_claim_age_s": ("oldest_claim_age_seconds", "Age of the oldest claim or open delivery in seconds."),
}
_STATES = ("waiting", "held", "staged", "dead")
_OUTCOMES = ("loaded", "duplicate", "quarantined", "filtered")


class Metrics(Collector):
    """The collector behind one scrape."""

    def __init__(self, engine: Engine, behind: Behind | None) -> None:
        self._engine, self._reader = engine, MetricsReader(engine)
        self._behind = behind
        self._one_at_a_time = threading.Lock()

    def describe(self) -> list[Metric]:
        """Query nothing before the first scrape."""
        return families()

    def collect(self) -> Iterator[Metric]:
        """All metrics; if the database does not answer, only that fact."""
        with self._one_at_a_time:
            up = _up()
            found: list[Found] = []
            try:
                rows = self._reader.look()
                found = all_found(self._engine, self._behind, rows=[row for row, _ in rows])
            except OnceloadError as error:
                words(str(error))
                rows = []
                up.add_metric([], 0)
            else:
                up.add_metric([], 1)
            yield up
            yield from _of_now([row for row, _ in rows])
            yield from _of_commits([(row.name, sums) for row, sums in rows])
            yield _states(found)
            if self._behind is not None:
                yield from _lags(self._behind.seen, self._behind.failed)


def families() -> list[Metric]:
    """Every metric, without values."""
    return [_up(), *_of_now([]), *_of_commits([]), _states([]), *_lags({}, {})]


def _up() -> GaugeMetricFamily:
    return GaugeMetricFamily("onceload_up", "Whether the database answered.")


def _of_now(rows: Sequence[Record]) -> Iterator[Metric]:
    for column, (name, meaning) in _GAUGES.items():
        gauge = _gauge(name, meaning)
        for row in rows:
            if getattr(row, column) is not None:
                gauge.add_metric([row.name], float(getattr(row, column)))
        yield gauge
    deliveries = _gauge("deliveries", "Current deliveries, by state.", "state")
    for row in rows:
        for state in _STATES:
            deliveries.add_metric([row.name, state], getattr(row, state))
    yield deliveries


def _of_commits(all_sums: Sequence[tuple[str, Sums]]) -> Iterator[Metric]:
    commits = _counter("commits", "Commits, by kind.", "kind")
    records = _counter("records", "Records of all commits, by outcome.", "outcome")
    size = _counter("bytes", "Bytes read by all commits.")
    for pipeline, sums in all_sums:
        for kind, counted in sums.by_kind.items():
            commits.add_metric([pipeline, kind], counted["commits"])
        for outcome in _OUTCOMES:
            records.add_metric([pipeline, outcome], sums.of(outcome))
        size.add_metric([pipeline], sums.of("bytes"))
    yield from (commits, records, size)


def _states(every: Sequence[Found]) -> GaugeMetricFamily:
    states = _gauge("state", "1 for each state that applies (see `onceload status`), else 0.", "state")
    for found in every:
        verdict = state_of(found, now=datetime.now(UTC))
        for state in State:
            states.add_metric([found.name, state], state in verdict.states)
    return states


def _lags(seen: Mapping[str, tuple[float, Lag]], failed: Mapping[str, Unknown]) -> Iterator[Metric]:
    known = _gauge("lag_known", "1 if the files could be listed, else 0.")
    files = _gauge("lag_files", "Files with new records, or that are being loaded.")
    size = _gauge("lag_bytes", "Bytes that a load would read; for compressed files, the compressed size.")
    refused = _gauge("refused_files", "Files that cannot be read, or need a person.")
    wait = _gauge("waiting_seconds", "The longest time that a new file has been waiting; 0 without new files.")
    age = _gauge("lag_age_seconds", "Seconds since the files were last listed.")
    for name, (seen_at, lag) in seen.items():
        files.add_metric([name], lag.files)
        size.add_metric([name], lag.bytes)
        refused.add_metric([name], lag.refused)
        wait.add_metric([name], 0.0 if lag.waiting_since is None else time.time() - lag.waiting_since)
        age.add_metric([name], time.monotonic() - seen_at)
    for name in seen.keys() | failed.keys():
        known.add_metric([name], name not in failed)
    return iter((known, files, size, refused, wait, age))


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"onceload_{name}", meaning, labels=["pipeline", *labels])


def _counter(name: str, meaning: str, *labels: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"onceload_{name}", meaning, labels=["pipeline", *labels])


def metrics(arguments: Arguments, engine: Engine) -> ExitCode:
    """Print the metrics once, or serve them."""
    behind = Behind(engine, arguments.pipelines) if arguments.pipelines else None
    registry = CollectorRegistry()
    registry.register(Metrics(engine, behind))
    if arguments.port is None:
        if behind is not None:
            behind.look()
        sys.stdout.write(generate_latest(registry).decode())
        return ExitCode.DONE
    with asked_to_stop() as stopped:
        try:
            server, thread = start_http_server(arguments.port, addr=arguments.address, registry=registry)
        except OSError as error:
            found = f"{arguments.address}:{arguments.port} ({error.strerror})"
            raise SettingRefused("--port", found, "a free port, such as --port 9188") from error
        words(f"metrics are served at http://{arguments.address}:{server.server_port}/metrics; Ctrl-C stops")
        with behind.measuring(every_s=arguments.look_every) if behind else nullcontext():
            stopped.wait()
        server.shutdown()
        server.server_close()
        thread.join()
    return ExitCode.DONE
