"""The demo: days are loaded, a worker is killed, a file breaks, rows are deleted, all on one machine.

    make demo       or: onceload demo

Everything is real: Postgres, Airflow, Spark, the kill. Each claim is checked before it is printed; one that does not
hold ends the demo with an error.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import date, timedelta
from pathlib import Path

import psutil
import psycopg2

from onceload.airflow_api import AirflowApi
from onceload.services import alone, free_port
from onceload.stack import Running, running
from onceload.terminal import words
from onceload_core.errors import NeedsAPerson
from onceload_core.postgres.connection import statements

SQL = statements("demo.sql", package=__package__)
_DAYS = 3
_READINGS_A_DAY = 20_000
_LARGE = 400_000
_PATIENCE_S = 300.0
_PIPELINE = """\
pipeline: readings
source:
  path: {landing}/{{{{ ds }}}}/*.jsonl
  format: jsonl
  sealed: always
columns:
  device: text not null
  at: timestamptz not null
  celsius: numeric(6,2) not null
target: {{table: public.readings}}
quality: {{quarantined_max: 1%, suite: suite.yaml}}
"""
_SUITE = """\
expectations:
  - type: expect_column_values_to_be_between
    kwargs: {column: celsius, min_value: -40, max_value: 100}
"""
_INGEST = "ingest__readings"


@dataclass(eq=False)
class StoryDiffers(NeedsAPerson):
    """A claim of the demo did not hold."""

    step: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"the demo failed: {self.step}: expected {self.expected}, found {self.found}. Report this, with the logs"


def demo(home: Path) -> None:
    """Run the demo from the beginning, in a folder of its own below the home."""
    folder = (home / "demo" / "story").absolute()
    with alone(folder.parent, "onceload demo"), ExitStack() as stack:
        _reset_folder(folder)
        words("starting Postgres, Airflow and Spark; this takes about a minute")
        all_of_it = stack.enter_context(
            running(folder, port=free_port(), pipelines=folder / "pipelines", samples=False)
        )
        api = AirflowApi(all_of_it.address, all_of_it.user, all_of_it.password)
        api.until_it_knows(_INGEST, "backfill", "recover", "verify")
        words(f"Airflow: {all_of_it.address} until the demo ends (password in {all_of_it.password_file})")
        _Story(folder, all_of_it, api).run()


@dataclass
class _Story:
    folder: Path
    running: Running
    api: AirflowApi
    first_day: date = date(2026, 3, 1)
    #: The number of valid records of each file.
    written: dict[str, int] = field(default_factory=dict)
    _started: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        self._days_are_loaded()
        self._again_is_harmless()
        self._a_worker_dies()
        self._a_file_breaks()
        self._rows_are_damaged()
        self._log(f"done: {sum(self.written.values()):,} records written, each is one row; none lost, none duplicated")

    def _days_are_loaded(self) -> None:
        for number in range(_DAYS):
            self._write(self._day(number), _READINGS_A_DAY)
        self._backfill("three-days", mode="missing")
        self._check("backfill of three days")
        self._log(f"backfill of {_DAYS} days: {self._rows():,} rows, one commit per day")

    def _again_is_harmless(self) -> None:
        before = self._ask("position")
        started = time.monotonic()
        self._backfill("three-days-again", mode="missing")
        self._expect("the same backfill again", before, self._ask("position"))
        self._log(f"the same backfill again: nothing new, {time.monotonic() - started:.0f} s; no row changed")

    def _a_worker_dies(self) -> None:
        day = self._day(_DAYS)
        self._write(day, _LARGE)
        self.api.start(_INGEST, "killed", date=str(day))
        with self._held_back("killed"):
            self._kill_load("killed")
        self.api.until(
            f"/api/v2/dags/{_INGEST}/dagRuns/killed/taskInstances/load",
            lambda found: found["state"] in ("up_for_retry", "failed"),
        )
        self._expect("rows of a load that was killed", 0, self._ask("rows_since", day))
        self._log(f"a load of {_LARGE:,} rows: its task is killed (SIGKILL) during the load; no row is loaded")
        self.api.clear(_INGEST, "killed", "load")
        self._expect("its retry", {"success"}, set(self.api.ended(_INGEST, "killed").values()))
        self._check("the retry of the killed load")
        self._log(f"its retry: {_LARGE:,} rows, in one commit")

    def _a_file_breaks(self) -> None:
        day = self._day(_DAYS + 1)
        path = self._write(day, 1_000)
        with path.open("a", encoding="utf-8") as file:
            file.write("a line that a device lost power in\n")
        self._expect("a broken line", {"success"}, set(self.api.run(_INGEST, "broken-line", date=str(day)).values()))
        self._check("a broken line")
        self._expect("records in quarantine", 1, self._ask("quarantined"))
        self._log("a broken line: 1 record in quarantine, with its bytes and its reason; 1,000 others are loaded")
        sound = path.read_bytes()
        path.write_bytes(sound[: len(sound) // 2])
        self._expect("a truncated file", "failed", self.api.run(_INGEST, "cut", date=str(day))["plan"])
        path.write_bytes(sound)
        self._check("a truncated file")
        self._log("a truncated file: the run fails and names it; no row changes. The file is restored")

    def _rows_are_damaged(self) -> None:
        whole = self.api.run("verify", "before", pipeline="readings")
        self._expect("a verification", {"success"}, set(whole.values()))
        positions = self._ask("position")
        gone = self._do("damage", self._day(_DAYS))
        found = self.api.run("verify", "damaged", pipeline="readings")
        self._expect("a verification of damaged rows", {"failed"}, set(found.values()))
        self._log(f"{gone:,} rows are deleted by hand: `verify` fails, and lists the differences")
        params = {"pipeline": "readings", "what": "rewind", "position": _DAYS, "accept_differences": True}
        self.api.start("recover", "rewind", **params)
        asked = self.api.asked("recover", "rewind", "approve")
        self._log("`recover` asks for approval before it deletes: " + asked.strip("`\n").splitlines()[0])
        self.api.answer("recover", "rewind", "approve", "Approve")
        self._expect("a recovery", {"success"}, set(self.api.ended("recover", "rewind").values()) - {"skipped"})
        self._check("a recovery")
        self._log(f"approved: back to position {_DAYS} of {positions}, reloaded and verified; each row exists once")

    # Helpers.

    def _day(self, number: int) -> date:
        return self.first_day + timedelta(days=number)

    def _write(self, day: date, count: int) -> Path:
        path = self.folder / "landing" / str(day) / "device-1.jsonl"
        path.parent.mkdir(parents=True)
        with path.open("w", encoding="utf-8") as file:
            for number in range(count):
                at = f"{day}T{number // 3600 % 24:02}:{number // 60 % 60:02}:{number % 60:02}Z"
                file.write(
                    json.dumps({"device": f"d-{number}", "at": at, "celsius": round(15 + number % 1_000 / 100, 2)})
                    + "\n"
                )
        self.written[str(day)] = count
        return path

    def _backfill(self, run_id: str, *, mode: str) -> None:
        days = {"first_day": str(self._day(0)), "last_day": str(self._day(_DAYS - 1))}
        found = self.api.run("backfill", run_id, pipeline="readings", mode=mode, **days)
        self._expect("a backfill", {"success"}, set(found.values()))

    @contextmanager
    def _held_back(self, batch: str) -> Iterator[None]:
        """Wait until a load works on its files, and keep it from ending them in the block."""
        with closing(psycopg2.connect(self.running.dsn)) as connection, connection.cursor() as cursor:

            def is_held() -> bool:
                connection.rollback()
                cursor.execute(SQL["hold_deliveries"].text)
                cursor.execute(SQL["held_deliveries"].text, (batch,))
                row = cursor.fetchone()
                return bool(row and row[0])

            self._until("a running load", is_held)
            yield

    def _kill_load(self, run_id: str) -> None:
        """Kill the process of the task that loads, and all its child processes."""
        task = self.api.ask(f"/api/v2/dags/{_INGEST}/dagRuns/{run_id}/taskInstances/load")
        loading = psutil.Process(task["pid"])
        for victim in [loading, *loading.children(recursive=True)]:
            # Some end by themselves as soon as the first is killed.
            with suppress(psutil.NoSuchProcess):
                victim.kill()

    def _check(self, step: str) -> None:
        """Check that every written record is one row."""
        self._expect(f"rows after {step}", self.written, self._ask("rows_of_days"))

    def _expect(self, step: str, expected: object, found: object) -> None:
        if expected != found:
            raise StoryDiffers(step, str(expected), str(found))

    def _rows(self) -> int:
        return int(str(self._ask("rows")))

    def _ask(self, statement: str, *values: object) -> object:
        with closing(psycopg2.connect(self.running.dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(SQL[statement].text, values)
            row = cursor.fetchone()
            return row[0] if row else None

    def _do(self, statement: str, *values: object) -> int:
        with closing(psycopg2.connect(self.running.dsn)) as connection, connection, connection.cursor() as cursor:
            cursor.execute(SQL[statement].text, values)
            return cursor.rowcount

    def _until(self, what: str, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not is_so():
            if time.monotonic() >= deadline:
                raise StoryDiffers(what, f"it within {_PATIENCE_S:g} s", "nothing")
            time.sleep(0.05)

    def _log(self, sentence: str) -> None:
        words(f"{time.monotonic() - self._started:4.0f} s  {sentence}")


def _reset_folder(folder: Path) -> None:
    """Delete what an earlier demo left; what this one leaves stays for inspection."""
    shutil.rmtree(folder, ignore_errors=True)
    pipelines = folder / "pipelines"
    pipelines.mkdir(parents=True)
    (pipelines / "readings.yaml").write_text(_PIPELINE.format(landing=folder / "landing"), encoding="utf-8")
    (pipelines / "suite.yaml").write_text(_SUITE, encoding="utf-8")
