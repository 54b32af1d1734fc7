"""Each command of the tutorial prints what the tutorial shows. Another test follows it with the built wheel."""

import os
import sys
from pathlib import Path

import pytest

from tests.handbook.tutorial import follow, open_folder


@pytest.mark.long
def test_each_command_of_the_tutorial_prints_what_the_tutorial_shows():
    with open_folder() as folder:
        follow(folder, environment())


def environment():
    """The environment of a reader who has set nothing, with the commands of this installation."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("ONCELOAD_")}
    return {**ours, "PATH": f"{Path(sys.executable).parent}:{ours['PATH']}"}
