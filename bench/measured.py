"""Numbers of several repetitions, and the check without which none is printed."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter


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


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
