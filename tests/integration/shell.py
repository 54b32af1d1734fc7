"""Commands, as from a shell."""

import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

from onceload import cli
from tests.waiting import PATIENCE_S

COMMANDS = [
    ["init"],
    ["doctor"],
    ["draft"],
    ["status"],
    ["producers"],
    ["ledger"],
    ["sessions"],
    ["pause"],
    ["resume"],
    ["snapshot", "take"],
    ["snapshot", "list"],
    ["snapshot", "export"],
    ["recover", "state"],
    ["recover", "rewind"],
    ["recover", "rebuild"],
    ["validate"],
    ["plan"],
    ["load"],
    ["schema"],
    ["show"],
    ["sql"],
    ["stage"],
    ["audit"],
    ["publish"],
    ["audits"],
    ["run"],
    ["maintain"],
    ["verify"],
    ["why"],
    ["quarantine", "list"],
    ["quarantine", "show"],
    ["quarantine", "export"],
    ["quarantine", "retry"],
    ["quarantine", "discard"],
]


def onceload(*arguments, **environment):
    """Run one command in this process, which saves the imports: its exit code and what it wrote."""
    with (
        redirect_stdout(StringIO()) as out,
        redirect_stderr(StringIO()) as err,
        patch.dict(os.environ, environment),
    ):
        try:
            code = int(cli.main(arguments, os.environ))
        except SystemExit as ended:
            code = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def in_a_process(*arguments, **environment):
    """Run one command as users do."""
    return subprocess.run(
        [sys.executable, "-m", "onceload", *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


SAMPLE = str(Path(__file__).parents[2] / "pipelines" / "events.yaml")


def on_a_terminal(*arguments, **environment):
    """What a command writes to a terminal: a pseudo terminal that the process takes for its own."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "onceload", *arguments]
    subprocess.run(command, env={**os.environ, **environment}, stdout=theirs, timeout=PATIENCE_S, check=True)
    os.close(theirs)
    shown = os.read(ours, 10_000).decode()
    os.close(ours)
    return shown
