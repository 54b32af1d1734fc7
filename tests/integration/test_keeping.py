"""The embedded Postgres that runs on after a command."""

from pathlib import Path

import psutil
import pytest

from onceload.embedded import is_running, running
from onceload.keeping import keep
from tests.integration.homes import end, kill_everything, postmaster, user_of
from tests.integration.shell import in_a_process
from tests.servers import execute, temporary_home
from tests.waiting import until


@pytest.fixture
def home():
    with temporary_home() as folder:
        home = folder / "home"
        try:
            yield home
        finally:
            keepers = keepers_of(home)
            end(*keepers)
            if home.exists():
                kill_everything(home)


def keepers_of(home: Path) -> list[psutil.Process]:
    found = []
    for each in psutil.process_iter(["cmdline"]):
        command = each.info["cmdline"] or []
        if "onceload.keeping" in command and str(home.resolve()) in command:
            found.append(each)
    return found


def look(home: Path, **environment: str) -> str:
    done = in_a_process("sql", "-c", "SELECT 1", ONCELOAD_HOME=str(home), ONCELOAD_DSN="", **environment)
    assert done.returncode == 0, done.stderr
    return str(done.stderr)


@pytest.mark.long
def test_a_server_that_is_kept_serves_until_its_end_is_asked_for(home):
    address = look(home, ONCELOAD_EMBEDDED_KEEP="1h").partition("the embedded Postgres runs for 60 min more: psql ")[2]
    first = postmaster(home)

    assert execute(address.strip().strip("'"), "SELECT 1") == [(1,)]
    assert "runs for" not in look(home, ONCELOAD_EMBEDDED_KEEP="1h")
    assert look(home, ONCELOAD_EMBEDDED_KEEP="") == ""
    assert postmaster(home) == first
    assert len(keepers_of(home)) == 1

    assert look(home, ONCELOAD_EMBEDDED_KEEP="0s") == ""
    until(lambda: not is_running(home) and not keepers_of(home))


@pytest.mark.long
def test_a_server_that_no_terminal_sees_stops_with_its_command(home):
    assert look(home, ONCELOAD_EMBEDDED_KEEP="") == ""
    assert not is_running(home)


@pytest.mark.long
def test_a_keeper_whose_time_is_over_leaves_the_server_to_its_users(home):
    with running(home) as dsn:
        assert keep(home, for_s=3600)
        assert not keep(home, for_s=0)
        until(lambda: not keepers_of(home))
        assert execute(dsn, "SELECT 1") == [(1,)]

        assert keep(home, for_s=3600)
        assert not keep(home, for_s=1)
        (keeper,) = keepers_of(home)
    assert is_running(home)
    end(keeper)


@pytest.mark.long
def test_a_server_left_by_a_killed_keeper_is_stopped_by_the_next_user(home):
    with running(home):
        keep(home, for_s=3600)
    end(*keepers_of(home))
    assert is_running(home)

    with user_of(home) as user:
        assert user.dsn()
        assert user.leave() == ""

    assert not is_running(home)


def test_a_keeper_stops_the_server_when_its_time_is_over(home):
    """The time of an earlier keeper counts for nothing, as after a restart of the machine: the clock begins again."""
    with running(home):
        (home / "postgres-18" / "keep.lock").write_bytes(b"%020.3f" % 9e14)
        assert keep(home, for_s=0.1)

    until(lambda: not is_running(home) and not keepers_of(home))


@pytest.mark.long
def test_nothing_runs_on_without_its_data(home):
    with running(home) as dsn:
        keep(home, for_s=3600)
    server = postmaster(home)
    assert execute(dsn, "CREATE TABLE kept AS SELECT 1 AS n") == []

    moved = home.rename(home.with_name("moved"))

    until(lambda: not server.is_running() and not keepers_of(home))
    with running(moved) as dsn:
        assert execute(dsn, "SELECT n FROM kept") == [(1,)]
