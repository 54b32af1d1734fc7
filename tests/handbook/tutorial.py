"""The tutorial, followed word for word: each command is run, and what it prints is compared."""

import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from handbook.code import ROOT
from tests.waiting import PATIENCE_S

PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?")
#: Differs from run to run: the name of a batch, times, and how long a load took.
_VARIES = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}|\d{4}-\d\d-\d\d \d\d:\d\dZ|\d+\.\d+ s \(\d+ rows/s")


def install(folder: Path, environment: Mapping[str, str]) -> None:
    """Run the first commands, which make an environment in a folder."""
    (script, _), *_ = _BLOCK.findall(PAGE.read_text("utf-8"))
    _run(script, folder, environment)


def follow(folder: Path, environment: Mapping[str, str]) -> None:
    """Run all other commands, in a folder in which Onceload is installed."""
    _, *commands = _BLOCK.findall(PAGE.read_text("utf-8"))
    at = folder
    for script, shown in commands:
        printed = _run(f"{script}\npwd > '{folder}/at'", at, environment)
        assert _without_what_varies(printed) == _without_what_varies(shown), script
        at = Path((folder / "at").read_text("utf-8").strip())


def _run(script: str, folder: Path, environment: Mapping[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        # As on a terminal, no output is held back.
        env={**environment, "PYTHONUNBUFFERED": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def _without_what_varies(printed: str) -> list[str]:
    return [" ".join(line.split()) for line in _VARIES.sub("~", printed).splitlines()]


@contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that others may enter: the embedded server of root has another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)
