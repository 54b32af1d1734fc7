"""What happened in each of the last hours, for charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from onceload.console.hours import Hours, hour_of
from onceload.lag import HOURS
from onceload.terminal import counted, time_in_words


@dataclass(frozen=True, kw_only=True)
class Chart:
    title: str
    #: One for each hour, the oldest first; None if it is unknown.
    values: tuple[float | None, ...]
    #: The values in words.
    words: tuple[str, ...]


def charts_of(hours: Hours, waits: Mapping[int, float] | None, *, now: datetime) -> list[Chart]:
    """The throughput, the quarantine and, if files are listed here, how long new files waited."""
    last = hour_of(now)
    begins = [datetime.fromtimestamp((last - HOURS + 1 + index) * 3600, UTC) for index in range(HOURS)]
    charts = [
        _counts("Rows", "row", hours.loaded, begins),
        _counts("Quarantined records", "record", hours.quarantined, begins),
    ]
    if waits is not None:
        charts.append(_waits([waits.get(last - HOURS + 1 + index) for index in range(HOURS)], begins))
    return charts


def _counts(what: str, unit: str, values: Sequence[int], begins: Sequence[datetime]) -> Chart:
    return Chart(
        title=f"{what} per hour (highest: {max(values):,})",
        values=tuple(values),
        words=tuple(f"{at:%Y-%m-%d %H}:00: {counted(value, unit)}" for at, value in zip(begins, values, strict=True)),
    )


def _waits(values: Sequence[float | None], begins: Sequence[datetime]) -> Chart:
    longest = max((value for value in values if value is not None), default=0.0)
    return Chart(
        title=f"Longest wait of a new file, by hour (highest: {time_in_words(longest)})",
        values=tuple(values),
        words=tuple(
            f"{at:%Y-%m-%d %H}:00: {'not measured' if value is None else time_in_words(value)}"
            for at, value in zip(begins, values, strict=True)
        ),
    )
