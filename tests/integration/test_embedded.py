"""The embedded Postgres: real processes, real kills."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg2
import pytest

from onceload import embedded
from onceload.embedded import is_running, running
from onceload_core.errors import DatabaseUnreachable, SettingRefused
from tests.integration.homes import end, kill_everything, postmaster, user_of
from tests.segments import segments_of
from tests.servers import execute, temporary_home
from tests.waiting import PATIENCE_S, until

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may change users or mount a small disk")


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.long), 18])
def test_a_server_starts_on_demand_and_stops_after_use(home, version):
    assert not is_running(home, version=version)

    with running(home, version=version) as dsn:
        assert is_running(home, version=version)
        assert execute(dsn, "SELECT current_setting('server_version_num')::int / 10000") == [(version,)]

    assert not is_running(home, version=version)


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.long), 18])
def test_the_shared_memory_of_a_killed_server_goes_with_its_home(version):
    """Tests kill many servers. What they left would stay in memory until the machine restarts."""
    with temporary_home() as home, running(home, version=version):
        (pid_file,) = home.rglob("postmaster.pid")
        memory_id = int(pid_file.read_text().splitlines()[6].split()[1])
        left = segments_of(memory_id)
        kill_everything(home)
        assert len(left) == 2
        assert all(each.exists() for each in left)

    assert not any(each.exists() for each in left)
    assert segments_of(memory_id) == []


@pytest.mark.parametrize("version", [pytest.param(16, marks=pytest.mark.long), 18])
def test_a_server_keeps_promises_only_with_these_settings(home, version):
    names = ["fsync", "data_checksums", "server_encoding", "timezone", "listen_addresses"]

    with running(home, version=version) as dsn:
        values = [execute(dsn, f"SHOW {name}")[0][0] for name in names]

    assert values == ["on", "on", "UTF8", "UTC", ""]


@pytest.mark.long
def test_two_uses_in_one_process_share_one_server(home):
    with running(home) as outer:
        with running(home) as inner:
            assert inner == outer
        assert execute(outer, "SELECT 1") == [(1,)]

    assert not is_running(home)


@pytest.mark.long
def test_the_last_of_two_processes_stops_the_server(home):
    with user_of(home) as first, user_of(home) as second:
        assert first.dsn() == second.dsn() != ""

        assert first.leave() == ""
        assert is_running(home)
        assert second.leave() == ""

    assert not is_running(home)


def test_four_first_starts_at_once_make_one_server(home):
    with ExitStack() as stack:
        users = [stack.enter_context(user_of(home)) for _ in range(4)]
        (dsn,) = {user.dsn() for user in users}

        assert execute(dsn, "SELECT 1") == [(1,)]
        assert [user.leave() for user in users] == [""] * 4

    assert not is_running(home)
    assert [path.name for path in (home / "postgres-18").glob("data*")] == ["data"]


def test_a_killed_user_neither_stops_the_server_nor_keeps_it(home):
    with user_of(home) as killed, user_of(home) as survivor:
        killed.dsn()
        dsn = survivor.dsn()
        killed.kill()

        assert execute(dsn, "SELECT 1") == [(1,)]
        assert survivor.leave() == ""

    assert not is_running(home)


@pytest.mark.long
def test_a_server_left_by_a_killed_user_serves_the_next_who_stops_it(home):
    with user_of(home) as killed:
        killed.dsn()
        pid = postmaster(home).pid
    with running(home):
        assert postmaster(home).pid == pid

    assert not is_running(home)


def test_everything_is_killed_and_the_data_is_intact(home):
    with user_of(home) as user:
        dsn = user.dsn()
        execute(dsn, "CREATE TABLE kept AS SELECT generate_series(1, 1000) AS number")
        user.kill()
        kill_everything(home)

    with running(home) as dsn:
        assert execute(dsn, "SELECT count(*) FROM kept") == [(1000,)]


@pytest.mark.long
def test_a_killed_postmaster_whose_backends_live_on_is_followed_by_a_new_one(home):
    with running(home) as dsn:
        execute(dsn, "CREATE TABLE kept AS SELECT 1 AS number")
        with user_of(home) as busy:
            connection = psycopg2.connect(busy.dsn())
            server = postmaster(home)
            orphans = server.children(recursive=True)
            end(server)

            with running(home) as dsn_after:
                assert postmaster(home).pid != server.pid
                assert execute(dsn_after, "SELECT number FROM kept") == [(1,)]
            connection.close()
        assert psutil.wait_procs(orphans, timeout=PATIENCE_S)[1] == []

    assert not is_running(home)


@pytest.mark.long
@pytest.mark.parametrize("pid_reused", [False, True])
def test_a_backend_that_outlives_its_postmaster_keeps_a_second_server_out(home, monkeypatch, pid_reused):
    monkeypatch.setattr(embedded, "_START_TIMEOUT_S", 1)
    with user_of(home) as user, psycopg2.connect(user.dsn()) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        server = postmaster(home)
        backend.suspend()
        end(server)
        if pid_reused:
            pid_file = home / "postgres-18" / "data" / "postmaster.pid"
            pid_file.write_text(pid_file.read_text().replace(str(server.pid), str(os.getpid()), 1))

        with pytest.raises(DatabaseUnreachable, match="still runs, and its socket"), running(home):
            pytest.fail("two servers on one data folder")

        end(backend)
        monkeypatch.undo()
        with running(home) as dsn:
            assert execute(dsn, "SELECT 1") == [(1,)]


@pytest.mark.long
def test_a_reused_process_id_is_not_taken_for_the_server(home):
    with running(home) as dsn:
        execute(dsn, "CREATE TABLE kept AS SELECT 1 AS number")
        pid_file = home / "postgres-18" / "data" / "postmaster.pid"
        owner = pid_file.stat()
        killed = postmaster(home).pid
        kill_everything(home)
    account = {"user": owner.st_uid, "group": owner.st_gid} if os.geteuid() == 0 else {}
    with subprocess.Popen(["/bin/cat"], stdin=subprocess.PIPE, **account) as stranger:
        for file in (pid_file, home / "postgres-18" / "socket" / ".s.PGSQL.5432.lock"):
            file.write_text(file.read_text().replace(str(killed), str(stranger.pid), 1))

        assert not is_running(home)
        with running(home) as dsn:
            assert execute(dsn, "SELECT number FROM kept") == [(1,)]


@pytest.mark.long
def test_a_copy_of_a_running_home_has_a_server_of_its_own(home):
    with running(home / "original") as dsn:
        execute(dsn, "CREATE TABLE kept AS SELECT 1 AS number; CHECKPOINT")
        subprocess.run(["cp", "-a", str(home / "original"), str(home / "copy")], check=True)
        try:
            with running(home / "copy") as other:
                execute(other, "UPDATE kept SET number = 2")
                assert (execute(dsn, "SELECT number FROM kept"), other != dsn) == ([(1,)], True)
        finally:
            kill_everything(home / "copy")


@pytest.mark.long
def test_the_socket_of_a_server_whose_home_was_renamed_is_not_taken_from_it(home, monkeypatch):
    """Its folder is named by the path of the home, and another home has that path now."""
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    path = home / ("x" * 100)
    with running(path) as dsn:
        server = postmaster(path)
        path.rename(home / "renamed")
        try:
            with pytest.raises(DatabaseUnreachable, match="socket file"), running(path):
                pytest.fail("its socket was taken over")

            assert execute(dsn, "SELECT 1") == [(1,)]
        finally:
            end(server, *server.children(recursive=True))


def test_the_end_of_a_use_stops_no_server_of_another_home_at_the_same_path(home):
    path, renamed = home / "a", home / "b"
    with ExitStack() as first:
        dsn = first.enter_context(running(path))
        execute(dsn, "CREATE TABLE kept AS SELECT 1 AS number")
        ours = postmaster(path)
        path.rename(renamed)
        with running(path) as other:
            first.close()

            assert execute(other, "SELECT 1") == [(1,)]
            assert ours.is_running()
        with running(renamed) as dsn:
            assert postmaster(renamed) == ours
            assert execute(dsn, "SELECT number FROM kept") == [(1,)]

    assert not is_running(renamed)
    assert not is_running(path)


@pytest.mark.long
@pytest.mark.parametrize("ends", ["renamed", "deleted"])
def test_a_use_whose_home_is_gone_ends_without_an_error(home, ends):
    path = home / "a"
    with running(path):
        server = postmaster(path)
        if ends == "renamed":
            path.rename(home / "b")
        else:
            # The server notices, and deletes files of its own meanwhile.
            shutil.rmtree(path, ignore_errors=True)

    end(server, *server.children(recursive=True))


@pytest.mark.long
def test_a_half_made_data_folder_is_never_used(home):
    half_made = home / "postgres-18" / "data.new-killed"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")

    with running(home) as dsn:
        assert execute(dsn, "SELECT 1") == [(1,)]

    assert not half_made.exists()


def test_a_ctrl_c_in_the_terminal_does_not_reach_the_server(home):
    with running(home) as dsn:
        server = postmaster(home)

        assert {os.getsid(each.pid) for each in (server, *server.children())}.isdisjoint({os.getsid(0)})
        assert execute(dsn, "SELECT 1") == [(1,)]


@pytest.mark.long
def test_the_server_holds_no_file_of_its_starter(home):
    with running(home):
        held = {each.readlink().name for each in Path(f"/proc/{postmaster(home).pid}/fd").iterdir()}

    assert not held & {"users.lock", "start.lock"}
    assert "null" in held


@pytest.mark.long
def test_the_environment_of_the_caller_does_not_reach_the_server(home, monkeypatch):
    monkeypatch.setenv("PGPORT", "6543")
    monkeypatch.setenv("PGDATA", "/nowhere")
    monkeypatch.setenv("LC_ALL", "xx_XX")

    with running(home) as dsn:
        assert "host=%2F" in dsn
        assert execute(dsn, "SELECT current_setting('port')") == [("5432",)]


@pytest.mark.parametrize(
    "name",
    [*(pytest.param(each, marks=pytest.mark.long) for each in ("x" * 100, "a,b")), 'it\'s $HOME `id` "quoted" & 100%'],
)
def test_a_home_of_any_name_works(home, name):
    with running(home / name) as dsn:
        assert execute(dsn, "SELECT 1") == [(1,)]


def test_a_socket_folder_planted_by_another_user_is_refused(home, monkeypatch):
    long_home = home / ("x" * 100)
    monkeypatch.setattr(tempfile, "tempdir", str(home))
    with running(long_home):
        (planted,) = home.glob("onceload-*")
    planted.mkdir()
    planted.chmod(0o777)

    with pytest.raises(SettingRefused, match="the socket folder"), running(long_home):
        pytest.fail("any user could be the database")


def test_data_of_another_version_is_refused_and_untouched(home):
    with running(home, version=16):
        pass
    (home / "postgres-18").mkdir()
    (home / "postgres-16" / "data").rename(home / "postgres-18" / "data")

    with (
        pytest.raises(SettingRefused, match=r"found data of Postgres 16.*Expected data of Postgres 18"),
        running(home),
    ):
        pytest.fail("another version was started")

    assert (home / "postgres-18" / "data" / "PG_VERSION").read_text() == "16\n"


def test_a_home_below_a_file_is_refused(home):
    (home / "file").touch()

    with pytest.raises(SettingRefused, match=r"ONCELOAD_HOME: .*Expected a folder"), running(home / "file"):
        pytest.fail("a file is not a folder")


def test_missing_programs_are_named(home, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(SettingRefused, match="pip install"), running(home):
        pytest.fail("nothing can be started")


@pytest.fixture
def nobody(home: Path) -> int:
    """An ordinary user who owns the home."""
    uid = pwd.getpwnam("nobody").pw_uid
    shutil.chown(home, uid)
    return uid


@NEEDS_ROOT
@pytest.mark.long
def test_an_ordinary_user_runs_the_server_as_himself(home, nobody):
    with user_of(home, uid=nobody) as user:
        user.dsn()

        assert postmaster(home).uids().real == nobody
        assert user.leave() == ""

    assert not is_running(home)


@NEEDS_ROOT
@pytest.mark.long
def test_root_may_use_the_home_of_an_ordinary_user_and_leaves_it_usable(home, nobody):
    with user_of(home, uid=nobody) as user:
        execute(user.dsn(), "CREATE TABLE kept AS SELECT 1 AS number")
        assert user.leave() == ""
    with running(home) as dsn:
        assert execute(dsn, "SELECT number FROM kept") == [(1,)]
        assert postmaster(home).uids().real == nobody
    with user_of(home, uid=nobody) as user:
        assert execute(user.dsn(), "SELECT number FROM kept") == [(1,)]
        assert user.leave() == ""


@pytest.mark.long
@NEEDS_ROOT
def test_root_lets_the_server_through_closed_folders_and_shows_it_nothing(home, caplog):
    closed = home / "closed"
    closed.mkdir(mode=0o700)

    with running(closed / "home") as dsn:
        assert execute(dsn, "SELECT 1") == [(1,)]
        assert postmaster(closed / "home").uids().real != 0

    assert closed.stat().st_mode & 0o777 == 0o701
    assert f"embedded_postgres_let_through folder={closed}" in caplog.text


@NEEDS_ROOT
def test_a_folder_that_cannot_be_written_to_is_refused(home, nobody):
    shutil.chown(home, 0)
    home.chmod(0o755)

    with user_of(home, uid=nobody) as user:
        assert "Expected a folder that this user can write to" in user.leave()


@NEEDS_ROOT
@pytest.mark.parametrize("room", [pytest.param("1M", marks=pytest.mark.long), "24M"])
def test_a_full_disk_is_named_and_harmless(home, room):
    with small_disk(home, room=room), pytest.raises(DatabaseUnreachable, match="the disk is full"), running(home):
        pytest.fail("there is no room for a server")

    with running(home) as dsn:
        assert execute(dsn, "SELECT 1") == [(1,)]


@NEEDS_ROOT
def test_a_disk_that_fills_up_in_use_loses_nothing(home):
    with small_disk(home, room="160M"):
        with running(home) as dsn:
            execute(dsn, "CREATE TABLE kept AS SELECT 1 AS number")
            fill(home / "filler")
            with pytest.raises(psycopg2.Error):
                execute(dsn, "CREATE TABLE big AS SELECT generate_series(1, 10000000)")

        (home / "filler").unlink()
        with running(home) as dsn:
            assert execute(dsn, "SELECT number FROM kept") == [(1,)]


@contextmanager
def small_disk(folder: Path, *, room: str) -> Iterator[None]:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={room},mode=0755", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("mounting is not permitted here")
    try:
        yield
    finally:
        kill_everything(folder)
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(b"\0" * (1 << 16)):
                pass
        except OSError:
            return


@pytest.mark.long
def test_a_signal_that_ends_the_user_in_order_stops_the_server(home):
    with user_of(home) as user:
        user.dsn()
        user.process.send_signal(signal.SIGINT)
        user.process.communicate(timeout=PATIENCE_S)

    until(lambda: not is_running(home))
