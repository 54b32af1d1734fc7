"""Copies are still known as such when the state is recovered."""

import pytest

from onceload_core.postgres import recover_state
from tests.loads.same_content import is_verified, lines, settled
from tests.servers import execute

pytestmark = pytest.mark.usually_staged

DAMAGES = {
    "original gone": "DELETE FROM onceload.producer WHERE name = 'x.log'",
    "original set back": "UPDATE onceload.producer SET consumed = '{[0,41)}' WHERE name = 'x.log'",
    "original turned into a copy": "UPDATE onceload.producer SET consumed = '{}', copy_of = 2 WHERE name = 'x.log'",
    "copy gone": "DELETE FROM onceload.producer WHERE name = 'y.log'",
    "copy replaced": "UPDATE onceload.producer SET condition = 'replaced' WHERE name = 'y.log'",
    "copy of another": "UPDATE onceload.producer SET copy_of = 3 WHERE name = 'y.log'",
    "all gone": "DELETE FROM onceload.producer",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_copy_stays_one_when_the_state_is_recovered(logs, damage):
    """It could not be found again: by now the other file holds more, and the two differ."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    logs.write("z.log", lines(50, 55))
    settled(logs)
    logs.write("x.log", lines(0, 20))
    settled(logs)
    before = copies(logs)
    execute(logs.admin_dsn, DAMAGES[damage])

    looked = recover_state(logs.engine, "events", dry_run=True)
    done = recover_state(logs.engine, "events", dry_run=False)

    assert (looked.differing, looked.applied, done.applied) == (done.differing, False, True)
    assert copies(logs) == before
    assert recover_state(logs.engine, "events", dry_run=True).differing == ()
    logs.write("y.log", lines(0, 10) + lines(100, 105))
    settled(logs)
    assert logs.rows() == [*range(20), *range(50, 55), *range(100, 105)]
    assert is_verified(logs)


def test_state_from_before_a_copy_parted_is_recovered(logs):
    """As when the producer table alone is restored from a backup."""
    for name in ("x.log", "y.log"):
        logs.write(name, lines(0, 10))
    settled(logs)
    logs.write("x.log", lines(0, 20))
    settled(logs)
    execute(logs.admin_dsn, "CREATE TABLE kept AS SELECT * FROM onceload.producer")
    logs.write("y.log", lines(0, 10) + lines(100, 105))
    settled(logs)
    before = copies(logs)
    execute(logs.admin_dsn, "DELETE FROM onceload.producer; INSERT INTO onceload.producer SELECT * FROM kept")

    done = recover_state(logs.engine, "events", dry_run=False)
    settled(logs)

    assert (done.differing, copies(logs)) == (("y.log",), before)
    assert logs.rows() == [*range(20), *range(100, 105)]
    assert is_verified(logs)


def test_the_name_that_a_producer_had_before_is_recovered_as_its_copy(logs):
    x = logs.write("x.log", lines(0, 10))
    settled(logs)
    x.rename(logs.folder / "x.log.1")
    settled(logs)
    before = copies(logs)
    assert len(before) == 2
    execute(logs.admin_dsn, "DELETE FROM onceload.producer")

    recover_state(logs.engine, "events", dry_run=False)

    assert copies(logs) == before


def copies(logs):
    """All that is known of each name, with the producer that it is a copy of."""
    return logs.ask(
        "SELECT producer_id, name, generation, consumed, fingerprint, size, condition, copy_of"
        " FROM onceload.producer ORDER BY producer_id"
    )
