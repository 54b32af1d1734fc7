"""The parts of a load that workers read: each is tried again if it fails, at last chunk by chunk."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count

from onceload_core.errors import OnceloadError
from onceload_jobs.executor.executor import Died, Failed, Failure, Raised
from onceload_jobs.formats.chunks import Chunk
from onceload_jobs.read.board_work import Bundle
from onceload_jobs.work.failures import reason_of
from onceload_jobs.work.read_chunk import Part

#: How often a bundle is read as a whole before each of its chunks is read alone.
_WHOLE_TRIES = 2


@dataclass(frozen=True, kw_only=True)
class Culprit:
    """A chunk that failed in all of its tries, the last ones alone, and why."""

    chunk: Chunk
    #: Why each try failed.
    reasons: tuple[str, ...]


class Parts:
    """The parts of a load, by their numbers."""

    def __init__(self, bundles: Iterable[Bundle], *, tries_max: int) -> None:
        self._numbers = count()
        #: How often a chunk is read before it is set aside.
        self._tries_max = tries_max
        parts = (Part(number=next(self._numbers), chunks=chunks) for chunks in bundles)
        self._parts = {part.number: part for part in parts}
        self._culprits: list[Culprit] = []

    def __getitem__(self, number: int) -> Part:
        return self._parts[number]

    def __iter__(self) -> Iterator[Part]:
        return iter(list(self._parts.values()))

    def put(self, part: Part) -> None:
        self._parts[part.number] = part

    def remove(self, part: Part) -> None:
        del self._parts[part.number]

    def take_culprits(self) -> Sequence[Culprit]:
        """Those that were found since the last call."""
        found, self._culprits = self._culprits, []
        return found

    def first_try(self, part: Part) -> Part:
        return self._as_try(part, number=1)

    def next_try(self, part: Part, failures: Sequence[Failure]) -> Sequence[Part]:
        """The same part, or at last each of its chunks alone."""
        tries = len(failures)
        if len(part.chunks) > 1 and tries >= min(_WHOLE_TRIES, self._tries_max - 1):
            del self._parts[part.number]
            alone = [replace(part, number=next(self._numbers), chunks=(chunk,)) for chunk in part.chunks]
            self._parts |= {each.number: each for each in alone}
            return [self._as_try(each, number=tries + 1) for each in alone]
        return [self._as_try(part, number=tries + 1)] if tries < self._tries_max else ()

    def _as_try(self, part: Part, *, number: int) -> Part:
        is_last = number >= self._tries_max and len(part.chunks) == 1
        return replace(part, is_last_try=is_last, is_redelivered=number > 1)

    def give_up(self, part: Part, failed: Failed) -> None:
        """Take a part out that failed in all of its tries."""
        del self._parts[part.number]
        (chunk,) = part.chunks
        self._culprits.append(Culprit(chunk=chunk, reasons=tuple(_why(chunk, each) for each in failed.failures)))


def _why(chunk: Chunk, failure: Failure) -> str:
    match failure:
        case Died(reason):
            return f"while it read {chunk.name!r}, {reason}"
        case Raised(OnceloadError() as error):
            return str(error)
        case Raised(error):
            return reason_of(error)
