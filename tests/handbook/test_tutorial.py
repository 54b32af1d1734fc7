"""The tutorial, followed word for word: each command is run, and what it prints is compared."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from handbook.code import ROOT

PAGE = ROOT / "docs" / "tutorial.md"
_BLOCK = re.compile(r"(?ms)^```sh\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?")
#: Differs from run to run: the name of a batch, times, and how long a load took.
_VARIES = re.compile(r"\d{8}T\d{6}-[0-9a-f]{8}|\d{4}-\d\d-\d\d \d\d:\d\dZ|\d+\.\d+ s \(\d+ rows/s")


def commands():
    return _BLOCK.findall(PAGE.read_text("utf-8"))


def without_what_varies(printed):
    return [" ".join(line.split()) for line in _VARIES.sub("~", printed).splitlines()]


@pytest.fixture
def open_folder():
    """A folder that others may enter: the embedded server of root has another user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.mark.long
def test_each_command_of_the_tutorial_prints_what_the_tutorial_shows(open_folder):
    folder = open_folder
    for script, shown in commands():
        done = subprocess.run(
            ["bash", "-euc", f"{script}\npwd > '{open_folder}/folder'"],
            cwd=folder,
            env=environment(),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            timeout=300,
        )

        assert done.returncode == 0, done.stdout
        assert without_what_varies(done.stdout) == without_what_varies(shown), script
        folder = Path((open_folder / "folder").read_text("utf-8").strip())


def environment():
    """The environment of a reader who has set nothing, with the commands of this installation."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ONCELOAD_")}
    return {**ours, "PATH": f"{Path(sys.executable).parent}:{ours['PATH']}"}
