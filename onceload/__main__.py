"""`onceload` and `python -m onceload`."""

import os
import sys

from onceload import cli
from onceload.streams import StandardStreams
from onceload.terminal import words
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.events import show_events


def main() -> None:
    """Run one command with the arguments and the environment of this process."""
    streams = StandardStreams()
    try:
        code = _run()
    except SystemExit as ended:
        # After help or a wrong usage, which the parser has printed.
        code = ExitCode(int(ended.code or 0))
    if (failure := streams.find_failure()) is not None:
        words(f"onceload: the output could not be written ({failure}). Committed work is kept. Run the command again")
        code = code or ExitCode.CALL_AGAIN
    sys.exit(code)


def _run() -> ExitCode:
    try:
        show_events(os.environ)
    except SettingRefused as error:
        words(f"onceload: {error}")
        return error.exit_code
    return cli.main(sys.argv[1:], os.environ)


if __name__ == "__main__":
    main()
