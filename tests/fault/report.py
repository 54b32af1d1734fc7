"""Pull plugs for long, and write down what was lost or repeated: `make faults`.

`--seed` repeats a run with the same work and the same faults; `--divided-by 10` is a quick look that writes nothing.
"""

import argparse
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import text

from tests.fault.lane import Lane, open_lanes
from tests.fault.sizes import IN_FULL, LANES, Size, chosen_seed
from tests.fault.sweep import Fault, Outcome, in_lanes, run_trial, trials
from tests.fault.zombies import hauntings, run_haunting

_ROOT = Path(__file__).resolve().parents[2]
_PAGE = _ROOT / "docs" / "faults.md"
_PROPERTY_TESTS = ("tests/unit", "tests/contract")
_COLUMNS = ("fault", "runs", "lost", "repeated", "broken", "refused", "unknown", "seconds", "seed")


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table: all runs of one fault."""

    fault: str
    outcomes: Sequence[Outcome]
    seconds: float
    seed: int

    def cells(self) -> tuple[str, ...]:
        return (
            self.fault,
            _in_groups(len(self.outcomes)),
            _in_groups(sum(outcome.lost for outcome in self.outcomes)),
            _in_groups(sum(outcome.repeated for outcome in self.outcomes)),
            _in_groups(sum(bool(outcome.broken) for outcome in self.outcomes)),
            _in_groups(sum(outcome.refused for outcome in self.outcomes)),
            _in_groups(sum(outcome.unknown for outcome in self.outcomes)),
            f"{self.seconds:.0f}",
            str(self.seed),
        )


def main() -> int:
    arguments = _arguments()
    size = IN_FULL.divided_by(arguments.divided_by)
    seed = arguments.seed or chosen_seed()
    print(f"seed {seed}: {size.sweep_runs} runs of the sweep, {size.zombies} zombies", flush=True)
    with open_lanes(LANES) as lanes:
        lines = [*_swept(lanes, size, seed), *_haunted(lanes, size, seed)]
        polls = sum(lane.observer.polls for lane in lanes)
        with lanes[0].engine.begin() as connection:
            postgres = str(connection.execute(text("SHOW server_version")).scalar_one())
    is_good = polls > 0 and all(outcome.is_good for line in lines for outcome in line.outcomes)
    properties_hold, properties = _property_tests("faults" if arguments.divided_by == 1 else "ci")
    page = _page(lines, seed=seed, polls=polls, postgres=postgres, properties=properties)
    print(page)
    if arguments.divided_by == 1:
        _PAGE.write_text(page, encoding="utf-8")
    return 0 if is_good and properties_hold else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fault.report", description=__doc__)
    parser.add_argument("--seed", type=int, help="repeat the runs of this seed")
    parser.add_argument("--divided-by", type=int, default=1, metavar="K", help="make so many times fewer runs")
    return parser.parse_args()


def _swept(lanes: Sequence[Lane], size: Size, seed: int) -> Iterable[Line]:
    for fault in Fault:
        asked = trials([fault], repeats=size.repeats, seed=seed)
        yield _line(fault, seed, lambda asked=asked: in_lanes(lanes, asked, run_trial))  # type: ignore[misc]


def _haunted(lanes: Sequence[Lane], size: Size, seed: int) -> Iterable[Line]:
    asked = hauntings(size.zombies, seed=seed)
    for successor in dict.fromkeys(each.successor for each in asked):
        some = [each for each in asked if each.successor is successor]
        yield _line(successor, seed, lambda some=some: in_lanes(lanes, some, run_haunting))  # type: ignore[misc]


def _line(fault: str, seed: int, run: Callable[[], list[Outcome]]) -> Line:
    started = time.monotonic()
    line = Line(fault=fault, outcomes=run(), seconds=time.monotonic() - started, seed=seed)
    print(*line.cells(), sep=" | ", flush=True)
    for outcome in line.outcomes:
        if not outcome.is_good:
            print(f"  {outcome}", flush=True)
    return line


def _property_tests(profile: str) -> tuple[bool, str]:
    """The laws of the core, with the many examples of the profile called faults."""
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", *_PROPERTY_TESTS]
    environment = {**os.environ, "HYPOTHESIS_PROFILE": profile}
    done = subprocess.run(command, cwd=_ROOT, env=environment, check=False, capture_output=True, text=True)
    last = (done.stdout.strip().splitlines() or ["nothing was said"])[-1].strip("= ")
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")
    return done.returncode == 0, f"with the profile `{profile}`: {last}"


def _page(lines: Sequence[Line], *, seed: int, polls: int, postgres: str, properties: str) -> str:
    rows = [_COLUMNS, tuple("---" for _ in _COLUMNS), *(line.cells() for line in lines)]
    table = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"""# What pulled plugs have done

Written by `make faults` (`python -m tests.fault.report --seed {seed}` repeats it) on {datetime.now(UTC):%Y-%m-%d}.
The machine had {os.cpu_count()} cores, Python {platform.python_version()} and Postgres {postgres} with its fsync on.

Each run is a real worker process that loads made-up chunks of several producers into a table without any index.
It is struck at one step of one commit, and goes on, or another worker takes its place.
Every one of the ten steps of a commit is struck equally often.
*Lost* counts records that are nowhere in the end, *repeated* those that are in the target or in quarantine once more.
*Broken* counts runs in which any other law failed.
Such laws are: no gap in the ledger, no receipts that overlap, and a state that is snapshot plus replay.
A zombie must change nothing, and a reader must never see rows without proof, or proof without rows.
*Refused* and *unknown* count what the struck workers were told; an unknown outcome is resolved by asking the ledger.

{table}

A reader looked {_in_groups(polls)} times meanwhile, each time in one view of the database.
The property tests of {" and ".join(_PROPERTY_TESTS)} said {properties}.
"""


def _in_groups(number: int) -> str:
    return f"{number:,}".replace(",", " ")


if __name__ == "__main__":
    sys.exit(main())
