"""The reason why a connection could not be opened.

The driver gives no SQLSTATE for it, only the server's message in the server's language. libpq, below the driver, can
report the SQLSTATE instead, for the next attempt.
"""

import ctypes
import re

import psycopg2
from psycopg2 import _psycopg

from onceload_core.errors import DatabaseRefused, DatabaseUnreachable

#: PQERRORS_SQLSTATE of libpq: only the code, no message.
_CODE_ALONE = 3
_CODE = re.compile(r": +([0-9A-Z]{5})$", re.MULTILINE)
#: Classes of errors that last until a person changes the address, the password, the privileges or the options.
_FINAL = ("22", "28", "3D", "42")
_FIX = "Check that the server runs, and check ONCELOAD_DSN (host, port, TLS). Then retry."


class Attempt(psycopg2.extensions.connection):
    """A connection that raises our errors if it cannot be opened."""

    def __init__(self, dsn: str) -> None:
        try:
            super().__init__(dsn)
        except psycopg2.OperationalError as error:
            reason = str(error).strip().split("\n", 1)[0]
            if any(code.startswith(_FINAL) for code in self._codes()) and self._is_first_of(dsn):
                raise DatabaseRefused(reason) from error
            raise DatabaseUnreachable("opening a connection", reason, _FIX) from error

    def _is_first_of(self, dsn: str) -> bool:
        """Whether no other server was left to try: libpq stops at the first refusal."""
        asked = psycopg2.extensions.parse_dsn(dsn)
        hosts = (asked.get("host") or asked.get("hostaddr", "")).split(",")
        ports = asked.get("port", "").split(",")
        return len(hosts) == 1 or (self.info.host, str(self.info.port)) == (hosts[0], ports[0] or "5432")

    def _codes(self) -> list[str]:
        """Try again, and return the SQLSTATE of each server that answers."""
        try:
            libpq, connection = ctypes.CDLL(_psycopg.__file__), ctypes.c_void_p(self.pgconn_ptr)
            libpq.PQsetErrorVerbosity(connection, _CODE_ALONE)
            libpq.PQreset(connection)
        except (AttributeError, OSError):
            # This driver does not expose its libpq.
            return []
        return _CODE.findall(self.info.error_message or "")
