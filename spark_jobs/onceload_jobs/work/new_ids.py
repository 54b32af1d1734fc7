"""Which ids of a bucket are new: neither consumed before nor repeated."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Ranges of ids, `first` to before `end`, by producer and then by id."""

    producers: Integers
    first: Integers
    end: Integers

    def cover(self, producers: Integers, ids: Integers) -> Mask:
        """Whether each of these ids, in the same order, is in one of the ranges."""
        if not len(self.first):
            return np.zeros(len(ids), bool)
        of_runs = len(self.first)
        both = (
            # A range comes before the ids that it begins with.
            np.repeat([0, 1], [of_runs, len(ids)]),
            np.concatenate([self.first, ids]),
            np.concatenate([self.producers, producers]),
        )
        order = np.lexsort(both)
        last_run = np.maximum.accumulate(np.where(order < of_runs, order, -1))[order >= of_runs]
        run = np.maximum(last_run, 0)
        covers: Mask = (last_run >= 0) & (self.producers[run] == producers) & (ids < self.end[run])
        return covers


@dataclass(frozen=True, kw_only=True)
class NewIds:
    """The rows with a new id, and these ids."""

    rows: Mask
    runs: Runs
    #: How many rows each range has.
    counts: Integers


def new_ids(producers: Integers, ids: Integers, places: tuple[Integers, Integers], consumed: Runs) -> NewIds:
    """The first of several rows of one id counts: by file, and by the place in it."""
    files, in_file = places
    order = np.lexsort((in_file, files, ids, producers))
    producers, ids = producers[order], ids[order]
    is_first = np.ones(len(ids), bool)
    is_first[1:] = (producers[1:] != producers[:-1]) | (ids[1:] != ids[:-1])
    is_new = is_first & ~consumed.cover(producers, ids)
    rows = np.zeros(len(ids), bool)
    rows[order[is_new]] = True
    runs, counts = _runs_of(producers[is_new], ids[is_new])
    return NewIds(rows=rows, runs=runs, counts=counts)


def _runs_of(producers: Integers, ids: Integers) -> tuple[Runs, Integers]:
    """The ranges of ids that are in order, each once."""
    begins = np.ones(len(ids), bool)
    begins[1:] = (producers[1:] != producers[:-1]) | (ids[1:] != ids[:-1] + 1)
    starts = np.flatnonzero(begins)
    ends = np.append(starts[1:], len(ids))[: len(starts)]
    return Runs(producers=producers[starts], first=ids[starts], end=ids[ends - 1] + 1), ends - starts
