"""The SQLSTATE shows why a server refuses a session, whatever language it speaks."""

import socket
import socketserver
import struct
import threading

import pytest
from sqlalchemy import text
from sqlalchemy.exc import ProgrammingError

from onceload.extras import advice_for
from onceload_core.errors import DatabaseLost, DatabaseRefused, DatabaseUnreachable, ExitCode, OnceloadError
from onceload_core.postgres import LedgerSettings, connect
from onceload_core.postgres.connection import translated
from tests.servers import execute


class Refusing(socketserver.BaseRequestHandler):
    """A server that says no to every session, in German."""

    server: "RefusingServer"

    def handle(self):
        size = struct.unpack("!I", self.request.recv(4, socket.MSG_WAITALL))[0]
        self.request.recv(size - 4, socket.MSG_WAITALL)
        said = {"S": "FATAL", "V": "FATAL", "C": self.server.code, "M": "Zugang verweigert: zu spät, zu viele"}
        fields = b"".join(f"{name}{value}".encode() + b"\0" for name, value in said.items()) + b"\0"
        self.request.sendall(b"E" + struct.pack("!I", len(fields) + 4) + fields)


class RefusingServer(socketserver.ThreadingTCPServer):
    code: str


@pytest.fixture
def refusing():
    with RefusingServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def refusal_of(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    with pytest.raises(OnceloadError) as refused:
        engine.connect()
    return refused.value


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("53300", DatabaseUnreachable),
        ("57P01", DatabaseUnreachable),
        ("57P03", DatabaseUnreachable),
        ("28P01", DatabaseRefused),
        ("28000", DatabaseRefused),
        ("3D000", DatabaseRefused),
        ("42704", DatabaseRefused),
    ],
)
def test_the_code_decides_whether_a_refusal_passes(refusing, code, expected):
    refusing.code = code
    port = refusing.server_address[1]

    refusal = refusal_of(f"postgresql://me@127.0.0.1:{port}/sales?sslmode=disable&gssencmode=disable")

    assert type(refusal) is expected
    assert "Zugang verweigert" in str(refusal)
    assert refusal.exit_code is (ExitCode.WRONG_USE if expected is DatabaseRefused else ExitCode.CALL_AGAIN)


def test_no_server_may_be_there_later():
    assert type(refusal_of("postgresql://me@127.0.0.1:1/sales")) is DatabaseUnreachable


@pytest.mark.parametrize(
    ("servers", "expected"),
    [
        ("me@127.0.0.1:1,127.0.0.1:{port}/sales?", DatabaseUnreachable),
        ("me@127.0.0.1:{port},127.0.0.1:1/sales?", DatabaseRefused),
        ("me@localhost:{port}/sales?", DatabaseRefused),
        ("me@/sales?hostaddr=127.0.0.1,127.0.0.1&port=1,{port}&", DatabaseUnreachable),
        ("me@/sales?hostaddr=127.0.0.1,127.0.0.1&port={port},1&", DatabaseRefused),
    ],
    ids=[
        "first is down",
        "first refuses",
        "one name of several addresses",
        "first is down, by IP",
        "first refuses, by IP",
    ],
)
def test_one_of_several_servers_that_is_down_may_be_the_right_one(refusing, servers, expected):
    refusing.code = "28P01"
    servers = servers.format(port=refusing.server_address[1])

    assert type(refusal_of(f"postgresql://{servers}sslmode=disable&gssencmode=disable")) is expected


@pytest.mark.every_postgres
def test_a_database_that_is_not_there_and_one_that_is_full(dsn):
    name = dsn.split("/")[3].split("?")[0]
    execute(dsn, f"CREATE ROLE guest_of_{name} LOGIN CONNECTION LIMIT 0")
    try:
        missing = refusal_of(dsn.replace(f"/{name}?", "/nowhere?"))
        full = refusal_of(dsn.replace("://postgres@", f"://guest_of_{name}@"))
    finally:
        execute(dsn, f"DROP ROLE guest_of_{name}")

    assert (type(missing), type(full)) == (DatabaseRefused, DatabaseUnreachable)


def test_a_canceled_query_is_not_a_busy_lock(dsn):
    engine = connect(LedgerSettings(dsn=dsn))
    with (
        pytest.raises(DatabaseLost, match="an administrator cancelled the query, or set a limit"),
        translated(pipeline="events", doing="loading"),
        engine.connect() as connection,
    ):
        connection.execute(text("SELECT pg_cancel_backend(pg_backend_pid()), pg_sleep(60)"))
    engine.dispose()


def test_an_error_that_is_raised_as_it_is_is_not_its_own_cause(dsn):
    """A search through its causes would never end."""
    engine = connect(LedgerSettings(dsn=dsn))

    with (
        pytest.raises(ProgrammingError) as raised,
        translated(pipeline="events", doing="looking"),
        engine.begin() as connection,
    ):
        connection.execute(text("SELECT nothing FROM nowhere"))
    engine.dispose()

    assert raised.value.__cause__ is not raised.value
    assert advice_for(raised.value) is None
