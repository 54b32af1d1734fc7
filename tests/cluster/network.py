"""Machines, as far as the network is concerned: namespaces with a cable to one switch, which can be cut or slowed.

This machine has a cable to the switch too. Disks are shared, but for folders that a machine does not see.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

needs_networks = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("tc") is None,
    reason="only root may make networks, by the commands ip and tc",
)

#: Networks of a run of these tests lead nowhere else (RFC 3927).
NETWORK = f"169.254.{os.getpid() % 254 + 1}"
#: Packets wait in a queue, and those that find it full are lost.
_SLOW = ("tbf", "rate", "8mbit", "burst", "16kb", "latency", "100ms")
_HIDING = 'mount -t tmpfs none "$1" && shift && exec "$@"'


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


@dataclass(frozen=True)
class Machine:
    """A namespace, and its end of the cable at the switch."""

    name: str
    address: str
    _switch: str
    _cable: str

    def runs(self, command: Sequence[str], *, without: Path | None = None) -> list[str]:
        """The command there, where a folder of this machine may look empty."""
        hiding = [] if without is None else ["sh", "-c", _HIDING, "sh", str(without)]
        own = ["env", f"SPARK_LOCAL_IP={self.address}"]
        return [str(shutil.which("ip")), "netns", "exec", self.name, *hiding, *own, *command]

    def cut(self) -> None:
        """All packets from and to it get lost, and no side gets an error."""
        ip("-n", self._switch, "link", "set", self._cable, "down")

    def reconnect(self) -> None:
        ip("-n", self._switch, "link", "set", self._cable, "up")

    def slow_down(self) -> None:
        """In both directions."""
        for name, cable in ((self._switch, self._cable), (self.name, "eth0")):
            command = ["tc", "-n", name, "qdisc", "replace", "dev", cable, "root", *_SLOW]
            subprocess.run(command, check=True, capture_output=True)


@dataclass(frozen=True)
class Switch:
    """What all machines are plugged into."""

    name: str
    #: The address of this machine.
    here: str

    def plug(self, number: int, made: ExitStack) -> Machine:
        name, cable = f"{self.name}m{number}", f"m{number}"
        machine = Machine(name, f"{NETWORK}.{number + 1}", self.name, cable)
        _add(name, made)
        ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.name, "link", "add", "name", cable, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("-n", name, "address", "add", f"{machine.address}/24", "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        self.take(cable)
        return machine

    def take(self, cable: str) -> None:
        """Plug in the other end of a cable."""
        ip("-n", self.name, "link", "set", cable, "master", "switch")
        ip("-n", self.name, "link", "set", cable, "up")


@contextmanager
def machines(count: int) -> Iterator[tuple[Switch, list[Machine]]]:
    """A switch and its machines, gone with the block."""
    switch = Switch(f"oc{os.getpid()}", f"{NETWORK}.1")
    with ExitStack() as made:
        _add(switch.name, made)
        ip("-n", switch.name, "link", "add", "name", "switch", "type", "bridge")
        ip("-n", switch.name, "link", "set", "switch", "up")
        ip("link", "add", "name", switch.name, "type", "veth", "peer", "name", "here", "netns", switch.name)
        ip("address", "add", f"{switch.here}/24", "dev", switch.name)
        ip("link", "set", switch.name, "up")
        switch.take("here")
        yield switch, [switch.plug(number, made) for number in range(1, count + 1)]


def _add(name: str, made: ExitStack) -> None:
    """A namespace; its cables go with it."""
    ip("netns", "add", name)
    made.callback(ip, "netns", "delete", name)
