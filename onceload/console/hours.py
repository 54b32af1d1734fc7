"""How many records were committed in each of the last hours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sqlalchemy import Connection

from onceload.lag import HOURS
from onceload_core.postgres.connection import Record, array, statements

SQL = statements("hours.sql", package=__package__)
_DAY = 24


@dataclass(frozen=True, kw_only=True)
class Hours:
    """The records that were committed in each of the last hours, the oldest first."""

    loaded: tuple[int, ...] = (0,) * HOURS
    quarantined: tuple[int, ...] = (0,) * HOURS

    @property
    def quarantined_today(self) -> int:
        return sum(self.quarantined[-_DAY:])

    @property
    def quarantined_before(self) -> int:
        return sum(self.quarantined[:-_DAY])


@dataclass(frozen=True, kw_only=True)
class _Known:
    """The sums of one pipeline up to a commit."""

    position: int
    at: datetime
    #: By the hour since 1970: loaded and quarantined records.
    sums: Mapping[int, tuple[int, int]]


@dataclass
class History:
    """Remembers the sums of each pipeline, so that only later commits are read."""

    _known: dict[int, _Known] = field(default_factory=dict)

    def read(self, connection: Connection, ids: Sequence[int], *, now: datetime) -> dict[int, Hours]:
        first = hour_of(now) - HOURS + 1
        known = {each: self._known[each] for each in ids if each in self._known}
        rows = connection.execute(SQL["hours"], _binds(ids, known, since=datetime.fromtimestamp(first * 3600, UTC)))
        of_pipelines: dict[int, list[Record]] = {each: [] for each in ids}
        for row in rows:
            of_pipelines[row.pipeline_id].append(row)
        found = {each: _after(known.get(each), some, first=first) for each, some in of_pipelines.items() if some}
        sums = {each: after for each, after in found.items() if after}
        # Another page may do the same at once: whichever is stored last is right too.
        self._known = {each: old for each, old in self._known.items() if each not in of_pipelines} | sums
        return {each: _in_hours(after, first=first) for each, after in sums.items()}


def _binds(ids: Sequence[int], known: Mapping[int, _Known], *, since: datetime) -> dict[str, object]:
    return {
        "pipeline_ids": array(ids),
        "positions": array(known[each].position if each in known else 0 for each in ids),
        "times": [known[each].at if each in known else None for each in ids],
        "since": since,
    }


def _after(known: _Known | None, rows: Sequence[Record], *, first: int) -> _Known | None:
    """The sums with the new commits; without the old ones if the database does not have their last one (any more)."""
    before = known.sums if known and rows[0].is_known else {}
    sums = {hour: counts for hour, counts in before.items() if hour >= first}
    for row in rows:
        if row.hour is not None:
            loaded, quarantined = sums.get(row.hour, (0, 0))
            sums[row.hour] = (loaded + row.loaded, quarantined + row.quarantined)
    newest = max((row for row in rows if row.position is not None), key=lambda row: row.position, default=None)
    if newest is not None:
        return _Known(position=newest.position, at=newest.committed_at, sums=sums)
    return _Known(position=known.position, at=known.at, sums=sums) if known and rows[0].is_known else None


def _in_hours(known: _Known, *, first: int) -> Hours:
    loaded, quarantined = [0] * HOURS, [0] * HOURS
    for hour, counts in known.sums.items():
        # A commit after `now` counts for the last hour.
        index = min(hour - first, HOURS - 1)
        loaded[index] += counts[0]
        quarantined[index] += counts[1]
    return Hours(loaded=tuple(loaded), quarantined=tuple(quarantined))


def hour_of(now: datetime) -> int:
    return int(now.timestamp() // 3600)
