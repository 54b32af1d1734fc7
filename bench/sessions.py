"""How fast deliveries are handed out, loaded and taken over: processes of `onceload consume` on one pipeline."""

import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, text

from bench.measured import check_equal
from onceload_core.delivery import Mode, Rules
from onceload_core.names import SessionName
from onceload_core.postgres import LedgerSettings
from onceload_core.postgres.deliveries import PostgresDeliveries
from onceload_jobs.load.consume import consume
from onceload_jobs.load.settings import LoadSettings, new_batch
from onceload_jobs.pipeline.declared import Declared

LEASE_S = 2.0
_ROOT = Path(__file__).resolve().parents[1]
_PATIENCE_S = 600
_HANDING_OUT = ("open_session", "take", "give_back", "expire", "open_work", "close_session", "offer", "renew")


def pipeline_file(path: Path, source: Path, *, columns: dict[str, str], chunk_bytes: int, mode: Mode) -> Path:
    listed = "".join(f"  {name}: {of_type}\n" for name, of_type in columns.items())
    path.write_text(
        f"pipeline: events\nsource: {{path: {source}, format: jsonl, chunk_bytes: {chunk_bytes}}}\ncolumns:\n{listed}"
        f"target: {{table: public.target}}\npublish: direct\n"
        f"delivery: {{mode: {mode}, ack_deadline: {LEASE_S:.0f}s, open_max: 100000}}\n",
        encoding="utf-8",
    )
    return path


def consume_at_once(dsn: str, engine: Engine, file: Path, *, sessions: int) -> tuple[float, int]:
    """Seconds from the first commit to the last, and how many there were; starting the processes is not in it."""
    processes = [_consumer(dsn, file, f"loader-{number}") for number in range(sessions)]
    for process in processes:
        check_equal("exit code of a consumer", found=process.wait(timeout=_PATIENCE_S), expected=0)
    with engine.begin() as connection:
        row = connection.execute(text(_SPENT)).one()
    return float(row.seconds), int(row.commits)


_SPENT = """
SELECT extract(epoch FROM max(committed_at) - min(committed_at)) AS seconds, count(*) AS commits FROM onceload.ledger"""


def _consumer(dsn: str, file: Path, name: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "onceload", "consume", str(file), "--session", name],
        cwd=_ROOT,
        env={**os.environ, "ONCELOAD_DSN": dsn},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def takeover_seconds(dsn: str, engine: Engine, file: Path) -> float:
    """Kill the session that commits in order, and wait for the first commit of another: seconds between the two."""
    processes = {name: _consumer(dsn, file, name) for name in ("one", "other")}
    try:
        last = _until(engine, lambda session, position: session is not None and position > 3)
        killed_at = time.monotonic()
        os.killpg(processes[last].pid, signal.SIGKILL)
        _until(engine, lambda session, _: session not in (None, last))
        return time.monotonic() - killed_at
    finally:
        for process in processes.values():
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _until(engine: Engine, is_so: Callable[[str | None, int], bool]) -> str:
    """Return the session of the last commit, once the condition holds."""
    until = time.monotonic() + _PATIENCE_S
    while time.monotonic() < until:
        with engine.begin() as connection:
            found = connection.execute(
                text("SELECT session, position FROM onceload.ledger ORDER BY position DESC LIMIT 1")
            ).one_or_none()
        if found and is_so(found.session, found.position):
            return str(found.session)
        time.sleep(0.005)
    raise SystemExit("no session took over. Nothing was measured")


def share_of_handing_out(dsn: str, declared: Declared) -> float:
    """Of the time that one session takes for a load, the part in which it has to do with the board."""
    declared = replace(declared, delivery=Rules())
    settings = LoadSettings(ledger=LedgerSettings(dsn=dsn))
    with _timed() as spent:
        started = time.perf_counter()
        for _ in consume(declared, settings, name=SessionName("loader"), batch=new_batch(), pause=lambda: False):
            pass
        seconds = time.perf_counter() - started
    return sum(spent.values()) / seconds


@contextmanager
def _timed() -> Iterator[dict[str, float]]:
    """How long each method of the board takes, all calls together."""
    spent: dict[str, float] = defaultdict(float)

    def timed(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401 - whatever the method takes and answers.
            started = time.perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                spent[name] += time.perf_counter() - started

        return call

    before = {name: getattr(PostgresDeliveries, name) for name in _HANDING_OUT}
    for name, method in before.items():
        setattr(PostgresDeliveries, name, timed(name, method))
    try:
        yield spent
    finally:
        for name, method in before.items():
            setattr(PostgresDeliveries, name, method)
