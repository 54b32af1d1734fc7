"""The compose file, and its services as processes of this machine: what it says is what is started."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
EXAMPLE = ROOT / ".env.example"
_ASKED = re.compile(r"\$\{([A-Z_]+)(?::([-?])([^}]*))?\}")

#: A host differs from a user by what is behind it: nothing, or a port.
_PORT = r"""(?=$|:\d{2,5}(?:$|[/"']))"""


def settings(**given: str) -> dict[str, str]:
    """What .env.example says, with secrets where it leaves them to the reader."""
    lines = (line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#"))
    return {**{name: value for name, _, value in (line.partition("=") for line in lines)}, **given}


def asked_for() -> set[str]:
    """Every setting that the file asks for."""
    return {match[1] for match in _ASKED.finditer(FILE.read_text())}


def services(given: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services, as compose reads them."""

    def said(match: "re.Match[str]") -> str:
        value = given.get(match[1], "")
        if match[2] == "?" and not value:
            raise AssertionError(f"{match[1]}: {match[3]}")
        return value or (match[3] if match[2] == "-" else "")

    def filled(value: Any) -> Any:
        match value:
            case str():
                return _ASKED.sub(said, value)
            case list():
                return [filled(each) for each in value]
            case dict():
                return {name: filled(each) for name, each in value.items()}
            case _:
                return value

    found: dict[str, dict[str, Any]] = filled(yaml.safe_load(FILE.read_text())["services"])
    return found


@dataclass(frozen=True)
class Here:
    """Where the containers would be on this machine: each at an address of its own, with the same ports."""

    services: Mapping[str, Mapping[str, Any]]
    addresses: Mapping[str, str]
    #: Folders in containers; the first that fits counts.
    folders: Mapping[str, str]

    def environment(self, name: str) -> dict[str, str]:
        """What a service has, and what a container's network and image would give it."""
        asked = self.services[name].get("environment") or {}
        kept = {each: os.environ[each] for each in ("HOME", "JAVA_HOME", "LANG") if each in os.environ}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        given = {"PATH": path, "PYTHONUNBUFFERED": "1", "SPARK_LOCAL_IP": self.addresses[name]}
        return {**kept, **given, **{each: self._put(name, str(value)) for each, value in asked.items()}}

    def command(self, name: str) -> list[str]:
        """Its command, with nothing in its environment but its own."""
        env = [f"{each}={value}" for each, value in self.environment(name).items()]
        return [
            str(shutil.which("env")),
            "-i",
            *env,
            *(self._put(name, each) for each in self.services[name]["command"]),
        ]

    def is_well(self, name: str) -> bool:
        """What its health check says."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        asked = [self._put(name, each) for each in command]
        done = subprocess.run(asked, env=self.environment(name), capture_output=True, check=False, timeout=60)
        return done.returncode == 0

    def _put(self, name: str, said: str) -> str:
        """A setting of a service, in terms of this machine."""
        own = dict.fromkeys(("0.0.0.0", "127.0.0.1", "localhost"), self.addresses[name])
        for host, address in {**self.addresses, **own}.items():
            said = re.sub(rf"(?:^|(?<=[/@])){re.escape(host)}{_PORT}", address, said)
        for there, here in self.folders.items():
            said = re.sub(rf"(?<![\w/.]){re.escape(there)}\b", here, said)
        return said
