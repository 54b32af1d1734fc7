"""For services of this machine: one process for each home folder, free ports, and secrets in files."""

import fcntl
import os
import secrets
import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from onceload_core.errors import SettingRefused

HOST = "127.0.0.1"


@contextmanager
def alone(home: Path, command: str) -> Iterator[None]:
    """Allow one process per home folder; the lock of a dead process is released by the kernel."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "run.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            expected = "one process per home folder (stop the other, or set ONCELOAD_HOME to another folder)"
            raise SettingRefused(command, f"another one running below {home}", expected) from error
        yield


def check_port(port: int, option: str) -> None:
    """Refuse a port that is in use."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise SettingRefused(
                option, f"{port}, which is in use", f"a free port, such as {option} {port + 10}"
            ) from error


def free_port() -> int:
    """A port that nothing uses now."""
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def secret_in(file: Path) -> str:
    if not file.exists():
        write_secret(file, secrets.token_urlsafe(32))
    return file.read_text()


def write_secret(file: Path, content: str) -> None:
    """Write completely or not at all, even if killed: an empty key would be known to everyone."""
    new = file.with_name(f"{file.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
        opened.write(content)
    new.rename(file)
