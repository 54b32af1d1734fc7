"""TLS to Postgres, whose certificate is of an authority made here: who cannot prove to be the server gets nothing."""

import os
import socket
import socketserver
import ssl
import threading
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from tempfile import NamedTemporaryFile

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from psycopg2.extensions import parse_dsn

from onceload import cli
from onceload.embedded import running
from tests.servers import execute, temporary_home

#: What a client of Postgres says first if it wants TLS.
SSL_REQUEST = bytes.fromhex("0000000804d2162f")
NAME, PASSWORD = "db.example.test", "a-password-of-a-test"


class Authority:
    """An authority that signs certificates."""

    def __init__(self):
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "an authority")])
        self.certificate = pem(self._signed(self._name, self._key.public_key(), is_authority=True))

    def issue(self, name, *, days=1):
        """A certificate for a name, and its key; for less than no days, one that has ended."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return pem(self._signed(subject, key.public_key(), name=name, days=days)), private

    def _signed(self, subject, key, *, is_authority=False, name=None, days=1):
        now = datetime.now(UTC)
        built = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=10))
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )
        if name:
            built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        return built.sign(self._key, hashes.SHA256())


def pem(certificate):
    return certificate.public_bytes(serialization.Encoding.PEM)


@pytest.fixture(scope="module")
def authority():
    return Authority()


class Front(socketserver.ThreadingTCPServer):
    """A proxy before a server that speaks no TLS itself; it records all that is sent to it."""

    daemon_threads = True

    def __init__(self, behind, tls):
        super().__init__(("127.0.0.1", 0), Relay)
        self.behind, self.heard = behind, b""
        self.tls = None
        if tls:
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            with NamedTemporaryFile() as both:
                both.write(b"".join(tls))
                both.flush()
                self.tls.load_cert_chain(both.name)


class Relay(socketserver.BaseRequestHandler):
    """One connection: a client that asks for TLS gets it, or the answer that there is none."""

    server: Front

    def handle(self):
        front, client = self.server, self.request
        assert client.recv(8) == SSL_REQUEST
        client.sendall(b"S" if front.tls else b"N")
        # A client that does not trust us sends nothing more.
        with suppress(OSError), ExitStack() as stack:
            if front.tls:
                client = stack.enter_context(front.tls.wrap_socket(client, server_side=True))
            server = stack.enter_context(socket.socket(socket.AF_UNIX))
            server.connect(front.behind)
            back = threading.Thread(target=relay, args=(server, client.sendall), daemon=True)
            back.start()

            def forward(said):
                front.heard += said
                server.sendall(said)

            relay(client, forward)
            server.shutdown(socket.SHUT_WR)
            back.join()


def relay(source, tell):
    with suppress(OSError):
        while said := source.recv(65_536):
            tell(said)


def served(tmp_path, authority, tls, *command):
    """Call a command with an address that wants proof from a server that has this certificate, or none."""
    root = tmp_path / "authority.pem"
    root.write_bytes(authority.certificate)
    with temporary_home() as home, running(home) as admin:
        execute(admin, f"CREATE ROLE loads LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        (data,) = home.glob("*/data")
        (data / "pg_hba.conf").write_text("local all postgres trust\nlocal all all scram-sha-256\n")
        execute(admin, "SELECT pg_reload_conf()")
        behind = parse_dsn(admin)["host"] + "/.s.PGSQL.5432"
        with Front(behind, tls) as front:
            threading.Thread(target=front.serve_forever, daemon=True).start()
            where = f"host={NAME}&hostaddr=127.0.0.1&port={front.server_address[1]}"
            proof = f"sslmode=verify-full&sslrootcert={root}"
            dsn = f"postgresql://loads:{PASSWORD}@/postgres?{where}&{proof}"
            code = cli.main(command, {**os.environ, "ONCELOAD_DSN": dsn})
            front.shutdown()
        made = execute(admin, "SELECT count(*) FROM pg_namespace WHERE nspname = 'onceload'")
    return code, made == [(1,)], front.heard


def test_a_server_that_proves_who_it_is_is_used_over_tls(tmp_path, authority, capsys):
    code, is_used, heard = served(tmp_path, authority, authority.issue(NAME), "init")

    assert (code, is_used) == (0, True)
    assert b"user\0loads\0" in heard
    assert PASSWORD not in capsys.readouterr().err


@pytest.mark.parametrize(
    "attack",
    [
        "a_certificate_of_another_authority",
        pytest.param("a_certificate_of_another_name", marks=pytest.mark.long),
        pytest.param("a_certificate_that_has_ended", marks=pytest.mark.long),
        "a_server_that_speaks_no_tls",
    ],
)
def test_a_man_in_the_middle_gets_no_data_through(tmp_path, authority, capsys, attack):
    tls = {
        "a_certificate_of_another_authority": lambda: Authority().issue(NAME),
        "a_certificate_of_another_name": lambda: authority.issue("elsewhere.example.test"),
        "a_certificate_that_has_ended": lambda: authority.issue(NAME, days=-1),
        "a_server_that_speaks_no_tls": lambda: None,
    }[attack]()

    code, is_used, heard = served(tmp_path, authority, tls, "init")

    said = capsys.readouterr().err
    assert (code, is_used) == (1, False)
    assert heard == b""
    assert "check ONCELOAD_DSN" in said
    assert PASSWORD not in said
