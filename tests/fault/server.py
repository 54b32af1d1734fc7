"""A Postgres of our own that may be crashed: nobody else's work is on it.

It is the embedded one with its defaults, so what it answered must be there after a crash (fsync is on).
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from psycopg2.extensions import make_dsn, parse_dsn

from onceload import embedded
from tests.servers import execute, temporary_home


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
        (data,) = self._home.glob("*/data")
        command: list[str | Path] = [
            embedded.binaries(18) / "pg_ctl",
            f"--pgdata={data}",
            "--wait",
            "--mode=immediate",
            "--silent",
            "stop",
        ]
        owner, is_root = data.stat(), os.geteuid() == 0
        subprocess.run(
            command,
            cwd="/",
            check=True,
            timeout=60,
            # Postgres' tools refuse to run as root.
            user=owner.st_uid if is_root else None,
            group=owner.st_gid if is_root else None,
            extra_groups=[] if is_root else None,
        )

    def start(self) -> None:
        # Whoever uses it next starts it; as we use it as well, it stays.
        with embedded.running(self._home):
            pass


@contextmanager
def crashable_server() -> Iterator[CrashableServer]:
    with temporary_home() as home, embedded.running(home) as dsn:
        yield CrashableServer(home=home, dsn=dsn)
