"""How often the plugs are pulled: the one place for these numbers.

All of `make faults` takes hours on two cores.
"""

import os
import secrets
from dataclasses import dataclass, replace

from onceload_core.ports import CommitStep
from tests.fault.sweep import Fault
from tests.loads import crowd


@dataclass(frozen=True, kw_only=True)
class Size:
    #: Runs of each fault at each step of the commit.
    repeats: int
    zombies: int

    @property
    def sweep_runs(self) -> int:
        return self.repeats * len(Fault) * len(CommitStep)

    def divided_by(self, divisor: int) -> "Size":
        """A quick look, with at least one run of everything."""
        return Size(repeats=max(1, self.repeats // divisor), zombies=max(4, self.zombies // divisor))


@dataclass(frozen=True, kw_only=True)
class LoadsSize:
    #: Runs of each fault with each way to publish.
    repeats: int
    #: The same over a resident Spark.
    repeats_resident: int
    rows: int
    #: Of the load whose server crashes again and again; fewer are loaded before anything could happen to them.
    rows_large: int

    def divided_by(self, divisor: int) -> "LoadsSize":
        """A quick look, with at least one run of everything."""
        return LoadsSize(
            repeats=max(1, self.repeats // divisor),
            repeats_resident=max(1, self.repeats_resident // divisor),
            rows=self.rows,
            rows_large=max(300_000, self.rows_large // divisor),
        )


@dataclass(frozen=True, kw_only=True)
class CrowdsSize:
    """What a crowd of sessions has to load while it is struck."""

    #: The number of rounds of each run of all, each with a seed of its own.
    rounds: int
    large: crowd.Size
    #: Further runs of any way and mode, about two minutes each.
    runs: int
    small: crowd.Size

    def divided_by(self, divisor: int) -> "CrowdsSize":
        """A quick look, with at least one run of everything."""
        return CrowdsSize(
            rounds=max(1, self.rounds // divisor),
            large=_smaller(self.large, divisor),
            runs=max(1, self.runs // divisor),
            small=_smaller(self.small, divisor),
        )


def _smaller(size: crowd.Size, divisor: int) -> crowd.Size:
    return replace(size, messages=max(20_000, size.messages // divisor), strikes=max(10, size.strikes // divisor))


#: With every change: 189 runs of the sweep, 72 of them with a COMMIT that gets no answer.
IN_CI = Size(repeats=3, zombies=24)
#: With `make faults`: 882 runs of the sweep, 336 of them with a COMMIT that gets no answer.
IN_FULL = Size(repeats=14, zombies=100)
#: With `make faults`: 112 runs of real loads, two large ones, and 132 over a resident Spark.
LOADS_IN_FULL = LoadsSize(repeats=2, repeats_resident=1, rows=200_000, rows_large=500_000)
#: With `make faults`: random sequences of all that may happen.
SEQUENCES_IN_FULL = 10_000
#: With every change: one run, of a mode that its seed chooses.
CROWD_IN_CI = crowd.Size(messages=9_000, chunk_bytes=8 * 2**10, strikes=6, sessions=4, open_max=50)
#: With `make faults`: six runs of a million messages, and two more.
CROWDS_IN_FULL = CrowdsSize(
    rounds=1,
    large=crowd.Size(messages=1_000_000, chunk_bytes=16 * 2**10, strikes=200),
    runs=2,
    small=crowd.Size(messages=900_000, chunk_bytes=16 * 2**10, strikes=180, open_max=100),
)
#: With `make faults`; one with every change.
DRILLS_IN_FULL = 20
#: With every change, and with `make faults`: strikes at Airflow and at what it runs.
STRIKES_IN_CI = 30
STRIKES_IN_FULL = 40
LANES = 2


def chosen_seed() -> int:
    """A new one each time, unless ONCELOAD_FAULT_SEED names one to be had again."""
    return int(os.environ.get("ONCELOAD_FAULT_SEED", "0")) or secrets.randbelow(2**31) + 1
