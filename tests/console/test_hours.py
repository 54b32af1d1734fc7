"""The sums of the last hours: the right commits are found without an index by time."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from onceload.console.overview import HOURS, lines_of, with_activity
from onceload_core.postgres import LedgerSettings, connect
from tests.servers import execute


@pytest.fixture
def engine(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    yield engine
    engine.dispose()


def grow(dsn: str, name: str, times: list[datetime]) -> None:
    execute(
        dsn,
        "INSERT INTO onceload.pipeline (name, position, producers_max, islands_max, message_keep_days,"
        f" snapshot_every_commits, snapshot_every_s, snapshots_kept) VALUES ('{name}', {len(times)}, 1, 1, 1, 1, 1, 1)",
    )
    for position, time in enumerate(times, 1):
        execute(
            dsn,
            "INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, loaded, quarantined, committed_at)"
            f" SELECT pipeline_id, {position}, 'load', 'b', {position}, 1, '{time.isoformat()}'"
            f" FROM onceload.pipeline WHERE name = '{name}'",
        )


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 65])
@pytest.mark.parametrize("span_h", [1, 47, 200])
def test_each_commit_of_the_last_hours_counts_in_its_hour(dsn, engine, count, span_h):
    now = datetime(2026, 3, 1, 12, 2, tzinfo=UTC)
    times = [now - timedelta(hours=span_h) * (count - number) / max(count, 1) for number in range(1, count + 1)]
    grow(dsn, "events", times)
    # Another pipeline's commits count for it alone.
    grow(dsn, "others", [now])

    lines = {line.name: line for line in with_activity(engine, lines_of(engine, None, now=now), now=now)}

    first = int(now.timestamp() // 3600) - HOURS + 1
    expected = Counter[int]()
    for position, time in enumerate(times, 1):
        hour = int(time.timestamp() // 3600)
        if hour >= first:
            expected[hour - first] += position
    assert dict(enumerate(lines["events"].hours.loaded)) == {index: expected[index] for index in range(HOURS)}
    assert sum(lines["others"].hours.loaded) == 1
