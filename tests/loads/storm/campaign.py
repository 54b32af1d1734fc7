"""Many sequences, and in how many of each theme a law was broken."""

import logging
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import ceil

from tests.loads.storm.drawing import Theme, draw
from tests.loads.storm.stand import open_server, open_spark, open_stand
from tests.loads.storm.world import Broken, Law

#: Each waits for its server half of the time, so that two cores have room for three.
_LANES = 3
#: A job of Spark takes longer than all that a worker does for these few records.
_FEWER_BY = 5


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of the sequences of one theme."""

    theme: Theme
    sequences: int
    #: In how many of them a record was lost, or was there too often.
    lost: int
    repeated: int
    #: How those ended in which any law was broken, each with its seed.
    broken: tuple[str, ...]
    seconds: float

    @property
    def is_good(self) -> bool:
        return not self.broken


def run(sequences: int, *, seed: int) -> Iterator[Outcome]:
    """Run a number of sequences, shared out among the themes; each has the seed behind that of the one before."""
    each = ceil(sequences / len(Theme))
    for number, theme in enumerate(Theme):
        first, started = seed + number * each, time.monotonic()
        share = ceil(each / _FEWER_BY) if theme is Theme.RESIDENT else each
        shares = [range(first + lane, first + share, _LANES) for lane in range(_LANES)]
        with (
            open_spark(theme) as remote,
            ProcessPoolExecutor(_LANES, mp_context=multiprocessing.get_context("spawn")) as lanes,
        ):
            found = [f for some in lanes.map(_faults, [theme] * _LANES, shares, [remote] * _LANES) for f in some]
        yield Outcome(
            theme=theme,
            sequences=share,
            lost=sum(law is Law.LOST for law, _ in found),
            repeated=sum(law is Law.REPEATED for law, _ in found),
            broken=tuple(words for _, words in found),
            seconds=time.monotonic() - started,
        )


def _faults(theme: Theme, seeds: Sequence[int], remote: str | None) -> list[tuple[Law, str]]:
    logging.disable(logging.CRITICAL)
    found = []
    with open_server(theme) as server_dsn, open_stand(server_dsn, remote=remote) as stand:
        for seed in seeds:
            fault = stand.fault_of(draw(seed, theme))
            if fault is not None:
                law = fault.law if isinstance(fault, Broken) else Law.OTHER
                found.append((law, f"seed {seed} of {theme!r}: {type(fault).__name__}: {fault}"))
    return found
