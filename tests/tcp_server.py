"""A server that is reached by TCP and a password, at an address of this machine of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import SystemRandom
from unittest.mock import patch

from onceload import embedded
from tests.servers import execute


def address_of_our_own() -> str:
    """All of 127.0.0.0/8 is this machine, so that ports need not be looked for."""
    numbers = SystemRandom()
    return f"127.{numbers.randint(1, 254)}.{numbers.randint(0, 255)}.{numbers.randint(1, 254)}"


@contextmanager
def tcp_server(home: Path, *, address: str) -> Iterator[str]:
    """Start one, which wants passwords of all but those who come by its socket; yields its address there."""
    with patch.dict(embedded._SETTINGS, {"listen_addresses": address}), embedded.running(home) as dsn:
        (data,) = home.glob("*/data")
        (data / "pg_hba.conf").write_text("local all all trust\nhost all all all scram-sha-256\n")
        execute(dsn, "SELECT pg_reload_conf()")
        yield dsn
