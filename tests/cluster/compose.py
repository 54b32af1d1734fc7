"""The compose file, and its services as processes of this machine: what it says is what is started."""

import os
import re
import secrets
import shutil
import subprocess
import sys
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.image import Bind, Image
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docker-compose.yml"
EXAMPLE = ROOT / ".env.example"
SECRETS = (
    "POSTGRES_PASSWORD",
    "AIRFLOW_DB_PASSWORD",
    "LOADER_PASSWORD",
    "READER_PASSWORD",
    "AIRFLOW_PASSWORD",
    "AIRFLOW_SECRET",
    "AIRFLOW_JWT_SECRET",
    "SPARK_SECRET",
    "SPARK_CONNECT_TOKEN",
    "AIRFLOW_FERNET_KEY",
)
_ASKED = re.compile(r"\$\{([A-Z_]+)(?::([-?])([^}]*))?\}")

#: A host differs from a user by what is behind it: nothing, or a port.
_PORT = r"""(?=$|:\d{2,5}(?:$|[/"']))"""


def settings(**given: str) -> dict[str, str]:
    """What .env.example says, with secrets where it leaves them to the reader."""
    lines = (line for line in EXAMPLE.read_text().splitlines() if line and not line.startswith("#"))
    return {**{name: value for name, _, value in (line.partition("=") for line in lines)}, **given}


def made_up(**given: str) -> dict[str, str]:
    """Settings with secrets of their own, for a small machine."""
    made = {name: secrets.token_hex(16) for name in (*SECRETS, "AWS_SECRET_ACCESS_KEY")}
    made["AIRFLOW_FERNET_KEY"] = urlsafe_b64encode(secrets.token_bytes(32)).decode()
    return settings(**made, AWS_ACCESS_KEY_ID="key", SPARK_WORKER_CORES="1", SPARK_WORKER_MEMORY="1g", **given)


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


def binds(service: Mapping[str, Any], name: str, image: Image, lasting: Path) -> list[Bind]:
    """The volumes of a service; those with a name, and what a container has for itself alone, are below `lasting`."""
    found = [_bind(*volume.split(":"), lasting=lasting) for volume in service.get("volumes") or ()]
    if image.home not in {each.there for each in found}:
        # Others may be below it.
        found.insert(0, Bind(here=lasting / name, there=image.home, is_writable=True))
    return found


def _bind(source: str, there: str, mode: str = "rw", *, lasting: Path) -> Bind:
    here = ROOT / source if source[0] in "./" else lasting / source
    return Bind(here=here, there=there, is_writable=mode == "rw")


@dataclass(frozen=True)
class Here:
    """Where the containers would be on this machine: each at an address of its own, with the same ports.

    With the image, each process has its files as the root, and folders of this machine in it. Without, all of them have
    the files of this machine.
    """

    services: Mapping[str, Mapping[str, Any]]
    addresses: Mapping[str, str]
    #: Folders in containers, and what is named instead; the first that fits counts.
    folders: Mapping[str, str] = field(default_factory=dict)
    image: Image | None = None
    #: What each container has of this machine.
    binds: Mapping[str, Sequence[Bind]] = field(default_factory=dict)

    def environment(self, name: str) -> dict[str, str]:
        """What a service has, and what a container's network and image would give it."""
        asked = self.services[name].get("environment") or {}
        of_service = {each: self._put(name, str(value)) for each, value in asked.items()}
        of_network = {"SPARK_LOCAL_IP": self.addresses[name]}
        if self.image is not None:
            return {"HOME": self.image.home, **of_network, **of_service}
        kept = {each: os.environ[each] for each in ("HOME", "JAVA_HOME", "LANG") if each in os.environ}
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        return {**kept, "PATH": path, "PYTHONUNBUFFERED": "1", **of_network, **of_service}

    def command(self, name: str) -> list[str]:
        """Its command, with nothing in its environment but its own."""
        return self._as_service(name, self.services[name]["command"])

    def is_well(self, name: str) -> bool:
        """What its health check says."""
        kind, *command = self.services[name]["healthcheck"]["test"]
        assert kind == "CMD"
        done = subprocess.run(self._as_service(name, command), capture_output=True, check=False, timeout=PATIENCE_S)
        return done.returncode == 0

    def _as_service(self, name: str, said: Sequence[str]) -> list[str]:
        command, environment = [self._put(name, each) for each in said], self.environment(name)
        if self.image is not None:
            return self.image.inside(command, environment=environment, binds=self.binds[name])
        return [str(shutil.which("env")), "-i", *(f"{each}={value}" for each, value in environment.items()), *command]

    def _put(self, name: str, said: str) -> str:
        """A setting of a service, in terms of this machine."""
        own = dict.fromkeys(("0.0.0.0", "127.0.0.1", "localhost"), self.addresses[name])
        for host, address in {**self.addresses, **own}.items():
            said = re.sub(rf"(?:^|(?<=[/@])|(?<=address=)){re.escape(host)}{_PORT}", address, said)
        for there, here in self.folders.items():
            said = re.sub(rf"(?<![\w/.]){re.escape(there)}\b", here, said)
        return said
