"""`onceload` and `python -m onceload`."""

import os
import sys
from io import TextIOWrapper

from onceload import cli
from onceload.terminal import words
from onceload_core.errors import ExitCode, SettingRefused
from onceload_core.events import show_events


def main() -> None:
    """Run one command with the arguments and the environment of this process."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A name that this terminal cannot show must not fail a command that has done its work.
            stream.reconfigure(errors="backslashreplace")
    try:
        show_events(os.environ)
    except SettingRefused as error:
        words(f"onceload: {error}")
        sys.exit(error.exit_code)
    try:
        code = cli.main(sys.argv[1:], os.environ)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output closed it; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.DONE
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        words(f"onceload: the output could not be written ({error}). Committed work is kept. Run the command again")
        code = ExitCode.CALL_AGAIN
    sys.exit(code)


if __name__ == "__main__":
    main()
