"""A primary that dies, and the server that takes its place: a standby by streaming replication, or a restored backup.

Clients know one address, a folder that leads to the socket of the server in charge, as a name in DNS would. Moving it
ends no connection: only the death of the old primary does.
"""

import os
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from unittest.mock import patch
from urllib.parse import quote

import psutil
from psycopg2.extensions import parse_dsn

from onceload import embedded
from tests.servers import execute, temporary_home
from tests.waiting import PATIENCE_S, until


class NeverCame(AssertionError):
    """What had to happen for the drill to prove anything did not."""


def wait_until(holds: Callable[[], bool], what: str) -> None:
    until(holds, what, error=NeverCame)


class Successor(StrEnum):
    SYNCHRONOUS = "synchronous standby"
    ASYNCHRONOUS = "asynchronous standby"
    RESTORED = "backup and archived WAL"

    @property
    def lacks_the_tail(self) -> bool:
        return self is not Successor.SYNCHRONOUS


@dataclass(frozen=True, kw_only=True)
class Server:
    home: Path
    dsn: str

    @property
    def data(self) -> Path:
        (data,) = self.home.glob("*/data")
        return data

    def set(self, **settings: str) -> None:
        """Settings that need no restart."""
        for name, value in settings.items():
            execute(self.dsn, f"ALTER SYSTEM SET {name} = '{value}'")
        execute(self.dsn, "SELECT pg_reload_conf()")

    def is_true(self, condition: str) -> bool:
        return execute(self.dsn, f"SELECT {condition}") == [(True,)]

    def kill(self) -> None:
        """All of its processes at once, as if its machine had lost its power."""
        server = psutil.Process(int((self.data / "postmaster.pid").read_text().split()[0]))
        assert server.name() == "postgres"
        # It starts no other process while these are listed.
        server.suspend()
        processes = [server, *server.children()]
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=PATIENCE_S)

    def copy_to(self, home: Path) -> Path:
        """A base backup, made while it is running, where the server of that home has its data."""
        data = home / self.data.parent.name / self.data.name
        data.parent.mkdir()
        subprocess.run(
            [embedded.binaries(18) / "pg_basebackup", "--dbname", self.dsn, "--pgdata", data, "--checkpoint=fast"],
            check=True,
        )
        self.give_to_account(data)
        return data

    def give_to_account(self, folder: Path) -> None:
        """Let the account that servers run under have it."""
        owner = self.data.stat()
        for path in (folder, *folder.rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)


class Site(ABC):
    """The server in charge, the address that leads to it, and who comes after it."""

    def __init__(self, *, home: Path, primary: Server, running: ExitStack) -> None:
        self._address, self._running = home / "address", running
        self.in_charge = primary
        self.move_address()

    @property
    def dsn(self) -> str:
        """What clients are given."""
        return self.in_charge.dsn.split("host=")[0] + f"host={quote(str(self._address), safe='')}"

    def fail_over(self) -> None:
        self.replace_primary()
        self.move_address()

    def replace_primary(self) -> None:
        """Kill first: a process that is still connected must get no answer that the old primary committed any more."""
        self.in_charge.kill()
        self.in_charge = self._promoted()

    @abstractmethod
    def prepare(self) -> None:
        """Take a base backup, under load."""

    @abstractmethod
    def part(self) -> None:
        """From now on, the successor gets to know of no commit."""

    @abstractmethod
    def _promoted(self) -> Server: ...

    def _copied(self) -> tuple[Path, Path]:
        home = self._running.enter_context(temporary_home())
        return home, self.in_charge.copy_to(home)

    def _started(self, home: Path) -> Server:
        return Server(home=home, dsn=self._running.enter_context(embedded.running(home)))

    def move_address(self) -> None:
        new = self._address.with_name("address.new")
        new.symlink_to(parse_dsn(self.in_charge.dsn)["host"])
        new.rename(self._address)


class _WithStandby(Site):
    _standby: Server

    def prepare(self) -> None:
        home, data = self._copied()
        at = parse_dsn(self.in_charge.dsn)
        source = f"host={at['host']} port={at['port']} user={at['user']}"
        _configure(data, "standby.signal", primary_conninfo=source)
        self._standby = self._started(home)
        self._wait_for("state = 'streaming'")

    def part(self) -> None:
        self._standby.set(primary_conninfo="")
        wait_until(lambda: self._standby.is_true("NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"), "the standby parts")

    def _promoted(self) -> Server:
        assert self._standby.is_true("pg_promote()")
        return self._standby

    def _wait_for(self, condition: str) -> None:
        found = f"EXISTS (SELECT FROM pg_stat_replication WHERE {condition})"
        wait_until(lambda: self.in_charge.is_true(found), condition)


class _WithSynchronousStandby(_WithStandby):
    def prepare(self) -> None:
        super().prepare()
        # Not before the copy: the new primary would wait for a standby that it does not have.
        self.in_charge.set(synchronous_standby_names="*")
        self._wait_for("sync_state = 'sync'")

    def part(self) -> None:
        """No commit is answered before the standby has it."""


class _WithArchive(Site):
    def __init__(self, *, home: Path, primary: Server, running: ExitStack) -> None:
        super().__init__(home=home, primary=primary, running=running)
        self._archive, self._target = home / "archive", ""
        self._archive.mkdir()
        primary.give_to_account(self._archive)
        primary.set(archive_command=f'cp %p "{self._archive}/%f"')

    def prepare(self) -> None:
        self._home, self._data = self._copied()

    def part(self) -> None:
        ((self._target,),) = execute(self.in_charge.dsn, "SELECT pg_current_wal_insert_lsn()")

    def replace_primary(self) -> None:
        ((last,),) = execute(self.in_charge.dsn, "SELECT pg_walfile_name(pg_switch_wal())")
        archived = f"(SELECT last_archived_wal >= '{last}' FROM pg_stat_archiver)"
        wait_until(lambda: self.in_charge.is_true(archived), f"{last} is archived")
        super().replace_primary()

    def _promoted(self) -> Server:
        _configure(
            self._data,
            "recovery.signal",
            restore_command=f'cp "{self._archive}/%f" %p',
            recovery_target_lsn=self._target,
            recovery_target_action="promote",
            archive_command="",
        )
        restored = self._started(self._home)
        wait_until(lambda: restored.is_true("NOT pg_is_in_recovery()"), "the restored server takes over")
        return restored


def _configure(data: Path, signal: str, **settings: str) -> None:
    """Say how a copy is to begin."""
    (data / signal).touch()
    with (data / "postgresql.auto.conf").open("a") as file:
        file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())


_SITES = {
    Successor.SYNCHRONOUS: _WithSynchronousStandby,
    Successor.ASYNCHRONOUS: _WithStandby,
    Successor.RESTORED: _WithArchive,
}


@contextmanager
def open_site(successor: Successor) -> Iterator[Site]:
    """A running primary, and what its successor needs."""
    with ExitStack() as running:
        home = running.enter_context(temporary_home())
        archive_mode = "on" if successor is Successor.RESTORED else "off"
        with patch.dict(embedded._SETTINGS, {"archive_mode": archive_mode}):
            dsn = running.enter_context(embedded.running(home))
        yield _SITES[successor](home=home, primary=Server(home=home, dsn=dsn), running=running)
