"""The socket of the embedded Postgres: a private folder, by which also other containers reach the server."""

import hashlib
import os
import socket
import stat
import tempfile
from pathlib import Path

from onceload.server_account import Account, let_through
from onceload_core.errors import SettingRefused

#: Only a part of the socket's name; given in the address, so that PGPORT is ignored.
PORT = "5432"
SOCKETS = "socket"
_PATH_BYTES_MAX = 107


def socket_folder(folder: Path, *, data: Path, account: Account) -> Path:
    """Make the folder of the socket: below the server's, or elsewhere if its path is too long."""
    sockets = folder / SOCKETS
    # libpq treats a comma as the start of the next host.
    if len(os.fsencode(sockets / f".s.PGSQL.{PORT}")) > _PATH_BYTES_MAX or "," in str(sockets):
        name = hashlib.sha256(os.fsencode(data)).hexdigest()[:16]
        sockets = Path(tempfile.gettempdir()).resolve() / f"onceload-{name}"
    sockets.mkdir(mode=0o700, exist_ok=True)
    let_through(sockets, account=account)
    state = sockets.lstat()
    # The owner of this folder can pose as the database: another user must not plant it.
    if not stat.S_ISDIR(state.st_mode) or state.st_uid not in {os.geteuid(), account.uid} or state.st_mode & 0o077:
        raise SettingRefused(
            setting="the socket folder",
            found=f"{sockets}, which belongs to another user or is open to others",
            expected="a private folder",
        )
    os.chown(sockets, account.uid, account.gid)
    return sockets


def try_to_connect(sockets: Path) -> OSError | None:
    """Connect to the server; return why that fails."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(sockets / f".s.PGSQL.{PORT}"))
        except OSError as error:
            return error
    return None


def forget_socket(sockets: Path) -> None:
    """Delete the lock of a socket, unless a server listens there: another process may have its process id by now."""
    # In a folder that is named by the path, the server of a home that was renamed may still listen.
    if isinstance(try_to_connect(sockets), FileNotFoundError | ConnectionRefusedError):
        (sockets / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)
