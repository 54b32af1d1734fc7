"""The sums of the last hours: the right commits are found without an index by time."""

from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from onceload.console.hours import History
from onceload.console.overview import lines_of, with_activity
from onceload.lag import HOURS
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
        f" snapshot_every_commits, snapshot_every_s, snapshots_kept) VALUES ('{name}', 0, 1, 1, 1, 1, 1, 1)",
    )
    commit(dsn, name, times)


def commit(dsn: str, name: str, times: list[datetime]) -> None:
    ((last,),) = execute(dsn, f"SELECT position FROM onceload.pipeline WHERE name = '{name}'")
    for position, time in enumerate(times, last + 1):
        execute(
            dsn,
            "INSERT INTO onceload.ledger (pipeline_id, position, kind, batch, loaded, quarantined, committed_at)"
            f" SELECT pipeline_id, {position}, 'load', 'b', {position}, 1, '{time.isoformat()}'"
            f" FROM onceload.pipeline WHERE name = '{name}'",
        )
    execute(dsn, f"UPDATE onceload.pipeline SET position = position + {len(times)} WHERE name = '{name}'")


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 64, 65])
@pytest.mark.parametrize("span_h", [1, 47, 200])
def test_each_commit_of_the_last_hours_counts_in_its_hour(dsn, engine, count, span_h):
    now = datetime(2026, 3, 1, 12, 2, tzinfo=UTC)
    times = [now - timedelta(hours=span_h) * (count - number) / max(count, 1) for number in range(1, count + 1)]
    grow(dsn, "events", times)
    # Another pipeline's commits count for it alone.
    grow(dsn, "others", [now])

    lines = look(engine, History(), now)

    assert lines["events"] == by_hour(times, now)
    assert sum(lines["others"]) == 1


def restore(dsn: str, position: int) -> None:
    """Take the database back to a position, as a restore does; triggers would refuse it."""
    execute(
        dsn,
        "SET session_replication_role = replica;"
        f" DELETE FROM onceload.ledger WHERE position > {position};"
        f" UPDATE onceload.pipeline SET position = {position}",
    )


def look(engine, history: History, now: datetime) -> dict[str, tuple[int, ...]]:
    lines = with_activity(engine, history, lines_of(engine, None, now=now), now=now)
    return {line.name: line.hours.loaded for line in lines}


def by_hour(times: list[datetime], now: datetime) -> tuple[int, ...]:
    first = int(now.timestamp() // 3600) - HOURS + 1
    expected = Counter[int]()
    for position, time in enumerate(times, 1):
        hour = int(time.timestamp() // 3600)
        if hour >= first:
            expected[hour - first] += position
    return tuple(expected[index] for index in range(HOURS))


def test_later_looks_add_what_is_new_and_forget_what_a_restored_database_lacks(dsn, engine):
    now = datetime(2026, 3, 1, 12, 2, tzinfo=UTC)
    times = [now - timedelta(hours=40 - number) for number in range(40)]
    history = History()
    grow(dsn, "events", times[:20])
    assert look(engine, history, times[20])["events"] == by_hour(times[:20], times[20])

    assert look(engine, history, now)["events"] == by_hour(times[:20], now)
    commit(dsn, "events", times[20:])
    assert look(engine, history, now)["events"] == by_hour(times, now)

    restore(dsn, 30)
    commit(dsn, "events", [now] * 10)
    assert look(engine, history, now)["events"] == by_hour(times[:30] + [now] * 10, now)

    restore(dsn, 0)
    assert sum(look(engine, history, now)["events"]) == 0
