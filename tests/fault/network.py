"""A network between two processes, as a TCP proxy, that is cut, silent or slow when a test asks for it."""

import socket
import threading
import time
from contextlib import suppress
from enum import StrEnum
from typing import Self

from tests.waiting import PATIENCE_S

_HOST = "127.0.0.1"
_AT_ONCE = 2**16
#: What it hands on at a time when it is slow, and how long that takes.
_SLOW_BYTES, _SLOW_S = 2**16, 0.03


class Condition(StrEnum):
    OPEN = "open"
    #: Connections are ended on both sides, and new ones too.
    CUT = "cut"
    #: Nothing arrives any more, and neither side gets an error.
    SILENT = "silent"
    SLOW = "slow"


class Network:
    """Listens on a port of its own, and forwards to another one."""

    def __init__(self, port: int) -> None:
        self._there = (_HOST, port)
        self._changed = threading.Condition()
        self._condition = Condition.OPEN
        self._sides: set[socket.socket] = set()
        self._carried = dict.fromkeys(Condition, 0)
        self._listener = socket.create_server((_HOST, 0))
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._connected: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listening.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.become(Condition.CUT)
        for thread in (self._listening, *self._connected):
            thread.join(timeout=PATIENCE_S)

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def become(self, condition: Condition) -> None:
        """From now on; what is silent goes on as soon as it is not."""
        with self._changed:
            self._condition = condition
            sides = tuple(self._sides) if condition is Condition.CUT else ()
            self._changed.notify_all()
        for side in sides:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def carried(self, condition: Condition) -> int:
        """How many bytes it has carried to clients in this condition."""
        return self._carried[condition]

    @property
    def connections(self) -> int:
        with self._changed:
            return len(self._sides) // 2

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._there)
            except OSError:
                # No server now: the client learns it as it would without us.
                client.close()
                continue
            with self._changed:
                is_cut = self._condition is Condition.CUT
                self._sides |= set() if is_cut else {client, server}
            if is_cut:
                client.close()
                server.close()
                continue
            self._connected.append(threading.Thread(target=self._connect, args=(client, server), daemon=True))
            self._connected[-1].start()

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        with client, server:
            back = threading.Thread(target=self._carry, args=(server, client), kwargs={"is_answer": True}, daemon=True)
            back.start()
            self._carry(client, server, is_answer=False)
            back.join()
        with self._changed:
            self._sides -= {client, server}

    def _carry(self, source: socket.socket, sink: socket.socket, *, is_answer: bool) -> None:
        with suppress(OSError):
            while content := source.recv(_AT_ONCE):
                self._hand_on(content, sink, is_answer=is_answer)
        for side in (source, sink):
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _hand_on(self, content: bytes, sink: socket.socket, *, is_answer: bool) -> None:
        left = content
        while left:
            with self._changed:
                self._changed.wait_for(lambda: self._condition is not Condition.SILENT)
                condition = self._condition
                at_most = _SLOW_BYTES if condition is Condition.SLOW else len(left)
                some, left = left[:at_most], left[at_most:]
                self._carried[condition] += len(some) if is_answer else 0
            if condition is Condition.SLOW:
                time.sleep(_SLOW_S)
            sink.sendall(some)
