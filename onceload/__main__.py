"""`onceload` and `python -m onceload`."""

import os
import sys

from dedup_core.errors import ExitCode
from onceload import cli


def main() -> None:
    """Run one command with the arguments and the environment of this process."""
    try:
        code = cli.main(sys.argv[1:], os.environ)
        sys.stdout.flush()
    except BrokenPipeError:
        # Who read our output has seen enough; Python must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.DONE
    sys.exit(code)


if __name__ == "__main__":
    main()
