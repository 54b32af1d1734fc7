"""One server for the data of the embedded Postgres: across containers of one kernel, and across hosts.

A container is a process in PID, IPC and mount namespaces of its own, as Docker makes them. Another host is a process
that sees another boot id, host name and machine id, while no lock of the first one is held any more.
"""

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from subprocess import DEVNULL, PIPE

import psutil
import psycopg2
import pytest

from onceload import embedded, ownership
from onceload.embedded import is_running, running
from onceload_core.errors import DatabaseUnreachable
from tests.integration.homes import CHECKOUT, end, kill_everything, postmaster, user_of
from tests.servers import execute
from tests.waiting import PATIENCE_S, until

CONTAINER = ["unshare", "--pid", "--fork", "--mount-proc", "--ipc", "--uts", "--kill-child"]

ASK = """
import sys
from pathlib import Path
from onceload.embedded import running
from tests.servers import execute

with running(Path(sys.argv[1])) as dsn:
    print(execute(dsn, sys.argv[2]), flush=True)
"""

#: Commits a number in a transaction of its own, and confirms it on stdout after the COMMIT.
WRITE = """
import sys
from pathlib import Path
from onceload.embedded import running
from tests.servers import execute

with running(Path(sys.argv[1])) as dsn:
    for number in range(int(sys.argv[2]), int(sys.argv[2]) + 1000):
        execute(dsn, f"INSERT INTO kept VALUES ({number})")
        print(number, flush=True)
"""


@pytest.fixture
def container() -> list[str]:
    if subprocess.run([*CONTAINER, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("making namespaces is not permitted here")
    return CONTAINER


def asked(home: Path, statement: str, *, within: list[str]) -> str:
    """What the server answers to a process there."""
    command = [*within, sys.executable, "-c", ASK, str(home), statement]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def host_of(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **facts: str) -> Iterator[None]:
    """See the facts of another kernel and machine, and a folder that both share over a network."""
    monkeypatch.setattr(ownership, "_LOCAL", frozenset())
    with monkeypatch.context() as patched:
        for name in ("boot_id", "machine_id"):
            if name in facts:
                (tmp_path / name).write_text(facts[name])
                patched.setattr(ownership, f"_{name.upper()}", tmp_path / name)
        if "host" in facts:
            patched.setattr("socket.gethostname", lambda: facts["host"])
        yield


STARTED = "SELECT pg_postmaster_start_time()::text"


def test_a_container_uses_the_server_of_the_host(home, container):
    with user_of(home) as user:
        dsn = user.dsn()
        started = execute(dsn, STARTED)

        assert asked(home, STARTED, within=container) == str(started)
        assert execute(dsn, STARTED) == started


def test_the_host_uses_the_server_of_a_container_and_leaves_it_running(home, container):
    with user_of(home, within=container) as user:
        dsn = user.dsn()
        started = execute(dsn, STARTED)
        assert embedded.server_of(home).postmaster() is None

        with running(home) as of_host:
            assert execute(of_host, STARTED) == started

        assert execute(dsn, STARTED) == started


def test_a_container_that_has_another_path_to_the_folder_uses_the_server_too(home, container):
    elsewhere = home / "elsewhere"
    elsewhere.mkdir()
    (home / "project").mkdir()
    mounted = [*container, "sh", "-c", f'mount --bind {home}/project {elsewhere} && exec "$@"', "sh"]
    with user_of(home / "project") as user:
        started = execute(user.dsn(), STARTED)

        assert asked(elsewhere, STARTED, within=mounted) == str(started)
        user.leave()


def test_rows_of_a_killed_container_are_there_for_the_host(home, container):
    with user_of(home, within=container) as user:
        execute(user.dsn(), "CREATE TABLE kept AS SELECT 1 AS number")
    until(lambda: has_ended(home))

    with running(home) as dsn:
        assert execute(dsn, "SELECT number FROM kept") == [(1,)]
        assert is_running(home)


@pytest.mark.long
def test_host_and_containers_commit_at_once_through_kills_and_no_confirmed_row_is_lost(home, container):
    chance = random.Random(54)
    confirmed: list[int] = []
    with running(home) as dsn:
        execute(dsn, "CREATE TABLE kept (number int PRIMARY KEY)")
    for turn in range(8):
        with ExitStack() as stack:
            writers = []
            for index, within in enumerate([[], container, container]):
                first = 10_000 * turn + 1_000 * index
                command = [*within, sys.executable, "-c", WRITE, str(home), str(first)]
                writer = subprocess.Popen(command, cwd=CHECKOUT, stdout=PIPE, stderr=DEVNULL, text=True)
                writers.append(stack.enter_context(writer))
            chance.shuffle(writers)
            for writer in writers:
                assert writer.stdout
                lines = chance.randrange(60)
                for line in writer.stdout:
                    confirmed.append(int(line))
                    if lines == 0:
                        break
                    lines -= 1
                writer.kill()
                # What it wrote before it was killed is confirmed too.
                confirmed += [int(line) for line in writer.stdout if line.endswith("\n")]
            if chance.random() < 0.5:
                kill_everything(home)

    with running(home) as dsn:
        kept = {number for (number,) in execute(dsn, "SELECT number FROM kept")}
    assert len(confirmed) > 100
    assert set(confirmed) <= kept


def test_a_lock_is_held_until_the_last_process_of_the_server_has_ended(home):
    with user_of(home) as user, closing(psycopg2.connect(user.dsn())) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        backend.suspend()
        end(postmaster(home))
        user.kill()
        assert not has_ended(home)

        end(backend)
        until(lambda: has_ended(home))


def has_ended(home: Path) -> bool:
    lock = ownership.find_lock(embedded.server_of(home).data)
    if lock:
        lock.close()
    return lock is not None


def test_a_server_that_may_run_on_another_host_is_not_started_a_second_time(home, monkeypatch, tmp_path):
    with host_of(monkeypatch, tmp_path, boot_id="far", machine_id="far", host="alpha"), running(home) as dsn:
        execute(dsn, "CREATE TABLE kept AS SELECT 1 AS number")
        kill_everything(home)
    owner = home / "postgres-18" / "owner.json"
    started = json.loads(owner.read_text())["started"]

    with pytest.raises(DatabaseUnreachable) as refused, running(home):
        pytest.fail("two servers on one data folder")
    assert f"host 'alpha' started a server there at {started}" in str(refused.value)
    assert f"delete {owner} and retry" in str(refused.value)
    assert not is_running(home)

    owner.unlink()
    with running(home) as dsn:
        assert execute(dsn, "SELECT number FROM kept") == [(1,)]


def test_hosts_take_turns_if_each_stops_its_server(home, monkeypatch, tmp_path):
    with host_of(monkeypatch, tmp_path, boot_id="far", machine_id="far", host="alpha"), running(home) as dsn:
        execute(dsn, "CREATE TABLE kept AS SELECT 1 AS number")

    with running(home) as dsn:
        assert execute(dsn, "SELECT number FROM kept") == [(1,)]


@pytest.fixture
def folder(home: Path) -> Path:
    """A folder with what is locked of its data."""
    (home / "data").mkdir()
    (home / "data" / "PG_VERSION").touch()
    return home


@pytest.mark.parametrize(
    "facts",
    [{"boot_id": "before", "machine_id": "here"}, {"host": "a1b2c3"}, {"host": "a1b2c3", "machine_id": ""}],
)
def test_a_crash_of_this_machine_or_of_a_container_with_another_name_blocks_nothing(
    folder, monkeypatch, tmp_path, facts
):
    with host_of(monkeypatch, tmp_path, **facts):
        ownership.take(folder)
    before = (folder / "owner.json").read_text()

    with host_of(monkeypatch, tmp_path, machine_id="here"):
        ownership.take(folder)

    assert (folder / "owner.json").read_text() != before


@pytest.mark.parametrize("is_local", [True, False])
def test_a_host_that_reaches_the_folder_through_another_one_may_still_serve_it(folder, monkeypatch, tmp_path, is_local):
    """A client of NFS and its host see the same file on a disk that is local to the host, and not the same locks."""
    with host_of(monkeypatch, tmp_path, boot_id="far", machine_id="far", host="alpha"):
        ownership.take(folder)
    monkeypatch.setattr(ownership, "_is_on_local_disk", lambda _: is_local)

    with pytest.raises(DatabaseUnreachable, match="host 'alpha'"):
        ownership.take(folder)


NAMED = {"machine_id": "", "host": "loader"}


@pytest.mark.parametrize("is_local", [True, False])
def test_a_container_that_keeps_its_name_is_the_same_one_on_a_local_disk_alone(folder, monkeypatch, tmp_path, is_local):
    """Another host may have a container of that name, too."""
    with host_of(monkeypatch, tmp_path, boot_id="before", **NAMED):
        ownership.take(folder)
    before = (folder / "owner.json").read_text()

    with host_of(monkeypatch, tmp_path, **NAMED):
        monkeypatch.setattr(ownership, "_is_on_local_disk", lambda _: is_local)
        if not is_local:
            with pytest.raises(DatabaseUnreachable, match="host 'loader'"):
                ownership.take(folder)
            return
        ownership.take(folder)

    assert (folder / "owner.json").read_text() != before


def test_in_a_copy_of_the_folder_a_container_of_that_name_may_be_another_one(folder, monkeypatch, tmp_path):
    with host_of(monkeypatch, tmp_path, boot_id="before", **NAMED):
        ownership.take(folder)
    (folder / "data").rename(folder / "before")
    shutil.copytree(folder / "before", folder / "data")

    with host_of(monkeypatch, tmp_path, **NAMED):
        monkeypatch.setattr(ownership, "_is_on_local_disk", lambda _: True)
        with pytest.raises(DatabaseUnreachable, match="host 'loader'"):
            ownership.take(folder)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"host": "a"}'])
def test_an_owner_that_cannot_be_read_may_be_another_host(folder, content):
    (folder / "owner.json").write_text(content)

    with pytest.raises(DatabaseUnreachable, match=r"host 'unknown' .* delete .*owner\.json"):
        ownership.take(folder)


def test_two_hosts_that_start_at_the_same_moment_do_not_both_own_the_data(folder, monkeypatch, tmp_path):
    look = ownership._find_owner

    def overtaken(at):
        found = look(at)
        with monkeypatch.context() as patched:
            patched.setattr(ownership, "_find_owner", look)
            with host_of(monkeypatch, tmp_path, boot_id="far", host="alpha"), suppress(DatabaseUnreachable):
                ownership.take(at)
        return found

    monkeypatch.setattr(ownership, "_find_owner", overtaken)
    with pytest.raises(DatabaseUnreachable, match="host 'alpha'"):
        ownership.take(folder)

    owner = look(folder)
    assert owner
    assert owner.host == "alpha"
    assert {path.name for path in folder.iterdir()} == {"data", "owner.json"}
