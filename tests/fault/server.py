"""A Postgres of our own that may be crashed: it has no data of others.

It is the embedded one with its defaults, so what it answered must be there after a crash (fsync is on).
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from psycopg2.extensions import make_dsn, parse_dsn

from onceload import embedded
from tests.servers import execute, temporary_home
from tests.waiting import PATIENCE_S


class CrashableServer:
    def __init__(self, *, home: Path, dsn: str) -> None:
        self._home, self._dsn = home, dsn

    @property
    def socket_folder(self) -> Path:
        return Path(parse_dsn(self._dsn)["host"])

    def dsn(self, **other: object) -> str:
        """Its address, as another user, to another database, or through another folder."""
        return make_dsn(self._dsn, **other)

    def create_database(self, name: str) -> None:
        execute(self._dsn, f"CREATE DATABASE {name}")

    def crash(self) -> None:
        """Every backend is ended at once, and nothing is written down; the next start recovers from the log."""
        (file,) = self._home.glob("*/data/postmaster.pid")
        # Not by pg_ctl: it waits for that file, which is another server's if one starts at once.
        try:
            server = psutil.Process(int(file.read_text().split()[0]))
            assert server.name() == "postgres"
            server.send_signal(signal.SIGQUIT)
            server.wait(timeout=PATIENCE_S)
        except psutil.NoSuchProcess as error:
            raise ProcessLookupError(f"no server runs in {file.parent}") from error

    def start(self) -> None:
        # The next user of it starts it; as we use it as well, it stays.
        with embedded.running(self._home):
            pass


@contextmanager
def crashable_server() -> Iterator[CrashableServer]:
    with temporary_home() as home, embedded.running(home) as dsn:
        yield CrashableServer(home=home, dsn=dsn)
