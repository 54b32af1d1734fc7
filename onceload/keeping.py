"""The keeper: a process that keeps the embedded Postgres running for a while after a command.

To `embedded` it is one more user of the server. The file `keep.lock` is locked as long as it lives, and says until when
it stays: a later command moves that time, instead of starting a second keeper. Times are those of the monotonic clock,
which all processes share until the machine is restarted, and then there is no keeper that could read them.

A killed keeper leaves the server running, and the next command stops it, as after any killed user. If the data is
deleted or moved away, the keeper stops the server, which would only notice within a minute.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

import psutil

from onceload import embedded

_LOOK_EVERY_S = 0.5


def keep(home: Path, *, for_s: float) -> bool:
    """Keep the server running after this process, which uses it now; return whether that started a keeper.

    Zero seconds end an earlier stay. Other times do not shorten it.
    """
    server = embedded.server_of(home)
    folder, postmaster = server.folder, server.postmaster()
    (folder / "keep.lock").touch()
    with embedded.starting(folder), (folder / "keep.lock").open("r+b") as file:
        until = time.monotonic() + for_s
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _write(file, max(until, _until(file)) if for_s else 0.0)
            return False
        if not for_s or postmaster is None:
            return False
        _write(file, until)
        with embedded.opened(folder / "users.lock") as users:
            fcntl.flock(users, fcntl.LOCK_SH)
            _start(home, postmaster, keeper=file, users=users)
        return True


def _start(home: Path, postmaster: psutil.Process, *, keeper: BinaryIO, users: BinaryIO) -> None:
    """Start the process. It inherits both files with their locks, so that there is no moment without a user."""
    files = (keeper.fileno(), users.fileno())
    program = [sys.executable, "-P", "-m", "onceload.keeping"]
    # The data may be gone before the keeper can look for the server there.
    command = [*program, str(home.resolve()), *map(str, (postmaster.pid, *files))]
    process = subprocess.Popen(
        command,
        cwd="/",
        pass_fds=files,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    # It outlives this process, which must not wait for it, nor warn about it.
    process.returncode = 0


def main(home: Path, pid: int, *, keeper: BinaryIO, users: BinaryIO) -> None:
    """Stay until it is time, then leave as every user leaves."""
    server = embedded.server_of(home)
    while True:
        left_s = _until(keeper) - time.monotonic()
        if not embedded.is_there(server.folder / "keep.lock", keeper):
            return _stop_without_data(server, pid)
        if left_s > 0:
            time.sleep(min(left_s, _LOOK_EVERY_S))
            continue
        with embedded.starting(server.folder):
            if _until(keeper) > time.monotonic():
                continue
            keeper.close()
            return embedded.stop_unless_used(server, users)


def _stop_without_data(server: embedded.Server, pid: int) -> None:
    with suppress(psutil.Error):
        postmaster = psutil.Process(pid)
        if str(server.data) in postmaster.cmdline():
            postmaster.send_signal(signal.SIGINT)


def _write(file: BinaryIO, until: float) -> None:
    # Always the same length, so that no reader sees a part of another time.
    os.pwrite(file.fileno(), b"%020.3f" % until, 0)


def _until(file: BinaryIO) -> float:
    return float(os.pread(file.fileno(), 20, 0) or 0)


if __name__ == "__main__":
    with os.fdopen(int(sys.argv[3]), "rb+") as _keeper, os.fdopen(int(sys.argv[4]), "rb+") as _users:
        main(Path(sys.argv[1]), int(sys.argv[2]), keeper=_keeper, users=_users)
