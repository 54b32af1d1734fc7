"""A proxy before Postgres that loses connections, and answers to COMMIT, when a test asks for it.

It speaks just enough of the protocol (version 3) to know a COMMIT and its answer. It listens on a Unix socket,
where clients ask for neither TLS nor GSS, so that every message after the first is a type, a length and a body.
"""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Self

from tests.waiting import PATIENCE_S

_COMMIT = b"COMMIT\x00"
_QUERY, _COMMAND_COMPLETE, _ERROR = b"Q", b"C", b"E"


class Fate(StrEnum):
    """What becomes of a COMMIT; after each of these the connection is gone, and the client has seen no answer."""

    #: It never reaches the server.
    NOT_FORWARDED = "not_forwarded"
    #: The server has answered it, so it is committed.
    ANSWER_SWALLOWED = "answer_swallowed"
    #: It is on its way, and the client may be back before it is carried out.
    UNDER_WAY = "under_way"


class Proxy:
    """Listens in a folder as if it were the server of the other folder."""

    def __init__(self, *, folder: Path, server_folder: Path, port: int = 5432) -> None:
        name = f".s.PGSQL.{port}"
        self._server_address = str(server_folder / name)
        self._lock = threading.Lock()
        self._connections: set[_Connection] = set()
        self._fate: Fate | None = None
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / name))
        self._listener.listen()
        self._listening = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._listening.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        self._listening.join(timeout=PATIENCE_S)

    def doom_next_commit(self, fate: Fate | None) -> None:
        with self._lock:
            self._fate = fate

    @property
    def doom_is_pending(self) -> bool:
        """Whether no COMMIT has met its fate yet."""
        return self._fate is not None

    def cut(self) -> None:
        """End every connection, on both sides."""
        with self._lock:
            connections = tuple(self._connections)
        for connection in connections:
            connection.cut()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._server_address)
            except OSError:
                # No server now: the client learns it as it would without us.
                client.close()
                server.close()
                continue
            connection = _Connection(client=client, server=server, fate_of_commit=self._take_fate, ended=self._forget)
            with self._lock:
                self._connections.add(connection)
            connection.start()

    def _take_fate(self) -> Fate | None:
        with self._lock:
            fate, self._fate = self._fate, None
        return fate

    def _forget(self, connection: "_Connection") -> None:
        with self._lock:
            self._connections.discard(connection)


class _Connection:
    """One client and its server, with a thread for each direction."""

    def __init__(
        self,
        *,
        client: socket.socket,
        server: socket.socket,
        fate_of_commit: Callable[[], Fate | None],
        ended: Callable[["_Connection"], None],
    ) -> None:
        self._client, self._server = client, server
        self._fate_of_commit, self._ended = fate_of_commit, ended
        self._withholds_answer = False

    def start(self) -> None:
        for pump, source in ((self._to_server, self._client), (self._to_client, self._server)):
            threading.Thread(target=self._until_the_end, args=(pump, source), daemon=True).start()

    def cut(self) -> None:
        for side in (self._client, self._server):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _until_the_end(self, pump: Callable[[BinaryIO], None], source: socket.socket) -> None:
        with source, source.makefile("rb") as messages, suppress(OSError, EOFError):
            pump(messages)
        self.cut()
        self._ended(self)

    def _to_server(self, messages: BinaryIO) -> None:
        self._server.sendall(_rest_of_message(messages))
        while True:
            kind = _exactly(messages, 1)
            message = _rest_of_message(messages)
            fate = self._fate_of_commit() if kind == _QUERY and message[4:] == _COMMIT else None
            if fate is Fate.NOT_FORWARDED:
                return
            # Also while it is under way: a quick answer must not overtake the cut.
            self._withholds_answer = fate is not None
            self._server.sendall(kind + message)
            if fate is Fate.UNDER_WAY:
                return

    def _to_client(self, messages: BinaryIO) -> None:
        while True:
            kind = _exactly(messages, 1)
            message = _rest_of_message(messages)
            if self._withholds_answer and kind in (_COMMAND_COMPLETE, _ERROR):
                return
            self._client.sendall(kind + message)


def _rest_of_message(messages: BinaryIO) -> bytes:
    """The length, which counts itself, and the body."""
    length = _exactly(messages, 4)
    return length + _exactly(messages, int.from_bytes(length, "big") - 4)


def _exactly(messages: BinaryIO, size: int) -> bytes:
    found = messages.read(size)
    if len(found) != size:
        raise EOFError
    return found
