"""Homes of embedded servers, and processes that use them."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from onceload import embedded
from tests.waiting import PATIENCE_S

CHECKOUT = Path(__file__).parents[2]

USER = """
import os, sys
from pathlib import Path
from onceload.embedded import running

if len(sys.argv) > 2:  # Only now: the interpreter may be out of an ordinary user's reach.
    os.setgroups([])
    os.setgid(int(sys.argv[2]))
    os.setuid(int(sys.argv[2]))
with running(Path(sys.argv[1])) as dsn:
    print(dsn, flush=True)
    sys.stdin.read()
"""


class User:
    """Another process that uses the home's server until it is asked to leave."""

    def __init__(self, home: Path, *, uid: int | None = None, within: Sequence[str] = ()) -> None:
        self.process = subprocess.Popen(
            [*within, sys.executable, "-c", USER, str(home), *([] if uid is None else [str(uid)])],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def dsn(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def leave(self) -> str:
        """Let it go in peace; returns what it complained of."""
        _, complaints = self.process.communicate(timeout=PATIENCE_S)
        return complaints

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


@contextmanager
def user_of(home: Path, *, uid: int | None = None, within: Sequence[str] = ()) -> Iterator[User]:
    user = User(home, uid=uid, within=within)
    try:
        yield user
    finally:
        user.kill()


def postmaster(home: Path) -> psutil.Process:
    process = embedded.server_of(home, version=18).postmaster()
    assert process
    return process


def kill_everything(home: Path) -> None:
    for version in (16, 18):
        process = embedded.server_of(home, version=version).postmaster()
        if process:
            end(process, *process.children(recursive=True))


def end(*processes: psutil.Process) -> None:
    for each in processes:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    assert psutil.wait_procs(processes, timeout=PATIENCE_S)[1] == []
