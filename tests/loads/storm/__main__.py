"""A long campaign of random sequences: `python -m tests.loads.storm --seconds 600`."""

import argparse
import logging
import random
import re
import sys
import time
import traceback

from tests.loads.storm.drawing import Drawn, Theme, draw, shrunk
from tests.loads.storm.stand import Stand, open_server, open_spark, open_stand


def main() -> int:
    arguments = _arguments()
    logging.disable(logging.CRITICAL)
    seed = arguments.seed if arguments.seed is not None else random.randrange(10**6)
    started, found = time.monotonic(), 0
    print(f"seed {seed}", flush=True)
    with (
        open_server(arguments.theme) as server_dsn,
        open_spark(arguments.theme) as remote,
        open_stand(server_dsn, remote=remote) as stand,
    ):
        for number in range(arguments.sequences):
            if time.monotonic() - started > arguments.seconds or found >= arguments.findings:
                break
            sequence = draw(seed + number, arguments.theme)
            fault = stand.fault_of(sequence)
            if fault is None:
                continue
            found += 1
            print(f"\n=== seed {seed + number}, sequence {number + 1}, {time.monotonic() - started:.0f} s", flush=True)
            sequence = _shrunk(stand, sequence, fault, seconds=arguments.shrink)
            fault = stand.fault_of(sequence) or fault
            print("".join(traceback.format_exception(fault)[-3:])[-3000:], flush=True)
            print(sequence.as_code(), flush=True)
        print(f"\n{number + 1} sequences, {found} findings, {time.monotonic() - started:.0f} s")
        if arguments.outcomes:
            print(*sorted(stand.outcomes.items()), sep="\n")
    return 1 if found else 0


def _shrunk(stand: Stand, drawn: Drawn, fault: BaseException, *, seconds: float) -> Drawn:
    until = time.monotonic() + seconds
    return shrunk(drawn, lambda each: time.monotonic() < until and _is_alike(stand.fault_of(each), fault))


def _is_alike(one: BaseException | None, other: BaseException) -> bool:
    """Whether it is the same law, of whatever record."""
    return one is not None and _law(one) == _law(other)


def _law(fault: BaseException) -> str:
    words = re.sub(r"[0-9]+|day/\S+", "", str(fault)).split()
    return f"{type(fault).__name__} {' '.join(words[:4])}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.loads.storm", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--sequences", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=3_600)
    parser.add_argument("--findings", type=int, default=20, help="stop after so many")
    parser.add_argument("--shrink", type=float, default=20.0, help="seconds to spend on each")
    parser.add_argument("--theme", type=Theme, choices=list(Theme), help="left out, each by chance")
    parser.add_argument("--outcomes", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
