"""A store of objects that speaks S3 over HTTP: a process of its own on a free port of this machine."""

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import s3fs

from tests.ports import free_port
from tests.waiting import PATIENCE_S, until

KEY, SECRET = "the-key-of-a-test", "the-secret-of-a-test"


@dataclass(frozen=True)
class ObjectStore:
    """Where it is, and how to get in."""

    address: str

    @property
    def environment(self) -> Mapping[str, str]:
        """The settings that its readers need."""
        return {
            "AWS_ENDPOINT_URL": self.address,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def files(self) -> s3fs.S3FileSystem:
        """The store as tests fill it, with nothing remembered."""
        return s3fs.S3FileSystem(
            key=KEY,
            secret=SECRET,
            endpoint_url=self.address,
            use_listings_cache=False,
            skip_instance_cache=True,
        )


@contextmanager
def object_store(log: Path, *, host: str = "127.0.0.1") -> Iterator[ObjectStore]:
    """Start one, and end it with the block."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "-H", host, "-p", str(port)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        try:
            store = ObjectStore(f"http://{host}:{port}")
            _wait_for(store, process)
            yield store
        finally:
            process.kill()


def _wait_for(store: ObjectStore, process: "subprocess.Popen[bytes]") -> None:
    def answers() -> bool:
        assert process.poll() is None, "the object store did not start"
        with suppress(URLError, ConnectionError), urlopen(store.address, timeout=PATIENCE_S):
            return True
        return False

    until(answers, "the object store answers")
