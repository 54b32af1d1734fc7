"""Ports of this machine."""

import socket
from contextlib import closing


def free_port() -> int:
    """One that no server listens on now."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
