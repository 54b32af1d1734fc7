"""Numbers of several repetitions, and the check without which none is printed."""

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import psutil

#: The module of the process that Spark's Python workers are forked from.
DAEMON = "onceload_jobs.work.spark.daemon"


@dataclass(frozen=True)
class Measured:
    """The same thing, measured several times."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.values)

    def __str__(self) -> str:
        digits = 0 if self.median >= 100 else 2
        return f"{self.median:.{digits}f} ({min(self.values):.{digits}f} to {max(self.values):.{digits}f})"


@dataclass
class Taken:
    """What the repetitions of one way took."""

    rows: int
    seconds: list[float] = field(default_factory=list)
    workers_bytes: list[int] = field(default_factory=list)

    @property
    def rates(self) -> Measured:
        return Measured(tuple(self.rows / seconds for seconds in self.seconds))

    def per(self, other: "Taken") -> Measured:
        """How many times as fast as the other, repetition by repetition."""
        return Measured(
            tuple(mine / theirs for mine, theirs in zip(self.rates.values, other.rates.values, strict=True))
        )


@dataclass(frozen=True, kw_only=True)
class Figure:
    """The goals of one measurement, and the measured value."""

    name: str
    aim: float
    measured: Measured
    #: Left out, there is only an aim.
    must: float | None = None
    unit: str = ""
    is_less_better: bool = False

    def row(self) -> list[str]:
        found = self.measured.median
        sign = "at most" if self.is_less_better else "at least"
        limits = ["-" if limit is None else f"{sign} {limit:g}{self.unit}" for limit in (self.must, self.aim)]
        return [self.name, *limits, f"{self.measured}{self.unit}", self._reached(found)]

    def _reached(self, found: float) -> str:
        if self.must is None:
            return "the aim" if self._reaches(found, self.aim) else "no"
        if not self._reaches(found, self.must):
            return "no"
        return "yes, the aim too" if self._reaches(found, self.aim) else "yes"

    def _reaches(self, found: float, limit: float) -> bool:
        return found <= limit if self.is_less_better else found >= limit


def check_equal(what: str, *, found: object, expected: object) -> None:
    """A number about wrong rows is worse than none."""
    if found != expected:
        raise SystemExit(f"{what}: expected {expected}, found {found}; nothing was measured")


@dataclass
class Stopwatch:
    """How long each named part took, once per repetition."""

    seconds: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        started = perf_counter()
        yield
        self.seconds.setdefault(name, []).append(perf_counter() - started)

    def measured(self) -> dict[str, Measured]:
        return {name: Measured(tuple(seconds)) for name, seconds in self.seconds.items()}


class PeakMemory:
    """The largest resident size of some processes (left out: this one) and all below them, while the block runs."""

    def __init__(self, *pids: int, every_s: float = 0.5) -> None:
        self._pids, self._every_s = pids or (os.getpid(),), every_s
        self._peaks: dict[tuple[str, int], int] = {}
        self._ended = threading.Event()

    def of(self, kind: str) -> tuple[int, ...]:
        """Bytes, the largest first; `driver`, `jvm`, `worker`, `postgres` or `other`."""
        return tuple(sorted((peak for (of_kind, _), peak in self._peaks.items() if of_kind == kind), reverse=True))

    @property
    def largest(self) -> int:
        return max(self._peaks.values())

    @contextmanager
    def watching(self) -> Iterator["PeakMemory"]:
        for process in self._family():
            with suppress(OSError):
                Path(f"/proc/{process.pid}/clear_refs").write_text("5")  # Forget the peak so far.
        watch = threading.Thread(target=self._watch, name="peak memory", daemon=True)
        watch.start()
        try:
            yield self
        finally:
            self._ended.set()
            watch.join()
            self._look()

    def _watch(self) -> None:
        while not self._ended.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        for process in self._family():
            with suppress(psutil.Error, OSError):
                place = (self._kind(process), process.pid)
                self._peaks[place] = max(self._peaks.get(place, 0), peak_bytes(process))

    def _family(self) -> list[psutil.Process]:
        found = []
        for pid in self._pids:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                found += [process, *process.children(recursive=True)]
        return found

    def _kind(self, process: psutil.Process) -> str:
        if process.name() in ("java", "postgres"):
            return "jvm" if process.name() == "java" else "postgres"
        if process.pid in self._pids:
            return "driver"
        parent = process.parent()
        begun_by = " ".join(parent.cmdline()) if parent else ""
        return "worker" if any(each in begun_by for each in _BEGINS_WORKERS) else "other"


#: In the command lines of the processes that Python workers are forked from: Spark's daemon or ours, and a fork server.
_BEGINS_WORKERS = ("-m pyspark.daemon", f"-m {DAEMON}", "multiprocessing.forkserver")


def peak_bytes(process: psutil.Process) -> int:
    """Linux remembers the peak itself; elsewhere it is what was seen now and then."""
    about = Path(f"/proc/{process.pid}/status")
    lines = about.read_text().splitlines() if about.exists() else []
    peaks = [int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")]
    return peaks[0] if peaks else int(process.memory_info().rss)


def bars(values: Mapping[str, float], *, width: int = 50) -> str:
    """A chart of text, the longest bar as wide as given."""
    names, most = max(map(len, values)), max(values.values())
    return "\n".join(
        f"{name:<{names}}  {'█' * max(1, round(width * value / most))} {value:,.0f}" for name, value in values.items()
    )


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
